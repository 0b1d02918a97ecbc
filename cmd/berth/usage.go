package main

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/procstat"
)

// usage is how a workload fares. What the host does not tell is nil.
type usage struct {
	// Seconds is the time that the shares are over.
	Seconds float64 `json:"seconds,omitempty"`
	// CPU is CPU time used, in percent of one CPU.
	CPU *float64 `json:"cpuPercent,omitempty"`
	// Throttled are the enforcement periods in which the quota ran out, in percent.
	Throttled *float64 `json:"throttledPercent,omitempty"`
	// The stalls are the time in which some task waited, in percent.
	CPUStall    *float64 `json:"cpuStallPercent,omitempty"`
	MemoryStall *float64 `json:"memoryStallPercent,omitempty"`
	IOStall     *float64 `json:"ioStallPercent,omitempty"`
	// Memory is in bytes; Tasks are processes and threads.
	Memory *float64 `json:"memoryBytes,omitempty"`
	Tasks  *float64 `json:"tasks,omitempty"`
}

// meters read how workloads fare.
type meters struct {
	dir    string
	root   *kernel.Root
	host   *cgroup.Host
	start  time.Time
	meters map[string]*meter // by id
}

// meter reads one workload.
type meter struct {
	since  time.Time          // of the workload
	reader *cgroupstat.Reader // nil with affinity
	last   reading
}

// reading is the latest value of each quantity.
type reading struct {
	at     time.Duration
	values map[watch.Quantity]float64
}

func newMeters(dir string) (*meters, error) {
	root, err := kernel.Open(dir)
	if err != nil {
		return nil, err
	}
	host, err := cgroup.Detect(root)
	return &meters{dir: dir, root: root, host: host, start: time.Now(), meters: map[string]*meter{}}, err
}

func (p *meters) close() {
	for _, m := range p.meters {
		m.close()
	}
}

func (m *meter) close() {
	if m.reader != nil {
		m.reader.Close()
	}
}

// read returns a workload's usage since it was read last. One that has just
// gone has none.
func (p *meters) read(w *agent.Workload) (usage, error) {
	m := p.meters[w.ID()]
	if m != nil && !m.since.Equal(w.Since) {
		m.close()
		m = nil
	}
	if m == nil {
		m = &meter{since: w.Since}
		if len(w.Dirs) > 0 {
			var err error
			m.reader, err = cgroupstat.Open(p.trees(w), "", cgroupstat.Usage, cgroupstat.Throttling, cgroupstat.Memory, cgroupstat.Tasks,
				cgroupstat.CPUPressure, cgroupstat.MemoryPressure, cgroupstat.IOPressure)
			if err != nil {
				return usage{}, ignoreGone(err)
			}
		}
		p.meters[w.ID()] = m
	}
	now := reading{time.Since(p.start), map[watch.Quantity]float64{}}
	if err := p.values(m, w, &now); err != nil {
		return usage{}, ignoreGone(err)
	}
	u := usageOf(m.last, now)
	m.last = now
	return u, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, watch.ErrGone) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// trees are a workload's directories, each as a tree of its own.
func (p *meters) trees(w *agent.Workload) []cgroupstat.Tree {
	var trees []cgroupstat.Tree
	for _, dir := range w.Dirs {
		for _, h := range p.host.Hierarchies {
			if strings.HasPrefix(dir, h.Dir+"/") {
				trees = append(trees, cgroupstat.Tree{Version: h.Version, Controllers: h.Controllers, Dir: filepath.Join(p.dir, dir)})
			}
		}
	}
	return trees
}

// values fills in what the kernel tells now.
func (p *meters) values(m *meter, w *agent.Workload, r *reading) error {
	if m.reader == nil {
		return p.processes(w.Spec.PID, r)
	}
	samples, err := m.reader.Read(watch.Time(r.at), nil)
	for _, s := range samples {
		if s.Subject.Part == (watch.Part{}) {
			r.values[s.Quantity] = s.Value
		}
	}
	return err
}

// processes adds up a process and its descendants. Children that have ended
// count with the parent that waited for them.
func (p *meters) processes(pid int, r *reading) error {
	all, err := kernel.Descendants(p.root.FS(), pid)
	for _, pid := range all {
		used, err := procstat.ProcessCPU(p.root.FS(), pid)
		if err != nil {
			continue // it has ended
		}
		times, _ := procstat.Process(p.root.FS(), pid)
		r.values[watch.CPUTime] += (used + times.ChildUser + times.ChildSystem).Seconds()
		tasks, _ := fs.ReadDir(p.root.FS(), "proc/"+strconv.Itoa(pid)+"/task")
		r.values[watch.Tasks] += float64(len(tasks))
	}
	return err
}

// usageOf compares two readings; the first may be empty.
func usageOf(before, now reading) usage {
	u := usage{Memory: now.gauge(watch.Memory), Tasks: now.gauge(watch.Tasks)}
	if before.values == nil || now.at <= before.at {
		return u
	}
	u.Seconds = (now.at - before.at).Seconds()
	share := func(q watch.Quantity, of float64) *float64 {
		first, ok1 := before.values[q]
		last, ok2 := now.values[q]
		if !ok1 || !ok2 || last < first || of <= 0 {
			return nil
		}
		percent := 100 * (last - first) / of
		return &percent
	}
	u.CPU = share(watch.CPUTime, u.Seconds)
	u.CPUStall = share(watch.CPUSome, u.Seconds)
	u.MemoryStall = share(watch.MemorySome, u.Seconds)
	u.IOStall = share(watch.IOSome, u.Seconds)
	u.Throttled = share(watch.CPUThrottledPeriods, now.values[watch.CPUPeriods]-before.values[watch.CPUPeriods])
	return u
}

func (r reading) gauge(q watch.Quantity) *float64 {
	v, ok := r.values[q]
	if !ok {
		return nil
	}
	return &v
}
