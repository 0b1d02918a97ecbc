package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"

	"github.com/google/go-cmp/cmp"
)

// host is a tree by path, each value one file's text. Paths below
// sys/devices/system are written without that prefix.
type host map[string]string

func (h host) fs() fs.FS {
	tree := fstest.MapFS{}
	for name, text := range h {
		if !strings.HasPrefix(name, "sys/") && !strings.HasPrefix(name, "proc/") {
			name = "sys/devices/system/" + name
		}
		tree[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return tree
}

// topology adds a CPU with the file names of current kernels.
func (h host) topology(cpu int, core, die, socket string) {
	dir := fmt.Sprintf("cpu/cpu%d/topology/", cpu)
	h[dir+"core_cpus_list"], h[dir+"die_cpus_list"], h[dir+"package_cpus_list"] = core, die, socket
	h[dir+"core_id"], h[dir+"die_id"], h[dir+"physical_package_id"] = "0", "0", "0"
}

func (h host) cache(cpu, index, level int, class, size, shared string) {
	dir := fmt.Sprintf("cpu/cpu%d/cache/index%d/", cpu, index)
	h[dir+"level"], h[dir+"type"], h[dir+"size"], h[dir+"shared_cpu_list"], h[dir+"id"] =
		fmt.Sprint(level), class, size, shared, fmt.Sprint(cpu)
}

func (h host) node(id int, cpus, memKB, distance string) {
	dir := fmt.Sprintf("node/node%d/", id)
	h[dir+"cpulist"], h[dir+"distance"] = cpus, distance
	h[dir+"meminfo"] = fmt.Sprintf("Node %d MemTotal:       %s kB\nNode %d MemFree:        12 kB", id, memKB, id)
}

// sets shows the domains of one kind as lists.
func sets(m *machine.Machine, k machine.Kind) string {
	var parts []string
	for _, d := range m.ByKind(k) {
		parts = append(parts, fmt.Sprintf("%d:%s", d.ID, d.CPUs))
	}
	return strings.Join(parts, " ")
}

func mustRead(t *testing.T, h host) *machine.Machine {
	t.Helper()
	m, err := Read(h.fs())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func check(t *testing.T, m *machine.Machine, want map[machine.Kind]string) {
	t.Helper()
	got := map[machine.Kind]string{}
	for k := range want {
		got[k] = sets(m, k)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("domains (-want +got):\n%s", diff)
	}
	if err := m.Validate(); err != nil {
		t.Errorf("validate: %v", err)
	}
}

// twoCores is one socket with two single-thread cores and one L3.
func twoCores() host {
	h := host{"cpu/online": "0-1", "cpu/present": "0-1", "cpu/isolated": ""}
	for cpu := range 2 {
		h.topology(cpu, fmt.Sprint(cpu), "0-1", "0-1")
		h.cache(cpu, 0, 1, "Data", "48K", fmt.Sprint(cpu))
		h.cache(cpu, 1, 1, "Instruction", "32K", fmt.Sprint(cpu))
		h.cache(cpu, 2, 2, "Unified", "2048K", fmt.Sprint(cpu))
		h.cache(cpu, 3, 3, "Unified", "266240K", "0-1")
	}
	h.node(0, "0-1", "4810964", "10")
	return h
}

func TestReadWhole(t *testing.T) {
	t.Parallel()
	h := twoCores()
	h["proc/cpuinfo"] = "processor\t: 0\nmodel name\t: Some Processor @ 2.30GHz\n\nprocessor\t: 1\nmodel name\t: other"
	h["proc/sys/kernel/hostname"] = "api-7"
	h["cpu/smt/control"] = "notsupported"
	h["cpu/cpu0/cpu_capacity"] = "1024"
	h["cpu/cpu0/cpufreq/base_frequency"] = "2300000"
	h["cpu/cpu1/cpufreq/cpuinfo_max_freq"] = "3800000"
	h["cpu/cpu1/acpi_cppc/nominal_freq"] = "2400"
	both := cpuset.MustParse("0-1")
	cpu0, cpu1 := cpuset.MustOf(0), cpuset.MustOf(1)
	want := &machine.Machine{
		Name: "api-7", Model: "Some Processor @ 2.30GHz", Online: both, SMT: "notsupported",
		CPUs: []machine.CPU{{ID: 0, Capacity: 1024, BaseKHz: 2300000}, {ID: 1, BaseKHz: 2400000, MaxKHz: 3800000}},
		Domains: []machine.Domain{
			{Kind: machine.Socket, CPUs: both},
			{Kind: machine.Die, CPUs: both},
			{Kind: machine.Node, CPUs: both, Bytes: 4810964 * 1024},
			{Kind: machine.L3, CPUs: both, Bytes: 260 << 20},
			{Kind: machine.L2, ID: 0, CPUs: cpu0, Bytes: 2 << 20},
			{Kind: machine.L2, ID: 1, CPUs: cpu1, Bytes: 2 << 20, KernelID: 1},
			{Kind: machine.Core, ID: 0, CPUs: cpu0},
			{Kind: machine.Core, ID: 1, CPUs: cpu1},
		},
		Distances: [][]int{{10}},
	}
	m := mustRead(t, h)
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("machine (-want +got):\n%s", diff)
	}
	roundTrip(t, m)
}

func TestReadOldKernel(t *testing.T) {
	t.Parallel()
	h := host{"cpu/online": "0-3", "cpu/present": "0-3"}
	for cpu, lists := range []string{"0,2", "1,3", "0,2", "1,3"} {
		dir := fmt.Sprintf("cpu/cpu%d/topology/", cpu)
		h[dir+"thread_siblings_list"], h[dir+"core_siblings_list"] = lists, "0-3"
		h[dir+"core_id"], h[dir+"physical_package_id"] = fmt.Sprint(cpu%2), "-1"
	}
	m := mustRead(t, h)
	check(t, m, map[machine.Kind]string{
		machine.Socket: "0:0-3", machine.Die: "", machine.Node: "", machine.L3: "", machine.L2: "", machine.Core: "0:0,2 1:1,3",
	})
	if got := m.ByKind(machine.Socket)[0].KernelID; got != -1 {
		t.Errorf("socket's kernel id %d, want -1", got)
	}
	roundTrip(t, m)
}

func TestReadHybrid(t *testing.T) {
	t.Parallel()
	h := host{"cpu/online": "0-8", "cpu/present": "0-8", "sys/devices/cpu_core/cpus": "0-3", "sys/devices/cpu_atom/cpus": "4-7",
		"sys/devices/cpu_lowpower/cpus": "8"}
	for cpu := range 9 {
		core, l2 := fmt.Sprint(cpu), "4-7"
		if cpu < 4 {
			core = fmt.Sprintf("%d-%d", cpu&^1, cpu|1)
			l2 = core
		}
		if cpu == 8 {
			l2 = "8"
		}
		h.topology(cpu, core, "0-8", "0-8")
		h.cache(cpu, 2, 2, "Unified", "4096K", l2)
		if cpu < 8 { // the low-power core has no L3
			h.cache(cpu, 3, 3, "Unified", "24576K", "0-7")
		}
		h[fmt.Sprintf("cpu/cpu%d/cpu_capacity", cpu)] = []string{"1024", "600"}[cpu/4&1]
	}
	m := mustRead(t, h)
	check(t, m, map[machine.Kind]string{
		machine.L3: "0:0-7", machine.L2: "0:0-1 1:2-3 2:4-7 3:8", machine.Core: "0:0-1 1:2-3 2:4 3:5 4:6 5:7 6:8",
	})
	kinds := ""
	for _, c := range m.CPUs {
		kinds += c.Kind + " "
	}
	if kinds != "P P P P E E E E LP " {
		t.Errorf("kinds %q", kinds)
	}
	if c := m.CPUs[5]; c.Capacity != 600 {
		t.Errorf("CPU 5: %+v", c)
	}
	roundTrip(t, m)
}

func TestReadOfflineAndGaps(t *testing.T) {
	t.Parallel()
	// CPUs 1 and 5 are offline, 2 and 3 do not exist; nothing tells of possible slots.
	h := host{"cpu/online": "0,4,70", "cpu/present": "0-1,4-5,70", "cpu/offline": "1,5,71-255", "cpu/isolated": "4-5,200"}
	for _, cpu := range []int{0, 4, 70} {
		h.topology(cpu, fmt.Sprint(cpu), "0,4,70", "0,4,70")
	}
	h["cpu/cpu1/online"] = "0"
	h.node(1, "0,4", "1024", "10 21")
	h.node(3, "70", "2048", "21 10")
	m := mustRead(t, h)
	check(t, m, map[machine.Kind]string{
		machine.Core: "0:0 1:4 2:70", machine.Node: "1:0,4 3:70", machine.Socket: "0:0,4,70",
	})
	got := fmt.Sprint(m.Online, " ", m.Offline, " ", m.Isolated)
	if want := "0,4,70 1,5 4-5"; got != want {
		t.Errorf("online, offline, isolated %q, want %q", got, want)
	}
	if d, ok := m.Distance(3, 1); !ok || d != 21 {
		t.Errorf("distance from 3 to 1: %d, %v", d, ok)
	}
	roundTrip(t, m)
}

func TestReadMemoryOnlyNode(t *testing.T) {
	t.Parallel()
	h := twoCores()
	h.node(0, "0-1", "4096", "10 17")
	h.node(2, "", "8192", "28 10")
	m := mustRead(t, h)
	check(t, m, map[machine.Kind]string{machine.Node: "0:0-1 2:"})
	if n := m.ByKind(machine.Node)[1]; n.Bytes != 8<<20 {
		t.Errorf("node 2 has %d bytes", n.Bytes)
	}
	roundTrip(t, m)
}

func TestReadNesting(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name               string
		sockets, nodes, l3 []string // by CPU 0-7 in pairs
		want               map[machine.Kind]string
	}{
		{"several L3 in a node", []string{"0-7", "0-7", "0-7", "0-7"}, []string{"0-7"}, []string{"0-3", "0-3", "4-7", "4-7"},
			map[machine.Kind]string{machine.Socket: "0:0-7", machine.Node: "0:0-7", machine.L3: "0:0-3 1:4-7"}},
		{"node inside socket", []string{"0-7", "0-7", "0-7", "0-7"}, []string{"0-3", "4-7"}, []string{"0-7", "0-7", "0-7", "0-7"},
			map[machine.Kind]string{machine.Socket: "0:0-7", machine.Node: "0:0-3 1:4-7", machine.L3: "0:0-7"}},
		{"socket inside node", []string{"0-3", "0-3", "4-7", "4-7"}, []string{"0-7"}, []string{"0-3", "0-3", "4-7", "4-7"},
			map[machine.Kind]string{machine.Socket: "0:0-3 1:4-7", machine.Node: "0:0-7", machine.L3: "0:0-3 1:4-7"}},
		{"node across sockets", []string{"0-3", "0-3", "4-7", "4-7"}, []string{"0-1,4-5", "2-3,6-7"}, []string{"0-1", "2-3", "4-5", "6-7"},
			map[machine.Kind]string{machine.Socket: "0:0-3 1:4-7", machine.Node: "0:0-1,4-5 1:2-3,6-7", machine.L3: "0:0-1 1:2-3 2:4-5 3:6-7"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := host{"cpu/online": "0-7", "cpu/present": "0-7"}
			for cpu := range 8 {
				h.topology(cpu, fmt.Sprint(cpu), c.sockets[cpu/2], c.sockets[cpu/2])
				h.cache(cpu, 0, 3, "Unified", "1024K", c.l3[cpu/2])
			}
			for id, cpus := range c.nodes {
				h.node(id, cpus, "1024", strings.TrimSpace(strings.Repeat("10 ", len(c.nodes))))
			}
			m := mustRead(t, h)
			check(t, m, c.want)
			roundTrip(t, m)
		})
	}
}

func TestReadLargeMachine(t *testing.T) {
	t.Parallel()
	want, err := machine.Short("2s4n4l8c2t") // 512 CPUs, 8 nodes
	if err != nil {
		t.Fatal(err)
	}
	tree, err := fakekernel.Sysfs(want)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Read(tree)
	if err != nil {
		t.Fatal(err)
	}
	if m.Online.Len() != 512 || len(m.ByKind(machine.Node)) != 8 || len(m.ByKind(machine.L3)) != 32 {
		t.Errorf("%d CPUs, %d nodes, %d L3", m.Online.Len(), len(m.ByKind(machine.Node)), len(m.ByKind(machine.L3)))
	}
	if d, ok := m.Of(machine.L3, 511); !ok || d.CPUs.String() != "248-255,504-511" {
		t.Errorf("L3 of CPU 511: %v, %v", d.CPUs, ok)
	}
}

// TestReadContradictions: well-formed lists that contradict each other are
// read as they are, and Validate reports them.
func TestReadContradictions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		edit host
		want string
	}{
		{"a one-sided list", host{"cpu/cpu0/topology/core_cpus_list": "0-1"}, "CPUs 1 are in another core too"},
		{"numa=fake=2", host{"node/node1/cpulist": "0-1", "node/node1/distance": "10 10", "node/node0/distance": "10 10"},
			"node 1: CPUs 0-1 are in another node too"},
		{"a CPU in no node", host{"node/node0/cpulist": "0"}, "node: CPUs 1 are in none"},
		{"one CPU without topology", host{"cpu/cpu1/topology/core_cpus_list": "-"}, "core: CPUs 1 are in none"},
		{"a core across caches", host{"cpu/cpu0/topology/core_cpus_list": "0-1", "cpu/cpu1/topology/core_cpus_list": "0-1"},
			"core 0 (CPUs 0-1): split between domains of kind l2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := twoCores()
			for name, text := range c.edit {
				if h[name] = text; text == "-" {
					delete(h, name)
				}
			}
			err := mustRead(t, h).Validate()
			if !errors.Is(err, machine.ErrInconsistent) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("validate: %v; want ErrInconsistent with %q", err, c.want)
			}
		})
	}
}

