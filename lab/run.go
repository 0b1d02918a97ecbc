package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/probe"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
)

// ProgramName is how a run signs its journal.
const ProgramName = "berth lab"

// Options say where and how a run happens; they do not change what is measured.
type Options struct {
	// Exe is the berth binary, whose hidden verbs are the parties.
	Exe string
	// Dir is the run's own folder, made before and empty.
	Dir     string
	Program Program
	// JournalDir is where changes to the kernel are journaled; "" is the default.
	JournalDir string
	// Unprivileged uses the lesser backend even where control groups could be used.
	Unprivileged bool
	// Progress is told about every step; nil for none.
	Progress func(Progress)

	others []party // besides tenant and neighbour
	mirror bool    // groups in hierarchies that only tell, too
}

// Progress is one step of a run.
type Progress struct {
	Phase    string // "calibrate", "measure"
	Scenario string
	Round    int // rounds finished
	Rounds   int
	Block    int // from 1
	Blocks   int
	Left     time.Duration // estimated from the rounds so far
}

// runner is one run under way.
type runner struct {
	exp     Experiment
	opt     Options
	places  places
	nursery *nursery
	enforce enforcer
	probes  *probe.Set
	journal *kernel.Journal
	raw     *requestLog
	unit    string // of the neighbour's work
	result  *Result
	skipped map[string]bool
}

// Run runs an experiment. Whatever happens, children are gone and the kernel is
// as it was when it returns. On an error or a cancelled context the result
// holds the rounds finished by then, if there are any, and is stored as well.
func Run(ctx context.Context, exp Experiment, opt Options) (_ *Result, err error) {
	alone, err := lockMachine()
	if err != nil {
		return nil, err
	}
	defer alone.Close()
	r, err := prepare(exp, opt)
	if err != nil {
		return nil, err
	}
	defer func() {
		if left := r.close(); left != nil {
			err = errors.Join(err, &NotRestoredError{left})
		}
	}()
	if r.raw, err = createRequestLog(opt.Dir); err != nil {
		return nil, err
	}
	if err := r.calibrate(ctx); err != nil {
		return nil, fmt.Errorf("calibrate: %w", err)
	}
	if err := r.blocks(ctx); err != nil {
		return r.result, err
	}
	r.result.Complete = true
	r.result.Finished = time.Now()
	return r.result, r.store()
}

// NotRestoredError says that something could not be put back; berth restore
// tries again.
type NotRestoredError struct{ Err error }

func (e *NotRestoredError) Error() string { return "not everything was put back: " + e.Err.Error() }

// Unwrap returns what went wrong.
func (e *NotRestoredError) Unwrap() error { return e.Err }

// lockMachine makes sure that one lab runs at a time: two would measure each
// other. The lock is an abstract socket, which the kernel takes back however the
// process ends, and which every user of the host sees.
func lockMachine() (io.Closer, error) {
	lock, err := net.Listen("unix", "@berth-lab")
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, errors.New("another berth lab runs on this machine: two would measure each other; wait for it")
	}
	if err != nil {
		return nil, fmt.Errorf("lock the machine: %w", err)
	}
	return lock, nil
}

