package lab

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
)

func TestParseRequests(t *testing.T) {
	t.Parallel()
	const header = "seq,due_ns,seen_ns,sent_ns,done_ns,error\n"
	got, err := parseRequests(strings.NewReader(header + "3,1000,2000,2500,9000,\n4,1500,,,,unfinished\n5,1600,1700,1800,1900,\"read: reset, by peer\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{{Due: 1000, Seen: 2000, Done: 9000}, {Due: 1500, Seen: -1, Done: -1, Failed: true}, {Due: 1600, Seen: 1700, Done: 1900, Failed: true}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, bad := range []string{"1,2,3\n", "1,x,3,4,5,\n"} {
		if _, err := parseRequests(strings.NewReader(header + bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// An experiment may ask for groups in every tree that counts something: on a hybrid host
// the v2 tree counts pressure. Processes are attached to all, the group around them takes
// settings, and nothing of it is left.
func TestGroupsInEveryTree(t *testing.T) {
	t.Parallel()
	trees := map[string][]string{
		"v1": {"sys/fs/cgroup/memory", "sys/fs/cgroup/blkio"}, "v2": {"sys/fs/cgroup"}, "hybrid": {"sys/fs/cgroup/unified", "sys/fs/cgroup/memory"},
	}
	for name, layout := range layouts() {
		layout.CPUs = "0-3"
		before := treeOf(t, layout)
		g, fake := playedGroups(t, layout, places{shared: cpuset.MustParse("0-1")}, Options{Roles: []Role{Bystander}, Groups: true})
		dirs := g.group(Bystander).Dirs()
		for _, tree := range trees[name] {
			if !slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(dir, tree+"/") }) {
				t.Errorf("%s: no group in %s: %q", name, tree, dirs)
			}
		}
		if err := errors.Join(g.attach(Bystander, 101), g.attach(Outsider, 102)); err != nil {
			t.Fatal(err)
		}
		tree, err := fake.Tree()
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			if got := tree[dir+"/cgroup.procs"]; !strings.Contains(got, "101") {
				t.Errorf("%s: %s has the processes %q", name, dir, got)
			}
		}
		for file, procs := range tree {
			if strings.HasSuffix(file, "/cgroup.procs") && strings.Contains(procs, "102") && strings.Contains(file, string(Bystander)) {
				t.Errorf("%s: an outsider is in %s", name, file)
			}
		}
		for what, l := range map[string]cgroup.Limits{"memory": {MemoryMax: 1 << 30}, "disk": {IOMax: []cgroup.IOMax{{Device: "7:0", ReadBPS: 1 << 40}}}, "CPU": {Weight: 300}} {
			change, err := g.plan(Settings{Around: l}, false)
			if err != nil {
				t.Fatalf("%s: %s: %v", name, what, err)
			}
			undo, err := change.apply()
			if err != nil {
				t.Fatalf("%s: %s: %v", name, what, err)
			}
			if err := undo(); err != nil {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
		if err := errors.Join(fake.Exit("101"), fake.Exit("102"), g.close()); err != nil {
			t.Fatal(err)
		}
		if tree, err = fake.Tree(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, tree); diff != "" {
			t.Errorf("%s: left behind (-before +after):\n%s", name, diff)
		}
	}
}
