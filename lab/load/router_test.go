package load

import (
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// picks has a router serve n requests, each of which ends when so many others came.
func picks(r Routing, servers, n, under int) (got []int) {
	pick, idle := r.Pick(servers, 7)
	outstanding := make([]int, servers)
	for i := range n {
		if i >= under {
			at := got[i-under]
			if outstanding[at]--; outstanding[at] == 0 {
				idle(at)
			}
		}
		to := pick(outstanding)
		outstanding[to]++
		got = append(got, to)
	}
	return got
}

func same(got []int) float64 {
	n := 0
	for i := 1; i < len(got); i++ {
		if got[i] == got[i-1] {
			n++
		}
	}
	return float64(n) / float64(len(got)-1)
}

func TestRouting(t *testing.T) {
	t.Parallel()
	const servers, n = 5, 20_000
	if got := picks(RoundRobin, servers, 12, 3); !slices.Equal(got, []int{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1}) {
		t.Errorf("round robin: %v", got)
	}
	for r, want := range map[Routing]float64{
		"": 1.0 / servers, Random: 1.0 / servers, RoundRobin: 0, LeastOutstanding: 0, JoinIdle: 0,
		RoundRobins: 1.0 / servers * (1 - 1.0/Uncoordinated), // about: the routers' turns are drawn anew all the time
	} {
		got := picks(r, servers, n, 2)
		if share := same(got); math.Abs(share-want) > 0.02 {
			t.Errorf("%s: %.3f go to the server of the one before, want %.3f", r, share, want)
		}
		for server := range servers {
			share := float64(len(slices.DeleteFunc(slices.Clone(got), func(to int) bool { return to != server }))) / n
			if math.Abs(share-1.0/servers) > 0.02 {
				t.Errorf("%s: server %d gets %.3f of the requests", r, server, share)
			}
		}
		if !slices.Equal(got, picks(r, servers, n, 2)) {
			t.Errorf("%s: other servers with the same seed", r)
		}
	}
	// One of three servers is idle: those who look take it.
	for r, looks := range map[Routing]bool{LeastOutstanding: true, JoinIdle: true, Random: false} {
		pick, idle := r.Pick(3, 1)
		outstanding := []int{0, 0, 0}
		for range 3 {
			outstanding[pick(outstanding)]++
		}
		outstanding = []int{1, 0, 1}
		idle(1)
		if to := pick(outstanding); looks && to != 1 {
			t.Errorf("%s: server %d, want that which is idle", r, to)
		}
	}
	if err := Routing("best").Validate(); err == nil || !strings.Contains(err.Error(), "join-idle") {
		t.Errorf("an unknown policy: %v", err)
	}
}

// Requests for a server wait for its own connections, in order, and stand in nobody's way.
func TestDispatcherServers(t *testing.T) {
	t.Parallel()
	l := newDispatcher([]int64{1, 2, 3, 4, 5, 6}, 0, 2)
	l.serve(2, newRouter(RoundRobin, 2, 0))
	l.release(0)
	l.release(1)
	var sent []int
	at := func(now int64) {
		for conn, ok := l.dispatch(now); ok; conn, ok = l.dispatch(now) {
			sent = append(sent, int(l.carries[conn]))
		}
	}
	at(6)
	l.end(1, 7, "")
	l.release(1)
	at(7)
	l.end(1, 8, "")
	l.release(1)
	at(8)
	l.end(0, 9, "")
	l.release(0)
	at(9)
	if want := []int{0, 1, 3, 5, 2}; !slices.Equal(sent, want) {
		t.Errorf("sent %v, want %v", sent, want)
	}
	if l.outstanding[0] != 2 || l.outstanding[1] != 1 {
		t.Errorf("outstanding %v", l.outstanding)
	}
}

// The generator spreads requests over several servers and asks for each path in turn.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	var got [3]atomic.Int64
	var other atomic.Int64
	var addrs []string
	for i := range got {
		addrs = append(addrs, serve(t, func(w http.ResponseWriter, r *http.Request) {
			got[i].Add(1)
			if r.URL.Path == "/b" {
				other.Add(1)
			}
			good(w, r)
		}))
	}
	generator, stderr := startServe(t)
	config := testConfig(addrs[0])
	config.Others, config.Routing, config.Connections = addrs[1:], RoundRobin, 9
	for range Tiles / 2 {
		config.Paths = append(config.Paths, "/a", "/b")
	}
	config.RawFile = filepath.Join(t.TempDir(), "raw.csv")
	report := generator.run(t, config)
	accounted(t, config, report)
	if report.Same != 0 || len(report.Servers) != 3 || slices.Max(report.Servers)-slices.Min(report.Servers) > 1 {
		t.Errorf("in turn: %v, %d to the server of the one before", report.Servers, report.Same)
	}
	all := got[0].Load() + got[1].Load() + got[2].Load()
	if b := other.Load(); b < all/2 || b > all/2+1 {
		t.Errorf("%d of %d requests for the second of two paths", b, all)
	}
	config.Routing = Random
	if report := generator.run(t, config); report.Same == 0 {
		t.Errorf("at random, none of %d went to the server of the one before", report.Offered)
	}
	if status, text := generator.finish(t, stderr); status != 0 || text != "" {
		t.Errorf("exit status %d, %q", status, text)
	}
}

// In a closed loop so many clients ask, each when it was answered.
func TestClients(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(2 * time.Millisecond)
		now.Add(-1)
		good(w, r)
	})
	generator, stderr := startServe(t)
	config := testConfig(addr)
	config.Clients, config.Rate = 3, 10_000
	report := generator.run(t, config)
	if report.Done != report.Offered || report.Done == 0 || most.Load() != 3 || len(report.Perturbed) > 0 && strings.Contains(report.Perturbed[0], "room") {
		t.Errorf("%d of %d done, %d at once, %v; want all, 3 at once", report.Done, report.Offered, most.Load(), report.Perturbed)
	}
	if limit := int(3 * config.Window / (2 * time.Millisecond)); report.Offered > limit+3 {
		t.Errorf("%d requests of 2 ms each by 3 clients in %s, at most %d are possible", report.Offered, config.Window, limit)
	}
	const room = 5 // a busy host may not have the CPU for many more
	config.Rate = room / (config.Settle + config.Window).Seconds()
	if report := generator.run(t, config); report.Offered > room || !slices.ContainsFunc(report.Perturbed, func(s string) bool { return strings.Contains(s, "room") }) {
		t.Errorf("room for %d requests: %d, %q", room, report.Offered, report.Perturbed)
	}
	if status, text := generator.finish(t, stderr); status != 0 || text != "" {
		t.Errorf("exit status %d, %q", status, text)
	}
}
