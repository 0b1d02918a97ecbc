// Package observe opens every signal that a host has for its control groups and
// yields them as samples, tick by tick: counters of all groups, and of a few in
// focus also how long their threads wait for a CPU and who has it meanwhile, and
// what the hardware counts of them.
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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/kernfile"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/schedstat"
)

// MaxFocus is how many groups can be in focus.
const MaxFocus = 8

// rescan is the time between two looks for new groups.
const rescan = 5 * watch.Second

// Config says what to observe. Its zero value works.
type Config struct {
	// Root is the directory that stands for "/"; "" is "/".
	Root string
	// Probe allows the run-queue probe, which is armed for the groups in focus.
	// While it is, the kernel runs its programs at every context switch.
	Probe bool
}

// Observer reads a host's signals. It is for one goroutine at a time.
type Observer struct {
	cfg     Config
	host    fs.FS
	files   hostFiles
	trees   []cgroupstat.Tree
	tree    string                   // where groups are listed: that of CPU time
	cpuTree string                   // where groups are scheduled, "" if nowhere
	cpuset  string                   // where groups have their CPUs, "" if nowhere
	cpus    string                   // the file there that tells them
	sets    map[string]kernfile.File // those that are open, by group
	buf     []byte

	stats   []*tier
	closely map[string]bool // nil before Closely: all are
	groups  map[string]bool // that are read
	leaves  []string        // as the last tick found them, until they are asked for
	scanned watch.Time
	ticks   int

	perfTree string               // where perf events find groups, "" if nowhere
	counters map[string]*counters // of groups in focus
	hostwide *counters            // of the host, nil until a group is in focus

	focus map[string]*schedstat.Group // nil for one whose threads cannot be read
	why   map[string]error            // why they cannot
	queue *queue                      // nil until it is armed
	noRun error                       // why it is not
	last  watch.Time
}

// Open looks which signals there are. A host without control groups is a
// kernel.NotSupportedError.
func Open(c Config) (*Observer, error) {
	c.Root = cmp.Or(c.Root, "/")
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
		cfg: c, host: root.FS(), tree: filepath.Join(c.Root, usage.Dir), groups: map[string]bool{}, sets: map[string]kernfile.File{},
		focus: map[string]*schedstat.Group{}, why: map[string]error{},
		perfTree: perfTree(c.Root, host.Hierarchies), counters: map[string]*counters{},
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
		o.trees = append(o.trees, cgroupstat.Tree{Version: h.Version, Controllers: h.Controllers, Dir: filepath.Join(c.Root, h.Dir)})
	}
	o.stats = []*tier{{Sampler: cgroupstat.NewSampler(o.trees, sampled()...)}}
	if o.files, err = openHost(c.Root); err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	return o, nil
}

// sampled are the signals of all groups: those that the detector uses, and what
// is cheap.
func sampled() []cgroupstat.Signal {
	return slices.Concat(watched(), []cgroupstat.Signal{cgroupstat.MemoryEvents, cgroupstat.IO, cgroupstat.NUMA, cgroupstat.Tasks})
}

// watched are those that tell who suffers.
func watched() []cgroupstat.Signal {
	return []cgroupstat.Signal{
		cgroupstat.Usage, cgroupstat.Throttling, cgroupstat.ThrottlingAny, cgroupstat.Memory,
		cgroupstat.CPUPressure, cgroupstat.MemoryPressure, cgroupstat.IOPressure,
	}
}

// always are those of groups that may be suspects and no more: what the agent's metrics
// show every second, too.
func (o *Observer) always() []cgroupstat.Signal {
	v1 := slices.ContainsFunc(o.trees, func(t cgroupstat.Tree) bool { return t.Version == 1 && t.Dir == o.tree })
	return slices.DeleteFunc(cgroupstat.Always(), func(s cgroupstat.Signal) bool { return v1 && s == cgroupstat.CPUPressure })
}

// tier is what is read of some groups, and when.
type tier struct {
	*cgroupstat.Sampler
	whom   whom
	rarely bool   // every few ticks only
	stall  *stall // and while this is seen; nil is nothing
}

// whom says of which groups a tier is.
type whom uint8

const (
	everybody whom = iota
	closely
	others // those that are not looked at closely
)

// few is how many ticks lie between readings of what changes slowly.
const few = 5

