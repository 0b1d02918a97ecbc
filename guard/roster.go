package guard

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
)

// roster is who is on the host.
type roster struct {
	looked    watch.Time
	all       map[string]*member
	names     []string // of all, in order
	sensitive []string
	// around are groups that hold nothing but best-effort work.
	around map[string]bool
	// lowly says of groups around others, by this look, whether they are set to yield.
	lowly       map[string]bool
	unavailable map[detect.Remedy]string
	noIdle      string
}

// member is one group.
type member struct {
	Workload
	settings actuate.Settings
	seen     bool // by the last look
	// of the last samples
	at     watch.Time
	used   float64 // CPU time, in seconds
	use    float64 // per second; NaN if unknown
	memory int64
}

func newRoster() roster {
	return roster{all: map[string]*member{}, around: map[string]bool{}, lowly: map[string]bool{}}
}

// look finds out who is there and of what class.
func (r *Runner) look(ctx context.Context, samples []watch.Sample, now watch.Time) {
	known := &r.known
	known.looked = now
	groups, err := r.groups(samples)
	if err != nil {
		r.failed(err)
		return
	}
	var told []Workload
	if r.o.Workloads != nil {
		if told, err = r.o.Workloads(ctx); err != nil {
			r.failed(fmt.Errorf("guard: who is who: %w", err))
			return
		}
	}
	for _, m := range known.all {
		m.seen = false
	}
	clear(known.lowly)
	for _, group := range groups {
		r.meet(Workload{Group: group}, false)
	}
	for _, w := range told {
		r.meet(w, true)
	}
	for group, m := range known.all {
		if !m.seen {
			delete(known.all, group)
			r.slow.detector.Forget(group)
			if r.fast != nil {
				r.fast.detector.Forget(group)
			}
		}
	}
	known.sort()
	if r.o.Actuator != nil {
		known.unavailable, known.noIdle = r.o.Actuator.Unavailable(), r.o.Actuator.NoIdle()
	}
	r.surround()
}

