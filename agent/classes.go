package agent

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

// ClassKind says of what a class is: a workload has at most one class of each kind.
type ClassKind string

// The kinds.
const (
	CacheClass ClassKind = "cache" // of caches and memory bandwidth
	IOClass    ClassKind = "io"    // of block I/O
)

// classKinds are the kinds that there are.
var classKinds = []classKind{
	{CacheClass, isCacheStep, func(n *Node) classifier { return &cacheClasses{n: n} }, reportCache},
	{IOClass, isIOStep, func(n *Node) classifier { return &ioClasses{n} }, reportIO},
	{PowerClass, isPowerStep, func(n *Node) classifier { return &powerClasses{n: n} }, reportPower},
	{NetClass, isNetStep, func(n *Node) classifier { return &netClasses{n} }, reportNet},
}

// classKind is a kind of class: which steps of the undo log are those of its classifier, and
// what there is of it. A host that cannot have the kind is a *kernel.NotSupportedError.
type classKind struct {
	kind   ClassKind
	made   func(kernel.Step) bool
	open   func(*Node) classifier
	report func(*classReading) (ClassSection, error)
}

// ClassKinds returns the kinds that there are.
func ClassKinds() (all []ClassKind) {
	for _, k := range classKinds {
		all = append(all, k.kind)
	}
	return all
}

// ClassConfig says which classes there are, by kind. The zero value has none.
type ClassConfig struct {
	// Cache are classes of caches and memory bandwidth. Default: none.
	Cache *resctrl.Config `json:"cache,omitempty"`
	// IO are classes of block I/O. Default: none.
	IO *blockio.Config `json:"io,omitempty"`
	// Power says which power profiles there are beside the built-in ones, and whose CPUs have
	// which. Default: none, workloads may ask for built-in ones.
	Power *power.Config `json:"power,omitempty"`
	// Net are classes of what is sent through network devices. Default: none.
	Net *traffic.Config `json:"net,omitempty"`
}

// With returns the classes of c, and those of a kind of another one.
func (c ClassConfig) With(kind ClassKind, other ClassConfig) ClassConfig {
	switch kind {
	case CacheClass:
		c.Cache = cmp.Or(other.Cache, c.Cache)
	case IOClass:
		c.IO = cmp.Or(other.IO, c.IO)
	case PowerClass:
		c.Power = cmp.Or(other.Power, c.Power)
	case NetClass:
		c.Net = cmp.Or(other.Net, c.Net)
	}
	return c
}

// over returns the classes of c and, of kinds of which it has none, those of another.
func (c ClassConfig) over(base ClassConfig) ClassConfig {
	for _, k := range classKinds {
		base = base.With(k.kind, c)
	}
	return base
}

// classSet are the classes of one kind.
type classSet interface {
	Names() []string // sorted
	Has(name string) bool
	// OfService returns the class of workloads of a class of service that ask for none.
	OfService(class string) string
	Validate() error
}

// of returns the classes of a kind, nil where there are none.
func (c ClassConfig) of(kind ClassKind) classSet {
	switch {
	case kind == CacheClass && c.Cache != nil:
		return c.Cache
	case kind == IOClass && c.IO != nil:
		return c.IO
	case kind == PowerClass:
		return c.Power
	case kind == NetClass && c.Net != nil:
		return c.Net
	}
	return nil
}

// Names returns the classes of a kind, sorted.
func (c ClassConfig) Names(kind ClassKind) []string {
	if set := c.of(kind); set != nil {
		return set.Names()
	}
	return nil
}

// ClassOf returns the class of a kind that a workload has: that which it asks for, or that of
// its class of service; "" means none.
func (c ClassConfig) ClassOf(kind ClassKind, s *Spec) string {
	switch name := s.Classes[kind]; name {
	case noClass:
		return ""
	case "":
	default:
		return name
	}
	if set := c.of(kind); set != nil {
		return set.OfService(s.Request.Class.String())
	}
	return ""
}

