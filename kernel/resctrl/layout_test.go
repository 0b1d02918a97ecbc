package resctrl

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel"
)

// skylake is a CPU with 11 ways, 2 of which devices fill, and bandwidth in steps of 10 %.
func skylake(domains ...int) *Tree {
	t := &Tree{Dir: "sys/fs/resctrl", Resources: []Resource{
		{Name: "L3", CLOSIDs: 16, Domains: domains, Mask: 0x7ff, MinBits: 1, Shareable: 0x600},
		{Name: "MB", CLOSIDs: 8, Domains: domains, Min: 10, Step: 10, Max: 100},
	}}
	root := Group{Mode: "shareable"}
	for _, r := range t.Resources {
		l := Line{Resource: r.Name}
		for _, id := range domains {
			l.Values = append(l.Values, Value{id, max(r.Mask, r.Max)})
		}
		root.Schemata = append(root.Schemata, l)
	}
	t.Groups = []Group{root}
	return t
}

func parse(t testing.TB, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(text), "classes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// lines are what classes come to: "gold L3:0=7f MB:0=100".
func lines(l *Layout) (all []string) {
	for i := range l.Classes {
		a := &l.Classes[i]
		all = append(all, strings.TrimSpace(a.Name+" "+strings.ReplaceAll(a.Schemata.String(), "\n", " ")))
	}
	return all
}

func TestLayout(t *testing.T) {
	t.Parallel()
	amd := skylake(0, 1)
	amd.Resources[0].Mask, amd.Resources[0].Shareable = 0xffff, 0
	amd.Resources[1] = Resource{Name: "MB", CLOSIDs: 16, Domains: []int{0, 1}, Min: 1, Step: 1, Max: 2048, Unit: EighthG}
	for name, c := range map[string]struct {
		tree *Tree
		text string
		want []string
	}{
		"the example of goresctrl": {skylake(0), `
partitions:
  exclusive:
    l3Allocation: "60%"
    mbAllocation: ["100%"]
    classes: {guaranteed: {l3Allocation: "100%"}}
  shared:
    l3Allocation: "40%"
    mbAllocation: ["50%"]
    classes:
      burstable: {l3Allocation: "100%"}
      besteffort: {l3Allocation: "50%"}
      DEFAULT: {l3Allocation: "30%"}
`, []string{
			"DEFAULT L3:0=180 MB:0=50", "besteffort L3:0=180 MB:0=50", "burstable L3:0=780 MB:0=50", "guaranteed L3:0=7f MB:0=100",
		}},
		"bits and masks, and a file of CRI Resource Manager": {skylake(0, 1), `
rdt:
  partitions:
    a: {l3Allocation: "0-4", mbAllocation: ["50%"], classes: {x: {l3schema: "0x3", mbschema: ["50%"]}}}
    b: {l3Allocation: "0x7e0", classes: {y: , z: {l3Allocation: "0-1"}}}
other: {things: 1}
`, []string{"x L3:0=3;1=3 MB:0=30;1=30", "y L3:0=7e0;1=7e0 MB:0=100;1=100", "z L3:0=60;1=60 MB:0=100;1=100"}},
		"by cache ids, ranges, ways": {skylake(0, 1, 2), `
partitions:
  a: {l3Allocation: {all: "40%", "1-2": "4 ways"}, classes: {x: , y: {l3Allocation: "50-100%"}}}
  b: {l3Allocation: "50%", mbAllocation: {all: "1%", 2: ["35%", 2000MBps]}, classes: {z: }}
`, []string{
			"x L3:0=f;1=f;2=f MB:0=100;1=100;2=100", "y L3:0=e;1=e;2=e MB:0=100;1=100;2=100", "z L3:0=1f0;1=70;2=70 MB:0=10;1=10;2=40",
		}},
		"amounts": {amd, `
partitions:
  a: {l3Allocation: "50%", mbAllocation: ["50%", "20GBps"], classes: {x: {mbAllocation: [100%]}, y: {mbAllocation: [100MBps]}}}
`, []string{"x L3:0=ff;1=ff MB:0=160;1=160", "y L3:0=ff;1=ff MB:0=1;1=1"}},
		"the least is one way": {skylake(0), `
partitions:
  a: {l3Allocation: "1%", classes: {x: {l3Allocation: "1%"}}}
  b: {l3Allocation: "99%", classes: {y: {l3Allocation: "100-100%"}}}
`, []string{"x L3:0=1 MB:0=100", "y L3:0=400 MB:0=100"}},
		"exclusive ways are none of devices": {skylake(0), `
partitions:
  a: {l3Allocation: "60%", classes: {DEFAULT: }}
  b: {l3Allocation: "3 ways", classes: {gold: {exclusive: true}}}
`, []string{"DEFAULT L3:0=78 MB:0=100", "gold L3:0=7 MB:0=100"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := parse(t, c.text).Layout(c.tree)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, lines(l)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What does not fit says how it would.
func TestDoesNotFit(t *testing.T) {
	t.Parallel()
	many := "partitions: {p: {classes: {c0: "
	for i := range 7 {
		many += fmt.Sprintf(", c%d: ", i+1)
	}
	crowded := skylake(0)
	crowded.Groups = append(crowded.Groups, Group{Name: "pod-a", Mode: "exclusive", Schemata: Schemata{{"L3", []Value{{0, 0x1f}}}, {"MB", []Value{{0, 100}}}}})
	// The guard's groups give way: they take no CLOSID, and no ways of a class that has its alone.
	guarded := skylake(0)
	guarded.Groups[0].Schemata[0].Values[0].N = 0x7fc
	guarded.Groups = append(guarded.Groups, Group{Name: GuardGroup("batch"), Schemata: Schemata{{"L3", []Value{{0, 0x7}}}, {"MB", []Value{{0, 100}}}}})
	for _, text := range []string{
		"partitions: {a: {classes: {c1: , c2: , c3: , c4: , c5: , c6: , c7: }}}",
		"partitions: {a: {l3Allocation: 2 ways, classes: {x: {exclusive: true}}}}",
	} {
		if _, err := parse(t, text).Layout(guarded); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, c := range map[string]struct {
		tree *Tree
		want string
	}{
		many + "}}}": {skylake(0), "8 classes; the CPU has 8 CLOSIDs, of which the default group has one: at most 7 classes fit, join 1 of them"},
		"partitions: {a: {l3Allocation: 60%}, b: {l3Allocation: 50%}}":                                         {skylake(0), "110% together: take 10% away"},
		"partitions: {a: {l3Allocation: '0x1800'}}":                                                            {skylake(0), "at most 7ff fits"},
		"partitions: {a: {l3Allocation: '0x5'}}":                                                               {skylake(0), "gaps"},
		"partitions: {a: {l3Allocation: 0-5}, b: {l3Allocation: 5-6}}":                                         {skylake(0), "ways 5 are another's already (partition a)"},
		"partitions: {a: {l3Allocation: 3-5}}":                                                                 {crowded, "ways 3-4 are another's already (group pod-a of another program)"},
		"partitions: {a: {l3Allocation: 7 ways}}":                                                              {crowded, "need 7 ways, each at least 1, and 6 are free"},
		"partitions: {a: {l3Allocation: 2 ways, classes: {x: {l3Allocation: 3 ways}}}}":                        {skylake(0), "3 ways: its partition has 2"},
		"partitions: {a: {mbAllocation: [20GBps], classes: {x: }}}":                                            {skylake(0), "in percent"},
		"partitions: {a: {l3Allocation: 2 ways, classes: {x: {exclusive: true}}}}":                             {skylake(0), "class DEFAULT has ways 0-1, too"},
		"partitions: {a: {l3Allocation: '0x600', classes: {x: {exclusive: true}}}, b: {classes: {DEFAULT: }}}": {skylake(0), "devices fill ways 9-10"},
		"options: {l2: {optional: false}}\npartitions: {a: {classes: {x: }}}":                                  {skylake(0), "no line L2"},
	} {
		_, err := parse(t, text).Layout(c.tree)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n%v\nwant %s", text, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"{}":                                  "there are none",
		"partitions: {a: {l3Allocation: 0%}}": "no part of a cache",
		"partitions: {a: {l3Allocation: 10-20%}}":                                    "for classes",
		"partitions: {a: {l3Allocation: lots}}":                                      "numbers of ways",
		"partitions: {a: {l3Allocation: 0 ways}}":                                    "0 ways",
		"partitions: {a: {l3Allocation: {all: {code: 50%}}}}":                        "both or none",
		"partitions: {a: {l3Allocation: {some: 50%}}}":                               "cache ids",
		"partitions: {a: {l3Allocation: {0-1: 50%, 1: 40%}}}":                        "twice",
		"partitions: {a: {mbAllocation: [50]}}":                                      "MBps",
		"partitions: {a: {mbAllocation: [0%]}}":                                      "MBps",
		"partitions: {a: {classes: {x: }}, b: {classes: {x: }}}":                     `there is a class "x" in partition "a"`,
		"partitions: {a: {classes: {a/b: }}}":                                        "not a name",
		"partitions: {a: {classes: {x: {exclusive: true}, y: }}}":                    "has other classes",
		"partitions: {a: {classes: {DEFAULT: {exclusive: true}}}}":                   "cannot be exclusive",
		"partitions: {a: {classes: {gold: }}}\nservice: {BE: glod}":                  `did you mean "gold"`,
		"partitions: {a: {classes: {gold: }}}\nservice: {best: gold}":                "class of service",
		"partitions: {a: {l3Allocation: 99999999999999999999 ways}}":                 "numbers of ways",
		"partitions: {a: {classes: {x: {l3Allocation: 60-50%}}}}":                    "rises",
		"partitions: {a: {l3Allocation: '0xfffffffffffffffffff', classes: {x: {}}}}": "numbers of ways",
	} {
		if _, err := Parse([]byte(text), "f.yaml"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n%v\nwant %s", text, err, want)
		}
	}
}

// random makes up a host and a configuration that may fit it.
func random(r *rand.Rand) (*Tree, *Config) {
	ids := []int{0, 1, 4, 9}[:1+r.IntN(4)]
	t := skylake(ids...)
	l3, mb := &t.Resources[0], &t.Resources[1]
	ways := []int{4, 8, 11, 12, 15, 16, 20, 32, 64}[r.IntN(9)]
	l3.Mask, l3.MinBits, l3.CLOSIDs = ^uint64(0)>>(64-ways), 1+r.IntN(2), 4+r.IntN(13)
	l3.Shareable, l3.Sparse = 0, r.IntN(8) == 0
	if r.IntN(2) == 0 {
		l3.Shareable = 3 << (ways - 2)
	}
	if r.IntN(3) == 0 {
		mb.Unit, mb.Min, mb.Step, mb.Max = EighthG, 1, 1, 2048
	}
	if r.IntN(4) == 0 { // code and data apart
		code := *l3
		l3.Name, code.Name = "L3DATA", "L3CODE"
		t.Resources = append([]Resource{code}, t.Resources...)
	}
	for i := range t.Groups[0].Schemata {
		t.Groups[0].Schemata[i] = Line{}
	}
	t.Groups[0].Schemata = nil
	for _, res := range t.Resources {
		line := Line{Resource: res.Name}
		for _, id := range ids {
			line.Values = append(line.Values, Value{id, max(res.Mask, res.Max)})
		}
		t.Groups[0].Schemata = append(t.Groups[0].Schemata, line)
	}
	if r.IntN(4) == 0 {
		t.Groups = append(t.Groups, Group{Name: "pod", Mode: []string{"shareable", "exclusive"}[r.IntN(2)], Schemata: Schemata{{l3.Name, []Value{{ids[0], 3}}}}})
	}
	return t, randomConfig(r, ids, ways)
}

func randomConfig(r *rand.Rand, ids []int, ways int) *Config {
	c := &Config{Partitions: map[string]Partition{}}
	one := func(most int, class bool) any {
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
	cache := func(most int, class bool) any {
		if r.IntN(6) == 0 {
			return nil
		}
		if r.IntN(4) == 0 {
			return map[string]any{"all": one(most, class), fmt.Sprint(ids[r.IntN(len(ids))]): one(most, class)}
		}
		return one(most, class)
	}
	n := 1 + r.IntN(4)
	for i := range n {
		p := Partition{L3Allocation: cache(max(1, 100/n), false), Classes: map[string]*Class{}}
		if r.IntN(2) == 0 {
			p.MBAllocation = []any{fmt.Sprintf("%d%%", 1+r.IntN(100)), fmt.Sprintf("%dMBps", 1+r.IntN(40000))}
		}
		for j := range 1 + r.IntN(4) {
			name := fmt.Sprintf("c%d%d", i, j)
			if i == 0 && j == 0 && r.IntN(2) == 0 {
				name = Default
			}
			p.Classes[name] = &Class{L3Allocation: cache(100, true)}
			if r.IntN(6) == 0 {
				p.Classes[name] = nil
			}
		}
		if len(p.Classes) == 1 && p.Classes[Default] == nil && r.IntN(4) == 0 {
			p.Classes = map[string]*Class{fmt.Sprintf("x%d", i): {Exclusive: true}}
		}
		c.Partitions[fmt.Sprintf("p%d", i)] = p
	}
	return c
}

func runs(t *testing.T, short, full int) int {
	t.Helper()
	if os.Getenv("BERTH_SIM") == "full" {
		return full
	}
	return short
}

// Of every configuration: a mask is never empty, within the cache, with ways enough and no
// gaps; partitions share no ways; there is a CLOSID for each class; the order of the
// configuration makes no difference; one class changed changes its lines only.
func TestLayoutProperties(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(19, 1))
	fits := 0
	n := runs(t, 4000, 1_000_000)
	for range n {
		tree, c := random(r)
		l, err := c.Layout(tree)
		var fit *FitError
		if err != nil {
			if !errors.As(err, &fit) || fit.Field == "" || fit.Reason == "" {
				t.Fatalf("%v: neither fits nor says why", err)
			}
			continue
		}
		fits++
		if err := check(tree, c, l); err != nil {
			t.Fatalf("%v\n%v\n%+v", err, lines(l), c)
		}
		again := &Config{Partitions: map[string]Partition{}}
		for _, name := range slices.Backward(slices.Sorted(maps.Keys(c.Partitions))) {
			again.Partitions[name] = c.Partitions[name]
		}
		if l2, err := again.Layout(tree); err != nil || !slices.Equal(lines(l), lines(l2)) {
			t.Fatalf("another order: %v, %v\nnot %v", err, lines(l2), lines(l))
		}
		for pname, p := range c.Partitions {
			for name, class := range p.Classes {
				if class != nil && class.Exclusive {
					continue
				}
				changed := &Config{Partitions: maps.Clone(c.Partitions)}
				q := p
				q.Classes = maps.Clone(p.Classes)
				q.Classes[name] = &Class{L3Allocation: "37%"}
				changed.Partitions[pname] = q
				l2, err := changed.Layout(tree)
				if err != nil {
					continue // as an exclusive class now overlaps
				}
				for i := range l.Classes {
					if l.Classes[i].Name != name && !slices.Equal(lines(l)[i:i+1], lines(l2)[i:i+1]) {
						t.Fatalf("class %s changed, and with it %v to %v", name, lines(l)[i], lines(l2)[i])
					}
				}
				break
			}
			break
		}
	}
	if fits < n/5 {
		t.Errorf("only %d of %d configurations fit: the test sees too little", fits, n)
	}
	t.Logf("%d of %d configurations fit", fits, n)
}

func check(tree *Tree, c *Config, l *Layout) error {
	classes := 0
	for i := range l.Classes {
		a := &l.Classes[i]
		if a.Name != Default {
			classes++
		}
		for _, line := range a.Schemata {
			r := tree.Find(line.Resource)
			if len(line.Values) != len(r.Domains) {
				return fmt.Errorf("%s %s: not all cache ids", a.Name, line.String())
			}
			for _, v := range line.Values {
				if !r.Cache() {
					if v.N < r.Min || v.N > r.Max || v.N != r.Max && (v.N-r.Min)%r.Step != 0 {
						return fmt.Errorf("%s %s: no step", a.Name, line.String())
					}
					continue
				}
				if v.N == 0 || v.N&^r.Mask != 0 || bits.OnesCount64(v.N) < r.MinBits || !r.Sparse && !contiguous(v.N) {
					return fmt.Errorf("%s %s: no legal mask", a.Name, line.String())
				}
				for j := range l.Classes[:i] {
					b := &l.Classes[j]
					n, _ := b.Schemata.Line(r.Name).Get(v.Domain)
					given := func(p string) bool {
						d, err := domainsOf(c.Partitions[p].L3Allocation)
						return err == nil && d.of(v.Domain) != nil
					}
					if a.Partition != b.Partition && given(a.Partition) && given(b.Partition) && n&v.N != 0 {
						return fmt.Errorf("%s and %s share ways %x", a.Name, b.Name, n&v.N)
					}
				}
				if g := tree.Group("pod"); g != nil && g.Mode == "exclusive" {
					if line := g.Schemata.Line(r.Name); line != nil {
						if n, _ := line.Get(v.Domain); n&v.N != 0 {
							return fmt.Errorf("%s has ways of the exclusive group of another program", a.Name)
						}
					}
				}
			}
		}
	}
	if classes > tree.CLOSIDs()-len(tree.Groups) {
		return fmt.Errorf("%d classes, and %d CLOSIDs", classes, tree.CLOSIDs())
	}
	return nil
}

// From every layout to every other, no two partitions share ways on the way that they do not
// share before or after, no write repeats what is there, and all ends as it is to be.
func TestPlanProperties(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(19, 2))
	moves, forced := 0, 0
	for range runs(t, 3000, 200_000) {
		tree, c := random(r)
		l, err := c.Layout(tree)
		if err != nil {
			continue
		}
		after := randomConfig(r, tree.Resources[0].Domains, tree.Resources[0].Ways())
		for pname, p := range after.Partitions { // the same classes, in other places
			if was, ok := c.Partitions[pname]; ok {
				p.Classes = was.Classes
				after.Partitions[pname] = p
			}
		}
		to, err := after.Layout(tree)
		if err != nil {
			continue
		}
		play(t, tree, l.Plan(tree, c.Names()), nil)
		moves++
		plan := to.Plan(tree, after.Names())
		if slices.ContainsFunc(plan, func(s kernel.Step) bool { return strings.Contains(s.Why, "for a moment") }) {
			forced++
			continue
		}
		play(t, tree, plan, to)
		for i := range to.Classes {
			a := &to.Classes[i]
			if g := tree.Group(a.Group()); g == nil || !covers(g.Schemata, a.Schemata) {
				t.Fatalf("class %s has not what it is to have: %v\n%v", a.Name, g, plan)
			}
		}
		if again := to.Plan(tree, after.Names()); len(again) != 0 {
			t.Fatalf("planned again: %v", again)
		}
	}
	if forced > moves/4 {
		t.Errorf("%d of %d moves shared ways for a moment", forced, moves)
	}
	t.Logf("%d moves, %d with a full cache", moves, forced)
}

// play carries out a plan on a tree; with a layout, it checks each state.
func play(t *testing.T, tree *Tree, plan kernel.Plan, l *Layout) {
	t.Helper()
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
			t.Fatalf("%v: there is no such group", s)
		}
		if strings.HasSuffix(s.Path, "/mode") {
			g.Mode = s.Value
			continue
		}
		lines, err := ParseSchemata(s.Value)
		if err != nil || len(lines) != 1 {
			t.Fatalf("%v: %v", s, err)
		}
		line := g.Schemata.Line(lines[0].Resource)
		if line.String() == lines[0].String() {
			t.Fatalf("%v: it is there already", s)
		}
		*line = lines[0]
		if l == nil {
			continue
		}
		for _, v := range line.Values {
			r := tree.Find(line.Resource)
			if r.Cache() && (bits.OnesCount64(v.N) < r.MinBits || v.N&^r.Mask != 0 || !r.Sparse && !contiguous(v.N)) {
				t.Fatalf("%v: no legal mask", s)
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
					t.Fatalf("%v: %s and %s share ways %x\n%v", s, a.Name, b.Name, both, plan)
				}
			}
		}
	}
}

// Two classes change places by way of the ways that are free.
func TestPlanSwaps(t *testing.T) {
	t.Parallel()
	tree := skylake(0)
	two := func(a, b string) *Layout {
		l, err := parse(t, fmt.Sprintf("partitions: {a: {l3Allocation: %s, classes: {x: }}, b: {l3Allocation: %s, classes: {y: }}}", a, b)).Layout(tree)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	play(t, tree, two("0-4", "5-9").Plan(tree, []string{"x", "y"}), nil)
	plan := two("5-9", "0-4").Plan(tree, []string{"x", "y"})
	play(t, tree, plan, two("5-9", "0-4"))
	if len(plan) > 5 {
		t.Errorf("%d writes to change places:\n%v", len(plan), plan)
	}
	if plan := two("5-9", "0-3").Plan(tree, []string{"x", "y"}); len(plan) != 1 || plan[0].Value != "L3:0=f" || plan[0].Path != "sys/fs/resctrl/berth-y/schemata" {
		t.Errorf("one class changes:\n%v", plan)
	}
}

// 16 classes on 8 cache ids.
func big() (*Tree, *Config) {
	t := skylake(0, 1, 2, 3, 4, 5, 6, 7)
	t.Resources[0].CLOSIDs, t.Resources[1].CLOSIDs, t.Resources[0].Mask = 32, 32, 0xfffff
	c := &Config{Partitions: map[string]Partition{}}
	for i := range 4 {
		p := Partition{L3Allocation: "25%", MBAllocation: []any{"80%"}, Classes: map[string]*Class{}}
		for j := range 4 {
			p.Classes[fmt.Sprintf("c%d%d", i, j)] = &Class{L3Allocation: fmt.Sprintf("%d%%", 25*(j+1)), MBAllocation: []any{"50%"}}
		}
		c.Partitions[fmt.Sprintf("p%d", i)] = p
	}
	return t, c
}

func BenchmarkLayout(b *testing.B) {
	t, c := big()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Layout(t); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	t, c := big()
	l, err := c.Layout(t)
	if err != nil {
		b.Fatal(err)
	}
	names := c.Names()
	b.ReportAllocs()
	for b.Loop() {
		if plan := l.Plan(t, names); len(plan) == 0 {
			b.Fatal("nothing to write")
		}
	}
}

func clone(s Schemata) Schemata {
	c := slices.Clone(s)
	for i := range c {
		c[i].Values = slices.Clone(c[i].Values)
	}
	return c
}
