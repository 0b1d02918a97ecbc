package resctrl

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
)

// Layout is what the classes of a configuration come to on a host.
type Layout struct {
	// Classes are sorted by name.
	Classes []Assigned `json:"classes"`
}

// Assigned is what one class has.
type Assigned struct {
	Name      string   `json:"name"`
	Partition string   `json:"partition"`
	Exclusive bool     `json:"exclusive,omitempty"`
	Schemata  Schemata `json:"schemata"`
	// Notes say what was rounded, or is shared.
	Notes []string `json:"notes,omitempty"`
}

// Group is the name of the class's group.
func (a *Assigned) Group() string {
	if a.Name == Default {
		return ""
	}
	return Prefix + a.Name
}

// Find returns a class, or nil.
func (l *Layout) Find(name string) *Assigned {
	i, ok := slices.BinarySearchFunc(l.Classes, name, func(a Assigned, name string) int { return cmp.Compare(a.Name, name) })
	if !ok {
		return nil
	}
	return &l.Classes[i]
}

// FitError is a configuration that does not fit a host.
type FitError struct {
	Field  string // "partitions.gold.l3Allocation"
	Reason string // what does not fit, and how it would
}

func (e *FitError) Error() string { return e.Field + ": " + e.Reason }

// Layout computes what each class has on a host. What does not fit is a *FitError; what the
// host lacks, unless it is optional, a *kernel.NotSupportedError.
//
// Percentages are of the ways that are left by masks, by other programs' exclusive groups
// and, for a class that is to be exclusive, by devices. They are rounded down, the smallest
// first, to the least mask at least; the last has the rest of what all ask for together.
// Parts lie from the lowest way on, by the partitions' names.
func (c *Config) Layout(t *Tree) (*Layout, error) {
	if err := c.has(t); err != nil {
		return nil, err
	}
	l := &Layout{}
	pnames := slices.Sorted(maps.Keys(c.Partitions))
	for _, pname := range pnames {
		p := c.Partitions[pname]
		for name, class := range p.Classes {
			l.Classes = append(l.Classes, Assigned{
				Name: Canonical(name), Partition: pname, Exclusive: class.exclusive(),
				Schemata: make(Schemata, 0, len(t.Resources)),
			})
		}
	}
	slices.SortFunc(l.Classes, func(a, b Assigned) int { return cmp.Compare(a.Name, b.Name) })
	if err := c.count(t, l); err != nil {
		return nil, err
	}
	for i := range t.Resources {
		r := &t.Resources[i]
		var err error
		if r.Cache() {
			err = c.ways(t, r, pnames, l)
		} else {
			err = c.bandwidth(r, l)
		}
		if err != nil {
			return nil, err
		}
	}
	return l, l.exclusives(t)
}

// has checks that the host has what must be there.
func (c *Config) has(t *Tree) error {
	for _, o := range []struct {
		name   string
		option Option
	}{{"L2", c.Options.L2}, {"L3", c.Options.L3}, {"MB", c.Options.MB}} {
		there := slices.ContainsFunc(t.Resources, func(r Resource) bool { return strings.HasPrefix(r.Name, o.name) })
		if !there && !o.option.optional() {
			return &kernel.NotSupportedError{Feature: "allocation of " + o.name, Reason: "resctrl has no line " + o.name + " here", Remedy: "make it optional in the configuration (options." + strings.ToLower(o.name) + ".optional), or use a CPU that has it"}
		}
	}
	return nil
}

// count checks that there is a CLOSID for each class.
func (c *Config) count(t *Tree, l *Layout) error {
	classes := 0
	for i := range l.Classes {
		if l.Classes[i].Name != Default {
			classes++
		}
	}
	others := t.Others()
	left := t.CLOSIDs() - 1 - len(others)
	if classes <= left {
		return nil
	}
	var by strings.Builder
	if t.DevicesHaveClass() {
		by.WriteString(", beside that of devices (io_alloc)")
	}
	if len(others) > 0 {
		var names []string
		for _, g := range others {
			names = append(names, g.Name)
		}
		slices.Sort(names)
		fmt.Fprintf(&by, ", and other programs' groups have %d (%s)", len(names), strings.Join(names, ", "))
	}
	return &FitError{"partitions", fmt.Sprintf("%d classes; the CPU has %d CLOSIDs, of which the default group has one%s: at most %d classes fit, join %d of them with others",
		classes, t.CLOSIDs(), by.String(), max(0, left), classes-max(0, left))}
}

// kindOf is what a resource holds: of "L3CODE" that is "L3" and "code".
func kindOf(resource string) (level, kind string) {
	if level, ok := strings.CutSuffix(resource, "CODE"); ok {
		return level, "code"
	}
	if level, ok := strings.CutSuffix(resource, "DATA"); ok {
		return level, "data"
	}
	return resource, "unified"
}

// shareOf is an allocation of a cache id, for code, data or both.
func shareOf(d *byDomain, id int, kind string) (share, error) {
	v := d.of(id)
	if v == nil {
		return share{}, nil
	}
	if text, ok := v.(string); ok {
		return parseShare(text)
	}
	all, err := kindsOf(v)
	if err != nil {
		return share{}, err
	}
	text, ok := all[kind]
	if !ok {
		if text, ok = all["unified"]; !ok {
			return share{}, errors.New("it says nothing of unified caches, nor of " + kind)
		}
	}
	return parseShare(text)
}

