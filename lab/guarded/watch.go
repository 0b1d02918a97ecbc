package guarded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"berth.dev/berth/guard"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/place"
)

// watching is the guard at work on the groups of the run, and what it says.
type watching struct {
	zero   time.Time // of the times noted
	groups map[string]string
	stop   context.CancelFunc
	ended  chan error
	runner *guard.Runner
	shut   func() error

	mutex    sync.Mutex // of what follows: found, acted and failed are called by the guard
	findings []Finding
	events   []Event
	failed   []failure
}

// failure is an error that did not end the guard.
type failure struct {
	at  time.Duration // since the instant from which times are noted
	err error
}

// watch starts the guard, acting. Times are noted from an instant on.
func (x *experiment) watch(ctx context.Context, zero time.Time) (end func(*Trial) error, err error) {
	w, err := x.open(ctx, zero, control.Enforce)
	if err != nil {
		return nil, err
	}
	return w.end, nil
}

// open starts the guard in a mode.
func (x *experiment) open(ctx context.Context, zero time.Time, mode control.Mode) (*watching, error) {
	groups := map[lab.Role]string{}
	for role := range classes() {
		groups[role] = x.bed.Group(role).Dirs()[0]
	}
	return open(ctx, zero, mode, groups, guard.Options{Machine: x.Host.Machine, Window: time.Duration(x.Experiment.Window), Probe: x.Experiment.Probe})
}

// open starts a guard of the groups of roles, by their directories below the root.
func open(ctx context.Context, zero time.Time, mode control.Mode, groups map[lab.Role]string, opt guard.Options) (*watching, error) {
	root, err := kernel.Open("/")
	if err != nil {
		return nil, err
	}
	state := actuate.StateDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
	host, err := guard.OpenHost("")
	if err != nil {
		return nil, err
	}
	act, err := actuate.Open(actuate.Options{Root: root, Program: lab.ProgramName})
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	w := &watching{zero: zero, ended: make(chan error, 1)}
	w.shut = func() error { return errors.Join(act.Close(), host.Close()) }
	if _, err := act.Take(state); err != nil {
		return nil, errors.Join(err, w.shut())
	}
	workloads, err := w.workloads(groups, host.Path)
	if err != nil {
		return nil, errors.Join(err, w.shut())
	}
	opt.Sensors, opt.Actuator, opt.Control = host, act, control.Config{Mode: mode, Own: host.OwnGroup()}
	opt.Workloads, opt.OnlyNamed = func(context.Context) ([]guard.Workload, error) { return workloads, nil }, true
	opt.Found, opt.Acted, opt.Failed = w.found, w.acted, w.fail
	if w.runner, err = guard.New(opt); err != nil {
		return nil, errors.Join(err, w.shut())
	}
	ctx, w.stop = context.WithCancel(ctx)
	go func() { w.ended <- w.runner.Run(ctx) }()
	return w, nil
}

// take returns what the guard has found and done since it was last asked.
func (w *watching) take() (findings []Finding, events []Event) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	findings, events = w.findings, w.events
	w.findings, w.events = nil, nil
	return findings, events
}

// workloads are what the guard is told of: the group of each role that it may accuse or look
// after, by its path.
func (w *watching) workloads(dirs map[lab.Role]string, path func(dir string) (group string, ok bool)) (all []guard.Workload, err error) {
	w.groups = map[string]string{}
	for role, dir := range dirs {
		group, ok := path(dir)
		if !ok {
			return nil, fmt.Errorf("group %s: not in a tree that the guard looks at", role)
		}
		class := classes()[role]
		w.groups[string(role)] = group
		all = append(all, guard.Workload{Group: group, Class: class, Sensitive: class.Traits().Sensitive})
	}
	return all, nil
}

// classes are those of the roles that the guard is told of. It may accuse the bystander as
// well as the neighbour.
func classes() map[lab.Role]place.Class {
	return map[lab.Role]place.Class{lab.Tenant: place.LS, lab.Neighbour: place.BE, lab.Bystander: place.BE}
}

// found notes what a window says about the tenant.
func (w *watching) found(all []detect.Finding) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	at := time.Since(w.zero).Seconds()
	for _, f := range all {
		if f.Victim == w.groups[lab.Tenant] {
			w.findings = append(w.findings, Finding{At: at, Resource: f.Resource, Suspect: w.short(f.Suspect), Confidence: f.Confidence})
		}
	}
}

// acted notes a step, with the groups of the run under their names.
func (w *watching) acted(e control.Event) {
	e.Victim, e.Suspect = w.short(e.Victim), w.short(e.Suspect)
	if e.Action != nil {
		a := *e.Action
		a.Group, a.Victim, a.Suspect = w.short(a.Group), w.short(a.Victim), w.short(a.Suspect)
		e.Action = &a
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.events = append(w.events, Event{At: e.Time.Sub(w.zero).Seconds(), Written: time.Since(w.zero).Seconds(), Event: e, Words: e.String()})
}

func (w *watching) fail(err error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.failed = append(w.failed, failure{time.Since(w.zero), err})
}

// failures are those since it was last asked.
func (w *watching) failures() (all []failure) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	all, w.failed = w.failed, nil
	return all
}

// short is a group's name in the result: that of a group of the run, or its path.
func (w *watching) short(path string) string {
	for name, group := range w.groups {
		if kernel.Within(path, group) {
			return name
		}
		if path == filepath.Dir(group) {
			return "both" // the group around those of the run
		}
	}
	return path
}

// end stops the guard, which gives everything back, and files what it said.
func (w *watching) end(run *Trial) error {
	w.stop()
	err := errors.Join(<-w.ended, w.shut())
	run.Findings, run.Events = w.findings, w.events
	status := w.runner.Status()
	run.Windows, run.Late, run.ProbeCost = status.Windows, status.Late, status.Probe.Cost
	run.ProbeArmed, run.ProbeReason = status.Probe.ArmedFor.Seconds(), status.Probe.Reason
	for _, f := range w.failed {
		run.Errors = append(run.Errors, f.err.Error())
	}
	return err
}

// ownGroup is the group that this process is in, "" for none.
func ownGroup() (string, error) {
	host, err := guard.OpenHost("")
	if err != nil {
		return "", err
	}
	return host.OwnGroup(), host.Close()
}
