package resctrl

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"berth.dev/berth/kernel"
)

// random makes up a host and a configuration that may fit it.
func random(r *rand.Rand) (*Tree, *Config) {
	ids := []int{0, 1, 4, 9}[:1+r.IntN(4)]
	ways := []int{4, 8, 11, 12, 15, 16, 20, 32, 64}[r.IntN(9)]
	l3 := Resource{Name: "L3", CLOSIDs: 4 + r.IntN(13), Domains: ids, Mask: ^uint64(0) >> (64 - ways), MinBits: 1 + r.IntN(2), Sparse: r.IntN(8) == 0}
	switch r.IntN(8) {
	case 0, 1, 2, 3:
		l3.Shareable = 3 << (ways - 2)
	case 4:
		l3.Shareable = l3.Mask // as with MPAM
	}
	mb := Resource{Name: "MB", CLOSIDs: 8 + 8*r.IntN(2), Domains: ids, Max: 100}
	switch r.IntN(6) {
	case 0, 1:
		mb.Unit, mb.Min, mb.Step, mb.Max = EighthG, 1, 1, 2048
	case 2:
		mb.Unit, mb.Min, mb.Step, mb.Max = MBps, 1, 1, 1<<32-1
	default:
		mb.Min = []uint64{10, 10, 5, 1}[r.IntN(4)]
		mb.Step = mb.Min
	}
	t := &Tree{Dir: "sys/fs/resctrl", Resources: []Resource{l3, mb}}
	if r.IntN(4) == 0 {
		code, data := l3, l3
		code.Name, data.Name = "L3CODE", "L3DATA"
		t.Resources = []Resource{code, data, mb}
	}
	if r.IntN(4) == 0 { // a cache of each core
		l2 := Resource{Name: "L2", CLOSIDs: 8, Domains: []int{0, 1, 2, 3, 8, 9}, Mask: 0xff, MinBits: 1}
		if t.Resources = append(t.Resources, l2); r.IntN(3) == 0 {
			t.Resources[len(t.Resources)-1].Name, l2.Name = "L2CODE", "L2DATA"
			t.Resources = append(t.Resources, l2)
		}
	}
	t.Groups = []Group{{Mode: "shareable", Schemata: full(t)}}
	for i, name := range []string{"pod", "job"} { // the one has some of the lower ways, the other of the upper ones
		if r.IntN(4) == 0 {
			t.add(name, []string{"shareable", "exclusive", "pseudo-locked"}[r.IntN(3)], func(half int) int { return i*half + r.IntN(half-1) })
		}
	}
	return t, randomConfig(r, t)
}

// full is what a group has that may have everything.
func full(t *Tree) (all Schemata) {
	for i := range t.Resources {
		r := &t.Resources[i]
		l := Line{Resource: r.Name}
		for _, id := range r.Domains {
			l.Values = append(l.Values, Value{id, max(r.Mask, r.Max)})
		}
		all = append(all, l)
	}
	return all
}

// add adds a group of another program with two ways of each cache, from one on that is told of
// half its ways; those that are its alone are no longer the default group's.
func (t *Tree) add(name, mode string, from func(half int) int) {
	g := Group{Name: name, Mode: mode, Schemata: full(t)}
	for i := range t.Resources {
		r, l, root := &t.Resources[i], &g.Schemata[i], &t.Groups[0].Schemata[i]
		if !r.Cache() {
			continue
		}
		ways := uint64(3) << from(r.Ways()/2)
		for j := range l.Values {
			if l.Values[j].N = ways; mode != "shareable" {
				root.Values[j].N = largest(root.Values[j].N&^ways, r.Sparse)
			}
		}
	}
	if mode == "pseudo-locked" { // it shows its one region, and nothing else
		g.Schemata = Schemata{{t.cache("L3").Name, g.Schemata.Line(t.cache("L3").Name).Values[:1]}}
	}
	t.Groups = append(t.Groups, g)
}

