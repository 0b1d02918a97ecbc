package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/perf"
	"berth.dev/berth/watch/resctrl"
	"berth.dev/berth/watch/schedstat"
)

const (
	// maxThreads is how many threads of a workload one reading visits, the others in
	// turn.
	maxThreads = 16
	// patience is after how many readings what could not be opened is tried again.
	patience = 10
)

// detailed are the signals of a group that are not read every second from these trees:
// they cost too much, or are in another tree.
func detailed(trees []cgroupstat.Tree) []cgroupstat.Signal {
	always := append(cgroupstat.Always(), cgroupstat.State)
	v2 := slices.ContainsFunc(trees, func(t cgroupstat.Tree) bool { return t.Version == 2 })
	return slices.DeleteFunc(cgroupstat.Signals(), func(s cgroupstat.Signal) bool {
		return slices.Contains(always, s) && (v2 || s != cgroupstat.CPUPressure)
	})
}

// counter tells samples of one workload.
type counter interface {
	Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error)
	Close() error
}

// site is where the figures of groups are.
type site struct {
	root  string // the directory that stands for "/"
	trees []cgroupstat.Tree
	// signals are those of groups that are read in turns.
	signals []cgroupstat.Signal
	// text and samples are room for one reading.
	text    []byte
	samples []watch.Sample
}

// source is a counter that workloads with CPUs of their own have. Descriptors, and
// what switches between groups cost, grow with CPUs: that these belong to one
// workload each bounds the sum.
type source struct {
	name string
	open func(s *site, group string, own cpuset.Set) (counter, error)
}

func ownSources() []source {
	return []source{
		{"hardware counters", func(s *site, group string, own cpuset.Set) (counter, error) {
			return s.openPerf(group, own, perf.Hardware, watch.Cycles, watch.Instructions, watch.LLCMisses)
		}},
		{"context switches", func(s *site, group string, own cpuset.Set) (counter, error) {
			return s.openPerf(group, own, perf.Software, watch.Switches)
		}},
		{"run delay of threads", (*site).openThreads},
		{"cache and bandwidth", (*site).openCaches},
	}
}

// noOwn says why sources tell nothing of workloads without CPUs of their own.
func noOwn(feature string) error {
	return &kernel.NotSupportedError{
		Feature: feature, Reason: "it is read of workloads with CPUs of their own, and there are none", Remedy: "give one CPUs of its own",
	}
}

// events are counted by perf.
type events struct{ *perf.Counter }

func (e events) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	to, _, err := e.Counter.Read(now, to)
	return to, err
}

// openPerf opens events of a group, in the v1 tree of the perf_event controller if
// there is one, else in that of v2.
func (s *site) openPerf(group string, own cpuset.Set, set perf.Set, only ...watch.Quantity) (counter, error) {
	no := &kernel.NotSupportedError{Feature: set.String()}
	if s.root != "/" {
		no.Reason, no.Remedy = "the root directory is not that of the running kernel", "run the agent on the live host"
		return nil, no
	}
	i := slices.IndexFunc(s.trees, func(t cgroupstat.Tree) bool { return t.Version == 1 && slices.Contains(t.Controllers, "perf_event") })
	if i < 0 {
		i = slices.IndexFunc(s.trees, func(t cgroupstat.Tree) bool { return t.Version == 2 })
	}
	if i < 0 {
		no.Reason, no.Remedy = "the perf_event controller is in no mounted tree", "mount cgroup2"
		return nil, no
	}
	c, err := perf.Open(perf.Config{Dir: filepath.Join(s.trees[i].Dir, group), Name: group, CPUs: own, Set: set, Only: only})
	if errors.Is(err, watch.ErrGone) {
		no.Reason, no.Remedy = "the group is not in the tree "+s.trees[i].Dir, "make it there, too"
		return nil, no
	}
	if err != nil {
		return nil, err
	}
	return events{c}, nil
}

// threads are what those of a group waited, and were switched. Their CPU time is the
// group's, which is read elsewhere.
type threads struct{ *schedstat.Group }

func (t threads) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	n := len(to)
	to, _, err := t.Group.Read(now, to)
	kept := slices.DeleteFunc(to[n:], func(s watch.Sample) bool { return s.Quantity == watch.CPUTime })
	return to[:n+len(kept)], err
}

func (s *site) openThreads(group string, _ cpuset.Set) (counter, error) {
	dir := filepath.Join(s.trees[0].Dir, group)
	if err := childless(dir); err != nil {
		return nil, err
	}
	g, err := schedstat.OpenGroup(schedstat.Config{
		Proc: filepath.Join(s.root, "proc"), Dir: dir, Name: group, MaxThreads: maxThreads, Switches: true,
	})
	if err != nil {
		return nil, err
	}
	return threads{g}, nil
}

// childless fails for a group that has groups below it: its threads are not all of
// the workload's.
func childless(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, fs.DirEntry.IsDir) {
		return &kernel.NotSupportedError{Feature: "threads of a workload", Reason: "the group has groups below it", Remedy: "place one of those"}
	}
	return nil
}

// openCaches opens the resctrl group that has the threads of a group, if who made
// it made one.
func (s *site) openCaches(group string, _ cpuset.Set) (counter, error) {
	tree := resctrl.Tree(filepath.Join(s.root, resctrl.Dir))
	if _, err := tree.Info(); err != nil {
		return nil, err
	}
	dir := filepath.Join(s.trees[0].Dir, group)
	if err := childless(dir); err != nil {
		return nil, err
	}
	tids, err := threadsIn(dir)
	if err != nil {
		return nil, err
	}
	g, ok, err := tree.Find(tids)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &kernel.NotSupportedError{
			Feature: "cache and bandwidth of a workload", Reason: "no resctrl group has its threads and no others",
			Remedy: "have the container runtime make one",
		}
	}
	r, err := resctrl.Open(resctrl.Config{Tree: tree, Group: g, Subject: watch.Subject{Scope: watch.Group, Name: group}})
	if err != nil {
		return nil, err
	}
	return caches{r, tree, g, dir}, nil
}