func prepare(exp Experiment, opt Options) (*runner, error) {
	m, err := sysfs.Live("/")
	if err != nil {
		return nil, err
	}
	wanted, err := cpuset.Parse(exp.CPUs)
	if err != nil {
		return nil, fmt.Errorf("cpus: %w", err)
	}
	allowed, err := sysfs.Allowed(os.DirFS("/"))
	if err != nil {
		return nil, err
	}
	allowed = allowed.Intersect(m.Online) // the kernel keeps offline CPUs in the list
	if exp.Seed == 0 {
		exp.Seed = uint64(uint32(time.Now().UnixNano())) | 1 // short enough to type again
	}
	pl, err := choosePlaces(m, allowed, wanted, exp.need)
	if err != nil {
		return nil, err
	}
	if need := exp.need(pl.shared.Len()); need > float64(pl.shared.Len()) {
		return nil, fmt.Errorf("tenant: %g requests/s of %s each want %.2f CPUs, more than the %d shared", exp.Rate, exp.Tenant.ServiceTime, need, pl.shared.Len())
	}
	r := &runner{exp: exp, opt: opt, places: pl, skipped: map[string]bool{}}
	r.result = &Result{
		Schema: Schema, Program: opt.Program, Started: time.Now(), Host: readHost(m), Experiment: exp, Rounds: []Round{},
		Setup: Setup{CPUs: pl.shared.String(), GeneratorCPUs: pl.generator.String()},
	}
	if err := r.chooseLoad(m); err != nil {
		return nil, err
	}
	if err := r.open(m); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// chooseLoad settles rate and service time: what the experiment leaves open is
// chosen so that the tenant wants its demand of the shared CPUs.
func (r *runner) chooseLoad(m *machine.Machine) error {
	const usualRate = 1000 // requests per second: enough for a p99 of each second, little for the generator
	e, s := &r.exp, &r.result.Setup
	want := e.need(r.places.shared.Len())
	s.Rate, s.CPUPerRequest = e.Rate, e.Tenant.ServiceTime
	if s.Rate == 0 && s.CPUPerRequest == 0 {
		s.Rate = usualRate
	}
	if s.Rate == 0 {
		s.Rate = want / time.Duration(s.CPUPerRequest).Seconds()
	}
	if s.CPUPerRequest == 0 {
		s.CPUPerRequest = Duration(want / s.Rate * float64(time.Second))
	}
	s.Tenant.WorkingSetBytes = e.Tenant.WorkingSetBytes
	s.Tenant.Procs = r.places.shared.Len()
	s.Tenant.Seed = e.Seed
	s.Neighbour = e.Neighbour
	s.Neighbour.Seed = e.Seed
	if s.Neighbour.Threads == 0 {
		s.Neighbour.Threads = r.places.shared.Len()
	}
	s.Neighbour.L2Bytes, s.Neighbour.L3Bytes = cacheBytes(m, r.places.shared)
	if err := s.Neighbour.Validate(); err != nil {
		return err
	}
	available, err := noise.MemAvailable(os.DirFS("/"))
	if err != nil {
		return err
	}
	if s.Tenant.WorkingSetBytes > available/4 {
		return fmt.Errorf("tenant: a working set of %d MiB is more than a quarter of the memory available (%d MiB)", s.Tenant.WorkingSetBytes>>20, available>>20)
	}
	size := noise.Plan(s.Neighbour, available) // once, so that it is the same in every round
	s.Neighbour.Bytes, s.NeighbourNote = size.Bytes, size.Note
	for _, k := range noise.Kernels() {
		if k.Name == s.Neighbour.Kernel {
			r.unit = k.Unit
		}
	}
	return nil
}

// open acquires what a run holds until close.
func (r *runner) open(m *machine.Machine) error {
	r.nursery = newNursery()
	l2, l3 := cacheBytes(m, r.places.shared)
	var err error
	if r.probes, err = probe.New(l2, l3); err != nil {
		return err
	}
	r.result.Setup.ProbeNote = r.probes.Sizes().Note
	r.enforce, r.journal, err = openEnforcer(r.opt, r.places)
	if err != nil {
		return err
	}
	r.result.Setup.Backend, r.result.Setup.BackendNote = r.enforce.about()
	return nil
}

// close puts everything back.
func (r *runner) close() error {
	var errs []error
	if r.nursery != nil {
		r.nursery.close()
	}
	if r.enforce != nil {
		errs = append(errs, r.enforce.close())
	}
	if r.journal != nil {
		errs = append(errs, r.journal.Close())
	}
	if r.raw != nil {
		errs = append(errs, r.raw.close())
	}
	if r.probes != nil {
		r.probes.Close()
	}
	return errors.Join(errs...)
}

// blocks runs every scenario once per block, in random order, and stores what
// there is after each round.
func (r *runner) blocks(ctx context.Context) error {
	names := make([]string, 0, len(r.exp.Scenarios))
	byName := map[string]Scenario{}
	for _, s := range r.exp.Scenarios {
		names = append(names, s.Name)
		byName[s.Name] = s
	}
	p := Progress{Phase: "measure", Rounds: r.exp.Blocks * len(names), Blocks: r.exp.Blocks}
	began := time.Now()
	for block := range r.exp.Blocks {
		for position, name := range stats.Order(names, block, r.exp.Seed) {
			p.Block, p.Scenario = block+1, name
			r.tell(p)
			p.Round++
			if r.skipped[name] {
				continue
			}
			round, err := r.round(ctx, byName[name], block, position, Script{})
			var reason *cannot
			if errors.As(err, &reason) {
				r.skip(name, reason)
				continue
			}
			if err != nil {
				return fmt.Errorf("scenario %s, block %d: %w", name, block+1, err)
			}
			r.result.Rounds = append(r.result.Rounds, round)
			if err := r.store(); err != nil {
				return err
			}
			p.Left = time.Since(began) / time.Duration(p.Round) * time.Duration(p.Rounds-p.Round)
		}
	}
	p.Scenario, p.Left = "", 0
	r.tell(p)
	return nil
}

// isolate tells the kernel what a scenario asks for.
func (r *runner) isolate(s Scenario) (undo func() error, err error) {
	given, err := r.orders(s)
	if err != nil {
		return nil, err
	}
	return r.enforce.isolate(given)
}

// preview says what isolate would do.
func (r *runner) preview(s Scenario) (string, error) {
	given, err := r.orders(s)
	if err != nil {
		return "", err
	}
	return r.enforce.preview(given)
}

func (r *runner) orders(s Scenario) (map[party]order, error) {
	if s.Isolation.Split && r.places.splitWhy != "" {
		return nil, &kernel.NotSupportedError{
			Feature: "cores of their own", Reason: r.places.splitWhy, Remedy: "run where at least two cores are allowed",
		}
	}
	return orders(s.Isolation, r.places, r.left()), nil
}

func (r *runner) tell(p Progress) {
	if r.opt.Progress != nil {
		r.opt.Progress(p)
	}
}

func (r *runner) skip(name string, why error) {
	r.skipped[name] = true
	skipped := Skipped{Scenario: name, Reason: why.Error()}
	var unsupported *kernel.NotSupportedError
	if errors.As(why, &unsupported) {
		skipped.Reason, skipped.Remedy = unsupported.Feature+": "+unsupported.Reason, unsupported.Remedy
	}
	r.result.Skipped = append(r.result.Skipped, skipped)
}

func (r *runner) store() error {
	return WriteFile(filepath.Join(r.opt.Dir, ResultFile), r.result)
}

// CurrentProgram describes the running binary; version is its release.
func CurrentProgram(version, commit string) Program {
	return Program{Version: version, Commit: commit, Go: runtime.Version()}
}

// NewRunDir makes the folder of a run below results: <time>-<experiment>.
func NewRunDir(results, experiment string, now time.Time) (string, error) {
	name := now.UTC().Format("20060102T150405Z") + "-" + experiment
	dir := filepath.Join(results, name)
	for n := 2; ; n++ {
		err := os.MkdirAll(results, 0o755)
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
		if !errors.Is(err, os.ErrExist) || n > 100 {
			return dir, err
		}
		dir = filepath.Join(results, fmt.Sprintf("%s-%d", name, n))
	}
}