// cache is the first line of a level, nil if there is none.
func (t *Tree) cache(level string) *Resource {
	i := slices.IndexFunc(t.Resources, func(r Resource) bool { return r.Level() == level })
	if i < 0 {
		return nil
	}
	return &t.Resources[i]
}

// randomAllocation is of a cache, of at most so many percent; nil is nothing said.
func randomAllocation(r *rand.Rand, cache *Resource, most int, class bool) any {
	ways := cache.Ways()
	one := func() any {
		switch n := 1 + r.IntN(most); r.IntN(8) {
		case 0:
			return fmt.Sprintf("%d ways", 1+r.IntN(max(1, ways/3)))
		case 1:
			lo := r.IntN(ways)
			return fmt.Sprintf("%d-%d", lo, lo+r.IntN(max(1, ways-lo)))
		case 2:
			if class {
				return fmt.Sprintf("%d-100%%", r.IntN(100))
			}
			return fmt.Sprintf("%d%%", n)
		case 3:
			return map[string]any{"unified": fmt.Sprintf("%d%%", n), "code": fmt.Sprintf("%d%%", 1+r.IntN(most)), "data": fmt.Sprintf("%d%%", 1+r.IntN(most))}
		default:
			return fmt.Sprintf("%d%%", n)
		}
	}
	switch r.IntN(12) {
	case 0, 1:
		return nil
	case 2, 3, 4:
		return map[string]any{"all": one(), fmt.Sprint(cache.Domains[r.IntN(len(cache.Domains))]): one()}
	}
	return one()
}

func randomClass(r *rand.Rand, t *Tree) *Class {
	c := &Class{L3Allocation: randomAllocation(r, t.cache("L3"), 100, true)}
	if l2 := t.cache("L2"); l2 != nil {
		c.L2Allocation = randomAllocation(r, l2, 100, true)
	}
	if r.IntN(3) == 0 {
		c.MBAllocation = []any{fmt.Sprintf("%d%%", 1+r.IntN(100)), fmt.Sprintf("%dMBps", 1+r.IntN(40000))}
	}
	return c
}

func randomConfig(r *rand.Rand, t *Tree) *Config {
	c := &Config{Partitions: map[string]Partition{}}
	n := 1 + r.IntN(4)
	for i := range n {
		p := Partition{L3Allocation: randomAllocation(r, t.cache("L3"), max(1, 100/n), false), Classes: map[string]*Class{}}
		if l2 := t.cache("L2"); l2 != nil {
			p.L2Allocation = randomAllocation(r, l2, max(1, 100/n), false)
		}
		if r.IntN(2) == 0 {
			p.MBAllocation = []any{fmt.Sprintf("%d%%", 1+r.IntN(100)), fmt.Sprintf("%dMBps", 1+r.IntN(40000))}
		}
		for j := range 1 + r.IntN(4) {
			name := fmt.Sprintf("c%d%d", i, j)
			if i == 0 && j == 0 && r.IntN(2) == 0 {
				name = Default
			}
			if p.Classes[name] = randomClass(r, t); r.IntN(6) == 0 {
				p.Classes[name] = nil
			}
		}
		if i > 0 && r.IntN(4) == 0 {
			p.Classes = map[string]*Class{fmt.Sprintf("x%d", i): {Exclusive: true}}
		}
		c.Partitions[fmt.Sprintf("p%d", i)] = p
	}
	return c
}

// eachRandom checks so many random cases, all of them with BERTH_SIM=full, in parts that run
// beside each other. Each has its number, by which it comes again.
func eachRandom(t *testing.T, short, full int, one func(r *rand.Rand) error) (n int) {
	t.Helper()
	if n = short; os.Getenv("BERTH_SIM") == "full" {
		n = full
	}
	const parts = 16
	t.Run("random", func(t *testing.T) {
		for part := range parts {
			t.Run(fmt.Sprint(part), func(t *testing.T) {
				t.Parallel()
				for number := part; number < n; number += parts {
					if err := one(rand.New(rand.NewPCG(19, uint64(number)))); err != nil {
						t.Fatalf("case %d: %v", number, err)
					}
				}
			})
		}
	})
	return n
}

