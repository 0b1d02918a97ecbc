package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// scribe notes what the overrides have written, and refuses it while refuse is set.
type scribe struct {
	said   []string
	refuse error
}

func (s *scribe) say(what string, a Action) ([]Change, error) {
	if s.refuse == nil {
		s.said = append(s.said, strings.TrimSpace(fmt.Sprint(what, " ", a.Limits.Settings())))
	}
	return nil, s.refuse
}

func (s *scribe) Preview(_ context.Context, a Action) ([]Change, error) { return s.say("preview", a) }
func (s *scribe) Apply(_ context.Context, a Action) ([]Change, error)   { return s.say("apply", a) }
func (s *scribe) Revert(_ context.Context, a Action) ([]Change, error)  { return s.say("revert", a) }

func (s *scribe) take() string {
	defer func() { s.said = nil }()
	return strings.Join(s.said, ", ")
}

// Of what several victims want the strongest is active, and what is left once it is
// reverted.
func TestStrongestWish(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		remedy       detect.Remedy
		weak, strong cgroup.Limits
	}{
		{detect.Weight, cgroup.Limits{Weight: 25}, cgroup.Limits{Weight: 1}},
		{detect.Weight, cgroup.Limits{Weight: 25}, cgroup.Limits{Idle: cgroup.On}},
		{detect.HeadroomCap, quota(2), quota(1)},
		{detect.ShrinkCPUs, cgroup.Limits{CPUs: cpuset.MustParse("0-2")}, cgroup.Limits{CPUs: cpuset.MustParse("7")}},
		{detect.Burst, cgroup.Limits{Burst: time.Millisecond}, cgroup.Limits{Burst: 2 * time.Millisecond}}, // it gives
		{detect.MemoryHigh, cgroup.Limits{MemoryHigh: 1 << 30}, cgroup.Limits{MemoryHigh: 1 << 20}},
		{detect.IOWeight, cgroup.Limits{IOWeight: 10}, cgroup.Limits{IOWeight: 1}},
	} {
		s := &scribe{}
		k := newOverrides(s, builtIn)
		do := func(_ []Change, err error) {
			if err != nil {
				t.Error(err)
			}
		}
		weak, strong := Action{Remedy: tc.remedy, Group: "g", Limits: tc.weak}, Action{Remedy: tc.remedy, Group: "g", Limits: tc.strong}
		applied := func(a Action) string { return fmt.Sprint("apply ", a.Limits.Settings()) }
		for i, step := range []struct {
			do   func()
			want string
		}{
			{func() { do(k.set(t.Context(), "a", weak)) }, applied(weak)},
			{func() { do(k.set(t.Context(), "b", strong)) }, applied(strong)},
			{func() { do(k.set(t.Context(), "a", weak)) }, ""},
			{func() { do(k.unset(t.Context(), "a", weak)) }, ""},
			{func() { do(k.set(t.Context(), "a", weak)) }, ""},
			{func() { do(k.unset(t.Context(), "b", strong)) }, applied(weak)},
			{func() { do(k.unset(t.Context(), "a", weak)) }, "revert " + fmt.Sprint(weak.Limits.Settings())},
		} {
			step.do()
			if got := s.take(); got != step.want {
				t.Errorf("%v, step %d: %q, want %q", tc.remedy, i, got, step.want)
			}
		}
		if len(k.all) > 0 || len(k.asked) > 0 || len(k.want.Of("g")) > 0 {
			t.Errorf("%v: left over: %v, %v, %v", tc.remedy, k.all, k.asked, k.want)
		}
	}
}

