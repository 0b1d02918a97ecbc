package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
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
// readings. The costly ones are read in turns. What the guard reads anyway is taken
// from there.
type meter struct {
	site *site
	// turns is how many readings come to detailTime.
	turns int
	// prefix comes before the groups where the guard names them.
	prefix string

	mu      sync.Mutex
	sampler *cgroupstat.Sampler
	// always says of a quantity that the sampler has told it: only these are taken from
	// the guard, as others would be newer than when they are read in turns again.
	always  [256]bool          // by quantity
	details map[string]*detail // by group
	queue   []string           // the groups, the next to be read first
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
		site: &site{root: root, trees: slices.Concat(trees, others), signals: detailed(trees)}, turns: max(int(detailTime/interval), 1),
		sampler: cgroupstat.NewSampler(trees, cgroupstat.Always()...), details: map[string]*detail{},
	}
}

// follow reads these workloads, given with their groups and the CPUs of their own,
// from now on.
func (m *meter) follow(groups map[string]string, own map[string]cpuset.Set) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids = slices.Sorted(maps.Keys(groups))
	there := make(map[string]bool, len(groups))
	var errs []error
	for _, id := range m.ids {
		group := groups[id]
		if group == "" {
			continue
		}
		there[group] = true
		d := m.details[group]
		if d == nil {
			d = newDetail(m.site, group)
			m.details[group] = d
			m.queue = slices.Insert(m.queue, 0, group)
		}
		d.id = id
		if !d.taken {
			errs = append(errs, m.sample(group))
		}
		errs = append(errs, d.move(own[id]))
	}
	for group := range m.details {
		if !there[group] {
			errs = append(errs, m.sampler.Remove(group), m.forget(group))
		}
	}
	return errors.Join(errs...)
}

// sample reads a group once in an interval from now on. The loop hears of the end of
// one that is gone.
func (m *meter) sample(group string) error {
	err := m.sampler.Add(group)
	if errors.Is(err, watch.ErrGone) {
		return nil
	}
	return err
}

// take keeps what the guard has read of workloads now, and reads the rest.
func (m *meter) take(now, origin time.Time, samples []watch.Sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.begin(now, origin)
	var of string // those of a group come one after the other
	var d *detail
	for i := range samples {
		s := &samples[i]
		if s.Subject.Scope != watch.Group || s.Subject.Part != (watch.Part{}) || !m.always[s.Quantity] {
			continue
		}
		if s.Subject.Name != of {
			of, d = s.Subject.Name, nil
			if group, ok := strings.CutPrefix(of, m.prefix); ok {
				d = m.details[group]
			}
		}
		if d == nil {
			continue
		}
		if s.Quantity == watch.CPUTime {
			d.given = now
		}
		kept := *s
		kept.Time, kept.Subject.Name = at, d.group
		m.last.samples = append(m.last.samples, kept)
	}
	m.complete(now, at)
}

// read takes a reading, and some of the costly ones. origin is the instant that samples
// count from.
func (m *meter) read(now, origin time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.complete(now, m.begin(now, origin))
}

// begin makes room for the samples of now.
func (m *meter) begin(now, origin time.Time) watch.Time {
	m.before, m.last = m.last, m.before
	m.last.at, m.last.samples = now, m.last.samples[:0]
	return watch.Time(now.Sub(origin))
}

// complete reads of now what the guard has not given.
func (m *meter) complete(now time.Time, at watch.Time) {
	for group, d := range m.details {
		taken := d.given.Equal(now)
		switch {
		case taken && !d.taken:
			d.always = m.sampler.Signals(group)
			_ = m.sampler.Remove(group)
		case !taken && d.taken:
			_ = m.sample(group) // what cannot be read tells nothing
		}
		d.taken = taken
	}
	// A group that cannot be read tells nothing; the loop hears of its end.
	given := len(m.last.samples)
	m.last.samples, _ = m.sampler.Sample(at, m.last.samples)
	for i := range m.last.samples[given:] {
		m.always[m.last.samples[given+i].Quantity] = true
	}
	n := (len(m.queue) + m.turns - 1) / m.turns
	for _, group := range m.queue[:n] {
		m.details[group].read(at)
	}
	m.queue = append(m.queue[n:], m.queue[:n]...)
}

// forget ends the costly figures of a group.
func (m *meter) forget(group string) error {
	d := m.details[group]
	delete(m.details, group)
	m.queue = slices.DeleteFunc(m.queue, func(g string) bool { return g == group })
	return d.close()
}

// Signals says for each signal that workloads may have whether one has it, and if not,
// why not; nothing before the first reading of one.
func (m *meter) Signals() map[string]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]error{}
	for group, d := range m.details {
		if d.taken {
			tellAll(all, d.always)
		} else {
			tellAll(all, m.sampler.Signals(group))
		}
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
	f := figures{m: m, by: make(map[string][]api.Figure, len(m.ids)), told: map[key]bool{}}
	f.add(m.last.samples, m.before.samples)
	for _, d := range m.details {
		f.add(d.last.samples(d.group), d.before.samples(d.group))
	}
	stats := api.Stats{Time: m.last.at, Workloads: make([]api.Figures, 0, len(m.ids))}
	for _, id := range m.ids {
		stats.Workloads = append(stats.Workloads, api.Figures{ID: id, Figures: append([]api.Figure{}, f.by[id]...)})
	}
	return stats, nil
}

// figures are those of workloads.
type figures struct {
	m    *meter
	by   map[string][]api.Figure // by workload
	told map[key]bool
}

// add adds those of two readings that no other has told.
func (f *figures) add(last, before []watch.Sample) {
	earlier := make(map[key]watch.Sample, len(before))
	for _, s := range before {
		earlier[key{s.Subject, s.Quantity}] = s
	}
	for _, s := range last {
		k := key{s.Subject, s.Quantity}
		d := f.m.details[s.Subject.Name]
		if d == nil || f.told[k] {
			continue
		}
		f.told[k] = true
		figure := api.Figure{Quantity: s.Quantity, Part: s.Subject.Part, Value: s.Value}
		if was, ok := earlier[k]; ok && s.Quantity.Counter() && s.Value >= was.Value && s.Time > was.Time {
			rate := (s.Value - was.Value) / (s.Time - was.Time).Seconds()
			figure.Rate = &rate
		}
		f.by[d.id] = append(f.by[d.id], figure)
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
