package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
)

// inventory has the groups of the host.
type inventory struct {
	looked    watch.Time
	all       map[string]*member
	names     []string // of all, in order
	sensitive []string
	cares     bool // a workload is looked after: only then the CPUs of groups matter
	looks     int
	// sought are suspects that were looked for since soughtFrom.
	sought     map[string]bool
	soughtFrom watch.Time
	// ancestors are groups that hold nothing but best-effort work, and how they are set.
	ancestors map[string]actuate.Settings
	// yielding says of groups around others, by this look, whether they are set to yield.
	yielding    map[string]bool
	unavailable map[detect.Remedy]string
	noIdle      string
	// caches are what groups have of caches and bandwidth, by the last slow window.
	caches map[string]control.Cache
}

// member is one group.
type member struct {
	Workload          // with the class, and the protection, that its settings give it
	as       Workload // as it was described
	told     bool     // by the caller
	settings actuate.Settings
	seen     bool // by the last look
	// waits has a bit per slow window, the newest lowest: it waited for CPU.
	waits uint8
}

func newInventory() inventory {
	return inventory{all: map[string]*member{}, ancestors: map[string]actuate.Settings{}, yielding: map[string]bool{}, sought: map[string]bool{}}
}

// look lists the groups that exist and finds the class of each.
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
			r.failed(fmt.Errorf("guard: list workloads: %w", err))
			return
		}
	}
	for _, m := range known.all {
		m.seen = false
	}
	clear(known.yielding)
	known.cares = slices.ContainsFunc(told, func(w Workload) bool { return w.Sensitive })
	named := map[string]bool{} // and the groups around those: what is counted there is theirs, too
	for _, w := range told {
		for at := w.Group; at != "." && at != "/" && !named[at]; at = path.Dir(at) {
			named[at] = true
		}
		r.add(w, true, known.all[w.Group] == nil)
	}
	for i, group := range groups {
		if !named[group] {
			r.add(Workload{Group: group}, false, known.all[group] == nil || (known.looks+i)%reread == 0)
		}
	}
	if r.o.Actuator != nil && known.looks%reread == 0 {
		known.unavailable, known.noIdle = r.notAllowed(r.o.Actuator.Unavailable()), r.o.Actuator.NoIdle()
	}
	known.looks++
	for group, m := range known.all {
		if !m.seen {
			delete(known.all, group)
			r.slow.detector.Forget(group)
		}
	}
	known.sort()
	if s, ok := r.o.Sensors.(interface{ Closely([]string) error }); ok {
		r.failed(s.Closely(known.sensitive))
	}
	r.findAncestors()
	if d, ok := r.o.Actuator.(divider); ok {
		r.failed(d.Follow())
		r.monitor(d, known.names)
	}
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

// reread is after how many looks the settings of a group are read again, and what the
// host can do.
const reread = 12

// add takes in a group as the caller described it (told), or one that the caller did not
// name. Read says whether to read its settings.
func (r *Runner) add(w Workload, told, read bool) {
	m := r.known.all[w.Group]
	if m == nil {
		m = &member{}
		r.known.all[w.Group] = m
	}
	m.seen, m.Workload, m.as, m.told = true, w, w, told
	if r.o.Actuator != nil && read {
		r.readSettings(m)
	}
	r.classify(m)
	as := detect.Workload{Group: w.Group, Sensitive: w.Sensitive, Yields: m.settings.Yields()}
	if r.o.Sensors != nil && r.known.cares {
		as.CPUs = r.o.Sensors.CPUs(w.Group)
	}
	r.slow.detector.Track(as)
}

func (r *Runner) readSettings(m *member) {
	s, err := r.o.Actuator.Settings(m.Group)
	if err != nil {
		r.failed(err)
		return
	}
	m.settings = s
}

// classify finds a group's class and protection by how it was described and by its settings.
func (r *Runner) classify(m *member) {
	m.Class, m.Protected = m.as.Class, m.as.Protected || m.settings.Essential != ""
	if r.o.Actuator != nil && !m.told && !r.o.OnlyNamed && (m.settings.BestEffort() || r.underBestEffort(path.Dir(m.Group))) {
		m.Class = place.BE
	}
}

