package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

const (
	// rotation is the time in which all figures of every workload are read once.
	rotation = time.Minute
	// refresh is after how many of them the figures of a workload that has used no CPU
	// time are read all the same.
	refresh = 5
)

// reader is what reads groups for the guard, an *observe.Observer.
type reader interface {
	// ReadGroup appends what a request asks of one group, and reads no file twice at the
	// same time.
	ReadGroup(now watch.Time, group string, q cgroupstat.Request, to []watch.Sample) ([]watch.Sample, error)
	// StatusOf says which signals of a group there are.
	StatusOf(group string) []cgroupstat.Status
}

// meter keeps the figures of workloads: some of every interval, the others in rotation.
// Groups that the guard reads are read by its reader alone, all others by the sampler.
type meter struct {
	site *observe.Site
	// turns is how many intervals come to a rotation.
	turns int
	// prefix comes before the groups where the guard names them.
	prefix string
	every  cgroupstat.Request // of each interval
	all    cgroupstat.Request // in rotation
	own    []observe.Source   // of workloads with CPUs of their own

	mu      sync.Mutex
	sampler *cgroupstat.Sampler
	// told says of a quantity that an interval's own reading has told it: only these are
	// taken from the guard, as others would be newer than the rest of the rotation.
	told    [256]bool           // by quantity
	metered map[string]*metered // by group
	queue   []string            // the groups, the next of the rotation first
	ids     []string            // of the workloads, in order
	at      time.Time           // of the last reading
	samples []watch.Sample      // room for one reading
}

type metered struct {
	id      string
	own     *observe.Readers // nil without CPUs of its own
	rounds  int              // readings in rotation
	givenAt time.Time        // when the guard last gave its figures
	sampled bool             // by the sampler
	signals []cgroupstat.Status
	figures []figure
}

// figure is one quantity of a workload, with its last two values.
type figure struct {
	quantity watch.Quantity
	part     watch.Part
	series   watch.Series
}

// newMeter returns a meter that is asked to read once in an interval. root is the
// directory that stands for "/"; what others tell is read in rotation only.
func newMeter(root string, trees, others []cgroupstat.Tree, interval time.Duration) *meter {
	every := slices.DeleteFunc(cgroupstat.Always(), func(s cgroupstat.Signal) bool {
		return s == cgroupstat.CPUPressure && !slices.ContainsFunc(trees, func(t cgroupstat.Tree) bool { return t.Version == 2 })
	})
	all := cgroupstat.SetOf(cgroupstat.Signals()...) &^ cgroupstat.SetOf(cgroupstat.State)
	m := &meter{
		site: &observe.Site{Root: root, Trees: slices.Concat(trees, others)}, turns: max(int(rotation/interval), 1),
		every: cgroupstat.Request{Read: cgroupstat.SetOf(every...)}, all: cgroupstat.Request{Read: all}, metered: map[string]*metered{},
		own: observe.Sources(observe.OnOwnCPUs),
	}
	if len(trees) > 0 {
		m.site.Tree = trees[0].Dir
	}
	m.sampler = cgroupstat.NewSampler(m.site.Trees, every)
	return m
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
		w := m.metered[group]
		if w == nil {
			w = &metered{sampled: true}
			m.metered[group] = w
			m.queue = slices.Insert(m.queue, 0, group)
		}
		w.id = id
		if w.sampled {
			errs = append(errs, m.add(group))
		}
		errs = append(errs, w.move(m, group, own[id]))
	}
	for group := range m.metered {
		if !there[group] {
			errs = append(errs, m.forget(group))
		}
	}
	return errors.Join(errs...)
}

// move reads what costs most on the CPUs that are a workload's own now.
func (w *metered) move(m *meter, group string, own cpuset.Set) error {
	switch {
	case own.IsEmpty():
		err := w.close(group)
		w.own = nil
		return err
	case w.own == nil:
		w.own = m.site.Open(group, own, m.own)
		return nil
	}
	return w.own.Move(own)
}

