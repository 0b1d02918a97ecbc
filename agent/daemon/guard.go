package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"runtime/debug"
	"sync"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
)

// againTime is from an error that ended the guard to its next start.
const againTime = time.Minute

// Sensors are what the guard reads a host by. A *guard.Host is some.
type Sensors interface {
	guard.Sensors
	// OwnGroup is the group of this process, "" for the root or if it is not known.
	OwnGroup() string
	// Path returns the group of a directory, which is relative to the root.
	Path(dir string) (group string, ok bool)
	// Has reports whether there is a group.
	Has(group string) bool
	Close() error
}

// GuardOptions say on what a guard works. Root, Dir, Sensors, Workloads and Record must
// be set.
type GuardOptions struct {
	Root *kernel.Root
	// Dir is the guard's state directory, Program names it in reports ("berth agent").
	Dir, Program string
	// Sensors opens what the guard reads the host by.
	Sensors func() (Sensors, error)
	// Machine is the hardware, nil where it is unknown.
	Machine *machine.Machine
	// Window is that of guard.Options, Repeat the time after which a finding that lasts is
	// recorded again; 0 is ten minutes.
	Window, Repeat time.Duration
	// Workloads returns Berth's workloads and a version of them, unless they are of the
	// version since still.
	Workloads func(ctx context.Context, since int) (all []agent.Workload, version int, err error)
	// Record gets every event.
	Record func(api.Event)
	// Sink is told findings and steps with whom they are about; it may be nil.
	Sink guard.Sink

	lock sync.Locker // held while it acts, or nil
}

// Guard runs the guard on a host under one configuration after another: beside the loop of
// an agent, or alone (Open, Run, Close).
type Guard struct {
	o       GuardOptions
	host    *actuate.Host // nil where there are no groups to act on
	none    error         // why
	sensors Sensors       // nil while none are open
	// uncovered says that the guard's values were removed for a change of the node.
	uncovered chan struct{}
	prefix    string // of the workloads' groups in their tree
	tree      string // the directory of the hierarchy by which the guard names groups; "" without groups
	// pods knows the names of pods and containers.
	pods *pods.Directory
	// read is called with the samples of all groups that the guard has read, and what reads
	// more of them; it may be nil.
	read func([]watch.Sample, reader)

	ctl  sync.Mutex // of one change at a time
	ctx  context.Context
	stop func()        // ends the run, or nil
	done chan struct{} // closed when it has ended

	mu     sync.Mutex
	conf   *config.NodeConfig
	mode   config.GuardMode  // that is asked for
	runner *guard.Runner     // nil while it does not run
	reason string            // why it does not
	names  map[string]string // of groups: workloads and, under these, containers
	// known has the workloads, and recorded their names, by a version of them and the
	// configuration.
	known    map[string]guard.Workload
	recorded map[string]string
	version  int
}

// NewGuard returns a guard that has done nothing yet.
func NewGuard(o GuardOptions) (*Guard, error) {
	if o.Repeat == 0 {
		o.Repeat = 10 * time.Minute
	}
	g := &Guard{o: o, mode: config.GuardOff, uncovered: make(chan struct{}, 1), names: map[string]string{}, recorded: map[string]string{}, pods: pods.NewDirectory(o.Root.FS())}
	all, err := cgroup.Detect(o.Root)
	if err != nil {
		return nil, err
	}
	if t, ok := all.Hierarchy(cgroup.CPUAcct); ok {
		g.tree = t.Dir
	}
	host, err := actuate.Open(actuate.Options{Root: o.Root, Program: o.Program, Lock: o.lock})
	if err == nil {
		g.host = host
	}
	if errors.Is(err, kernel.ErrNotSupported) {
		g.none = err
		return g, nil
	}
	return g, err
}

// Open opens the host under a configuration, whose Guard and Protected count. To enforce,
// it takes the groups, and restores what a killed guard left: it is an
// *actuate.BusyError while another guard may act.
func (g *Guard) Open(c *config.NodeConfig) error {
	g.mu.Lock()
	g.conf, g.mode = c, c.Guard.Mode
	g.mu.Unlock()
	return g.open()
}