// serves reports whether there are workloads that have a class of a kind without asking for one.
func (c ClassConfig) serves(kind ClassKind) bool {
	set := c.of(kind)
	return set != nil && slices.ContainsFunc(place.Classes(), func(s place.Class) bool { return set.OfService(s.String()) != "" })
}

// Of returns the classes that a workload has, by kind; nil if it has none.
func (c ClassConfig) Of(s *Spec) (all map[ClassKind]string) {
	for _, k := range classKinds {
		if name := c.ClassOf(k.kind, s); name != "" {
			if all == nil {
				all = map[ClassKind]string{}
			}
			all[k.kind] = name
		}
	}
	return all
}

// Validate reports what is wrong on any host.
func (c ClassConfig) Validate() error {
	var errs []error
	for _, k := range classKinds {
		if set := c.of(k.kind); set != nil {
			errs = append(errs, set.Validate())
		}
	}
	return errors.Join(errs...)
}

// defined returns an error, a *ClassError, for the class of a kind that a workload asks for
// and that is not there.
func (c ClassConfig) defined(kind ClassKind, w *Workload) error {
	name := c.ClassOf(kind, &w.Spec)
	if why := c.Undefined(kind, name); name != "" && why != "" {
		return &ClassError{Kind: kind, Name: name, ID: w.ID(), Reason: fmt.Sprintf("workload %q: %s", w.ID(), why)}
	}
	return nil
}

// Undefined says that there is no class of a kind and name; "" if there is.
func (c ClassConfig) Undefined(kind ClassKind, name string) string {
	if set := c.of(kind); set != nil && set.Has(name) {
		return ""
	}
	if names := c.Names(kind); len(names) > 0 {
		return "it is not defined" + strictyaml.Nearest(name, names)
	}
	return fmt.Sprintf("the configuration defines no %s classes", kind)
}

// classIn returns the class of a kind that a workload is to have after a transition, "" for
// none. One that is not defined is an error only if the workload asks for it now: of others the
// configuration has changed, and a note says so.
func (c ClassConfig) classIn(t *Transition, kind ClassKind, w *Workload) (string, error) {
	err := c.defined(kind, w)
	switch {
	case err == nil:
		return c.ClassOf(kind, &w.Spec), nil
	case t.asks(w.ID()):
		return "", err
	}
	return "", nil
}

// noClass is the word of a workload that is to have no class of a kind, that of its class of
// service neither.
const noClass = "none"

// asksFor reports whether a workload asks for a class of a kind by name.
func (s *Spec) asksFor(kind ClassKind) bool {
	name := s.Classes[kind]
	return name != "" && name != noClass
}

// SetClass asks for a class of a kind: "none" to have none, "" to have that of the class of service.
func (s *Spec) SetClass(kind ClassKind, name string) {
	all := maps.Clone(s.Classes)
	if all == nil {
		all = map[ClassKind]string{}
	}
	if all[kind] = name; name == "" {
		delete(all, kind)
	}
	if s.Classes = all; len(all) == 0 {
		s.Classes = nil
	}
}

// Classes returns the classes that there are, and which of each kind a workload has.
func (n *Node) Classes() ClassConfig {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.opt.Classes
}

// ClassError is a class that a workload cannot have.
type ClassError struct {
	Kind ClassKind
	// Name is the class's; "" if it is any of the kind.
	Name string
	// ID is the workload's; "" if no workload can have it.
	ID string
	// Limit is true if it is about what the workload may send and receive, and no class.
	Limit  bool
	Reason string
	// Err is what the host refuses, or lacks; nil if Reason says why.
	Err error
}

// Unwrap returns Err.
func (e *ClassError) Unwrap() error { return e.Err }

func (e *ClassError) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s class %q: %s", e.Kind, e.Name, e.Reason)
}

