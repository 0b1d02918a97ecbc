package cli

import (
	"io/fs"
	"path"
	"strconv"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/proc"
)

// usage holds the figures of a workload; nil is a figure that the host does not provide.
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
	root   *kernel.Root
	host   *cgroup.Host
	start  time.Time
	meters map[string]*meter // by id
}

// meter reads one workload.
type meter struct {
	since  time.Time  // of the workload
	at     watch.Time // of the last reading
	levels watch.Levels
}

func newMeters(dir string) (*meters, error) {
	root, err := kernel.Open(dir)
	if err != nil {
		return nil, err
	}
	host, err := cgroup.Detect(root)
	return &meters{root: root, host: host, start: time.Now(), meters: map[string]*meter{}}, err
}

// read returns a workload's usage since the last read. A workload that has just ended
// has none.
func (p *meters) read(w *agent.Workload) (usage, error) {
	m := p.meters[w.ID()]
	if m == nil || !m.since.Equal(w.Since) {
		m = &meter{since: w.Since}
		p.meters[w.ID()] = m
	}
	now := watch.Time(time.Since(p.start))
	values, err := p.values(w)
	if err != nil {
		return usage{}, kernel.IgnoreAbsent(err)
	}
	return m.usage(now, values), nil
}

// values are the kernel's present figures. A group that does not exist tells nothing.
func (p *meters) values(w *agent.Workload) (map[watch.Quantity]float64, error) {
	named := w.Dirs
	switch {
	case len(named) > 0:
	case w.Group != "": // a container's, which its runtime made
		for i := range p.host.Hierarchies {
			named = append(named, path.Join(p.host.Hierarchies[i].Dir, w.Group))
		}
	default:
		return p.processes(w.Spec.PID)
	}
	var dirs []cgroupstat.Tree // each a tree of its own
	for _, dir := range named {
		for _, h := range p.host.Hierarchies {
			if kernel.Within(dir, h.Dir) {
				dirs = append(dirs, cgroupstat.Tree{Version: h.Version, Controllers: h.Controllers, Dir: dir})
			}
		}
	}
	return cgroupstat.Values(p.root.FS(), dirs, cgroupstat.Usage, cgroupstat.Throttling, cgroupstat.Memory, cgroupstat.Tasks,
		cgroupstat.CPUPressure, cgroupstat.MemoryPressure, cgroupstat.IOPressure)
}

// processes adds up a process and its descendants. Children that have ended
// count with the parent that waited for them.
func (p *meters) processes(pid int) (map[watch.Quantity]float64, error) {
	values := map[watch.Quantity]float64{}
	all, err := kernel.Descendants(p.root.FS(), pid)
	for _, pid := range all {
		own, children, err := proc.ProcessCPU(p.root.FS(), pid)
		if err != nil {
			continue // it has ended
		}
		values[watch.CPUTime] += (own + children).Seconds()
		tasks, _ := fs.ReadDir(p.root.FS(), "proc/"+strconv.Itoa(pid)+"/task")
		values[watch.Tasks] += float64(len(tasks))
	}
	return values, err
}

// usage takes in the values of a reading and compares them with those before.
func (m *meter) usage(now watch.Time, values map[watch.Quantity]float64) usage {
	m.levels.Tick(now, values)
	told := func(v float64, ok bool) *float64 {
		if !ok {
			return nil
		}
		return &v
	}
	share := func(q watch.Quantity) *float64 {
		v, ok := m.levels.Level(q)
		return told(100*v, ok)
	}
	u := usage{Memory: told(m.levels.Value(watch.Memory)), Tasks: told(m.levels.Value(watch.Tasks))}
	if m.at > 0 {
		u.Seconds = (now - m.at).Seconds()
	}
	m.at = now
	u.CPU, u.CPUStall, u.MemoryStall, u.IOStall = share(watch.CPUTime), share(watch.CPUSome), share(watch.MemorySome), share(watch.IOSome)
	out, ok := m.levels.Level(watch.CPUThrottledPeriods)
	periods, _ := m.levels.Level(watch.CPUPeriods)
	u.Throttled = told(100*out/periods, ok && periods > 0)
	return u
}