// add has the sampler read a group from now on. The loop hears of the end of one that is
// gone.
func (m *meter) add(group string) error {
	err := m.sampler.Add(group, 0)
	if errors.Is(err, watch.ErrGone) {
		return nil
	}
	return err
}

// take keeps what the guard has read of workloads now, and reads the rest: of those groups
// by the guard's reader.
func (m *meter) take(now, origin time.Time, samples []watch.Sample, from reader) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := watch.Time(now.Sub(origin))
	var of string // those of a group come one after the other
	var w *metered
	for i := range samples {
		s := &samples[i]
		if s.Subject.Scope != watch.Group || s.Subject.Part != (watch.Part{}) || !m.told[s.Quantity] {
			continue
		}
		if s.Subject.Name != of {
			of, w = s.Subject.Name, nil
			if group, ok := strings.CutPrefix(of, m.prefix); ok {
				w = m.metered[group]
			}
		}
		if w == nil {
			continue
		}
		if s.Quantity == watch.CPUTime {
			w.givenAt = now
		}
		w.keep(at, s)
	}
	m.complete(now, at, func(w *metered, group string, q cgroupstat.Request) {
		if w.sampled {
			m.readSampled(at, w, group, q)
			return
		}
		m.samples, _ = from.ReadGroup(samples[0].Time, m.prefix+group, q, m.samples[:0])
		if w.rounds%refresh == 1 {
			w.signals = from.StatusOf(m.prefix + group)
		}
	})
}

// read takes a reading, and some of those in rotation. origin is the instant that samples
// count from.
func (m *meter) read(now, origin time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := watch.Time(now.Sub(origin))
	m.complete(now, at, m.sampled(at))
}

// renew takes a reading without those in rotation, if the last one is as old as that. What a
// group without CPU time has told is read again.
func (m *meter) renew(origin time.Time, age time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); now.Sub(m.at) >= age {
		m.sample(now, watch.Time(now.Sub(origin)), cgroupstat.Request{Read: m.every.Read, Fresh: m.every.Read})
	}
}

// rotate takes some of the readings in rotation, and no other.
func (m *meter) rotate(origin time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := watch.Time(time.Since(origin))
	m.turn(at, m.sampled(at))
}

// sampled reads more of groups that the sampler reads.
func (m *meter) sampled(at watch.Time) more {
	return func(w *metered, group string, q cgroupstat.Request) { m.readSampled(at, w, group, q) }
}

// readSampled reads more of a group that the sampler reads.
func (m *meter) readSampled(at watch.Time, w *metered, group string, q cgroupstat.Request) {
	m.samples, _ = m.sampler.SampleGroup(at, group, q, m.samples[:0])
	if w.rounds%refresh == 1 {
		w.signals = m.sampler.Signals(group)
	}
}

// more reads what a request asks of one group, which is metered, into samples.
type more func(w *metered, group string, q cgroupstat.Request)

// complete takes a reading of what the guard has not given, and those in rotation.
func (m *meter) complete(now time.Time, at watch.Time, read more) {
	for group, w := range m.metered {
		switch sampled := !w.givenAt.Equal(now); {
		case sampled && !w.sampled:
			_ = m.add(group)
			w.sampled = true
		case !sampled && w.sampled:
			_ = m.sampler.Remove(group)
			w.sampled = false
		}
	}
	m.sample(now, at, m.every)
	m.turn(at, read)
}

// sample reads all groups that the guard does not read. One that cannot be read tells nothing;
// the loop hears of its end.
func (m *meter) sample(now time.Time, at watch.Time, q cgroupstat.Request) {
	m.at = now
	m.samples, _ = m.sampler.Sample(at, m.samples[:0], q)
	var w *metered
	for i := range m.samples {
		s := &m.samples[i]
		m.told[s.Quantity] = true
		if i == 0 || s.Subject.Name != m.samples[i-1].Subject.Name {
			w = m.metered[s.Subject.Name]
		}
		w.keep(at, s)
	}
}

