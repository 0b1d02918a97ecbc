package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

// These tests kill a real process with SIGKILL while it carries out a plan: the
// test binary, started again with victimEnv set.
const victimEnv = "BERTH_TEST_VICTIM"

func TestMain(m *testing.M) {
	if args := os.Getenv(victimEnv); args != "" {
		if err := victim(strings.Split(args, " ")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var victimLayouts = map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2(), "hybrid": fakekernel.Hybrid()}

// suicidal is Files whose process kills itself at change number at.
type suicidal struct {
	kernel.Files
	at    int
	after bool
	count *int
}

func (s suicidal) change(do func() error) error {
	*s.count++
	if *s.count == s.at && !s.after {
		s.die()
	}
	err := do()
	if *s.count == s.at {
		s.die()
	}
	return err
}

func (suicidal) die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (s suicidal) WriteFile(name, data string) error {
	return s.change(func() error { return s.Files.WriteFile(name, data) })
}
func (s suicidal) Mkdir(name string) error {
	return s.change(func() error { return s.Files.Mkdir(name) })
}
func (s suicidal) Rmdir(name string) error {
	return s.change(func() error { return s.Files.Rmdir(name) })
}

// victim changes the settings of an existing group, makes one below, moves a
// process there, and undoes all of it, unless it dies.
func victim(args []string) error {
	dir, layout, undoLogDir, group, pidText, atText, when := args[0], args[1], args[2], args[3], args[4], args[5], args[6]
	pid, err := strconv.Atoi(pidText)
	if err != nil {
		return err
	}
	at, err := strconv.Atoi(atText)
	if err != nil {
		return err
	}
	root, err := kernel.Open(dir)
	if err != nil {
		return err
	}
	var files kernel.Files = root.Files
	if layout != "real" {
		files = fakekernel.Open(dir, victimLayouts[layout])
	}
	root = kernel.NewRoot(dir, suicidal{files, at, when == "after", new(int)})
	undoLog, err := kernel.CreateUndoLog(root, undoLogDir, "victim")
	if err != nil {
		return err
	}
	host, err := Detect(root)
	if err != nil {
		return err
	}
	host.UID = 0
	base, err := host.Base()
	if err != nil {
		return err
	}
	g := base.Child(group)
	kid := g.Child("kid")
	var undos []func() error
	for _, planner := range []func() (kernel.Plan, error){
		func() (kernel.Plan, error) {
			return g.Set(Limits{Idle: On, Quota: 20 * time.Millisecond, Period: 50 * time.Millisecond, MemoryMax: 1 << 30, PIDsMax: 500})
		},
		func() (kernel.Plan, error) { return kid.Create() },
		func() (kernel.Plan, error) { return kid.Set(Limits{CPUs: cpuset.MustOf(0), Weight: 10}) },
		func() (kernel.Plan, error) { return kid.Attach(pid) },
		func() (kernel.Plan, error) { return kid.Set(Limits{Frozen: On}) },
	} {
		plan, err := planner()
		if err != nil {
			return err
		}
		undo, err := kernel.Apply(root, plan, undoLog)
		if err != nil {
			return err
		}
		undos = append(undos, undo)
	}
	for _, undo := range slices.Backward(undos) {
		if err := undo(); err != nil {
			return err
		}
	}
	return undoLog.Close()
}

func TestSIGKILL(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, layout := range victimLayouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killEverywhere(t, exe, name, fakeSite(t, layout))
		})
	}
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		killEverywhere(t, exe, "real", realSite(t, 1, 2))
	})
}

func killEverywhere(t *testing.T, exe, layout string, s site) {
	g := s.base.Child(s.name)
	plan, err := g.Create()
	s.apply(t, plan, err)
	plan, err = g.Set(Limits{Weight: 50})
	s.apply(t, plan, err)
	pid := s.process(t)
	was := func() string {
		text, err := os.ReadFile(s.root.Name() + "/proc/" + itoa(pid) + "/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	home, before := was(), knobs(t, g)
	var tree map[string]string
	if s.fake != nil {
		tree = mustTree(t, s.fake)
	}
	for at := 1; ; at++ {
		done := 0
		for _, when := range []string{"before", "after"} {
			undoLogs := fakekernel.MemoryDir(t)
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), victimEnv+"="+strings.Join(
				[]string{s.root.Name(), layout, undoLogs, s.name, itoa(pid), itoa(at), when}, " "))
			out, err := cmd.CombinedOutput()
			status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
			switch {
			case err == nil:
				done++
			case !status.Signaled() || status.Signal() != syscall.SIGKILL:
				t.Fatalf("change %d: %v\n%s", at, err, out)
			}
			report, err := kernel.Restore(s.root, undoLogs)
			if err != nil {
				t.Fatalf("%s change %d: %v", when, at, err)
			}
			for _, item := range report.Items {
				if item.Outcome == kernel.Changed {
					t.Errorf("%s change %d: %s", when, at, item.Error)
				}
			}
			diff(t, "settings", before, knobs(t, g))
			diff(t, "group of the process", home, was())
			if s.fake != nil {
				diff(t, "tree", tree, mustTree(t, s.fake))
			}
			for _, dir := range g.Child("kid").Dirs() {
				if s.host.exists(dir) {
					t.Errorf("/%s is left", dir)
				}
			}
			if t.Failed() {
				t.Fatalf("killed %s change %d", when, at)
			}
		}
		if done == 2 {
			if at < 20 {
				t.Errorf("only %d changes", at)
			}
			return
		}
	}
}
