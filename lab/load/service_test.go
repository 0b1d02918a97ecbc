package load

import (
	"encoding/csv"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// testConfig is a short run of about 150 requests.
func testConfig(addr string) Config {
	return Config{
		Target: Target{Addr: addr, Path: "/"}, Rate: 1000, Seed: 1, Connections: 4,
		Settle: 20 * time.Millisecond, Window: 120 * time.Millisecond, Grace: 30 * time.Second,
	}
}

// serve starts a service on the loopback.
func serve(t *testing.T, handler http.HandlerFunc) (addr string) {
	t.Helper()
	listener := listen(t)
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func good(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }

// accounted checks what must hold for every report.
func accounted(t *testing.T, c Config, r Report) {
	t.Helper()
	due := Schedule(c.Rate, c.Seed, c.Settle+c.Window)
	offered := 0
	for _, d := range due {
		if d >= int64(c.Settle) {
			offered++
		}
	}
	if r.Offered != offered || r.Done+r.Failed+r.Unfinished != offered {
		t.Errorf("offered %d, done %d, failed %d, unfinished %d; the schedule has %d", r.Offered, r.Done, r.Failed, r.Unfinished, offered)
	}
	failures := 0
	for _, n := range r.Errors {
		failures += n
	}
	if failures != r.Failed {
		t.Errorf("errors %v, but %d failed", r.Errors, r.Failed)
	}
	if length := time.Duration(r.WindowEnd - r.WindowStart); length != c.Window {
		t.Errorf("window is %v long, want %v", length, c.Window)
	}
	censored, recorded := 0, int64(0)
	for _, s := range r.Seconds {
		censored += s.Censored
		recorded += decodeHistogram(t, s.Response).TotalCount()
		if n := decodeHistogram(t, s.Lag).TotalCount(); n != int64(s.Offered) {
			t.Errorf("%d of %d requests in the lag histogram", n, s.Offered)
		}
	}
	if recorded != int64(offered) || censored != r.Failed+r.Unfinished {
		t.Errorf("%d requests in the histograms, %d censored; want %d and %d", recorded, censored, offered, r.Failed+r.Unfinished)
	}
}

func TestGood(t *testing.T) {
	t.Parallel()
	config := testConfig(serve(t, good))
	generator := startChild(t, "generator")
	var report Report
	for range 20 { // a busy host may have no CPU for one of the two as long as the window
		report = generator.run(t, config)
		accounted(t, config, report)
		if report.DoneInWindow > 0 && report.CPUSeconds > 0 {
			break
		}
	}
	if report.Done != report.Offered || report.Reconnects != 0 || len(report.Perturbed) != 0 {
		t.Errorf("done %d of %d, reconnects %d, perturbed %q", report.Done, report.Offered, report.Reconnects, report.Perturbed)
	}
	if !strings.HasPrefix(report.Policy, "SCHED_") {
		t.Errorf("policy %q", report.Policy)
	}
	if report.CPUSeconds <= 0 || report.CPUSeconds > 2*config.Window.Seconds() {
		t.Errorf("%v CPU seconds in a window of %v", report.CPUSeconds, config.Window)
	}
	if report.DoneInWindow == 0 {
		t.Error("no response in the window")
	}
}

// A stall is paid by every request that was due while it lasted, although only
// as many as there are connections could be sent: nothing is omitted.
func TestStallIsPaidByAllThatWereDue(t *testing.T) {
	t.Parallel()
	const length = 50 * time.Millisecond
	clock := newClock()
	var stall atomic.Int64
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		now := clock.now()
		stall.CompareAndSwap(0, now+int64(50*time.Millisecond))
		if start := stall.Load(); now >= start {
			time.Sleep(time.Duration(start + int64(length) - now))
		}
		good(w, r)
	})
	config := testConfig(addr)
	config.RawFile = filepath.Join(t.TempDir(), "raw.csv")
	generator := startChild(t, "generator")
	var report Report
	var start, end int64
	for range 20 { // a busy host may have no CPU for the first request until the window is nearly over
		stall.Store(0)
		report = generator.run(t, config)
		accounted(t, config, report)
		start = stall.Load() - report.WindowStart
		if end = start + int64(length); end <= int64(config.Window) {
			break
		}
	}
	due, late := 0, 0
	for _, r := range readRaw(t, config.RawFile) {
		if r.Due < start || r.Due >= end {
			continue
		}
		due++
		if r.Done < end {
			t.Errorf("request %d, due %d ns into the stall, was done before its end", r.Seq, r.Due-start)
		}
		if r.Sent > end {
			late++
		}
	}
	if due < 25 {
		t.Errorf("%d requests were due in the stall, expected about 50", due)
	}
	if late < due/2 {
		t.Errorf("%d of %d were sent after the stall: they did not wait in the generator", late, due)
	}
	// A closed loop would show as many slow requests as it has connections.
	slow := 0
	for _, s := range report.Seconds {
		for _, bar := range decodeHistogram(t, s.Response).Distribution() {
			if bar.From >= 20_000 {
				slow += int(bar.Count)
			}
		}
	}
	if slow <= config.Connections {
		t.Errorf("%d responses took longer than 20 ms", slow)
	}
}

