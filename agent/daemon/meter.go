package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// meter reads the statistics of the workloads' groups and keeps the last two
// readings.
type meter struct {
	mu      sync.Mutex
	sampler *cgroupstat.Sampler
	names   map[string]string // by group: the workload's id
	ids     []string          // in the order of the workloads
	last    reading
	before  reading
}

// reading is all samples of one instant.
type reading struct {
	at      time.Time
	samples []watch.Sample
}

func newMeter(trees []cgroupstat.Tree) *meter {
	return &meter{sampler: cgroupstat.NewSampler(trees, cgroupstat.Always()...), names: map[string]string{}}
}

// follow reads these workloads, given with their groups, from now on.
func (m *meter) follow(groups map[string]string) error {
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
	}
	for group := range m.names {
		if _, ok := names[group]; !ok {
			errs = append(errs, m.sampler.Remove(group))
		}
	}
	m.names, m.ids = names, ids
	return errors.Join(errs...)
}

// read takes a reading. origin is the instant that samples count from.
func (m *meter) read(now, origin time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before, m.last = m.last, m.before
	m.last.at = now
	// A group that cannot be read tells nothing; the loop hears of its end.
	m.last.samples, _ = m.sampler.Sample(watch.Time(now.Sub(origin)), m.last.samples[:0])
}

// Stats returns the figures of the last reading.
func (m *meter) Stats(context.Context) (api.Stats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	by := make(map[string][]api.Figure, len(m.ids))
	earlier := make(map[key]watch.Sample, len(m.before.samples))
	for _, s := range m.before.samples {
		earlier[key{s.Subject, s.Quantity}] = s
	}
	for _, s := range m.last.samples {
		f := api.Figure{Quantity: s.Quantity, Part: s.Subject.Part, Value: s.Value}
		if was, ok := earlier[key{s.Subject, s.Quantity}]; ok && s.Quantity.Counter() && s.Value >= was.Value && s.Time > was.Time {
			rate := (s.Value - was.Value) / (s.Time - was.Time).Seconds()
			f.Rate = &rate
		}
		id := m.names[s.Subject.Name]
		by[id] = append(by[id], f)
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

// key is what is the same in two readings.
type key struct {
	subject  watch.Subject
	quantity watch.Quantity
}

func (m *meter) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sampler.Close()
}