// underBestEffort reports whether a group, or one around it, is set to yield to all others.
func (r *Runner) underBestEffort(group string) bool {
	if group == "." {
		return false
	}
	is, known := r.known.yielding[group]
	if !known {
		s, err := r.o.Actuator.Settings(group)
		is = err == nil && s.BestEffort() || r.underBestEffort(path.Dir(group))
		r.known.yielding[group] = is
	}
	return is
}

// has reports whether a group is known.
func (k *inventory) has(group string) bool {
	_, above := k.ancestors[group]
	return above || k.all[group] != nil
}

func (k *inventory) sort() {
	k.names = slices.Sorted(maps.Keys(k.all))
	k.sensitive = nil
	for _, name := range k.names {
		if k.all[name].Sensitive {
			k.sensitive = append(k.sensitive, name)
		}
	}
}

// findAncestors finds the groups around others in which there is nothing but best-effort
// work: at their level the whole can be made to yield.
func (r *Runner) findAncestors() {
	known := &r.known
	clear(known.ancestors)
	mixed := map[string]bool{}
	for _, name := range known.names {
		be := known.all[name].Class.Traits().Squeezed
		for at := path.Dir(name); at != "."; at = path.Dir(at) {
			mixed[at] = mixed[at] || !be
		}
	}
	for group, others := range mixed {
		if others || known.all[group] != nil {
			continue
		}
		var s actuate.Settings
		if r.o.Actuator != nil {
			var err error
			if s, err = r.o.Actuator.Settings(group); err != nil {
				r.failed(err)
				continue
			}
		}
		if !s.Populated {
			known.ancestors[group] = s
		}
	}
}

// focus are the groups to look at closely: those in need, of them first those that
// are looked at already, then others, none within another.
func (k *inventory) focus(needy, already []string) []string {
	rank := func(group string) int {
		switch {
		case !slices.Contains(needy, group):
			return 2
		case !slices.Contains(already, group):
			return 1
		}
		return 0
	}
	ranked := slices.Clone(k.sensitive)
	slices.SortStableFunc(ranked, func(a, b string) int { return rank(a) - rank(b) })
	var focus []string
	for _, group := range ranked {
		inside := func(o string) bool { return kernel.Within(o, group) || kernel.Within(group, o) }
		if len(focus) < observe.MaxFocus && !slices.ContainsFunc(focus, inside) {
			focus = append(focus, group)
		}
	}
	slices.Sort(focus)
	return focus
}

// workloads are what a loop has to know of groups. The settings of those that it may act on
// by findings, and of the groups around them, are read again.
func (r *Runner) workloads(about []detect.Finding, now watch.Time, full bool) []control.Workload {
	known := &r.known
	if r.o.Actuator != nil {
		r.refresh(about, now)
	}
	var sending map[string][]control.Sending
	if full {
		r.readCaches(about)
		sending = r.sending(about)
	}
	disks := map[string]bool{}
	for i := range about {
		if f := &about[i]; f.Resource == detect.IO {
			disks[f.Victim], disks[f.Suspect] = true, true
		}
	}
	all := make([]control.Workload, 0, len(known.names)+len(known.ancestors))
	for _, name := range known.names {
		m := known.all[name]
		w := control.Workload{
			Group: name, Class: m.Class, Protected: m.Protected, Why: cmp.Or(m.settings.Essential, m.Why), CPUs: m.settings.CPUs, Limits: m.settings.Limits,
			NoIdle: m.settings.NoIdle, Writer: writer(name),
		}
		w.Use, w.Memory = r.slow.detector.Usage(name)
		w.Recent = r.recent.use(name, now)
		if c, ok := known.caches[name]; ok {
			w.Cache, w.Traffic = c, r.slow.detector.Traffic(name)
		}
		w.Link, w.Sending = r.slow.detector.Link(name), sending[name]
		if disks[name] {
			w.Devices = r.slow.detector.DeviceUse(name)
		}
		all = append(all, w)
	}
	for _, name := range slices.Sorted(maps.Keys(known.ancestors)) {
		all = append(all, r.ancestor(name))
	}
	if w, ok := r.outsideWorkload(); ok {
		all = append(all, w)
	}
	return all
}

