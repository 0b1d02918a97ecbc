package noise

import (
	"strings"
	"testing"
)

// BenchmarkKernel measures what one thread of each kernel gets done alone, with
// its working set as planned for a cache of 64 MiB. MB/s is of cache lines moved.
func BenchmarkKernel(b *testing.B) {
	bytesPerUnit := map[string]int64{"bytes": 1, "loads": 64}
	for _, k := range Kernels() {
		if k.File || k.Link {
			continue // the device would be measured, or the command
		}
		b.Run(k.Name, func(b *testing.B) {
			cfg := Config{Kernel: k.Name, Threads: 1, Intensity: 100, L3Bytes: 64 * mib}
			w, err := newWorker(cfg, Plan(cfg, 0).Bytes, 1)
			if err != nil {
				b.Fatal(err)
			}
			var work uint64
			b.ReportAllocs()
			for b.Loop() {
				n, err := w.step()
				if err != nil {
					b.Fatal(err)
				}
				work += n
			}
			b.SetBytes(int64(work) / int64(b.N) * bytesPerUnit[k.Unit])
			b.ReportMetric(float64(work)/b.Elapsed().Seconds(), strings.ReplaceAll(k.Unit, " ", "-")+"/s")
			if err := w.close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
