// Package usage says how much CPU time and memory the pods of a node use, and the node as
// a whole, over some minutes: what batch work's share is computed from. It reads the groups
// that the kubelet makes for pods.
package usage

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kube/batch"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/pods"
	"berth.dev/berth/watch/proc"
)

// MaxPods is how many pods are read at most.
const MaxPods = 2000

// Meter takes samples. It is for one goroutine.
type Meter struct {
	files  fs.FS
	trees  []cgroupstat.Tree
	window time.Duration
	past   []sample // the oldest first
}

// sample is what was used at an instant: CPU time since boot, in seconds, and memory.
type sample struct {
	at   time.Time
	node figure
	pods map[string]figure // by UID
}

type figure struct {
	cpu    float64 // seconds
	memory int64   // bytes
}

// New makes a meter whose answers are about the last window at most.
func New(root *kernel.Root, window time.Duration) (*Meter, error) {
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, fmt.Errorf("measure pods: %w", err)
	}
	m := &Meter{files: root.FS(), window: window}
	for _, h := range host.Hierarchies {
		m.trees = append(m.trees, cgroupstat.Tree{Version: h.Version, Controllers: h.Controllers, Dir: h.Dir})
	}
	return m, nil
}

// Sample reads the node and every pod.
func (m *Meter) Sample(now time.Time) error {
	s := sample{at: now, pods: map[string]figure{}}
	stat, err := proc.ReadStat(m.files)
	if err != nil {
		return fmt.Errorf("measure the node: %w", err)
	}
	s.node.cpu = stat.Total.Busy().Seconds()
	memory, err := kernel.ReadMemory(m.files)
	if err != nil {
		return fmt.Errorf("measure the node: %w", err)
	}
	s.node.memory = max(memory.Total-memory.Available, 0)
	for group, uid := range m.groups() {
		f, err := m.read(group)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("measure pod %s: %w", uid, err)
		}
		s.pods[uid] = f
	}
	m.past = append(m.past, s)
	m.past = m.last(m.window)
	return nil
}

// last are the samples that a time before the last of them takes, two if there are.
func (m *Meter) last(d time.Duration) []sample {
	past := m.past
	for len(past) > 2 && past[len(past)-1].at.Sub(past[1].at) >= d {
		past = past[1:]
	}
	return past
}

// read reads one group. That it is gone is no figure, and no error of the others.
func (m *Meter) read(group string) (f figure, err error) {
	dirs := make([]cgroupstat.Tree, len(m.trees))
	for i, t := range m.trees {
		t.Dir = path.Join(t.Dir, group)
		dirs[i] = t
	}
	values, err := cgroupstat.Values(m.files, dirs, cgroupstat.Usage, cgroupstat.MemoryDetail)
	if err != nil {
		return f, err
	}
	cpu, ok := values[watch.CPUTime]
	if !ok {
		return f, fs.ErrNotExist
	}
	return figure{cpu, int64(values[watch.MemoryAnon])}, nil
}

// groups are the groups of pods, below the top of the hierarchies, with the pods' UIDs.
func (m *Meter) groups() map[string]string {
	all := map[string]string{}
	for _, t := range m.trees {
		for _, tops := range []string{"*kubepods*", "*/*kubepods*"} { // the kubelet's cgroupRoot may be a group
			for _, below := range []string{"*pod*", "*/*pod*"} {
				names, _ := fs.Glob(m.files, path.Join(t.Dir, tops, below))
				for _, name := range names {
					group := strings.TrimPrefix(strings.TrimPrefix(name, t.Dir), "/")
					if g := pods.Parse(group); g.Level == pods.OnePod && len(all) < MaxPods {
						all[group] = g.UID
					}
				}
			}
		}
	}
	return all
}

// Report is what was used, on average over a window.
type Report struct {
	// At is the end of the window, For its length.
	At  time.Time
	For time.Duration
	// Node is used by all, Pods by each pod that was there at the end, by its UID. Of CPU
	// time it is what they used while they were there.
	Node batch.Amount
	Pods map[string]batch.Amount
}

// System is what is used outside of the pods' groups.
func (r *Report) System() batch.Amount {
	s := r.Node
	for _, p := range r.Pods {
		s.Milli -= p.Milli
		s.Memory -= p.Memory
	}
	return batch.Amount{Milli: max(s.Milli, 0), Memory: max(s.Memory, 0)}
}

// Report returns the figures of the last time d, of the window at most; ok is false before the
// second sample. CPU time is a rate between its ends, memory the mean of its samples. A pod that
// came within it has a rate since its first sample, and none at its first.
func (m *Meter) Report(d time.Duration) (r Report, ok bool) {
	past := m.last(d)
	if len(past) < 2 {
		return r, false
	}
	first, last := &past[0], &past[len(past)-1]
	r = Report{At: last.at, For: last.at.Sub(first.at), Pods: map[string]batch.Amount{}}
	r.Node = over(past, func(s *sample) (figure, bool) { return s.node, true })
	for uid := range last.pods {
		of := func(s *sample) (figure, bool) { f, there := s.pods[uid]; return f, there }
		from := slices.IndexFunc(past, func(s sample) bool { _, there := of(&s); return there })
		if from < len(past)-1 {
			r.Pods[uid] = over(past[from:], of)
		}
	}
	return r, true
}

func over(past []sample, of func(*sample) (figure, bool)) batch.Amount {
	first, last := &past[0], &past[len(past)-1]
	a, _ := of(first)
	b, _ := of(last)
	var memory, n int64
	for i := range past {
		if f, there := of(&past[i]); there {
			memory += f.memory
			n++
		}
	}
	return batch.Amount{
		Milli:  int64(max(b.cpu-a.cpu, 0) * 1000 / max(last.at.Sub(first.at).Seconds(), 1e-3)),
		Memory: memory / max(n, 1),
	}
}
