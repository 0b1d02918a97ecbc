package guarded

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// What the lab would refuse is refused before anything is opened.
func TestValidateAsksTheLab(t *testing.T) {
	t.Parallel()
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*Spec){
		"demand": func(e *Spec) { e.Demand = 5 },
		"rate":   func(e *Spec) { e.Rate = -1 },
	} {
		e := Default()
		change(&e)
		if err := e.Validate(); err == nil || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A fault that this host cannot make is skipped, and does not end the experiment.
func TestForkNeedsItsProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	x := &experiment{Result: &Result{}}
	if _, err := x.disturbance(nil, Fault{Name: Fork}, nil); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("without true(1): %v, want not supported", err)
	}
}

func TestReclaimNeedsADisk(t *testing.T) {
	t.Parallel()
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Skip("/dev/shm is no tmpfs here")
	}
	x := &experiment{Result: &Result{}, dir: "/dev/shm"}
	if _, err := x.disturbance(nil, Fault{Name: Reclaim}, nil); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("in memory: %v, want not supported", err)
	}
}