func readRaw(t *testing.T, path string) []Result {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"seq", "due_ns", "seen_ns", "sent_ns", "done_ns", "error"}, rows[0]); diff != "" {
		t.Fatalf("header (-want +got):\n%s", diff)
	}
	var results []Result
	for _, row := range rows[1:] {
		number := func(text string) int64 {
			if text == "" {
				return 0
			}
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		results = append(results, Result{int(number(row[0])), number(row[1]), number(row[2]), number(row[3]), number(row[4]), row[5], 0})
	}
	return results
}

func TestErrorStatus(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	config := testConfig(serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%2 == 0 {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		good(w, r)
	}))
	report := startChild(t, "generator").run(t, config)
	accounted(t, config, report)
	if n := report.Errors["status 500"]; n != report.Failed || n < report.Offered/2-1 || n > report.Offered/2+1 {
		t.Errorf("errors %v of %d", report.Errors, report.Offered)
	}
	if report.Reconnects != 0 {
		t.Errorf("%d reconnects", report.Reconnects)
	}
}

func TestConnectionClose(t *testing.T) {
	t.Parallel()
	config := testConfig(serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		good(w, r)
	}))
	report := startChild(t, "generator").run(t, config)
	accounted(t, config, report)
	if report.Done != report.Offered || report.Reconnects < report.Done-config.Connections {
		t.Errorf("done %d of %d, reconnects %d, errors %v", report.Done, report.Offered, report.Reconnects, report.Errors)
	}
}

// raw starts a service that does what it likes with its connections.
func raw(t *testing.T, talk func(number int, conn *net.TCPConn)) (addr string) {
	t.Helper()
	listener := listen(t)
	go func() {
		for number := 0; ; number++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				talk(number, conn.(*net.TCPConn))
			}()
		}
	}()
	return listener.Addr().String()
}

const goodResponse = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// answer reads n requests and answers each with text.
func answer(conn net.Conn, n int, text string) {
	buffer := make([]byte, 4096) // a request at a time: there is no pipelining
	for range n {
		if _, err := conn.Read(buffer); err != nil {
			return
		}
		if _, err := fmt.Fprint(conn, text); err != nil {
			return
		}
	}
}

func TestBadServices(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		talk func(number int, conn *net.TCPConn)
		want string // the failures' text
	}{
		{"reset", func(_ int, conn *net.TCPConn) {
			answer(conn, 5, goodResponse)
			_, _ = conn.Read(make([]byte, 1)) // the rest of the request stays unread: that resets
		}, "read: connection reset by peer"},
		{"closed halfway", func(_ int, conn *net.TCPConn) {
			answer(conn, 5, goodResponse)
			answer(conn, 1, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")
		}, "connection closed before the response was complete"},
		{"encoded otherwise", func(_ int, conn *net.TCPConn) {
			answer(conn, 5, goodResponse)
			answer(conn, 1, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n")
		}, errEncoding.Error()},
		{"not HTTP", func(_ int, conn *net.TCPConn) {
			answer(conn, 5, goodResponse)
			answer(conn, 1, "hello\r\n\r\n")
		}, errStatusLine.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := testConfig(raw(t, test.talk))
			report := startChild(t, "generator").run(t, config)
			accounted(t, config, report)
			// Five of six are answered, the sixth fails, the connection is opened again.
			if n := report.Errors[test.want]; n != report.Failed || n == 0 || report.Unfinished != 0 {
				t.Errorf("failed %d, unfinished %d, errors %v, want only %q", report.Failed, report.Unfinished, report.Errors, test.want)
			}
			if report.Done < 4*report.Failed {
				t.Errorf("done %d, failed %d", report.Done, report.Failed)
			}
			if report.Reconnects < report.Failed-config.Connections {
				t.Errorf("failed %d, reconnects %d", report.Failed, report.Reconnects)
			}
		})
	}
}

