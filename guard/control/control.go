// Package control does something about what guard/detect finds: the loop that
// moves a noisy neighbour aside, and proves that it helped.
//
// A Loop is a state machine. Once a window it is given the findings, the
// symptoms and the workloads, and it decides: for each victim and resource, one
// change at a time, the cheapest and most reversible remedy first. It measures
// whether the victim got better, takes back what did not help, holds what did,
// and gives it back step by step on trial. Each step is an Event with its
// evidence, what was written and what was measured. docs/guard.md has the rules
// and the figures.
//
// It has no goroutines and touches no files. An Actuator, which the agent
// implements, writes and notes the way back; reading samples and finding who
// suffers is left to guard/observe and guard/detect.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/enum"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Mode is what the loop may do.
type Mode uint8

// The modes.
const (
	Observe Mode = iota // nothing: there are findings, and no events
	Preview             // say what it would do
	Enforce             // do it
)

var modeNames = []string{Observe: "observe", Preview: "preview", Enforce: "enforce"}

// String returns the mode's name, "enforce".
func (m Mode) String() string { return enum.Name(modeNames, m) }

// MarshalText writes the mode's name.
func (m Mode) MarshalText() ([]byte, error) { return enum.Marshal(modeNames, m) }

// UnmarshalText reads the mode's name.
func (m *Mode) UnmarshalText(text []byte) error { return enum.Unmarshal(modeNames, text, m) }

// Config says how the loop behaves. The zero value observes, with the defaults
// that each field names.
type Config struct {
	Mode Mode
	// Window is the time between two calls of Step; 0 is one second. It is that of
	// detect.Config.
	Window time.Duration
	// Machine is the hardware; nil where it is unknown, and all CPUs count as one
	// cache domain then.
	Machine *machine.Machine
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
	// is none.
	Suppression *Suppression

	// Verify is the number of windows in which an action has to show that it helps;
	// 0 is 5 windows or as many as make up a second, whichever is more. Most of
	// them decide.
	Verify int
	// Hold is how long an action is in force before a relaxation is tried, if the
	// victim has been well meanwhile (strength at most 0.8); 0 is 30 s. After a
	// relaxation that failed, or a finding soon after one, it is doubled up to
	// MaxHold, 0 is 30 min. While a best-effort group that was told to yield (Weight on
	// the CPU) uses half of what it did or more, it is ten times as long, up to MaxHold.
	Hold, MaxHold time.Duration
	// Next is how long after a relaxation that went well the next one is tried; 0
	// is 10 s.
	Next time.Duration
	// CoolDown is for how long a suspect against whom nothing helps, or may be done,
	// for a victim and resource, and a remedy that did not, are left alone; 0 is 5 min.
	CoolDown time.Duration
	// PerMinute is how many actions the loop may take in a minute on average, and
	// Burst how many at once; 0 is 20 and 10. Taking back is always allowed, which
	// at most doubles the number of writes.
	PerMinute, Burst int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Validate reports what no loop could work with.
func (c Config) Validate() error {
	var errs []error
	if int(c.Mode) >= len(modeNames) {
		errs = append(errs, fmt.Errorf("mode %v: not one of %v", c.Mode, modeNames))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"window", c.Window}, {"hold", c.Hold}, {"max hold", c.MaxHold}, {"next", c.Next}, {"cool-down", c.CoolDown}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s %v: negative", d.name, d.value))
		}
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"verify", c.Verify}, {"actions per minute", c.PerMinute}, {"burst", c.Burst}} {
		if n.value < 0 {
			errs = append(errs, fmt.Errorf("%s %d: negative", n.name, n.value))
		}
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
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	c.Window = cmp.Or(c.Window, time.Second)
	c.Verify = cmp.Or(c.Verify, max(5, int((time.Second+c.Window-1)/c.Window)))
	c.Hold = cmp.Or(c.Hold, 30*time.Second)
	c.MaxHold = max(cmp.Or(c.MaxHold, 30*time.Minute), c.Hold)
	c.Next = cmp.Or(c.Next, 10*time.Second)
	c.CoolDown = cmp.Or(c.CoolDown, 5*time.Minute)
	c.PerMinute = cmp.Or(c.PerMinute, 20)
	c.Burst = cmp.Or(c.Burst, 10)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Loop decides what is done about findings. It is for one goroutine at a time.
type Loop struct {
	cfg     Config
	act     Actuator
	ladders []*ladder // by victim, then resource
	real    knobs     // what the kernel was told
	virtual knobs     // what it would have been told, in mode Preview
	bucket  bucket
	last    time.Time     // of the step before
	checked time.Time     // when what is in force was last read back
	now     time.Time     // of this step
	passed  time.Duration // since the step before
	late    bool          // this step came too late to conclude anything from
	in      Input
	byGroup map[string]*Workload
	spared  []spared
	events  []Event // of this step
	limit   suppressed
}

// New returns a Loop with nothing in force. The Actuator may be nil in mode
// Observe, in which it stays then.
func New(c Config, act Actuator) (*Loop, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("new guard loop: %w", err)
	}
	if act == nil && c.Mode != Observe {
		return nil, fmt.Errorf("new guard loop: mode %v needs an actuator", c.Mode)
	}
	c = c.withDefaults()
	l := &Loop{cfg: c, act: act, byGroup: map[string]*Workload{}, real: knobs{act: act}, virtual: knobs{act: act, virtual: true}}
	l.bucket = newBucket(c.PerMinute, c.Burst, c.Now())
	return l, nil
}

