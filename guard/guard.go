// Package guard runs the whole of it: it reads a host's signals (guard/observe),
// judges them (guard/detect), and has something done about it (guard/control,
// guard/actuate), window by window, until its context ends.
//
// One loop takes windows of two lengths. Once a second all groups are read. Every 40 ms,
// while the run-queue probe is armed, so are the sensitive groups in focus alone:
// the probe tells which group has the CPU while they wait. Remedies over their CPU are judged
// by the short windows, all others by the long ones.
//
// However a run ends, by its context, an error or a panic, everything is restored.
package guard

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
)

// FastWindow is the length of a window while the run-queue probe is armed.
const FastWindow = 40 * time.Millisecond

// LeastWindow is the least length of a slow window.
const LeastWindow = 100 * time.Millisecond

// Workload describes a control group to the guard.
type Workload struct {
	// Group is its path below the root of the tree of groups, as in watch.Subject.
	Group string `json:"group"`
	// Class is BE for a group that may be squeezed. LS stands for those of which
	// nothing is known, too: they are left alone.
	Class place.Class `json:"class"`
	// Sensitive groups are looked after.
	Sensitive bool `json:"sensitive,omitempty"`
	// Protected groups are never acted on. Why says why, for events; it may be "".
	Protected bool   `json:"protected,omitempty"`
	Why       string `json:"why,omitempty"`
}

// ProbeUse says when the run-queue probe is armed.
type ProbeUse string

// The uses; "" is ProbeNeeded.
const (
	ProbeNeeded ProbeUse = "needed" // while a sensitive group waits for CPU, which the kernel tells, or it is to be seen what helps it
	ProbeEager  ProbeUse = "eager"  // as needed, and as soon as one begins to wait, which is looked at every GlanceWindow
	ProbeNever  ProbeUse = "never"
	ProbeAlways ProbeUse = "always"
)

// ProbeUses returns all of them.
func ProbeUses() []ProbeUse { return []ProbeUse{ProbeNeeded, ProbeEager, ProbeAlways, ProbeNever} }

// Sensors read the signals of a host. A *Host has those of a live one.
type Sensors interface {
	// Groups lists the groups that have none below them.
	Groups() ([]string, error)
	// CPUs are those that a group may use; empty is unknown.
	CPUs(group string) cpuset.Set
	// Focus looks more closely at some groups.
	Focus(groups []string) error
	// Tick appends the samples of all groups and of the host.
	Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error)
	// TickNear appends those of the groups in focus, those of the probe, and of the host.
	TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error)
	// Arm attaches the probe or detaches it. Once it has failed it stays detached.
	Arm(on bool) error
	// Probe says why there is no probe; nil if it can be armed.
	Probe() error
	// ProbeCost is its CPU time per second while it was measured, in CPUs.
	ProbeCost() float64
}

// Actuator changes settings of groups, and knows the original ones. *actuate.Host is
// one.
type Actuator interface {
	control.Actuator
	// Settings returns the settings of a group without the active actions. For a group that is
	// gone it has no error and the defaults.
	Settings(group string) (actuate.Settings, error)
	// Unavailable says of remedies why this host does not have them, NoIdle why
	// cpu.idle is not among them.
	Unavailable() map[detect.Remedy]string
	NoIdle() string
	// Actable returns those of some processes in no group that may be acted on.
	Actable(of []control.Process) []control.Process
}

