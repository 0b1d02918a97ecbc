package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/place"
)

// ClassReport says what classes there are, who has which, and what is left.
type ClassReport struct {
	// Planned is true of a configuration that is not in force.
	Planned bool `json:"planned,omitempty"`
	// Kinds are the kinds of classes, each with a section of its own.
	Kinds []ClassSection `json:"kinds"`
}

// ClassSection is what there is of the classes of one kind.
type ClassSection struct {
	Kind ClassKind `json:"kind"`
	// Reason says why this host has no classes of the kind, Remedy what would help; both are
	// "" if it has some.
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// Supplies are what the classes use up.
	Supplies []ClassSupply `json:"supplies,omitempty"`
	// Classes are those defined and those in force, the ones of other programs last.
	Classes []ClassUse `json:"classes"`
	// Limits are what single workloads may send and receive at most, of the kind net.
	Limits []WorkloadLimit `json:"limits,omitempty"`
	// Drops are of workloads that limits hold, those that have lost packets by them, of the kind net.
	Drops []WorkloadDrops `json:"drops,omitempty"`
	// Notes are plain warnings about the kind.
	Notes []string `json:"notes,omitempty"`
	// Resctrl is what the CPU divides, of the kind cache.
	Resctrl *resctrl.Tree `json:"resctrl,omitempty"`
}

// ClassSupply is something that there is only so much of: "CLOSIDs".
type ClassSupply struct {
	Name  string `json:"name"`
	Total int    `json:"total"`
	Left  int    `json:"left"`
}

// ClassUse is one class, and who has it.
type ClassUse struct {
	Name string `json:"name"`
	// Foreign classes are groups of other programs, which are never changed.
	Foreign bool `json:"foreign,omitempty"`
	// InForce classes are in the kernel.
	InForce bool `json:"inForce"`
	// Settings say what the class has, in words, by what of: {"L3", "4 of 11 ways"}.
	Settings []ClassSetting `json:"settings,omitempty"`
	// Workloads are the ids of those that have it, Tasks how many threads are in it.
	Workloads []string `json:"workloads,omitempty"`
	Tasks     int      `json:"tasks,omitempty"`
	// CPUs are those that have it, of the kind power.
	CPUs  cpuset.Set `json:"cpus,omitzero"`
	Notes []string   `json:"notes,omitempty"`
	// Levels are how far pools need their clocks by their load, in percent of the highest, of a
	// power profile that scales, by pool.
	Levels map[string]int `json:"levels,omitempty"`
	// Partition, Mode and Schemata are of the kind cache.
	Partition string           `json:"partition,omitempty"`
	Mode      string           `json:"mode,omitempty"`
	Schemata  resctrl.Schemata `json:"schemata,omitempty"`
	// Links are of the kind net: what the class has of each device. Dropped are the packets that
	// arrived and were dropped by what its workloads may receive together, nil if that is not known.
	Links   []ClassLink `json:"links,omitempty"`
	Dropped *uint64     `json:"dropped,omitempty"`
}

// Placed is how many workloads have it: not the CPUs that none owns.
func (c *ClassUse) Placed() (n int) {
	for _, id := range c.Workloads {
		if id != sharedPool && id != reservedCPUs {
			n++
		}
	}
	return n
}

// ClassSetting is what a class has of something.
type ClassSetting struct {
	Of    string `json:"of"`
	Value string `json:"value"`
}

// Lacks returns why this host has no classes of the kind, a *kernel.NotSupportedError; nil if
// it has some.
func (s *ClassSection) Lacks() error {
	if s.Reason == "" {
		return nil
	}
	return &kernel.NotSupportedError{Feature: string(s.Kind) + " classes", Reason: s.Reason, Remedy: s.Remedy}
}

// classReading is what a section is made of.
type classReading struct {
	fsys      fs.FS
	config    ClassConfig
	workloads []Workload
	planned   bool
	state     *place.State           // nil of what is not in force
	levels    map[string]power.Level // of pools whose load is measured
	held      map[string][]string    // by workload, the control groups that have limits of what it sends and receives
}

// members are the ids of the workloads that have a class.
func (r *classReading) members(kind ClassKind, name string) (ids []string) {
	for i := range r.workloads {
		if w := &r.workloads[i]; r.config.ClassOf(kind, &w.Spec) == name {
			ids = append(ids, w.ID())
		}
	}
	return ids
}

// ReportClasses says what classes a configuration has on a host, and which workloads have
// them. Of one that is planned only the kinds that it defines are told.
func ReportClasses(fsys fs.FS, c ClassConfig, workloads []Workload, planned bool) (ClassReport, error) {
	return reportClasses(&classReading{fsys: fsys, config: c, workloads: workloads, planned: planned})
}