// Mode returns the mode.
func (l *Loop) Mode() Mode { return l.cfg.Mode }

// SetMode changes the mode. Everything is taken back first; what cannot be is an
// error, and tried again by each Step, whatever the mode: the mode has changed then.
func (l *Loop) SetMode(ctx context.Context, m Mode) ([]Event, error) {
	if int(m) >= len(modeNames) {
		return nil, fmt.Errorf("set guard mode %v: not one of %v", m, modeNames)
	}
	if l.act == nil && m != Observe {
		return nil, fmt.Errorf("set guard mode %v: no actuator", m)
	}
	if m == l.cfg.Mode {
		return nil, nil
	}
	events := l.Release(ctx)
	l.cfg.Mode = m
	if owed := l.Owed(); len(owed) > 0 {
		return events, fmt.Errorf("set guard mode %v: not given back yet, and tried again: %v", m, owed)
	}
	return events, nil
}

// Owed returns what could not be taken back or put right yet, by group, then remedy.
// Each Step, and Release, tries it again.
func (l *Loop) Owed() []Action { return l.real.owed() }

// book is where the present mode keeps its actions.
func (l *Loop) book() *knobs {
	if l.cfg.Mode == Preview {
		return &l.virtual
	}
	return &l.real
}

// Held is an action in force, as one loop leaves it to another.
type Held struct {
	Action
	// Kept says that it has shown that it helps. If not, it has to, from the first
	// windows on; of several for one victim and resource the last.
	Kept bool
	// Strength is that of the symptom before it; 0 is unknown, and the victim has to be
	// well.
	Strength float64
	// Use is what its group used before it, in CPUs; 0 is unknown.
	Use float64
}

// Adopt takes over actions that an earlier loop left in force, so that they are
// verified, held, and relaxed like others. It is to be called between two calls of
// Step, in mode Enforce; actions that are not adopted are the caller's to take back.
func (l *Loop) Adopt(actions []Held) ([]Event, error) {
	if l.cfg.Mode != Enforce {
		return nil, fmt.Errorf("adopt %d actions: mode is %v, not %v", len(actions), l.cfg.Mode, Enforce)
	}
	l.begin(Input{})
	for _, h := range actions {
		if h.Victim == "" || h.Group == "" {
			continue
		}
		at := l.ladder(h.Victim, h.Resource)
		l.real.adopt(at.owner(), h.Action)
		// How much memory the group had at first is not known: it goes no further.
		s := step{action: h.Action, at: l.now, strength: h.Strength, floor: h.Limits.MemoryHigh, use: h.Use, proven: l.now}
		if s.use == 0 {
			s.use = math.Inf(1)
		}
		at.steps = append(at.steps, s)
		at.hold(l.now, l.cfg.Hold)
		if !h.Kept {
			at.enter(Verifying, l.now)
		}
		l.emit(at, Adopted, &at.steps[len(at.steps)-1], Event{})
	}
	return l.events, nil
}

