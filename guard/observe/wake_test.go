package observe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/proc"
)

// Another root than the live one has no kernel that could wake anybody.
func TestWakeOfAnotherRoot(t *testing.T) {
	t.Parallel()
	root := plant(t)
	write(t, root, map[string]string{"proc/pressure/cpu": "some avg10=0 avg60=0 avg300=0 total=0\n"})
	o := open(t, root)
	if _, err := o.WakeAt(map[string]float64{"": 0.1}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("error %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(root, "proc/pressure/cpu")); err != nil || string(text) != "some avg10=0 avg60=0 avg300=0 total=0\n" {
		t.Errorf("wrote %q, %v", text, err)
	}
}

// That one group is refused for another reason than the window leaves others the short one.
func TestWakeRefusedForOne(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "proc/pressure"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/sys/kernel/ostype", filepath.Join(root, "proc/pressure/cpu")); err != nil { // nobody may write it
		t.Fatal(err)
	}
	triggers, err := proc.NewTriggers()
	if err != nil {
		t.Fatal(err)
	}
	o := &Observer{site: Site{Root: root}, triggers: triggers}
	if err := o.wakeAt("", 0.1); !errors.Is(err, kernel.ErrNotSupported) || o.wakeOlder > 0 {
		t.Errorf("%v, and %d windows are given up", err, o.wakeOlder)
	}
	if err := triggers.Close(); err != nil {
		t.Error(err)
	}
}