// TestReadRefuses: each malformed file is an error that names it.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ file, text, want string }{
		{"cpu/online", "", "no CPU is online"},
		{"cpu/online", "zero", "not a number"},
		{"cpu/online", "0-4096", "out of range"},
		{"cpu/present", "3-1", "runs backwards"},
		{"cpu/isolated", "(null)", "not a number"},
		{"cpu/cpu1/topology/core_cpus_list", "", "lacks CPU 1 itself"},
		{"cpu/cpu1/topology/core_cpus_list", "0", "lacks CPU 1 itself"},
		{"cpu/cpu1/topology/core_cpus_list", "1\n1", "not one line"},
		{"cpu/cpu0/topology/package_cpus_list", "0;1", "not a number"},
		{"cpu/cpu0/topology/physical_package_id", "first", "not a number"},
		{"cpu/cpu0/topology/physical_package_id", "-2", "is no id"},
		{"cpu/cpu0/topology/core_id", "99999999999999999999", "not a number"},
		{"cpu/cpu0/cache/index3/level", "", "not a number"},
		{"cpu/cpu0/cache/index3/size", "260M", "is not in K"},
		{"cpu/cpu0/cache/index3/size", "-1K", "not a size"},
		{"cpu/cpu0/cache/index3/size", "18014398509481984K", "not a size"},
		{"cpu/cpu0/cache/index3/id", "x", "not a number"},
		{"cpu/cpu0/cache/index3/shared_cpu_list", "1", "lacks CPU 0 itself"},
		{"cpu/cpu0/cpu_capacity", "-1", "out of range"},
		{"cpu/cpu0/cpufreq/base_frequency", "<unknown>", "not a number"},
		{"node/node0/cpulist", "0-", "a number is missing"},
		{"node/node0/meminfo", "MemTotal: 5 kB", "no line"},
		{"node/node0/meminfo", "Node 1 MemTotal: 5 kB", "no line"},
		{"node/node0/meminfo", "Node 0 MemTotal: five kB", "not a size"},
		{"node/node0/distance", "10 20", "2 distances for 1 nodes"},
		{"node/node0/distance", "", "0 distances for 1 nodes"},
		{"node/node0/distance", "256", "not a distance"},
		{"sys/devices/cpu_core/cpus", "P", "not a number"},
	} {
		t.Run(c.file+" "+c.text, func(t *testing.T) {
			t.Parallel()
			h := twoCores()
			h[c.file] = c.text
			_, err := Read(h.fs())
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.file) {
				t.Errorf("%v; want an error that names %s and says %q", err, c.file, c.want)
			}
		})
	}
}

