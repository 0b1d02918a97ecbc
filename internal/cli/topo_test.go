package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"

	"github.com/google/go-cmp/cmp"
)

// setBytes gives every domain of a kind a size.
func setBytes(m *machine.Machine, k machine.Kind, bytes int64) {
	for i := range m.Domains {
		if m.Domains[i].Kind == k {
			m.Domains[i].Bytes = bytes
		}
	}
}

// drawn are the machines of the golden files.
func drawn(t *testing.T) map[string]*machine.Machine {
	t.Helper()
	machines := map[string]*machine.Machine{}

	guest := fakekernel.Short(t, "2c")
	guest.Name, guest.Model = "guest", "Some Processor"
	setBytes(guest, machine.Node, 4810964<<10)
	setBytes(guest, machine.L3, 260<<20)
	setBytes(guest, machine.L2, 2<<20)
	machines["guest"] = guest

	server := fakekernel.Short(t, "2s4n4l8c2t") // 512 CPUs
	setBytes(server, machine.Node, 96<<30)
	setBytes(server, machine.L3, 32<<20)
	setBytes(server, machine.L2, 1<<20)
	for i := range server.CPUs {
		server.CPUs[i].BaseKHz, server.CPUs[i].MaxKHz = 2400000, 3700000
	}
	machines["512cpus"] = server

	machines["sockets-in-node"] = fakekernel.Short(t, "1n2s8c")

	machines["hybrid"] = hybrid(t)

	memory := fakekernel.Short(t, "4c2t") // with a memory-only node and an offline CPU
	setBytes(memory, machine.Node, 64<<30)
	memory.Domains = append(memory.Domains[:3:3], append([]machine.Domain{
		{Kind: machine.Node, ID: 1, KernelID: 1, Bytes: 256 << 30}}, memory.Domains[3:]...)...)
	memory.Distances = [][]int{{10, 14}, {24, 10}}
	memory.Offline = cpuset.MustOf(8)
	machines["memory-only"] = memory

	// An L3 for the first CPUs of two nodes and one for the rest: neither is
	// inside a node.
	across := fakekernel.Short(t, "2s4c")
	across.Domains[6].CPUs, across.Domains[7].CPUs = cpuset.MustParse("0-1,4-5"), cpuset.MustParse("2-3,6-7")
	machines["across"] = across

	long, err := sysfs.Lscpu(interleaved())
	if err != nil {
		t.Fatal(err)
	}
	machines["interleaved"] = long
	return machines
}

// hybrid has 4 P cores with two threads and 8 E cores in clusters of four.
func hybrid(t *testing.T) *machine.Machine {
	t.Helper()
	var rows strings.Builder
	rows.WriteString("# CPU,Core,Socket,Node,L2,L3\n")
	for cpu := range 16 {
		core, l2 := cpu/2, cpu/2
		if cpu >= 8 {
			core, l2 = cpu, cpu/4+6
		}
		fmt.Fprintf(&rows, "%d,%d,0,0,%d,0\n", cpu, core, l2)
	}
	m, err := sysfs.Lscpu(rows.String())
	if err != nil {
		t.Fatal(err)
	}
	setBytes(m, machine.L2, 2<<20)
	setBytes(m, machine.L3, 36<<20)
	for i := range m.CPUs {
		m.CPUs[i].Kind, m.CPUs[i].MaxKHz = machine.KindP, 5700000
		if i >= 8 {
			m.CPUs[i].Kind, m.CPUs[i].MaxKHz = machine.KindE, 4300000
		}
	}
	return m
}

// interleaved has 64 CPUs, every second one on the other socket.
func interleaved() string {
	var rows strings.Builder
	for cpu := range 64 {
		fmt.Fprintf(&rows, "%d,%d,%d,%d,%d\n", cpu, cpu, cpu%2, cpu%2, cpu%2)
	}
	return rows.String()
}

func TestDrawMachine(t *testing.T) {
	t.Parallel()
	for name, m := range drawn(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := m.Validate(); err != nil {
				t.Fatal(err)
			}
			golden.Check(t, "testdata/topo/"+name+".txt", drawMachine(m, machine.Unusual(m)))
		})
	}
}

