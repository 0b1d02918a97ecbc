package guest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/vmtest"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
)

// TestMachine compares the machine that Berth reads with the one that QEMU was
// asked for, domain by domain.
func TestMachine(t *testing.T) {
	want := asked(t)
	got, err := sysfs.Live("/")
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	for kind, sets := range domains(want) {
		var read []cpuset.Set
		for _, d := range got.ByKind(kind) {
			read = append(read, d.CPUs)
		}
		if diff := gocmp.Diff(sets, read); diff != "" {
			t.Errorf("%ss (-asked +read):\n%s", kind, diff)
		}
	}
	for id, c := range want.CPUs() {
		if len(want.MaxKHz) > 0 && got.CPUs[id].MaxKHz != want.MaxKHz[c.Core] {
			t.Errorf("CPU %d: at most %d kHz, asked for %d", id, got.CPUs[id].MaxKHz, want.MaxKHz[c.Core])
		}
	}
	for i, node := range want.Nodes {
		asked := int64(cmp.Or(node.MiB, vmtest.DefaultNodeMiB)) << 20
		// The kernel and its initramfs are not the node's to give.
		if read := got.ByKind(machine.Node)[i].Bytes; read < asked/2 || read > asked {
			t.Errorf("node %d: %d bytes, asked for %d", i, read, asked)
		}
	}
	if want.Distances != nil {
		if diff := gocmp.Diff(want.Distances, got.Distances); diff != "" {
			t.Errorf("distances (-asked +read):\n%s", diff)
		}
	}
}

// TestPowerFiles says what of cpufreq and cpuidle the guest has.
func TestPowerFiles(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile("/sys/devices/system/cpu/" + file)
		if err != nil {
			return "none"
		}
		return strings.TrimSpace(string(text))
	}
	states, err := filepath.Glob("/sys/devices/system/cpu/cpu0/cpuidle/state*")
	if err != nil {
		t.Fatal(err)
	}
	frequency, idle := read("cpu0/cpufreq/scaling_driver"), read("cpuidle/current_driver")
	t.Logf("cpufreq by %s, governors %s; cpuidle by %s, %d states", frequency, read("cpu0/cpufreq/scaling_available_governors"), idle, len(states))
	want := "none"
	if len(asked(t).MaxKHz) > 0 {
		want = "acpi-cpufreq"
	}
	if frequency != want {
		t.Errorf("cpufreq by %s, want %s", frequency, want)
	}
	if idle != "none" || len(states) > 0 {
		t.Errorf("cpuidle by %s with states %v, want none", idle, states)
	}
}

// TestExport writes a machine file with the program and reads it back.
func TestExport(t *testing.T) {
	want, err := sysfs.Live("/")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "machine.json")
	if text, err := exec.Command("/bin/berth", "topo", "--export", file).CombinedOutput(); err != nil {
		t.Fatalf("berth topo --export: %v\n%s", err, text)
	}
	got, err := sysfs.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("machine file (-read +loaded):\n%s", diff)
	}
}

// domains returns the CPUs of every domain that was asked for, in Berth's order.
func domains(m vmtest.Machine) map[machine.Kind][]cpuset.Set {
	l3 := func(c vmtest.CPU) int { return c.Die }
	if m.L3 == vmtest.PerModule {
		l3 = func(c vmtest.CPU) int { return c.Module }
	}
	core := func(c vmtest.CPU) int { return c.Core }
	nodes := group(m, func(c vmtest.CPU) int { return c.Node })
	for len(nodes) < len(m.Nodes) {
		nodes = append(nodes, cpuset.Set{}) // memory-only nodes come last
	}
	return map[machine.Kind][]cpuset.Set{
		machine.Socket: group(m, func(c vmtest.CPU) int { return c.Socket }),
		machine.Die:    group(m, func(c vmtest.CPU) int { return c.Die }),
		machine.Node:   nodes,
		machine.L3:     group(m, l3),
		machine.L2:     group(m, core),
		machine.Core:   group(m, core),
	}
}

// group returns the kernel's numbers of the CPUs that share a number, in the
// order of their first CPUs.
func group(m vmtest.Machine, number func(vmtest.CPU) int) []cpuset.Set {
	var order []int
	members := map[int][]int{}
	for id, c := range m.CPUs() {
		n := number(c)
		if members[n] == nil {
			order = append(order, n)
		}
		members[n] = append(members[n], id)
	}
	var sets []cpuset.Set
	for _, n := range order {
		sets = append(sets, cpuset.MustOf(members[n]...))
	}
	return sets
}