// HandOver forgets what is in force for victims without taking it back, and returns
// it for another loop of this process to Adopt. It hands over nothing, and Release is
// to be called, in any mode but Enforce and while something could not be taken back.
func (l *Loop) HandOver() []Held {
	if l.cfg.Mode != Enforce || l.real.owes() {
		return nil
	}
	var held []Held
	for _, at := range l.ladders {
		for i, s := range at.steps {
			replaced := slices.ContainsFunc(at.steps[i+1:], func(o step) bool {
				return o.action.Group == s.action.Group && o.action.Remedy == s.action.Remedy
			})
			if !replaced {
				probation := at.phase == Verifying && i == len(at.steps)-1
				held = append(held, Held{Action: s.action, Kept: !probation, Strength: s.strength, Use: s.use})
			}
		}
	}
	l.real.all = slices.DeleteFunc(l.real.all, func(k *knob) bool { return k.now != nil && k.now.Victim != "" })
	l.ladders = nil
	return held
}

// Has reports whether the knob of an action, or one that is written with it, is this
// loop's: in force, taken back on trial, or owed.
func (l *Loop) Has(a Action) bool {
	return l.book().has(a) || l.real.has(a) || slices.ContainsFunc(l.ladders, func(at *ladder) bool {
		return at.trial != nil && sharesKnob(at.trial.step.action, a)
	})
}

// elsewhere reports whether another loop has the knob.
func (l *Loop) elsewhere(a Action) bool { return l.in.Elsewhere != nil && l.in.Elsewhere(a) }

// Release takes everything back, what was done last first, and forgets what was
// learnt about remedies. What cannot be taken back is tried again by the next
// call of it or of Step.
func (l *Loop) Release(ctx context.Context) []Event {
	l.begin(Input{})
	for i := len(l.ladders) - 1; i >= 0; i-- {
		l.drop(ctx, l.ladders[i], "everything is taken back")
	}
	l.ladders = nil
	l.releaseSuppression(ctx, "everything is taken back")
	l.retry(ctx, true)
	return l.events
}

// Active returns the victims for which something is in force or on trial, sorted.
// Where they are Unsettled, their signals should stay as they are meanwhile.
func (l *Loop) Active() []string {
	var victims []string
	for _, at := range l.ladders {
		if len(at.steps) > 0 || at.trial != nil {
			victims = append(victims, at.victim)
		}
	}
	return slices.Compact(victims)
}

// Unsettled reports whether somebody has to look closely: a step is being verified or on
// trial, or a relaxation is due so soon.
func (l *Loop) Unsettled(soon time.Duration) bool {
	now := l.cfg.Now()
	return slices.ContainsFunc(l.ladders, func(at *ladder) bool {
		return at.phase == Verifying || at.phase == Relaxing || len(at.steps) > 0 && at.relaxAt.Sub(now) < soon
	})
}