// A refused change is tried again after 1 s, 2 s and so on, from 1 s after it went well.
func TestRetryPace(t *testing.T) {
	t.Parallel()
	s := &scribe{}
	k := newOverrides(s, builtIn)
	a := Action{Remedy: detect.IOWeight, Group: "g", Limits: cgroup.Limits{IOWeight: 10}}
	stays := Action{Remedy: detect.IOWeight, Group: "g", Limits: cgroup.Limits{IOWeight: 50}}
	for owner, a := range map[string]Action{"a": a, "b": stays} {
		if _, err := k.set(t.Context(), owner, a); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	for range 2 {
		s.refuse = errors.New("refused by the test")
		if _, err := k.unset(t.Context(), "a", a); err == nil {
			t.Fatal("it is not refused")
		}
		var failed []string
		for second := range 9 {
			if _, all, _ := k.retry(t.Context(), now.Add(time.Duration(second)*time.Second), false); len(all) > 0 {
				failed = append(failed, fmt.Sprint(second))
			}
		}
		if got := strings.Join(failed, " "); got != "1 3 7" {
			t.Errorf("tried after %s seconds", got)
		}
		s.refuse, now = nil, now.Add(time.Hour)
		if _, _, errs := k.retry(t.Context(), now, false); len(errs) > 0 || k.pending() {
			t.Errorf("%v; owed %v", errs, k.pendingActions())
		}
		if _, err := k.set(t.Context(), "a", a); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
}

// How often somebody else has changed a setting is forgotten with the override.
func TestDriftIsForgotten(t *testing.T) {
	t.Parallel()
	k := newOverrides(&scribe{}, builtIn)
	a := Action{Remedy: detect.IOWeight, Group: "g", Limits: cgroup.Limits{IOWeight: 10}}
	for range 3 {
		if _, err := k.set(t.Context(), "a", a); err != nil {
			t.Fatal(err)
		}
		at := k.find(a)
		if count, yielded := k.drift.Found(at.target, 1); count != 1 || yielded {
			t.Errorf("found %d times, yielded %v", count, yielded)
		}
		if _, err := k.unset(t.Context(), "a", a); err != nil {
			t.Fatal(err)
		}
	}
}

// A setting that is gone with its group, or is somebody else's by now, is owed no more. Any other that cannot
// be reverted is, and whatever is in or around its group waits for it.
func TestOwed(t *testing.T) {
	t.Parallel()
	for err, owed := range map[error]bool{fs.ErrNotExist: false, kernel.ErrChanged: false, errors.New("refused by the test"): true} {
		s := &scribe{}
		k := newOverrides(s, builtIn)
		a := Action{Remedy: detect.IOWeight, Group: "pods/batch", Limits: cgroup.Limits{IOWeight: 10}}
		if _, err := k.set(t.Context(), "a", a); err != nil {
			t.Fatal(err)
		}
		s.refuse = err
		if _, got := k.unset(t.Context(), "a", a); (got != nil) != owed {
			t.Errorf("%v: %v, want it owed: %v", err, got, owed)
		}
		for group, near := range map[string]bool{"pods/batch": true, "pods": true, "pods/batch/job": true, "pods/mail": false} {
			if got := k.pendingAt(group); got != (owed && near) {
				t.Errorf("%v: pending at %s: %v, want %v", err, group, got, owed && near)
			}
		}
	}
}

// A wish that was refused is none: what was active before is, and the owner has what it had.
func TestRefusedWish(t *testing.T) {
	t.Parallel()
	s := &scribe{}
	k := newOverrides(s, builtIn)
	a := func(weight int) Action {
		return Action{Remedy: detect.IOWeight, Group: "g", Limits: cgroup.Limits{IOWeight: weight}}
	}
	if _, err := k.set(t.Context(), "a", a(10)); err != nil {
		t.Fatal(err)
	}
	s.refuse = errors.New("refused by the test")
	if _, err := k.set(t.Context(), "a", a(1)); err == nil {
		t.Fatal("it is not refused")
	}
	s.refuse = nil
	s.take()
	if _, _, errs := k.retry(t.Context(), time.Now(), true); len(errs) > 0 || k.pending() {
		t.Fatal(errs)
	}
	want := a(10)
	if got := s.take(); got != fmt.Sprint("apply ", want.Limits.Settings()) {
		t.Errorf("then %q is written, want what was active before", got)
	}
}
