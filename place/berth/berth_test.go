package berth_test

import (
	"testing"

	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

func TestProperties(t *testing.T) {
	t.Parallel()
	placetest.Check(t, placetest.Suite{Policy: berth.Policy{}, Own: own, Rank: rank})
}

// own is what the class and the mode promise.
func own(r *place.Request) int {
	mode := r.Mode
	if mode == place.Auto && r.Class == place.LSE {
		mode = place.Exclusive
	}
	if mode == place.Auto && r.Class == place.LSR {
		mode = place.Mixed
	}
	switch mode {
	case place.Exclusive:
		return (r.Milli + 999) / 1000
	case place.Mixed:
		return r.Milli / 1000
	}
	return 0
}

// rank computes the policy's rank from the sets alone: nodes, devices far away,
// MiB from elsewhere, repulsion, distance, L3 domains, split cores, whole
// cores opened, whole L3 domains opened, left over.
func rank(s *place.State, g *place.Grant) []int {
	t := s.Topology()
	nodes := t.NodesOf(g.Own)
	far, short := 0, int64(0)
	for _, name := range g.Devices {
		if d, _, _ := s.Device(name); !d.Nodes.IsEmpty() && !d.Nodes.Overlaps(nodes) {
			far++
		}
	}
	if !g.Own.IsEmpty() {
		short = (s.Shortage(nodes, g.Request.Memory) + 1<<20 - 1) >> 20
	}
	repulsion, distance := 0, 0
	pull := s.Attraction(&g.Request)
	for a := range nodes.All() {
		i, _ := t.Node(a)
		if pull != nil {
			repulsion -= pull[i]
		}
		for b := range nodes.All() {
			if j, _ := t.Node(b); i != j {
				distance += t.Distance(i, j)
			}
		}
	}
	free := s.OwnableBy(&g.Request)
	required := g.Request.Bind == place.FullPCPUs && g.Request.BindRequired
	if required || g.Request.Class == place.LSE || g.Request.Exclusivity != place.CPULevel {
		free = t.Whole(machine.Core, free)
	}
	free = free.Minus(t.Machine().Isolated)
	split, opened, broken := 0, 0, 0
	for _, u := range t.Units(machine.Core) {
		if n := u.CPUs.Overlap(&g.Own); n > 0 && n < u.Size {
			split++
			if free.Contains(u.CPUs) {
				opened++
			}
		}
	}
	for _, u := range t.Units(machine.L3) {
		if n := u.CPUs.Overlap(&g.Own); n > 0 && n < u.Size && free.Contains(u.CPUs) {
			broken++
		}
	}
	left := free.Intersect(t.CPUsOf(nodes)).Len()
	switch r := &g.Request; {
	case r.Bind == place.SpreadByPCPUs: // the cores are to be split, and only one thread of each counts
		split, opened, broken, left = 0, 0, 0, 0
	case r.CoreKind != "" || r.Isolated != place.Unasked || !r.Nodes.IsEmpty(): // chosen from a part of what is free
		opened, broken, left = 0, 0, 0
	}
	return []int{nodes.Len(), far, int(short), repulsion, distance, t.Count(machine.L3, g.Own), split, opened, broken, left}
}

func BenchmarkPlace(b *testing.B) { placetest.Benchmark(b, berth.Policy{}, nil) }

func BenchmarkRestart(b *testing.B) { placetest.BenchmarkRestart(b, berth.Policy{}) }