// tiers are what is read once it is known who is looked at closely. What explains
// memory and I/O pressure is of interest only while somebody has half of what the
// detector takes for a symptom; until then it is read every few ticks, to count from.
func (o *Observer) tiers() []*tier {
	sampler := func(signals ...cgroupstat.Signal) *cgroupstat.Sampler {
		return cgroupstat.NewSampler(o.trees, signals...)
	}
	return []*tier{
		{Sampler: sampler(watched()...), whom: closely},
		{Sampler: sampler(o.always()...), whom: others},
		{Sampler: sampler(cgroupstat.NUMA, cgroupstat.Tasks), whom: closely, rarely: true},
		{Sampler: sampler(cgroupstat.MemoryEvents), whom: closely, rarely: true, stall: &stall{quantity: watch.MemorySome, least: 0.01}},
		{Sampler: sampler(cgroupstat.IO), rarely: true, stall: &stall{quantity: watch.IOSome, least: 0.05}},
	}
}

// stall looks for pressure.
type stall struct {
	quantity watch.Quantity
	least    float64 // of the time
	// sum is of all who told by the last tick, at that time.
	sum float64
	at  watch.Time
}

// seen reports whether somebody has waited since the last tick, as far as the samples
// of now tell of the host and of the groups that are looked at closely; where they do
// not, it may be.
func (s *stall) seen(now watch.Time, samples []watch.Sample) bool {
	sum, told := 0.0, false
	for i := range samples {
		if samples[i].Quantity == s.quantity {
			sum += samples[i].Value
			told = true
		}
	}
	grown, since := sum-s.sum, now-s.at
	s.sum, s.at = sum, now
	return !told || grown < 0 || grown >= s.least*since.Seconds()
}

// due reports whether a tier is to be read now, of which there are samples already.
func (o *Observer) due(t *tier, now watch.Time, samples []watch.Sample) bool {
	due := !t.rarely || o.ticks%few == 1
	if t.stall != nil && len(o.closely) > 0 {
		due = t.stall.seen(now, samples) || due
	}
	return due
}

// Closely has everything read of these groups, those in focus among them, and of the
// others only what may make them suspects: all of it of all is most of what a tick costs.
func (o *Observer) Closely(groups []string) error {
	now := map[string]bool{}
	for _, group := range groups {
		now[group] = true
	}
	if o.closely != nil && maps.Equal(now, o.closely) {
		return nil
	}
	var errs []error
	if o.closely == nil {
		errs = append(errs, o.closeStats())
		o.stats = o.tiers()
	}
	o.closely = now
	for _, group := range sortedKeys(o.groups) {
		errs = append(errs, o.add(group))
	}
	return errors.Join(errs...)
}

// Groups returns the groups that have none below them, by path below the root of
// the hierarchy, in order. Processes in other groups are in none of these.
func (o *Observer) Groups() ([]string, error) {
	if leaves := o.leaves; leaves != nil {
		o.leaves = nil
		return leaves, nil
	}
	return o.list()
}

func (o *Observer) list() ([]string, error) {
	var leaves []string
	err := filepath.WalkDir(o.tree, func(dir string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && dir != o.tree {
			return nil // it has just gone
		}
		if err != nil || !entry.IsDir() || dir == o.tree {
			return err
		}
		skip := childless(entry)
		group := strings.TrimPrefix(dir, o.tree+"/")
		// A parent comes right before its first child.
		if n := len(leaves); n > 0 && strings.HasPrefix(group, leaves[n-1]+"/") {
			leaves = leaves[:n-1]
		}
		leaves = append(leaves, group)
		return skip
	})
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	slices.Sort(leaves)
	return leaves, nil
}

// childless is fs.SkipDir for a directory that has no other in it by its number of
// links, which need not be read then: that is most of what listing groups costs.
func childless(entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return nil // it has just gone, which reading it tells too
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink == 2 {
		return fs.SkipDir
	}
	return nil
}

// Has says whether there is a group.
func (o *Observer) Has(group string) bool {
	info, err := os.Stat(filepath.Join(o.tree, group))
	return err == nil && info.IsDir()
}

