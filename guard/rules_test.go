package guard

import (
	"fmt"
	"math"
	"slices"
	"syscall"
	"testing"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
)

// A window that ends two of its lengths late tells nothing to act on.
func TestLateWindow(t *testing.T) {
	t.Parallel()
	for after, want := range map[watch.Time]int{2 * watch.Second: 0, 2*watch.Second + 1: 1} {
		r, err := New(newModel().options(control.Observe))
		if err != nil {
			t.Fatal(err)
		}
		r.slow.due = 10 * watch.Second
		r.judge(t.Context(), r.slow, r.slow.due+after)
		if r.status.Late != want {
			t.Errorf("%v after its end: %d windows are late, want %d", after, r.status.Late, want)
		}
	}
}

// What accuses somebody who is no group that may be acted on is without remedies.
func TestMayActOn(t *testing.T) {
	t.Parallel()
	k := newInventory()
	k.all["hog"] = &member{}
	for suspect, want := range map[string]int{"hog": 1, "gone": 0, detect.Outside: 0, "": 1} {
		found := []detect.Finding{{Victim: "web", Suspect: suspect, Remedies: []detect.Remedy{detect.Weight}}}
		if got := k.mayActOn(found); len(got[0].Remedies) != want || len(found[0].Remedies) != 1 {
			t.Errorf("%q: %v", suspect, got[0].Remedies)
		}
	}
}

// settled is a model of which the settings of groups are known.
type settled struct {
	*model
	of map[string]actuate.Settings
}

func (s settled) Settings(group string) (actuate.Settings, error) { return s.of[group], nil }

