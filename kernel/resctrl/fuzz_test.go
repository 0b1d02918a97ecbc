package resctrl

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is read as a configuration comes to numbers that the kernel takes, or to an error.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`partitions: {a: {l3Allocation: "60%", mbAllocation: ["50%"], classes: {x: {l3Allocation: "0-50%"}, DEFAULT: }}, b: {l3Allocation: "0x7e0", classes: {y: {exclusive: true}}}}`,
		`rdt: {options: {mode: Full}, partitions: {a: {l3Allocation: {all: "3 ways", "0,2-3": {unified: "40%", code: "1%", data: "2%"}}, classes: {x: {mbschema: {all: [1%, 2GBps]}}}}}}`,
		`{partitions: {a: {classes: {x: }}}, service: {BE: x}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text), "f.yaml")
		if err != nil {
			return
		}
		for _, tree := range []*Tree{skylake(0, 1), twenty()} {
			l, err := c.Layout(tree)
			if err != nil {
				continue
			}
			for _, a := range l.Classes {
				for _, line := range a.Schemata {
					for _, v := range line.Values {
						if err := checkValue(tree.Find(line.Resource), v.N); err != nil {
							t.Errorf("%s %s: %v", a.Name, line.String(), err)
						}
					}
				}
			}
		}
	})
}

// Lines are written as they were read.
func FuzzParseSchemata(f *testing.F) {
	for _, seed := range []string{"    L3:0=7ff;1=00f\n    MB:0= 100;1=  10\n", "L3:uninitialized\n", "L3DATA:0=f;\nL3CODE:1=1", "MB:0=4294967295"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, err := ParseSchemata(text)
		if err != nil {
			return
		}
		again, err := ParseSchemata(all.String())
		if diff := cmp.Diff(all, again); err != nil || diff != "" {
			t.Errorf("%v (-read +written and read):\n%s", err, diff)
		}
	})
}