// Of every configuration: it fits, or the error says what does not; a mask is never empty, within
// the cache, with ways enough and no gaps; partitions share no ways, nor does anybody with an
// exclusive class; there is a CLOSID for each class; the order of what the kernel tells makes no
// difference; one class changed changes its lines only, by one write each.
func TestLayoutProperties(t *testing.T) {
	t.Parallel()
	var fits, exclusive, changes atomic.Int64
	n := eachRandom(t, 4000, 4_000_000, func(r *rand.Rand) error {
		tree, c := random(r)
		l, err := c.Layout(tree)
		other, errOther := c.Layout(shuffled(r, tree))
		if fit := (*FitError)(nil); err != nil {
			if !errors.As(err, &fit) || fit.Field == "" || fit.Reason == "" {
				return fmt.Errorf("%w: neither fits nor says why", err)
			}
			if errOther == nil {
				return fmt.Errorf("%w; but it fits in another order", err)
			}
			return nil
		}
		fits.Add(1)
		if slices.ContainsFunc(l.Classes, func(a Assigned) bool { return a.Exclusive }) {
			exclusive.Add(1)
		}
		if err := cmp.Or(check(tree, c, l), alone(tree, c, l)); err != nil {
			return fmt.Errorf("%w\n%v\n%+v", err, lines(l), c)
		}
		if errOther != nil {
			return fmt.Errorf("another order: %w", errOther)
		}
		if who := differing(l, other); who != "" {
			return fmt.Errorf("another order: %s has another part: %v\nnot %v", who, lines(other), lines(l))
		}
		changed, err := changeOne(r, tree, c, l)
		if changed {
			changes.Add(1)
		}
		return err
	})
	t.Logf("%d of %d configurations fit, %d with exclusive classes; %d times one class was another", fits.Load(), n, exclusive.Load(), changes.Load())
	if int(fits.Load()) < n/5 || int(exclusive.Load()) < n/100 || int(changes.Load()) < n/10 {
		t.Error("the test sees too little")
	}
}

// alone returns what the last cache has otherwise than if it were the only one.
func alone(tree *Tree, c *Config, l *Layout) error {
	r := tree.cache("L3")
	id := r.Domains[len(r.Domains)-1]
	one := *tree
	one.Resources = slices.Clone(tree.Resources)
	one.cache("L3").Domains = []int{id}
	of, err := c.Layout(&one)
	if err != nil {
		return fmt.Errorf("cache %d alone: %w", id, err)
	}
	for i := range l.Classes {
		is, _ := l.Classes[i].Schemata.Line(r.Name).Get(id)
		if n, _ := of.Classes[i].Schemata.Line(r.Name).Get(id); n != is {
			return fmt.Errorf("%s has ways %x of cache %d, and %x if there is no other", l.Classes[i].Name, is, id, n)
		}
	}
	return nil
}

// Where devices have a class of their own, there is one class less, and what is exclusive has none of
// the ways that devices fill, which differ from cache to cache.
func TestDeviceProperties(t *testing.T) {
	t.Parallel()
	var fits, exclusive, full atomic.Int64
	n := eachRandom(t, 4000, 400_000, func(r *rand.Rand) error {
		tree, c := random(r)
		for i := range tree.Resources {
			res := &tree.Resources[i]
			for _, id := range res.Domains {
				if res.Level() == "L3" {
					res.Devices = append(res.Devices, Value{id, 3 << (uint(id) % uint(res.Ways()-2)) & res.Mask})
				}
			}
		}
		l, err := c.Layout(tree)
		if fit := (*FitError)(nil); err != nil {
			if !errors.As(err, &fit) {
				return fmt.Errorf("%w: neither fits nor says why", err)
			}
			if strings.Contains(fit.Reason, "io_alloc") {
				full.Add(1)
			}
			return nil
		}
		fits.Add(1)
		if slices.ContainsFunc(l.Classes, func(a Assigned) bool { return a.Exclusive }) {
			exclusive.Add(1)
		}
		return cmp.Or(check(tree, c, l), alone(tree, c, l))
	})
	t.Logf("%d of %d configurations fit, %d with exclusive classes; of %d the CPU has too few CLOSIDs", fits.Load(), n, exclusive.Load(), full.Load())
	if int(fits.Load()) < n/5 || int(exclusive.Load()) < n/200 || full.Load() == 0 {
		t.Error("the test sees too little")
	}
}