// divider is an Actuator that cuts shares of caches and memory bandwidth.
type divider interface {
	Cache(group string) control.Cache
	// Follow takes along the threads that have come to the groups whose share is cut.
	Follow() error
	// Monitor has what groups have of caches and bandwidth told; of none, nothing.
	Monitor(groups, always []string) (actuate.Monitoring, error)
}

// monitor has the groups told, while there is somebody to look after.
func (r *Runner) monitor(d divider, groups []string) {
	if !r.known.cares {
		groups = nil
	}
	m, err := d.Monitor(groups, r.known.sensitive)
	switch {
	case errors.Is(err, kernel.ErrNotSupported):
		r.status.Monitoring = nil
	case err != nil:
		r.failed(err)
	default:
		r.status.Monitoring = &m
	}
}

// readCaches reads what groups have of caches and bandwidth that findings about these accuse, or
// active actions cut.
func (r *Runner) readCaches(about []detect.Finding) {
	r.known.caches = map[string]control.Cache{}
	d, ok := r.o.Actuator.(divider)
	if !ok {
		return
	}
	read := func(group string) {
		if _, done := r.known.caches[group]; !done && r.known.all[group] != nil {
			r.known.caches[group] = d.Cache(group)
		}
	}
	for i := range about {
		if f := &about[i]; f.Resource == detect.LLC || f.Resource == detect.MemoryBandwidth {
			read(f.Suspect)
		}
	}
	for _, a := range r.loop.Active() {
		if a.Share != (control.Share{}) {
			read(a.Group)
		}
	}
}

// sending is what the suspects of findings about a link may send by it.
func (r *Runner) sending(about []detect.Finding) map[string][]control.Sending {
	s, ok := r.o.Actuator.(interface {
		Sending(group string, link int) control.Sending
	})
	if !ok {
		return nil
	}
	all := map[string][]control.Sending{}
	for i := range about {
		f := &about[i]
		link := r.slow.detector.Link(f.Victim)
		if f.Resource != detect.Network || f.Suspect == "" || link == 0 || slices.ContainsFunc(all[f.Suspect], func(s control.Sending) bool { return s.Link == link }) {
			continue
		}
		of := s.Sending(f.Suspect, link)
		of.Sent = r.slow.detector.Sent(f.Suspect, link)
		all[f.Suspect] = append(all[f.Suspect], of)
	}
	return all
}

// refresh reads the settings again of the groups that findings are about, of those that may be
// acted on instead since they use more CPU time of late, and of the groups around these.
func (r *Runner) refresh(about []detect.Finding, now watch.Time) {
	for i := range about {
		names := []string{about[i].Victim, about[i].Suspect}
		if about[i].Resource == detect.CPU {
			names = append(names, r.recent.above(about[i].Suspect, now)...)
		}
		for _, name := range names {
			for at := name; at != "." && at != "" && at != "/"; at = path.Dir(at) {
				if m := r.known.all[at]; m != nil {
					r.readSettings(m)
					r.classify(m)
				} else if _, above := r.known.ancestors[at]; above {
					if s, err := r.o.Actuator.Settings(at); err == nil {
						r.known.ancestors[at] = s
					}
				}
			}
		}
	}
}

// ancestor is a group around best-effort work.
func (r *Runner) ancestor(group string) control.Workload {
	s := r.known.ancestors[group]
	w := control.Workload{Group: group, Class: place.BE, CPUs: s.CPUs, Limits: s.Limits, NoIdle: s.NoIdle, Writer: writer(group)}
	for _, name := range r.known.names {
		if strings.HasPrefix(name, group+"/") {
			use, memory := r.slow.detector.Usage(name)
			w.Use += use
			w.Memory += memory
			w.Protected = w.Protected || r.known.all[name].Protected
		}
	}
	return w
}

// writer is who else writes settings of a group.
func writer(group string) string {
	switch pods.Parse(group).Level {
	case pods.AllPods, pods.ClassOfPods, pods.OnePod:
		return "the kubelet"
	case pods.OneContainer:
		return "the container's runtime"
	}
	return ""
}
