package cli

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fork"
)

// livePart makes the test binary play a part: "spin", "serve SOCKET" or "load SOCKET".
const livePart = "BERTH_TEST_PART"

func playPart(part string) {
	part, socket, _ := strings.Cut(part, " ")
	var err error
	switch part {
	case "spin":
		//lint:ignore SA5002 it is to use a CPU
		for {
		}
	case "serve":
		err = serveLive(socket)
	case "load":
		err = loadLive(socket)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func serveLive(socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	work := make([]byte, 256<<10) // half a millisecond or so
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "%x", sha256.Sum256(work))
	}))
}

// loadLive sends requests on 8 connections, each 3 ms after the answer to the one before,
// and says once a second what the time is, how many answers came, and the 99th percentile of their times in ms.
func loadLive(socket string) error {
	var mu sync.Mutex
	var took []time.Duration
	failed := make(chan error, 8)
	for range cap(failed) {
		go func() {
			failed <- requests(socket, func(d time.Duration) {
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			})
		}()
	}
	for {
		select {
		case err := <-failed:
			return err
		case <-time.After(time.Second):
		}
		mu.Lock()
		all := took
		took = nil
		mu.Unlock()
		slices.Sort(all)
		if len(all) > 0 {
			fmt.Printf("%d %d %.3f\n", time.Now().UnixMilli(), len(all), all[len(all)*99/100].Seconds()*1000)
		}
	}
}

func requests(socket string, done func(time.Duration)) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	r := bufio.NewReader(c)
	for {
		began := time.Now()
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: berth\r\n\r\n"); err != nil {
			return err
		}
		answer, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			return err
		}
		done(time.Since(began))
		time.Sleep(3 * time.Millisecond)
	}
}

// liveSecond is what the client says of a second, liveLine a line of the guard's.
type liveSecond struct {
	at    time.Time
	count int
	p99   float64
}

type liveLine struct {
	Time    time.Time       `json:"time"`
	Finding *detect.Finding `json:"finding"`
	Event   *control.Event  `json:"event"`
}

const (
	liveLearn   = 8 * time.Second  // before the neighbour starts
	liveTrouble = 20 * time.Second // from then on
	liveSettle  = 3 * time.Second  // of that, left out of the figures
)

// TestGuardLive measures programs on this host, as root: a web server and its client in
// groups beside one that spins, with two spinning processes in the root group and without,
// under a guard. BERTH_TEST_LIVE names the programs, "old=PATH,new=PATH",
// BERTH_TEST_LIVE_RUNS how often. It says what came of it, and asserts nothing.
func TestGuardLive(t *testing.T) {
	programs, runs := measured(t, "BERTH_TEST_LIVE", 5)
	t.Log("| run | program | outsiders | requests/s before | after | p99 ms before | after | in force | what the guard did |")
	for run := range runs {
		for _, outsiders := range []int{2, 0} {
			for _, program := range programs {
				name, path := program[0], program[1]
				t.Run(fmt.Sprintf("%d/%d/%s", run+1, outsiders, name), func(t *testing.T) {
					t.Logf("| %d | %s | %d | %s |", run+1, name, outsiders, runLive(t, path, outsiders))
				})
			}
			slices.Reverse(programs)
		}
	}
}

func runLive(t *testing.T, program string, outsiders int) string {
	g := newGuardHost(t, "client")
	g.write(t, "cpu/"+g.top+"/cpu.shares", "1024")
	g.write(t, "cpu/"+g.top+"/batch/cpu.shares", "1024")
	part := func(part string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), livePart+"="+part, "GOMAXPROCS=2")
		return cmd
	}
	socket := filepath.Join(t.TempDir(), "web")
	g.start(t, g.top+"/web", part("serve "+socket))
	waitFor(t, "the server listens", func() bool { _, err := os.Stat(socket); return err == nil })
	var said, told bytes.Buffer
	load := part("load " + socket)
	load.Stdout = &said
	g.start(t, g.top+"/client", load)
	for range outsiders {
		spin := part("spin")
		if err := fork.Start(spin); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = spin.Process.Kill()
			_ = spin.Wait()
		})
	}
	var guard *exec.Cmd
	for {
		guard = exec.Command(program, "guard", "--state", g.state, "--mode", "enforce", "-o", "json", "--sensitive", g.top+"/web", "--best-effort", g.top+"/batch")
		guard.Stdout, guard.Stderr = &told, &told
		g.start(t, g.tool, guard)
		ended := make(chan error, 1)
		go func() { ended <- guard.Wait() }()
		select {
		case <-ended: // another guard runs on this host
			time.Sleep(time.Second)
			continue
		case <-time.After(liveLearn):
		}
		break
	}
	began := time.Now()
	for range 4 {
		g.start(t, g.top+"/batch/hog", part("spin"))
	}
	time.Sleep(time.Until(began.Add(liveTrouble)))
	ended := time.Now()
	_ = guard.Process.Signal(syscall.SIGINT)
	waitFor(t, "the guard ends", func() bool { return guard.Process.Signal(syscall.Signal(0)) != nil })
	_ = load.Process.Kill()
	_ = load.Wait()
	t.Log(told.String())
	before := liveFigures(said.String(), began.Add(-liveLearn/2), began)
	after := liveFigures(said.String(), began.Add(liveSettle), ended)
	inForce, did := liveEvents(told.Bytes(), began, ended)
	return fmt.Sprintf("%.0f | %.0f | %.2f | %.2f | %.0f %% | %s", before.rate, after.rate, before.p99, after.p99, 100*inForce, did)
}

type liveFigure struct{ rate, p99 float64 }

// liveFigures are the requests per second and the median of the seconds' 99th percentiles.
func liveFigures(said string, from, to time.Time) liveFigure {
	var p99 []float64
	count, seconds, last := 0, 0.0, time.Time{}
	for line := range strings.Lines(said) {
		var ms int64
		var s liveSecond
		if _, err := fmt.Sscan(line, &ms, &s.count, &s.p99); err != nil {
			continue
		}
		s.at = time.UnixMilli(ms)
		if s.at.After(from) && !s.at.After(to) && !last.IsZero() {
			count += s.count
			seconds += s.at.Sub(last).Seconds()
			p99 = append(p99, s.p99)
		}
		last = s.at
	}
	if len(p99) == 0 {
		return liveFigure{}
	}
	slices.Sort(p99)
	return liveFigure{float64(count) / seconds, p99[len(p99)/2]}
}

// liveEvents are for which part of the time the neighbour's group was idle, and what was
// done, in words.
func liveEvents(told []byte, from, to time.Time) (inForce float64, did string) {
	var all []string
	var since time.Time
	var held time.Duration
	for line := range bytes.Lines(told) {
		var l liveLine
		if json.Unmarshal(line, &l) != nil || l.Event == nil || l.Time.After(to) {
			continue
		}
		e := l.Event
		word := e.Outcome.String()
		if e.Action != nil {
			word += " " + e.Action.Remedy.String()
		}
		all = append(all, fmt.Sprintf("%.1f s %s", l.Time.Sub(from).Seconds(), word))
		if e.Action == nil || e.Action.Remedy != detect.Weight {
			continue
		}
		switch e.Outcome {
		case control.Applied, control.Restored:
			since = l.Time
		case control.Reverted, control.OnTrial:
			if !since.IsZero() {
				held += l.Time.Sub(since)
			}
			since = time.Time{}
		}
	}
	if !since.IsZero() {
		held += to.Sub(since)
	}
	if len(all) == 0 {
		all = []string{"nothing"}
	}
	return held.Seconds() / to.Sub(from).Seconds(), strings.Join(all, ", ")
}
