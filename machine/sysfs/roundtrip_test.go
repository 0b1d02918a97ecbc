package sysfs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// testMachines reads testdata/machines.yaml: lscpu tables of many layouts.
func testMachines(t *testing.T) map[string]*machine.Machine {
	t.Helper()
	data, err := os.ReadFile("testdata/machines.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Machines map[string]struct {
			About     string  `json:"about"`
			CPUs      string  `json:"cpus"`
			Distances [][]int `json:"distances"`
		} `json:"machines"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		t.Fatal(err)
	}
	machines := map[string]*machine.Machine{}
	for name, m := range file.Machines {
		read, err := Lscpu(m.CPUs)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		read.Name, read.Distances = name, m.Distances
		machines[name] = read
	}
	return machines
}

// roundTrip checks that writing m and reading it back changes nothing.
func roundTrip(t *testing.T, m *machine.Machine) {
	t.Helper()
	tree, err := fakekernel.Sysfs(m)
	if err != nil {
		t.Fatalf("write: %v", err)
	}
	files := map[string]string{} // a MapFS looks at every file to list one directory
	for name, file := range tree {
		files[name] = string(file.Data)
	}
	memory, err := inMemory(files)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Read(memory)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	if diff := cmp.Diff(m, back); diff != "" {
		t.Errorf("Read(Sysfs(m)) is not m (-m +back):\n%s", diff)
	}
}

func TestMachinesLoad(t *testing.T) {
	t.Parallel()
	machines := testMachines(t)
	if len(machines) < 40 {
		t.Errorf("%d machines, want at least 40", len(machines))
	}
	for name, m := range machines {
		if err := m.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		roundTrip(t, m)
	}
}

func TestMachinesHaveTheirShape(t *testing.T) {
	t.Parallel()
	machines := testMachines(t)
	for _, c := range []struct {
		name                            string
		cpus, sockets, nodes, l3, cores int
	}{
		{"HT8", 8, 1, 1, 1, 4},
		{"KNL288", 288, 4, 4, 4, 72},
		{"MN80i", 80, 2, 4, 2, 40},
		{"MN256", 256, 2, 8, 2, 128},
		{"U16D", 16, 2, 1, 4, 16},
		{"U16M", 16, 1, 2, 4, 16},
		{"UD384", 384, 2, 2, 24, 192},
		{"HY24", 24, 1, 1, 1, 16},
		{"N8", 8, 2, 8, 2, 8},
		{"T-2-2-4-2", 32, 2, 4, 2, 16},
	} {
		m := machines[c.name]
		if m == nil {
			t.Errorf("%s is missing", c.name)
			continue
		}
		got := []int{m.Online.Len()}
		for _, k := range []machine.Kind{machine.Socket, machine.Node, machine.L3, machine.Core} {
			got = append(got, len(m.ByKind(k)))
		}
		if diff := cmp.Diff([]int{c.cpus, c.sockets, c.nodes, c.l3, c.cores}, got); diff != "" {
			t.Errorf("%s: CPUs, sockets, nodes, L3, cores (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestShortFormsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, form := range []string{
		"1c", "1c1t", "2s4n16c2t", "1s8n32c2t", "2n2s8c", "1n2s8c", "2s2d4l3c4t", "2s8l8c2t", "2l2n4c", "700c", "4s1d2n1l4c1t",
	} {
		m, err := machine.Short(form)
		if err != nil {
			t.Fatal(err)
		}
		roundTrip(t, m)
	}
}

func TestRandomMachinesRoundTrip(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		m := randomMachine(rand.New(rand.NewPCG(seed, 7)))
		if err := m.Validate(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { roundTrip(t, m) })
	}
}

// randomMachine draws a machine that obeys Validate and nothing else: domains
// of cores that need not nest, gaps in every numbering, kinds and sizes left out.
func randomMachine(rng *rand.Rand) *machine.Machine {
	m := &machine.Machine{}
	if rng.IntN(2) == 0 {
		m.Name, m.Model, m.SMT = "host-7", "Some CPU @ 2.4 GHz", "on"
	}
	var cores []cpuset.Set
	next := 0
	for range rng.IntN(12) + 1 {
		var core cpuset.Set
		for range rng.IntN(3) + 1 {
			next += rng.IntN(3) * rng.IntN(2)
			core, _ = core.With(next)
			next++
		}
		cores = append(cores, core)
		m.Online = m.Online.Union(core)
	}
	gaps := cpuset.MustOf()
	all, _ := cpuset.Range(0, next)
	for id := range all.Minus(m.Online).All() {
		if rng.IntN(2) == 0 {
			gaps, _ = gaps.With(id)
		}
	}
	m.Offline = gaps
	for id := range all.All() {
		if rng.IntN(5) == 0 && (m.Online.Has(id) || m.Offline.Has(id)) {
			m.Isolated, _ = m.Isolated.With(id)
		}
	}
	randomCPUs(m, rng)
	sockets := randomUnions(rng, cores, false)
	add(m, rng, machine.Socket, sockets)
	add(m, rng, machine.Die, splitUnions(rng, sockets, cores))
	randomNodes(m, rng, cores)
	add(m, rng, machine.L3, randomUnions(rng, cores, true))
	add(m, rng, machine.L2, randomUnions(rng, cores, true))
	add(m, rng, machine.Core, cores)
	return m
}

func randomCPUs(m *machine.Machine, rng *rand.Rand) {
	hybrid, speeds := rng.IntN(3) == 0, rng.IntN(2) == 0
	for id := range m.Online.All() {
		c := machine.CPU{ID: id}
		if hybrid {
			c.Kind = []string{"", machine.KindP, machine.KindE, machine.KindLP}[rng.IntN(4)]
			c.Capacity = rng.IntN(1025)
		}
		if speeds {
			c.BaseKHz, c.MaxKHz = rng.IntN(3)*1000000, rng.IntN(5)*1000000
		}
		m.CPUs = append(m.CPUs, c)
	}
}

// randomUnions deals the parts into a few sets; some into none if partial.
func randomUnions(rng *rand.Rand, parts []cpuset.Set, partial bool) []cpuset.Set {
	n := rng.IntN(4) + 1
	sets := make([]cpuset.Set, n+1)
	for _, p := range parts {
		at := rng.IntN(n)
		if partial && rng.IntN(8) == 0 {
			at = n
		}
		sets[at] = sets[at].Union(p)
	}
	return slices.DeleteFunc(sets[:n], cpuset.Set.IsEmpty)
}

// splitUnions splits each whole into unions of the parts inside it.
func splitUnions(rng *rand.Rand, wholes, parts []cpuset.Set) []cpuset.Set {
	var out []cpuset.Set
	for _, whole := range wholes {
		var inside []cpuset.Set
		for _, p := range parts {
			if whole.Contains(p) {
				inside = append(inside, p)
			}
		}
		out = append(out, randomUnions(rng, inside, false)...)
	}
	return out
}

func add(m *machine.Machine, rng *rand.Rand, k machine.Kind, sets []cpuset.Set) {
	if rng.IntN(6) == 0 {
		return
	}
	var domains []machine.Domain
	for _, s := range sets {
		d := machine.Domain{Kind: k, CPUs: s, KernelID: rng.IntN(100) - 1}
		if k == machine.L2 || k == machine.L3 {
			d.Bytes = int64(rng.IntN(3)) << 20
		}
		domains = append(domains, d)
	}
	number(domains)
	m.Domains = append(m.Domains, domains...)
}

func randomNodes(m *machine.Machine, rng *rand.Rand, cores []cpuset.Set) {
	if rng.IntN(6) == 0 {
		return
	}
	sets := randomUnions(rng, cores, false)
	for range rng.IntN(2) {
		sets = append(sets, cpuset.Set{}) // memory only
	}
	id := 0
	for _, s := range sets {
		id += rng.IntN(2) * rng.IntN(5)
		m.Domains = append(m.Domains, machine.Domain{
			Kind: machine.Node, ID: id, CPUs: s, KernelID: id, Bytes: int64(rng.IntN(1<<20)) * 1024,
		})
		id++
	}
	if rng.IntN(3) == 0 {
		return
	}
	for range sets {
		row := make([]int, len(sets))
		for i := range row {
			row[i] = rng.IntN(246) + 10
		}
		m.Distances = append(m.Distances, row)
	}
}
