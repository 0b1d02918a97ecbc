package load

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDispatcher(t *testing.T) {
	t.Parallel()
	l := newDispatcher([]int64{10, 20, 30, 40, 50}, 20, 2)
	dispatch := func(now int64, want int) {
		t.Helper()
		conn, ok := l.dispatch(now)
		if conn != want || ok != (want != none) {
			t.Fatalf("dispatch at %d: connection %d, %v; want %d", now, conn, ok, want)
		}
	}
	dispatch(15, none) // due, but no connection is open
	l.release(0)
	l.release(1)
	dispatch(16, 1)    // last in, first out
	dispatch(19, none) // nothing due
	dispatch(20, 0)
	dispatch(45, none) // two more are due, none is free
	l.end(0, 46, "")
	l.release(0)
	dispatch(55, 0) // the one due at 30; that due at 50 is not seen yet
	dispatch(56, none)
	l.end(1, 57, "status 500")
	l.release(1)
	l.withdraw(1)
	l.withdraw(1) // again: nothing
	dispatch(58, none)
	if l.complete() {
		t.Error("complete with requests waiting")
	}
	want := []Result{
		{Seq: -1, Due: 10, Seen: 15, Sent: 16, Done: 57, Err: "status 500"},
		{Seq: 0, Due: 20, Seen: 20, Sent: 20, Done: 46},
		{Seq: 1, Due: 30, Seen: 45, Sent: 55},
		{Seq: 2, Due: 40, Seen: 45},
		{Seq: 3, Due: 50, Seen: 56},
	}
	if diff := cmp.Diff(want, l.results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if l.ended != 1 {
		t.Errorf("%d of the window ended, want 1", l.ended)
	}
}

// A random walk keeps what a queue owes: every request sent once, in order, on
// a connection that was free, never before it was due.
func TestDispatcherWalk(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		due := make([]int64, random.IntN(60))
		for i := range due {
			due[i] = 1 + random.Int64N(100)
		}
		slices.Sort(due)
		connections := 1 + random.IntN(5)
		l := newDispatcher(due, 30, connections)
		state := make([]string, connections) // "", "free", "busy"
		sent := 0
		for now := int64(1); now < 1000 && !l.complete(); now++ {
			for c := range connections {
				switch {
				case state[c] == "" && random.IntN(2) == 0:
					l.release(c)
					state[c] = "free"
				case state[c] == "free" && random.IntN(9) == 0:
					l.withdraw(c)
					state[c] = ""
				case state[c] == "busy" && random.IntN(3) == 0:
					l.end(c, now, "")
					state[c] = ""
				}
			}
			for c, ok := l.dispatch(now); ok; c, ok = l.dispatch(now) {
				if state[c] != "free" {
					t.Fatalf("sent on connection %d, which is %q", c, state[c])
				}
				state[c] = "busy"
				if r := l.results[sent]; r.Sent != now || r.Due > now || r.Seen < r.Due || r.Seen > now {
					t.Fatalf("request %d dispatched at %d: %+v", sent, now, r)
				}
				sent++
			}
			for i, r := range l.results {
				if r.Due <= now && r.Seen == 0 {
					t.Fatalf("request %d, due at %d, not seen at %d", i, r.Due, now)
				}
				if (r.Sent != 0) != (i < sent) {
					t.Fatalf("request %d of %d sent: %+v", i, sent, r)
				}
				if r.Sent == 0 && r.Seen != 0 && slices.Contains(state, "free") {
					t.Fatalf("request %d waits although a connection is free", i)
				}
			}
		}
		if !l.complete() {
			t.Fatal("not complete")
		}
	}
}

// cycle sends n requests at once over 8 connections and ends them all.
func cycle(l *dispatcher, now int64, n int) {
	for n > 0 {
		conn, ok := l.dispatch(now)
		if !ok {
			panic("a request is due and a connection is free")
		}
		l.end(conn, now+1, "")
		l.release(conn)
		n--
	}
}

func TestDispatcherAllocatesNothing(t *testing.T) {
	const runs, each = 10, 1000
	l := newDispatcher(make([]int64, (runs+1)*each), 0, 8)
	for i := range 8 {
		l.release(i)
	}
	if allocs := testing.AllocsPerRun(runs, func() { cycle(l, 1, each) }); allocs != 0 {
		t.Errorf("%v allocations per %d requests", allocs, each)
	}
	r := newResponse()
	text := []byte("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok")
	if allocs := testing.AllocsPerRun(runs, func() {
		r.reset()
		_, _ = r.read(text)
	}); allocs != 0 {
		t.Errorf("%v allocations per response", allocs)
	}
}

// BenchmarkDispatcher takes the same time per request whether a thousand or a
// million are due at once.
func BenchmarkDispatcher(b *testing.B) {
	for _, bench := range []struct {
		name string
		n    int
	}{{"1k", 1_000}, {"1M", 1_000_000}} {
		b.Run(bench.name, func(b *testing.B) {
			l := newDispatcher(make([]int64, bench.n), 0, 8)
			for i := range 8 {
				l.release(i)
			}
			b.ReportAllocs()
			for b.Loop() {
				l.next, l.ended = 0, 0
				cycle(l, 1, bench.n)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(bench.n), "ns/request")
		})
	}
}
