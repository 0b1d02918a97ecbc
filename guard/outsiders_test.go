package guard

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/proc"
)

// Of the processes in no group those are named that use most now, not those that used most ever.
func TestOutsiders(t *testing.T) {
	t.Parallel()
	at := func(s float64, used map[string]float64) (all []watch.Sample) {
		now := watch.Time(s * 1e9)
		for name, v := range used {
			all = append(all, watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Process, Name: name}, Quantity: watch.CPUTime, Value: v})
		}
		return append(all,
			watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Process}, Quantity: watch.CPUTime, Value: 1e6}, // of all
			watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Process, Name: "stress-ng-cpu"}, Quantity: watch.CPUWait, Value: 1e6},
			watch.Sample{Time: now - 1e9, Subject: watch.Subject{Scope: watch.Process, Name: "new"}, Quantity: watch.CPUTime, Value: 0})
	}
	var o outsiders
	o.take(1e9, at(1, map[string]float64{"stress-ng-cpu": 1, "old": 900, "wrk": 5}))
	if len(o.now) > 0 {
		t.Errorf("after one reading: %v, want nobody", o.now)
	}
	o.take(3e9, at(3, map[string]float64{"stress-ng-cpu": 4, "old": 900, "wrk": 6, "new": 2, "(kernel threads)": 0.2, "a": 0.3}))
	want := []detect.Outsider{{Program: "stress-ng-cpu", CPUs: 1.5}, {Program: "new", CPUs: 1}, {Program: "wrk", CPUs: 0.5}}
	if diff := cmp.Diff(want, o.now); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// A program that is first seen in a reading has two samples then. The next one counts from the later of them.
	o.take(5e9, at(5, map[string]float64{"new": 3}))
	if diff := cmp.Diff([]detect.Outsider{{Program: "new", CPUs: 0.5}}, o.now); diff != "" {
		t.Errorf("the next reading (-want +got):\n%s", diff)
	}
}

// outside is a model whose hog is in no group.
type outside struct {
	*model
	asked   []time.Duration
	actions []control.Action
}

func (o *outside) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	to, err := o.model.TickNear(now, to)
	for i := range to {
		if to[i].By == "batch/hog" {
			to[i].By = detect.Outside
		}
	}
	return to, err
}

func (o *outside) Outsiders(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	o.asked = append(o.asked, time.Since(o.began))
	return append(to, watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Process, Name: "make"}, Quantity: watch.CPUTime, Value: 1.5 * time.Since(o.began).Seconds()}), nil
}

func (o *outside) BusyOutsiders(float64) []proc.Busy {
	return []proc.Busy{{PID: 7, Start: "70", Program: "make", CPUs: 1.5}, {PID: 8, Start: "80", Program: "sshd", CPUs: 0.2}}
}

// Actable has sshd left alone.
func (o *outside) Actable(of []control.Process) []control.Process {
	return slices.DeleteFunc(slices.Clone(of), func(p control.Process) bool { return p.Program == "sshd" })
}

func (o *outside) Apply(_ context.Context, a control.Action) ([]control.Change, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.idle = true
	o.actions = append(o.actions, a)
	return []control.Change{{Path: "/proc/7@70/sched.policy", From: "SCHED_OTHER", To: "SCHED_IDLE"}}, nil
}

func (o *outside) Preview(context.Context, control.Action) ([]control.Change, error) { return nil, nil }

// Processes in no group are acted on where the operator allows it, in the way that is allowed, and
// given back once they are gone.
func TestActsOnOutsiders(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		allowed []OutsiderUse
		want    string // the action
	}{
		"by default":     {nil, ""},
		"idle":           {[]OutsiderUse{OutsidersAffinity, OutsidersIdle}, "process_weight /: SCHED_IDLE"},
		"nice":           {[]OutsiderUse{OutsidersNice}, "process_weight /: weight 1 by nice"},
		"affinity alone": {[]OutsiderUse{OutsidersAffinity}, "process_cpus /: CPUs 2-3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := &outside{model: newModel()}
				m.hogs = 20 * time.Second
				o := m.options(control.Enforce)
				o.Sensors, o.Actuator, o.Outsiders = m, m, tt.allowed
				events, errs := runFor(t, o, time.Minute)
				if len(errs) > 0 {
					t.Fatal(errs)
				}
				if tt.want == "" {
					if len(m.actions) > 0 || len(events) > 0 {
						t.Errorf("acted without being allowed to: %v; %v", m.actions, events)
					}
					return
				}
				if len(m.actions) == 0 || m.actions[0].String() != tt.want {
					t.Fatalf("did %v, want %q first; %v", m.actions, tt.want, events)
				}
				want := []control.Process{{PID: 7, Start: "70", Program: "make"}}
				if diff := cmp.Diff(want, m.actions[0].Processes); diff != "" {
					t.Errorf("acted on (-want +got):\n%s", diff)
				}
				kept := slices.ContainsFunc(events, func(e control.Event) bool { return e.Outcome == control.Kept })
				said := events[0].Sentence(func(group string) string { return group })
				if !kept || !strings.Contains(said, "(make)") {
					t.Errorf("%v, want it kept; %q, want it to name the program", events, said)
				}
				if idle, _ := m.state(); idle || len(m.givenBack) == 0 {
					t.Error("it is not given back at the end")
				}
			})
		})
	}
}

