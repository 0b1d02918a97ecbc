package resctrl

import (
	"errors"
	"fmt"
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
	t.Groups = []Group{{Mode: "shareable", Schemata: full(t)}}
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

// fitting is a file, and what its classes come to on a machine.
type fitting struct {
	tree *Tree
	text string
	want []string
}

func (c fitting) try(t *testing.T) {
	t.Parallel()
	l, err := parse(t, c.text).Layout(c.tree)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c.want, lines(l)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLayout(t *testing.T) {
	t.Parallel()
	amd := skylake(0, 1)
	amd.Resources[0].Mask, amd.Resources[0].Shareable = 0xffff, 0
	amd.Resources[1] = Resource{Name: "MB", CLOSIDs: 16, Domains: []int{0, 1}, Min: 1, Step: 1, Max: 2048, Unit: EighthG}
	for name, c := range map[string]fitting{
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
		t.Run(name, c.try)
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
	odd := skylake(0)
	odd.add("pod-a", "exclusive", func(int) int { return 3 })
	cdp := skylake(0)
	cdp.Resources = append([]Resource{cdp.Resources[0]}, cdp.Resources...)
	cdp.Resources[0].Name, cdp.Resources[1].Name = "L3CODE", "L3DATA"
	cdp.Groups[0].Schemata = full(cdp)
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
		// Code lies in the same ways as data, so ways that are a class's alone are nobody's for either.
		"partitions: {a: {l3Allocation: {all: {code: 0-1, data: 2-3, unified: 0-3}}, classes: {x: {exclusive: true}}}, b: {l3Allocation: {all: {code: 3-5, data: 4-5, unified: 4-5}}, classes: {DEFAULT: }}}": {cdp, "class DEFAULT has ways 3, too"},
		"partitions: {a: {l3Allocation: 3 ways}, b: {l3Allocation: 4 ways}}": {odd, "need 7 ways, each at least 1, and 6 are free"},
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
		"partitions: {a: {classes: {DEFAULT: {mode: exclusive}}}}":                   "cannot be exclusive",
		"partitions: {a: {classes: {x: {mode: exclusive}, y: }}}":                    "has other classes",
		"partitions: {a: {classes: {x: {mode: shareable, exclusive: true}}}}":        "says that it is not",
		"partitions: {a: {classes: {x: {mode: private}}}}":                           "no mode",
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

// Pseudo-locking is refused where it is asked for, with the reason and what to do instead; the other
// modes mean what Exclusive does.
func TestModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"pseudo-locksetup", "pseudo-locked"} {
		_, err := Parse([]byte("partitions:\n  a:\n    classes:\n      x: {mode: "+mode+"}\n"), "f.yaml")
		no, ok := errors.AsType[*kernel.NotSupportedError](err)
		if !ok || no.Reason == "" || no.Remedy == "" || !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "partitions.a.classes.x.mode: cache pseudo-locking: not supported: ") {
			t.Errorf("%s: %v", mode, err)
		}
	}
	for mode, want := range map[string]bool{"": false, "shareable": false, "exclusive": true} {
		layout, err := parse(t, "partitions: {a: {l3Allocation: 4 ways, classes: {x: {mode: '"+mode+"'}}}, b: {l3Allocation: 4 ways, classes: {DEFAULT: }}}").Layout(skylake(0))
		if err != nil || layout.Find("x").Exclusive != want {
			t.Errorf("%q: %+v, %v", mode, layout, err)
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
	err := play(tree, two("0-4", "5-9").Plan(tree, []string{"x", "y"}), nil)
	plan := two("5-9", "0-4").Plan(tree, []string{"x", "y"})
	if err = errors.Join(err, play(tree, plan, two("5-9", "0-4"))); err != nil {
		t.Error(err)
	}
	if len(plan) > 5 {
		t.Errorf("%d writes to change places:\n%v", len(plan), plan)
	}
	if plan := two("5-9", "0-3").Plan(tree, []string{"x", "y"}); len(plan) != 1 || plan[0].Value != "L3:0=f" || plan[0].Path != "sys/fs/resctrl/berth-y/schemata" {
		t.Errorf("one class changes:\n%v", plan)
	}
}
