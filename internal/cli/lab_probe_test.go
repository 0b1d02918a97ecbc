package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"berth.dev/berth/lab/load"
)

// probeOf runs berth lab probe and reads its JSON.
func probeOf(t *testing.T, args ...string) (p probed, stderr string, code int) {
	t.Helper()
	out, stderr, code := berth(t, append([]string{"lab", "probe", "-o", "json"}, args...)...)
	if out != "" {
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return p, stderr, code
}

func TestLabProbe(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if asked.Add(1); r.URL.Path == "/gone" {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(s.Close)
	p, stderr, code := probeOf(t, s.URL+"/", "--for", "1s", "--clients", "4")
	if code != exitOK || p.Clients != 4 || p.Asked == 0 || p.Failed+p.Unanswered != 0 || p.Rate != 0 || p.Late != nil {
		t.Fatalf("exit %d, %s: %+v", code, stderr, p)
	}
	// All but what was asked before the figures begin is told, and no request twice.
	if all := int(asked.Load()); p.Asked > all || p.PerSecond > float64(all) || p.PerSecond < float64(p.Asked)/2 {
		t.Errorf("%d requests were served: %+v", all, p)
	}
	if p.Times["p50"] <= 0 || p.Times["p99"] < p.Times["p95"] || p.Times["p95"] < p.Times["p50"] {
		t.Errorf("response times %v", p.Times)
	}
	p, stderr, code = probeOf(t, s.URL+"/", "--for", "1s", "--rate", "50")
	if code != exitOK || p.Asked < 25 || p.Asked > 100 || p.Rate != 50 || p.Late == nil {
		t.Errorf("--rate 50: exit %d, %s: %+v", code, stderr, p)
	}
}

func TestLabProbeRefuses(t *testing.T) {
	t.Parallel()
	down := httptest.NewServer(nil)
	down.Close()
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	t.Cleanup(failing.Close)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "accepts 1 arg"},
		{[]string{"127.0.0.1"}, exitUsage, "want http://"},
		{[]string{"https://127.0.0.1"}, exitUsage, "TLS is not supported"},
		{[]string{"http://127.0.0.1", "--for", "90s"}, exitUsage, "want 1s to 1m"},
		{[]string{"http://127.0.0.1", "--clients", "0"}, exitUsage, "want 1 to 1024"},
		{[]string{"http://127.0.0.1", "--rate", "0"}, exitUsage, "want 1 to 100000 requests per second for 10s"},
		{[]string{"http://127.0.0.1", "--rate", "60000", "--for", "1m"}, exitUsage, "want 1 to 49586 requests per second for 1m0s"},
		{[]string{down.URL}, exitError, "connection refused"},
		{[]string{failing.URL}, exitError, "502"},
	} {
		_, stderr, code := probeOf(t, tc.args...)
		if code != tc.code || !strings.Contains(stderr, tc.want) {
			t.Errorf("berth lab probe %q: exit %d, %q; want %d and %q", tc.args, code, stderr, tc.code, tc.want)
		}
	}
}

// What is a lower bound says so, and failures are told with their text.
func TestProbedText(t *testing.T) {
	t.Parallel()
	late := 1500.0
	p := probed{
		PerSecond: 2240.4, Times: map[string]float64{"p50": 5300, "p99": 184_000}, AtLeast: []string{"p99"},
		Failed: 2, Unanswered: 1, Errors: map[string]int{"status 502": 2}, Late: &late,
	}
	want := `REQUESTS/S     P50  P95      P99  FAILED
      2240  5.3 ms    –  ≥184 ms       3
failed: status 502 (2)
1 had no answer yet 2s after the end
the generator itself was late by 1.5 ms with 1 in 100 requests: the figures are no better than that
`
	if got := p.text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	f := probeFlags{length: 1e9}
	if _, err := f.sum("", load.Report{Seconds: []load.Second{{Response: "x"}}}); err == nil {
		t.Error("what is no histogram was read")
	}
}