// GroupOf returns the group of a process; "" is the root group. For a process
// that does not exist the error is fs.ErrNotExist.
func (o *Observer) GroupOf(pid int) (string, error) {
	text, err := fs.ReadFile(o.host, fmt.Sprintf("proc/%d/cgroup", pid))
	if err != nil {
		return "", fmt.Errorf("group of process %d: %w", pid, err)
	}
	members, err := cgroup.ParseMembership(string(text))
	if err != nil {
		return "", fmt.Errorf("group of process %d: %w", pid, err)
	}
	group, found := "", false
	for _, m := range members {
		// A v1 hierarchy of the controller comes before v2, as for Host.Hierarchy.
		if slices.Contains(m.Controllers, cgroup.CPUAcct) || m.ID == 0 && !found {
			group, found = m.Path, true
		}
	}
	return strings.Trim(group, "/"), nil
}

// Path returns the group of a directory, which is relative to the root.
func (o *Observer) Path(dir string) (group string, ok bool) {
	for _, t := range o.trees {
		if group, ok = strings.CutPrefix(filepath.Join(o.cfg.Root, dir), t.Dir+"/"); ok {
			return group, true
		}
	}
	return "", false
}

// CPUs returns the CPUs that a group may use; empty where the host does not tell.
func (o *Observer) CPUs(group string) cpuset.Set {
	if o.cpuset == "" {
		return cpuset.Set{}
	}
	for dir := group; ; dir = filepath.Dir(dir) {
		if set, err := o.readSet(dir); err == nil {
			return set
		}
		if dir == "." || dir == "" {
			return cpuset.Set{}
		}
	}
}

// readSet reads the CPUs of a group from a file that stays open while the group is read.
func (o *Observer) readSet(group string) (cpuset.Set, error) {
	f, open := o.sets[group]
	for {
		if !open {
			var err error
			if f, err = kernfile.Open(filepath.Join(o.cpuset, group, o.cpus)); err != nil {
				return cpuset.Set{}, err
			}
			o.sets[group] = f
		}
		text, buf, err := f.Read(o.buf)
		o.buf = buf
		if err == nil {
			return cpuset.Parse(strings.TrimSpace(string(text)))
		}
		if err := errors.Join(err, o.closeSet(group)); !open {
			return cpuset.Set{}, err
		}
		open = false // the group may have been made anew
	}
}

func (o *Observer) closeSet(group string) error {
	f, open := o.sets[group]
	if !open {
		return nil
	}
	delete(o.sets, group)
	return f.Close()
}

// Tick appends the samples of now: of the host, of all groups, and of those in
// focus. Groups that vanish end; other groups that cannot be read are an error,
// with the samples of the rest.
func (o *Observer) Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	o.leaves = nil
	if o.ticks == 0 || now-o.scanned >= rescan {
		if err := errors.Join(o.scan(), o.renew()); err != nil {
			return to, err
		}
		o.scanned = now
	}
	o.ticks++
	before := len(to)
	to, err := o.files.read(now, to)
	errs := []error{err}
	for _, t := range o.stats {
		if !o.due(t, now, to[before:]) {
			continue
		}
		var failed []cgroupstat.Failure
		to, failed = t.Sample(now, to)
		for _, f := range failed {
			if errors.Is(f.Err, watch.ErrGone) {
				errs = append(errs, o.remove(f.Group))
			} else {
				errs = append(errs, f.Err)
			}
		}
	}
	to = o.readWaits(now, to)
	for _, group := range sortedKeys(o.counters) {
		to = o.counters[group].read(now, to)
	}
	if o.hostwide != nil {
		to = o.hostwide.read(now, to)
	}
	if o.queue != nil {
		if to, err = o.queue.read(now, o.last, to); err != nil {
			o.noRun = err
			errs = append(errs, o.queue.close())
			o.queue = nil
		}
	}
	o.last = now
	return to, errors.Join(errs...)
}

// scan takes in groups that are new.
func (o *Observer) scan() error {
	leaves, err := o.list()
	if err != nil {
		return err
	}
	o.leaves = leaves
	wanted := map[string]bool{}
	for group := range o.focus {
		wanted[group] = true
	}
	for group := range o.closely {
		wanted[group] = true
	}
	for _, group := range leaves {
		wanted[group] = true
	}
	for group := range o.groups {
		if !wanted[group] {
			if err := o.remove(group); err != nil {
				return err
			}
		}
	}
	for group := range o.sets {
		if !wanted[group] {
			if err := o.closeSet(group); err != nil {
				return err
			}
		}
	}
	for group := range wanted {
		if !o.groups[group] {
			if err := o.add(group); err != nil {
				return err
			}
		}
	}
	return nil
}

