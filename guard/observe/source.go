package observe

import (
	"errors"
	"path/filepath"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/hardware"
	"berth.dev/berth/watch/network"
	"berth.dev/berth/watch/proc"
)

// Reader is a source of samples that is open.
type Reader interface {
	Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error)
	Close() error
}

// Source is a signal that is read of a few subjects only, as it costs too much to be
// read of all. What all groups tell is in the table of watch/cgroupstat.
type Source struct {
	Name string
	// Note says what it costs beside the time of a reading.
	Note string
	Of   Scope
	// Open opens it for a group on its CPUs. A source of the host gets "" and no CPUs.
	Open func(s *Site, group string, cpus cpuset.Set) (Reader, error)
}

// Scope is of which subjects a source is read.
type Scope uint8

// The scopes.
const (
	// OfHost sources are read of the host while groups are in focus.
	OfHost Scope = iota
	// InFocus sources are read of the groups in focus.
	InFocus
	// OnOwnCPUs sources are read once a minute of workloads with CPUs of their own.
	// Descriptors, and what switches between groups cost, grow with CPUs: that these
	// belong to one workload each bounds the sum.
	OnOwnCPUs
)

// sources is the table of all: a new signal is a row here, and its reader.
func sources() []Source {
	threads := func(most int, switches bool) func(*Site, string, cpuset.Set) (Reader, error) {
		return func(s *Site, group string, _ cpuset.Set) (Reader, error) { return s.openWaits(group, most, switches) }
	}
	events := func(set hardware.EventSet, only ...watch.Quantity) func(*Site, string, cpuset.Set) (Reader, error) {
		return func(s *Site, group string, cpus cpuset.Set) (Reader, error) {
			return s.openPerf(group, cpus, set, only...)
		}
	}
	cache := func(s *Site, group string, _ cpuset.Set) (Reader, error) { return s.openCache(group) }
	others := func(s *Site, group string, _ cpuset.Set) (Reader, error) {
		r, err := s.openCache(group)
		if c, ok := r.(caches); ok && err == nil {
			if _, told := resctrl.MonOf(string(c.own)); told {
				return nil, errors.Join(c.Close(), errTold)
			}
		}
		return r, err
	}
	connections := func(s *Site, group string, _ cpuset.Set) (Reader, error) { return s.openTCP(group) }
	all := []Source{
		{"run delay of CPUs", "grows with the CPUs; read while groups are in focus", OfHost, func(s *Site, _ string, _ cpuset.Set) (Reader, error) {
			return proc.OpenSchedCPUs(s.proc())
		}},
		{"cache and bandwidth", "asks a CPU of each cache; read while groups are in focus", OfHost, func(s *Site, _ string, _ cpuset.Set) (Reader, error) {
			return hardware.OpenCaches(s.resctrl())
		}},
		{"cache and bandwidth of groups", "asks a CPU of each cache for each group that a guard has monitored", OfHost, func(s *Site, _ string, _ cpuset.Set) (Reader, error) {
			return hardware.OpenMonitored(s.resctrl(), func(g hardware.ResctrlGroup) (watch.Subject, bool) {
				of, ok := resctrl.MonOf(string(g))
				return subject(of), ok
			})
		}},
		{"network links", "eight files for each link, and a request to the kernel for all queues and one for each HTB; read while groups are in focus", OfHost, func(s *Site, _ string, _ cpuset.Set) (Reader, error) {
			return network.OpenLinks(filepath.Join(s.Root, network.LinksDir), s.Root == "/")
		}},
		// Whether a link is busy it takes from the samples of the source before it.
		{"network traffic of groups", "a program in the kernel at every packet, attached while a link is busy", OfHost, func(s *Site, _ string, _ cpuset.Set) (Reader, error) {
			return s.openTraffic()
		}},
		{energy, "a file for each package and its memory; read while groups are in focus", OfHost, openEnergy},

		{runDelay, "grows with the threads, up to 64 a reading", InFocus, threads(64, false)},
		{"hardware counters", "four descriptors for each of its CPUs, and work at each switch to and from the group", InFocus, events(hardware.HardwareEvents)},
		{"software events", "three descriptors for each of its CPUs", InFocus, events(hardware.SoftwareEvents, watch.Switches, watch.Migrations, watch.PageFaults)},
		{"cache and bandwidth", "of groups with a resctrl group of their own; asks a CPU of each cache", InFocus, others},
		{"round trips of TCP", "grows with the connections of the group's network namespaces; costs nothing between readings", InFocus, connections},

		{"hardware counters", "", OnOwnCPUs, events(hardware.HardwareEvents, watch.Cycles, watch.Instructions, watch.LLCMisses)},
		{"context switches", "", OnOwnCPUs, events(hardware.SoftwareEvents, watch.Switches)},
		{"run delay of threads", "", OnOwnCPUs, threads(16, true)},
		{"cache and bandwidth", "", OnOwnCPUs, cache},
		{"round trips of TCP", "", OnOwnCPUs, connections},
	}
	for _, signal := range hardware.CPUSignals() {
		all = append(all, Source{signal.String(), "of the CPUs that the group may use", InFocus, func(s *Site, group string, cpus cpuset.Set) (Reader, error) {
			return hardware.OpenCPUs(hardware.CPUConfig{
				Dir: filepath.Join(s.Root, hardware.CPUDir), CPUs: cpus, Subject: subject(group), Signal: signal,
			})
		}})
	}
	return all
}

