// Package observe is the reader of a host: it opens every signal that the host has for
// its control groups and yields them as samples.
//
// Groups are read in tiers: all of them at each Tick, as far as they may be suspects;
// those looked at closely in full; those in focus with what costs most, and at a high
// frequency if asked for (TickNear); what changes slowly in every fifth tick, or in
// rotation, as agent/daemon has it read. One table says what all groups tell
// (watch/cgroupstat), one what is read of a few (source.go).
//
// It changes nothing on the host. A signal that is missing gives no sample;
// Signals says why. Judging samples is left to guard/detect.
package observe

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/proc"
)

// MaxFocus is how many groups can be in focus.
const MaxFocus = 8

const (
	// rescan is the time between two looks for new groups.
	rescan = 5 * watch.Second
	// relist is the time between two listings of a tree in which no group was seen to come
	// or go.
	relist = time.Minute
)

// Config says what to observe. Its zero value works.
type Config struct {
	// Root is the directory that stands for "/"; "" is "/".
	Root string
	// Probe has the run-queue probe armed for the groups in focus, and read by Tick.
	// While it is, the kernel runs its programs at every context switch.
	Probe bool
	// Bounds are those of subtrees of other users.
	Bounds cgroupstat.Bounds
	// Programs has what the processes of the root group do read, by program.
	Programs bool
	// Packets has what groups send and receive counted all the time while groups are in
	// focus, and not only while a link is busy.
	Packets bool
	// Sources are read beside those of this package.
	Sources []Source
}

// Observer reads a host's signals. It is for one goroutine at a time.
type Observer struct {
	cfg     Config
	site    Site
	host    fs.FS
	files   hostFiles
	cpuTree string      // where groups are scheduled, "" if nowhere
	cpuset  string      // where groups have their CPUs, "" if nowhere
	cpus    string      // the file there that tells them
	sets    kernel.Kept // those that are open

	stats   *cgroupstat.Sampler
	stalls  [3]stall
	closely map[string]bool // nil before Closely: all are
	groups  map[string]bool // that are read
	tree    *cgroupstat.Watcher
	leaves  []string // as the last tick found them, until they are asked for
	scanned watch.Time
	ticks   int
	last    watch.Time

	left int                   // groups for which there are no descriptors
	told map[string]watch.Time // when it was told that not all groups are read, and why

	focus    map[string]*Readers // by group
	programs []string            // in focus
	hostwide *Readers            // of the host, nil until a group is in focus or Sources has one

	outside *proc.Programs // processes in no group, nil until Outsiders

	queue   *queue     // nil until it is armed
	noRun   error      // why it is not
	armed   bool       // by Arm
	queueAt watch.Time // when it was last read

	suspects map[string]watch.Time // groups for which those in focus wait: when they last did

	triggers  alarms // nil until WakeAt
	wakeOlder int    // how many of wakeWindows this kernel does not take
}

// Open looks which signals there are. A host without control groups is a
// kernel.NotSupportedError.
func Open(c Config) (*Observer, error) {
	c.Root = cmp.Or(c.Root, "/")
	if c.Programs {
		c.Sources = append(slices.Clone(c.Sources), programSource())
	}
	root, err := kernel.Open(c.Root)
	if err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	usage, ok := host.Hierarchy(cgroup.CPUAcct)
	if !ok {
		return nil, fmt.Errorf("observe: %w", &kernel.NotSupportedError{
			Feature: "CPU time of groups", Reason: "neither cgroup v2 nor the v1 cpuacct controller is mounted", Remedy: "mount cgroup2",
		})
	}
	o := &Observer{
		cfg: c, host: root.FS(), site: Site{Root: c.Root, Tree: filepath.Join(c.Root, usage.Dir), Packets: c.Packets},
		groups: map[string]bool{}, told: map[string]watch.Time{},
		stalls: stalls(), focus: map[string]*Readers{}, suspects: map[string]watch.Time{},
	}
	for controller, dir := range map[string]*string{cgroup.CPU: &o.cpuTree, cgroup.CPUSet: &o.cpuset} {
		if h, ok := host.Hierarchy(controller); ok {
			*dir = filepath.Join(c.Root, h.Dir)
		}
	}
	o.cpus = "cpuset.cpus.effective"
	if h, ok := host.Hierarchy(cgroup.CPUSet); ok && h.Version == 1 {
		o.cpus = "cpuset.effective_cpus"
	}
	for _, h := range host.Hierarchies {
		o.site.Trees = append(o.site.Trees, cgroupstat.Tree{Version: h.Version, Controllers: h.Controllers, Dir: filepath.Join(c.Root, h.Dir)})
	}
	o.stats = cgroupstat.NewSampler(o.site.Trees, sampled(), watched(), o.suspected())
	if o.files, err = openHost(c.Root); err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	if o.tree, err = cgroupstat.NewWatcher(cgroupstat.WatcherConfig{Root: o.site.Tree, Rescan: relist, Bounds: c.Bounds}); err != nil {
		return nil, errors.Join(fmt.Errorf("observe: %w", err), o.files.close())
	}
	return o, nil
}

