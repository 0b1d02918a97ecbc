package guard

import (
	"bufio"
	"context"
	"flag"
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
	if err := testbox.Join(groups...); err != nil {
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
	if err := testbox.Join(groups...); err != nil {
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

var alarmCost = flag.Bool("alarmcost", false, "measure what alarms cost, and how soon they come")

// TestAlarmCost measures, beside a service that uses 40 % of the CPUs, what it takes that the kernel is
// asked, how many alarms are for nothing, and how long it takes from a neighbour's first run until the
// probe is armed. The machine has to be quiet, or its time virtual.
func TestAlarmCost(t *testing.T) {
	if !*alarmCost {
		t.Skip("needs -alarmcost, CAP_SYS_RESOURCE, and three minutes of a quiet machine or of virtual time")
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
	for _, asked := range []map[string]float64{nil, least, least, nil} {
		restingCost(t, host, asked)
	}
	var alarm, armed []time.Duration
	for range 24 {
		if _, err := host.WakeAt(least); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Float64() * float64(200*time.Millisecond)))
		at := time.Now()
		fmt.Fprintln(toggle)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if _, gone, err := host.Wake(ctx); gone || err != nil {
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

// restingCost measures what is taken while the kernel is asked for what is unusual, or for nothing.
func restingCost(t *testing.T, host *Host, least map[string]float64) {
	t.Helper()
	const length = 20 * time.Second
	if _, err := host.WakeAt(least); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	alarms := make(chan int)
	go func() {
		n := 0
		for {
			if _, _, err := host.Wake(ctx); err != nil {
				alarms <- n
				return
			}
			n++
			if _, err := host.WakeAt(least); err != nil {
				cancel()
			}
		}
	}()
	own, psimon := cpuTimes(t)
	began := time.Now()
	time.Sleep(length)
	took := time.Since(began).Seconds()
	ownNow, psimonNow := cpuTimes(t)
	cancel()
	t.Logf("asked for %v: %d alarms in %v; this process took %.3f %% of a CPU, the kernel's threads %.3f %%",
		least, <-alarms, length, 100*(ownNow-own).Seconds()/took, 100*(psimonNow-psimon).Seconds()/took)
}