// classifier gives workloads their classes of one kind, beside the Enforcer and whichever
// that is: groups of the kernel with settings, of which workloads are members.
type classifier interface {
	// plan returns the writes that lead from what the kernel shows to what a transition is to
	// come to. A class that is asked for and not defined is a *ClassError (classIn).
	plan(c *Transition) (kernel.Plan, error)
	// follow makes members of the threads of workloads, and returns how many it moved and
	// what undoes that.
	follow(c *Transition) (moved int, undo func() error, err error)
	// used reports whether a step made what a transition still needs.
	used(c *Transition) func(kernel.Step) bool
	// about says of which class a step of the plan is, and of which workload; "" is several.
	about(c *Transition, s kernel.Step) (name, id string)
	// notes are plain warnings about the class of a workload, which is defined.
	notes(w *Workload) []string
}

// refusal makes an error a *ClassError if it is what the host refuses a class, or lacks.
func refusal(kind ClassKind, name, id string, err error) error {
	_, known := errors.AsType[*ClassError](err)
	_, refused := errors.AsType[*kernel.StepError](err)
	if known || !refused && !errors.Is(err, kernel.ErrNotSupported) {
		return err
	}
	return &ClassError{Kind: kind, Name: name, ID: id, Err: err}
}

// refusal is that of a classifier's plan.
func (k *concerned) refusal(c *Transition, err error) error {
	var name, id string
	if e, ok := errors.AsType[*kernel.StepError](err); ok {
		name, id = k.about(c, e.Step)
	}
	err = refusal(k.kind, name, id, err)
	if class, ok := errors.AsType[*ClassError](err); ok && k.kind == NetClass && name == "" && id != "" {
		class.Limit = true
	}
	return err
}

// isClassStep reports whether a step is one of a classifier.
func isClassStep(s kernel.Step) bool {
	return slices.ContainsFunc(classKinds, func(k classKind) bool { return k.made(s) })
}

// concerned is a kind that a transition concerns.
type concerned struct {
	classKind
	classifier
}

// classifiers are those that a transition concerns.
func (n *Node) classifiers(c *Transition) (all []concerned) {
	config := n.classesNow()
	for _, k := range classKinds {
		serves := config.serves(k.kind)
		of := func(workloads iter.Seq[*Workload]) bool {
			for w := range workloads {
				classed := (serves || len(w.Spec.Classes) > 0) && config.ClassOf(k.kind, &w.Spec) != ""
				if classed || k.kind == NetClass && !w.Spec.Bandwidth.none() {
					return true
				}
			}
			return false
		}
		if of(c.Workloads()) || of(c.Former()) || c.Log.Has(k.made) || k.kind == PowerClass && n.poolsHaveProfiles(c.to) {
			all = append(all, concerned{k, k.open(n)})
		}
	}
	return all
}

// classNotes are plain warnings about the classes of a workload.
func (n *Node) classNotes(w *Workload) (notes []string) {
	config := n.classesNow()
	for _, k := range classKinds {
		switch name := config.ClassOf(k.kind, &w.Spec); {
		case name == "":
			if k.kind == PowerClass {
				notes = append(notes, n.poolNotes(w)...)
			}
		case config.defined(k.kind, w) != nil:
			notes = append(notes, fmt.Sprintf("%s class %q: it is not defined any more, and the workload goes without", k.kind, name))
		default:
			notes = append(notes, k.open(n).notes(w)...)
		}
	}
	net := &netClasses{n}
	if note := net.limitNote(w); note != "" {
		notes = append(notes, note)
	}
	return append(notes, net.socketNotes(w)...)
}

// notesOnce are the notes about a class that are the same of all its workloads, found once
// each time that the node is turned to.
func (n *Node) notesOnce(kind ClassKind, name string, find func() []string) []string {
	key := string(kind) + " " + name
	notes, ok := n.noted[key]
	if !ok {
		notes = find()
		if n.noted == nil {
			n.noted = map[string][]string{}
		}
		n.noted[key] = notes
	}
	return notes
}