func TestReadRefusesMissing(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"cpu/online", "cpu/cpu1/cache/index3/level", "cpu/cpu1/cache/index3/shared_cpu_list", "node/node0/cpulist"} {
		h := twoCores()
		delete(h, file)
		_, err := Read(h.fs())
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), file) {
			t.Errorf("without %s: %v; want ErrNotExist that names it", file, err)
		}
	}
	h := twoCores()
	h.node(1, "", "5", "20 10")
	h["node/node0/distance"] = "10 20"
	delete(h, "node/node1/distance")
	if _, err := Read(h.fs()); err == nil || !strings.Contains(err.Error(), "no distance file") {
		t.Errorf("without one distance file: %v", err)
	}
	h = twoCores()
	h["sys/devices/cpu_core/cpus"], h["sys/devices/cpu_atom/cpus"] = "0-1", "1"
	if _, err := Read(h.fs()); err == nil || !strings.Contains(err.Error(), "another core kind") {
		t.Errorf("a CPU of two core kinds: %v", err)
	}
	h = twoCores()
	h.cache(0, 4, 3, "Unified", "1024K", "0")
	if _, err := Read(h.fs()); err == nil || !strings.Contains(err.Error(), "another l3") {
		t.Errorf("a CPU with two L3: %v", err)
	}
}