func reportClasses(reading *classReading) (ClassReport, error) {
	r := ClassReport{Planned: reading.planned, Kinds: []ClassSection{}}
	for _, k := range classKinds {
		if reading.planned && !reading.config.Defines(k.kind) {
			continue
		}
		s, err := k.report(reading)
		if lacks, ok := errors.AsType[*kernel.NotSupportedError](err); ok {
			s, err = ClassSection{Reason: lacks.Reason, Remedy: lacks.Remedy}, nil
		}
		if err != nil {
			return r, err
		}
		if s.Kind = k.kind; s.Classes == nil {
			s.Classes = []ClassUse{}
		}
		r.Kinds = append(r.Kinds, s)
	}
	return r, nil
}

// ClassReport says what classes there are, who has which, and what is left.
func (n *Node) ClassReport(ctx context.Context) (ClassReport, error) {
	all, err := n.List(ctx)
	if err != nil {
		return ClassReport{}, err
	}
	var state *place.State
	held := map[string][]string{}
	err = n.look(ctx, func(t *transaction) error {
		state = t.state
		for id, of := range t.records {
			limits, _ := (&netClasses{n}).limitsOf(of.Workload) // what cannot be, a note says
			if len(limits) > 0 {
				held[id] = slices.Sorted(maps.Keys(limits))
			}
		}
		return nil
	})
	if err != nil {
		return ClassReport{}, err
	}
	c := n.Classes()
	c.Power = c.Power.At(n.asked.Now())
	n.mu.Lock()
	levels := n.scaling.levels
	n.mu.Unlock()
	return reportClasses(&classReading{n.root.FS(), c, all, false, state, levels, held})
}

// Defines reports whether a configuration says something of a kind.
func (c ClassConfig) Defines(kind ClassKind) bool {
	return kind == CacheClass && c.Cache != nil || kind == IOClass && c.IO != nil || kind == PowerClass && c.Power != nil ||
		kind == NetClass && c.Net != nil
}

// reportCache is the section of the kind cache.
func reportCache(r *classReading) (s ClassSection, err error) {
	t, err := resctrl.Read(r.fsys)
	if err != nil {
		return s, err
	}
	layout := &resctrl.Layout{}
	if r.config.Cache != nil {
		if layout, err = r.config.Cache.Layout(t); err != nil {
			return s, err
		}
	}
	s.Resctrl = t
	for i := range layout.Classes {
		a := &layout.Classes[i]
		s.Classes = append(s.Classes, ClassUse{Name: a.Name, Partition: a.Partition, Schemata: a.Schemata, Notes: a.Notes})
	}
	for i := range t.Groups {
		g := &t.Groups[i]
		foreign := g.Name != "" && !g.Own()
		at := slices.IndexFunc(s.Classes, func(c ClassUse) bool { return !foreign && c.Name == g.Class() })
		if at < 0 {
			at = len(s.Classes)
			s.Classes = append(s.Classes, ClassUse{Name: g.Class(), Foreign: foreign})
		}
		c := &s.Classes[at]
		if c.InForce, c.Mode = true, g.Mode; !r.planned || c.Schemata == nil {
			c.Schemata = g.Schemata // what the kernel has
		}
		tids, err := resctrl.Tasks(r.fsys, t.Dir, g.Name)
		if err != nil {
			return s, err
		}
		c.Tasks = len(tids)
	}
	for i := range s.Classes {
		c := &s.Classes[i]
		if !c.Foreign {
			c.Workloads = r.members(CacheClass, c.Name)
		}
		for _, line := range c.Schemata {
			if res := t.Find(line.Resource); res != nil && len(line.Values) > 0 {
				c.Settings = append(c.Settings, ClassSetting{line.Resource, res.TextOf(&line)})
			}
		}
	}
	rank := func(c *ClassUse) int {
		if c.Foreign {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(s.Classes, func(a, b ClassUse) int {
		return cmp.Or(rank(&a)-rank(&b), cmp.Compare(a.Name, b.Name))
	})
	s.Supplies = []ClassSupply{{"CLOSIDs", t.CLOSIDs(), t.CLOSIDs() - len(t.Groups)}}
	if m := t.Monitoring; m != nil && m.RMIDs > 0 {
		s.Supplies = append(s.Supplies, ClassSupply{"RMIDs", m.RMIDs, m.RMIDs - len(t.Groups) - len(t.Mon)})
		told := 0
		for _, name := range t.Mon {
			if _, ok := resctrl.MonOf(name); ok {
				told++
			}
		}
		if told > 0 {
			s.Notes = append(s.Notes, fmt.Sprintf("the guard has what %d control groups fill and move counted now, of %d that can be at a time: others have turns", told, t.Slots()))
		}
	}
	return s, nil
}
