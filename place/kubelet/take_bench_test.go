package kubelet

import (
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/place"
)

// BenchmarkExclusive places one workload with 14 CPUs of its own on an empty
// machine of 256 CPUs and 8 NUMA nodes, by strategy.
func BenchmarkExclusive(b *testing.B) {
	m := fakekernel.Short(b, "2s4n2l8c2t")
	topo, err := place.NewTopology(m)
	if err != nil {
		b.Fatal(err)
	}
	s, err := place.New(topo, place.Config{Reserved: cpuset.MustOf(0)})
	if err != nil {
		b.Fatal(err)
	}
	static := Policy{CPUManager: CPUManagerStatic}
	uncore, even, align := static, static, static
	uncore.PreferAlignByUncoreCache, even.DistributeAcrossNUMA, align.TopologyManager = true, true, TopologyManagerBestEffort
	r := place.Request{ID: "a", Milli: 14000, LimitMilli: 14000}
	for name, p := range map[string]Policy{"packed": static, "uncore": uncore, "even": even, "align": align} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := place.Place(p, s, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
