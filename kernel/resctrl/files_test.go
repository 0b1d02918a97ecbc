package resctrl

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
)

// twenty is a CPU with 20 ways of L3, as the examples of goresctrl have it, in caches 0 to 3, with
// an L2 of 16 ways beside it.
func twenty() *Tree {
	t := skylake(0, 1, 2, 3)
	t.Resources[0].Mask, t.Resources[0].Shareable = 0xfffff, 0
	t.Resources = append(t.Resources, Resource{Name: "L2", CLOSIDs: 8, Domains: []int{0}, Mask: 0xffff, MinBits: 1})
	t.Groups[0].Schemata = full(t)
	return t
}

// The examples that goresctrl and CRI Resource Manager document load, and come to the masks that
// follow from what is said there: percentages of a partition are rounded down, the smallest first,
// the last has the rest; bits of a class count from its partition's lowest.
func TestFilesOfOthers(t *testing.T) {
	t.Parallel()
	cdp, mbps := twenty(), twenty()
	code, data := cdp.Resources[0], cdp.Resources[0]
	code.Name, data.Name = "L3CODE", "L3DATA"
	cdp.Resources = append([]Resource{code, data}, cdp.Resources[1:]...)
	cdp.Groups[0].Schemata = full(cdp)
	mb := &mbps.Resources[1]
	mb.Unit, mb.Min, mb.Step, mb.Max = MBps, 1, 1, 1<<32-1
	const all = "MB:0=100;1=100;2=100;3=100 "
	const cacheIDs = `
partitions:
  exclusive: {l3Allocation: "60%", mbAllocation: ["100%"], classes: {guaranteed: }}
  shared:
    l3Allocation: {all: "40%", 2-3: "20%"}
    mbAllocation: ["100%"]
    classes:
      burstable:
        l3Allocation: {all: {unified: "100%", code: "100%", data: "80%"}}
        mbAllocation: {all: ["80%"], 2-3: ["50%"]}
`
	const masks = `
partitions:
  exclusive: {l3Allocation: "8-19", mbAllocation: ["100%", "100000MBps"], classes: {guaranteed: }}
  shared:
    l3Allocation: "0xff"
    mbAllocation: ["50%", "2000MBps"]
    classes:
      burstable:
      besteffort: {l3Allocation: "50%", mbAllocation: ["50%", "1000MBps"]}
`
	const sample = `
options: {l2: {optional: true}, l3: {optional: true}, mb: {optional: true}}
partitions:
  default:
    l2Allocation: "100%"
    l3Allocation: "100%"
    mbAllocation: ["100%", "4000000000MBps"]
    classes:
      Guaranteed: {l3Allocation: "100%", l2Allocation: "100%", mbAllocation: ["100%", "4000000000MBps"]}
      Burstable: {l3Allocation: "60%", l2Allocation: "60%", mbAllocation: ["60%", "10000MBps"]}
      Besteffort: {l3Allocation: "30%", l2Allocation: "30%", mbAllocation: ["30%", "4000MBps"]}
`
	const l3schema = `
options: {monitoringDisabled: false, l3: {optional: true}, mb: {optional: true}}
partitions:
  default:
    l3Allocation: {all: 100%}
    mbAllocation: {all: [100%]}
    classes:
      Guaranteed: {l3schema: {all: "100%"}, mbschema: {all: [100%], 1-3: [80%, 10000MBps]}}
      Burstable: {l3schema: {all: {unified: "66%", code: "100%", data: "50%"}}, mbschema: [66%, 5000MBps]}
      BestEffort: {l3schema: {all: {unified: "33%"}}}
      SYSTEM_DEFAULT: {l3schema: "50%"}
`
	for name, c := range map[string]fitting{
		"goresctrl, doc/rdt.md: two partitions": {twenty(), `
options: {l2: {optional: true}, l3: {optional: true}, mb: {optional: true}}
partitions:
  exclusive:
    l2Allocation: "80%"
    l3Allocation: "60%"
    mbAllocation: ["100%"]
    classes: {guaranteed: {l2Allocation: "100%", l3Allocation: "100%"}}
  shared:
    l2Allocation: "20%"
    l3Allocation: "40%"
    mbAllocation: ["50%"]
    classes:
      burstable: {l2Allocation: "100%", l3Allocation: "100%"}
      besteffort: {l2Allocation: "100%", l3Allocation: "50%", kubernetes: {denyPodAnnotation: true}}
      DEFAULT: {l2Allocation: "50%", l3Allocation: "30%"}
`, []string{
			"DEFAULT L3:0=7000;1=7000;2=7000;3=7000 MB:0=50;1=50;2=50;3=50 L2:0=6000",
			"besteffort L3:0=f000;1=f000;2=f000;3=f000 MB:0=50;1=50;2=50;3=50 L2:0=e000",
			"burstable L3:0=ff000;1=ff000;2=ff000;3=ff000 MB:0=50;1=50;2=50;3=50 L2:0=e000",
			"guaranteed L3:0=fff;1=fff;2=fff;3=fff " + all + "L2:0=1fff",
		}},
		"goresctrl, doc/rdt.md: by cache ids": {twenty(), cacheIDs, []string{
			"burstable L3:0=ff000;1=ff000;2=f000;3=f000 MB:0=80;1=80;2=50;3=50 L2:0=ffff",
			"guaranteed L3:0=fff;1=fff;2=fff;3=fff " + all + "L2:0=ffff",
		}},
		"goresctrl, doc/rdt.md: code and data": {cdp, cacheIDs, []string{
			"burstable L3CODE:0=ff000;1=ff000;2=f000;3=f000 L3DATA:0=7f000;1=7f000;2=f000;3=f000 MB:0=80;1=80;2=50;3=50 L2:0=ffff",
			"guaranteed L3CODE:0=fff;1=fff;2=fff;3=fff L3DATA:0=fff;1=fff;2=fff;3=fff " + all + "L2:0=ffff",
		}},
		"goresctrl, doc/rdt.md: bits and masks": {twenty(), masks, []string{ // 25 %, in steps of 10
			"besteffort L3:0=f;1=f;2=f;3=f MB:0=30;1=30;2=30;3=30 L2:0=ffff",
			"burstable L3:0=ff;1=ff;2=ff;3=ff MB:0=50;1=50;2=50;3=50 L2:0=ffff",
			"guaranteed L3:0=fff00;1=fff00;2=fff00;3=fff00 " + all + "L2:0=ffff",
		}},
		"goresctrl, doc/rdt.md: amounts": {mbps, masks, []string{
			"besteffort L3:0=f;1=f;2=f;3=f MB:0=1000;1=1000;2=1000;3=1000 L2:0=ffff",
			"burstable L3:0=ff;1=ff;2=ff;3=ff MB:0=2000;1=2000;2=2000;3=2000 L2:0=ffff",
			"guaranteed L3:0=fff00;1=fff00;2=fff00;3=fff00 MB:0=100000;1=100000;2=100000;3=100000 L2:0=ffff",
		}},
		"goresctrl, cmd/rdt/sample-conf.yaml": {twenty(), sample, []string{
			"Besteffort L3:0=3f;1=3f;2=3f;3=3f MB:0=30;1=30;2=30;3=30 L2:0=1f",
			"Burstable L3:0=fff;1=fff;2=fff;3=fff MB:0=60;1=60;2=60;3=60 L2:0=3ff",
			"Guaranteed L3:0=fffff;1=fffff;2=fffff;3=fffff " + all + "L2:0=ffff",
		}},
		"goresctrl, cmd/rdt/sample-conf.yaml: amounts": {mbps, sample, []string{
			"Besteffort L3:0=3f;1=3f;2=3f;3=3f MB:0=4000;1=4000;2=4000;3=4000 L2:0=1f",
			"Burstable L3:0=fff;1=fff;2=fff;3=fff MB:0=10000;1=10000;2=10000;3=10000 L2:0=3ff",
			"Guaranteed L3:0=fffff;1=fffff;2=fffff;3=fffff MB:0=4000000000;1=4000000000;2=4000000000;3=4000000000 L2:0=ffff",
		}},
		"CRI Resource Manager, docs/policy/rdt.md": {skylake(0), `
rdt:
  options: {mode: Full, monitoringDisabled: false, l3: {optional: true}, mb: {optional: true}}
  partitions:
    exclusive: {l3Allocation: "60%", mbAllocation: ["100%"], classes: {Guaranteed: {l3Allocation: "100%"}}}
    shared:
      l3Allocation: "40%"
      mbAllocation: ["50%"]
      classes: {Burstable: {l3Allocation: "100%"}, BestEffort: {l3Allocation: "50%"}}
policy: {Active: none}
`, []string{"BestEffort L3:0=180 MB:0=50", "Burstable L3:0=780 MB:0=50", "Guaranteed L3:0=7f MB:0=100"}},
		"CRI Resource Manager, its sample": {twenty(), l3schema, []string{
			"BestEffort L3:0=7f;1=7f;2=7f;3=7f " + all + "L2:0=ffff",
			"Burstable L3:0=3fff;1=3fff;2=3fff;3=3fff MB:0=70;1=70;2=70;3=70 L2:0=ffff",
			"DEFAULT L3:0=3ff;1=3ff;2=3ff;3=3ff " + all + "L2:0=ffff",
			"Guaranteed L3:0=fffff;1=fffff;2=fffff;3=fffff MB:0=100;1=80;2=80;3=80 L2:0=ffff",
		}},
		"CRI Resource Manager, its sample: code and data": {cdp, l3schema, []string{
			"BestEffort L3CODE:0=7f;1=7f;2=7f;3=7f L3DATA:0=7f;1=7f;2=7f;3=7f " + all + "L2:0=ffff",
			"Burstable L3CODE:0=fffff;1=fffff;2=fffff;3=fffff L3DATA:0=3ff;1=3ff;2=3ff;3=3ff MB:0=70;1=70;2=70;3=70 L2:0=ffff",
			"DEFAULT L3CODE:0=3ff;1=3ff;2=3ff;3=3ff L3DATA:0=3ff;1=3ff;2=3ff;3=3ff " + all + "L2:0=ffff",
			"Guaranteed L3CODE:0=fffff;1=fffff;2=fffff;3=fffff L3DATA:0=fffff;1=fffff;2=fffff;3=fffff MB:0=100;1=80;2=80;3=80 L2:0=ffff",
		}},
	} {
		t.Run(name, c.try)
	}
}

