package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/tenant"
)

// The groups of a Stage, below one of its own.
const (
	Tenant    = string(tenantParty)
	Neighbour = string(neighbourParty)
	Bystander = "bystander" // somebody who does no harm
)

// selfParty is who directs the stage.
const selfParty party = "self"

// Stage is a machine made ready for an experiment that another package directs: its
// CPUs are chosen, its control groups made, its tenant calibrated. It needs control
// groups; where it may not make them, opening it is a kernel.NotSupportedError.
type Stage struct {
	r      *runner
	groups *groups
	lock   io.Closer
}

// OpenStage makes the machine ready. Whatever happens later, Close puts it back.
func OpenStage(exp Experiment, opt Options) (*Stage, error) {
	lock, err := lockMachine()
	if err != nil {
		return nil, err
	}
	opt.others, opt.mirror = []party{Bystander, selfParty}, true
	r, err := prepare(exp, opt)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s := &Stage{r: r, lock: lock}
	var ok bool
	if s.groups, ok = r.enforce.(*groups); !ok {
		err := &kernel.NotSupportedError{
			Feature: "control groups of the lab's own", Reason: r.result.Setup.BackendNote, Remedy: "run as root, or in a delegated group (berth doctor)",
		}
		return nil, errors.Join(err, s.Close())
	}
	if r.raw, err = createRequestLog(opt.Dir); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close ends all children and puts everything back.
func (s *Stage) Close() error {
	err := s.r.close()
	if err != nil {
		err = &NotRestoredError{err}
	}
	return errors.Join(err, s.lock.Close())
}

// Calibrate settles how much work of the tenant makes its demand.
func (s *Stage) Calibrate(ctx context.Context) error {
	if err := s.r.calibrate(ctx); err != nil {
		return fmt.Errorf("calibrate: %w", err)
	}
	return nil
}

// Result is what is known of the run: program, host, experiment and setup. Rounds
// are the caller's to add.
func (s *Stage) Result() Result { return *s.r.result }

// Group is one of the groups of the stage, Tenant, Neighbour or Bystander, or for ""
// the one around them.
func (s *Stage) Group(name string) cgroup.Group { return s.groups.run.Child(name) }

// StepAside gives the group around those of the stage a CPU weight of its own, and
// puts this process into a group beside them, of five times their weight: so the rest
// of the host takes less part, and the stage hardly delays who directs it. Much more
// for a group that mostly sleeps would make the others look light to the balancer,
// which would leave CPUs to the rest of the host.
func (s *Stage) StepAside(weight int) error {
	const own = 500
	self := s.groups.parties[selfParty]
	around, err := s.groups.run.Set(cgroup.Limits{Weight: weight})
	if err != nil {
		return err
	}
	mine, err := self.Set(cgroup.Limits{Weight: own})
	if err != nil {
		return err
	}
	attach, err := self.Attach(os.Getpid())
	if err != nil {
		return err
	}
	undo, err := s.Apply(slices.Concat(around, mine, attach))
	if err != nil {
		return err
	}
	for _, step := range attach {
		s.groups.home = append(s.groups.home, kernel.Step{Op: kernel.Attach, Path: step.Back, Back: step.Path})
	}
	remove := s.groups.undo
	s.groups.undo = func() error { return errors.Join(undo(), remove()) }
	return nil
}

// sendHome puts a process where this one was before it stepped aside: v1 groups have
// no real-time budget, and the generator is to have a real-time policy.
func (g *groups) sendHome(pid int) error {
	var plan kernel.Plan
	for _, step := range g.home {
		step.Value = strconv.Itoa(pid)
		plan = append(plan, step)
	}
	_, err := kernel.Apply(g.root, plan, nil) // the process ends with the round
	return err
}

// Apply carries out a plan; what it changes is journaled like all of the lab's.
func (s *Stage) Apply(plan kernel.Plan) (undo func() error, err error) {
	return kernel.Apply(s.r.enforceRoot(), plan, s.r.journal)
}

func (r *runner) enforceRoot() *kernel.Root { return r.enforce.(*groups).root }

// Knobs reads back the CPU settings of the groups.
func (s *Stage) Knobs() ([]Knob, error) { return s.groups.knobs() }

// Left is the CPU time, in CPUs, that the tenant and a generator without a place of
// its own leave of the shared CPUs.
func (s *Stage) Left() float64 { return s.r.left() }

// Script is what happens in a round besides its load. Both parts may be nil.
type Script struct {
	// Settle is called when the load begins, and has to return before the window
	// opens. With it the neighbour does not start before the load: Settle does that
	// (Scene.Start).
	Settle func(ctx context.Context, s *Scene) error
	// During is called when the load begins and runs beside it. A round ends
	// when both have.
	During func(ctx context.Context, s *Scene) error
}

// Request is one request of a round's window.
type Request struct {
	// Due is when it should have been sent, Seen when the generator got round to
	// it, Done when it was answered, or failed, from the start of the window. Seen
	// and Done are -1 if that never came.
	Due, Seen, Done time.Duration
	Failed          bool
}

// Round plays a scenario. Arrivals are those of the block, for the lengths of the
// experiment.
func (s *Stage) Round(ctx context.Context, sc Scenario, block, position int, script Script) (Round, error) {
	return s.r.round(ctx, sc, block, position, script)
}

// Length sets for how long the rounds that follow settle and are measured.
func (s *Stage) Length(settle, window time.Duration) {
	s.r.exp.Settle, s.r.exp.Window = Duration(settle), Duration(window)
}

// MapTenant gives the tenant of the rounds that follow a working set of so many bytes
// in a file of the run's folder, whose pages can be reclaimed; 0 takes it back.
func (s *Stage) MapTenant(bytes int64) {
	t := &s.r.result.Setup.Tenant
	t.File, t.WorkingSetBytes = "", s.r.exp.Tenant.WorkingSetBytes
	if bytes > 0 {
		t.File, t.WorkingSetBytes = filepath.Join(s.r.opt.Dir, "articles"), bytes
	}
}

// MemoryDir is the directory, relative to the kernel.Root, of the group around those
// of the stage in the hierarchy of the v1 memory controller; a
// kernel.NotSupportedError where there is none.
func (s *Stage) MemoryDir() (string, error) {
	for _, dir := range s.groups.mirrors[tenantParty] {
		around := path.Dir(dir)
		if _, err := fs.Stat(s.groups.root.FS(), around+"/memory.limit_in_bytes"); err == nil {
			return around, nil
		}
	}
	return "", &kernel.NotSupportedError{Feature: "common memory limit", Reason: "no group of the run is in a v1 memory controller", Remedy: "none yet for cgroup v2"}
}

// ReadDisk has every so many requests of the rounds that follow read a block of a
// device; 0 takes it back.
func (s *Stage) ReadDisk(name string, every int) {
	t := &s.r.result.Setup.Tenant
	t.Disk, t.DiskEvery = name, every
}

// CountIO has the kernel count what goes between the groups of the stage and a
// device, given by its number ("7:0"): cgroup v2 counts where the io controller is
// enabled, v1 on devices that some group has a limit on (since Linux 6.10,
// block/blk-throttle.h). The limit here is a tebibyte per second. It is a
// kernel.NotSupportedError where neither can be had.
func (s *Stage) CountIO(device string) (undo func() error, err error) {
	const limit = "blkio.throttle.read_bps_device"
	for _, dir := range s.groups.mirrors[tenantParty] {
		around := path.Dir(dir)
		if _, err := fs.Stat(s.groups.root.FS(), path.Join(around, limit)); err == nil {
			return s.Apply(kernel.Plan{{Path: path.Join(around, limit), Value: device + " 1099511627776", Format: kernel.Keyed, Unset: device + " 0"}})
		}
	}
	for _, dir := range s.groups.run.Dirs() {
		text, err := fs.ReadFile(s.groups.root.FS(), path.Join(path.Dir(dir), "cgroup.controllers"))
		if err == nil && slices.Contains(strings.Fields(string(text)), cgroup.IO) {
			const file = "cgroup.subtree_control"
			return s.Apply(kernel.Plan{
				{Op: kernel.Enable, Path: path.Join(path.Dir(dir), file), Value: "+io"}, {Op: kernel.Enable, Path: path.Join(dir, file), Value: "+io"},
			})
		}
	}
	return nil, &kernel.NotSupportedError{
		Feature: "bytes of a disk by group", Reason: "no group of the run is in the io controller", Remedy: "mount the blkio controller, or have io handed on to the group of the lab",
	}
}

// Requests are those of the last round, in the order in which they were due.
func (s *Stage) Requests() ([]Request, error) {
	file := s.r.raw.file()
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	requests, err := parseRequests(file)
	if err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	return requests, nil
}

// parseRequests reads what the generator wrote: seq, due, seen, sent, done, error.
func parseRequests(r io.Reader) ([]Request, error) {
	var all []Request
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		if n == 1 {
			continue // the header
		}
		fields := strings.SplitN(lines.Text(), ",", 6)
		if len(fields) != 6 {
			return nil, fmt.Errorf("line %d: %d fields, want 6", n, len(fields))
		}
		var q Request
		for _, part := range []struct {
			to   *time.Duration
			text string
		}{{&q.Due, fields[1]}, {&q.Seen, fields[2]}, {&q.Done, fields[4]}} {
			if part.text == "" {
				*part.to = -1
				continue
			}
			ns, err := strconv.ParseInt(part.text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
			*part.to = time.Duration(ns)
		}
		q.Failed = fields[5] != ""
		all = append(all, q)
	}
	return all, lines.Err()
}

// Scene is a round under way. Its methods may be called from one goroutine.
type Scene struct {
	cast  *cast
	start int64 // of the load: CLOCK_MONOTONIC, ns
	extra []*child
	files []io.Closer
}

// play begins the script; ends waits for it, or ends it if the round has failed.
func (c *cast) play(ctx context.Context, at int64) (ends func(failed error) error, err error) {
	if c.script.Settle != nil {
		s := &Scene{cast: c, start: at}
		c.scenes = append(c.scenes, s)
		if err := c.script.Settle(ctx, s); err != nil {
			return nil, err
		}
	}
	if c.script.During == nil {
		return func(error) error { return nil }, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	s, done := &Scene{cast: c, start: at}, make(chan error, 1)
	c.scenes = append(c.scenes, s)
	go func() { done <- c.script.During(ctx, s) }()
	return func(failed error) error {
		if failed != nil {
			cancel()
		}
		err := <-done
		cancel()
		if failed != nil && errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	}, nil
}

// Now is the time since the load began.
func (s *Scene) Now() time.Duration { return time.Duration(monotonic() - s.start) }

// Until waits for an instant after the load began.
func (s *Scene) Until(ctx context.Context, at time.Duration) error {
	return sleepUntil(ctx, s.start+at.Nanoseconds())
}

// Start starts the neighbour of the setup, whose work the round counts.
func (s *Scene) Start(ctx context.Context) error { return s.cast.enterNeighbour(ctx) }

// Noise is somebody who was started in a group.
type Noise struct {
	scene *Scene
	child *child
	of    party
	cfg   noise.Config
}

// Admit starts a process in a group, which does nothing before Begin.
func (s *Scene) Admit(group string, cfg noise.Config) (*Noise, error) {
	counters, err := noise.NewCounters(cfg.Threads)
	if err != nil {
		return nil, err
	}
	s.files = append(s.files, counters)
	c, err := s.cast.r.admit(party(group), "__noise", counters.File())
	if err != nil {
		return nil, err
	}
	s.extra = append(s.extra, c)
	return &Noise{s, c, party(group), cfg}, nil
}

// Begin makes it work, and returns when it is about to.
func (n *Noise) Begin(ctx context.Context) error {
	if err := n.child.send(n.cfg); err != nil {
		return err
	}
	return n.child.receive(ctx, startLimit, &noise.Ready{})
}

// End kills it.
func (n *Noise) End() { n.scene.end(n.child) }

func (s *Scene) end(c *child) {
	c.kill()
	s.extra = slices.DeleteFunc(s.extra, func(other *child) bool { return other == c })
}

// Surge is more load on the tenant than that which is measured.
type Surge struct {
	scene *Scene
	child *child
}

// Ask is what a further generator asks the tenant for: Rate requests per second, each of
// Times the usual work, for Length.
type Ask struct {
	Rate   float64
	Times  int
	Length time.Duration
}

// Ready connects a further generator to the tenant, which does nothing before
// Begin.
func (s *Scene) Ready(ctx context.Context, ask Ask, seed uint64) (*Surge, error) {
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer nothing.Close()
	c, err := s.cast.r.startGenerator(nothing)
	if err != nil {
		return nil, err
	}
	s.extra = append(s.extra, c)
	cfg := load.Config{
		Addr: s.cast.addr.Addr, Path: tenant.Times(s.cast.addr.Path, ask.Times), Connections: connections,
		Rate: ask.Rate, Seed: seed, Window: ask.Length, Grace: grace(ask.Length),
	}
	if err := c.send(cfg); err != nil {
		return nil, err
	}
	if err := c.receive(ctx, startLimit, &ready{}); err != nil {
		return nil, err
	}
	return &Surge{s, c}, promote(c)
}

// Begin makes the requests due from now on.
func (u *Surge) Begin() error { return u.child.send(start{monotonic() + lead.Nanoseconds()}) }

// End ends it, whatever is still under way.
func (u *Surge) End() { u.scene.end(u.child) }

// close ends whoever is left.
func (s *Scene) close() error {
	for _, c := range s.extra {
		c.kill()
	}
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Store keeps v in a file of the run's folder, replacing what was there.
func (s *Stage) Store(name string, write func(io.Writer) error) error {
	return ReplaceFile(filepath.Join(s.r.opt.Dir, name), write)
}
