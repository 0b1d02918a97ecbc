package load

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// One generator runs one schedule after the other over the connections that it has:
// each run is that of a new generator, and writes a raw file of its own.
func TestRunsShareConnections(t *testing.T) {
	t.Parallel()
	var opened atomic.Int64
	server := &http.Server{Handler: http.HandlerFunc(good), ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}}
	listener := listen(t)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })

	generator, stderr := startServe(t)
	config := testConfig(listener.Addr().String())
	config.RawFile = filepath.Join(t.TempDir(), "raw.csv")
	for seed := range uint64(4) {
		config.Seed, config.Window = seed, time.Duration(60+20*seed)*time.Millisecond
		report := generator.run(t, config)
		accounted(t, config, report)
		if report.Done != report.Offered || report.Reconnects != 0 {
			t.Errorf("run %d: done %d of %d, %d reconnects", seed, report.Done, report.Offered, report.Reconnects)
		}
		text, err := os.ReadFile(config.RawFile)
		if err != nil || strings.Count(string(text), "\n") != report.Offered+1 {
			t.Errorf("run %d: raw file of %d lines, %v; want %d requests", seed, strings.Count(string(text), "\n"), err, report.Offered)
		}
	}
	if n := opened.Load(); n != int64(config.Connections) {
		t.Errorf("%d connections were opened, want %d", n, config.Connections)
	}
	if status, text := generator.finish(t, stderr); status != 0 || text != "" {
		t.Errorf("exit status %d, %q", status, text)
	}
}

// What a run leaves under way is waited for, and nothing more is sent. What takes too
// long is counted, and stands in the way of another run.
func TestDrain(t *testing.T) {
	t.Parallel()
	var answered atomic.Int64
	slow := make(chan struct{})
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-slow
		answered.Add(1)
		good(w, r)
	})
	generator, stderr := startServe(t)
	config := testConfig(addr)
	config.Grace = 30 * time.Millisecond
	if report := generator.run(t, config); report.Unfinished != report.Offered {
		t.Errorf("%d of %d unfinished, want all: none was answered", report.Unfinished, report.Offered)
	}
	drain := func(limit time.Duration) (d Drained) {
		generator.say(t, map[string]time.Duration{"drain": limit})
		generator.hear(t, &d)
		return d
	}
	if d := drain(20 * time.Millisecond); d.Left != config.Connections {
		t.Errorf("%d left, want one on each of %d connections", d.Left, config.Connections)
	}
	close(slow)
	if d := drain(time.Minute); d.Left != 0 {
		t.Errorf("%d left of what was answered", d.Left)
	}
	if n := answered.Load(); n != int64(config.Connections) {
		t.Errorf("%d requests arrived, want %d: the others had not been sent when the run ended", n, config.Connections)
	}
	config.Grace = 30 * time.Second
	if report := generator.run(t, config); report.Done != report.Offered || report.Reconnects != 0 {
		t.Errorf("after that: done %d of %d, %d reconnects", report.Done, report.Offered, report.Reconnects)
	}
	if status, text := generator.finish(t, stderr); status != 0 || text != "" {
		t.Errorf("exit status %d, %q", status, text)
	}
}

// A connection that was lost, and not yet open again when a run ended, is open in the next.
func TestPrepareOpensWhatIsClosed(t *testing.T) {
	t.Parallel()
	var run atomic.Int64
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if run.Load() == 0 {
			panic(http.ErrAbortHandler)
		}
		good(w, r)
	})
	generator, _ := startServe(t)
	config := testConfig(addr)
	if report := generator.run(t, config); report.Done != 0 {
		t.Errorf("%d answered, want none", report.Done)
	}
	run.Store(1)
	generator.say(t, map[string]time.Duration{"drain": time.Second})
	var d Drained
	generator.hear(t, &d)
	if report := generator.run(t, config); d.Left != 0 || report.Done != report.Offered || report.Failed != 0 {
		t.Errorf("%d left; then done %d of %d, failed %d: %v", d.Left, report.Done, report.Offered, report.Failed, report.Errors)
	}
}

func TestPrepareRefuses(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) { <-slow; good(w, r) })
	t.Cleanup(func() { close(slow) })
	config := testConfig(addr)
	g, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for want, change := range map[string]func(*Config){
		"want those of the run before, " + addr + " and 4": func(c *Config) { c.Connections = 5 },
		"addr 127.0.0.1:1": func(c *Config) { c.Addr = "127.0.0.1:1" },
		"rate -1":          func(c *Config) { c.Rate = -1 },
		"no such file":     func(c *Config) { c.RawFile = "/nonexistent/raw.csv" },
	} {
		other := config
		change(&other)
		if err := g.Prepare(other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	if err := g.Prepare(config); err != nil {
		t.Fatal(err)
	}
	g.config.Grace = time.Millisecond
	if err := g.Run(g.clock.now()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("4 requests of the run before are under way: drain first", g.Prepare(config).Error()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