// Options say what to guard and how.
type Options struct {
	// Sensors are read in a live run. Replay, the ticks of a recording, stands in for
	// them; groups whose samples it holds are those that are there.
	Sensors Sensors
	Replay  iter.Seq2[[]watch.Sample, error]
	// Began is when the recording began, for the times of events; zero is now.
	Began time.Time
	// Actuator acts; nil is for mode Observe, and for Replay, which can only preview: nothing
	// is known of how groups were set then.
	Actuator Actuator
	// Uncovered says that what is active was removed for a change below it, and is to be
	// applied again; nil is never.
	Uncovered <-chan struct{}
	// Machine is the hardware, nil where it is unknown.
	Machine *machine.Machine
	// PeakBandwidth is how many bytes per second can go between a last-level cache and memory;
	// 0 is unknown, and nobody is found to lack memory bandwidth then.
	PeakBandwidth float64
	// Workloads returns what is known of groups; it is asked at the start and every 5
	// s. Groups that it does not name are BE if they, or one around them, are idle
	// (cpu.idle) or of the lowest weight; else, or if OnlyNamed, they are only suspects.
	Workloads func(context.Context) ([]Workload, error)
	OnlyNamed bool
	// Control has the mode and the rules. Its Window, Machine and Now are the
	// Runner's to set.
	Control control.Config
	// Window is the length of a slow window; 0 is one second.
	Window time.Duration
	// Probe says when the run-queue probe is used.
	Probe ProbeUse
	// Outsiders are what may be done to processes in no group; by default they are reported.
	Outsiders []OutsiderUse

	// Read is called with what each slow window of Sensors has read, before that is
	// judged; it must not keep the slice. Nil is nothing.
	Read func([]watch.Sample)

	// Found is called with the findings of each window: all of them or, with a Repeat, those
	// that are new or were last reported so long ago. Acted is called with each event, Failed
	// with errors that do not end the run; a Failed that repeats is told once a
	// minute. All may be nil. They are called by one goroutine at a time.
	Found  func([]detect.Finding)
	Repeat time.Duration
	Acted  func(control.Event)
	Failed func(error)
}

// Validate reports what no Runner could work with.
func (o Options) Validate() error {
	var errs []error
	if (o.Sensors == nil) == (o.Replay == nil) {
		errs = append(errs, errors.New("sensors or a recording: one of the two"))
	}
	if o.Replay != nil && o.Control.Mode == control.Enforce {
		errs = append(errs, errors.New("a recording can be previewed, not enforced"))
	}
	if o.Replay == nil && o.Actuator == nil && o.Control.Mode != control.Observe {
		errs = append(errs, fmt.Errorf("mode %v needs an actuator", o.Control.Mode))
	}
	if o.Window != 0 && o.Window < LeastWindow {
		errs = append(errs, fmt.Errorf("window %v: at least %v", o.Window, LeastWindow))
	}
	if o.Probe != "" && !slices.Contains(ProbeUses(), o.Probe) {
		errs = append(errs, fmt.Errorf("probe: %q: want one of %v", o.Probe, ProbeUses()))
	}
	for _, use := range o.Outsiders {
		if !slices.Contains(OutsiderUses(), use) {
			errs = append(errs, fmt.Errorf("outsiders: %q: want one of %v", use, OutsiderUses()))
		}
	}
	return errors.Join(append(errs, o.Control.Validate())...)
}

// Status is where a Runner stands.
type Status struct {
	Mode control.Mode `json:"mode"`
	// Windows is how many slow windows were judged, Late how many of all windows came
	// so late that nothing new was done in them.
	Windows int `json:"windows"`
	Late    int `json:"late,omitempty"`
	// Sensitive are the groups that are looked after, Focus those that are looked at
	// closely, Others how many more groups there are.
	Sensitive []string `json:"sensitive"`
	Focus     []string `json:"focus,omitempty"`
	Others    int      `json:"others"`
	// Protected are the groups that are never acted on as the host depends on them, with
	// the reason.
	Protected map[string]string `json:"protected,omitempty"`
	// LeftOut is how many groups are not read, as no more files can be opened.
	LeftOut int   `json:"leftOut,omitempty"`
	Probe   Probe `json:"probe"`
	// Monitoring is how what groups have of caches and memory bandwidth is told; absent where the
	// CPU or resctrl tells nothing, and while the guard does not act.
	Monitoring *actuate.Monitoring `json:"monitoring,omitempty"`
	// Findings are those of the last windows.
	Findings []detect.Finding `json:"findings"`
	States   []control.State  `json:"states,omitempty"`
	// Active are the actions active or, in mode preview, that would be.
	Active []control.Action `json:"inForce,omitempty"`
}