func (g *Guard) open() error {
	g.mu.Lock()
	mode := g.mode
	g.mu.Unlock()
	sensors, err := g.o.Sensors()
	if err != nil {
		return err
	}
	g.sensors = sensors
	if err := g.take(mode == config.GuardEnforce); err != nil {
		return errors.Join(err, g.closeSensors())
	}
	return nil
}

func (g *Guard) closeSensors() error {
	s := g.sensors
	g.sensors = nil
	return s.Close()
}

// Close restores what is left, and closes what Open has opened.
func (g *Guard) Close() error { return errors.Join(g.take(false), g.closeSensors()) }

// recover restores what a killed guard left, before the node is opened: those values lie
// above the node's, which would be noted as the original ones. So another guard that runs,
// and an undo log that cannot be read, are errors. Where nothing is left it takes no lock,
// so that another guard can start at the same moment.
func (g *Guard) recover() error {
	if g.host == nil {
		return nil
	}
	if actuate.Clean(actuate.Options{Root: g.o.Root, Dir: g.o.Dir}) {
		return nil
	}
	err := errors.Join(g.take(true), g.host.Close())
	if busy, ok := errors.AsType[*actuate.BusyError](err); ok {
		return busy
	}
	if err != nil {
		return fmt.Errorf("before the node is opened: %w", err)
	}
	return nil
}

// take takes the tree of groups, to act, or restores everything and leaves it to others.
func (g *Guard) take(on bool) error {
	switch {
	case g.host == nil && on:
		return g.none
	case g.host == nil:
		return nil
	case !on:
		return errors.Join(g.restore(), g.host.Close())
	}
	items, err := g.host.Take(g.o.Dir)
	g.say(items)
	return err
}

// restore restores everything, whatever the guard thinks is active.
func (g *Guard) restore() error {
	if g.host == nil {
		return nil
	}
	items, err := g.host.Restore()
	g.say(items)
	return err
}

// say reports the restored values.
func (g *Guard) say(items []kernel.Item) {
	for _, item := range items {
		if item.Outcome == kernel.Restored || item.Outcome == kernel.Changed {
			g.complain(fmt.Sprintf("/%s, which the guard had active, is %v", item.Step.Path, item.Outcome), nil)
		}
	}
}

// begin starts the guard; the context is that of its life.
func (g *Guard) begin(ctx context.Context, c *config.NodeConfig) {
	g.ctl.Lock()
	g.ctx = ctx
	g.ctl.Unlock()
	g.follow(c)
}

// follow applies a configuration. If that changes more than the mode, the guard
// starts anew; either way it restores everything first.
func (g *Guard) follow(c *config.NodeConfig) {
	if g.o.Sensors == nil {
		return
	}
	g.ctl.Lock()
	defer g.ctl.Unlock()
	g.mu.Lock()
	was := g.conf
	g.conf, g.version = c, 0
	g.mu.Unlock()
	mode := c.Guard.Mode
	onlyMode := was != nil && reflect.DeepEqual(was.Protected, c.Protected)
	if onlyMode {
		before, after := was.Guard, c.Guard
		after.Mode = before.Mode
		onlyMode = reflect.DeepEqual(before, after)
	}
	if onlyMode {
		if mode == was.Guard.Mode {
			return
		}
		err := g.change(context.Background(), mode)
		if err == nil {
			return
		}
		g.complain(fmt.Sprintf("mode %s", mode), err)
	}
	g.restart(mode)
}

// SetMode changes the mode until the configuration's changes. Everything is given
// back first; a mode that cannot be had changes nothing.
func (g *Guard) SetMode(ctx context.Context, mode config.GuardMode) error {
	if g.o.Sensors == nil {
		return errNoGuard
	}
	g.ctl.Lock()
	defer g.ctl.Unlock()
	g.mu.Lock()
	was := g.mode
	g.mu.Unlock()
	err := g.change(context.WithoutCancel(ctx), mode)
	if _, ok := errors.AsType[*actuate.BusyError](err); ok {
		return &api.RequestError{Status: http.StatusServiceUnavailable, Reason: err.Error(), Remedy: "end the other guard, and set the mode again"}
	}
	if err != nil {
		return err
	}
	if was != mode {
		g.record(ctx, api.Event{Event: agent.Event{Kind: api.GuardMode, Text: fmt.Sprintf("%s -> %s", was, mode)}})
	}
	return nil
}