// A service that closes idle connections costs a reconnect, not a request.
func TestIdleClose(t *testing.T) {
	t.Parallel()
	config := testConfig(raw(t, func(number int, conn *net.TCPConn) {
		if number < 3 {
			return // at once; one of four remains
		}
		answer(conn, 1<<30, goodResponse)
	}))
	report := startChild(t, "generator").run(t, config)
	accounted(t, config, report)
	if report.Done != report.Offered || report.Reconnects != 3 {
		t.Errorf("done %d of %d, reconnects %d, errors %v", report.Done, report.Offered, report.Reconnects, report.Errors)
	}
}

// What hangs is unfinished, and so is all that waits behind it.
func TestHang(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	release := make(chan struct{})
	config := testConfig(serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) > 80 {
			<-release
		}
		good(w, r)
	}))
	t.Cleanup(func() { close(release) })
	config.Grace = 100 * time.Millisecond
	report := startChild(t, "generator").run(t, config)
	accounted(t, config, report)
	if report.Failed != 0 || report.Done > 80 || report.Unfinished == 0 {
		t.Errorf("done %d, failed %d, unfinished %d", report.Done, report.Failed, report.Unfinished)
	}
	// Their age at the end of the grace is a lower bound of their latency.
	old := int64(0)
	for _, s := range report.Seconds {
		for _, bar := range decodeHistogram(t, s.Response).Distribution() {
			if bar.To >= config.Grace.Microseconds() {
				old += bar.Count
			}
		}
	}
	if old < int64(report.Unfinished) {
		t.Errorf("%d unfinished, but only %d at least as old as the grace is long", report.Unfinished, old)
	}
}

// When the service dies, everything due later waits and is unfinished.
func TestServiceDies(t *testing.T) {
	t.Parallel()
	listener := listen(t)
	server := &http.Server{}
	var n atomic.Int64
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 40 {
			go server.Close()
			<-r.Context().Done()
			return
		}
		good(w, r)
	})
	go func() { _ = server.Serve(listener) }()
	config := testConfig(listener.Addr().String())
	config.Grace = 3 * time.Second // in which 40 are answered on a busy host, too
	report := startChild(t, "generator").run(t, config)
	accounted(t, config, report)
	if report.Done > 40 || report.Failed == 0 || report.Unfinished == 0 {
		t.Errorf("done %d, failed %d, unfinished %d, errors %v", report.Done, report.Failed, report.Unfinished, report.Errors)
	}
	want := "a lost connection could not be opened again: connection refused"
	if len(report.Perturbed) != 1 || report.Perturbed[0] != want {
		t.Errorf("perturbed %q, want %q", report.Perturbed, want)
	}
}

// A start in the past is not hidden: everything already due is sent late.
func TestLateStart(t *testing.T) {
	t.Parallel()
	const late = 150 * time.Millisecond
	config := testConfig(serve(t, good))
	config.Settle = 0
	generator := startChild(t, "generator")
	generator.say(t, config)
	var ready struct{ Ready bool }
	generator.hear(t, &ready)
	generator.say(t, map[string]int64{"start": newClock().now() - int64(late)})
	var report Report
	generator.hear(t, &report)
	accounted(t, config, report)
	lag := decodeHistogram(t, report.Seconds[0].Lag)
	if got := lag.Max(); got < 140_000 {
		t.Errorf("largest lag %d µs after a start that was %v late", got, late)
	}
	if report.Done != report.Offered {
		t.Errorf("done %d of %d", report.Done, report.Offered)
	}
}