// Two threads that have one CPU to share wake who asked for it, once; a group that is not there is no
// error, and with the context the wait ends.
func TestWakeForReal(t *testing.T) {
	t.Parallel()
	o, err := Open(Config{})
	if errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if _, err := o.WakeAt(map[string]float64{"": 1}); errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	asked, err := o.WakeAt(map[string]float64{"": 0.05, "berth-test-none": 0.05})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]float64{"": 0.05}; !maps.Equal(asked, want) {
		t.Errorf("asked for %v, want %v", asked, want)
	}
	var ended atomic.Bool
	var spinning sync.WaitGroup
	defer spinning.Wait()
	defer ended.Store(true)
	for range 2 {
		spinning.Go(func() {
			runtime.LockOSThread() // it ends with the goroutine
			var allowed, one unix.CPUSet
			if err := unix.SchedGetaffinity(0, &allowed); err != nil {
				t.Error(err)
			}
			for cpu := 0; one.Count() == 0; cpu++ {
				if allowed.IsSet(cpu) {
					one.Set(cpu)
				}
			}
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				t.Error(err)
			}
			for !ended.Load() {
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if group, gone, err := o.Wake(ctx); group != "" || gone || err != nil {
		t.Errorf("group %q, gone %t, %v", group, gone, err)
	}
	if _, err := o.WakeAt(map[string]float64{"": 0.05}); err != nil {
		t.Error(err)
	}
	if asked, err := o.WakeAt(map[string]float64{"": 2}); len(asked) > 0 || err == nil {
		t.Errorf("twice the time: asked for %v, %v", asked, err)
	}
	soon, end := context.WithTimeout(ctx, time.Second)
	defer end()
	if group, gone, err := o.Wake(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("asked for nothing: group %q, gone %t, %v", group, gone, err)
	}
	cancel()
	if _, _, err := o.Wake(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// fakeAlarms are alarms on paper.
type fakeAlarms struct {
	refuses  map[string]error // by name
	shortest time.Duration    // the shortest window that it takes
	set      map[string]proc.Trigger
	tried    int
	kept     []string
}

func (a *fakeAlarms) Set(name string, t proc.Trigger) error {
	a.tried++
	switch {
	case a.refuses[name] != nil:
		return fmt.Errorf("set trigger: %w", a.refuses[name])
	case t.Window < a.shortest:
		return &kernel.NotSupportedError{Feature: "a PSI trigger", Reason: "the kernel takes no such window"}
	}
	a.set[name] = t
	return nil
}

func (a *fakeAlarms) Keep(names []string) { a.kept = slices.Sorted(slices.Values(names)) }

func (a *fakeAlarms) Wait(context.Context) (string, bool, error) { return "", false, nil }

func (a *fakeAlarms) Close() error { return nil }

// waking is an observer of a host whose kernel is these alarms.
func waking(a *fakeAlarms) *Observer {
	a.set = map[string]proc.Trigger{}
	return &Observer{site: Site{Root: "/", Trees: []cgroupstat.Tree{{Version: 2, Dir: "/tree"}}}, triggers: a}
}

// What is asked for is what the kernel has taken, and nothing else is kept: a group that is gone is no error, one that
// is refused is, and so is a host without a file.
func TestWakeAt(t *testing.T) {
	t.Parallel()
	a := &fakeAlarms{refuses: map[string]error{"gone": syscall.ENODEV, "locked": syscall.EMFILE}}
	o := waking(a)
	asked, err := o.WakeAt(map[string]float64{"": 0.2, "web": 0.5, "gone": 0.5, "locked": 0.5})
	if !errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENODEV) {
		t.Errorf("error %v, want that of the group that is refused alone", err)
	}
	if want := map[string]float64{"": 0.2, "web": 0.5}; !maps.Equal(asked, want) || !slices.Equal(a.kept, []string{"", "web"}) {
		t.Errorf("asked for %v, kept %q; want %v", asked, a.kept, want)
	}
	if want := map[string]proc.Trigger{
		"":    {Path: "/proc/pressure/cpu", Stall: 40 * time.Millisecond, Window: WakeWindow},
		"web": {Path: "/tree/web/cpu.pressure", Stall: 100 * time.Millisecond, Window: WakeWindow},
	}; !maps.Equal(a.set, want) {
		t.Errorf("set %v, want %v", a.set, want)
	}
	a.refuses = map[string]error{"": syscall.ENOENT}
	if asked, err := o.WakeAt(map[string]float64{"": 0.2, "mail": 0.1}); !errors.Is(err, kernel.ErrNotSupported) || len(asked) != 1 || !slices.Equal(a.kept, []string{"mail"}) {
		t.Errorf("without a file of the host: %v; asked for %v, kept %q", err, asked, a.kept)
	}
	o.site.Trees = nil
	if _, err := o.WakeAt(map[string]float64{"mail": 0.1}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a group without a v2 tree: %v", err)
	}
}

// A kernel that does not take the short window is asked for a longer one, and from then on for that one alone. Who is
// refused for another reason is not asked for it.
func TestWakeOfOlderKernel(t *testing.T) {
	t.Parallel()
	a := &fakeAlarms{shortest: 500 * time.Millisecond, refuses: map[string]error{"locked": syscall.EMFILE}}
	o := waking(a)
	if asked, err := o.WakeAt(map[string]float64{"a": 0.1, "b": 0.1}); err != nil || len(asked) != 2 || a.tried != 3 {
		t.Errorf("asked for %v in %d tries, %v; want both in 3", asked, a.tried, err)
	}
	for group, trigger := range a.set {
		if trigger.Window != 500*time.Millisecond || trigger.Stall != 50*time.Millisecond {
			t.Errorf("%s: %+v", group, trigger)
		}
	}
	a.tried = 0
	if _, err := o.WakeAt(map[string]float64{"locked": 0.1}); err == nil || a.tried != 1 {
		t.Errorf("%v after %d tries", err, a.tried)
	}
	a.shortest, a.tried = time.Second, 0
	o = waking(a)
	if asked, err := o.WakeAt(map[string]float64{"a": 0.1}); !errors.Is(err, kernel.ErrNotSupported) || len(asked) > 0 || a.tried != 2 || o.wakeOlder != 0 {
		t.Errorf("no window is taken: asked for %v in %d tries, %v; %d windows are given up", asked, a.tried, err, o.wakeOlder)
	}
}
