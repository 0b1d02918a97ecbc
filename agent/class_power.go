package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/place"
)

// PowerClass are profiles of power: how fast the exclusive CPUs of a workload run, and how
// deep they sleep. Those of pools are in its configuration.
const PowerClass ClassKind = "power"

// powerDir holds the settings of CPUs that power profiles change.
const powerDir = "sys/devices/system/cpu"

func isPowerStep(s kernel.Step) bool {
	return s.Op == kernel.Write && kernel.Within(s.Path, powerDir)
}

// powerClasses are settings of CPUs: they have no members, and CPUs change theirs as they
// change hands.
type powerClasses struct {
	n *Node
	d *power.Division
}

// classesNow are the classes that hold at this time of day.
func (n *Node) classesNow() ClassConfig {
	c := n.opt.Classes
	c.Power = c.Power.At(n.opt.Now())
	return c
}

// rescheduled returns what holds now, whether that is in force yet, and what is to be told.
func (n *Node) rescheduled() (is *power.Config, text string, changed bool) {
	if p := n.opt.Classes.Power; p == nil || len(p.Schedules) == 0 {
		return nil, "", false
	}
	was, is := n.profiles, n.classesNow().Power
	if reflect.DeepEqual(was, is) {
		return is, "", false
	}
	if was != nil {
		text = fmt.Sprintf("power profiles by the time of day: shared %s, reserved %s, service %v", cmp.Or(is.Shared, "none"), cmp.Or(is.Reserved, "none"), is.Service)
	}
	return is, text, true
}

// inForce notes profiles that hold by the time of day once they are in force, and tells it.
func (n *Node) inForce(profiles *power.Config, text string) {
	if n.profiles = profiles; text != "" {
		n.tell(Changed, "", "", text)
	}
}

// Names of those that have CPUs without being a workload.
const (
	sharedPool   = "the shared CPUs"
	reservedCPUs = "the reserved CPUs"
)

// powerWishes are what the CPUs of workloads and pools are to have in a state, the workloads
// by id; a profile that is not defined is left out.
func powerWishes(c ClassConfig, workloads []*Workload, state *place.State, pools bool) (all []power.Wish) {
	wish := func(pool bool, who, name string, cpus cpuset.Set) {
		if name != "" && c.Power.Has(name) && !cpus.IsEmpty() {
			all = append(all, power.Wish{Who: who, Pool: pool, CPUs: cpus, Name: name, Profile: c.Power.Find(name)})
		}
	}
	for _, w := range workloads {
		if w.Grant != nil {
			wish(false, w.ID(), c.ClassOf(PowerClass, &w.Spec), w.Grant.Own)
		}
	}
	if !pools {
		return all
	}
	reserved := state.Config().Reserved.Minus(state.Owned())
	if c.Power.Reserved == "" {
		reserved = cpuset.Set{}
	}
	wish(true, reservedCPUs, c.Power.Reserved, reserved)
	wish(true, sharedPool, c.Power.Shared, state.Sharable().Minus(reserved))
	return all
}

// poolsHaveProfiles reports whether CPUs that no workload owns are to have a profile: as long
// as there is an agent's configuration that says so, or a workload.
func (n *Node) poolsHaveProfiles(v snapshot) bool {
	return n.opt.Classes.Power.Pools() && (n.opt.Keep || n.stored != nil && n.stored.Agent || len(v.records) > 0)
}

// powerWishes are those of a snapshot.
func (n *Node) powerWishes(v snapshot) []power.Wish {
	var all []*Workload
	for _, id := range v.ids() {
		all = append(all, v.workload(id))
	}
	wishes := powerWishes(n.classesNow(), all, v.state, n.poolsHaveProfiles(v))
	for i := range wishes {
		wishes[i].Level = n.level(wishes[i])
	}
	return wishes
}

// divide gives the CPUs their profiles after a transition. One that changes nobody's leaves
// them: what others did to them is for Reconcile to find.
func (k *powerClasses) divide(c *Transition) error {
	for _, id := range c.focus {
		if w := c.After(id); w != nil {
			if err := k.may(c, w); err != nil {
				return err
			}
		}
	}
	wishes := k.n.powerWishes(c.to)
	if !c.All && !c.scales && reflect.DeepEqual(wishes, k.n.powerWishes(c.from)) {
		return nil
	}
	h, err := power.Read(k.n.root.FS())
	if err != nil {
		return fmt.Errorf("power classes: %w", err)
	}
	k.n.power = h
	d, err := h.Divide(wishes, k.was(c), c.Yielded)
	if err != nil {
		return fmt.Errorf("power classes: %w", err)
	}
	for i, err := range d.Errs {
		switch w := c.After(wishes[i].Who); {
		case err == nil:
		case w == nil:
			k.n.lack(wishes[i].Who, err)
		case k.asks(c, w):
			return refusal(PowerClass, wishes[i].Name, w.ID(), fmt.Errorf("workload %q: %w", w.ID(), err))
		}
	}
	k.d = d
	return nil
}

// lack tells once that a pool goes without its profile; of a workload a note says so.
func (n *Node) lack(pool string, err error) {
	n.tellOnce("", fmt.Sprintf("%s have no power profile: %v", pool, err))
}

// asks reports whether a transition is about a workload that asks for a profile by name. One
// that has it by its class of service goes without, too, where it cannot be.
func (*powerClasses) asks(c *Transition, w *Workload) bool {
	return w.Spec.asksFor(PowerClass) && c.asks(w.ID())
}

