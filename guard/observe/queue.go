package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/runq"
)

// Ended is what QueuedBy calls groups that ended before they could be named.
const Ended = "(ended)"

// queue turns what the run-queue probe counts into samples.
type queue struct {
	probe         probe
	root          string
	names         map[uint64]string // of groups, by id
	before, since runq.Snapshot
	seen          map[[2]string]bool // victim and culprit
}

// probe is what a queue needs of a *runq.Probe.
type probe interface {
	Add(path string) error
	Remove(path string) error
	Arm() error
	Disarm() error
	Read(*runq.Snapshot) error
	Close() error
}

// arm attaches the probe for groups. Those that have just gone are left out; why it
// cannot be had is kept in noRun.
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
	var err error
	for _, group := range groups {
		if failed := o.queue.watch(group); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = failed
			break
		}
	}
	if err == nil {
		err = o.queue.probe.Arm()
	}
	if err != nil {
		o.noRun = errors.Join(err, o.queue.close())
		o.queue = nil
	}
}

// watch has the probe watch a group, also if it has been made anew under its old name.
func (q *queue) watch(group string) error {
	if q.probe.Add("/"+group) == nil {
		return nil
	}
	_ = q.probe.Remove("/" + group) // it may not have been watched
	return q.probe.Add("/" + group)
}

func openQueue(o *Observer) (*queue, error) {
	if err := o.probeAvailable(); err != nil {
		return nil, err
	}
	probe, err := runq.Open(runq.Options{Root: o.cpuTree, Room: MaxFocus})
	if err != nil {
		return nil, err
	}
	return &queue{probe: probe, root: o.cpuTree, names: map[uint64]string{}, seen: map[[2]string]bool{}}, nil
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
	if err := q.learnNames(&snapshot); err != nil {
		return to, err
	}
	for i := range snapshot.Groups {
		to = q.samples(now, before, &snapshot.Groups[i], to)
		if _, p99, ok := q.since.Groups[i].Histogram.Quantile(0.99); ok {
			to = append(to, watch.Sample{Time: now, Subject: subject(snapshot.Groups[i].Path), Quantity: watch.QueueP99, Value: p99.Seconds()})
		}
	}
	return to, nil
}

func subject(path string) watch.Subject {
	return watch.Subject{Scope: watch.Group, Name: strings.TrimPrefix(path, "/")}
}

// learnNames looks up the names of culprits that are new.
func (q *queue) learnNames(s *runq.Snapshot) error {
	var unknown []uint64
	for i := range s.Groups {
		for _, share := range s.Groups[i].Shares {
			if id, ok := share.Culprit.Group(); ok && q.names[id] == "" {
				unknown = append(unknown, id)
			}
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	paths, err := runq.Paths(q.root)
	if err != nil {
		return err
	}
	maps.Copy(q.names, paths)
	for _, id := range unknown {
		if q.names[id] == "" {
			q.names[id] = Ended
		}
	}
	return nil
}

// samples splits the wait of a group by who had the CPU. A culprit that is new had
// cost nothing until the last tick.
func (q *queue) samples(now, before watch.Time, g *runq.Group, to []watch.Sample) []watch.Sample {
	who := subject(g.Path)
	add := func(at watch.Time, quantity watch.Quantity, v float64, by string) {
		to = append(to, watch.Sample{Time: at, Subject: who, Quantity: quantity, Value: v, By: by})
	}
	by := map[string]float64{}
	parts := map[runq.Culprit]float64{}
	whole := g.Dropped.Wait.Seconds()
	for _, share := range g.Shares {
		wait := share.Wait.Seconds()
		whole += wait
		if id, ok := share.Culprit.Group(); ok {
			by[q.culprit(q.names[id])] += wait
		} else {
			parts[share.Culprit] += wait
		}
	}
	for _, name := range sortedKeys(by) {
		if key := [2]string{g.Path, name}; !q.seen[key] {
			q.seen[key] = true
			add(before, watch.QueuedBy, 0, name)
		}
		add(now, watch.QueuedBy, by[name], name)
	}
	add(now, watch.QueuedKernel, parts[runq.Kernel], "")
	add(now, watch.QueuedIdle, parts[runq.Idle], "")
	add(now, watch.QueuedThrottled, parts[runq.Throttled], "")
	add(now, watch.Queued, whole, "")
	return to
}

// culprit is a group's name in samples: groups below one in focus are part of it,
// and "/" is the root group.
func (q *queue) culprit(path string) string {
	for i := range q.before.Groups {
		if focus := q.before.Groups[i].Path; strings.HasPrefix(path, focus+"/") {
			path = focus
		}
	}
	if path == "/" {
		return path
	}
	return strings.TrimPrefix(path, "/")
}
