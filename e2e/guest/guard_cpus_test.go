package guest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/watch"
)

const (
	// otherCPUs are left to the guard and to the process that sends requests.
	otherCPUs = 2
	// longWork is the CPU time of a request, and fewDemand how much all of them are of the CPUs.
	longWork  = 3 * time.Millisecond
	fewDemand = 0.36
	// soon is within what time of its first instant a neighbour is to be named and set to yield.
	soon = 2 * time.Second
)

// manyCPUs is a tenant with a thread on each of several CPUs, and a neighbour that spins on each of
// them. The tenant's queue is in a pipe: never do more of its threads than CPUs run or wait.
type manyCPUs struct {
	*guardTest
	machine *machine.Machine
	cpus    cpuset.Set // that both may use
	effort  cgroup.Group
}

// newManyCPUs starts a neighbour, frozen.
func newManyCPUs(t *testing.T) *manyCPUs {
	t.Helper()
	runtime.GOMAXPROCS(4) // the guard is not to keep requests waiting
	online := runtime.NumCPU()
	cpus, err := cpuset.Range(0, online-otherCPUs-1)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := cpuset.Range(online-otherCPUs, online-1)
	if err != nil {
		t.Fatal(err)
	}
	m := &manyCPUs{guardTest: newGuardTest(t, cpus), cpus: cpus}
	m.effort = m.base.Child(effortGroup)
	if m.machine, err = sysfs.Live("/"); err != nil {
		t.Fatal(err)
	}
	own := m.group(t, "guard")
	m.set(t, own, cgroup.Limits{CPUs: rest})
	m.attach(t, own, os.Getpid())
	for range cpus.Len() {
		m.child(t, m.effort, "spin")
	}
	m.set(t, m.effort, cgroup.Limits{Frozen: cgroup.On})
	return m
}