// turn reads all figures of the groups whose turn it is.
func (m *meter) turn(at watch.Time, read more) {
	n := (len(m.queue) + m.turns - 1) / m.turns
	for _, group := range m.queue[:n] {
		w := m.metered[group]
		q := m.all
		if w.rounds++; w.rounds%refresh == 0 {
			q.Fresh = q.Read
		}
		read(w, group, q)
		w.keepAll(at, m)
	}
	m.queue = append(m.queue[n:], m.queue[:n]...)
}

// keepAll keeps all figures of a workload, as they were read, and reads those of its own
// CPUs. Those that are not told any more end.
func (w *metered) keepAll(at watch.Time, m *meter) {
	if w.own != nil {
		w.own.Retry()
		m.samples = w.own.Read(at, m.samples)
	}
	for i := range m.samples {
		w.keep(at, &m.samples[i])
	}
	w.figures = slices.DeleteFunc(w.figures, func(f figure) bool {
		_, age, ok := f.series.Last(at)
		return !ok || age > 0
	})
}

func (w *metered) keep(at watch.Time, s *watch.Sample) {
	for i := range w.figures {
		if f := &w.figures[i]; f.quantity == s.Quantity && f.part == s.Subject.Part {
			_ = f.series.Add(at, s.Value) // refused if it is known of this instant
			return
		}
	}
	f := figure{s.Quantity, s.Subject.Part, *watch.NewSeries(s.Quantity, 2)}
	_ = f.series.Add(at, s.Value)
	w.figures = append(w.figures, f)
}

func (m *meter) forget(group string) error {
	w := m.metered[group]
	delete(m.metered, group)
	m.queue = slices.DeleteFunc(m.queue, func(g string) bool { return g == group })
	return errors.Join(m.sampler.Remove(group), w.close(group))
}

func (w *metered) close(group string) error {
	if w.own == nil {
		return nil
	}
	if err := w.own.Close(); err != nil {
		return fmt.Errorf("close figures of group %s: %w", group, err)
	}
	return nil
}

// Signals says for each signal that workloads may have whether one has it, and if not,
// why not; nothing before the first reading of one.
func (m *meter) Signals() map[string]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]error{}
	note := func(name string, err error) { // it is there if one workload has it
		if was, known := all[name]; !known || was != nil {
			all[name] = err
		}
	}
	for _, w := range m.metered {
		for _, status := range w.signals {
			note(status.Signal.String(), status.Err)
		}
		if w.own != nil {
			w.own.Each(note)
		}
	}
	if len(all) == 0 {
		return all
	}
	for _, s := range m.own {
		if _, told := all[s.Name]; !told {
			all[s.Name] = &kernel.NotSupportedError{
				Feature: s.Name, Reason: "it is read of workloads with CPUs of their own, and there are none", Remedy: "give one CPUs of its own",
			}
		}
	}
	return all
}

// Stats returns the figures of the last reading.
func (m *meter) Stats(context.Context) (api.Stats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	by := make(map[string][]api.Figure, len(m.ids))
	for _, w := range m.metered {
		figures := make([]api.Figure, 0, len(w.figures))
		for i := range w.figures {
			f := &w.figures[i]
			value, _, _ := f.series.Last(0)
			figure := api.Figure{Quantity: f.quantity, Part: f.part, Value: value}
			if rate, ok := f.series.Level(); ok && f.quantity.Counter() {
				figure.Rate = &rate
			}
			figures = append(figures, figure)
		}
		by[w.id] = figures
	}
	stats := api.Stats{Time: m.at, Workloads: make([]api.Figures, 0, len(m.ids))}
	for _, id := range m.ids {
		stats.Workloads = append(stats.Workloads, api.Figures{ID: id, Figures: append([]api.Figure{}, by[id]...)})
	}
	return stats, nil
}

func (m *meter) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	errs := []error{m.sampler.Close()}
	for group, w := range m.metered {
		errs = append(errs, w.close(group))
	}
	return errors.Join(errs...)
}
