package lab

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// ProgramName is how a run signs its undo log.
const ProgramName = "berth lab"

// Options say where and how a run happens; they do not change what is measured.
type Options struct {
	// Exe is the berth binary, whose hidden verbs are the processes of the roles.
	Exe string
	// Dir is the run's own folder, made before and empty, unless the run is resumed.
	Dir     string
	Program Program
	// UndoLogDir is where changes to the kernel are noted for undoing; "" is the default.
	UndoLogDir string
	// Unprivileged uses the lesser backend even where control groups could be used.
	Unprivileged bool
	// Progress is called with every step; it may be nil.
	Progress func(Progress)
	// Finished resumes the run in Dir: it says which rounds need not be run again.
	// nil starts a new run.
	Finished func(cell string, block int) bool

	// Roles are those besides tenant and neighbour.
	Roles []Role
	// Servers is how many servers there may be at once, each in a group of its own, for
	// cells that have some (Cell.Serve). All cells have, then: nothing is calibrated.
	Servers int
	// Switches has context switches and migrations of the tenant, or the servers, counted.
	Switches bool
	// Groups asks for control groups, with memory, I/O and pressure counted; without
	// it the lesser backend will do.
	Groups bool
	// Weight is the CPU weight of the group around those of the roles; this process
	// then stands in a group beside it. 0 leaves both as they are.
	Weight int
}

// Testbed is this machine made ready for an experiment: its CPUs are chosen, its
// control groups made, its tenant calibrated.
type Testbed struct {
	Setup *Setup

	spec     Spec
	opt      Options
	places   places
	parent   *fork.Parent // of the children
	backend  backend
	probes   *noise.Probes
	undoLog  *kernel.UndoLog
	requests *requestLog
	lock     *machineLock
	// neighbours are those started so far, by what no process of this backend can lose
	// again, and by what they are.
	neighbours map[string]*neighbour
	disk       disk      // nil until it is asked for
	link       *link     // nil where nobody competes for one
	guardian   *guardian // nil before the first round that has one
	machine    *machine.Machine
	later      []func() error
	outside    *outsider            // the tenant, if it runs already
	procs      *processes           // nil while none live
	parked     map[setup]*processes // those of other cells, which have nothing to do
	counters   map[Role]counter
	probed     time.Time // last
}

