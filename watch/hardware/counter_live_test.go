package hardware

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// online returns the CPUs of this host.
func online(t testing.TB) cpuset.Set {
	t.Helper()
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Skipf("which CPUs are online: %v", err)
	}
	return cpuset.MustParse(strings.TrimSpace(string(text)))
}

// liveGroup makes a group in the cgroup v2 tree of this host, if perf events go
// by that tree here.
func liveGroup(t testing.TB) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Skipf("no mounts to read: %v", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "cgroup2" {
			dir, err := os.MkdirTemp(f[1], "berth-perf-")
			if err != nil {
				t.Skipf("cannot make a group: %v", err)
			}
			t.Cleanup(func() {
				if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Error(err)
				}
			})
			return dir
		}
	}
	t.Skip("no cgroup v2 tree")
	return ""
}

// start opens a counter, or skips the test where this host cannot count.
func startCounter(t testing.TB, c CounterConfig) *Counter {
	t.Helper()
	counter, err := OpenCounter(c)
	if errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := counter.Close(); err != nil {
			t.Error(err)
		}
	})
	return counter
}

func readCounter(t testing.TB, c *Counter) map[watch.Quantity]float64 {
	t.Helper()
	samples, err := c.Read(watch.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	values := map[watch.Quantity]float64{}
	for _, s := range samples {
		if s.Subject != c.subject || s.Time != watch.Second {
			t.Errorf("sample %+v", s)
		}
		values[s.Quantity] = s.Value
	}
	return values
}

// runIn runs a shell in a group to its end and returns what it used.
func runIn(t *testing.T, dir, script string) *syscall.Rusage {
	t.Helper()
	fd, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	if err := cmd.Run(); err != nil {
		t.Skipf("cannot start a process in a group: %v", err)
	}
	return cmd.ProcessState.SysUsage().(*syscall.Rusage)
}

// What the kernel counts for a group is what the processes in it did: nothing in
// one, a loop in the other.
func TestLiveSoftware(t *testing.T) {
	t.Parallel()
	busyDir, idleDir := liveGroup(t), liveGroup(t)
	busy := startCounter(t, CounterConfig{Dir: busyDir, Name: "busy", CPUs: online(t), Set: SoftwareEvents})
	idle := startCounter(t, CounterConfig{Dir: idleDir, Name: "idle", CPUs: online(t), Set: SoftwareEvents})
	began := time.Now()
	usage := runIn(t, busyDir, "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; true & wait")
	// A process that has ended gives up the CPU, and is counted, a little after it was waited for.
	var got map[watch.Quantity]float64
	rests := false
	for until := began.Add(time.Minute); !rests && time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		again := readCounter(t, busy)
		rests, got = got != nil && again[watch.CPUTime] == got[watch.CPUTime] && again[watch.Switches] == got[watch.Switches], again
	}
	if !rests {
		t.Errorf("%v, and it goes on to count though nothing runs", got)
	}
	cpu := float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
	if got[watch.CPUTime] < 0.8*cpu || cpu == 0 {
		t.Errorf("%v s of CPU time are counted, %v s were used", got[watch.CPUTime], cpu)
	}
	if most := time.Since(began).Seconds() * float64(online(t).Len()); got[watch.CPUTime] > most {
		t.Errorf("%v s of CPU time are counted, CPUs had %v s", got[watch.CPUTime], most)
	}
	if faults := float64(usage.Minflt); got[watch.PageFaults] < faults/2 || faults == 0 {
		t.Errorf("%v page faults are counted, the processes had %v", got[watch.PageFaults], faults)
	}
	if got[watch.Switches] < 3 { // two ended, one waited
		t.Errorf("%v context switches are counted", got[watch.Switches])
	}
	if _, there := got[watch.Migrations]; !there {
		t.Error("no migrations are counted")
	}
	for q, v := range readCounter(t, idle) {
		if v != 0 {
			t.Errorf("%v is %v of a group without processes", q, v)
		}
	}
	if err := os.Remove(idleDir); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Read(watch.Second, nil); !errors.Is(err, watch.ErrGone) {
		t.Errorf("a group that is gone: %v", err)
	}
}

// The groups below one are part of it.
func TestLiveNested(t *testing.T) {
	t.Parallel()
	dir := liveGroup(t)
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(below)
	c := startCounter(t, CounterConfig{Dir: dir, CPUs: online(t), Set: SoftwareEvents, Only: []watch.Quantity{watch.PageFaults}})
	runIn(t, below, "true")
	if got := readCounter(t, c); len(got) != 1 || got[watch.PageFaults] == 0 {
		t.Errorf("counted %v", got)
	}
}

// Not parallel: AllocsPerRun counts for the whole program.
func TestLiveHost(t *testing.T) {
	c := startCounter(t, CounterConfig{CPUs: online(t), Set: SoftwareEvents})
	before := readCounter(t, c)
	for range 64 { // pages that are new
		page := make([]byte, 1<<20)
		page[len(page)/2] = 1
	}
	if got := readCounter(t, c); got[watch.CPUTime] <= before[watch.CPUTime] || c.Why(watch.CPUTime) != nil {
		t.Errorf("%v after %v, missing: %v", got, before, c.Why(watch.CPUTime))
	}
	var buf []watch.Sample
	if n := testing.AllocsPerRun(10, func() { buf, _ = c.Read(watch.Second, buf[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Where there are no counters, as in most virtual machines, the error says so.
func TestLiveHardware(t *testing.T) {
	t.Parallel()
	c := startCounter(t, CounterConfig{CPUs: online(t), Set: HardwareEvents})
	if got := readCounter(t, c); !(got[watch.Cycles] > 0) || !(got[watch.Instructions] > 0) {
		t.Errorf("counted %v, missing: %v, %v", got, c.Why(watch.Cycles), c.Why(watch.Instructions))
	}
}

func TestLiveOtherTree(t *testing.T) {
	t.Parallel()
	_, err := OpenCounter(CounterConfig{Dir: t.TempDir(), CPUs: online(t), Set: SoftwareEvents})
	if err == nil {
		t.Error("a directory that is no group opens")
	}
}

func BenchmarkReadCounter(b *testing.B) {
	c := startCounter(b, CounterConfig{Dir: liveGroup(b), CPUs: online(b), Set: SoftwareEvents})
	var buf []watch.Sample
	for b.Loop() {
		var err error
		if buf, err = c.Read(watch.Second, buf[:0]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(c.cpus)), "CPUs")
}

func BenchmarkOpenCounter(b *testing.B) {
	config := CounterConfig{Dir: liveGroup(b), CPUs: online(b), Set: SoftwareEvents}
	startCounter(b, config)
	for b.Loop() {
		c, err := OpenCounter(config)
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
