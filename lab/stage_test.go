package lab

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
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

// On a hybrid host a stage has groups in the v2 tree as well, where the kernel counts
// their pressure; processes are admitted to both, and nothing of it is left.
func TestStageGroups(t *testing.T) {
	t.Parallel()
	layout := fakekernel.Hybrid()
	layout.CPUs = "0-3"
	before := treeOf(t, layout)
	pl := places{shared: cpuset.MustParse("0-1")}
	g, fake := playedGroups(t, layout, pl, Bystander, selfParty)
	host, err := cgroup.Detect(g.root)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.mirror(host); err != nil {
		t.Fatal(err)
	}
	if len(g.mirrors[Bystander]) == 0 {
		t.Error("no group in the tree that tells of pressure")
	}
	if err := g.admit(Bystander, 101); err != nil {
		t.Fatal(err)
	}
	dirs := append(g.parties[Bystander].Dirs(), g.mirrors[Bystander]...)
	tree, err := fake.Tree()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if got := tree[dir+"/cgroup.procs"]; !strings.Contains(got, "101") {
			t.Errorf("%s has the processes %q", dir, got)
		}
	}
	for _, pid := range []string{"101", "102"} {
		if err := fake.Exit(pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.close(); err != nil {
		t.Fatal(err)
	}
	if tree, err = fake.Tree(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, tree); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
}