// Probe is how the run-queue probe fares.
type Probe struct {
	Armed bool `json:"armed"`
	// Reason is why it cannot be, "" if it can.
	Reason string `json:"reason,omitempty"`
	// NoAlarm is why the kernel does not say, while it rests, that a sensitive group begins to
	// wait; "" if it does, or is not to.
	NoAlarm string `json:"noAlarm,omitempty"`
	// Cost is its CPU time per second by the kernel's own measure, in CPUs.
	Cost float64 `json:"cost,omitempty"`
	// ArmedFor is the time that it has been armed.
	ArmedFor time.Duration `json:"armedFor,omitempty"`
}

// Runner guards a host. Run does the work; the other methods may be called from
// other goroutines meanwhile, SetMode not from the callbacks.
type Runner struct {
	o   Options
	now func() time.Time

	mu      sync.Mutex
	loop    *control.Loop
	slow    *pace
	fast    *pace // nil without the probe
	recent  recent
	near    int // from which of the samples of now on they are the short window's
	known   inventory
	status  Status
	calls   []func() // to be made without the lock
	calling sync.Mutex
	said    map[string]time.Time

	began   time.Time
	cpus    cpuset.Set // that are online
	needed  watch.Time // until when the probe is
	armedAt watch.Time
	armed   bool
	noProbe error
	focus   []string
	// unfocused says that not all of these could be focused on: it is tried again.
	unfocused bool
	sentry    sentry
	outside   outsiders
	// interrupts are read along with outside.
	interrupts interrupts
	glanced    []watch.Sample
	alarms     alarms
	alarmed    bool // an alarm has armed it, and nothing has been found yet
}

// New returns a Runner that has done nothing yet.
func New(o Options) (*Runner, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("new guard: %w", err)
	}
	if o.Window == 0 {
		o.Window = time.Second
	}
	r := &Runner{o: o, now: time.Now, said: map[string]time.Time{}, known: newInventory(), recent: recent{}, sentry: newSentry()}
	r.alarms = alarms{usual: map[string]*pressure{}}
	r.noProbe = errProbeUnused
	if o.Sensors != nil && o.Probe != ProbeNever {
		r.noProbe = o.Sensors.Probe()
	}
	var err error
	if r.slow, r.fast, err = r.newPaces(r.noProbe == nil); err == nil {
		r.loop, err = r.newLoop()
	}
	if err != nil {
		return nil, fmt.Errorf("new guard: %w", err)
	}
	r.canAsk()
	return r, nil
}

var errProbeUnused = errors.New("it was not asked for")

// Status returns where it stands.
func (r *Runner) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Mode = r.loop.Mode()
	s.Focus = append([]string(nil), r.focus...)
	s.Findings = append([]detect.Finding{}, s.Findings...)
	s.Sensitive = append([]string{}, r.known.sensitive...)
	s.Others = len(r.known.all) - len(r.known.sensitive)
	s.Protected = map[string]string{}
	for group, m := range r.known.all {
		if m.settings.Essential != "" {
			s.Protected[group] = m.settings.Essential
		}
	}
	s.Probe.Armed, s.Probe.ArmedFor = r.armed, r.armedFor()
	if r.noProbe != nil {
		s.Probe.Reason = r.noProbe.Error()
	} else if r.alarms.none != nil {
		s.Probe.NoAlarm = r.alarms.none.Error()
	}
	s.States, s.Active = r.loop.State(), r.loop.Active()
	return s
}

// SetMode changes the mode. Everything is restored first; what could not be is an
// error, and tried again, though the mode has changed (Status).
func (r *Runner) SetMode(ctx context.Context, m control.Mode) error {
	defer r.deliver()
	r.mu.Lock()
	defer r.mu.Unlock()
	events, err := r.loop.SetMode(ctx, m)
	r.acted(events)
	return err
}
