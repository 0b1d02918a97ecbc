package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cpufreq"
	"berth.dev/berth/watch/perf"
	"berth.dev/berth/watch/resctrl"
	"berth.dev/berth/watch/schedstat"
)

// reader is a source of samples that is open.
type reader interface {
	Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error)
	Close() error
}

// source is a signal that is read while groups are in focus.
type source struct {
	name, note string
	// open opens it for a group; a source of the host gets "".
	open func(o *Observer, group string) (reader, error)
}

// hostSources are signals of the host that cost too much to be read always.
func hostSources() []source {
	return []source{
		{"run delay of CPUs", "grows with the CPUs; read while groups are in focus", func(o *Observer, _ string) (reader, error) {
			c, err := schedstat.OpenCPUs(filepath.Join(o.cfg.Root, "proc"))
			return cpuWait{c}, err
		}},
		{"cache and bandwidth", "asks a CPU of each cache; read while groups are in focus", func(o *Observer, _ string) (reader, error) {
			return resctrl.OpenHost(o.resctrl())
		}},
	}
}

// focusSources are those of groups in focus.
func focusSources() []source {
	all := []source{
		{"hardware counters", "four descriptors for each of its CPUs, and work at each switch to and from the group", func(o *Observer, group string) (reader, error) {
			return o.openPerf(group, perf.Hardware, nil)
		}},
		{"software events", "three descriptors for each of its CPUs", func(o *Observer, group string) (reader, error) {
			// Its CPU time is told by another signal.
			return o.openPerf(group, perf.Software, []watch.Quantity{watch.Switches, watch.Migrations, watch.PageFaults})
		}},
		{"cache and bandwidth", "of groups with a resctrl group of their own; asks a CPU of each cache", (*Observer).openCache},
	}
	for _, signal := range cpufreq.Signals() {
		all = append(all, source{signal.String(), "of the CPUs that the group may use", func(o *Observer, group string) (reader, error) {
			return cpufreq.Open(cpufreq.Config{
				Dir: filepath.Join(o.cfg.Root, cpufreq.Dir), CPUs: o.usable(group), Subject: subject(group), Signals: []cpufreq.Signal{signal},
			})
		}})
	}
	return all
}

// cpuWait is the run delay of the CPUs together: a sample for each would be most
// of what there is on a large host.
type cpuWait struct{ *schedstat.CPUs }

func (c cpuWait) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	return c.CPUs.Read(now, false, to)
}

// counter is perf events.
type counter struct{ *perf.Counter }

func (c counter) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	to, _, err := c.Counter.Read(now, to)
	return to, err
}

