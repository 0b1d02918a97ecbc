package place_test

import (
	"math/rand/v2"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

func TestTopologyAgreesWithMachine(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		m := placetest.Machine(rand.New(rand.NewPCG(seed, 9)), 64)
		topo, err := place.NewTopology(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range machine.Kinds() {
			units := topo.Units(k)
			for cpu := range m.Online.All() {
				d, ok := m.Of(k, cpu)
				pos := topo.At(k, cpu)
				if ok != (pos >= 0) || ok && (units[pos].ID != d.ID || units[pos].CPUs != d.CPUs || units[pos].Size != d.CPUs.Len()) {
					t.Fatalf("seed %d: CPU %d is in %s, the index says %d", seed, cpu, d, pos)
				}
			}
			for pos := range units {
				var cpus cpuset.Set
				for _, core := range topo.Cores(k, pos) {
					cpus = cpus.Union(topo.Units(machine.Core)[core].CPUs)
					if topo.Of(k, int(core)) != pos {
						t.Fatalf("seed %d: core %d is not in %s", seed, core, topo.Label(k, pos))
					}
				}
				if cpus != units[pos].CPUs {
					t.Fatalf("seed %d: the cores of %s have %s", seed, topo.Label(k, pos), cpus)
				}
			}
		}
	}
}

func TestTopologyOfLittleKnowledge(t *testing.T) {
	t.Parallel()
	m := &machine.Machine{Online: cpuset.MustParse("2,5"), CPUs: []machine.CPU{{ID: 2}, {ID: 5}}}
	topo, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range map[machine.Kind]int{machine.Socket: 1, machine.Die: 0, machine.Node: 1, machine.L3: 0, machine.L2: 0, machine.Core: 2, place.CPU: 2} {
		if got := len(topo.Units(k)); got != want {
			t.Errorf("%d units of kind %d, want %d", got, k, want)
		}
	}
	if topo.At(machine.L3, 2) != -1 || topo.At(machine.Core, 3) != -1 || topo.At(machine.Core, 99) != -1 || topo.At(machine.Core, -1) != -1 {
		t.Error("a domain where there is none")
	}
	for name, bad := range map[string]*machine.Machine{
		"no CPUs":   {},
		"nonsense":  {Online: cpuset.MustParse("1")},
		"two homes": {Online: cpuset.MustParse("1"), CPUs: []machine.CPU{{ID: 1}}, Domains: []machine.Domain{{Kind: machine.Core, CPUs: cpuset.MustParse("1,2")}}},
	} {
		if _, err := place.NewTopology(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSetsOfDomains(t *testing.T) {
	t.Parallel()
	topo := placetest.Topology(t, "2s2n4c2t") // cores {0,16}, {1,17}, ...; node 0 has cores 0-3
	for name, got := range map[string]struct{ is, want string }{
		"touched":       {topo.Touched(machine.Core, cpuset.MustParse("0,17")).String(), "0-1,16-17"},
		"whole":         {topo.Whole(machine.Core, cpuset.MustParse("0-2,16,18")).String(), "0,2,16,18"},
		"first threads": {topo.FirstThreads(cpuset.MustParse("0,16-18")).String(), "0,17-18"},
		"nodes":         {topo.NodesOf(cpuset.MustParse("3,31")).String(), "0,3"},
		"nearest":       {topo.Nearest(cpuset.MustParse("0,3"), cpuset.MustParse("8")).String(), "3"},
		"equally near":  {topo.Nearest(cpuset.MustParse("0-1"), cpuset.MustParse("8")).String(), "0-1"},
		"near to two":   {topo.Nearest(cpuset.MustParse("0-2"), cpuset.MustParse("0,8")).String(), "0,2"},
		"near to none":  {topo.Nearest(cpuset.MustParse("1,9"), cpuset.Set{}).String(), "1,9"},
		"CPUs of nodes": {topo.CPUsOf(cpuset.MustParse("1,9")).String(), "4-7,20-23"},
	} {
		if got.is != got.want {
			t.Errorf("%s: %s, want %s", name, got.is, got.want)
		}
	}
	if n := topo.Count(machine.Socket, cpuset.MustParse("0,31")); n != 2 {
		t.Errorf("%d sockets", n)
	}
}
