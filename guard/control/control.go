// Package control does something about what guard/detect finds: the loop that
// moves a noisy neighbour aside, and proves that it helped.
//
// A Loop is a state machine. Once a window it is given the findings, the
// symptoms and the workloads, and it decides: for each victim and resource, one
// change at a time, the cheapest and most reversible remedy first. It measures
// whether the victim got better, reverts what did not help, holds what did,
// and restores it step by step on trial. Each step is an Event with its
// evidence, what was written and what was measured. docs/design/remedies.md has the
// rules, docs/measurements/remedies.md the figures.
//
// It has no goroutines and touches no files. An Actuator (guard/actuate has it for a
// host) writes and notes the way back; reading samples and finding who
// suffers is left to guard/observe and guard/detect.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Mode is what the loop may do.
type Mode = plain.Enum[modes]

// The modes.
const (
	Observe Mode = iota // nothing: there are findings, and no events
	Preview             // say what it would do
	Enforce             // do it
)

type modes struct{}

var modeNames = []string{Observe: "observe", Preview: "preview", Enforce: "enforce"}

func (modes) Words() []string { return modeNames }

// Config says how the loop behaves. The zero value observes, with the defaults
// that each field names.
type Config struct {
	Mode Mode
	// Window is the time between two calls of Step; 0 is one second. It is that of
	// detect.Config. Short windows may come in between (Input.Near), of the length Near;
	// 0 is Window.
	Window, Near time.Duration
	// Machine is the hardware; nil where it is unknown, and all CPUs count as one
	// cache domain then.
	Machine *machine.Machine
	// Remedies are what the loop may do; nil is all of Remedies. A finding says which of
	// them help, and in which order.
	Remedies []Remedy
	// Protected are globs (path.Match) of groups that are never acted on, with all
	// below them; nor is a group around one. init.scope and Own always are.
	Protected []string
	// Own is the group of this program; "" if it has none of its own.
	Own string
	// Allowed are globs of groups that may be acted on like best-effort work though
	// they are of another class.
	Allowed []string
	// Weigh lets remedies of weight (cpu.weight, io.weight), and only those, be used
	// against suspects that are LS or SYSTEM; never against LSE and LSR. By default
	// these are reported and left alone.
	Weigh bool
	// Suppression is a limit on all best-effort work by what the node has left; nil
	// has no limit.
	Suppression *Suppression

	// Hold is how long an action is active before a relaxation is tried, if the
	// victim has been well meanwhile (strength at most 0.8); 0 is 30 s. After a
	// relaxation that failed, or a finding soon after one, it is doubled, up to 30 min.
	// While a best-effort group that yields the CPU (Weight) still uses at least half of
	// its former CPU time, it is ten times as long, up to 30 min.
	Hold time.Duration
	// PerMinute is how many actions the loop may take in a minute on average, and
	// Burst how many at once; 0 is 20 and 10. Reverting is always allowed, which
	// at most doubles the number of writes.
	PerMinute, Burst int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Validate reports what no loop could work with.
func (c Config) Validate() error {
	var errs []error
	if !c.Mode.Known() {
		errs = append(errs, fmt.Errorf("mode %v: not one of %v", c.Mode, modeNames))
	}
	if c.Window < 0 || c.Near < 0 || c.Hold < 0 {
		errs = append(errs, fmt.Errorf("windows %v and %v, hold %v: negative", c.Window, c.Near, c.Hold))
	}
	if c.PerMinute < 0 || c.Burst < 0 {
		errs = append(errs, fmt.Errorf("%d actions a minute, %d at once: negative", c.PerMinute, c.Burst))
	}
	for _, glob := range slices.Concat(c.Protected, c.Allowed) {
		if _, err := path.Match(glob, ""); err != nil {
			errs = append(errs, fmt.Errorf("group %q: not a glob", glob))
		}
	}
	if c.Machine != nil {
		errs = append(errs, c.Machine.Validate())
	}
	if c.Suppression != nil {
		errs = append(errs, c.Suppression.Validate())
	}
	return errors.Join(append(errs, validate(c.Remedies))...)
}

func (c Config) withDefaults() Config {
	if c.Remedies == nil {
		c.Remedies = builtIn
	}
	c.Window = cmp.Or(c.Window, time.Second)
	c.Near = cmp.Or(c.Near, c.Window)
	c.Hold = cmp.Or(c.Hold, 30*time.Second)
	c.PerMinute = cmp.Or(c.PerMinute, 20)
	c.Burst = cmp.Or(c.Burst, 10)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Loop decides how to act on findings. It is for one goroutine at a time.
type Loop struct {
	cfg         Config
	act         Actuator
	escalations []*escalation // by victim, then resource
	overrides   overrides     // active or, in mode Preview, that would be
	bucket      bucket
	last        [2]time.Time  // the step before: by the windows, and by the short ones
	checked     time.Time     // when active settings were last read back
	now         time.Time     // of this step
	window      time.Duration // that ends with this step
	late        bool          // this step came too late to conclude anything from
	in          Input
	byGroup     map[string]*Workload
	exempt      []exempt
	events      []Event // of this step
	limit       suppressed
}

// New returns a Loop with nothing active. The Actuator may be nil, but not in mode
// Enforce: then the events of mode Preview have no changes.
func New(c Config, act Actuator) (*Loop, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("new guard loop: %w", err)
	}
	if act == nil && c.Mode == Enforce {
		return nil, fmt.Errorf("new guard loop: mode %v needs an actuator", c.Mode)
	}
	c = c.withDefaults()
	l := &Loop{cfg: c, act: act, byGroup: map[string]*Workload{}, overrides: newOverrides(act, c.Remedies)}
	l.overrides.preview = c.Mode == Preview
	l.bucket = newBucket(c.PerMinute, c.Burst, c.Now())
	return l, nil
}

// Mode returns the mode.
func (l *Loop) Mode() Mode { return l.cfg.Mode }

// SetMode changes the mode. Everything is reverted first; what cannot be is an
// error, and tried again by each Step, whatever the mode: the mode has changed then.
func (l *Loop) SetMode(ctx context.Context, m Mode) ([]Event, error) {
	if !m.Known() {
		return nil, fmt.Errorf("set guard mode %v: not one of %v", m, modeNames)
	}
	if l.act == nil && m == Enforce {
		return nil, fmt.Errorf("set guard mode %v: no actuator", m)
	}
	if m == l.cfg.Mode {
		return nil, nil
	}
	events := l.Release(ctx)
	l.cfg.Mode, l.overrides.preview = m, m == Preview
	if owed := l.PendingReverts(); len(owed) > 0 {
		return events, fmt.Errorf("set guard mode %v: not reverted yet, and tried again: %v", m, owed)
	}
	return events, nil
}

// PendingReverts returns what could not be reverted or put right yet, by group, then remedy.
// Each Step, and Release, tries it again.
func (l *Loop) PendingReverts() []Action { return l.overrides.pendingActions() }

// Release reverts all actions, the last first, and forgets which remedies helped. What cannot be
// reverted is tried again by the next call of it or of Step.
func (l *Loop) Release(ctx context.Context) []Event {
	l.begin(Input{})
	for i := len(l.escalations) - 1; i >= 0; i-- {
		l.drop(ctx, l.escalations[i], "everything is reverted")
	}
	l.escalations = nil
	l.releaseSuppression(ctx, "everything is reverted")
	l.retry(ctx, true)
	return l.events
}

// Helped returns the victims for which something is active or on trial, sorted.
// Where they are Unsettled, their signals should stay as they are meanwhile.
func (l *Loop) Helped() []string {
	var victims []string
	for _, at := range l.escalations {
		if len(at.steps) > 0 || at.trial != nil {
			victims = append(victims, at.victim)
		}
	}
	return slices.Compact(victims)
}

// Unsettled reports whether a step is being verified or on trial, or a relaxation is due;
// or will be so soon, for victims that are judged by the short windows.
func (l *Loop) Unsettled(soon time.Duration) bool {
	now := l.cfg.Now()
	return slices.ContainsFunc(l.escalations, func(at *escalation) bool {
		left := at.relaxAt.Sub(now)
		if at.near {
			left -= soon
		}
		return at.phase == Verifying || at.phase == Relaxing || len(at.steps) > 0 && left < 0
	})
}

// State is where the loop stands with one victim and resource.
type State struct {
	Victim   string          `json:"victim"`
	Resource detect.Resource `json:"resource"`
	Phase    Phase           `json:"phase"`
	// Since is when the phase began.
	Since time.Time `json:"since"`
	// Actions are active, or would be in mode preview, the first taken first.
	Actions []Action `json:"actions,omitempty"`
	// Strength is the symptom's in the last window in which it was known.
	Strength float64 `json:"strength"`
	// Until is when the next relaxation is tried at the earliest or, in phase
	// Unresolved, when the last cool-down ends.
	Until time.Time `json:"until,omitzero"`
}

// State returns where the loop stands, by victim, then resource.
func (l *Loop) State() []State {
	var all []State
	for _, at := range l.escalations {
		s := State{Victim: at.victim, Resource: at.resource, Phase: at.phase, Since: at.since, Strength: at.strengths.last()}
		for i := range at.steps {
			s.Actions = append(s.Actions, at.steps[i].action)
		}
		switch at.phase {
		case Holding:
			s.Until = at.relaxAt
		case Unresolved:
			s.Until = at.until
		}
		all = append(all, s)
	}
	return all
}

// Active returns what is active, or would be in mode preview, by group, then
// remedy; suppression included.
func (l *Loop) Active() []Action { return l.overrides.active() }

// Step takes in a window and does what is due. It is to be called once a window,
// and at least every three: later calls only revert. The Input is not
// kept. Errors of the Actuator are events.
func (l *Loop) Step(ctx context.Context, in Input) []Event {
	if l.cfg.Mode == Observe && !l.overrides.pending() {
		return nil
	}
	l.begin(in)
	l.retry(ctx, false)
	if l.cfg.Mode == Observe {
		return l.events
	}
	l.checkDrift(ctx)
	for _, at := range slices.Clone(l.escalations) {
		l.move(at, l.closely(at.victim, at.resource))
		switch {
		case at.near == in.Near:
			l.reconcile(ctx, at)
		case in.Resting:
			l.rest(ctx, at)
		}
	}
	for i := range in.Findings {
		l.react(ctx, &in.Findings[i])
	}
	if !in.Near {
		l.suppress(ctx)
	}
	l.escalations = slices.DeleteFunc(l.escalations, func(at *escalation) bool { return at.done(l.now) })
	l.in = Input{}
	return l.events
}

// begin starts a step: its time, its view of the workloads, no events yet.
func (l *Loop) begin(in Input) {
	l.now = l.cfg.Now()
	l.window = l.cfg.Window
	last := &l.last[0]
	if in.Near {
		l.window, last = l.cfg.Near, &l.last[1]
	}
	l.late = !last.IsZero() && l.now.Sub(*last) > max(3*l.window, mostLate)
	*last, l.in, l.events = l.now, in, nil
	clear(l.byGroup)
	l.exempt = l.exempt[:0]
	for i := range in.Workloads {
		w := &in.Workloads[i]
		l.byGroup[w.Group] = w
		if w.Protected || !w.Class.Traits().Squeezed {
			l.exempt = append(l.exempt, exempt{w.Group, w.Class, w.Protected, w.Why})
		}
	}
}

// closely reports whether a victim's lack of a resource is judged by the short windows.
func (l *Loop) closely(victim string, r detect.Resource) bool {
	return l.in.Closely != nil && l.in.Closely(victim, r)
}

// verifyWindows is the number of windows, most of which at least decide that an action
// helps, and all of which that it does not, if they make up failWithin: 5, or as many as
// make up a second. Noise may take more of them.
func (l *Loop) verifyWindows() int { return max(5, int((time.Second+l.window-1)/l.window)) }

// maxHold bounds the time between two trials.
func (l *Loop) maxHold() time.Duration { return max(30*time.Minute, l.cfg.Hold) }

const (
	// mostLate is how late a window may come, three of its lengths at least, for it to tell
	// something; and for how long, three windows at least, signals may be lost.
	mostLate = 300 * time.Millisecond
	// next is how long after a relaxation that went well the next one is tried.
	next = 10 * time.Second
	// coolDown is for how long a suspect against whom nothing helps, or may be done, for a
	// victim and resource, and a remedy that did not help, are left alone.
	coolDown = 5 * time.Minute
)

// exempt is a workload that is not simply best effort: what permits has to look at.
type exempt struct {
	group     string
	class     place.Class
	protected bool
	why       string // of a protected one
}

// escalation finds the escalation of a victim and resource, or makes one.
func (l *Loop) escalation(victim string, r detect.Resource) *escalation {
	i, found := slices.BinarySearchFunc(l.escalations, victim, func(at *escalation, victim string) int {
		return cmp.Or(strings.Compare(at.victim, victim), cmp.Compare(at.resource, r))
	})
	if !found {
		l.escalations = slices.Insert(l.escalations, i, &escalation{victim: victim, resource: r, near: l.closely(victim, r), since: l.now, wait: l.cfg.Hold})
	}
	return l.escalations[i]
}

// retry repeats the changes that the kernel has refused.
func (l *Loop) retry(ctx context.Context, force bool) {
	reverted, failed, errs := l.overrides.retry(ctx, l.now, force)
	for _, r := range reverted {
		l.file(Reverted, r.action, Event{Changes: r.changes, Text: "refused before; it is not active any more"})
	}
	for i, k := range failed {
		a := Action{Remedy: k.remedy, Group: k.group}
		if k.now != nil {
			a = *k.now
		}
		l.file(Failed, a, Event{Alert: true, Text: fmt.Sprintf("%v of %s, which the kernel has refused before: %v", a.Remedy, a.Group, errs[i])})
	}
}

// emit files an event about a step; what is set in e stays.
func (l *Loop) emit(o Outcome, s *step, e Event) {
	e.Confidence, e.Evidence = s.confidence, s.evidence
	l.file(o, s.action, e)
}

// file files an event about an action; what is set in e stays.
func (l *Loop) file(o Outcome, a Action, e Event) {
	e.Time, e.Mode, e.Outcome = l.now, l.cfg.Mode, o
	e.Victim, e.Suspect, e.Resource, e.Action = a.Victim, a.Suspect, a.Resource, &a
	l.events = append(l.events, e)
}
