package load

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// By value: what every server got of the window, and nothing of what nobody has got.
func TestEach(t *testing.T) {
	t.Parallel()
	settle := []Result{{Server: 1, Due: 990 * ms, Seen: 990 * ms, Sent: 990 * ms, Done: 1001 * ms}}
	window := []Result{
		{Server: 0, Due: 1000 * ms, Seen: 1000 * ms, Sent: 1000 * ms, Done: 1010 * ms},
		{Server: 1, Due: 1100 * ms, Seen: 1100 * ms, Sent: 1100 * ms, Done: 1130 * ms, Err: "status 500"},
		{Server: 0, Due: 2000 * ms, Seen: 2000 * ms, Sent: 2000 * ms, Done: 2500 * ms}, // answered after the window
		{Server: 1, Due: 2100 * ms, Seen: 2100 * ms, Sent: 2101 * ms},
		{Server: 0, Due: 2300 * ms}, // nobody has got it
	}
	got, err := each(settle, window, 2, testSpan)
	if err != nil {
		t.Fatal(err)
	}
	times := [][]int64{millis(t, got[0].Response), millis(t, got[1].Response)}
	got[0].Response, got[1].Response = "", ""
	want := []Served{{Offered: 2, Done: 2, DoneInWindow: 1}, {Offered: 2, Censored: 2, DoneInWindow: 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([][]int64{{10, 500}, {30, 900}}, times); diff != "" {
		t.Errorf("response times (-want +got)\n%s", diff)
	}
}

// wrkSaid is what wrk prints with its script.
const wrkSaid = `Running 1s test @ http://127.0.0.1:1/
  1 threads and 2 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.00ms    0.00ms   1.00ms  100.00%
Requests/sec:    400.00
berth 440 1100000 3 5 2
berth-us 1000 438
berth-us 5000 10
`

// By value: what wrk says as a report. Its numbers are those of the window, of the 1.1 s
// that it ran.
func TestWrkReport(t *testing.T) {
	t.Parallel()
	w, err := parseWrk(wrkSaid)
	if err != nil {
		t.Fatal(err)
	}
	if w.requests != 440 || w.failed != 8 || w.late != 2 || w.length != 1100*time.Millisecond || w.response.TotalCount() != 450 {
		t.Fatalf("%+v, %d response times", w, w.response.TotalCount())
	}
	c := Config{Window: time.Second, EachServer: true}
	r, err := c.wrkReport([]wrked{w, w})
	if err != nil {
		t.Fatal(err)
	}
	if r.Offered != 800 || r.Done != 782 || r.Failed != 18 || r.DoneInWindow != 782 || len(r.Seconds) != 1 || r.Seconds[0].Censored != 18 {
		t.Errorf("%+v", r)
	}
	if len(r.Each) != 2 || r.Each[1].Offered != 400 || r.Each[1].Done != 391 || r.Servers[0] != 400 {
		t.Errorf("each %+v, servers %v", r.Each, r.Servers)
	}
	all := decodeHistogram(t, r.Seconds[0].Response)
	if all.TotalCount() != 900 || all.ValueAtQuantile(50) != 1000 || all.Max() < 1_990_000 {
		t.Errorf("%d response times, median %d, worst %d µs", all.TotalCount(), all.ValueAtQuantile(50), all.Max())
	}
	for text, want := range map[string]string{
		"":                            "printed nothing",
		"berth 1 2 3":                 "not what its script prints",
		"berth 1 2 3 4 x":             "invalid syntax",
		"berth 1 0 0 0 0":             "printed nothing",
		"berth 1 9 0 0 0\nberth-us 1": "not what its script prints",
	} {
		if _, err := parseWrk(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// wrkConfig asks two servers by wrk for a second.
func wrkConfig(t *testing.T, program string) Config {
	c := testConfig(serve(t, good))
	c.Others = []string{serve(t, good)}
	c.Settle, c.Window, c.EachServer = 0, time.Second, true
	c.Wrk = &Wrk{Program: program, Threads: 1, Connections: 2}
	return c
}

// The generator's process runs wrk in its place, before and after runs of its own.
func TestServeWrk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "wrk")
	script := "#!/bin/sh\ngrep -q berth-us \"${10}\" || exit 3\ncat <<'END'\n" + wrkSaid + "END\n"
	syscall.ForkLock.RLock() // a child of another test that had the file open to write would make it busy
	err := os.WriteFile(program, []byte(script), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	c := wrkConfig(t, program)
	c.RawFile = filepath.Join(dir, "raw.csv")
	generator := startChild(t, "generator")
	for range 2 {
		r := generator.run(t, c)
		if r.Offered != 800 || len(r.Each) != 2 || r.WindowEnd-r.WindowStart != int64(time.Second) {
			t.Errorf("%+v", r)
		}
		if raw, err := os.ReadFile(c.RawFile); err != nil || string(raw) != rawHeader {
			t.Errorf("raw file %q, %v", raw, err)
		}
		generator.say(t, map[string]time.Duration{"drain": time.Second})
		var d Drained
		if generator.hear(t, &d); d.Left != 0 {
			t.Errorf("%d under way", d.Left)
		}
		own := c
		own.Wrk, own.Window = nil, 100*time.Millisecond
		accounted(t, own, generator.run(t, own))
	}
	c.Wrk.Program = filepath.Join(dir, "absent")
	bad, stderr := startServe(t)
	bad.say(t, c)
	bad.hear(t, &struct{ Ready bool }{})
	bad.say(t, map[string]int64{"start": newClock().now()})
	if _, err := io.ReadAll(bad.out); err != nil { // to its end
		t.Fatal(err)
	}
	if status, text := bad.finish(t, stderr); status == 0 || !strings.Contains(text, "absent") {
		t.Errorf("without wrk: status %d, %q", status, text)
	}
}

// wrk itself prints what is read.
func TestWrkForReal(t *testing.T) {
	program, err := exec.LookPath("wrk")
	if err != nil || testing.Short() {
		t.Skip("needs wrk (Debian: apt-get install wrk), and a second: ", err)
	}
	c := wrkConfig(t, program)
	r := startChild(t, "generator").run(t, c)
	h := decodeHistogram(t, r.Seconds[0].Response)
	if r.Done < 100 || r.Failed != 0 || len(r.Each) != 2 || r.Each[0].Done == 0 || r.CPUSeconds <= 0 || h.TotalCount() < int64(r.Done) || h.ValueAtQuantile(50) <= 0 {
		t.Errorf("%d done, %d failed, %g CPU seconds, %d response times, each %+v", r.Done, r.Failed, r.CPUSeconds, h.TotalCount(), r.Each)
	}
}

func TestWrkRefuses(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"want its path":   func(c *Config) { c.Wrk.Program = "" },
		"0 threads":       func(c *Config) { c.Wrk.Threads = 0 },
		"whole seconds":   func(c *Config) { c.Window = 1500 * time.Millisecond },
		"from its start":  func(c *Config) { c.Settle = time.Second },
		"it speaks HTTP":  func(c *Config) { c.Protocol = "redis" },
		"it asks for one": func(c *Config) { c.Paths = []string{"/a", "/b"} },
	} {
		c := testConfig("127.0.0.1:1")
		c.Settle, c.Window, c.Wrk = 0, time.Second, &Wrk{Program: "wrk", Threads: 1, Connections: 1}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		if change(&c); c.Validate() == nil || !strings.Contains(c.Validate().Error(), want) {
			t.Errorf("%v, want %q", c.Validate(), want)
		}
	}
}