// groups are those that are there.
func (r *Runner) groups(samples []watch.Sample) ([]string, error) {
	if r.o.Sensors != nil {
		return r.o.Sensors.Groups()
	}
	found := map[string]bool{}
	for i := range samples {
		if s := &samples[i]; s.Subject.Scope == watch.Group {
			found[s.Subject.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// meet takes in a group, and what was told of it.
func (r *Runner) meet(w Workload, told bool) {
	m := r.known.all[w.Group]
	if m == nil {
		m = &member{use: math.NaN()}
		r.known.all[w.Group] = m
	}
	m.seen = true
	m.Workload = w
	if r.o.Actuator != nil {
		var err error
		if m.settings, err = r.o.Actuator.Settings(w.Group); err != nil {
			r.failed(err)
		}
		if !told && (m.settings.BestEffort() || r.lowly(path.Dir(w.Group))) {
			m.Class = place.BE
		}
	}
	as := detect.Workload{Group: w.Group, Sensitive: w.Sensitive}
	if r.o.Sensors != nil {
		as.CPUs = r.o.Sensors.CPUs(w.Group)
	}
	r.slow.detector.Track(as)
	if r.fast != nil && w.Sensitive {
		r.fast.detector.Track(as)
	}
}

// lowly reports whether a group, or one around it, is set to yield to all others.
func (r *Runner) lowly(group string) bool {
	if group == "." {
		return false
	}
	is, known := r.known.lowly[group]
	if !known {
		s, err := r.o.Actuator.Settings(group)
		is = err == nil && s.BestEffort() || r.lowly(path.Dir(group))
		r.known.lowly[group] = is
	}
	return is
}

// has reports whether a group is known.
func (k *roster) has(group string) bool { return k.all[group] != nil || k.around[group] }

func (k *roster) sort() {
	k.names = slices.Sorted(maps.Keys(k.all))
	k.sensitive = nil
	for _, name := range k.names {
		if k.all[name].Sensitive {
			k.sensitive = append(k.sensitive, name)
		}
	}
}

// surround finds the groups around others in which there is nothing but best-effort
// work: at their level it can be told to yield.
func (r *Runner) surround() {
	known := &r.known
	clear(known.around)
	others := map[string]bool{}
	for _, name := range known.names {
		be := known.all[name].Class == place.BE
		for at := path.Dir(name); at != "."; at = path.Dir(at) {
			known.around[at] = true
			others[at] = others[at] || !be
		}
	}
	maps.DeleteFunc(known.around, func(group string, _ bool) bool {
		return others[group] || known.all[group] != nil || r.populated(group)
	})
}

// populated reports whether processes are in a group itself.
func (r *Runner) populated(group string) bool {
	if r.o.Actuator == nil {
		return false
	}
	s, err := r.o.Actuator.Settings(group)
	return err != nil || s.Populated
}

// use takes in how much CPU time and memory groups use.
func (k *roster) use(samples []watch.Sample) {
	for i := range samples {
		s := &samples[i]
		if s.Subject.Scope != watch.Group || s.Subject.Part != (watch.Part{}) {
			continue
		}
		m := k.all[s.Subject.Name]
		if m == nil {
			continue
		}
		switch s.Quantity {
		case watch.Memory:
			m.memory = int64(s.Value)
		case watch.CPUTime:
			if s.Time <= m.at {
				continue
			}
			m.use = math.NaN()
			if m.at > 0 && s.Value >= m.used {
				m.use = (s.Value - m.used) / (s.Time - m.at).Seconds()
			}
			m.at, m.used = s.Time, s.Value
		}
	}
}

// focus are the groups to look at closely: those in need, then those that use most,
// none within another.
func (k *roster) focus(needy []string) []string {
	ranked := slices.Clone(k.sensitive)
	slices.SortStableFunc(ranked, func(a, b string) int {
		if x, y := slices.Contains(needy, a), slices.Contains(needy, b); x != y {
			if x {
				return -1
			}
			return 1
		}
		return 0
	})
	var focus []string
	for _, group := range ranked {
		inside := func(o string) bool { return control.Within(o, group) || control.Within(group, o) }
		if len(focus) < observe.MaxFocus && !slices.ContainsFunc(focus, inside) {
			focus = append(focus, group)
		}
	}
	slices.Sort(focus)
	return focus
}

// workloads are what a loop has to know of groups. The settings of those that findings
// are about are read again.
func (r *Runner) workloads(about []detect.Finding) []control.Workload {
	known := &r.known
	fresh := map[string]bool{}
	for i := range about {
		fresh[about[i].Victim], fresh[about[i].Suspect] = true, true
	}
	all := make([]control.Workload, 0, len(known.names)+len(known.around))
	for _, name := range known.names {
		m := known.all[name]
		if fresh[name] && r.o.Actuator != nil {
			if s, err := r.o.Actuator.Settings(name); err == nil {
				m.settings = s
			}
		}
		all = append(all, control.Workload{
			Group: name, Class: m.Class, Protected: m.Protected, CPUs: r.cpusOf(m), Use: m.use, Memory: m.memory, Limits: m.settings.Limits,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(known.around)) {
		all = append(all, r.surrounding(name))
	}
	return all
}

func (r *Runner) cpusOf(m *member) cpuset.Set {
	if !m.settings.CPUs.IsEmpty() || r.o.Sensors == nil {
		return m.settings.CPUs
	}
	return cpuset.Set{}
}

// surrounding is a group around best-effort work.
func (r *Runner) surrounding(group string) control.Workload {
	w := control.Workload{Group: group, Class: place.BE}
	for _, name := range r.known.names {
		if strings.HasPrefix(name, group+"/") {
			m := r.known.all[name]
			w.Use += m.use
			w.Memory += m.memory
			w.Protected = w.Protected || m.Protected
		}
	}
	if r.o.Actuator != nil {
		if s, err := r.o.Actuator.Settings(group); err == nil {
			w.Limits, w.CPUs = s.Limits, s.CPUs
		}
	}
	return w
}
