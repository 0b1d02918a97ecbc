package cli

import (
	"errors"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

// A v1 group that is not in all hierarchies is told where it is, and where not; so are its
// processes.
func TestGroupPartlyThere(t *testing.T) {
	t.Parallel()
	l := fakekernel.V1()
	l.V1, l.Own = []string{"cpu", "cpuacct", "cpuset", "memory"}, "/"
	k, err := fakekernel.New(t.TempDir(), l)
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{"cpu/web", "cpuset/web"}
	for _, controller := range l.V1 {
		dirs = append(dirs, controller+"/all", controller+"/all/below", controller+"/some", controller+"/empty")
	}
	for _, dir := range dirs {
		err := k.Mkdir("sys/fs/cgroup/" + dir)
		if strings.HasPrefix(dir, "cpuset/") { // a new one takes no process
			err = errors.Join(err, k.Put("sys/fs/cgroup/"+dir+"/cpuset.cpus", "0"), k.Put("sys/fs/cgroup/"+dir+"/cpuset.mems", "0"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(pid string, groups ...string) {
		err := k.Start(pid)
		for _, group := range groups {
			err = errors.Join(err, k.WriteFile("sys/fs/cgroup/"+group+"/cgroup.procs", pid))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	in("4711", "cpu/all/below", "cpuacct/all/below", "cpuset/all/below", "memory/all/below")
	in("4712", "cpu/some")
	root := kernel.NewRoot("", k)
	for group, want := range map[string][2]string{
		"/web":   {"in the hierarchies of cpu, cpuset only", "mkdir /sys/fs/cgroup/cpuacct/web /sys/fs/cgroup/memory/web"},
		"some":   {"the processes of this control group are in the hierarchies of cpu only", ": /sys/fs/cgroup/cpuacct/some/cgroup.procs /sys/fs/cgroup/cpuset/some/cgroup.procs /sys/fs/cgroup/memory/some/cgroup.procs"},
		"empty/": {"this control group has ", "no processes"},
	} {
		if got := unreadable(root, group); !strings.Contains(got, want[0]) || !strings.HasSuffix(got, want[1]) {
			t.Errorf("%s: %q", group, got)
		}
	}
	for _, group := range []string{"all", "none", "", "../all"} {
		if got := unreadable(root, group); got != "" {
			t.Errorf("%q: %q", group, got)
		}
	}
}