// ways computes the masks of a cache.
func (c *Config) ways(t *Tree, r *Resource, pnames []string, l *Layout) error {
	level, kind := kindOf(r.Name)
	name := strings.ToLower(level) + "Allocation"
	of := func(p *Partition) any {
		if level == "L2" {
			return p.L2Allocation
		}
		return p.L3Allocation
	}
	parts := make([]part, 0, len(pnames))
	apart := false // cache ids are told apart
	for _, pname := range pnames {
		p := c.Partitions[pname]
		d, err := domainsOf(of(&p))
		if err != nil {
			return &FitError{"partitions." + pname + "." + name, err.Error()}
		}
		q := part{name: pname, field: "partitions." + pname + "." + name, allocation: d}
		apart = apart || d.some != nil
		for _, class := range p.Classes {
			q.exclusive = q.exclusive || class.exclusive()
		}
		parts = append(parts, q)
	}
	lines := make([]Line, len(l.Classes))
	allocations := make([]byDomain, len(l.Classes))
	at := make([]int, len(l.Classes))
	for i := range l.Classes {
		a := &l.Classes[i]
		class := c.class(a)
		alloc := class.l3()
		if level == "L2" {
			alloc = class.l2()
		}
		var err error
		if allocations[i], err = domainsOf(alloc); err != nil {
			return &FitError{a.field(name), err.Error()}
		}
		apart = apart || allocations[i].some != nil
		at[i] = slices.Index(pnames, a.Partition)
		lines[i] = Line{Resource: r.Name, Values: make([]Value, 0, len(r.Domains))}
	}
	var was [2]uint64 // what differs from cache to cache beside allocations
	for n, id := range r.Domains {
		is := [2]uint64{t.taken(r, id), r.Filled(id)}
		if n > 0 && !apart && is == was { // as the cache before
			for i := range lines {
				lines[i].Values = append(lines[i].Values, Value{id, lines[i].Values[n-1].N})
			}
			continue
		}
		was = is
		if err := partition(t, r, id, is[0], kind, parts); err != nil {
			return err
		}
		for i := range l.Classes {
			a, q := &l.Classes[i], &parts[at[i]]
			s, err := shareOf(&allocations[i], id, kind)
			if err != nil {
				return &FitError{a.field(name), err.Error()}
			}
			mask, err := within(r, q.mask, s)
			if err != nil {
				return &FitError{a.field(name), fmt.Sprintf("cache id %d: %v", id, err)}
			}
			if n == 0 {
				a.note(r, id, mask, q)
			}
			lines[i].Values = append(lines[i].Values, Value{id, mask})
		}
	}
	for i := range lines {
		l.Classes[i].Schemata = append(l.Classes[i].Schemata, lines[i])
	}
	return nil
}

func (c *Config) class(a *Assigned) *Class {
	p := c.Partitions[a.Partition]
	if class, ok := p.Classes[a.Name]; ok || a.Name != Default {
		return class
	}
	for name, class := range p.Classes {
		if Canonical(name) == Default {
			return class
		}
	}
	return nil
}

func (a *Assigned) field(name string) string {
	return "partitions." + a.Partition + ".classes." + a.Name + "." + name
}

// note says which of a class's ways devices fill as well.
func (a *Assigned) note(r *Resource, id int, mask uint64, q *part) {
	if both := mask & r.Filled(id); both != 0 && q.allocation.given {
		a.Notes = append(a.Notes, fmt.Sprintf("devices fill %s of %s, too (shareable_bits, io_alloc)", waysText(both), r.Name))
	}
}

// exclusives checks what the kernel would refuse of mode exclusive: "A resource group cannot
// be forced to overlap with an exclusive resource group", the default one included.
func (l *Layout) exclusives(t *Tree) error {
	for i := range l.Classes {
		a := &l.Classes[i]
		if !a.Exclusive {
			continue
		}
		for _, line := range a.Schemata {
			r := t.Find(line.Resource)
			if !r.Cache() {
				continue
			}
			for _, v := range line.Values {
				if both := v.N & r.Filled(v.Domain); both != 0 {
					return &FitError{a.field("exclusive"), fmt.Sprintf("%s, cache id %d: devices fill ways %s: choose others", r.Name, v.Domain, waysText(both))}
				}
				if who, both := l.overlaps(t, a, &line, v); both != 0 {
					return &FitError{a.field("exclusive"), fmt.Sprintf("%s, cache id %d: %s has ways %s, too: give class %s ways of a partition of its own", r.Name, v.Domain, who, waysText(both), cmp.Or(strings.TrimPrefix(who, "class "), Default))}
				}
			}
		}
	}
	return nil
}

// overlaps names the class or group of another program that has ways of an exclusive class.
func (l *Layout) overlaps(t *Tree, a *Assigned, line *Line, v Value) (who string, both uint64) {
	level, _ := kindOf(line.Resource) // code and data lie in the same ways, so each keeps the other out
	get := func(s Schemata) uint64 { return s.filled(level, v.Domain) & v.N }
	for i := range l.Classes {
		if b := &l.Classes[i]; b.Name != a.Name {
			if both = get(b.Schemata); both != 0 {
				return "class " + b.Name, both
			}
		}
	}
	for i := range t.Groups {
		g := &t.Groups[i]
		if g.Own() || g.Guarded() || g.Name == "" && l.Find(Default) != nil {
			continue
		}
		if both = get(g.Schemata); both != 0 {
			if g.Name == "" {
				return "class " + Default, both
			}
			return "group " + g.Name + " of another program", both
		}
	}
	return "", 0
}
