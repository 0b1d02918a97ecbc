package proc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/kernel"
)

// spinEnv makes a process of this test binary one that spins.
const spinEnv = "BERTH_TEST_SPIN"

func TestMain(m *testing.M) {
	if os.Getenv(spinEnv) == "" {
		os.Exit(m.Run())
	}
	if err := spin(); err != nil {
		fmt.Fprintln(os.Stderr, "spin:", err)
		os.Exit(1)
	}
}

// spin fills the first CPU that it may use, once it is told to.
func spin() error {
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	runtime.LockOSThread()
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return err
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if allowed.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < time.Hour; { // it is killed before
	}
	return nil
}

// What the kernel answers is told with what to do about it.
func TestTriggerNotSupported(t *testing.T) {
	t.Parallel()
	trig := Trigger{Path: "/proc/pressure/cpu", Stall: time.Millisecond, Window: 200 * time.Millisecond}
	for _, c := range []struct {
		err  error
		want string // "" is the error itself
	}{
		{syscall.EACCES, "run as root with CAP_SYS_RESOURCE"},
		{syscall.EPERM, "run as root with CAP_SYS_RESOURCE"},
		{syscall.EINVAL, "the kernel takes no window of 200ms"},
		{syscall.EOPNOTSUPP, "boot with psi=1"},
		{syscall.ENOENT, ""},
		{syscall.EMFILE, ""},
	} {
		err := trig.notSupported(&fs.PathError{Op: "open", Path: trig.Path, Err: c.err})
		if no := errors.Is(err, kernel.ErrNotSupported); no != (c.want != "") || !strings.Contains(err.Error(), c.want) || !no && !errors.Is(err, c.err) {
			t.Errorf("%v: %v, want %q", c.err, err, c.want)
		}
	}
}

// Files that are no pressure files, and windows that no kernel takes, are refused.
func TestTriggerRefused(t *testing.T) {
	t.Parallel()
	triggers, err := NewTriggers()
	if err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "cpu.pressure")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{plain: unix.EPERM, plain + ".gone": fs.ErrNotExist} {
		if err := triggers.Set("a", Trigger{Path: path, Stall: time.Second, Window: time.Second}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	if _, err := os.Stat("/proc/pressure/cpu"); err == nil {
		if err := triggers.Set("a", Trigger{Path: "/proc/pressure/cpu", Stall: time.Second, Window: time.Minute}); !errors.Is(err, kernel.ErrNotSupported) {
			t.Errorf("a window of a minute: %v", err)
		}
	}
	if len(triggers.all) > 0 {
		t.Errorf("set: %v", triggers.all)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	if _, _, err := triggers.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the wait ended with %v", err)
	}
	if err := triggers.Close(); err != nil {
		t.Error(err)
	}
	if err := triggers.Set("a", Trigger{Path: plain}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// told is an event, or the end of the wait.
type told struct {
	name string
	gone bool
	err  error
}

func waitFor(t *testing.T, triggers *Triggers) <-chan told {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	c := make(chan told, 1)
	go func() {
		var got told
		got.name, got.gone, got.err = triggers.Wait(ctx)
		c <- got
	}()
	return c
}

// pressedGroup makes a v2 group, and returns its directory and what starts two processes in it that
// have one CPU to share, and what ends them.
func pressedGroup(t *testing.T) (dir string, start, end func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may set triggers with short windows")
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "cgroup2" {
			if dir, err = os.MkdirTemp(f[1], "berth-test-"); err != nil {
				t.Skipf("no group can be made: %v", err)
			}
			break
		}
	}
	if dir == "" {
		t.Skip("cgroup v2 is not mounted")
	}
	if _, err := os.Stat(filepath.Join(dir, "cpu.pressure")); err != nil {
		_ = os.Remove(dir)
		t.Skipf("groups have no pressure: %v", err)
	}
	var spinning []*exec.Cmd
	end = func() {
		for _, cmd := range spinning {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		}
		spinning = nil
	}
	t.Cleanup(func() {
		end()
		_ = os.Remove(dir) // the test has removed it, if it got so far
	})
	return dir, func() {
		for range 2 {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env, cmd.Stderr = append(os.Environ(), spinEnv+"=1"), os.Stderr
			in, err := cmd.StdinPipe()
			if err == nil {
				err = fork.Start(cmd)
			}
			if err != nil {
				t.Fatal(err)
			}
			spinning = append(spinning, cmd)
			err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0)
			if _, werr := in.Write([]byte("\n")); err != nil || werr != nil {
				t.Fatal(err, werr)
			}
		}
	}, end
}

// The kernel tells once for each Set that tasks of a group waited as long as asked, and that the
// group is gone, which is told once.
func TestTriggersForReal(t *testing.T) {
	t.Parallel()
	fakekernel.LockHost(t, fakekernel.Shared)
	dir, start, end := pressedGroup(t)
	triggers, err := NewTriggers()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := triggers.Close(); err != nil {
			t.Error(err)
		}
	}()
	stalled := func() time.Duration {
		p, err := ReadPressure(os.DirFS(dir), "cpu.pressure")
		if err != nil {
			t.Fatal(err)
		}
		return p.Some
	}
	trig := Trigger{Path: filepath.Join(dir, "cpu.pressure"), Stall: 100 * time.Millisecond, Window: 500 * time.Millisecond}
	set := func() {
		t.Helper()
		if err := triggers.Set("g", trig); err != nil {
			t.Fatal(err)
		}
	}
	trig.Stall *= 2
	if err := triggers.Set("g", trig); errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	trig.Stall /= 2
	before := triggers.all["g"].fd
	if set(); !slices.Equal(triggers.retired, []int{before}) {
		t.Errorf("%d was replaced, to be closed: %v", before, triggers.retired)
	}
	first := waitFor(t, triggers)
	start()
	if got := <-first; got != (told{name: "g"}) {
		t.Fatalf("two processes on one CPU: %+v", got)
	}
	if some := stalled(); some < trig.Stall {
		t.Errorf("told after %v of %v", some, trig.Stall)
	}
	triggers.mu.Lock()
	if len(triggers.all) != 1 || len(triggers.retired) > 0 {
		t.Errorf("open: %v, to be closed: %v", triggers.all, triggers.retired)
	}
	triggers.mu.Unlock()

	again := waitFor(t, triggers)
	for from := stalled(); stalled() < from+3*trig.Window; {
		time.Sleep(10 * time.Millisecond)
	}
	select {
	case got := <-again:
		t.Fatalf("told a second time: %+v", got)
	default:
	}
	set()
	if got := <-again; got != (told{name: "g"}) {
		t.Fatalf("set again: %+v", got)
	}

	end()
	set()
	gone := waitFor(t, triggers)
	for err := os.Remove(dir); err != nil; err = os.Remove(dir) {
		if !errors.Is(err, unix.EBUSY) { // what was killed has not left it yet
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	got := <-gone
	if got == (told{name: "g"}) { // what was waited before they ended
		set()
		got = <-waitFor(t, triggers)
	}
	if got != (told{name: "g", gone: true}) {
		t.Fatalf("the group is gone: %+v", got)
	}
	if err := triggers.Set("g", trig); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("set on a group that is gone: %v", err)
	}
	if len(triggers.all) > 0 {
		t.Errorf("still set: %v", triggers.all)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := triggers.Wait(ctx); !errors.Is(err, context.Canceled) || len(triggers.retired) > 0 {
		t.Errorf("the wait ended with %v; open: %v", err, triggers.retired)
	}
}
