package guest

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// user is an ordinary one.
const user = 1000

// TestDelegation gives a group to an ordinary user as the kernel's document says
// (cgroup-v2.rst, "Delegation"), who then uses it and cannot do more.
func TestDelegation(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	slice := tr.group(t, "user.slice", "session")
	tr.group(t, "outside")
	for _, name := range []string{
		"user.slice", "user.slice/cgroup.procs", "user.slice/cgroup.threads", "user.slice/cgroup.subtree_control",
		"user.slice/session", "user.slice/session/cgroup.procs", "user.slice/session/cgroup.subtree_control",
	} {
		if err := os.Chown("/"+v2+"/"+name, user, user); err != nil {
			t.Fatal(err)
		}
	}
	cmd := tr.command(t, slice.Child("session"), "use delegation")
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user, Gid: user}
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as user %d: %v\n%s", user, err, text)
	}
}

// useDelegation is the user's process, in user.slice/session.
func useDelegation(t *testing.T) {
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	host, err := cgroup.Detect(root)
	if err != nil {
		t.Fatal(err)
	}
	base, err := host.Base(cgroup.CPU, cgroup.CPUSet, cgroup.Memory, cgroup.PIDs)
	if err != nil {
		t.Fatal(err)
	}
	if dirs := base.Dirs(); !slices.Equal(dirs, []string{v2 + "/user.slice"}) {
		t.Fatalf("the base is %v, want the group that was delegated", dirs)
	}
	tr := tree{root, base}
	work := tr.group(t, "work")
	tr.set(t, work, cgroup.Limits{Weight: 20, CPUs: cpuset.MustOf(3), MemoryMax: 64 << 20, PIDsMax: 50})
	plan, err := work.Attach(os.Getpid())
	tr.apply(t, plan, err)
	if cpus := allowed(t, os.Getpid()); cpus.String() != "3" {
		t.Errorf("in the new group the process may use %v, want 3", cpus)
	}
	refused := map[string]kernel.Step{
		"the limits of what was delegated": {Path: v2 + "/user.slice/cpu.weight", Value: "10000"},
		"a group outside":                  {Path: v2 + "/outside/cpu.weight", Value: "10000"},
		"a process to outside":             {Op: kernel.Attach, Path: v2 + "/outside/cgroup.procs", Value: "1", Back: v2 + "/cgroup.procs"},
		"a new group outside":              {Op: kernel.Mkdir, Path: v2 + "/outside/mine"},
		"controllers outside":              {Op: kernel.Enable, Path: v2 + "/outside/cgroup.subtree_control", Value: "+cpu"},
	}
	for name, step := range refused {
		_, err := kernel.Apply(root, kernel.Plan{step}, nil)
		var refusal *kernel.StepError
		if !errors.Is(err, unix.EACCES) || !errors.As(err, &refusal) || !strings.Contains(refusal.Hint, "run as root") {
			t.Errorf("%s: %v, want EACCES and a hint", name, err)
		}
	}
}