// Tick appends the samples of now: of the host, of all groups, and of those in
// focus. Groups that vanish end; other groups that cannot be read are an error,
// with the samples of the rest. That not all groups are read is an error too, once in a
// while.
func (o *Observer) Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	o.leaves = nil
	var errs []error
	if o.ticks == 0 || now-o.scanned >= rescan {
		errs = append(errs, o.scan(), o.renew(), o.tell(now))
		o.scanned = now
	}
	o.ticks++
	to, err := o.readGroups(now, to)
	errs = append(errs, err)
	for _, group := range sortedKeys(o.focus) {
		to = o.focus[group].Read(now, to)
	}
	if o.hostwide == nil && slices.ContainsFunc(o.cfg.Sources, func(s Source) bool { return s.Of == OfHost }) {
		o.openHostwide()
	}
	if o.hostwide != nil {
		n := len(to)
		to = o.hostwide.Read(now, to)
		others := slices.DeleteFunc(to[n:], func(s watch.Sample) bool { return s.Subject.Scope == watch.Group && !o.groups[s.Subject.Name] })
		to = to[:n+len(others)]
	}
	if o.cfg.Probe {
		to, err = o.readQueue(now, to)
		errs = append(errs, err)
	}
	o.last = now
	return to, errors.Join(errs...)
}

// scan takes in groups that are new, and ends those that are gone. One that cannot be
// opened does not keep the others from being read.
func (o *Observer) scan() error {
	leaves, err := o.list()
	if err != nil {
		return err // those that are known are read on
	}
	o.leaves = leaves
	wanted := func(group string) bool {
		_, leaf := slices.BinarySearch(leaves, group)
		return leaf || o.closely[group] || o.focus[group] != nil
	}
	var errs []error
	for group := range o.groups {
		if !wanted(group) {
			errs = append(errs, o.remove(group))
		}
	}
	errs = append(errs, o.closeSets(func(group string) bool { return !wanted(group) }))
	missing := slices.Concat(leaves, slices.Collect(maps.Keys(o.closely)), slices.Collect(maps.Keys(o.focus)))
	missing = slices.DeleteFunc(missing, func(group string) bool { return o.groups[group] })
	slices.Sort(missing)
	o.left = 0
	var added []string
	for _, group := range slices.Compact(missing) {
		if o.left > 0 { // there is no room for this one either
			o.left++
			continue
		}
		err := o.add(group)
		if !exhausted(err) {
			errs = append(errs, err)
			added = append(added, group)
			continue
		}
		for _, group := range append(added[max(0, len(added)-spare):], group) {
			o.left++
			errs = append(errs, o.remove(group))
		}
	}
	return errors.Join(errs...)
}

// spare is how many descriptors are left for what is opened for a moment only.
const spare = 4

// exhausted reports whether an error means that no more files can be opened.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.ENOMEM)
}

// again is the time after which it is told again that not all groups are read.
const again = 10 * 60 * watch.Second

// tell says which groups are not read one by one, if that is news.
func (o *Observer) tell(now watch.Time) error {
	var errs []error
	say := func(key string, err error) {
		if at, told := o.told[key]; !told || now-at >= again {
			o.told[key] = now
			errs = append(errs, err)
		}
	}
	maps.DeleteFunc(o.told, func(_ string, at watch.Time) bool { return now-at >= again })
	for _, c := range o.tree.Crowds() {
		if !c.Changes {
			say(c.Path, errors.New(c.String()))
		}
	}
	if o.left > 0 {
		say("", fmt.Errorf("%d of %d groups are left out: %w; raise the limit of open files (LimitNOFILE)",
			o.left, o.left+len(o.groups), syscall.EMFILE))
	}
	return errors.Join(errs...)
}

// add reads a group from now on, as closely as it is to be. One that is gone is left out.
func (o *Observer) add(group string) error {
	err := o.stats.Add(group, o.tierOf(group))
	if err != nil {
		return ignoreGone(err)
	}
	o.groups[group] = true
	return nil
}

func (o *Observer) remove(group string) error {
	delete(o.groups, group)
	return o.stats.Remove(group)
}

func ignoreGone(err error) error {
	if errors.Is(err, watch.ErrGone) {
		return nil
	}
	return err
}

// Close ends all reading and detaches the probe.
func (o *Observer) Close() error {
	errs := []error{o.files.close(), o.stats.Close(), o.tree.Close(), o.closeSets(func(string) bool { return true })}
	for _, r := range o.focus {
		errs = append(errs, r.Close())
	}
	if o.hostwide != nil {
		errs = append(errs, o.hostwide.Close())
	}
	if o.outside != nil {
		errs = append(errs, o.outside.Close())
	}
	if o.queue != nil {
		errs = append(errs, o.queue.close())
		o.queue = nil
	}
	if o.triggers != nil {
		errs = append(errs, o.triggers.Close())
	}
	return errors.Join(errs...)
}