// TestReadUnreadable: a file that is there but cannot be read is an error.
func TestReadUnreadable(t *testing.T) {
	t.Parallel()
	tree := twoCores().fs().(fstest.MapFS)
	tree["sys/devices/system/cpu/cpu0/cpu_capacity"] = &fstest.MapFile{Mode: fs.ModeDir}
	if _, err := Read(tree); err == nil || !strings.Contains(err.Error(), "cpu0/cpu_capacity") {
		t.Errorf("%v; want an error that names cpu0/cpu_capacity", err)
	}
}

// TestReadUntold: firmware whose _CPC contradicts itself makes reading nominal_freq fail, and the
// machine is read without it.
func TestReadUntold(t *testing.T) {
	t.Parallel()
	h := twoCores()
	for cpu := range 2 {
		h[fmt.Sprintf("cpu/cpu%d/acpi_cppc/nominal_freq", cpu)] = "2400"
	}
	m, err := Read(fakekernel.Refusing{FS: h.fs(), Name: "sys/devices/system/cpu/cpu0/acpi_cppc/nominal_freq", Err: syscall.EFAULT})
	if err != nil {
		t.Fatal(err)
	}
	if m.CPUs[0].BaseKHz != 0 || m.CPUs[1].BaseKHz != 2400000 {
		t.Errorf("base frequencies %d and %d kHz, want 0 and 2400000", m.CPUs[0].BaseKHz, m.CPUs[1].BaseKHz)
	}
	h["cpu/cpu0/acpi_cppc/nominal_freq"] = "fast"
	if _, err := Read(h.fs()); err == nil || !strings.Contains(err.Error(), "cpu0/acpi_cppc/nominal_freq") {
		t.Errorf("no number: %v; want an error that names cpu0/acpi_cppc/nominal_freq", err)
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	got, err := Allowed(host{"proc/self/status": "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\nMems_allowed:\t1"}.fs())
	if err != nil || got != cpuset.MustParse("0-7") {
		t.Errorf("%v, %v; want 0-7", got, err)
	}
	for _, text := range []string{"Name:\tx", "Cpus_allowed_list:\tall"} {
		if _, err := Allowed(host{"proc/self/status": text}.fs()); err == nil || !strings.Contains(err.Error(), "proc/self/status") {
			t.Errorf("%q: %v; want an error that names the file", text, err)
		}
	}
	if _, err := Allowed(host{}.fs()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v; want ErrNotExist", err)
	}
}

func TestLive(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/" + cpuDir + "/online"); err != nil {
		t.Skipf("no /%s/online: not Linux, or /sys is not mounted", cpuDir)
	}
	m, err := Live("/")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Validate(); err != nil {
		t.Skipf("this machine contradicts itself: %v", err)
	}
	roundTrip(t, m)
}

