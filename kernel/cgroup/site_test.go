package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

// site is a host that tests run on: one that the test simulates, or the real one.
type site struct {
	root *kernel.Root
	host *Host
	base Group
	name string // of a group that the test may make below the base
	pid  int    // of a process that the test may move
	fake *fakekernel.Kernel
}

var groups atomic.Int32

// realV2 is held by the one test that has a real v2 tree: what it enables there
// shows in the groups of any other.
var realV2 sync.Mutex

// onEverySite runs a test on fake hosts, and on the real one if it lets
// groups be made.
func onEverySite(t *testing.T, test func(t *testing.T, s site)) {
	for name, layout := range map[string]fakekernel.Layout{
		"v1": fakekernel.V1(), "v2": fakekernel.V2(), "hybrid": fakekernel.Hybrid(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, fakeSite(t, layout))
		})
	}
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t, realSite(t, 1, 2))
	})
	t.Run("real v2", func(t *testing.T) { // of a hybrid host: what needs no controller
		t.Parallel()
		test(t, realSite(t, 2))
	})
}

func fakeSite(t *testing.T, layout fakekernel.Layout) site {
	t.Helper()
	s := site{name: "berth-test", pid: 100}
	dir := fakekernel.MemoryDir(t)
	var err error
	if s.fake, err = fakekernel.New(dir, layout); err != nil {
		t.Fatal(err)
	}
	if err := s.fake.Start("100"); err != nil {
		t.Fatal(err)
	}
	s.root = kernel.NewRoot(dir, s.fake)
	s.detect(t)
	s.host.UID = 0
	if s.base, err = s.host.Base(); err != nil {
		t.Fatal(err)
	}
	return s
}

// realSite skips unless groups can be made on this host. Nothing outside of
// the group called s.name is ever changed.
func realSite(t *testing.T, versions ...int) site {
	t.Helper()
	root, err := kernel.Open("/")
	if err != nil {
		t.Skip(err)
	}
	s := site{root: root, name: fmt.Sprintf("berth-test-%d-%d", os.Getpid(), groups.Add(1))}
	s.detect(t)
	s.host.Hierarchies = slices.DeleteFunc(s.host.Hierarchies, func(h Hierarchy) bool { return !slices.Contains(versions, h.Version) })
	if s.base, err = s.host.Base(); err != nil && !errors.Is(err, kernel.ErrNotSupported) {
		t.Fatal(err)
	} else if err != nil {
		t.Skipf("no groups can be made here: %v", err)
	}
	if slices.ContainsFunc(s.base.base.parts, func(p part) bool { return p.Version == 2 }) {
		realV2.Lock()
		t.Cleanup(realV2.Unlock)
	}
	fakekernel.LockHost(t, fakekernel.Shared)
	for _, p := range s.base.base.parts {
		probe := filepath.Join("/", p.dir, s.name)
		if err := os.Mkdir(probe, 0o755); err != nil {
			t.Skipf("no groups can be made here: %v", err)
		}
		if err := os.Remove(probe); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *site) detect(t *testing.T) {
	t.Helper()
	var err error
	if s.host, err = Detect(s.root); err != nil {
		t.Fatal(err)
	}
}

// process is one that the test may move: on the real host it sleeps.
func (s site) process(t *testing.T) int {
	t.Helper()
	if s.fake != nil {
		return s.pid
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// apply carries out a plan and undoes it when the test ends.
func (s site) apply(t *testing.T, plan kernel.Plan, err error) (undo func() error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	undo, err = kernel.Apply(s.root, plan, nil)
	if err != nil {
		t.Fatalf("%v\nplan:\n%s", err, plan)
	}
	t.Cleanup(func() {
		if err := undo(); err != nil {
			t.Error(err)
		}
	})
	return undo
}

// group makes the test's group with a child.
func (s site) group(t *testing.T) Group {
	t.Helper()
	g := s.base.Child(s.name)
	plan, err := g.Create("a")
	s.apply(t, plan, err)
	return g.Child("a")
}

// text is a file of a group, and whether there is one.
func (s site) text(g Group, controller, file string) (string, bool) {
	p, err := g.part(controller)
	if err != nil {
		return "", false
	}
	text, ok, err := s.host.read(g.dir(p) + "/" + file)
	return strings.TrimSpace(text), ok && err == nil
}

func knobs(t *testing.T, g Group) []Knob {
	t.Helper()
	k, err := g.Knobs()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func mustTree(t *testing.T, k *fakekernel.Kernel) map[string]string {
	t.Helper()
	tree, err := k.Tree()
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