// openSource opens a source. What it returns beside an error is nil.
func (o *Observer) openSource(s source, group string) (reader, error) {
	r, err := s.open(o, group)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// perfTree is where perf events find groups: the v1 tree of their controller, else
// that of v2.
func perfTree(root string, hierarchies []cgroup.Hierarchy) string {
	tree := ""
	for _, h := range hierarchies {
		if h.Version == 1 && slices.Contains(h.Controllers, "perf_event") {
			return filepath.Join(root, h.Dir)
		}
		if h.Version == 2 {
			tree = filepath.Join(root, h.Dir)
		}
	}
	return tree
}

func (o *Observer) openPerf(group string, set perf.Set, only []watch.Quantity) (reader, error) {
	no := &kernel.NotSupportedError{Feature: set.String()}
	switch {
	case o.cfg.Root != "/":
		no.Reason, no.Remedy = "the root directory is not that of the running kernel", "look at the live host"
		return nil, no
	case o.perfTree == "":
		no.Reason, no.Remedy = "the perf_event controller is in no mounted tree", "mount cgroup2"
		return nil, no
	}
	dir := filepath.Join(o.perfTree, group)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && o.Has(group) {
		no.Reason = "the group is not in the tree of the perf_event controller, " + o.perfTree
		no.Remedy = "use cgroup v2 without v1 controllers"
		return nil, no
	}
	c, err := perf.Open(perf.Config{Dir: dir, Name: group, CPUs: o.usable(group), Set: set, Only: only})
	return counter{c}, err
}

func (o *Observer) resctrl() resctrl.Tree {
	return resctrl.Tree(filepath.Join(o.cfg.Root, resctrl.Dir))
}

// cacheReader reads the resctrl group that has the threads of a group.
type cacheReader struct {
	*resctrl.Reader
	own resctrl.Group
}

func (o *Observer) openCache(group string) (reader, error) {
	own, err := o.findCache(group)
	if err != nil {
		return nil, err
	}
	r, err := resctrl.Open(resctrl.Config{Tree: o.resctrl(), Group: own, Subject: subject(group)})
	return cacheReader{r, own}, err
}

// findCache finds the resctrl group that has the threads of a group.
func (o *Observer) findCache(group string) (resctrl.Group, error) {
	tree := o.resctrl()
	if _, err := tree.Info(); err != nil {
		return resctrl.Group{}, err
	}
	threads, err := o.threads(group)
	if err != nil {
		return resctrl.Group{}, err
	}
	own, ok, err := tree.Find(threads)
	if err == nil && !ok {
		err = &kernel.NotSupportedError{
			Feature: "cache and bandwidth of a group", Reason: "no resctrl group has the threads of this group and no others",
			Remedy: "make one below mon_groups and write them to its tasks",
		}
	}
	return own, err
}

// threads are those of a group and of the groups below it.
func (o *Observer) threads(group string) ([]int, error) {
	var all []int
	err := filepath.WalkDir(filepath.Join(o.tree, group), func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.threads"))
		if errors.Is(err, fs.ErrNotExist) {
			text, err = os.ReadFile(filepath.Join(dir, "tasks")) // v1
		}
		if err != nil {
			return err
		}
		for _, word := range strings.Fields(string(text)) {
			tid, err := strconv.Atoi(word)
			if err != nil {
				return fmt.Errorf("threads of %s: %w", dir, err)
			}
			all = append(all, tid)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("threads of group %s: %w", group, err)
	}
	return all, nil
}

// usable are the CPUs that are online and that a group may use; those online where
// the host does not tell the group's.
func (o *Observer) usable(group string) cpuset.Set {
	var online cpuset.Set
	if text, err := fs.ReadFile(o.host, cpufreq.Dir+"/online"); err == nil {
		online, _ = cpuset.Parse(strings.TrimSpace(string(text)))
	}
	own := o.CPUs(group)
	switch {
	case own.IsEmpty():
		return online
	case online.IsEmpty():
		return own
	}
	return own.Intersect(online)
}

// counters are the sources that are open for a group in focus, or for the host.
type counters struct {
	group   string
	cpus    cpuset.Set
	sources []source
	readers []reader // nil where there is none
	why     []error  // why there is none
}

func (o *Observer) openCounters(group string, sources []source) *counters {
	c := &counters{
		group: group, cpus: o.usable(group), sources: sources,
		readers: make([]reader, len(sources)), why: make([]error, len(sources)),
	}
	o.fill(c)
	return c
}

// fill opens the sources that are not open.
func (o *Observer) fill(c *counters) {
	for i, s := range c.sources {
		if c.readers[i] == nil {
			c.readers[i], c.why[i] = o.openSource(s, c.group)
		}
	}
}

// read appends what each source tells. One that fails is closed.
func (c *counters) read(now watch.Time, to []watch.Sample) []watch.Sample {
	for i, r := range c.readers {
		if r == nil {
			continue
		}
		n := len(to)
		var err error
		if to, err = r.Read(now, to); err != nil {
			c.readers[i], c.why[i], to = nil, err, to[:n]
			_ = r.Close()
		}
	}
	return to
}

func (c *counters) close() error {
	var errs []error
	for i, r := range c.readers {
		if r != nil {
			errs = append(errs, r.Close())
			c.readers[i] = nil
		}
	}
	return errors.Join(errs...)
}

// renew opens anew what is of other CPUs or threads now, and what could not be
// opened before.
func (o *Observer) renew() error {
	var errs []error
	for group, c := range o.counters {
		if cpus := o.usable(group); !cpus.Equal(c.cpus) {
			errs = append(errs, c.close())
			c.cpus = cpus
		}
		for i, r := range c.readers {
			cache, ok := r.(cacheReader)
			if !ok {
				continue
			}
			if own, err := o.findCache(group); err != nil || own != cache.own {
				errs = append(errs, r.Close())
				c.readers[i] = nil
			}
		}
		o.fill(c)
	}
	return errors.Join(errs...)
}

// sourceSignals says whether sources are there and what one reading takes.
func (o *Observer) sourceSignals(group, of string, sources []source) []Signal {
	var all []Signal
	for _, s := range sources {
		all = append(all, o.sourceSignal(group, Signal{Name: s.name, Of: of, Note: s.note}, s))
	}
	return all
}

func (o *Observer) sourceSignal(group string, signal Signal, s source) Signal {
	r, err := o.openSource(s, group)
	if err != nil {
		return signal.with(0, err)
	}
	defer r.Close()
	var samples []watch.Sample
	cost, err := measure(readAgain(func(now watch.Time) (err error) {
		samples, err = r.Read(now, samples[:0])
		return err
	}))
	if err == nil && len(samples) == 0 {
		err = &kernel.NotSupportedError{Feature: s.name, Reason: silence(r)}
	}
	return signal.with(cost, err)
}

// silence says why a source tells nothing now.
func silence(r reader) string {
	var no *kernel.NotSupportedError
	if why, ok := r.(interface{ Why(watch.Quantity) error }); ok && errors.As(why.Why(watch.Bandwidth), &no) {
		return no.Reason
	}
	return "it tells nothing now"
}
