package guarded

import (
	"errors"
	"strings"
	"testing"

	"berth.dev/berth/kernel"
)

// What the lab would refuse is refused before anything is opened.
func TestValidateAsksTheLab(t *testing.T) {
	t.Parallel()
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*Experiment){
		"demand": func(e *Experiment) { e.Demand = 5 },
		"rate":   func(e *Experiment) { e.Rate = -1 },
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
	r := &runner{result: &Result{}}
	if _, err := r.disturbance(Fault{Name: Fork}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("without true(1): %v, want not supported", err)
	}
}