// serve has the tenant serve requests alone for a time, and then some times beside the neighbour, with as
// long a pause between. It returns when the neighbour first began, and when each request was due. Before the
// neighbour is frozen for the last time, it calls a function.
func (m *manyCPUs) serve(t *testing.T, alone, beside time.Duration, times int, last func()) (onset int64, all []served) {
	t.Helper()
	s := m.server(t, m.base.Child(sensitiveGroup), "serve by goroutines", m.cpus.Len(), m.cpus.Len(), longWork, false)
	ended := make(chan error, 1)
	go func() {
		rate := float64(m.cpus.Len()) * fewDemand / longWork.Seconds()
		_, _, err := generate(s.requests, rate, 1, alone+time.Duration(2*times-1)*beside)
		ended <- err
	}()
	time.Sleep(leadIn + alone)
	onset = monotonic()
	for i := range times {
		if i > 0 {
			time.Sleep(beside)
		}
		m.set(t, m.effort, cgroup.Limits{Frozen: cgroup.Off})
		time.Sleep(beside)
		if i == times-1 {
			last()
		}
		m.set(t, m.effort, cgroup.Limits{Frozen: cgroup.On})
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return onset, s.end(t)
}

// serveByGoroutines takes requests from a pipe, each by a goroutine, and says at its end when each was due
// and how long it took.
func serveByGoroutines(t *testing.T) {
	work, _ := strconv.ParseInt(os.Getenv("BERTH_TEST_WORK"), 10, 64)
	if err := unix.SetNonblock(3, true); err != nil { // so that no thread waits for it
		t.Fatal(err)
	}
	requests := os.NewFile(3, "requests")
	var mutex sync.Mutex
	var done [][2]int64
	var all sync.WaitGroup
	os.Stdout.WriteString("!")
	for {
		some := make([]byte, 512) // eight bytes each, written one by one: none is cut
		n, err := requests.Read(some)
		for request := range slices.Chunk(some[:n], 8) {
			all.Go(func() {
				for left := work; left > 0; { // of CPU time, by bits: the thread may become another
					began := clockTime(unix.CLOCK_THREAD_CPUTIME_ID)
					for range 20_000 { // so that it is in the kernel, and others may have its turn, for a small part
					}
					left -= min(max(clockTime(unix.CLOCK_THREAD_CPUTIME_ID)-began, 0), work)
				}
				due := int64(binary.LittleEndian.Uint64(request))
				mutex.Lock()
				defer mutex.Unlock()
				done = append(done, [2]int64{due, monotonic() - due})
			})
		}
		if err != nil {
			break
		}
	}
	all.Wait()
	if err := binary.Write(os.Stdout, binary.LittleEndian, done); err != nil {
		t.Error(err)
	}
	os.Exit(0) // before the test says that it has passed
}

// p99 is that of the requests that were due from an instant on and before another.
func p99(all []served, from, to int64) time.Duration {
	var took []time.Duration
	for _, r := range all {
		if r.due >= from && r.due < to {
			took = append(took, r.took)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// tapped are sensors that keep what the short windows read.
type tapped struct {
	*guard.Host
	near [][]watch.Sample
}

func (s *tapped) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	n := len(to)
	to, err := s.Host.TickNear(now, to)
	s.near = append(s.near, slices.Clone(to[n:]))
	return to, err
}

// guarded is what a guard said and did, and what the tenant served meanwhile.
type guarded struct {
	began, onset   time.Time
	from           int64     // the onset by the monotonic clock
	named, applied time.Time // first; zero is never
	told           []string
	wrong          []string // accusations of others than the neighbour
	idle           string   // cpu.idle at the end
	near           [][]watch.Sample
	requests       []served
}

// guarded has a guard look on, after a time in a mode, while the tenant serves alone and then beside the
// neighbour, as in serve.
func (m *manyCPUs) guarded(t *testing.T, after time.Duration, mode control.Mode, probe guard.ProbeUse, alone, beside time.Duration, times int) *guarded {
	t.Helper()
	m.t = t // what is opened for this part of the test is closed with it
	g := &guarded{began: time.Now()}
	sensors := &tapped{Host: m.host()}
	// To load the probe takes an emulated guest seconds, in which the tenant cannot run either.
	for _, on := range []bool{true, false} {
		if err := errors.Join(sensors.Focus([]string{sensitiveGroup}), sensors.Arm(on)); err != nil {
			t.Fatal(err)
		}
	}
	note := func(format string, args ...any) {
		g.told = append(g.told, fmt.Sprintf("%7.3f s: ", time.Since(g.began).Seconds())+fmt.Sprintf(format, args...))
	}
	run := m.guard(guard.Options{
		Sensors: sensors, Probe: probe, Machine: m.machine, Window: time.Second, Control: control.Config{Mode: mode, Own: sensors.OwnGroup()},
		Found: func(all []detect.Finding) {
			for _, f := range all {
				note("%s", summary(f))
				switch {
				case f.Suspect == effortGroup && f.Resource == detect.CPU:
					if g.named.IsZero() {
						g.named = time.Now()
					}
				case f.Suspect != "":
					g.wrong = append(g.wrong, f.Sentence())
				}
			}
		},
		Acted: func(e control.Event) {
			note("%v", e)
			if e.Outcome == control.Applied && e.Suspect == effortGroup && g.applied.IsZero() {
				g.applied = time.Now()
			}
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	var guarding sync.WaitGroup
	defer guarding.Wait()
	defer cancel()
	guarding.Go(func() {
		time.Sleep(after)
		run(ctx)
	})
	g.from, g.requests = m.serve(t, alone, beside, times, func() { g.idle = m.text(t, effortTop, "cpu.idle") })
	g.onset = time.Now().Add(-time.Duration(monotonic() - g.from))
	cancel()
	guarding.Wait()
	g.near = sensors.near
	return g
}

// summary is a finding in a line.
func summary(f detect.Finding) string {
	text := fmt.Sprintf("%v by %q, %d of %d windows, share %.2f, %.0f %% sure", f.Resource, f.Suspect, f.Agreeing, f.Windows, f.Share, 100*f.Confidence)
	for _, e := range f.Evidence {
		text += fmt.Sprintf(", %v %.3g of %.3g", e.Signal, e.Value, e.Threshold)
	}
	return text
}

// TestGuardOnManyCPUs has a neighbour begin to spin on each of the CPUs of a tenant that has a thread
// for each of them: a guard as it ships names the neighbour and has it yield within two seconds, also if it
// begins when the tenant's queue is long. The host's TestGuardOnManyCPUs asks for it.
func TestGuardOnManyCPUs(t *testing.T) {
	if !strings.HasPrefix(asked(t).Name, "guarded") {
		t.Skip("only make e2e-p99 asks for it")
	}
	m := newManyCPUs(t)
	onset, all := m.serve(t, 2*time.Second, 5*time.Second, 1, func() {})
	alone, beside := p99(all, 0, onset), p99(all, onset, 1<<62)
	t.Logf("without a guard: p99 alone %v, beside the neighbour %v", alone, beside)
	if beside < 3*alone {
		t.Errorf("the neighbour does no harm that is to be found: p99 %v alone, %v beside it", alone, beside)
	}
	for _, tt := range []struct {
		name  string
		probe guard.ProbeUse
		alone time.Duration
		late  time.Duration // the guard begins so long after the neighbour; 0 is before it
	}{
		{"needed", guard.ProbeNeeded, 15 * time.Second, 0},
		{"always", guard.ProbeAlways, 6 * time.Second, 0},
		{"late", guard.ProbeAlways, time.Second, time.Second}, // all of the tenant's threads run or wait by then
	} {
		t.Run(tt.name, func(t *testing.T) {
			begins := time.Duration(0)
			if tt.late > 0 {
				begins = leadIn + tt.alone + tt.late
			}
			g := m.guarded(t, begins, control.Enforce, tt.probe, tt.alone, tt.late+5*time.Second, 1)
			for _, line := range g.told[:min(len(g.told), 60)] {
				t.Log(line)
			}
			after := func(at time.Time) string {
				if at.IsZero() {
					return "never"
				}
				return fmt.Sprintf("%.3f s after the neighbour began", at.Sub(g.onset).Seconds())
			}
			t.Logf("%d short windows; neighbour began at %.3f s; named: %s; acted on: %s; cpu.idle at the end: %s; p99 alone %v, beside it %v, from %v on %v",
				len(g.near), g.onset.Sub(g.began).Seconds(), after(g.named), after(g.applied), g.idle,
				p99(g.requests, 0, g.from), p99(g.requests, g.from, 1<<62), tt.late+soon, p99(g.requests, g.from+int64(tt.late+soon), 1<<62))
			for what, at := range map[string]time.Time{"named": g.named, "acted on": g.applied} {
				if took := at.Sub(g.onset.Add(tt.late)); took < 0 || took > soon {
					t.Errorf("the neighbour was %s: %s; want it within %v", what, after(at), tt.late+soon)
				}
			}
			if g.idle != "1" {
				t.Errorf("cpu.idle of %s is %s at the end, want 1", effortTop, g.idle)
			}
			for _, what := range g.wrong {
				t.Errorf("accused: %s", what)
			}
		})
	}
	if os.Getenv("BERTH_UPDATE") == "true" {
		m.record(t)
	}
}

// record records what the short windows read of the tenant, alone and three times beside the neighbour, while
// nothing is done.
func (m *manyCPUs) record(t *testing.T) {
	g := m.guarded(t, 0, control.Observe, guard.ProbeAlways, 6*time.Second, 3*time.Second, 3)
	t.Logf("the neighbour began %.3f s after the recording", g.onset.Sub(g.began).Seconds())
	var text bytes.Buffer
	zip, err := gzip.NewWriterLevel(&text, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if err := observe.WriteHeader(zip, observe.Header{
		Kernel: kernelName(), Machine: m.machine, Groups: []observe.Group{{Path: sensitiveGroup, CPUs: m.cpus}, {Path: effortGroup, CPUs: m.cpus}},
	}); err != nil {
		t.Fatal(err)
	}
	for _, tick := range g.near {
		if err := watch.Write(zip, tick); err != nil {
			t.Fatal(err)
		}
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	for chunk := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(text.Bytes())), 2048) { // longer lines are split on their way
		t.Attr("recorded", strconv.Quote(string(chunk)))
	}
}
