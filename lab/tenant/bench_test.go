package tenant

import (
	"fmt"
	"testing"
)

// BenchmarkRender shows what a unit costs, and that cost is in proportion.
func BenchmarkRender(b *testing.B) {
	for _, units := range []int{0, 1, 10, 50} {
		for _, set := range []int64{1 << 20, 64 << 20} {
			b.Run(fmt.Sprintf("units=%d/set=%dMiB", units, set>>20), func(b *testing.B) {
				s, err := New(Config{Units: units, WorkingSetBytes: set, Seed: 1})
				if err != nil {
					b.Fatal(err)
				}
				work := new(scratch)
				request := uint64(0)
				b.ReportAllocs()
				for b.Loop() {
					request++
					if err := s.render(work, request); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
