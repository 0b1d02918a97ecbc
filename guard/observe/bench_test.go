package observe

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/watch"
)

// BenchmarkTick is one window's reading of a host with 250 groups more, with a process
// each, of which none or half are looked after. cpu-µs/tick is the CPU time of this
// process, which other work on the host lengthens less than ns/op.
func BenchmarkTick(b *testing.B) {
	for _, sensitive := range []int{0, 125} {
		b.Run(fmt.Sprintf("sensitive=%d", sensitive), func(b *testing.B) {
			o, now := busyHost(b, sensitive)
			b.ReportAllocs()
			start := cpuTime()
			for b.Loop() {
				now = readTicks(b, o, now, 1)
			}
			b.ReportMetric(float64(cpuTime()-start)/1e3/float64(b.N), "cpu-µs/tick")
		})
	}
}

// BenchmarkTickBesideEmpty compares ten windows' reading, with two looks for new groups,
// of that host with and without 3,000 groups more that have no process, of root or in a
// subtree of another user: ratio is that of the CPU times.
func BenchmarkTickBesideEmpty(b *testing.B) {
	for _, owner := range []int{0, 65534} {
		b.Run(fmt.Sprintf("owner=%d", owner), func(b *testing.B) {
			o, now := busyHost(b, 0)
			measure := func() (spent float64) {
				for range 5 {
					start := cpuTime()
					now = readTicks(b, o, now, 10)
					spent += float64(cpuTime() - start)
				}
				return spent
			}
			without := measure()
			for _, dir := range makeGroup(b, o, "empty") {
				if err := os.Chown(dir, owner, -1); err != nil {
					b.Skip(err)
				}
				for i := range 3000 {
					group := filepath.Join(dir, strconv.Itoa(i))
					if err := os.Mkdir(group, 0o755); err != nil {
						b.Fatal(err)
					}
					b.Cleanup(func() { os.Remove(group) })
				}
			}
			o.told["berth-tick-"+strconv.Itoa(os.Getpid())+"-empty"] = now + 1e6*watch.Second // it is no error here
			b.ReportMetric(measure()/without, "ratio")
		})
	}
}

func readTicks(b *testing.B, o *Observer, now watch.Time, count int) watch.Time {
	var samples []watch.Sample
	var err error
	for range count {
		now += watch.Second
		if samples, err = o.Tick(now, samples[:0]); err != nil {
			b.Fatal(err)
		}
	}
	return now
}

// busyHost makes 250 groups with a process each, and reads them once.
func busyHost(b *testing.B, sensitive int) (*Observer, watch.Time) {
	b.Helper()
	o, err := Open(Config{})
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { o.Close() })
	var closely []string
	for i := range 250 {
		dirs := makeGroup(b, o, fmt.Sprint(i))
		sleeper := exec.Command("sleep", "600")
		if err := sleeper.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			sleeper.Process.Kill()
			sleeper.Wait()
		})
		for _, dir := range dirs {
			// A cpuset without CPUs takes none; what is read of it does not matter here.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(sleeper.Process.Pid)), 0)
		}
		if i < sensitive {
			closely = append(closely, filepath.Base(dirs[0]))
		}
	}
	if err := o.Closely(closely); err != nil {
		b.Fatal(err)
	}
	return o, readTicks(b, o, 0, 1)
}

// makeGroup makes a group in all trees, until the benchmark ends.
func makeGroup(b *testing.B, o *Observer, name string) (dirs []string) {
	b.Helper()
	for _, t := range o.site.Trees {
		dir := filepath.Join(t.Dir, fmt.Sprintf("berth-tick-%d-%s", os.Getpid(), name))
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Skipf("no groups can be made here: %v", err)
		}
		b.Cleanup(func() {
			for range 100 { // the kernel lets go of a process that has ended a little later
				if os.Remove(dir) == nil || !exists(dir) {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		dirs = append(dirs, dir)
	}
	return dirs
}

func exists(dir string) bool {
	_, err := os.Lstat(dir)
	return err == nil
}

// cpuTime is the CPU time of this process, in nanoseconds.
func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkGlance compares a glance at eight groups with a short window's reading of them: ratio is
// that of the CPU times.
func BenchmarkGlance(b *testing.B) {
	o, now := busyHost(b, 8)
	var groups []string
	for group := range o.closely {
		groups = append(groups, group)
	}
	if err := o.Focus(groups); err != nil {
		b.Fatal(err)
	}
	read := func(f func(watch.Time, []watch.Sample) ([]watch.Sample, error), count int) float64 {
		var samples []watch.Sample
		var err error
		start := cpuTime()
		for range count {
			now += watch.Second / 40
			if samples, err = f(now, samples[:0]); err != nil {
				b.Fatal(err)
			}
		}
		return float64(cpuTime() - start)
	}
	near := read(o.TickNear, 200)
	glance := read(o.Glance, 200)
	b.ReportMetric(glance/near, "ratio")
	b.ReportMetric(glance/200/1e3, "cpu-µs/glance")
}
