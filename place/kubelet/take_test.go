package kubelet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

func maskOf(t *place.Topology, nodes cpuset.Set) place.Hint {
	var h place.Hint
	for id := range nodes.All() {
		pos, _ := t.Node(id)
		h.Nodes |= 1 << pos
	}
	return h
}

// judge compares an answer of take with what is wanted.
func judge(from, got cpuset.Set, n int, err error, want takeWant, quirk bool) string {
	var few *place.CPUsError
	switch {
	case want.Error == "not-enough-cpus" && errors.As(err, &few):
		return ""
	case want.Error != "" || err != nil:
		return fmt.Sprintf("got %s, %v, want error %q", got, err, want.Error)
	case got.Len() != n || !from.Contains(got):
		return fmt.Sprintf("got %s: not %d CPUs of those available", got, n)
	case got == *want.CPUs || quirk:
		return ""
	}
	return fmt.Sprintf("got %s, want %s", got, want.CPUs)
}

// answers are Berth's own on rows with an upstreamQuirk.
var answers = map[string]string{"U22": "2-3,66-67", "X6": "1-3,9-11", "X49": "8-15,24-31"}

func TestTakeCases(t *testing.T) {
	t.Parallel()
	suite(t, "kubelet-take", nil, func(t *testing.T, f *placetest.Folder, c *takeCase) string {
		topo := topology(t, f, c.Machine)
		steps := c.Steps
		if len(steps) == 0 {
			steps = append(steps, struct {
				CPUs int
				Want takeWant
			}{c.CPUs, c.Want})
		}
		from, all := c.Available, cpuset.Set{}
		for _, step := range steps {
			mask := place.Hint{Any: true}
			if c.NUMA != nil {
				mask = maskOf(topo, *c.NUMA)
			}
			got, err := c.taker(topo).masked(from, step.CPUs, mask)
			if wrong := judge(from, got, step.CPUs, err, step.Want, c.Quirk != ""); wrong != "" {
				return wrong
			}
			if own, listed := answers[c.ID]; listed && got.String() != own {
				return fmt.Sprintf("got %s, Berth's answer was %s", got, own)
			} else if c.Quirk != "" && !listed {
				t.Logf("%s: Berth %s, kubelet %s: %s", c.ID, got, step.Want.CPUs, c.Quirk)
			}
			from, all = from.Minus(got), all.Union(got)
		}
		if c.WantL3 == nil || c.Quirk != "" {
			return ""
		}
		var l3 cpuset.Set
		for _, u := range topo.Machine().ByKind(machine.L3) {
			if u.CPUs.Overlaps(all) {
				l3, _ = l3.With(u.KernelID)
			}
		}
		if l3 != *c.WantL3 {
			return fmt.Sprintf("L3 domains %s, want %s", l3, c.WantL3)
		}
		return ""
	})
}

type wrongCase struct {
	takeCase
	Random *struct{ FreeSets, Requests int }
	Grade  string
	Wrong  struct {
		CPUs                           *cpuset.Set
		Sockets                        cpuset.Set
		NeverReturns, OutsideAvailable bool
	}
	Want struct {
		Properties   []string
		ErrorAllowed bool
		PerNuma      []int
		Example      any
	}
}

func TestWrongCases(t *testing.T) {
	t.Parallel()
	suite(t, "kubelet-wrong", nil, func(t *testing.T, f *placetest.Folder, c *wrongCase) string {
		topo := topology(t, f, c.Machine)
		if c.Random == nil {
			return c.check(topo, c.Available, c.CPUs)
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range max(c.Random.FreeSets, c.Random.Requests) {
			var from cpuset.Set
			density := r.Float64()
			for cpu := range topo.Online().All() {
				if r.Float64() < density {
					from, _ = from.With(cpu)
				}
			}
			n := r.IntN(from.Len() + 1)
			c.Options = nil
			if c.ID == "W6" && r.IntN(2) == 0 {
				c.Options = []string{"uncore"}
			}
			if wrong := c.check(topo, from, n); wrong != "" {
				return fmt.Sprintf("free %s, %d CPUs: %s", from, n, wrong)
			}
		}
		return ""
	})
}

func (c *wrongCase) check(topo *place.Topology, from cpuset.Set, n int) string {
	got, err := c.taker(topo).masked(from, n, place.Hint{Any: true})
	if err != nil {
		if c.Want.ErrorAllowed {
			return ""
		}
		return err.Error()
	}
	if c.Wrong.CPUs != nil && *c.Wrong.CPUs == got && c.Grade == "bug" {
		return "the known wrong answer"
	}
	for _, property := range c.Want.Properties {
		if !holds(property, topo, from, got, n, max(1, c.Group)) {
			return fmt.Sprintf("got %s: not %s", got, property)
		}
	}
	perNode := counts(topo, machine.Node, got)
	if c.Want.PerNuma != nil && !slices.Equal(perNode, c.Want.PerNuma) {
		return fmt.Sprintf("got %v on the nodes, want %v", perNode, c.Want.PerNuma)
	}
	return ""
}

func counts(topo *place.Topology, k machine.Kind, cpus cpuset.Set) []int {
	var n []int
	for _, u := range topo.Units(k) {
		n = append(n, u.CPUs.Overlap(&cpus))
	}
	return n
}

// holds reports whether an answer has a property by its name in the case files.
func holds(property string, topo *place.Topology, from, got cpuset.Set, n, group int) bool {
	switch property {
	case "returns":
		return true
	case "size":
		return got.Len() == n
	case "within-available":
		return from.Contains(got)
	case "whole-cores":
		return topo.Whole(machine.Core, got) == got
	case "one-socket":
		return topo.Count(machine.Socket, got) == 1
	case "one-l3":
		return topo.Count(machine.L3, got) == 1
	case "numa-even":
		used := slices.DeleteFunc(counts(topo, machine.Node, got), func(n int) bool { return n == 0 })
		return slices.Max(used)-slices.Min(used) <= group
	case "no-free-l3-broken":
		for _, u := range topo.Units(machine.L3) {
			if from.Contains(u.CPUs) && u.CPUs.Overlaps(got) && !got.Contains(u.CPUs) {
				return false
			}
		}
		return true
	}
	return false
}