// may refuses what a workload that asks cannot have.
func (k *powerClasses) may(c *Transition, w *Workload) error {
	if !k.asks(c, w) {
		return nil
	}
	if err := k.n.opt.Classes.defined(PowerClass, w); err != nil {
		return err
	}
	if w.Grant == nil || w.Grant.Own.IsEmpty() {
		return &ClassError{Kind: PowerClass, Name: w.Spec.Classes[PowerClass], ID: w.ID(), Reason: fmt.Sprintf("workload %q has no CPUs of its own: ask for some (class LSE or LSR, and how many), or give the shared pool a profile (classes.power.shared)", w.ID())}
	}
	return nil
}

func (*powerClasses) was(c *Transition) func(string) (string, bool) {
	return func(path string) (string, bool) {
		text, changed := c.Log.Original(path)
		return strings.TrimSpace(text), changed
	}
}

func (k *powerClasses) plan(c *Transition) (kernel.Plan, error) {
	if err := k.divide(c); err != nil || k.d == nil {
		return nil, err
	}
	return k.d.Plan, nil
}

func (k *powerClasses) about(c *Transition, s kernel.Step) (name, id string) {
	who := k.d.For(s.Path)
	w := c.After(who)
	if w == nil {
		return "", who // a pool, which no workload asks for
	}
	return k.n.classesNow().ClassOf(PowerClass, &w.Spec), w.ID()
}

// follow has nothing to move: settings are of CPUs.
func (*powerClasses) follow(*Transition) (int, func() error, error) {
	return 0, func() error { return nil }, nil
}

func (k *powerClasses) used(c *Transition) func(kernel.Step) bool {
	was := k.was(c)
	return func(s kernel.Step) bool { return k.d == nil || k.d.Keeps(s.Path, was) }
}

// notes say what of a profile a workload does not have, and what its CPUs share.
func (k *powerClasses) notes(w *Workload) (notes []string) {
	name := k.n.classesNow().ClassOf(PowerClass, &w.Spec)
	note := func(text string) { notes = append(notes, fmt.Sprintf("power class %q: %s", name, text)) }
	if w.Grant == nil || w.Grant.Own.IsEmpty() {
		if w.Spec.asksFor(PowerClass) {
			note("the workload has no CPUs of its own")
		}
		return notes
	}
	profile := k.n.opt.Classes.Power.Find(name)
	if k.n.power == nil || profile.SpeedSelect != nil { // which CPUs have what in common stays, priorities of others do not
		var err error
		if k.n.power, err = power.Read(k.n.root.FS()); err != nil {
			note(err.Error())
			return notes
		}
	}
	words, err := k.n.power.Shared(power.Wish{Who: w.ID(), CPUs: w.Grant.Own, Name: name, Profile: profile})
	if lacks, ok := errors.AsType[*kernel.NotSupportedError](err); ok {
		note("the workload goes without: " + lacks.Error())
	} else if err != nil {
		note(err.Error())
	}
	for _, text := range words {
		note(text)
	}
	return notes
}

// reportPower is the section of the kind power.
func reportPower(r *classReading) (s ClassSection, err error) {
	h, err := power.Read(r.fsys)
	if err == nil {
		err = h.Lacks()
	}
	if err != nil {
		return s, err
	}
	var all []*Workload
	for i := range r.workloads {
		all = append(all, &r.workloads[i])
	}
	wishes := powerWishes(r.config, all, r.state, r.state != nil && r.config.Power.Pools())
	var lacks []error
	for _, name := range r.config.Power.Names() {
		use := ClassUse{Name: name}
		var cpus cpuset.Set
		for _, w := range wishes {
			if w.Name != name {
				continue
			}
			words, err := h.Shared(w)
			if err != nil {
				use.Notes = append(use.Notes, fmt.Sprintf("%s goes without: %v", w.Who, err))
				continue
			}
			use.Workloads, cpus = append(use.Workloads, w.Who), cpus.Union(w.CPUs)
			for _, text := range words {
				use.Notes = append(use.Notes, w.Who+": "+text)
			}
			if level, ok := r.levels[w.Who]; ok && w.Pool && w.Profile.Scale != nil {
				if use.Levels == nil {
					use.Levels = map[string]int{}
				}
				use.Levels[w.Who] = level.Percent
			}
		}
		if cpus.IsEmpty() && len(use.Notes) == 0 {
			if _, err := h.Shared(power.Wish{CPUs: h.Online(), Name: name, Profile: r.config.Power.Find(name)}); err != nil {
				use.Notes = append(use.Notes, err.Error())
				if errors.Is(err, kernel.ErrNotSupported) {
					lacks = append(lacks, err)
				}
			}
		}
		if !cpus.IsEmpty() {
			use.InForce, use.CPUs = !r.planned, cpus
			use.Settings = append(use.Settings, ClassSetting{"CPUs", cpus.String()})
			for _, v := range h.InWords(cpus) {
				use.Settings = append(use.Settings, ClassSetting{v[0], v[1]})
			}
			for _, pool := range slices.Sorted(maps.Keys(use.Levels)) {
				use.Settings = append(use.Settings, ClassSetting{"clock by the load of " + pool, fmt.Sprintf("%d%%", use.Levels[pool])})
			}
		}
		s.Classes = append(s.Classes, use)
	}
	if len(lacks) == len(s.Classes) {
		return s, errors.Join(lacks...)
	}
	return s, nil
}
