package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/watch"
)

// More groups are in need than can be looked at closely: those that are stay, and
// the 1 s windows acts on the CPU of the rest.
func TestMoreInNeedThanInFocus(t *testing.T) {
	t.Parallel()
	var k inventory
	for i := range observe.MaxFocus + 4 {
		k.sensitive = append(k.sensitive, fmt.Sprintf("svc/%02d", i))
	}
	already := slices.Clone(k.sensitive[4:])
	if diff := cmp.Diff(already, k.focus(k.sensitive, already)); diff != "" {
		t.Errorf("all in need (-already +focus):\n%s", diff)
	}
	needy := append(slices.Clone(already[1:]), "svc/03")
	if diff := cmp.Diff(append([]string{"svc/03"}, already[1:]...), k.focus(needy, already)); diff != "" {
		t.Errorf("all but one in need, and another (-want +focus):\n%s", diff)
	}

	m := newModel()
	o := m.options(control.Enforce)
	var failed []error
	o.Failed = func(err error) { failed = append(failed, err) }
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.known, r.armed, r.needed = newInventory(), true, rest
	r.known.sensitive = k.sensitive
	for _, group := range k.sensitive {
		r.known.all[group] = &member{}
	}
	r.known.all["batch/hog"] = &member{}
	r.attend(watch.Second)
	var found []detect.Finding
	for _, victim := range k.sensitive {
		found = append(found, detect.Finding{Victim: victim, Suspect: "batch/hog", Resource: detect.CPU, Remedies: []detect.Remedy{detect.Weight}})
	}
	for i, victim := range k.sensitive {
		inFocus := slices.Contains(r.focus, victim)
		if fast := r.closely(victim, detect.CPU); fast != inFocus {
			t.Errorf("%s, in focus %v: judged by the fast pace: %v", victim, inFocus, fast)
		}
		if r.closely(victim, detect.Memory) {
			t.Errorf("%s: its memory is judged by the fast pace", victim)
		}
		if got := r.known.mayActOn(found)[i].Remedies; got == nil {
			t.Errorf("%s: nothing may be done", victim)
		}
	}
	r.deliver()
	if len(failed) > 0 {
		t.Errorf("nobody is in need, and there is %v", failed)
	}
}

// Best-effort suppression is by the slow windows only.
func TestOnePaceSuppresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		o := m.options(control.Preview)
		o.Probe = ProbeAlways
		o.Control.Suppression = &control.Suppression{Group: "batch", ByQuota: true, Threshold: 0.3}
		events, errs := runFor(t, o, 20*time.Second)
		n := 0
		for _, e := range events {
			if e.Victim == "" && e.Outcome == control.WouldApply {
				n++
			}
		}
		if n != 1 || len(errs) > 0 {
			t.Errorf("%d times, want once; errors %v, events %v", n, errs, events)
		}
	})
}

// stuck is a model that gives nothing back.
type stuck struct{ *model }

var errStuck = errors.New("it is stuck")

func (stuck) Revert(context.Context, control.Action) ([]control.Change, error) { return nil, errStuck }

// A mode that cannot restore everything says so, and so does the end.
func TestModeChangeThatGivesNothingBack(t *testing.T) {
	t.Parallel()
	for _, mode := range []control.Mode{control.Preview, control.Observe} {
		synctest.Test(t, func(t *testing.T) {
			m := newModel()
			m.hogs = 5 * time.Second
			o := m.options(control.Enforce)
			o.Actuator = stuck{m}
			r, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- r.Run(ctx) }()
			time.Sleep(12*time.Second + time.Millisecond)
			if err := r.SetMode(ctx, mode); err == nil || !strings.Contains(err.Error(), "weight batch") {
				t.Errorf("mode %v: error %v, want what was not restored", mode, err)
			}
			if got := r.Status().Mode; got != mode {
				t.Errorf("mode %v, want %v: it has changed", got, mode)
			}
			time.Sleep(time.Second)
			cancel()
			if err := <-ended; err == nil || !strings.Contains(err.Error(), "could not revert") {
				t.Errorf("the run ended with %v", err)
			}
		})
	}
}