// FuzzRead changes one file of a tree: whatever it says, the result is an
// error that names a file or a machine of good form that round-trips if it is
// consistent.
func FuzzRead(f *testing.F) {
	names := slices.Sorted(maps.Keys(twoCores()))
	for _, text := range []string{"0", "0-1", "1", "", "-1", "256", "10 20", "2048K", "\x00", "Instruction", "0-2047", "Node 0 MemTotal: 5 kB"} {
		for i := range len(names) {
			f.Add(uint(i), text)
		}
	}
	f.Fuzz(func(t *testing.T, at uint, text string) {
		h := twoCores()
		h["cpu/smt/control"], h["proc/cpuinfo"], h["sys/devices/cpu_atom/cpus"] = "on", "model name: x", "1"
		name := "cpu/online"
		if i := int(at % uint(len(names)+3)); i < len(names) {
			name = names[i]
		} else {
			name = []string{"cpu/smt/control", "proc/cpuinfo", "sys/devices/cpu_atom/cpus"}[i-len(names)]
		}
		h[name] = text
		m, err := Read(h.fs())
		if err != nil {
			if !strings.Contains(err.Error(), "sys/") && !strings.Contains(err.Error(), "proc/") {
				t.Fatalf("no file named: %v", err)
			}
			return
		}
		switch err := m.Validate(); {
		case err == nil:
			roundTrip(t, m)
		case !errors.Is(err, machine.ErrInconsistent):
			t.Fatalf("read a machine of bad form: %v", err)
		}
	})
}
