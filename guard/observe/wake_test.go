package observe

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
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
