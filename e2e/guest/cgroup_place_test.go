package guest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// TestPlace moves nested groups with processes in them. At no step on the way
// may a process use CPUs that are neither its old nor its new ones.
func TestPlace(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	top := tr.group(t, "place", "kid", "kid/grandkid")
	kid := top.Child("kid")
	grandkid := kid.Child("grandkid")
	pid := tr.child(t, grandkid, "sleep")
	place := func(cpus [3]string) kernel.Plan {
		t.Helper()
		var placements []cgroup.Placement
		for i, g := range []cgroup.Group{grandkid, top, kid} {
			placements = append(placements, cgroup.Placement{Group: g, CPUs: cpuset.MustParse(cpus[(i+2)%3])})
		}
		plan, err := cgroup.Place(placements...)
		if err != nil {
			t.Fatal(err)
		}
		return plan
	}
	now := [3]string{"0-3", "0-1", "0"} // of top, kid and grandkid
	tr.step(t, place(now), func(kernel.Step) {})
	for _, to := range [][3]string{
		{"8-11", "8-9", "9"},   // apart
		{"0-31", "0-31", "20"}, // wider
		{"20", "20", "20"},     // narrower
		{"2-5", "2-5", "2-5"},
		{"4-7", "5-6", "6"}, // overlapping
	} {
		within := cpuset.MustParse(now[2]).Union(cpuset.MustParse(to[2]))
		tr.step(t, place(to), func(s kernel.Step) {
			if cpus := allowed(t, pid); cpus.IsEmpty() || !within.Contains(cpus) {
				t.Errorf("from %v to %v, after %v: the process may use %v", now, to, s, cpus)
			}
		})
		now = to
		for i, name := range []string{"place", "place/kid", "place/kid/grandkid"} {
			if got := tr.text(t, name, "cpuset.cpus.effective"); got != to[i] {
				t.Errorf("%s is on %s, want %s", name, got, to[i])
			}
		}
		if cpus := allowed(t, pid); cpus.String() != to[2] {
			t.Errorf("the process may use %v, want %s", cpus, to[2])
		}
	}
}

// step carries out a plan step by step.
func (tr tree) step(t *testing.T, plan kernel.Plan, after func(kernel.Step)) {
	t.Helper()
	for _, s := range plan {
		if _, err := kernel.Apply(tr.Root, kernel.Plan{s}, nil); err != nil {
			t.Fatal(err)
		}
		after(s)
	}
}

// TestMigration has memory follow cpuset.mems, and come back.
func TestMigration(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	g := tr.group(t, "migration")
	tr.set(t, g, cgroup.Limits{Mems: cpuset.MustOf(1)})
	pid := tr.child(t, g, "hold memory")
	const most = heldBytes * 9 / 10 // its own code and stacks are elsewhere
	for _, node := range []int{1, 2, 0} {
		plan, err := g.Set(cgroup.Limits{Mems: cpuset.MustOf(node)})
		tr.apply(t, plan, err)
		for n, bytes := range anonByNode(t, pid) {
			if n == node && bytes < most || n != node && bytes > heldBytes-most {
				t.Errorf("memory on node %d: node %d has %d bytes of %d", node, n, bytes, heldBytes)
			}
		}
	}
}

// anonByNode adds up the anonymous memory of a process by node, in bytes:
// /proc/PID/numa_maps (proc_pid_numa_maps(5)).
func anonByNode(t *testing.T, pid int) map[int]int {
	t.Helper()
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/numa_maps")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	bytes := map[int]int{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), " anon=") {
			continue
		}
		for word := range strings.FieldsSeq(lines.Text()) {
			var node, pages int
			if n, _ := fmt.Sscanf(word, "N%d=%d", &node, &pages); n == 2 {
				bytes[node] += pages * os.Getpagesize()
			}
		}
	}
	return bytes
}

// TestEmptyAgain undoes a first cpuset while a process is in it: before Linux 7,
// the set cannot be made empty again and gets the parent's in so many words.
func TestEmptyAgain(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	g := tr.group(t, "empty")
	pid := tr.child(t, g, "sleep")
	plan, err := g.Set(cgroup.Limits{CPUs: cpuset.MustParse("4-5")})
	if err != nil {
		t.Fatal(err)
	}
	undo, err := kernel.Apply(tr.Root, plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = undo()
	if refused := errors.Is(err, unix.ENOSPC); refused == atLeast(7, 0) {
		t.Errorf("undo: %v", err)
	}
	if got := tr.text(t, "empty", "cpuset.cpus.effective"); got != "0-31" {
		t.Errorf("the group is on %s, want 0-31", got)
	}
	if cpus := allowed(t, pid); cpus.String() != "0-31" {
		t.Errorf("the process may use %v, want 0-31", cpus)
	}
}

// TestAffinity has a process that chose its CPU while its cpuset goes elsewhere
// and comes back: since 6.2 the choice comes back with it.
func TestAffinity(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	g := tr.group(t, "affinity")
	tr.write(t, "affinity", "cpuset.cpus", "0-31") // what can be undone
	pid := tr.child(t, g, "sleep")
	var six unix.CPUSet
	six.Set(6)
	if err := setAffinity(pid, &six); err != nil {
		t.Fatal(err)
	}
	tr.set(t, g, cgroup.Limits{CPUs: cpuset.MustOf(5)})
	if cpus := allowed(t, pid); cpus.String() != "5" {
		t.Errorf("in a group on 5 the process may use %v", cpus)
	}
	tr.set(t, g, cgroup.Limits{CPUs: cpuset.MustParse("4-7")})
	want := "6"
	if !atLeast(6, 2) {
		want = "4-7"
	}
	if cpus := allowed(t, pid); cpus.String() != want {
		t.Errorf("in a group on 4-7 the process may use %v, want %s", cpus, want)
	}
}

// setAffinity sets the CPUs of all threads of a process.
func setAffinity(pid int, cpus *unix.CPUSet) error {
	threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return err
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, cpus); err != nil {
			return err
		}
	}
	return nil
}
