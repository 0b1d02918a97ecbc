package daemon

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/place"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func request(id string) place.Request {
	return place.Request{ID: id, Class: place.LSR, Milli: 1000}
}

// tree is the control groups of a host.
func tree(t testing.TB, k *fakekernel.Kernel) map[string]string {
	t.Helper()
	all, err := k.Tree()
	for tries := 0; errors.Is(err, fs.ErrNotExist) && tries < 100; tries++ {
		all, err = k.Tree() // the agent's own files, which lie beside, come and go
	}
	if err != nil {
		t.Fatal(err)
	}
	for name := range all {
		if !strings.HasPrefix(name, "sys/") {
			delete(all, name)
		}
	}
	return all
}

func plain(t testing.TB, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSomeOfMany(t *testing.T) {
	t.Parallel()
	words := strings.Fields(strings.Repeat("x ", mostTold+7))
	if got := some(words[:mostTold], ","); got != strings.Repeat("x,", mostTold-1)+"x" {
		t.Errorf("all: %s", got)
	}
	if got := some(words, ","); got != strings.Repeat("x,", mostTold)+"and 7 more" || words[mostTold] != "x" {
		t.Errorf("some: %s; then %s", got, words[mostTold])
	}
}
