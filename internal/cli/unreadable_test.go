package cli

import (
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

// A v1 group that is not in all hierarchies is told where it is, and where not.
func TestGroupPartlyThere(t *testing.T) {
	t.Parallel()
	l := fakekernel.V1()
	l.V1, l.Own = []string{"cpu", "cpuacct", "cpuset", "memory"}, "/"
	k, err := fakekernel.New(t.TempDir(), l)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"cpu/web", "cpuset/web", "cpu/all", "cpuacct/all", "cpuset/all", "memory/all"} {
		if err := k.Mkdir("sys/fs/cgroup/" + dir); err != nil {
			t.Fatal(err)
		}
	}
	root := kernel.NewRoot("", k)
	got := partlyThere(root, "/web")
	if !strings.Contains(got, "in the hierarchies of cpu, cpuset only") || !strings.HasSuffix(got, "mkdir /sys/fs/cgroup/cpuacct/web /sys/fs/cgroup/memory/web") {
		t.Errorf("web: %q", got)
	}
	for _, group := range []string{"all", "none", "", "../all"} {
		if got := partlyThere(root, group); got != "" {
			t.Errorf("%q: %q", group, got)
		}
	}
}
