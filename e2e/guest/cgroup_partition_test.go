package guest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// TestPartition makes partitions, of which one lies in another, and gives the
// CPUs back.
func TestPartition(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	outer := tr.group(t, "outer", "inner", "rest")
	inner, rest := outer.Child("inner"), outer.Child("rest")
	tr.write(t, "outer", "cpuset.cpus", "0-31") // what can be undone
	outside := tr.child(t, tr.group(t, "outside"), "sleep")
	within := tr.child(t, rest, "sleep")
	check := func(when string, wantOutside, wantWithin string) {
		t.Helper()
		if got := allowed(t, outside); got.String() != wantOutside {
			t.Errorf("%s: a process outside may use %v, want %s", when, got, wantOutside)
		}
		if got := allowed(t, within); got.String() != wantWithin {
			t.Errorf("%s: a process within may use %v, want %s", when, got, wantWithin)
		}
	}
	plan, err := inner.Set(cgroup.Limits{CPUs: cpuset.MustParse("4-5"), Partition: "isolated"})
	if !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "not a partition root") {
		t.Fatalf("a partition in an ordinary group: %v\n%s", err, plan)
	}
	undoOuter := tr.set(t, outer, cgroup.Limits{CPUs: cpuset.MustParse("4-7"), Partition: "root"})
	check("root", "0-3,8-31", "4-7")
	undoInner := tr.set(t, inner, cgroup.Limits{CPUs: cpuset.MustParse("4-5"), Partition: "isolated"})
	check("isolated in root", "0-3,8-31", "6-7")
	tr.set(t, inner, cgroup.Limits{Partition: "member"})
	check("member again", "0-3,8-31", "4-7")
	tr.set(t, inner, cgroup.Limits{Partition: "isolated"})
	check("isolated once more", "0-3,8-31", "6-7")
	for _, undo := range []func() error{undoInner, undoOuter} {
		if err := undo(); err != nil {
			t.Error(err)
		}
	}
	check("undone", "0-31", "0-31")
}

// TestInvalidPartition has the kernel refuse a partition, and take one away.
func TestInvalidPartition(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	taken, g := tr.group(t, "taken"), tr.group(t, "partition")
	tr.set(t, taken, cgroup.Limits{CPUs: cpuset.MustParse("5-6")})
	plan, err := g.Set(cgroup.Limits{CPUs: cpuset.MustParse("4-5"), Partition: "root"})
	if err != nil {
		t.Fatal(err)
	}
	undo, err := kernel.Apply(tr.Root, plan, nil)
	if isValid := tr.text(t, "partition", "cpuset.cpus.partition") == "root"; isValid != (err == nil) || isValid != atLeast(7, 0) {
		t.Errorf("over a set that is taken: valid %v, %v", isValid, err)
	}
	if err == nil {
		if err := undo(); err != nil {
			t.Error(err)
		}
	} else if !strings.Contains(err.Error(), "root invalid") {
		t.Errorf("over a set that is taken: %v, want the kernel's state", err)
	}
	if cpus := tr.text(t, "partition", "cpuset.cpus"); cpus != "" {
		t.Errorf("refused or undone: CPUs %q, want none of its own", cpus)
	}

	tr.set(t, g, cgroup.Limits{CPUs: cpuset.MustOf(9), Partition: "root"})
	online := func(value string) {
		t.Helper()
		if err := os.WriteFile("/sys/devices/system/cpu/cpu9/online", []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	pid := tr.child(t, g, "sleep")
	online("0")
	state := tr.text(t, "partition", "cpuset.cpus.partition")
	cpus := allowed(t, pid)
	online("1")
	if !strings.HasPrefix(state, "root invalid") || cpus.IsEmpty() || cpus.Has(9) {
		t.Errorf("with its last CPU offline: %q, its process may use %v", state, cpus)
	}
	if state := tr.text(t, "partition", "cpuset.cpus.partition"); state != "root" {
		t.Errorf("with its CPU back: %q, want root", state)
	}
}

// TestPartitionOverlap has someone else write a set that overlaps a partition:
// before Linux 7 that makes the partition invalid, later the writer gets less.
// Berth refuses to.
func TestPartitionOverlap(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	g := tr.group(t, "partition")
	sibling := tr.group(t, "sibling")
	undo := tr.set(t, g, cgroup.Limits{CPUs: cpuset.MustParse("4-5"), Partition: "isolated"})
	if plan, err := sibling.Set(cgroup.Limits{CPUs: cpuset.MustParse("5-6")}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("over a partition: %v\n%s", err, plan)
	}
	tr.write(t, "sibling", "cpuset.cpus", "5-6")
	state, left := tr.text(t, "partition", "cpuset.cpus.partition"), tr.text(t, "sibling", "cpuset.cpus.effective")
	if atLeast(7, 0) {
		if state != "isolated" || left != "6" {
			t.Errorf("partition %q, sibling on %s; want isolated and 6", state, left)
		}
	} else if !strings.HasPrefix(state, "isolated invalid") || left != "5-6" {
		t.Errorf("partition %q, sibling on %s; want it invalid, and 5-6", state, left)
	}
	// Invalid or not, it is Berth's own and undone.
	if err := undo(); err != nil {
		t.Error(err)
	}
	if state := tr.text(t, "partition", "cpuset.cpus.partition"); state != "member" {
		t.Errorf("undone: %q, want member", state)
	}
}

// TestRemotePartition makes a partition below an ordinary group, which
// cpuset.cpus.exclusive allows where the kernel has it (6.7).
func TestRemotePartition(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	outer := tr.group(t, "outer", "inner")
	inner := outer.Child("inner")
	tr.set(t, outer, cgroup.Limits{CPUs: cpuset.MustParse("4-7")})
	limits := cgroup.Limits{CPUs: cpuset.MustOf(5), Partition: "isolated"}
	if !atLeast(6, 7) {
		if plan, err := inner.Set(limits); !errors.Is(err, kernel.ErrNotSupported) {
			t.Errorf("%v\n%s", err, plan)
		}
		return
	}
	tr.write(t, "outer", "cpuset.cpus.exclusive", "4-5")
	tr.write(t, "outer/inner", "cpuset.cpus.exclusive", "5")
	tr.set(t, inner, limits)
	for group, want := range map[string]string{"": "0-4,6-31", "outer": "4,6-7", "outer/inner": "5"} {
		if got := tr.text(t, group, "cpuset.cpus.effective"); got != want {
			t.Errorf("%q is on %s, want %s", group, got, want)
		}
	}
}