// TestDrawHasEveryDomain: whatever the machine, no socket, node or cache is
// missing from the counts of the tree.
func TestDrawHasEveryDomain(t *testing.T) {
	t.Parallel()
	for name, m := range drawn(t) {
		tree := newTopoTree(m)
		seen := map[machine.Kind]int{}
		var walk func(*branch)
		walk = func(b *branch) {
			for _, d := range b.domains {
				seen[d.Kind]++
			}
			for _, c := range b.children {
				if !b.cpus.Contains(c.cpus) {
					t.Errorf("%s: %s is drawn inside %s", name, c.cpus, b.cpus)
				}
				walk(c)
			}
		}
		walk(tree.root)
		for _, d := range tree.crosses {
			seen[d.Kind]++
		}
		for _, d := range m.ByKind(machine.Node) {
			if d.CPUs.IsEmpty() {
				seen[machine.Node]++
			}
		}
		seen[machine.L2] += len(tree.l2)
		for _, k := range machine.Kinds() {
			if k != machine.Core && seen[k] != len(m.ByKind(k)) {
				t.Errorf("%s: %d of %d domains of kind %s are in the drawing", name, seen[k], len(m.ByKind(k)), k)
			}
		}
	}
}

// topo runs the command.
func topo(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return berth(t, append([]string{"topo"}, args...)...)
}

func TestTopoExportAndLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "m.json")
	if out, errs, code := topo(t, "--machine", "2s2n4c2t", "--export", file); code != exitOK || out != "" {
		t.Fatalf("export: %d, %q, %q", code, out, errs)
	}
	m, err := sysfs.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fakekernel.Short(t, "2s2n4c2t"), m); diff != "" {
		t.Errorf("exported machine (-want +got):\n%s", diff)
	}
	direct, _, _ := topo(t, "--machine", "2s2n4c2t")
	loaded, _, code := topo(t, "--machine", file)
	if diff := cmp.Diff(direct, loaded); diff != "" || code != exitOK {
		t.Errorf("status %d; drawing (-direct +loaded):\n%s", code, diff)
	}
}

func TestTopoJSON(t *testing.T) {
	t.Parallel()
	out, errs, code := topo(t, "--machine", "2n4c", "-o", "json")
	if code != exitOK {
		t.Fatalf("status %d: %s", code, errs)
	}
	var file sysfs.File
	if err := json.Unmarshal([]byte(out), &file); err != nil {
		t.Fatal(err)
	}
	if file.Schema != sysfs.Schema || file.Machine.Online.Len() != 8 || len(file.Unusual) == 0 || file.Unusual[0].Code != "several-nodes-per-socket" {
		t.Errorf("%s, %v CPUs, notes %v", file.Schema, file.Machine.Online, file.Unusual)
	}
	if again, _, code := topo(t, "--machine", save(t, out), "-o", "json"); code != exitOK || again != out {
		t.Errorf("status %d; the JSON output is not a machine file that gives the same output", code)
	}
}

func save(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "out.json")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTopoRoot(t *testing.T) {
	t.Parallel()
	tree, err := fakekernel.Sysfs(fakekernel.Short(t, "2s4c"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, tree); err != nil {
		t.Fatal(err)
	}
	out, errs, code := topo(t, "--root", dir)
	if code != exitOK || !strings.HasPrefix(out, "2s4c\n8 CPUs, 8 cores, 2 sockets, 2 NUMA nodes, 2 L3 caches\n") {
		t.Errorf("status %d, %q, %q", code, out, errs)
	}
}

func TestTopoRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--machine", "2s4x"}, exitError, "is none of the letters"},
		{[]string{"--machine", save(t, "hello")}, exitError, "lscpu line 1"},
		{[]string{"--root", t.TempDir()}, exitError, "sys/devices/system/cpu/online: file does not exist"},
		{[]string{"--machine", "1c", "--export", filepath.Join(t.TempDir(), "no", "such")}, exitError, "export machine: open"},
		{[]string{"-o", "xml"}, exitUsage, "it is one of text, json"},
		{[]string{"extra"}, exitUsage, "unknown argument"},
		{[]string{"--nope"}, exitUsage, "unknown flag"},
	} {
		out, errs, code := topo(t, c.args...)
		if code != c.code || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("%v: status %d, %q, %q; want status %d and %q", c.args, code, out, errs, c.code, c.want)
		}
	}
}

func TestNotAllowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list string
		want []machine.Note
	}{
		{"0-7", nil},
		{"0-63", nil},
		{"2-3,9", []machine.Note{{Code: "not-allowed", Text: "this process may use CPUs 2-3 only, not 0-1,4-7 (cpuset or affinity)"}}},
	} {
		dir := plant(t, map[string]string{"proc/self/status": "Name:\tberth\nCpus_allowed_list:\t" + c.list + "\n"})
		notes, err := notAllowed(fakekernel.Short(t, "8c"), dir)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, notes); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.list, diff)
		}
	}
}