// check returns what is wrong with a layout.
func check(tree *Tree, c *Config, l *Layout) error {
	classes := 0
	for i := range l.Classes {
		if l.Classes[i].Name != Default {
			classes++
		}
	}
	if classes > tree.CLOSIDs()-len(tree.Groups) {
		return fmt.Errorf("%d classes, and %d CLOSIDs", classes, tree.CLOSIDs())
	}
	for i := range tree.Resources {
		r := &tree.Resources[i]
		given := map[string]byDomain{}
		for name, p := range c.Partitions {
			allocation := p.L3Allocation
			if r.Level() == "L2" {
				allocation = p.L2Allocation
			}
			d, err := domainsOf(allocation)
			if err != nil {
				return err
			}
			given[name] = d
		}
		for i := range l.Classes {
			a := &l.Classes[i]
			line := a.Schemata.Line(r.Name)
			if line == nil || len(line.Values) != len(r.Domains) {
				return fmt.Errorf("%s %s: not all cache ids", a.Name, r.Name)
			}
			for _, v := range line.Values {
				if err := checkValue(r, v.N); err != nil {
					return fmt.Errorf("%s %s: %w", a.Name, line.String(), err)
				}
				if !r.Cache() {
					continue
				}
				of := given[a.Partition]
				for j := range l.Classes[:i] {
					b := &l.Classes[j]
					n, _ := b.Schemata.Line(r.Name).Get(v.Domain)
					theirs := given[b.Partition]
					if a.Partition != b.Partition && n&v.N != 0 && of.of(v.Domain) != nil && theirs.of(v.Domain) != nil {
						return fmt.Errorf("%s and %s share ways %x", a.Name, b.Name, n&v.N)
					}
				}
				if err := checkAlone(tree, l, a, r, v); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// checkValue returns why the kernel would refuse a number.
func checkValue(r *Resource, n uint64) error {
	switch {
	case !r.Cache() && (n < r.Min || n > r.Max || n != r.Max && (n-r.Min)%r.Step != 0):
		return errors.New("no step")
	case r.Cache() && (n == 0 || n&^r.Mask != 0 || bits.OnesCount64(n) < r.MinBits || !r.Sparse && !contiguous(n)):
		return errors.New("no legal mask")
	}
	return nil
}

// checkAlone returns who shares ways that are somebody's alone, with code or data.
func checkAlone(tree *Tree, l *Layout, a *Assigned, r *Resource, v Value) error {
	level := r.Level()
	for i := range tree.Groups {
		g := &tree.Groups[i]
		switch both := g.Schemata.filled(level, v.Domain) & v.N; {
		case both == 0:
		case g.Mode != "shareable":
			return fmt.Errorf("%s has ways %x, which are group %s's alone", a.Name, both, g.Name)
		case a.Exclusive && (g.Name != "" || l.Find(Default) == nil):
			return fmt.Errorf("%s is exclusive, and group %q has ways %x, too", a.Name, g.Name, both)
		}
	}
	if !a.Exclusive {
		return nil
	}
	if both := v.N & r.Filled(v.Domain); both != 0 {
		return fmt.Errorf("%s is exclusive, and devices fill ways %x", a.Name, both)
	}
	for i := range l.Classes {
		if b := &l.Classes[i]; b != a && b.Schemata.filled(level, v.Domain)&v.N != 0 {
			return fmt.Errorf("%s is exclusive, and shares ways with %s", a.Name, b.Name)
		}
	}
	return nil
}

// shuffled is a host of which the kernel tells the same in another order. The default group is
// always the first.
func shuffled(r *rand.Rand, t *Tree) *Tree {
	other := *t
	other.Resources, other.Groups = slices.Clone(t.Resources), slices.Clone(t.Groups)
	r.Shuffle(len(other.Resources), func(i, j int) { other.Resources[i], other.Resources[j] = other.Resources[j], other.Resources[i] })
	rest := other.Groups[1:]
	r.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	for i := range other.Groups {
		lines := slices.Clone(other.Groups[i].Schemata)
		r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		other.Groups[i].Schemata = lines
	}
	return &other
}

// differing is the first class that has not the same in two layouts, but for those named.
func differing(l, other *Layout, but ...string) string {
	if len(l.Classes) != len(other.Classes) {
		return "their number"
	}
	for i := range l.Classes {
		a, b := &l.Classes[i], &other.Classes[i]
		if slices.Contains(but, a.Name) && a.Name == b.Name {
			continue
		}
		same := a.Name == b.Name && len(a.Schemata) == len(b.Schemata)
		for _, line := range a.Schemata {
			theirs := b.Schemata.Line(line.Resource)
			same = same && theirs != nil && slices.Equal(line.Values, theirs.Values)
		}
		if !same {
			return a.Name
		}
	}
	return ""
}

// changeOne has one class ask for something else, where the layout is in force, and reports
// whether that fits.
func changeOne(r *rand.Rand, tree *Tree, c *Config, l *Layout) (fits bool, err error) {
	a := &l.Classes[r.IntN(len(l.Classes))]
	if a.Exclusive {
		return false, nil
	}
	other := &Config{Partitions: maps.Clone(c.Partitions)}
	p := c.Partitions[a.Partition]
	p.Classes = maps.Clone(p.Classes)
	p.Classes[a.Name] = randomClass(r, tree)
	other.Partitions[a.Partition] = p
	to, err := other.Layout(tree)
	if err != nil {
		return false, nil // its partition has less, or it shares ways with an exclusive class
	}
	if who := differing(l, to, a.Name); who != "" {
		return true, fmt.Errorf("class %s changed, and with it %s: %v to %v", a.Name, who, lines(l), lines(to))
	}
	writes := 0
	for _, line := range to.Find(a.Name).Schemata {
		if !slices.Equal(line.Values, a.Schemata.Line(line.Resource).Values) {
			writes++
		}
	}
	plan := to.Plan(l.inForce(tree), c.Names())
	if len(plan) != writes || slices.ContainsFunc(plan, func(s kernel.Step) bool { return s.Path != path.Join(tree.Dir, a.Group(), "schemata") }) {
		return true, fmt.Errorf("class %s changed in %d lines, and the plan is\n%v", a.Name, writes, plan)
	}
	return true, nil
}

// inForce is a host on which a layout is in force.
func (l *Layout) inForce(t *Tree) *Tree {
	there := *t
	there.Groups = slices.Clone(t.Groups)
	for i := range l.Classes {
		g := Group{Name: l.Classes[i].Group(), Mode: "shareable", Schemata: l.Classes[i].Schemata}
		if l.Classes[i].Exclusive {
			g.Mode = "exclusive"
		}
		if g.Name == "" {
			there.Groups[0] = g
		} else {
			there.Groups = append(there.Groups, g)
		}
	}
	return &there
}

// From every layout to every other, no two partitions share ways on the way that they do not
// share before or after, no write repeats what is there, and all ends as it is to be.
func TestPlanProperties(t *testing.T) {
	t.Parallel()
	var moves, forced atomic.Int64
	eachRandom(t, 3000, 1_000_000, func(r *rand.Rand) error {
		tree, c := random(r)
		l, err := c.Layout(tree)
		if err != nil {
			return nil
		}
		after := randomConfig(r, tree)
		for pname, p := range after.Partitions { // the same classes, in other places
			if was, ok := c.Partitions[pname]; ok {
				p.Classes = was.Classes
				after.Partitions[pname] = p
			}
		}
		to, err := after.Layout(tree)
		if err != nil {
			return nil
		}
		if err := play(tree, l.Plan(tree, c.Names()), nil); err != nil {
			return err
		}
		moves.Add(1)
		plan := to.Plan(tree, after.Names())
		if slices.ContainsFunc(plan, func(s kernel.Step) bool { return strings.Contains(s.Why, "for a moment") }) {
			forced.Add(1)
			return nil
		}
		if err := play(tree, plan, to); err != nil {
			return err
		}
		for i := range to.Classes {
			a := &to.Classes[i]
			if g := tree.Group(a.Group()); g == nil || !covers(g.Schemata, a.Schemata) {
				return fmt.Errorf("class %s has not what it is to have: %v\n%v", a.Name, g, plan)
			}
		}
		if again := to.Plan(tree, after.Names()); len(again) != 0 {
			return fmt.Errorf("planned again: %v", again)
		}
		return nil
	})
	if forced.Load() > moves.Load()/4 {
		t.Errorf("%d of %d moves shared ways for a moment", forced.Load(), moves.Load())
	}
	t.Logf("%d moves, %d with a full cache", moves.Load(), forced.Load())
}

// play carries out a plan on a tree; with a layout, it checks each state.
func play(tree *Tree, plan kernel.Plan, l *Layout) error {
	start := map[string]Schemata{}
	for _, g := range tree.Groups {
		start[g.Name] = clone(g.Schemata)
	}
	settled := func(name string) bool { _, ok := start[name]; return ok }
	for _, s := range plan {
		name := strings.TrimPrefix(strings.TrimPrefix(s.Path, tree.Dir), "/")
		if s.Op == kernel.Mkdir {
			tree.Groups = append(tree.Groups, Group{Name: name, Mode: "shareable", Schemata: fresh(tree)})
			continue
		}
		i := strings.LastIndexByte(name, '/')
		g := tree.Group(name[:max(i, 0)])
		if g == nil {
			return fmt.Errorf("%v: there is no such group", s)
		}
		if strings.HasSuffix(s.Path, "/mode") {
			g.Mode = s.Value
			continue
		}
		lines, err := ParseSchemata(s.Value)
		if err != nil || len(lines) != 1 {
			return fmt.Errorf("%v: %w", s, err)
		}
		line := g.Schemata.Line(lines[0].Resource)
		if line.String() == lines[0].String() {
			return fmt.Errorf("%v: it is there already", s)
		}
		*line = lines[0]
		if l == nil {
			continue
		}
		for _, v := range line.Values {
			r := tree.Find(line.Resource)
			if r.Cache() && (bits.OnesCount64(v.N) < r.MinBits || v.N&^r.Mask != 0 || !r.Sparse && !contiguous(v.N)) {
				return fmt.Errorf("%v: no legal mask", s)
			}
			a := l.Find(g.Class())
			for j := range tree.Groups {
				o := &tree.Groups[j]
				b := l.Find(o.Class())
				if !r.Cache() || a == nil || b == nil || a.Partition == b.Partition || o == g || !settled(o.Name) || !settled(g.Name) {
					continue
				}
				get := func(s Schemata) uint64 { n, _ := s.Line(r.Name).Get(v.Domain); return n }
				allowed := get(start[g.Name])&get(start[o.Name]) | get(a.Schemata)&get(b.Schemata)
				if both := v.N & get(o.Schemata); both&^allowed != 0 {
					return fmt.Errorf("%v: %s and %s share ways %x\n%v", s, a.Name, b.Name, both, plan)
				}
			}
		}
	}
	return nil
}

func clone(s Schemata) Schemata {
	c := slices.Clone(s)
	for i := range c {
		c[i].Values = slices.Clone(c[i].Values)
	}
	return c
}
