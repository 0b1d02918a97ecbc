package guard

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/testbox"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// serve works for requests that come at random, a millisecond each by eight threads.
func serve(groups []string) error {
	if err := join(groups); err != nil {
		return err
	}
	const work, workers = time.Millisecond, 8
	runtime.GOMAXPROCS(workers + 1)
	requests := make(chan struct{}, 1<<16)
	for range workers {
		go func() {
			runtime.LockOSThread()
			for range requests {
				for began := threadTime(); threadTime()-began < work; {
				}
			}
		}()
	}
	fmt.Println("ready")
	mean := float64(work) / (0.4 * float64(runtime.NumCPU()))
	for at := time.Now(); ; at = at.Add(time.Duration(rand.ExpFloat64() * mean)) {
		time.Sleep(time.Until(at))
		requests <- struct{}{}
	}
}

// threadTime is the CPU time of this thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // there always is one
	return time.Duration(t.Nano())
}

// spin fills the CPUs from each first line of its input to the second.
func spin(groups []string) error {
	if err := join(groups); err != nil {
		return err
	}
	runtime.GOMAXPROCS(runtime.NumCPU() + 1)
	fmt.Println("ready")
	var on atomic.Bool
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if on.Store(!on.Load()); !on.Load() {
			continue
		}
		for range runtime.NumCPU() {
			go func() {
				for on.Load() {
				}
			}()
		}
	}
	return io.EOF
}

// deafHost has a kernel that gives no alarm.
type deafHost struct{ *Host }

func (deafHost) WakeAt(map[string]float64) error {
	return &kernel.NotSupportedError{Feature: "an alarm", Reason: "this test does without"}
}

// cpuTimes are the CPU time of this process, and that of the threads with which the kernel looks at
// pressure.
func cpuTimes(t *testing.T) (own, kernel time.Duration) {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if comm, _ := os.ReadFile(file); string(comm) != "psimon\n" { // it may have ended
			continue
		}
		text, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "schedstat"))
		if words := strings.Fields(string(text)); len(words) > 0 {
			ns, err := strconv.ParseInt(words[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			kernel += time.Duration(ns)
		}
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), kernel
}

// TestAlarmCost measures, beside a service that uses 40 % of the CPUs, what a guard takes whose probe
// rests, with alarms and without, and how long it takes from a neighbour's first run until the probe is
// armed. The machine has to be quiet.
func TestAlarmCost(t *testing.T) {
	if os.Getenv("BERTH_TEST_ALARM") == "" {
		t.Skip("needs BERTH_TEST_ALARM, root, and three minutes of a quiet machine")
	}
	fakekernel.LockHost(t, fakekernel.Alone)
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	web, hog := fmt.Sprintf("berth-alarm-%d-web", os.Getpid()), fmt.Sprintf("berth-alarm-%d-hog", os.Getpid())
	dirs, _ := realGroups(t, root, web, hog)
	role := func(role, group string) *exec.Cmd {
		return testbox.Self(t, sendEnv, role+" "+strings.Join(dirs[group], " "), 0)
	}
	testbox.Start(t, role(serveRole, web))
	spinning := role(spinRole, hog)
	toggle, err := spinning.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	testbox.Start(t, spinning)
	host, err := OpenHost("")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	for _, sensors := range []Sensors{deafHost{host}, host, host, deafHost{host}} {
		restingCost(t, sensors, web)
	}

	// What is usual is learnt as a Runner does.
	focus := []string{web}
	if err := host.Focus(focus); err != nil {
		t.Fatal(err)
	}
	learnt := alarms{usual: map[string]*pressure{}}
	began := time.Now()
	for range 2 * enoughPressures {
		time.Sleep(time.Second)
		samples, err := host.Tick(watch.Time(time.Since(began)), nil)
		if err != nil {
			t.Log(err)
		}
		learnt.learn(samples, focus, time.Second, true)
	}
	least := learnt.least(focus, time.Second, 1)
	p := learnt.usual[web]
	t.Logf("usually %.3f with a variance of %.6f: asked for %v", p.mean, p.variance, least)
	var alarm, armed []time.Duration
	for range 24 {
		if err := host.WakeAt(least); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Float64() * float64(200*time.Millisecond)))
		at := time.Now()
		fmt.Fprintln(toggle)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if pressed, err := host.Wake(ctx); !pressed {
			t.Logf("no alarm: %v", err)
		} else {
			alarm = append(alarm, time.Since(at))
			if err := host.Arm(true); err != nil {
				t.Fatal(err)
			}
			armed = append(armed, time.Since(at))
		}
		cancel()
		fmt.Fprintln(toggle)
		if err := host.Arm(false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
	}
	for name, took := range map[string][]time.Duration{"alarm": alarm, "armed": armed} {
		if slices.Sort(took); len(took) > 0 {
			t.Logf("%s in %d of 24, after %v in the median; all: %v", name, len(took), took[len(took)/2], took)
		}
	}
}

// restingCost is what a guard of web takes while its probe rests.
func restingCost(t *testing.T, sensors Sensors, web string) {
	t.Helper()
	r, err := New(Options{Sensors: sensors, Workloads: func(context.Context) ([]Workload, error) {
		return []Workload{{Group: web, Sensitive: true}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	const settle, length = 13 * time.Second, 15 * time.Second
	time.Sleep(settle)
	before, psimon := cpuTimes(t)
	began := time.Now()
	time.Sleep(length)
	took := time.Since(began)
	armed := r.Status().Probe.ArmedFor
	own, now := cpuTimes(t)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	t.Logf("%T: %.3f %% of a CPU, the kernel's look %.3f %%; the probe was armed for %v of %v",
		sensors, 100*(own-before).Seconds()/took.Seconds(), 100*(now-psimon).Seconds()/took.Seconds(), armed, took+settle)
}
