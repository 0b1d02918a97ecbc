package observe

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"berth.dev/berth/watch"
)

// BenchmarkTick is one window's reading of a host with 250 groups more, of which
// none or half are looked after. cpu-µs/tick is the CPU time of this process, which
// other work on the host lengthens less than ns/op.
func BenchmarkTick(b *testing.B) {
	for _, sensitive := range []int{0, 125} {
		b.Run(fmt.Sprintf("sensitive=%d", sensitive), func(b *testing.B) {
			o, err := Open(Config{})
			if err != nil {
				b.Skip(err)
			}
			defer o.Close()
			var closely []string
			for i := range 250 {
				group := fmt.Sprintf("berth-tick-%d-%d", os.Getpid(), i)
				for _, t := range o.trees {
					dir := filepath.Join(t.Dir, group)
					if err := os.Mkdir(dir, 0o755); err != nil {
						b.Skipf("no groups can be made here: %v", err)
					}
					b.Cleanup(func() { os.Remove(dir) })
				}
				if i < sensitive {
					closely = append(closely, group)
				}
			}
			if err := o.Closely(closely); err != nil {
				b.Fatal(err)
			}
			now := watch.Second
			samples, err := o.Tick(now, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			start := cpuTime()
			for b.Loop() {
				now += watch.Second
				if samples, err = o.Tick(now, samples[:0]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpuTime()-start)/1e3/float64(b.N), "cpu-µs/tick")
		})
	}
}

// cpuTime is the CPU time of this process, in nanoseconds.
func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}