// Nobody is acted on by the first reading after a rest: what processes used is an average over all of that.
func TestOutsidersAfterARest(t *testing.T) {
	t.Parallel()
	m := &outside{model: newModel()}
	o := m.options(control.Enforce)
	o.Sensors, o.Actuator, o.Outsiders = m, m, []OutsiderUse{OutsidersIdle}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.outside.until = 10 * watch.Second
	for _, tc := range []struct {
		at  watch.Time
		all int
	}{{watch.Second, 0}, {2 * watch.Second, 1}, {10 * watch.Second, 0}} {
		if r.readOutsiders(tc.at); len(r.outside.actable) != tc.all {
			t.Errorf("at %v: %v, want %d", time.Duration(tc.at), r.outside.actable, tc.all)
		}
	}
	r.outside.until = 20 * watch.Second
	if r.readOutsiders(11 * watch.Second); len(r.outside.actable) > 0 {
		t.Errorf("after the rest: %v", r.outside.actable)
	}
}

// However many processes there are, no more than so many are acted on at once: those that use most,
// then those that were, but for those that have ended.
func TestChosenOutsiders(t *testing.T) {
	t.Parallel()
	var busy []proc.Busy
	var held []control.Process
	for i := range 20 {
		busy = append(busy, proc.Busy{PID: 100 + i, Start: "1", CPUs: 0.1})
		held = append(held, control.Process{PID: 110 + i, Start: "1"}) // half of them are busy
	}
	living := func(of []control.Process) []control.Process {
		return slices.DeleteFunc(of, func(p control.Process) bool { return p.PID == 120 })
	}
	pids := func(of []control.Process) (all []int) {
		for _, p := range of {
			all = append(all, p.PID)
		}
		return all
	}
	var want []int
	for pid := 100; pid < 130; pid++ {
		if pid != 120 {
			want = append(want, pid)
		}
	}
	if got := pids(chosen(busy, held, living)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for i := range 200 {
		busy = append(busy, proc.Busy{PID: 1000 + i, Start: "1", CPUs: 0.05})
	}
	if got := chosen(busy, held, living); len(got) != mostActable || got[0].PID != 100 || got[mostActable-1].PID != 1000+mostActable-21 {
		t.Errorf("of a crowd: %v", pids(got))
	}
}

// A finding against processes in no group says who they are; they are looked at only while they
// are accused.
func TestFindingNamesOutsiders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &outside{model: newModel()}
		m.hogs, m.ends = 20*time.Second, 30*time.Second
		o := m.options(control.Observe)
		o.Sensors, o.Repeat = m, time.Hour
		var named []detect.Outsider
		o.Found = func(all []detect.Finding) {
			for _, f := range all {
				if f.Suspect == detect.Outside && len(f.Outsiders) > 0 {
					named = f.Outsiders
				}
			}
		}
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]detect.Outsider{{Program: "make", CPUs: 1.5}}, named); diff != "" {
			t.Errorf("named (-want +got):\n%s", diff)
		}
		if len(m.asked) == 0 || m.asked[0] < m.hogs || slices.Max(m.asked) > m.ends+30*time.Second {
			t.Errorf("looked at at %v, want it from %v on and not long after %v", m.asked, m.hogs, m.ends)
		}
	})
}

// Named are the three programs that use most, of those that use a twentieth of a CPU at least.
func TestBusyPrograms(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		uses map[string]float64
		want []string
	}{
		{map[string]float64{"make": 0.05, "sh": 0.0499, "ld": 2, "": 3}, []string{"ld", "make"}},
		{map[string]float64{"make": 0.06, "as": 0.05, "ld": 2, "cc1": 0.5}, []string{"ld", "cc1", "make"}},
	} {
		var o outsiders
		for second := range 2 {
			now := watch.Time(second+1) * watch.Second
			var samples []watch.Sample
			for program, use := range tc.uses {
				samples = append(samples, watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Process, Name: program}, Quantity: watch.CPUTime, Value: use * float64(second)})
			}
			o.take(now, samples)
		}
		var named []string
		for _, p := range o.now {
			named = append(named, p.Program)
		}
		if !slices.Equal(named, tc.want) {
			t.Errorf("%v: named %v, want %v", tc.uses, named, tc.want)
		}
	}
}
