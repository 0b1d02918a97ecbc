package vmtest

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// The least of each node is kept, and node 10 comes after node 2.
func TestMemoryLook(t *testing.T) {
	t.Parallel()
	file := func(free string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("Node 0 MemTotal:  500000 kB\nNode 0 MemFree:   " + free + " kB\nNode 0 MemUsed:  1 kB\n")}
	}
	const dir = "devices/system/node/"
	var m GuestMemory
	for _, free := range [][3]string{{"300", "20", "7"}, {"200", "30", "9"}, {"250", "40", "8"}} {
		sys := fstest.MapFS{dir + "node0/meminfo": file(free[0]), dir + "node2/meminfo": file(free[1]), dir + "node10/meminfo": file(free[2])}
		if err := m.Look(sys); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int64{200, 20, 7}; !slices.Equal(m.Lowest, want) {
		t.Errorf("least free %v, want %v", m.Lowest, want)
	}
	if err := m.Look(fstest.MapFS{}); err == nil || !strings.Contains(err.Error(), "no memory node") {
		t.Errorf("a kernel without nodes: %v", err)
	}
	for _, text := range []string{"", "Node 0 MemFree:   many kB\n"} {
		if err := m.Look(fstest.MapFS{dir + "node0/meminfo": {Data: []byte(text)}}); err == nil || !strings.Contains(err.Error(), dir+"node0/meminfo") {
			t.Errorf("meminfo %q: %v", text, err)
		}
	}
}

// A kill for a group's own limit is no shortage of the guest.
func TestShortages(t *testing.T) {
	t.Parallel()
	const (
		group = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-3,oom_memcg=/oom,task_memcg=/oom,task=guest.test,pid=211,uid=0"
		nodes = "oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=(null),cpuset=db,mems_allowed=0,task_memcg=/db,task=berth,pid=734,uid=0"
		all   = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-3,global_oom,task_memcg=/,task=berth,pid=12,uid=0"
	)
	log := []string{"Memory cgroup out of memory: Killed process 211 (guest.test)", group, nodes, "Out of memory: Killed process 734 (berth)", all}
	if got := Shortages(log); !slices.Equal(got, []string{nodes, all}) {
		t.Errorf("shortages %q", got)
	}
}

// The kernel's log ends: nothing waits for its next line.
func TestKernelLog(t *testing.T) {
	t.Parallel()
	lines, err := KernelLog()
	if err != nil {
		if os.IsPermission(err) || os.IsNotExist(err) {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	for _, line := range lines {
		if strings.ContainsRune(line, '\n') {
			t.Errorf("not a line: %q", line)
		}
	}
}
