package koordinator_test

import (
	"math/rand/v2"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/koordinator"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, suite := range map[string]placetest.Suite{
		"default":   {Policy: koordinator.Policy{}},
		"packed":    {Policy: koordinator.Policy{Bind: place.SpreadByPCPUs, Strategy: place.MostAllocated, Amplification: 150}},
		"even":      {Policy: koordinator.Policy{Strategy: place.DistributeEvenly, ShareReserved: true}},
		"counted":   {Policy: koordinator.Policy{}, Config: counted},
		"no floor":  {Policy: koordinator.Policy{Amplification: 60}, Config: noFloor},
		"preferred": {Policy: koordinator.Policy{Bind: place.SpreadByPCPUs}, Request: preferring},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "counted" {
				suite.Own = own
			}
			placetest.Check(t, suite)
		})
	}
}

// own returns the CPUs that must be owned.
func own(r *place.Request) int {
	req := *r
	if bound := req.Class == place.LSE || req.Class == place.LSR; bound && req.Mode == place.Auto {
		req.Mode = place.Exclusive
	}
	n, _ := req.Split()
	return n
}

func counted(rng *rand.Rand, m *machine.Machine) place.Config {
	c := placetest.Config(rng, m)
	c.MaxRefs = 2 + rng.IntN(2)
	return c
}

func noFloor(rng *rand.Rand, m *machine.Machine) place.Config {
	c := placetest.Config(rng, m)
	c.NoFloor = true
	return c
}

func preferring(rng *rand.Rand, m *machine.Machine, id string) place.Request {
	r := placetest.Request(rng, m, id)
	if rng.IntN(2) == 0 {
		cpus := m.Online.Slice()
		r.Hints = map[string]string{koordinator.PreferredCPUs: m.Online.Minus(m.Isolated).String()}
		if rng.IntN(2) == 0 {
			r.Hints[koordinator.PreferredCPUs] = machineCPU(cpus[rng.IntN(len(cpus))])
		}
	}
	return r
}

func machineCPU(id int) string { return cpuset.MustOf(id).String() }

func BenchmarkPlace(b *testing.B) { placetest.Benchmark(b, koordinator.Policy{}, nil) }

// BenchmarkSettings is BenchmarkPlace with other settings.
func BenchmarkSettings(b *testing.B) {
	few := func(rng *rand.Rand, i int) place.Request {
		r := placetest.Mix(rng, i)
		r.MaxNodes = 2
		return r
	}
	for _, set := range []struct {
		name    string
		policy  koordinator.Policy
		request func(*rand.Rand, int) place.Request
	}{
		{"DistributeEvenly", koordinator.Policy{Strategy: place.DistributeEvenly}, nil},
		{"SpreadByPCPUs", koordinator.Policy{Bind: place.SpreadByPCPUs}, nil},
		{"MaxNodes", koordinator.Policy{}, few},
	} {
		b.Run(set.name, func(b *testing.B) { placetest.Benchmark(b, set.policy, set.request) })
	}
}

func BenchmarkRestart(b *testing.B) { placetest.BenchmarkRestart(b, koordinator.Policy{}) }

// BenchmarkBind measures the ways to bind on a half full machine of 256 CPUs and
// 8 NUMA nodes.
func BenchmarkBind(b *testing.B) {
	for name, r := range map[string]place.Request{
		"FullPCPUs":        {Class: place.LSR, Milli: 8000},
		"SpreadByPCPUs":    {Class: place.LSR, Milli: 8000, Bind: place.SpreadByPCPUs},
		"DistributeEvenly": {Class: place.LSR, Milli: 16000, Strategy: place.DistributeEvenly},
		"PCPULevel":        {Class: place.LSR, Milli: 8000, Bind: place.SpreadByPCPUs, Exclusivity: place.PCPULevel},
		"MaxNodes":         {Class: place.LSR, Milli: 40000, MaxNodes: 4},
		"scattered":        {Class: place.LSR, Milli: 90000, Bind: place.SpreadByPCPUs},
	} {
		b.Run(name, func(b *testing.B) {
			s, err := place.New(placetest.Topology(b, "2s4n4l4c2t"), place.Config{})
			if err != nil {
				b.Fatal(err)
			}
			p := koordinator.Policy{}
			for i := range 40 {
				held := place.Request{ID: string(rune('A' + i)), Class: place.LSR, Milli: 3000, Bind: place.SpreadByPCPUs}
				o, err := place.Place(p, s, &held)
				if err == nil {
					s, err = s.Commit(o)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			r.ID = "new"
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Place(s, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
