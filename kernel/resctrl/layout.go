package resctrl

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/bits"
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
				Name: Canonical(name), Partition: pname, Exclusive: class != nil && class.Exclusive,
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
	for _, pname := range pnames {
		p := c.Partitions[pname]
		d, err := domainsOf(of(&p))
		if err != nil {
			return &FitError{"partitions." + pname + "." + name, err.Error()}
		}
		q := part{name: pname, field: "partitions." + pname + "." + name, allocation: d}
		for _, class := range p.Classes {
			q.exclusive = q.exclusive || class != nil && class.Exclusive
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
		at[i] = slices.Index(pnames, a.Partition)
		lines[i] = Line{Resource: r.Name, Values: make([]Value, 0, len(r.Domains))}
	}
	for n, id := range r.Domains {
		if err := partition(t, r, id, kind, parts); err != nil {
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
				a.note(r, mask, q)
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
func (a *Assigned) note(r *Resource, mask uint64, q *part) {
	if both := mask & r.Shareable; both != 0 && q.allocation.given {
		a.Notes = append(a.Notes, fmt.Sprintf("devices fill %s of %s, too (shareable_bits)", waysText(both), r.Name))
	}
}

// part is a partition in the course of dividing a cache.
type part struct {
	name, field string
	allocation  byDomain
	exclusive   bool
	share       share
	need        int    // ways
	mask        uint64 // the result
}

// partition divides one cache among the partitions.
func partition(t *Tree, r *Resource, id int, kind string, parts []part) error {
	taken := uint64(0) // by other programs' groups that nobody may share with
	for i := range t.Groups {
		g := &t.Groups[i]
		if g.Own() || g.Mode != "exclusive" && g.Mode != "pseudo-locked" {
			continue
		}
		if line := g.Schemata.Line(r.Name); line != nil {
			n, _ := line.Get(id)
			taken |= n
		}
	}
	fixed := taken
	total, relative := 0, 0
	for i := range parts {
		p := &parts[i]
		var err error
		if p.share, err = shareOf(&p.allocation, id, kind); err != nil {
			return &FitError{p.field, err.Error()}
		}
		p.need = 0
		switch s := p.share; {
		case !s.given:
			p.mask = r.Mask &^ taken
		case s.mask != 0:
			if p.mask = s.mask; s.mask&^r.Mask != 0 {
				return &FitError{p.field, fmt.Sprintf("mask %x has more than the %d ways of cache id %d: at most %x fits", s.mask, r.Ways(), id, r.Mask)}
			}
			if both := s.mask & fixed; both != 0 {
				return &FitError{p.field, fmt.Sprintf("cache id %d: ways %s are another's already (%s)", id, waysText(both), owners(parts[:i], t, r, id, both))}
			}
			if err := legal(r, s.mask); err != nil {
				return &FitError{p.field, fmt.Sprintf("cache id %d: %v", id, err)}
			}
			fixed |= s.mask
		default:
			total += s.high
			relative++
		}
	}
	if relative == 0 {
		return nil
	}
	free := largest(r.Mask&^fixed, r.Sparse)
	if err := needs(r, id, free, total, parts); err != nil {
		return err
	}
	return lay(r, id, free, parts)
}

// needs says how many ways each partition of a percentage or number has.
func needs(r *Resource, id int, free uint64, total int, parts []part) error {
	n, used := bits.OnesCount64(free), 0
	var order []*part
	for i := range parts {
		p := &parts[i]
		switch s := p.share; {
		case !s.given || s.mask != 0:
		case s.ways > 0:
			if p.need = s.ways; s.ways < r.MinBits {
				return &FitError{p.field, fmt.Sprintf("%d ways are fewer than the %d that a mask must have here", s.ways, r.MinBits)}
			}
			used += s.ways
		default:
			order = append(order, p)
		}
	}
	if total > 100 {
		return &FitError{"partitions", fmt.Sprintf("%s of cache id %d: the partitions ask for %d%% together: take %d%% away", r.Name, id, total, total-100)}
	}
	slices.SortStableFunc(order, func(a, b *part) int { return cmp.Compare(a.share.high, b.share.high) })
	left := n - used
	want := left * total / 100
	for i, p := range order {
		p.need = max(left*p.share.high/100, r.MinBits)
		if rest := want - sumOf(order[:i]); i == len(order)-1 && i > 0 {
			p.need = max(rest, r.MinBits)
		}
		used += p.need
	}
	if used > n {
		return &FitError{"partitions", fmt.Sprintf("%s of cache id %d: the partitions need %d ways, each at least %d, and %d are free: join partitions, or give some fewer ways", r.Name, id, used, r.MinBits, n)}
	}
	return nil
}

func sumOf(parts []*part) (n int) {
	for _, p := range parts {
		n += p.need
	}
	return n
}

// lay gives each partition its ways, from the lowest on, by name. One with an exclusive
// class gets ways that devices do not fill, and so comes first if they are the highest, as
// they are on all known CPUs.
func lay(r *Resource, id int, free uint64, parts []part) error {
	for _, exclusive := range []bool{true, false} {
		for i := range parts {
			p := &parts[i]
			if p.need == 0 || p.exclusive != exclusive && r.Shareable != 0 || !exclusive && r.Shareable == 0 {
				continue
			}
			from := free
			if p.exclusive {
				from = largest(free&^r.Shareable, r.Sparse)
			}
			if p.mask = lowest(from, p.need); bits.OnesCount64(p.mask) < p.need || !r.Sparse && !contiguous(p.mask) {
				return &FitError{p.field, fmt.Sprintf("%d ways in a row of %s, cache id %d: %d are free%s: give it fewer, or masks to all", p.need, r.Name, id, bits.OnesCount64(from),
					map[bool]string{true: " that no device fills"}[p.exclusive])}
			}
			free &^= p.mask
		}
	}
	return nil
}

// within is the mask of a class in its partition's. Percentages are of the partition's ways;
// p% is 0-p%. A mask that does not fit the partition is taken as numbers from its lowest way on.
func within(r *Resource, mask uint64, s share) (uint64, error) {
	n := bits.OnesCount64(mask)
	if n == 0 {
		return 0, errors.New("the partition has no ways")
	}
	switch {
	case !s.given:
		return mask, nil
	case s.mask != 0:
		if s.mask&^mask != 0 {
			s.mask <<= bits.TrailingZeros64(mask)
		}
		if s.mask&^mask != 0 {
			return 0, fmt.Errorf("mask %x is not within the %d ways of its partition, %x", s.mask, n, mask)
		}
		return s.mask, legal(r, s.mask)
	case s.ways > 0:
		if s.ways > n || s.ways < r.MinBits {
			return 0, fmt.Errorf("%d ways: its partition has %d, and a mask has at least %d", s.ways, n, r.MinBits)
		}
		return lowest(mask, s.ways), nil
	}
	low, high := 0, (s.high-1)*n/100
	if s.low > 0 {
		low = (s.low - 1) * n / 100
	}
	if least := r.MinBits; high-low+1 < least {
		if least > n {
			return 0, fmt.Errorf("its partition has %d ways, and a mask has at least %d", n, least)
		}
		high = low + least - 1
		if high >= n {
			low, high = n-least, n-1
		}
	}
	return lowest(mask, high+1) &^ lowest(mask, low), nil
}

// legal says why the kernel refuses a mask.
func legal(r *Resource, mask uint64) error {
	switch {
	case bits.OnesCount64(mask) < r.MinBits:
		return fmt.Errorf("mask %x has fewer than %d ways", mask, r.MinBits)
	case !r.Sparse && !contiguous(mask):
		return fmt.Errorf("mask %x has gaps, which this cache does not take (sparse_masks)", mask)
	}
	return nil
}

// lowest are the n lowest ways of a mask.
func lowest(mask uint64, n int) (low uint64) {
	for ; n > 0 && mask != 0; n-- {
		low |= mask & -mask
		mask &= mask - 1
	}
	return low
}

// largest is the longest run of ways in a mask, the lowest of several; all of it where masks
// may have gaps.
func largest(mask uint64, sparse bool) (best uint64) {
	if sparse {
		return mask
	}
	for mask != 0 {
		start := bits.TrailingZeros64(mask)
		n := bits.TrailingZeros64(^(mask >> start))
		run := (uint64(1)<<n - 1) << start
		if n == 64 {
			run = mask
		}
		if n > bits.OnesCount64(best) {
			best = run
		}
		mask &^= run
	}
	return best
}

// owners names who has ways.
func owners(parts []part, t *Tree, r *Resource, id int, ways uint64) string {
	var names []string
	for i := range parts {
		if parts[i].share.given && parts[i].mask&ways != 0 {
			names = append(names, "partition "+parts[i].name)
		}
	}
	for i := range t.Groups {
		g := &t.Groups[i]
		if line := g.Schemata.Line(r.Name); !g.Own() && g.Mode == "exclusive" && line != nil {
			if n, _ := line.Get(id); n&ways != 0 {
				names = append(names, "group "+g.Name+" of another program")
			}
		}
	}
	return strings.Join(names, ", ")
}

// waysText writes ways by their numbers: "0-3,5".
func waysText(mask uint64) string {
	var b strings.Builder
	for mask != 0 {
		start := bits.TrailingZeros64(mask)
		n := bits.TrailingZeros64(^(mask >> start))
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		if fmt.Fprint(&b, start); n > 1 {
			fmt.Fprintf(&b, "-%d", start+n-1)
		}
		if n == 64 {
			break
		}
		mask &^= (uint64(1)<<n - 1) << start
	}
	return b.String()
}

// bandwidth computes the limits of memory bandwidth.
func (c *Config) bandwidth(r *Resource, l *Layout) error {
	name := strings.ToLower(r.Name) + "Allocation"
	for i := range l.Classes {
		a := &l.Classes[i]
		p, class := c.Partitions[a.Partition], c.class(a)
		outer, inner := p.MBAllocation, class.mb()
		if r.Name == "SMBA" {
			outer, inner = p.SMBAAllocation, class.smba()
		}
		line := Line{Resource: r.Name, Values: make([]Value, 0, len(r.Domains))}
		all, err := domainsOf(outer)
		own, errOwn := domainsOf(inner)
		if err = cmp.Or(err, errOwn); err != nil {
			return &FitError{a.field(name), err.Error()}
		}
		for n, id := range r.Domains {
			of, err := number(r, all.of(id), "partitions."+a.Partition+"."+name)
			if err != nil {
				return err
			}
			has, err := number(r, own.of(id), a.field(name))
			if err != nil {
				return err
			}
			want := min(of, has)
			if r.Unit == Percent {
				want = of * has / 100
			}
			got := r.round(want)
			if n == 0 && got > want && want < r.Min {
				a.Notes = append(a.Notes, fmt.Sprintf("%s is %d%s, the least of this CPU, instead of %d", r.Name, got, r.Unit, want))
			}
			line.Values = append(line.Values, Value{id, got})
		}
		a.Schemata = append(a.Schemata, line)
	}
	return nil
}

// round is the step at or above a value, as the kernel would round it: "The available
// bandwidth control steps are: min_bandwidth + N * bandwidth_gran."
func (r *Resource) round(n uint64) uint64 {
	if n >= r.Max {
		return r.Max
	}
	if n <= r.Min {
		return r.Min
	}
	return min(r.Max, r.Min+(n-r.Min+r.Step-1)/r.Step*r.Step)
}

// number is a limit in the unit of the host; nothing is no limit.
func number(r *Resource, v any, field string) (uint64, error) {
	if v == nil {
		return r.Max, nil
	}
	l, err := limitOf(v)
	if err != nil {
		return 0, &FitError{field, err.Error()}
	}
	switch {
	case r.Unit == Percent && l.percent > 0:
		return l.percent, nil
	case r.Unit == Percent:
		return 0, &FitError{field, fmt.Sprintf("this host limits %s in percent: add a percentage, or mount resctrl with mba_MBps", r.Name)}
	case l.percent == 100 && l.mbps == 0:
		return r.Max, nil
	case l.mbps == 0:
		return 0, &FitError{field, fmt.Sprintf("this host limits %s in amounts (%s), and a percentage is none: add one, as in 20GBps", r.Name, r.Unit)}
	case r.Unit == EighthG:
		return min(r.Max, (l.mbps+124)/125), nil
	}
	return l.mbps, nil
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
				if v.N&r.Shareable != 0 {
					return &FitError{a.field("exclusive"), fmt.Sprintf("%s, cache id %d: devices fill ways %s: choose others", r.Name, v.Domain, waysText(v.N&r.Shareable))}
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
	get := func(s Schemata) uint64 {
		if o := s.Line(line.Resource); o != nil {
			n, _ := o.Get(v.Domain)
			return n & v.N
		}
		return 0
	}
	for i := range l.Classes {
		if b := &l.Classes[i]; b.Name != a.Name {
			if both = get(b.Schemata); both != 0 {
				return "class " + b.Name, both
			}
		}
	}
	for i := range t.Groups {
		g := &t.Groups[i]
		if g.Own() || g.Name == "" && l.Find(Default) != nil {
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