// caches reads a resctrl group for as long as it has the threads of a group.
type caches struct {
	*resctrl.Reader
	tree  resctrl.Tree
	group resctrl.Group
	dir   string
}

func (c caches) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	tids, err := threadsIn(c.dir)
	if err != nil {
		return to, err
	}
	if ok, err := c.tree.Has(c.group, tids); err != nil || !ok {
		return to, errors.Join(err, fmt.Errorf("resctrl group %s has other threads now", c.group))
	}
	return c.Reader.Read(now, to)
}

// threadsIn are the threads in a group, whose directory it is.
func threadsIn(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.threads"))
	if errors.Is(err, fs.ErrNotExist) {
		text, err = os.ReadFile(filepath.Join(dir, "tasks")) // v1
	}
	if err != nil {
		return nil, err
	}
	var all []int
	for _, word := range strings.Fields(string(text)) {
		tid, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("threads of %s: %w", dir, err)
		}
		all = append(all, tid)
	}
	return all, nil
}

// detail reads the costly figures of one workload and keeps the last two readings.
type detail struct {
	site  *site
	id    string // of the workload
	group string
	own   cpuset.Set
	// given is when the guard last gave its figures. While it does, taken is true, and
	// always says which of those that are read always there are.
	given  time.Time
	taken  bool
	always []cgroupstat.Status
	// stats is nil where it cannot be opened, and counters are where there is none
	// of a source; why says why.
	stats    *cgroupstat.Reader
	noStats  error
	counters []counter
	why      []error

	last, before costly
	readings     int
}

// costly are the samples of one reading of a workload, in half the room.
type costly struct {
	at      watch.Time
	figures []costlyFigure
}

type costlyFigure struct {
	value    float64
	part     watch.Part
	quantity watch.Quantity
}

// keep keeps samples in the room of others.
func (c costly) keep(now watch.Time, samples []watch.Sample) costly {
	c.at, c.figures = now, c.figures[:0]
	for i := range samples {
		s := &samples[i]
		c.figures = append(c.figures, costlyFigure{s.Value, s.Subject.Part, s.Quantity})
	}
	return c
}

func (c costly) samples(group string) []watch.Sample {
	all := make([]watch.Sample, len(c.figures))
	for i, f := range c.figures {
		all[i] = watch.Sample{Time: c.at, Subject: watch.Subject{Scope: watch.Group, Name: group, Part: f.part}, Quantity: f.quantity, Value: f.value}
	}
	return all
}

func newDetail(s *site, group string) *detail {
	n := len(ownSources())
	return &detail{site: s, group: group, counters: make([]counter, n), why: make([]error, n)}
}

// move closes what counts on CPUs that were the workload's own; nil if they still are.
func (d *detail) move(own cpuset.Set) error {
	if d.own.Equal(own) {
		return nil
	}
	d.own = own
	return d.closeCounters()
}

// open opens what is not open.
func (d *detail) open() {
	if d.stats == nil {
		if d.stats, d.noStats = cgroupstat.Open(d.site.trees, d.group, d.site.signals...); d.stats != nil {
			d.stats.Use(&d.site.text)
		}
	}
	if d.own.IsEmpty() {
		return
	}
	for i, s := range ownSources() {
		if d.counters[i] == nil && (d.why[i] == nil || d.readings%patience == 0) {
			d.counters[i], d.why[i] = s.open(d.site, d.group, d.own)
		}
	}
}

// read takes a reading. What fails tells nothing and is opened anew the next time.
func (d *detail) read(now watch.Time) {
	d.open()
	d.readings++
	all := d.site.samples[:0]
	if d.stats != nil {
		if all, d.noStats = d.stats.Read(now, all); d.noStats != nil {
			_ = d.stats.Close()
			d.stats = nil
		}
	}
	for i, c := range d.counters {
		if c == nil {
			continue
		}
		if all, d.why[i] = c.Read(now, all); d.why[i] != nil {
			_ = c.Close()
			d.counters[i] = nil
		}
	}
	d.before, d.last = d.last, d.before.keep(now, all)
	d.site.samples = all
}

func (d *detail) closeCounters() error {
	var errs []error
	for i, c := range d.counters {
		if c != nil {
			errs = append(errs, c.Close())
		}
		d.counters[i], d.why[i] = nil, nil
	}
	return errors.Join(errs...)
}

func (d *detail) close() error {
	var errs []error
	if d.stats != nil {
		errs = append(errs, d.stats.Close())
		d.stats = nil
	}
	if err := errors.Join(append(errs, d.closeCounters())...); err != nil {
		return fmt.Errorf("close figures of group %s: %w", d.group, err)
	}
	return nil
}

// tell notes which signals are there, in all: nil for one that is, else why not.
func (d *detail) tell(all map[string]error) {
	if d.stats != nil {
		tellAll(all, d.stats.Signals())
	}
	for i, s := range ownSources() {
		if d.counters[i] != nil || d.why[i] != nil { // else not read yet
			note(all, s.name, d.why[i])
		}
	}
}

func tellAll(all map[string]error, signals []cgroupstat.Status) {
	for _, status := range signals {
		note(all, status.Signal.String(), status.Err)
	}
}

// note notes a signal of one workload: it is there if one has it.
func note(all map[string]error, name string, err error) {
	if was, known := all[name]; !known || was != nil {
		all[name] = err
	}
}
