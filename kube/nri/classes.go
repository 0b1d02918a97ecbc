package nri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/podwords"
)

// Classes of caches, block I/O and power are the node's to give, beside the table, as on any
// host. What a class has in a container's control group is written once the group is there:
// before the program starts, where the runtime has made the group when it tells of the start.

// surveyClasses notes the kinds of classes that this host does not have. Classes that do not
// fit it are an error.
func (p *Plugin) surveyClasses() error {
	p.classes, p.lacks = p.opt.Node.Classes, map[agent.ClassKind]error{}
	r, err := agent.ReportClasses(power.Over(traffic.Over(p.opt.Node.Root)).FS(), p.classes, nil, false)
	if err != nil {
		return fmt.Errorf("classes: %w", err)
	}
	for i := range r.Kinds {
		k := &r.Kinds[i]
		lack := k.Lacks()
		if lack == nil {
			continue
		}
		p.lacks[k.Kind] = lack
		if p.classes.Defines(k.Kind) {
			p.emit(Event{Kind: string(agent.Failed), Text: "containers go without: " + lack.Error()})
		}
	}
	return nil
}

// class says why no container has a class of a kind here; nil if some can.
func (p *Plugin) class(kind, name string) error {
	if why := p.classes.Undefined(agent.ClassKind(kind), name); why != "" {
		return errors.New(why)
	}
	return p.lacks[agent.ClassKind(kind)]
}

// bandwidth says why no pod is held to so many bits per second here; nil if some can be.
func (p *Plugin) bandwidth(bits int64) error {
	if err := (traffic.Limit{Send: traffic.Rate(bits)}).Validate(); err != nil {
		return err
	}
	return agent.LacksBandwidth(traffic.Over(p.opt.Node.Root).FS())
}

// limitPod gives a spec what its pod may send and receive, in bits per second. All containers
// of the pod have the limit together: it is that of the control group around them.
func limitPod(a *asked, r *podwords.Reading, pod *api.PodSandbox) {
	var l traffic.Limit
	for _, of := range []struct {
		bits *int64
		into *traffic.Rate
	}{{r.Wish.Egress, &l.Send}, {r.Wish.Ingress, &l.Receive}} {
		if of.bits != nil {
			*of.into = traffic.Rate(*of.bits)
		}
	}
	if l == (traffic.Limit{}) {
		return
	}
	around := path.Base(path.Dir(a.spec.Group))
	if uid := pod.GetUid(); uid == "" || !strings.Contains(strings.ReplaceAll(around, "_", "-"), uid) { // systemd's slices have _
		r.Problems = append(r.Problems, podwords.Problem{
			Word: "bandwidth", Value: l.Send.String() + ", " + l.Receive.String(), Kind: podwords.NotFollowed,
			Err: fmt.Errorf("the control group around the container, %q, is not that of its pod", around),
		})
		return
	}
	a.spec.Bandwidth = agent.Bandwidth{Limit: l, Around: true}
}

// runtimeClass is the class of a kind that a container has of its runtime, or of another plugin.
func runtimeClass(kind agent.ClassKind, c *api.Container) string {
	linux := c.GetLinux()
	switch kind {
	case agent.CacheClass:
		if class := linux.GetResources().GetRdtClass().GetValue(); class != "" {
			return class
		}
		if class := linux.GetRdt().GetClosId().GetValue(); !agent.IsCacheGroup(class) {
			return class // a group of Berth's is what startGroup told the runtime
		}
	case agent.IOClass:
		return linux.GetResources().GetBlockioClass().GetValue()
	}
	return ""
}

// chooseClasses gives a spec the classes that its pod names. Of a kind of which the container
// has a class of its runtime it gets none: that one stays.
func (p *Plugin) chooseClasses(a *asked, r *podwords.Reading, c *api.Container) {
	spec := &a.spec
	for kind, name := range r.Wish.Classes {
		spec.SetClass(agent.ClassKind(kind), name)
	}
	for kind, name := range p.classes.Of(spec) {
		theirs := runtimeClass(kind, c)
		if theirs == "" {
			continue
		}
		for _, s := range r.Sources {
			if s.Field == string(kind) {
				r.Problems = append(r.Problems, podwords.Problem{Word: s.From, Value: name, Kind: podwords.NotFollowed, Err: fmt.Errorf("the container has class %q of its runtime, which stays", theirs)})
			}
		}
		spec.SetClass(kind, podwords.NoClass)
		a.theirs = append(a.theirs, kind)
		spec.Annotations[sourceOf(kind)] = fmt.Sprintf("the container has class %q of its runtime", theirs)
	}
}

func sourceOf(kind agent.ClassKind) string { return agent.SourcePrefix + string(kind) }

// refused is a class that a container asked for by name and goes without; without a name it is
// the limit of what its pod sends and receives.
type refused struct {
	of   int // which of the specs
	kind agent.ClassKind
	name string
	why  error
}

func (r *refused) text() string {
	if r.name == "" {
		return fmt.Sprintf("what it sends and receives has no limit of its own: %v", r.why)
	}
	return fmt.Sprintf("%s class %q: it goes without: %v", r.kind, r.name, r.why)
}

