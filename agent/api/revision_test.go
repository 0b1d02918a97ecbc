package api

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
)

func (b *fake) PreviewConfig(ctx context.Context, p Proposal) (Revision, error) {
	b.by, _ = PeerOf(ctx)
	b.proposed = p
	has := &agent.Holding{CPUs: cpuset.MustParse("2-3"), Own: cpuset.MustParse("2-3")}
	return Revision{Changes: []string{"floor: added: 0"}, Effects: []agent.Effect{{ID: "a", Kind: agent.EffectPlaced, Is: has}}, Digest: "d"}, b.fail
}

func (b *fake) ApplyConfig(ctx context.Context, p Proposal) (Revision, error) {
	return b.PreviewConfig(ctx, p)
}

func (b *fake) Versions(context.Context) ([]Version, error) {
	return []Version{{Number: 1, Since: time.Unix(1000, 0).UTC(), How: "start", Changes: []string{}, InForce: true}}, b.fail
}

func (b *fake) Version(ctx context.Context, number int) (Version, error) {
	all, err := b.Versions(ctx)
	if err != nil || number != 1 {
		return Version{}, NoVersion(number)
	}
	return all[0], nil
}

// askAs is the status that a user gets.
func askAs(h http.Handler, uid int, method, path, body string) int {
	r, err := http.NewRequest(method, "http://agent"+path, strings.NewReader(body))
	if err != nil {
		return 0
	}
	w := &recorder{header: http.Header{}}
	h.ServeHTTP(w, asked(r, uid))
	return w.status
}

// Configurations are for root and admins to preview and to apply, and for all to read.
func TestWhoMayConfigure(t *testing.T) {
	t.Parallel()
	b := newFake(t)
	h := (&Server{Node: b, View: b, Guardian: b, Configs: b, History: NewHistory(8, 0)}).Handler()
	const other = 4711
	for _, tt := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/v1/config/preview", `{"text":"x"}`, http.StatusForbidden},
		{"PUT", "/v1/config", `{"text":"x"}`, http.StatusForbidden},
		{"GET", "/v1/config/history", "", http.StatusOK},
		{"GET", "/v1/config/history/1", "", http.StatusOK},
	} {
		if status := askAs(h, other, tt.method, tt.path, tt.body); status != tt.want {
			t.Errorf("%s %s of another user: %d, want %d", tt.method, tt.path, status, tt.want)
		}
	}
	if b.proposed.Text != "" {
		t.Errorf("it was asked for %+v", b.proposed)
	}
	if status := askAs(h, 0, "PUT", "/v1/config", `{"text":"x","replace":true}`); status != http.StatusOK || b.proposed != (Proposal{Text: "x", Replace: true}) {
		t.Errorf("as root: %d, %+v", status, b.proposed)
	}
}