// Open makes this machine ready for what a spec asks for, and enters into h what it
// is and what was settled on. A run that is resumed needs the same machine, program
// and places, and keeps what was settled on. Whatever happens later, Close puts
// everything back.
func Open(ctx context.Context, spec *Spec, h *Header, opt Options) (_ *Testbed, err error) {
	if opt.Finished != nil && h.Complete {
		return nil, errors.New("resume: the run is complete (--continue adds blocks to it)")
	}
	lock, err := lockMachine(opt.UndoLogDir)
	if err != nil {
		return nil, err
	}
	b, err := prepare(spec, h, opt)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	b.lock = lock
	b.Setup.OtherLab = cmp.Or(b.Setup.OtherLab, lock.other)
	if b.Setup.Awake {
		if err := b.keepAwake(); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	if b.requests, err = openRequestLog(opt.Dir, opt.Finished); err == nil && opt.Finished == nil && opt.Servers == 0 {
		if err = b.calibrate(ctx); err != nil {
			err = fmt.Errorf("calibrate: %w", err)
		}
	}
	if err == nil {
		err = b.share()
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// NotRestoredError says that a value could not be restored; berth restore
// tries again.
type NotRestoredError struct{ Err error }

func (e *NotRestoredError) Error() string { return "not everything was restored: " + e.Err.Error() }

// Unwrap returns what went wrong.
func (e *NotRestoredError) Unwrap() error { return e.Err }

// Close ends all children and restores every value.
func (b *Testbed) Close() error {
	errs := []error{b.endProcesses()}
	for _, p := range b.parked {
		errs = append(errs, p.end())
	}
	for _, undo := range slices.Backward(b.later) {
		errs = append(errs, undo())
	}
	if b.parent != nil {
		b.parent.Close()
	}
	if b.backend != nil {
		errs = append(errs, b.backend.close())
	}
	if b.undoLog != nil {
		errs = append(errs, b.undoLog.Close())
	}
	if b.requests != nil {
		errs = append(errs, b.requests.close())
	}
	if b.probes != nil {
		b.probes.Close()
	}
	if b.lock != nil {
		errs = append(errs, b.lock.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return &NotRestoredError{err}
	}
	return nil
}

// Where is this machine, and those of its CPUs that Open will have the roles share.
func Where(spec Spec) (*machine.Machine, cpuset.Set, error) {
	m, pl, _, err := spec.where()
	return m, pl.shared, err
}

// where is this machine, the places on it, and the tenant if it runs already.
func (e *Spec) where() (m *machine.Machine, pl places, outside *outsider, err error) {
	if m, err = sysfs.Live("/"); err != nil {
		return nil, pl, nil, err
	}
	wanted, err := cpuset.Parse(e.CPUs)
	if err != nil {
		return nil, pl, nil, fmt.Errorf("cpus: %w", err)
	}
	allowed, err := sysfs.Allowed(os.DirFS("/"))
	if err != nil {
		return nil, pl, nil, err
	}
	allowed = allowed.Intersect(m.Online) // the kernel keeps offline CPUs in the list
	if e.Tenant.Service == Outside {
		if outside, err = findOutside(e.Tenant); err != nil {
			return nil, pl, nil, err
		}
		at, err := outside.affinity()
		if err != nil {
			return nil, pl, nil, fmt.Errorf("tenant: %w", err)
		}
		if at = at.Intersect(allowed); wanted.IsEmpty() && at != allowed && at.Len() <= maxShared {
			wanted = at // the neighbour goes where the tenant is
		}
	}
	pl, err = choosePlaces(m, allowed, wanted, e.need)
	return m, pl, outside, err
}

// prepare opens everything but the run's folder, and measures nothing.
func prepare(spec *Spec, h *Header, opt Options) (*Testbed, error) {
	if spec.Seed == 0 {
		spec.Seed = uint64(uint32(time.Now().UnixNano())) | 1 // short enough to type again
	}
	m, pl, outside, err := spec.where()
	if err != nil {
		return nil, err
	}
	if need := spec.need(pl.shared.Len()); need > float64(pl.shared.Len()) {
		return nil, fmt.Errorf("tenant: %g requests/s of %s each want %.2f CPUs, more than the %d shared", spec.Rate, spec.Tenant.ServiceTime, need, pl.shared.Len())
	}
	now := Header{
		Schema: h.Schema, Program: opt.Program, Started: time.Now(), Host: readHost(m),
		Setup: Setup{CPUs: pl.shared.String(), GeneratorCPUs: pl.generator.String()},
	}
	now.Setup.Awake = keptAwake(spec.Awake, now.Host.Hypervisor, latencyFile)
	for n := range opt.Servers {
		opt.Roles = append(opt.Roles, Server(n+1))
	}
	b := &Testbed{spec: *spec, opt: opt, places: pl, outside: outside, machine: m, Setup: &now.Setup, parked: map[setup]*processes{}, neighbours: map[string]*neighbour{}, counters: map[Role]counter{}}
	if err := b.chooseLoad(m); err != nil {
		return nil, err
	}
	if err := b.open(m); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if opt.Finished == nil {
		*h = now
	} else if err := h.resume(now); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.Setup = &h.Setup
	if err := b.equip(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// resume refuses to go on with a run under other conditions than those of now.
func (h *Header) resume(now Header) error {
	was, err := h.conditions()
	if err != nil {
		return err
	}
	is, err := now.conditions()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if !bytes.Equal(was[name], is[name]) {
			return fmt.Errorf("resume: the %s is not that of the run so far: %.60s, was %.60s", name, is[name], was[name])
		}
	}
	h.Resumed = append(h.Resumed, now.Started)
	return nil
}

// withoutNodeMemory is the host without the sizes of its nodes' memory: a kernel that
// initialises memory as it is needed tells of more and more.
func (h Host) withoutNodeMemory() Host {
	if h.Machine == nil {
		return h
	}
	m := *h.Machine
	m.Domains = slices.Clone(m.Domains)
	for i, d := range m.Domains {
		if d.Kind == machine.Node {
			m.Domains[i].Bytes = 0
		}
	}
	h.Machine = &m
	return h
}

// conditions are what has to be the same for all rounds of a run, as JSON by name.
func (h *Header) conditions() (conditions map[string]json.RawMessage, err error) {
	text, err := json.Marshal(struct {
		Program
		Host
		Backend string `json:"backend"`
		Shared  string `json:"shared CPUs"`
		Own     string `json:"CPUs of the generator"`
		Awake   bool   `json:"keeping of CPUs awake"`
	}{h.Program, h.Host.withoutNodeMemory(), h.Setup.Backend, h.Setup.CPUs, h.Setup.GeneratorCPUs, h.Setup.Awake})
	if err == nil {
		err = json.Unmarshal(text, &conditions)
	}
	return conditions, err
}

// chooseLoad settles rate and service time: what the spec leaves open is
// chosen so that the tenant wants its demand of the shared CPUs.
func (b *Testbed) chooseLoad(m *machine.Machine) error {
	const usualRate = 1000 // requests per second: enough for a p99 of each second, little for the generator
	e, s := &b.spec, b.Setup
	want := e.need(b.places.shared.Len())
	s.Rate, s.CPUPerRequest = e.Rate, e.Tenant.ServiceTime
	if !e.Tenant.builtIn() {
		s.Rate = cmp.Or(e.Rate, firstRate)
		if e.Tenant.Exec != "" {
			s.Rate = cmp.Or(e.Rate, firstRuns)
		}
		if server, ok := program.Find(e.Tenant.Service); ok {
			version, err := server.Version()
			if err != nil {
				return err
			}
			s.Server = version
		}
	}
	if s.Rate == 0 && s.CPUPerRequest == 0 {
		s.Rate = usualRate
	}
	if s.Rate == 0 {
		s.Rate = want / time.Duration(s.CPUPerRequest).Seconds()
	}
	if s.CPUPerRequest == 0 {
		s.CPUPerRequest = Duration(want / s.Rate * float64(time.Second))
	}
	if b.tells() {
		s.Rate, s.CPUPerRequest = 0, 0
	}
	s.Tenant.WorkingSetBytes = e.Tenant.WorkingSetBytes
	s.Tenant.Procs = b.places.shared.Len()
	s.Tenant.Seed = e.Seed
	s.Neighbour = e.Neighbour
	s.Neighbour.Seed = e.Seed
	if s.Neighbour.Threads == 0 && len(s.Neighbour.Command) > 0 {
		s.Neighbour.Threads = 1
	}
	if s.Neighbour.Threads == 0 {
		s.Neighbour.Threads = b.places.shared.Len() * max(1, e.ThreadsPerCPU)
	}
	s.Neighbour.L2Bytes, s.Neighbour.L3Bytes = cacheBytes(m, b.places.shared)
	if b.opt.Servers > 0 { // what they do is the cells' affair
		s.Rate, s.CPUPerRequest, s.Tenant = 0, 0, load.TenantConfig{}
	}
	memory, err := kernel.ReadMemory(os.DirFS("/"))
	if err != nil {
		return err
	}
	if s.Tenant.WorkingSetBytes > memory.Available/4 {
		return fmt.Errorf("tenant: a working set of %d MiB is more than a quarter of the memory available (%d MiB)", s.Tenant.WorkingSetBytes>>20, memory.Available>>20)
	}
	size := noise.Plan(s.Neighbour, memory.Available) // once, so that it is the same in every round
	s.Neighbour.Bytes, s.NeighbourNote = size.Bytes, size.Note
	return nil
}

// open acquires what a run holds until close.
func (b *Testbed) open(m *machine.Machine) error {
	b.opt.Groups = b.opt.Groups || orCPU(b.spec.Resource) != CPU
	if b.opt.Groups && b.opt.Unprivileged {
		return errors.New("experiment: memory, I/O and network are limited by control groups only: not with --unprivileged")
	}
	b.parent = fork.NewParent()
	l2, l3 := cacheBytes(m, b.places.shared)
	var err error
	if b.probes, err = noise.NewProbes(l2, l3); err != nil {
		return err
	}
	b.Setup.ProbeNote = b.probes.Sizes().Note
	b.backend, b.undoLog, err = openBackend(b.opt, b.places, b.Setup)
	if err == nil && b.outside != nil {
		inner := b.backend
		if b.backend, err = newBeside(inner, b.outside); err != nil {
			b.backend = inner
		}
	}
	return err
}

// Set gives roles settings until they are undone.
func (b *Testbed) Set(s Settings) (undo func() error, err error) {
	return b.set(s, false)
}

// Apply carries out a plan for the host rather than for groups of roles, noted in the run's
// undo log. Where this process may not, the error is a kernel.NotSupportedError.
func (b *Testbed) Apply(plan kernel.Plan) (undo func() error, err error) {
	no := &kernel.NotSupportedError{Feature: "settings of the host", Remedy: "run as root, and without --unprivileged"}
	if b.undoLog == nil {
		no.Reason = "there is no undo log, so a killed run would leave them changed"
		return nil, no
	}
	root, err := kernel.Open("/")
	if err != nil {
		return nil, err
	}
	undo, err = kernel.Apply(root, plan, b.undoLog)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
		no.Reason = err.Error()
		return nil, no
	}
	return undo, err
}

func (b *Testbed) set(s Settings, together bool) (undo func() error, err error) {
	change, err := b.backend.plan(s, together)
	if err != nil {
		return nil, err
	}
	return change.apply()
}

// Group is the control group of a role, which an experiment has that asked for groups.
func (b *Testbed) Group(r Role) cgroup.Group { return b.backend.group(r) }

// Statistics are what the kernel tells of the group of a role; nothing without groups.
func (b *Testbed) Statistics(r Role, want ...cgroupstat.Signal) (map[watch.Quantity]float64, error) {
	return b.backend.statistics(r, want...)
}

// Knobs reads back the settings of all roles.
func (b *Testbed) Knobs() ([]Knob, error) { return b.backend.knobs() }

// left is the CPU time, in CPUs, that the tenant and a generator without a
// place of its own leave of the shared CPUs.
func (b *Testbed) left() float64 {
	left := float64(b.places.shared.Len()) - b.Setup.TenantCPUs
	if b.places.generator.IsEmpty() {
		left -= b.Setup.GeneratorDemand
	}
	return left
}