// add reads a group from now on, as closely as it is to be. One that is gone is left out.
func (o *Observer) add(group string) error {
	is := closely
	if !o.closely[group] {
		is = others
	}
	for _, t := range o.stats {
		change := t.Remove
		if t.whom == everybody || t.whom == is {
			change = t.Add
		}
		if err := change(group); err != nil {
			return ignoreGone(err)
		}
	}
	o.groups[group] = true
	return nil
}

func (o *Observer) remove(group string) error {
	delete(o.groups, group)
	var errs []error
	for _, t := range o.stats {
		errs = append(errs, t.Remove(group))
	}
	return errors.Join(errs...)
}

func ignoreGone(err error) error {
	if errors.Is(err, watch.ErrGone) {
		return nil
	}
	return err
}

// Focus looks closely at some groups from the next tick on, MaxFocus at most and
// none within another. What cannot be had for one of them, Signals tells.
func (o *Observer) Focus(groups []string) error {
	if len(groups) > MaxFocus {
		return fmt.Errorf("focus on %d groups: at most %d", len(groups), MaxFocus)
	}
	for group := range o.focus {
		if !slices.Contains(groups, group) {
			if err := o.unfocus(group); err != nil {
				return fmt.Errorf("take %s out of focus: %w", group, err)
			}
		}
	}
	for _, group := range groups {
		if _, there := o.focus[group]; there {
			continue
		}
		if err := o.add(group); err != nil {
			return fmt.Errorf("focus on %s: %w", group, err)
		}
		o.focus[group], o.why[group] = o.openWaits(group)
		o.counters[group] = o.openCounters(group, focusSources())
	}
	if o.hostwide == nil && len(groups) > 0 {
		o.hostwide = o.openCounters("", hostSources())
	}
	if o.cfg.Probe && len(groups) > 0 {
		o.arm(groups)
	}
	return nil
}

// unfocus closes what is open of a group in focus alone.
func (o *Observer) unfocus(group string) error {
	var errs []error
	if threads := o.focus[group]; threads != nil {
		errs = append(errs, threads.Close())
	}
	if c := o.counters[group]; c != nil {
		errs = append(errs, c.close())
	}
	if o.queue != nil {
		_ = o.queue.probe.Remove("/" + group) // it may have gone when the probe was armed
	}
	delete(o.focus, group)
	delete(o.why, group)
	delete(o.counters, group)
	return errors.Join(errs...)
}

// openWaits opens the run delay of a group's threads.
func (o *Observer) openWaits(group string) (*schedstat.Group, error) {
	dir := filepath.Join(o.tree, group)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(entries, fs.DirEntry.IsDir) {
		return nil, &kernel.NotSupportedError{
			Feature: "run delay of threads", Reason: "the group has groups below it, and their threads are not its own", Remedy: "look at one of those",
		}
	}
	return schedstat.OpenGroup(schedstat.Config{Proc: filepath.Join(o.cfg.Root, "proc"), Dir: dir, Name: group})
}

// readWaits samples the run delay of the groups in focus. Their CPU time is that
// of the group, not that of its threads.
func (o *Observer) readWaits(now watch.Time, to []watch.Sample) []watch.Sample {
	for group, threads := range o.focus {
		if threads == nil {
			continue
		}
		n := len(to)
		var err error
		if to, _, err = threads.Read(now, to); err != nil {
			o.focus[group], o.why[group] = nil, err
			_ = threads.Close()
			continue
		}
		kept := slices.DeleteFunc(to[n:], func(s watch.Sample) bool { return s.Quantity == watch.CPUTime })
		to = to[:n+len(kept)]
	}
	return to
}

func (o *Observer) closeStats() error {
	var errs []error
	for _, t := range o.stats {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// Close ends all reading and detaches the probe.
func (o *Observer) Close() error {
	errs := []error{o.files.close(), o.closeStats()}
	for group := range o.sets {
		errs = append(errs, o.closeSet(group))
	}
	for _, c := range o.counters {
		errs = append(errs, c.close())
	}
	if o.hostwide != nil {
		errs = append(errs, o.hostwide.close())
	}
	for _, threads := range o.focus {
		if threads != nil {
			errs = append(errs, threads.Close())
		}
	}
	if o.queue != nil {
		errs = append(errs, o.queue.close())
		o.queue = nil
	}
	return errors.Join(errs...)
}