// settledRunner has looked at no group yet.
func settledRunner(t *testing.T, of map[string]actuate.Settings) *Runner {
	t.Helper()
	m := newModel()
	o := m.options(control.Observe)
	o.Actuator = settled{m, of}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What a group's settings make of it, unless the caller has told of it: best effort, if it or one around it
// yields to all others.
func TestClassBySettings(t *testing.T) {
	t.Parallel()
	idle := actuate.Settings{Limits: cgroup.Limits{Idle: cgroup.On}}
	r := settledRunner(t, map[string]actuate.Settings{"batch": idle, "roof": idle, "system": {Essential: "of the host"}})
	for _, tc := range []struct {
		group     string
		told      bool
		class     place.Class
		protected bool
	}{
		{"batch", false, place.BE, false},
		{"batch", true, place.LS, false},
		{"roof/a/b", false, place.BE, false},
		{"roof/a/b", true, place.LS, false},
		{"web", false, place.LS, false},
		{"system", false, place.LS, true},
	} {
		r.add(Workload{Group: tc.group, Class: place.LS}, tc.told, true)
		if m := r.known.all[tc.group]; m.Class != tc.class || m.Protected != tc.protected {
			t.Errorf("%s, told %v: %v, protected %v; want %v, %v", tc.group, tc.told, m.Class, m.Protected, tc.class, tc.protected)
		}
	}
	r.o.OnlyNamed = true
	r.add(Workload{Group: "batch", Class: place.LS}, false, true)
	if m := r.known.all["batch"]; m.Class != place.LS {
		t.Errorf("batch, of which the caller has not told: %v, though only named groups are acted on", m.Class)
	}
}

// A group in the idle class takes CPUs from nobody, and the detector is told that it is in it: it does not accuse it of
// having begun to, as it does any other group that uses as much.
func TestIdleClassIsTold(t *testing.T) {
	t.Parallel()
	for idle, want := range map[bool]bool{false: true, true: false} {
		of := map[string]actuate.Settings{}
		if idle {
			of["hog"] = actuate.Settings{Limits: cgroup.Limits{Idle: cgroup.On}}
		}
		r := settledRunner(t, of)
		r.add(Workload{Group: "web", Class: place.LSR, Sensitive: true}, true, true)
		r.add(Workload{Group: "hog", Class: place.BE}, true, true)
		now, used, waited := watch.Time(0), map[string]float64{}, map[string]float64{}
		sample := func(group string, q watch.Quantity, by string, v float64) watch.Sample {
			s := watch.Sample{Time: now, Quantity: q, By: by, Value: v}
			if group != "" {
				s.Subject = watch.Subject{Scope: watch.Group, Name: group}
			}
			return s
		}
		accused := false
		window := func(use, waits float64) { // of the hog, and for it, per second
			now += r.fast.window
			s := r.fast.window.Seconds()
			used["web"], used["hog"] = used["web"]+1.6*s, used["hog"]+use*s
			waited["web"], waited["hog"] = waited["web"]+0.2*s, waited["hog"]+waits*s
			busy, whole := used["web"]+used["hog"], waited["web"]+waited["hog"]
			samples := []watch.Sample{
				sample("", watch.CPUTime, "", busy), sample("", watch.Steal, "", 0),
				sample("web", watch.CPUTime, "", used["web"]), sample("web", watch.CPUWait, "", whole), sample("web", watch.Queued, "", whole),
				sample("web", watch.QueuedBy, "web", waited["web"]), sample("web", watch.QueuedBy, "hog", waited["hog"]),
				sample("hog", watch.CPUTime, "", used["hog"]),
			}
			for cpu := range 4 {
				of := sample("", watch.CPUTime, "", busy/4)
				of.Subject.Part = watch.Part{Kind: watch.CPU, ID: cpu}
				samples = append(samples, of)
			}
			for _, q := range []watch.Quantity{watch.QueuedKernel, watch.QueuedIdle, watch.QueuedThrottled, watch.CPUPeriods, watch.CPUThrottledPeriods, watch.CPUThrottled} {
				samples = append(samples, sample("web", q, "", 0))
			}
			r.fast.detector.Observe(samples)
			for _, f := range r.fast.detector.Judge(now) {
				accused = accused || f.Takes && f.Suspect == "hog"
			}
		}
		for range 70 {
			for range watch.Second / r.fast.window {
				window(0.2, 0.002)
			}
			r.slow.detector.Observe([]watch.Sample{sample("hog", watch.CPUTime, "", used["hog"])})
			r.slow.detector.Judge(now)
		}
		if accused {
			t.Errorf("idle %v: accused before it begins", idle)
		}
		for range 3 {
			window(2.4, 0.16)
		}
		if accused != want {
			t.Errorf("idle %v: accused %v", idle, accused)
		}
	}
}

// The settings of a suspect are read again before it may be acted on, and those of groups that may be acted on in its
// place: not those of others.
func TestSettingsAreReadAgain(t *testing.T) {
	t.Parallel()
	const now = watch.Second
	for _, tc := range []struct {
		resource detect.Resource
		suspect  string
		again    []string
	}{
		{detect.CPU, "mail", []string{"batch", "mail", "web"}},
		{detect.CPU, "batch", []string{"batch", "web"}},
		{detect.CPU, "unread", []string{"unread", "web"}},
		{detect.Memory, "mail", []string{"mail", "web"}},
	} {
		of := map[string]actuate.Settings{}
		r := settledRunner(t, of)
		for name, use := range map[string]float64{"batch": 2, "mail": 0.5, "little": 0.4, "unread": 0, "web": 0.3} {
			r.add(Workload{Group: name}, true, true)
			of[name] = actuate.Settings{Limits: cgroup.Limits{Weight: 50}}
			for at := now - recentSpan; at <= now && use > 0; at += watch.Time(FastWindow) {
				r.recent.observe([]watch.Sample{{Time: at, Subject: watch.Subject{Scope: watch.Group, Name: name}, Quantity: watch.CPUTime, Value: use * at.Seconds()}})
			}
		}
		r.known.sort()
		var again []string
		for _, w := range r.workloads([]detect.Finding{{Victim: "web", Suspect: tc.suspect, Resource: tc.resource}}, now, false) {
			if w.Limits.Weight == 50 {
				again = append(again, w.Group)
			}
		}
		if !slices.Equal(again, tc.again) {
			t.Errorf("%v, %s: those of %q are read again, want %q", tc.resource, tc.suspect, again, tc.again)
		}
	}
}

// A suspect that the host has come to depend on is protected, and one that yields no more is not best effort, as soon
// as its settings are read again; and back again likewise.
func TestClassIsReadAgain(t *testing.T) {
	t.Parallel()
	idle := actuate.Settings{Limits: cgroup.Limits{Idle: cgroup.On}}
	of := map[string]actuate.Settings{"batch": idle}
	r := settledRunner(t, of)
	r.add(Workload{Group: "web", Class: place.LSR, Sensitive: true}, true, true)
	r.add(Workload{Group: "batch", Class: place.LS}, false, true)
	r.known.sort()
	for i, tc := range []struct {
		is        actuate.Settings
		class     place.Class
		protected bool
	}{
		{idle, place.BE, false},
		{actuate.Settings{}, place.LS, false},
		{actuate.Settings{Essential: "it runs sshd"}, place.LS, true},
		{idle, place.BE, false},
	} {
		of["batch"] = tc.is
		all := r.workloads([]detect.Finding{{Victim: "web", Suspect: "batch", Resource: detect.Memory}}, watch.Second, false)
		w := all[slices.IndexFunc(all, func(w control.Workload) bool { return w.Group == "batch" })]
		if w.Class != tc.class || w.Protected != tc.protected || w.Why != tc.is.Essential {
			t.Errorf("%d: %v, protected %v, as %q; want %v, %v", i, w.Class, w.Protected, w.Why, tc.class, tc.protected)
		}
	}
}

// Groups around others can be acted on if there is nothing but best effort in them, and no process of their
// own; not if one in them is protected.
func TestAncestors(t *testing.T) {
	t.Parallel()
	r := settledRunner(t, map[string]actuate.Settings{"busy": {Populated: true}})
	for group, class := range map[string]place.Class{"be/a": place.BE, "be/b/c": place.BE, "mixed/a": place.BE, "mixed/b": place.LS, "busy/a": place.BE, "alone": place.BE} {
		r.known.all[group] = &member{Workload: Workload{Group: group, Class: class, Protected: group == "be/b/c"}}
	}
	r.known.sort()
	r.findAncestors()
	for group, want := range map[string]bool{"be": true, "be/b": true, "mixed": false, "busy": false, "alone": false} {
		if _, got := r.known.ancestors[group]; got != want {
			t.Errorf("%s: %v, want %v", group, got, want)
		}
	}
	for protected, of := range map[bool]string{true: "be/b", false: "mixed"} {
		if w := r.ancestor(of); w.Protected != protected || w.Class != place.BE {
			t.Errorf("%s: protected %v, want %v", of, w.Protected, protected)
		}
	}
}

// unfocusable is a model whose groups cannot be looked at closely at first.
type unfocusable struct {
	*model
	asked int
}

func (u *unfocusable) Focus(groups []string) error {
	if u.asked++; u.asked == 1 {
		return syscall.EMFILE
	}
	return u.model.Focus(groups)
}

// What could not be focused on is tried again by the next slow window, and what is in focus is not.
func TestFocusIsTriedAgain(t *testing.T) {
	t.Parallel()
	u := &unfocusable{model: newModel()}
	o := u.options(control.Observe)
	o.Sensors = u
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.add(Workload{Group: "svc/web", Class: place.LSR, Sensitive: true}, true, false)
	r.known.sort()
	for window, asked := range []int{1, 2, 2} {
		if r.attend(watch.Time(window+1) * watch.Second); u.asked != asked {
			t.Errorf("after %d windows it was asked %d times, want %d", window+1, u.asked, asked)
		}
	}
	if !slices.Equal(u.focus, []string{"svc/web"}) {
		t.Errorf("in focus are %q", u.focus)
	}
}

// Of more groups in need than can be looked at closely, those that are stay.
func TestFocusStays(t *testing.T) {
	t.Parallel()
	k := newInventory()
	for i := range observe.MaxFocus + 2 {
		k.sensitive = append(k.sensitive, fmt.Sprintf("g%02d", i))
	}
	last := k.sensitive[len(k.sensitive)-1]
	focus := k.focus(k.sensitive, []string{last})
	if len(focus) != observe.MaxFocus || !slices.Contains(focus, last) {
		t.Errorf("%v, want %d with %s", focus, observe.MaxFocus, last)
	}
	needy := k.focus([]string{last}, nil)
	if !slices.Contains(needy, last) {
		t.Errorf("%v, want the one in need, %s", needy, last)
	}
}

// What a group that is gone used is forgotten with it.
func TestGroupsThatAreGone(t *testing.T) {
	t.Parallel()
	r := settledRunner(t, nil)
	r.add(Workload{Group: "gone"}, false, false)
	for second := range 2 {
		s := watch.Subject{Scope: watch.Group, Name: "gone"}
		r.slow.detector.Observe([]watch.Sample{{Time: watch.Time(second+1) * watch.Second, Subject: s, Quantity: watch.CPUTime, Value: float64(second)}})
	}
	if use, _ := r.slow.detector.Usage("gone"); use != 1 {
		t.Fatalf("it uses %v CPUs", use)
	}
	r.look(t.Context(), nil, 5*watch.Second)
	if use, _ := r.slow.detector.Usage("gone"); r.known.has("gone") || !math.IsNaN(use) {
		t.Errorf("it is known: %v, and uses %v CPUs", r.known.has("gone"), use)
	}
}
