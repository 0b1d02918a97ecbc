package load

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A request that the socket takes only in parts arrives whole.
func TestPartialWrites(t *testing.T) {
	const path = 300_000
	got := make(chan int, 64)
	addr := raw(t, func(_ int, conn *net.TCPConn) {
		for {
			n, err := readRequest(conn)
			if err != nil {
				return
			}
			got <- n
			if _, err := io.WriteString(conn, goodResponse); err != nil {
				return
			}
		}
	})
	g, err := New(Config{
		Target: Target{Addr: addr, Path: "/" + strings.Repeat("x", path)}, Rate: 100, Seed: 1, Connections: 2,
		Window: 50 * time.Millisecond, Grace: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for i := range g.conns {
		if err := unix.SetsockoptInt(g.conns[i].fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 16<<10); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Run(g.clock.now()); err != nil {
		t.Fatal(err)
	}
	report, err := g.Report()
	if err != nil {
		t.Fatal(err)
	}
	if report.Done != report.Offered || report.Done == 0 || report.Reconnects != 0 {
		t.Errorf("done %d of %d, errors %v", report.Done, report.Offered, report.Errors)
	}
	for range report.Done {
		if n := <-got; n != len(g.requests[0]) {
			t.Errorf("a request of %d bytes arrived, %d were to be sent", n, len(g.requests[0]))
		}
	}
}

// readRequest reads one request slowly and returns its length.
func readRequest(conn net.Conn) (n int, err error) {
	tail, piece := "", make([]byte, 8<<10)
	for !strings.HasSuffix(tail, "\r\n\r\n") {
		read, err := conn.Read(piece)
		if err != nil {
			return 0, err
		}
		n += read
		tail += string(piece[:read])
		tail = tail[max(0, len(tail)-4):]
	}
	return n, nil
}

// The loop allocates nothing per request: with the collector off, a long run
// needs no more memory than a short one.
func TestRunAllocatesNothing(t *testing.T) {
	var addr string
	startChild(t, "server").hear(t, &addr)
	g, err := New(Config{Target: Target{Addr: addr, Path: "/"}, Rate: 5000, Seed: 1, Connections: 8, Window: 100 * time.Millisecond, Grace: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = g.Run(g.clock.now())
	runtime.ReadMemStats(&after)
	if err != nil || !g.dispatcher.complete() {
		t.Fatalf("run: %v, %d of %d requests ended", err, g.dispatcher.ended, len(g.dispatcher.results))
	}
	if n := after.Mallocs - before.Mallocs; n > 50 {
		t.Errorf("%d allocations in a run of %d requests", n, len(g.dispatcher.results))
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	closed := listen(t)
	addr := closed.Addr().String()
	closed.Close()
	open := listen(t).Addr().String()
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"refused", func(c *Config) { c.Addr = addr }, "connect " + addr + ": connection refused"},
		{"no port", func(c *Config) { c.Addr = "127.0.0.1" }, "missing port"},
		{"no host", func(c *Config) { c.Addr = ":80" }, "no host"},
		{"nonsense", func(c *Config) { c.Rate = -1 }, "rate -1"},
		{"raw file", func(c *Config) { c.RawFile = t.TempDir() + "/no/raw.csv" }, "no such file"},
	} {
		config := testConfig(open)
		test.change(&config)
		g, err := New(config)
		if err == nil {
			g.Close()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.want)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := testConfig("127.0.0.1:1").Validate(); err != nil {
		t.Errorf("a good config: %v", err)
	}
	zero := 0.0
	for _, test := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Addr = "" }, "addr: missing"},
		{func(c *Config) { c.Path = "article" }, `path "article"`},
		{func(c *Config) { c.Path = "/a b" }, `path "/a b"`},
		{func(c *Config) { c.Path = "/\r\nX: y" }, "path"},
		{func(c *Config) { c.Rate = 0 }, "rate 0"},
		{func(c *Config) { c.Rate = 1 / zero }, "rate +Inf"},
		{func(c *Config) { c.Rate = zero / zero }, "rate NaN"},
		{func(c *Config) { c.Connections = 0 }, "connections 0"},
		{func(c *Config) { c.Connections = maxConnections + 1 }, "connections 16385"},
		{func(c *Config) { c.Window = 0 }, "window 0s"},
		{func(c *Config) { c.Settle = -1 }, "settle -1ns"},
		{func(c *Config) { c.Grace = -1 }, "grace -1ns"},
		{func(c *Config) { c.Rate, c.Window = 1e6, time.Hour }, "at most 20000000 requests"},
		{func(c *Config) { *c = Config{} }, "; connections 0"},
	} {
		config := testConfig("127.0.0.1:1")
		test.change(&config)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: error %v, want %q", config, err, test.want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("error of more than one line: %q", err)
		}
	}
}

func TestSpinBudget(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		realtime bool
		rate     float64
		want     int64
	}{
		{true, 2000, spinFor},
		{true, 24_999, spinFor},
		{true, 25_000, 0},
		{false, 2000, 0},
	} {
		if got := spinBudget(test.realtime, test.rate); got != test.want {
			t.Errorf("spinBudget(%v, %v) = %d, want %d", test.realtime, test.rate, got, test.want)
		}
	}
}

// The two ways to wait behave alike.
func TestPoller(t *testing.T) {
	for _, timerfd := range []bool{false, true} {
		t.Run(fmt.Sprintf("timerfd=%v", timerfd), func(t *testing.T) {
			p, err := newPoller(timerfd)
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			var pipe [2]int
			if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pipe[0])
			defer unix.Close(pipe[1])
			if err := p.control(unix.EPOLL_CTL_ADD, pipe[0], 7, unix.EPOLLIN); err != nil {
				t.Fatal(err)
			}
			clock := newClock()
			const ns = 3_000_000
			start := clock.now()
			for clock.now()-start < ns { // a signal may end a wait early
				events, err := p.wait(start + ns - clock.now())
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range events {
					if e.Fd != timerToken {
						t.Fatalf("event of %d from an empty pipe", e.Fd)
					}
				}
			}
			if _, err := unix.Write(pipe[1], []byte("x")); err != nil {
				t.Fatal(err)
			}
			for _, ns := range []int64{-5, 0, 1 << 40} { // there is an event: none waits
				found := false
				events, err := p.wait(ns)
				for _, e := range events {
					found = found || e.Fd == 7 && e.Events&unix.EPOLLIN != 0
				}
				if err != nil || !found {
					t.Errorf("wait(%d) = %v, %v, want an event of 7", ns, events, err)
				}
			}
		})
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	clock := newClock()
	for range 100 {
		var before, after unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &before); err != nil {
			t.Fatal(err)
		}
		got := clock.now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &after); err != nil {
			t.Fatal(err)
		}
		const slack = 20_000 // of the offset that was taken once
		if got < before.Nano()-slack || got > after.Nano()+slack {
			t.Fatalf("clock says %d between %d and %d", got, before.Nano(), after.Nano())
		}
	}
}