// tryWithoutClasses calls try until no spec asks for a class that it cannot have, and returns the classes that
// it took off the specs. With strict it takes none off, and returns a *RefusedError.
func tryWithoutClasses(specs []agent.Spec, strict bool, try func() error) (lost []refused, err error) {
	for err = try(); err != nil; err = try() {
		more := dropClasses(specs, err)
		if len(more) == 0 {
			return lost, err
		}
		if strict {
			return lost, &RefusedError{err}
		}
		lost = append(lost, more...)
	}
	return lost, nil
}

// dropClasses takes off specs the classes asked for by name that an error is about, or the limit,
// and returns them; none if it is about something else, or about a container that is not among them.
func dropClasses(specs []agent.Spec, err error) (all []refused) {
	class, ok := errors.AsType[*agent.ClassError](err)
	if !ok {
		return nil
	}
	for i := range specs {
		if s := &specs[i]; class.Limit && class.ID == s.Request.ID && s.Bandwidth != (agent.Bandwidth{}) {
			s.Bandwidth = agent.Bandwidth{}
			all = append(all, refused{of: i, kind: class.Kind, why: err})
		}
	}
	if len(all) > 0 {
		return all
	}
	drop := func(only string) {
		for i := range specs {
			s := &specs[i]
			name := s.Classes[class.Kind]
			if name == "" || name == podwords.NoClass || only != "" && name != only || class.ID != "" && class.ID != s.Request.ID {
				continue
			}
			s.SetClass(class.Kind, "")
			s.Annotations = maps.Clone(s.Annotations) // a record's, too
			s.Annotations[sourceOf(class.Kind)] = fmt.Sprintf("class %q was not to be had", name)
			all = append(all, refused{i, class.Kind, name, err})
		}
	}
	drop(class.Name)
	if len(all) == 0 && class.Err != nil {
		drop("") // another class had to give way to theirs
	}
	return all
}

// placeSpec places a container; a class that it cannot have it goes without, unless it is strict.
func (p *Plugin) placeSpec(ctx context.Context, pod *api.PodSandbox, c *api.Container, spec agent.Spec, strict bool) (agent.Workload, error) {
	var w agent.Workload
	specs := []agent.Spec{spec}
	lost, err := tryWithoutClasses(specs, strict, func() (err error) {
		w, err = p.node.Place(ctx, specs[0])
		return err
	})
	if err == nil {
		p.emitLost(pod, c, lost)
	}
	return w, err
}

// arrive gives a workload that has its place a group, classes and annotations: those of spec, less the classes
// that it cannot have.
func (p *Plugin) arrive(ctx context.Context, held *agent.Workload, spec agent.Spec, strict bool) (w agent.Workload, lost []refused, err error) {
	group, had, limit, is := spec.Group, held.Spec.Classes, held.Spec.Bandwidth, held.State != agent.Reserved && held.Spec.Group == spec.Group
	specs := []agent.Spec{held.Spec}
	specs[0].Classes, specs[0].Bandwidth, specs[0].Annotations = spec.Classes, spec.Bandwidth, spec.Annotations
	lost, err = tryWithoutClasses(specs, strict, func() (err error) {
		if !maps.Equal(had, specs[0].Classes) || limit != specs[0].Bandwidth {
			if w, err = p.node.Resize(ctx, specs[0]); err != nil || is {
				return err
			}
			had, limit = specs[0].Classes, specs[0].Bandwidth
		}
		w, err = p.node.Arrive(ctx, held.ID(), group, specs[0].Annotations)
		return err
	})
	return w, lost, err
}

// keepClasses has a container that has a place ask for the classes of that: a pod's words do not change, and a
// class that was not to be had is not tried again. The runtime may have given it a class since.
func (a *asked) keepClasses(w *agent.Workload) {
	a.spec.Classes, a.spec.Bandwidth = w.Spec.Classes, w.Spec.Bandwidth
	for _, kind := range agent.ClassKinds() {
		if slices.Contains(a.theirs, kind) {
			a.spec.SetClass(kind, podwords.NoClass)
			continue
		}
		if text, ok := w.Spec.Annotations[sourceOf(kind)]; ok {
			a.spec.Annotations[sourceOf(kind)] = text
		}
	}
}

func (p *Plugin) emitLost(pod *api.PodSandbox, c *api.Container, lost []refused) {
	for i := range lost {
		p.emit(about(Word, pod, c, "%s", lost[i].text()))
	}
}

// join gives a container's control group what its classes have there, if the group exists and has not got it
// yet.
func (p *Plugin) join(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	id, ok := p.joins(c.GetId())
	if !ok || !p.opt.Busy(groupName(c)) {
		return nil
	}
	err := p.within(ctx, func(ctx context.Context) error {
		held, err := p.node.Get(ctx, id)
		if err != nil {
			return err
		}
		r := p.words(pod, c.GetName())
		_, lost, err := p.arrive(ctx, &held, held.Spec, r.Strict() || p.wording.Load().Strict)
		if err == nil {
			p.emitLost(pod, c, lost)
		}
		return err
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, ok := p.ids[c.GetId()]; ok {
		n.joined = true
		p.ids[c.GetId()] = n
	}
	return nil
}

// hasClasses reports whether containers have classes, or the CPUs that none owns.
func (p *Plugin) hasClasses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.ids {
		if n.classes != nil || n.limited {
			return true
		}
	}
	return p.classes.Power.Pools()
}

// joins is the workload of a container that has classes and has not joined them.
func (p *Plugin) joins(container string) (id string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.ids[container]
	return n.id, ok && (n.classes != nil || n.limited) && !n.joined
}
