package runq

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkSwitch sends a byte to another process on the same CPU and back: two
// wake-ups and two context switches. The cases alternate 20 ms with the probe
// and 20 ms without, and report the median of the ratios, which a busy host
// disturbs less than the difference of two runs.
func BenchmarkSwitch(b *testing.B) {
	for _, bc := range []struct {
		name    string
		watched bool // one of the two processes
		share   float64
	}{
		{"other", false, -1},
		{"watched", true, -1},
		{"guarded", true, 1000},
		{"guarded other", false, 1000},
	} {
		b.Run(bc.name, func(b *testing.B) {
			root := realRoot(b)
			group := newGroup(b, root, "echo")
			p := open(b, Options{Root: root, MaxShare: bc.share})
			if bc.watched {
				ensure(b, p.Add(group))
			}
			compare(b, p, newEcho(b, root, group))
		})
	}
}

func compare(b *testing.B, p *Probe, e *echo) {
	var ratios, extra []float64
	for b.Loop() {
		ensure(b, p.Disarm())
		without := e.pace(b, 20*time.Millisecond)
		ensure(b, p.Arm())
		with := e.pace(b, 20*time.Millisecond)
		ratios = append(ratios, with/without)
		extra = append(extra, with-without)
	}
	b.ReportMetric(0, "ns/op") // of the whole pair
	b.ReportMetric(median(ratios), "with/without")
	b.ReportMetric(median(extra), "extra-ns/round-trip")
	if cost := read(b, p).Cost; cost.Runs > 0 {
		b.ReportMetric(float64(cost.Time)/float64(cost.Runs), "ns/run")
	}
}

func ensure(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// echo is a process that sends back what it gets.
type echo struct {
	to, from *os.File
	buf      [1]byte
}

// newEcho starts it in a group, and pins this goroutine to its CPU.
func newEcho(b *testing.B, root, group string) *echo {
	b.Helper()
	in, to, err := os.Pipe()
	ensure(b, err)
	from, out, err := os.Pipe()
	ensure(b, err)
	cat := exec.Command("cat")
	cat.Stdin, cat.Stdout = in, out
	start(b, root, group, cat)
	in.Close()
	out.Close()
	runtime.LockOSThread()
	var before, cpu unix.CPUSet
	ensure(b, unix.SchedGetaffinity(0, &before))
	cpu.Set(firstCPU(b))
	ensure(b, unix.SchedSetaffinity(0, &cpu))
	b.Cleanup(func() {
		unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
		to.Close()
		from.Close()
	})
	return &echo{to: to, from: from}
}

// pace is the time per round trip in nanoseconds: the median of batches of 16
// that fit into d, which leaves out those that something else interrupted.
func (e *echo) pace(b *testing.B, d time.Duration) float64 {
	const batch = 16
	to, from := int(e.to.Fd()), int(e.from.Fd()) // blocking from now on
	var times []float64
	for begin := time.Now(); time.Since(begin) < d; {
		start := time.Now()
		for range batch {
			_, err := unix.Write(to, e.buf[:])
			ensure(b, err)
			_, err = unix.Read(from, e.buf[:])
			ensure(b, err)
		}
		times = append(times, float64(time.Since(start))/batch)
	}
	return median(times)
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// BenchmarkOpen is loading and unloading.
func BenchmarkOpen(b *testing.B) {
	root := realRoot(b)
	b.ReportAllocs()
	for b.Loop() {
		p, err := Open(Options{Root: root})
		ensure(b, err)
		ensure(b, p.Close())
	}
}

func BenchmarkArm(b *testing.B) {
	p := open(b, Options{Root: realRoot(b), MaxShare: -1})
	b.ReportAllocs()
	for b.Loop() {
		ensure(b, p.Disarm())
		ensure(b, p.Arm())
	}
}

func BenchmarkRead(b *testing.B) {
	root := realRoot(b)
	p := open(b, Options{Root: root}, newGroup(b, root, "victim"))
	var s Snapshot
	b.ReportAllocs()
	for b.Loop() {
		ensure(b, p.Read(&s))
	}
}