var errNoGuard = &kernel.NotSupportedError{Feature: "guard", Reason: "this agent reads no groups", Remedy: "run it where there are control groups"}

// change goes over to another mode, of the guard that runs if one does.
func (g *Guard) change(ctx context.Context, mode config.GuardMode) error {
	g.mu.Lock()
	runner := g.runner
	g.mu.Unlock()
	if mode == config.GuardEnforce {
		if err := g.take(true); err != nil {
			return err
		}
	}
	if mode == config.GuardOff || runner == nil {
		g.restart(mode)
		return nil
	}
	err := runner.SetMode(ctx, modeOf(mode))
	if err != nil && runner.Status().Mode != modeOf(mode) {
		return err
	}
	g.mu.Lock()
	g.mode = mode
	ended := g.runner != runner // amid the change
	g.mu.Unlock()
	if ended {
		g.restart(mode)
		return nil
	}
	if err != nil {
		return err // the mode has changed; something could not be restored yet
	}
	if mode != config.GuardEnforce && (g.host == nil || len(g.host.Notes()) == 0) {
		return g.take(false)
	}
	return nil
}

// restart ends the guard that runs, which restores everything, and starts another
// unless it is to be off. The caller holds ctl.
func (g *Guard) restart(mode config.GuardMode) {
	g.end()
	g.mu.Lock()
	g.mode, g.reason = mode, ""
	g.mu.Unlock()
	if mode == config.GuardOff || g.ctx == nil || g.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(g.ctx)
	done := make(chan struct{})
	g.stop, g.done = stop, done
	go func() {
		defer close(done)
		g.run(ctx)
	}()
}

// end ends the guard that runs, and waits until everything is restored.
func (g *Guard) end() {
	if g.stop != nil {
		g.stop()
		<-g.done
		g.stop = nil
	}
	if g.host == nil {
		return
	}
	if err := g.take(false); err != nil {
		g.complain("not everything could be restored; 'berth guard off' tries again", err)
	}
}

// shut ends the guard of an agent for good.
func (g *Guard) shut() {
	if g.o.Sensors == nil {
		return
	}
	g.ctl.Lock()
	defer g.ctl.Unlock()
	g.end()
	g.ctx = nil
}

// run guards until the context ends; after an error it starts anew, after a panic it
// does not.
func (g *Guard) run(ctx context.Context) {
	for {
		again, err := g.once(ctx)
		if err != nil {
			err = errors.Join(err, g.restore())
			g.mu.Lock()
			g.reason = err.Error()
			g.mu.Unlock()
			g.complain("it has ended", err)
		}
		if !again {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(againTime):
		}
	}
}

// once guards until the context ends, or with what went wrong.
func (g *Guard) once(ctx context.Context) (again bool, err error) {
	if err := g.open(); err != nil {
		return true, err
	}
	defer func() {
		err = errors.Join(err, g.closeSensors())
		if p := recover(); p != nil {
			again, err = false, fmt.Errorf("it panicked: %v; set its mode anew to start it again\n%s", p, debug.Stack())
		}
	}()
	return ctx.Err() == nil, g.Run(ctx)
}

// Run guards the open host until the context ends, which is no error, and restores
// everything.
func (g *Guard) Run(ctx context.Context) (err error) {
	g.mu.Lock()
	conf, mode := g.conf, g.mode
	g.mu.Unlock()
	opt, err := g.options(conf, mode)
	if err != nil {
		return err
	}
	runner, err := guard.New(opt)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.runner, g.reason = runner, ""
	g.mu.Unlock()
	returned := false // it panics otherwise
	defer func() {
		g.mu.Lock()
		g.runner = nil
		if !returned || err != nil {
			g.reason = "it has ended, and restores what it has active"
		}
		g.mu.Unlock()
	}()
	probe := runner.Status().Probe
	if probe.Reason != "" && conf.Guard.Probe != config.ProbeNever {
		g.complain("it goes on", errors.New(probe.Reason))
	}
	if probe.NoAlarm != "" {
		g.complain("while it rests, only a window arms the run-queue probe", errors.New(probe.NoAlarm))
	}
	err = runner.Run(ctx)
	returned = true
	return err
}
