package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// detailTime is the time in which the costly figures of every workload are read once.
const detailTime = time.Minute

// meter reads the statistics of the workloads' groups and keeps the last two
// readings. The costly ones are read in turns.
type meter struct {
	site *site
	// turns is how many readings come to detailTime.
	turns int

	mu      sync.Mutex
	sampler *cgroupstat.Sampler
	details map[string]*detail // by group
	queue   []string           // the groups, the next to be read first
	names   map[string]string  // by group: the workload's id
	ids     []string           // in the order of the workloads
	last    reading
	before  reading
}

// reading is all samples of one instant.
type reading struct {
	at      time.Time
	samples []watch.Sample
}

// newMeter returns a meter that is asked to read once in an interval. root is the
// directory that stands for "/"; what others tell is read in turns only.
func newMeter(root string, trees, others []cgroupstat.Tree, interval time.Duration) *meter {
	return &meter{
		site: &site{root, slices.Concat(trees, others), detailed(trees)}, turns: max(int(detailTime/interval), 1),
		sampler: cgroupstat.NewSampler(trees, cgroupstat.Always()...), names: map[string]string{}, details: map[string]*detail{},
	}
}

// follow reads these workloads, given with their groups and the CPUs of their own,
// from now on.
func (m *meter) follow(groups map[string]string, own map[string]cpuset.Set) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := slices.Sorted(maps.Keys(groups))
	names := make(map[string]string, len(ids))
	var errs []error
	for _, id := range ids {
		group := groups[id]
		if group == "" {
			continue
		}
		names[group] = id
		if err := m.sampler.Add(group); err != nil && !errors.Is(err, watch.ErrGone) {
			errs = append(errs, err)
		}
		d := m.details[group]
		if d == nil {
			d = newDetail(m.site, group)
			m.details[group] = d
			m.queue = slices.Insert(m.queue, 0, group)
		}
		errs = append(errs, d.move(own[id]))
	}
	for group := range m.names {
		if _, ok := names[group]; !ok {
			errs = append(errs, m.sampler.Remove(group), m.forget(group))
		}
	}
	m.names, m.ids = names, ids
	return errors.Join(errs...)
}

// forget ends the costly figures of a group.
func (m *meter) forget(group string) error {
	d := m.details[group]
	delete(m.details, group)
	m.queue = slices.DeleteFunc(m.queue, func(g string) bool { return g == group })
	return d.close()
}

// read takes a reading, and some of the costly ones. origin is the instant that samples
// count from.
func (m *meter) read(now, origin time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before, m.last = m.last, m.before
	m.last.at = now
	// A group that cannot be read tells nothing; the loop hears of its end.
	at := watch.Time(now.Sub(origin))
	m.last.samples, _ = m.sampler.Sample(at, m.last.samples[:0])
	n := (len(m.queue) + m.turns - 1) / m.turns
	for _, group := range m.queue[:n] {
		m.details[group].read(at)
	}
	m.queue = append(m.queue[n:], m.queue[:n]...)
}

// Signals says for each signal that workloads may have whether one has it, and if not,
// why not; nothing before the first reading of one.
func (m *meter) Signals() map[string]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]error{}
	for group, d := range m.details {
		tellAll(all, m.sampler.Signals(group))
		d.tell(all)
	}
	if len(all) == 0 {
		return all
	}
	for _, s := range ownSources() {
		if _, told := all[s.name]; !told {
			all[s.name] = noOwn(s.name)
		}
	}
	return all
}

// Stats returns the figures of the last reading.
func (m *meter) Stats(context.Context) (api.Stats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	by := make(map[string][]api.Figure, len(m.ids))
	m.figures(by, m.last.samples, m.before.samples)
	for _, d := range m.details {
		m.figures(by, d.last, d.before)
	}
	stats := api.Stats{Time: m.last.at, Workloads: make([]api.Figures, 0, len(m.ids))}
	for _, id := range m.ids {
		figures := by[id]
		if figures == nil {
			figures = []api.Figure{}
		}
		stats.Workloads = append(stats.Workloads, api.Figures{ID: id, Figures: figures})
	}
	return stats, nil
}

// figures adds those of two readings, by workload.
func (m *meter) figures(by map[string][]api.Figure, last, before []watch.Sample) {
	earlier := make(map[key]watch.Sample, len(before))
	for _, s := range before {
		earlier[key{s.Subject, s.Quantity}] = s
	}
	for _, s := range last {
		f := api.Figure{Quantity: s.Quantity, Part: s.Subject.Part, Value: s.Value}
		if was, ok := earlier[key{s.Subject, s.Quantity}]; ok && s.Quantity.Counter() && s.Value >= was.Value && s.Time > was.Time {
			rate := (s.Value - was.Value) / (s.Time - was.Time).Seconds()
			f.Rate = &rate
		}
		id := m.names[s.Subject.Name]
		by[id] = append(by[id], f)
	}
}

// key is what is the same in two readings.
type key struct {
	subject  watch.Subject
	quantity watch.Quantity
}

func (m *meter) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	errs := []error{m.sampler.Close()}
	for _, d := range m.details {
		errs = append(errs, d.close())
	}
	return errors.Join(errs...)
}
