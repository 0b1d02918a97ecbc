package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/runq"
)

const (
	// Ended is what QueuedBy calls groups that ended before they could be named, and
	// left no group above them but the root.
	Ended = "(ended)"
	// Others is what QueuedBy calls groups beyond those that are kept apart.
	Others = "(others)"
)

const (
	// maxCulprits is how many culprits of one group are kept apart. One that has cost
	// nothing for idle gives way to a new one.
	maxCulprits = 64
	idle        = 15 * watch.Second
	// maxLookups is how many names of culprits one reading looks up.
	maxLookups = 64
	// retry is the time to the next attempt to watch a group that was refused, or had
	// more culprits than there was room for.
	retry = 10 * watch.Second
)

// queue turns what the run-queue probe counts into samples.
type queue struct {
	probe         probe
	root          string
	names         map[uint64]string // of groups, by id
	before, since runq.Snapshot
	waits         map[string]map[string]*wait // by victim, then by culprit
	crowded       []string                    // subtrees that count as one group

	wanted  []string              // groups in focus
	refused map[string]watch.Time // those that are not watched: when to try again
	renewed map[string]watch.Time // those whose culprits had no room: when they may be watched anew
	news    []error               // that the next tick tells
}

// wait is what a culprit has cost a group.
type wait struct {
	seconds float64
	grown   watch.Time // when it last did
	lately  float64    // by how much, then
}

// probe is what a queue needs of a *runq.Probe.
type probe interface {
	Add(path string) error
	Remove(path string) error
	Arm() error
	Disarm() error
	Read(*runq.Snapshot) error
	Name(id uint64) (string, error)
	Close() error
}

// arm attaches the probe for groups. Why it cannot be had is kept in noRun.
func (o *Observer) arm(groups []string) {
	if o.noRun != nil {
		return
	}
	if o.queue == nil {
		if o.queue, o.noRun = openQueue(o); o.noRun != nil {
			o.queue = nil
			return
		}
	}
	o.queue.crowded = o.Crowded()
	o.queue.watch(groups, o.last)
	for _, name := range o.programs {
		if err := o.queue.probe.Add(runq.ProgramPath(name)); err != nil {
			o.queue.news = append(o.queue.news, fmt.Errorf("run-queue probe: %w", err))
		}
	}
	if err := o.queue.probe.Arm(); err != nil {
		o.noRun = errors.Join(err, o.queue.close())
		o.queue = nil
	}
}

func newQueue(p probe, root string) *queue {
	return &queue{
		probe: p, root: root, names: map[uint64]string{}, waits: map[string]map[string]*wait{},
		refused: map[string]watch.Time{}, renewed: map[string]watch.Time{},
	}
}

// watch has the probe watch these groups, of which it may watch some. Those that have
// just gone are left out. One that is refused costs itself only: that is told once, and
// it is tried again later.
func (q *queue) watch(groups []string, now watch.Time) {
	q.wanted = slices.Clone(groups)
	for _, group := range groups {
		at, refused := q.refused[group]
		if refused && now < at {
			continue
		}
		err := q.add(group)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			delete(q.refused, group)
			continue
		}
		q.refused[group] = now + retry
		if !refused {
			q.news = append(q.news, fmt.Errorf("run-queue probe: %w; it is tried again every %v, the others are watched", err, time.Duration(retry)))
		}
	}
	for group, at := range q.refused {
		if now >= at && !slices.Contains(groups, group) {
			delete(q.refused, group)
		}
	}
}

// add has the probe watch a group, also if it has been made anew under its old name.
func (q *queue) add(group string) error {
	err := q.probe.Add("/" + group)
	if crowded := (*runq.CrowdedError)(nil); err == nil || errors.As(err, &crowded) {
		return err
	}
	_ = q.probe.Remove("/" + group) // it may not have been watched
	return q.probe.Add("/" + group)
}

// tell returns what went wrong since it was last asked.
func (q *queue) tell() error {
	err := errors.Join(q.news...)
	q.news = nil
	return err
}

func openQueue(o *Observer) (*queue, error) {
	if err := o.probeAvailable(); err != nil {
		return nil, err
	}
	room := MaxFocus
	if o.cfg.Programs {
		room *= 2
	}
	probe, err := runq.Open(runq.Options{Root: o.cpuTree, Room: room})
	if err != nil {
		return nil, err
	}
	return newQueue(probe, o.cpuTree), nil
}

// probeAvailable says why this host cannot have the probe, nil if it can.
func (o *Observer) probeAvailable() error {
	if o.cpuTree == "" {
		return &kernel.NotSupportedError{Feature: "run-queue probe", Reason: "the cpu controller is in no mounted tree", Remedy: "mount cgroup2"}
	}
	if o.cfg.Root != "/" {
		return &kernel.NotSupportedError{Feature: "run-queue probe", Reason: "the root directory is not that of the running kernel", Remedy: "look at the live host"}
	}
	return runq.Available(o.host)
}

func (q *queue) close() error { return q.probe.Close() }

// read appends what the groups in focus have waited. Before is the last tick.
func (q *queue) read(now, before watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	var snapshot runq.Snapshot
	if err := q.probe.Read(&snapshot); err != nil {
		return to, fmt.Errorf("read run-queue probe: %w", err)
	}
	q.since.Since(&q.before, &snapshot)
	q.before = snapshot
	q.learnNames(&snapshot)
	watched := map[string]bool{}
	for i := range snapshot.Groups {
		g := &snapshot.Groups[i]
		watched[g.Path] = true
		to = q.samples(now, before, g, &q.since.Groups[i], to)
		if _, p99, ok := q.since.Groups[i].Histogram.Quantile(0.99); ok {
			to = append(to, watch.Sample{Time: now, Subject: subject(g.Path), Quantity: watch.QueueP99, Value: p99.Seconds()})
		}
		if q.since.Groups[i].Dropped.Wait > 0 {
			q.renew(g.Path, now)
		}
	}
	maps.DeleteFunc(q.waits, func(victim string, _ map[string]*wait) bool { return !watched[victim] })
	maps.DeleteFunc(q.renewed, func(_ string, at watch.Time) bool { return now >= at })
	for _, at := range q.refused {
		if now >= at {
			q.watch(q.wanted, now)
			break
		}
	}
	return to, nil
}