// errTold says that one source tells a group of caches already.
var errTold = errors.New("it is among the groups that the guard has monitored")

// energy is what processors and their memory take.
const energy = "energy"

func openEnergy(s *Site, _ string, _ cpuset.Set) (Reader, error) {
	return hardware.OpenEnergy(filepath.Join(s.Root, hardware.EnergyDir))
}

// runDelay is the source that is read at the high frequency, too.
const runDelay = "run delay"

// Sources are those of a scope.
func Sources(of Scope, more ...Source) []Source {
	return slices.DeleteFunc(append(sources(), more...), func(s Source) bool { return s.Of != of })
}

// Readers are the sources that are open for one group, or for the host.
type Readers struct {
	site    *Site
	group   string
	cpus    cpuset.Set
	sources []Source
	readers []Reader // or nil
	why     []error  // why there is no reader
	tried   int      // calls of Retry
}

// Patience is how many calls of Retry there are to each attempt.
const Patience = 10

// Open returns the readers of a group, "" for the host. None is open before Retry.
func (s *Site) Open(group string, cpus cpuset.Set, sources []Source) *Readers {
	return &Readers{site: s, group: group, cpus: cpus, sources: sources, readers: make([]Reader, len(sources)), why: make([]error, len(sources))}
}

// open opens a source. What it returns beside an error is nil.
func (s Source) open(site *Site, group string, cpus cpuset.Set) (Reader, error) {
	r, err := s.Open(site, group, cpus)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Retry opens the sources that are not open, as far as they can be. After one ended it
// tries at once, and then at every tenth call, as opening costs more than reading.
func (r *Readers) Retry() {
	if r.tried++; r.tried%Patience != 1 {
		return
	}
	for i, s := range r.sources {
		if r.readers[i] == nil {
			r.readers[i], r.why[i] = s.open(r.site, r.group, r.cpus)
		}
	}
}

// Move closes what counts on other CPUs than these.
func (r *Readers) Move(cpus cpuset.Set) error {
	if r.cpus.Equal(cpus) {
		return nil
	}
	r.cpus = cpus
	return r.Close()
}

// Read appends what each source tells. One that fails is closed.
func (r *Readers) Read(now watch.Time, to []watch.Sample) []watch.Sample {
	for i := range r.readers {
		to = r.read(i, now, to)
	}
	return to
}

func (r *Readers) read(i int, now watch.Time, to []watch.Sample) []watch.Sample {
	reader := r.readers[i]
	if reader == nil {
		return to
	}
	n := len(to)
	to, err := reader.Read(now, to)
	if err != nil {
		r.readers[i], r.why[i], r.tried, to = nil, err, 0, to[:n]
		_ = reader.Close()
	}
	return to
}

// readOne appends what the source of a name tells.
func (r *Readers) readOne(name string, now watch.Time, to []watch.Sample) []watch.Sample {
	if i := slices.IndexFunc(r.sources, func(s Source) bool { return s.Name == name }); i >= 0 {
		to = r.read(i, now, to)
	}
	return to
}

// Each calls with the name of each source that was tried, and nil or why it is not there.
func (r *Readers) Each(f func(name string, err error)) {
	for i, s := range r.sources {
		if r.readers[i] != nil || r.why[i] != nil {
			f(s.Name, r.why[i])
		}
	}
}

// Close closes what is open. Retry opens it again.
func (r *Readers) Close() error {
	var errs []error
	for i, reader := range r.readers {
		if reader != nil {
			errs = append(errs, reader.Close())
		}
		r.readers[i], r.why[i] = nil, nil
	}
	r.tried = 0
	return errors.Join(errs...)
}

// signals says whether sources are there and what one reading takes.
func (r *Readers) signals(of string) []Signal {
	var all []Signal
	for _, s := range r.sources {
		all = append(all, s.signal(r.site, r.group, r.cpus, Signal{Name: s.Name, Of: of, Note: s.Note}))
	}
	return all
}

func (s Source) signal(site *Site, group string, cpus cpuset.Set, signal Signal) Signal {
	r, err := s.open(site, group, cpus)
	if err != nil {
		return signal.with(0, err)
	}
	defer r.Close()
	var samples []watch.Sample
	cost, err := measure(readAgain(func(now watch.Time) (err error) {
		samples, err = r.Read(now, samples[:0])
		return err
	}))
	if quiet, ok := r.(interface{ Quiet() bool }); ok && quiet.Quiet() {
		return signal.with(cost, err)
	}
	if err == nil && len(samples) == 0 {
		err = &kernel.NotSupportedError{Feature: s.Name, Reason: silence(r)}
	}
	return signal.with(cost, err)
}

// silence says why a source tells nothing now.
func silence(r Reader) string {
	var no *kernel.NotSupportedError
	if why, ok := r.(interface{ Why(watch.Quantity) error }); ok && errors.As(why.Why(watch.Bandwidth), &no) {
		return no.Reason
	}
	return "it tells nothing now"
}