// The order of a file makes no difference.
func TestOrderOfFile(t *testing.T) {
	t.Parallel()
	const options, a, b = "options: {l3: {optional: false}}\n", `a: {l3Allocation: "33%", classes: {`, `b: {mbAllocation: {0: ["10%"], all: ["70%"]}, l3Allocation: {"0-1": "3 ways", all: "34%"}, classes: {`
	var want []string
	for _, text := range []string{
		options + "partitions: {" + a + `x: {l3Allocation: "50%"}, y: }}, ` + b + `z: , DEFAULT: {l3Allocation: "40-90%"}}}}`,
		"partitions: {" + b + `DEFAULT: {l3Allocation: "40-90%"}, z: }}, ` + a + `y: , x: {l3Allocation: "50%"}}}}` + "\n" + options,
	} {
		l, err := parse(t, text).Layout(twenty())
		if err != nil {
			t.Fatal(err)
		}
		if got := lines(l); want == nil {
			want = got
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-first +second):\n%s", diff)
		}
	}
}

// A group that another program has for pseudo-locking is read, and its region is nobody else's.
func TestPseudoLocked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, cpu := fakekernel.V2(), fakekernel.ResctrlCPUs()["skylake"]
	l.Resctrl = &cpu
	k, err := fakekernel.New(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Mkdir(fakekernel.ResctrlDir + "/lock"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ mode, lines, want string }{
		{"pseudo-locksetup", "    L3:uninitialized\n    MB:uninitialized", "gold L3:0=f;1=f MB:0=100;1=100"},
		{"pseudo-locked", "L3:0=3", "gold L3:0=3c;1=f MB:0=100;1=100"},
	} {
		for file, text := range map[string]string{"mode": c.mode, "schemata": c.lines} {
			if err := os.WriteFile(filepath.Join(dir, fakekernel.ResctrlDir, "lock", file), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tree, err := Read(k.FS())
		if err != nil {
			t.Fatalf("%s: %v", c.mode, err)
		}
		layout, err := parse(t, "partitions: {a: {l3Allocation: 4 ways, classes: {gold: }}}").Layout(tree)
		if err != nil {
			t.Fatalf("%s: %v", c.mode, err)
		}
		if diff := cmp.Diff([]string{c.want}, lines(layout)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.mode, diff)
		}
	}
}
