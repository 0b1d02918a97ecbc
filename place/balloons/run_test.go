package balloons_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
)

// two is a socket of two nodes, each with two L3 domains of four cores of two
// threads: cores 0-15 are CPUs 0-15 and, second threads, 16-31. CPU 0 is the
// floor.
const two = "1s2n2l4c2t"

// step is one thing that happens.
type step struct {
	place, resize place.Request
	release       string
}

// add places a workload of a type with some CPU time.
func add(id, ty string, milli int) step {
	return step{place: place.Request{ID: id, Milli: milli, Hints: map[string]string{balloons.HintType: ty}}}
}

// with changes the request of a step.
func (s step) with(change func(r *place.Request)) step {
	change(&s.place)
	return s
}

func resize(id string, milli int) step {
	return step{resize: place.Request{ID: id, Milli: milli}}
}

func drop(id string) step { return step{release: id} }

// outcome is what came of the steps: "id=CPUs" or "id=refused", in order of
// arrival, what pools there are, and which CPU class has which CPUs.
type outcome struct {
	workloads, pools, classes string
	state                     *place.State
}

func topology(t testing.TB, m *machine.Machine) *place.Topology {
	t.Helper()
	topo, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// run takes the steps and audits the books after each.
func run(t *testing.T, p balloons.Policy, m *machine.Machine, conf place.Config, steps []step) outcome {
	t.Helper()
	s, err := place.Start(p, topology(t, m), conf)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	refused := map[string]bool{}
	for _, st := range steps {
		var o place.Offer
		var id string
		switch {
		case st.place.ID != "":
			id = st.place.ID
			o, err = place.Place(p, s, &st.place)
		case st.resize.ID != "":
			id = st.resize.ID
			o, err = place.Resize(p, s, &st.resize)
		default:
			id = st.release
			o, err = place.Release(p, s, id)
		}
		if !slices.Contains(order, id) {
			order = append(order, id)
		}
		if refused[id] = err != nil; err != nil {
			continue
		}
		if s, err = s.Commit(o); err != nil {
			t.Fatalf("%+v: %v", st, err)
		}
		if err := s.Audit(); err != nil {
			t.Fatalf("%+v: %v", st, err)
		}
	}
	var out []string
	for _, id := range order {
		cpus, ok := s.CPUs(id)
		switch {
		case refused[id]:
			out = append(out, id+"=refused")
		case ok:
			out = append(out, id+"="+cpus.String())
		}
	}
	return outcome{strings.Join(out, " "), pools(s), classes(p, s), s}
}

func pools(s *place.State) string {
	var out []string
	for p := range s.Pools() {
		out = append(out, p.Name+"="+p.CPUs.String())
	}
	return strings.Join(out, " ")
}

func classes(p balloons.Policy, s *place.State) string {
	var out []string
	for class, cpus := range p.CPUClasses(s) {
		out = append(out, class+"="+cpus.String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func set(list string) cpuset.Set { return cpuset.MustParse(list) }

// only is a policy of one type, and a default that takes no CPU beforehand.
func only(ty balloons.Type) balloons.Policy {
	if ty.Name == "" {
		ty.Name = "x"
	}
	return balloons.Policy{Types: []balloons.Type{ty, {Name: balloons.Default}}}
}

// some returns a number of steps alike.
func some(n int, id, ty string, milli int) []step {
	var steps []step
	for i := range n {
		steps = append(steps, add(fmt.Sprintf("%s%d", id, i), ty, milli))
	}
	return steps
}