// renew watches a group anew, whose culprits found no room: most of them may have ended.
func (q *queue) renew(path string, now watch.Time) {
	if _, lately := q.renewed[path]; lately {
		return
	}
	q.renewed[path] = now + retry
	if err := errors.Join(q.probe.Remove(path), q.probe.Add(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		q.news = append(q.news, fmt.Errorf("run-queue probe: %w", err))
	}
}

func subject(path string) watch.Subject {
	if name, ok := runq.Program(path); ok {
		return watch.Subject{Scope: watch.Process, Name: name}
	}
	return watch.Subject{Scope: watch.Group, Name: strings.TrimPrefix(path, "/")}
}

// learnNames looks up the names of culprits that are new, as many as one reading may,
// and forgets those that are culprits no more.
func (q *queue) learnNames(s *runq.Snapshot) {
	names := make(map[uint64]string, len(q.names))
	lookups := 0
	for i := range s.Groups {
		for _, share := range s.Groups[i].Shares {
			id, ok := share.Culprit.Group()
			if !ok || names[id] != "" {
				continue
			}
			if name := q.names[id]; name != "" {
				names[id] = name
				continue
			}
			if lookups++; lookups > maxLookups {
				continue
			}
			name, err := q.probe.Name(id)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				names[id] = Ended
			case err != nil:
				q.news = append(q.news, fmt.Errorf("run-queue probe: %w", err))
				lookups = maxLookups // the next reading tries again
			default:
				names[id] = name
			}
		}
	}
	q.names = names
}

// samples splits the wait of a group by who had the CPU; since is what it has waited
// since the last tick. A culprit that is new had cost nothing until then.
func (q *queue) samples(now, before watch.Time, g, since *runq.Group, to []watch.Sample) []watch.Sample {
	who := subject(g.Path)
	add := func(at watch.Time, quantity watch.Quantity, v float64, by string) {
		to = append(to, watch.Sample{Time: at, Subject: who, Quantity: quantity, Value: v, By: by})
	}
	parts := map[runq.Culprit]float64{}
	whole := g.Dropped.Wait.Seconds()
	for _, share := range g.Shares {
		whole += share.Wait.Seconds()
		parts[share.Culprit] += share.Wait.Seconds()
	}
	waits := q.waits[g.Path]
	if waits == nil {
		waits = map[string]*wait{}
		q.waits[g.Path] = waits
	}
	charge := func(name string, wait time.Duration) {
		w, isNew := waitOf(waits, name, now)
		if isNew {
			add(before, watch.QueuedBy, 0, w)
		}
		of := waits[w]
		if of.grown < now {
			of.grown, of.lately = now, 0
		}
		of.seconds += wait.Seconds()
		of.lately += wait.Seconds()
	}
	for _, share := range since.Shares {
		if id, ok := share.Culprit.Group(); ok {
			charge(q.culprit(q.names[id]), share.Wait)
		}
	}
	if since.Dropped.Wait > 0 {
		charge(Others, since.Dropped.Wait)
	}
	for _, name := range sortedKeys(waits) {
		add(now, watch.QueuedBy, waits[name].seconds, name)
	}
	add(now, watch.QueuedKernel, parts[runq.Kernel], "")
	add(now, watch.QueuedIdle, parts[runq.Idle], "")
	add(now, watch.QueuedThrottled, parts[runq.Throttled], "")
	add(now, watch.Queued, whole, "")
	return to
}

// waitOf returns under which name a culprit is charged: its own, or Others if there is
// no room for more. It makes room for names that are new.
func waitOf(waits map[string]*wait, name string, now watch.Time) (as string, isNew bool) {
	if waits[name] != nil {
		return name, false
	}
	if len(waits) >= maxCulprits-1 && name != Others { // one is for Others
		oldest := ""
		for other, w := range waits {
			if other != Others && now-w.grown >= idle && (oldest == "" || w.grown < waits[oldest].grown || w.grown == waits[oldest].grown && other < oldest) {
				oldest = other
			}
		}
		if oldest == "" {
			return waitOf(waits, Others, now)
		}
		delete(waits, oldest)
	}
	waits[name] = &wait{}
	return name, true
}

// culprit is a group's name in samples: groups below one in focus are part of it, those
// in a crowded subtree part of that, and one that has ended counts as the closest group
// above it that is still there. "/" is the root group, "process nginx" a program of it.
func (q *queue) culprit(path string) string {
	if _, ok := runq.Program(path); ok {
		return subject(path).String()
	}
	switch path {
	case "":
		return Others // not looked up yet
	case "/", Ended:
		return path
	}
	for i := range q.before.Groups {
		if focus := q.before.Groups[i].Path; kernel.Within(path, focus) {
			return strings.TrimPrefix(focus, "/")
		}
	}
	for _, crowded := range q.crowded {
		if strings.HasPrefix(path, "/"+crowded+"/") {
			return crowded
		}
	}
	for ; path != "/"; path = filepath.Dir(path) {
		if _, err := os.Lstat(filepath.Join(q.root, path)); !errors.Is(err, fs.ErrNotExist) {
			return strings.TrimPrefix(path, "/")
		}
	}
	return Ended
}
