package replay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Words of an expected error, besides those of errorKinds.
const (
	errorNone = "none" // the step succeeds
	errorAny  = "any"  // it does not, for whatever reason
)

// Expect is the expected result of a step. Nil fields are ignored. If Error
// is empty or "none" the step should succeed.
type Expect struct {
	// Error is a word of errorKinds, "none" or "any".
	Error string `json:"error"`
	// CPUs are those that the workload may run on, Own its exclusive ones, Mems its
	// NUMA nodes for memory.
	CPUs *cpuset.Set `json:"cpus"`
	Own  *cpuset.Set `json:"own"`
	Mems *cpuset.Set `json:"mems"`
	// Count is the number of exclusive CPUs; if it has none, of those it may run on.
	// Cores, L3s and Nodes are how many of each those CPUs touch.
	Count *int `json:"count"`
	Cores *int `json:"cores"`
	L3s   *int `json:"l3s"`
	Nodes *int `json:"nodes"`
	// Moved is how many other workloads lost a CPU or memory node.
	Moved *int `json:"moved"`
}

// errorOther is a refusal that is not of package place: by a policy of another
// program.
const errorOther = "other"

// errorKinds returns the words for refusals: those of place.Refusals, and "other".
func errorKinds() []string {
	var words []string
	for _, r := range place.Refusals() {
		words = append(words, r.Kind())
	}
	return append(words, errorOther)
}

// errorKind returns the word for an error, "" for nil.
func errorKind(err error) string {
	var refusal place.Refusal
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refusal):
		return refusal.Kind()
	}
	return errorOther
}

// expect checks the expected result of a step.
func (p *parser) expect(e *Expect, do Action) *Expect {
	if e == nil {
		return nil
	}
	p.where += ".expect"
	if e.Error != "" && e.Error != errorNone && e.Error != errorAny && !slices.Contains(errorKinds(), e.Error) {
		p.field("error", fmt.Errorf("unknown word %q; there are: none, any, %v", e.Error, errorKinds()))
	}
	about := *e != Expect{Error: e.Error, Moved: e.Moved}
	switch {
	case about && e.Error != "" && e.Error != errorNone:
		p.field("error", errors.New("a step that fails has no CPUs to expect"))
	case about && (do == Release || do == ReleasePod || do == Restart):
		p.field("", fmt.Errorf("%s has no CPUs to expect; error and moved can be", do))
	}
	return e
}

// unmet lists the expectations that r does not meet.
func (e *Expect) unmet(t *place.Topology, r *StepResult) []string {
	if e == nil {
		return nil
	}
	switch want := cmp.Or(e.Error, errorNone); {
	case want == errorAny && r.Error == "":
		return []string{"an error was expected"}
	case want == errorAny:
	case want == errorNone && r.Error != "":
		return []string{"success was expected"}
	case want != errorNone && want != r.Kind:
		return []string{"error " + want + " was expected"}
	}
	var missed []string
	for _, s := range []struct {
		name string
		want *cpuset.Set
		got  cpuset.Set
	}{{"CPUs", e.CPUs, r.CPUs}, {"own CPUs", e.Own, r.Own}, {"mems", e.Mems, r.Mems}} {
		if s.want != nil && *s.want != s.got {
			missed = append(missed, fmt.Sprintf("%s %s were expected, not %s", s.name, orNone(*s.want), orNone(s.got)))
		}
	}
	cpus := r.pinned()
	for _, c := range []struct {
		name string
		want *int
		got  int
	}{
		{"CPUs", e.Count, cpus.Len()}, {"cores", e.Cores, t.Count(machine.Core, cpus)},
		{"L3 domains", e.L3s, t.Count(machine.L3, cpus)}, {"NUMA nodes", e.Nodes, t.Count(machine.Node, cpus)},
		{"moved workloads", e.Moved, len(r.Moved)},
	} {
		if c.want != nil && *c.want != c.got {
			missed = append(missed, strconv.Itoa(*c.want)+" "+c.name+" were expected, not "+strconv.Itoa(c.got))
		}
	}
	return missed
}

func orNone(s cpuset.Set) string {
	if s.IsEmpty() {
		return "none"
	}
	return s.String()
}