// State is where the loop stands with one victim and resource.
type State struct {
	Victim   string          `json:"victim"`
	Resource detect.Resource `json:"resource"`
	Phase    Phase           `json:"phase"`
	// Since is when the phase began.
	Since time.Time `json:"since"`
	// Actions are in force, or would be in mode preview, the first taken first.
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
	for _, at := range l.ladders {
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

// InForce returns what is in force, or would be in mode preview, by group, then
// remedy; suppression included.
func (l *Loop) InForce() []Action { return l.book().inForce() }

// Step takes in a window and does what is due. It is to be called once a window,
// and at least every three: later calls only take things back. The Input is not
// kept. Errors of the Actuator are events.
func (l *Loop) Step(ctx context.Context, in Input) []Event {
	if l.cfg.Mode == Observe && !l.real.owes() {
		return nil
	}
	l.begin(in)
	l.retry(ctx, false)
	if l.cfg.Mode == Observe {
		return l.events
	}
	l.checkDrift(ctx)
	for _, at := range slices.Clone(l.ladders) {
		l.tend(ctx, at)
	}
	for i := range in.Findings {
		l.answer(ctx, &in.Findings[i])
	}
	l.suppress(ctx)
	l.ladders = slices.DeleteFunc(l.ladders, func(at *ladder) bool { return at.done(l.now) })
	l.in = Input{}
	return l.events
}

// Rest stands in for Step while nobody looks at symptoms: what is in force stays, by
// the rules and with the floors, and nothing is tried. The next Step may come after any
// time.
func (l *Loop) Rest(ctx context.Context, in Input) []Event {
	l.begin(in)
	l.retry(ctx, false)
	l.checkDrift(ctx)
	for _, at := range l.ladders {
		if l.keep(ctx, at) {
			l.feed(ctx, at)
			l.putOff(at)
		}
	}
	l.in = Input{}
	return l.events
}

// begin starts a step: its time, its view of the workloads, no events yet.
func (l *Loop) begin(in Input) {
	l.now = l.cfg.Now()
	l.passed = l.now.Sub(l.last)
	l.late = !l.last.IsZero() && l.passed > 3*l.cfg.Window
	l.last, l.in, l.events = l.now, in, nil
	clear(l.byGroup)
	l.spared = l.spared[:0]
	for i := range in.Workloads {
		w := &in.Workloads[i]
		l.byGroup[w.Group] = w
		if w.Protected || w.Class != place.BE {
			l.spared = append(l.spared, spared{w.Group, w.Class, w.Protected})
		}
	}
}

// spared is a workload that is not simply best effort: what permits has to look at.
type spared struct {
	group     string
	class     place.Class
	protected bool
}

// ladder finds the ladder of a victim and resource, or makes one.
func (l *Loop) ladder(victim string, r detect.Resource) *ladder {
	i, found := slices.BinarySearchFunc(l.ladders, victim, func(at *ladder, victim string) int {
		return cmp.Or(strings.Compare(at.victim, victim), cmp.Compare(at.resource, r))
	})
	if !found {
		l.ladders = slices.Insert(l.ladders, i, &ladder{victim: victim, resource: r, since: l.now, wait: l.cfg.Hold})
	}
	return l.ladders[i]
}

// retry tells the kernel again what it has refused.
func (l *Loop) retry(ctx context.Context, force bool) {
	failed, errs := l.real.retry(ctx, l.now, force)
	for i, k := range failed {
		a := Action{Remedy: k.remedy, Group: k.group}
		if k.now != nil {
			a = *k.now
		}
		l.events = append(l.events, Event{
			Time: l.now, Mode: l.cfg.Mode, Outcome: Failed, Victim: a.Victim, Suspect: a.Suspect, Resource: a.Resource,
			Action: &a, Alert: true, Text: fmt.Sprintf("give %v of %s back: %v", a.Remedy, a.Group, errs[i]),
		})
	}
}

// emit files an event about a ladder's step; what is set in e stays.
func (l *Loop) emit(at *ladder, o Outcome, s *step, e Event) {
	e.Time, e.Mode, e.Outcome, e.Victim, e.Resource = l.now, l.cfg.Mode, o, at.victim, at.resource
	if s != nil {
		a := s.action
		e.Action, e.Suspect, e.Confidence, e.Evidence = &a, a.Suspect, s.confidence, s.evidence
	}
	l.events = append(l.events, e)
}
