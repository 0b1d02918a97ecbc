package machine

import (
	"strings"
	"testing"

	"berth.dev/berth/cpuset"

	"github.com/google/go-cmp/cmp"
)

func TestUnusual(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, form string
		change     func(*Machine)
		want       []string // "code: text"
	}{
		{"plain", "2s4c2t", nil, nil},
		{"offline", "2c", func(m *Machine) { m.Offline = cpuset.MustOf(2) }, []string{"offline: offline: CPU 2"}},
		{"isolated", "4c", func(m *Machine) { m.Isolated = cpuset.MustOf(2, 3) },
			[]string{"isolated: isolated from the scheduler's balancing: CPUs 2-3"}},
		{"gaps", "2c", func(m *Machine) { m.Offline = cpuset.MustOf(8) },
			[]string{"offline: offline: CPU 8", "cpu-gaps: CPU numbers have gaps: 2-7 do not exist"}},
		{"SMT off", "2c", func(m *Machine) { m.SMT = "off" }, []string{"smt-off: SMT is switched off (smt/control is off)"}},
		{"SMT uneven", "2c2t", func(m *Machine) {
			m.Online, m.Offline, m.CPUs = cpuset.MustParse("0-2"), cpuset.MustOf(3), m.CPUs[:3]
			for i := range m.Domains {
				m.Domains[i].CPUs = m.Domains[i].CPUs.Intersect(m.Online)
			}
		}, []string{"offline: offline: CPU 3", "smt-uneven: cores differ in threads: 1 thread per core on CPU 1; 2 threads per core on CPUs 0,2"}},
		{"hybrid", "4c", func(m *Machine) {
			for i := range m.CPUs {
				m.CPUs[i].Kind = []string{KindP, KindE}[i/2]
			}
		}, []string{"hybrid: hybrid cores: P on CPUs 0-1; E on CPUs 2-3"}},
		{"capacity", "2c", func(m *Machine) { m.CPUs[0].Capacity, m.CPUs[1].Capacity = 1024, 446 },
			[]string{"hybrid: cores differ in capacity: 1024 on CPU 0; 446 on CPU 1"}},
		{"frequency", "2c", func(m *Machine) { m.CPUs[0].MaxKHz, m.CPUs[1].MaxKHz = 5700000, 5500000 },
			[]string{"max-frequency: maximum frequencies differ: 5.70 GHz on CPU 0; 5.50 GHz on CPU 1"}},
		{"dies", "2s2d2c", nil, []string{"several-dies: sockets 0-1 have 2 dies each"}},
		{"nodes per socket", "2n2c", nil, []string{
			"several-nodes-per-socket: socket 0 has 2 NUMA nodes (sub-NUMA clustering, NPS)", "l3-spans-nodes: L3 cache 0 spans 2 NUMA nodes"}},
		{"node across sockets", "1n2s2c", nil, []string{
			"node-spans-sockets: NUMA node 0 spans 2 sockets", "several-l3-per-node: NUMA node 0 has 2 L3 caches"}},
		{"several L3", "2s2l2c", nil, []string{"several-l3-per-node: NUMA nodes 0-1 have 2 L3 caches each"}},
		{"L3 per core", "2l1c", nil, []string{
			"several-l3-per-node: NUMA node 0 has 2 L3 caches",
			"l3-per-core: every core has an L3 of its own: rare in hardware, common where a hypervisor hides what is shared"}},
		{"implausible L3", "2c", func(m *Machine) { m.Domains[3].Bytes = 260 << 20 }, []string{
			"l3-implausible: L3 cache 0 has 260 MiB for 2 cores: probably the size of a hypervisor's host, shared with other guests"}},
		{"large but plausible L3", "2c", func(m *Machine) { m.Domains[3].Bytes = 128 << 20 }, nil},
		{"memory-only node", "2s2c", func(m *Machine) {
			m.Domains[4].Bytes, m.Domains[5].Bytes = 1<<30, 1<<30
			m.Domains = append(m.Domains[:6:6], append([]Domain{{Kind: Node, ID: 3, KernelID: 3, Bytes: 4 << 30}}, m.Domains[6:]...)...)
			m.Distances = nil
		}, []string{"node-gaps: NUMA node numbers have gaps: 2 do not exist", "memory-only-node: NUMA node 3 has no CPUs (4 GiB of memory only)"}},
		{"memoryless node", "2s2c", func(m *Machine) { m.Domains[4].Bytes = 1 << 30 },
			[]string{"node-without-memory: NUMA node 1 has CPUs but no memory"}},
		{"uneven nodes", "2s2c", func(m *Machine) {
			for _, i := range []int{0, 2, 4, 6} {
				m.Domains[i].CPUs, m.Domains[i+1].CPUs = cpuset.MustParse("0-2"), cpuset.MustOf(3)
			}
		}, []string{"uneven-nodes: NUMA nodes differ in size: 1 CPU to 3 CPUs"}},
		{"distances", "2s2c", func(m *Machine) { m.Distances = [][]int{{10, 20}, {30, 11}} }, []string{
			"distance-asymmetric: distance from NUMA node 0 to NUMA node 1 is 20, back 30",
			"distance-local: NUMA node 1 is at distance 11 from itself, not 10"}},
		{"untold", "2c", func(m *Machine) { m.Domains, m.Distances = m.Domains[:1], nil },
			[]string{"untold: the source says nothing about: dies, NUMA nodes, L3 caches, L2 caches, cores"}},
		{"no L3 for some", "2s2c", func(m *Machine) { m.Domains = append(m.Domains[:7:7], m.Domains[8:]...) }, []string{"no-l3: no L3: CPUs 2-3"}},
		{"crossing", "2s4c", func(m *Machine) {
			m.Domains[6].CPUs, m.Domains[7].CPUs = cpuset.MustParse("0-1,4-5"), cpuset.MustParse("2-3,6-7")
		}, []string{
			"crossing: L3 caches and sockets cross: L3 cache 0 has CPUs 0-1,4-5, socket 0 has 0-3",
			"crossing: L3 caches and dies cross: L3 cache 0 has CPUs 0-1,4-5, die 0 has 0-3",
			"crossing: L3 caches and NUMA nodes cross: L3 cache 0 has CPUs 0-1,4-5, NUMA node 0 has 0-3"}},
		{"contradiction", "2s2c", func(m *Machine) { m.Domains[4].CPUs = m.Online }, []string{
			"inconsistent: inconsistent: node 1: CPUs 2-3 are in another node too",
			"node-spans-sockets: NUMA node 0 spans 2 sockets", "uneven-nodes: NUMA nodes differ in size: 2 CPUs to 4 CPUs",
			"several-l3-per-node: NUMA node 0 has 2 L3 caches"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := short(t, c.form)
			if c.change != nil {
				c.change(m)
			}
			var got []string
			for _, n := range Unusual(m) {
				got = append(got, n.Code+": "+n.Text)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnusualSurvivesNonsense: a machine that breaks every rule is described,
// not a panic.
func TestUnusualSurvivesNonsense(t *testing.T) {
	t.Parallel()
	m := &Machine{
		CPUs:      []CPU{{ID: -5}, {ID: 99999}},
		Domains:   []Domain{{Kind: 44, ID: -1}, {Kind: Node, ID: 1 << 40}, {Kind: Core}, {Kind: L3, Bytes: -1}},
		Distances: [][]int{{}, {1, 2, 3}},
	}
	notes := Unusual(m)
	if len(notes) == 0 || !strings.HasPrefix(notes[0].Text, "inconsistent: online: no CPU") {
		t.Errorf("notes: %v", notes)
	}
}
