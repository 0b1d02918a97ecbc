package kubelet

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// hintList is a list of hints or a word.
type hintList struct {
	word string
	list []hintText
}

func (h *hintList) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		return json.Unmarshal(data, &h.word)
	}
	return json.Unmarshal(data, &h.list)
}

// hints returns the list as merge takes it: nil is no preference, an empty list
// is unsatisfiable.
func (h *hintList) hints(t *testing.T, topo *place.Topology) []place.Hint {
	t.Helper()
	if h.word == "no-preference" || h.word == "no-resource" {
		return nil
	}
	out := []place.Hint{}
	for i := range h.list {
		out = append(out, h.list[i].hint(t, topo))
	}
	return out
}

// sameHints compares lists as sets.
func sameHints(got, want []place.Hint) string {
	if (got == nil) != (want == nil) {
		return fmt.Sprintf("got %v, want %v (nil is no preference)", got, want)
	}
	byNodes := func(a, b place.Hint) int { return int(a.Nodes) - int(b.Nodes) }
	got, want = slices.Clone(got), slices.Clone(want)
	slices.SortFunc(got, byNodes)
	slices.SortFunc(want, byNodes)
	return cmp.Diff(want, got)
}

type mergeCase struct {
	header
	Machine   string
	Providers []provider
	Want      map[string]struct {
		hintText
		Admit bool
	}
}

type provider []hintList

func (p *provider) UnmarshalJSON(data []byte) error {
	if data[0] == '"' { // no-resource
		*p = provider{{word: "no-resource"}}
		return nil
	}
	return json.Unmarshal(data, (*[]hintList)(p))
}

func TestMergeCases(t *testing.T) {
	t.Parallel()
	suite(t, "kubelet-merge", nil, func(t *testing.T, f *placetest.Folder, c *mergeCase) string {
		topo := topology(t, f, c.Machine)
		count := len(topo.Machine().ByKind(machine.Node))
		var lists [][]place.Hint
		for _, p := range c.Providers {
			for i := range p {
				lists = append(lists, p[i].hints(t, topo))
			}
		}
		for name, want := range c.Want {
			manager, closest := strings.CutSuffix(name, "+closest")
			p := Policy{TopologyManager: manager, PreferClosestNUMANodes: closest}
			got, admit := p.merge(topo, count, lists)
			if h := want.hint(t, topo); got != h || admit != want.Admit {
				return fmt.Sprintf("%s: got %+v, %v, want %+v, %v", name, got, admit, h, want.Admit)
			}
		}
		return ""
	})
}

type compareCase struct {
	header
	Kind      string
	Best      int
	Current   json.RawMessage
	Candidate hintText
	Resources [][]string
	Want      struct {
		Survivor string
		Width    int
	}
}

func TestCompareCases(t *testing.T) {
	t.Parallel()
	suite(t, "kubelet-compare", nil, func(t *testing.T, _ *placetest.Folder, c *compareCase) string {
		if c.Kind == "width" {
			var lists [][]place.Hint
			for _, masks := range c.Resources {
				var list []place.Hint
				for _, m := range masks {
					list = append(list, (&hintText{Nodes: &m}).hint(t, nil))
				}
				lists = append(lists, list)
			}
			if got := width(lists); got != c.Want.Width {
				return fmt.Sprintf("width %d, want %d", got, c.Want.Width)
			}
			return ""
		}
		var current *place.Hint
		if string(c.Current) != `"none"` {
			var text hintText
			if err := json.Unmarshal(c.Current, &text); err != nil {
				t.Fatal(err)
			}
			h := text.hint(t, nil)
			current = &h
		}
		got := "current"
		if (&ranker{width: c.Best}).better(current, c.Candidate.hint(t, nil)) {
			got = "candidate"
		}
		if got != c.Want.Survivor {
			return fmt.Sprintf("%s survives, want %s", got, c.Want.Survivor)
		}
		return ""
	})
}

type hintsCase struct {
	header
	Machine              string
	Free, Held, Reusable cpuset.Set
	CPUs                 float64
	Limit                *float64
	Options              []string
	Pod                  *struct {
		CPUs  float64
		Limit *float64
	}
	PodLevelResources bool
	Scope             string
	Want              struct{ Hints hintList }
}

func TestHintsCases(t *testing.T) {
	t.Parallel()
	suite(t, "kubelet-hints", nil, func(t *testing.T, f *placetest.Folder, c *hintsCase) string {
		topo := topology(t, f, c.Machine)
		cpus, limit := c.CPUs, c.Limit
		if c.Pod != nil && c.Scope == "pod" {
			cpus, limit = c.Pod.CPUs, c.Pod.Limit
		}
		r := place.Request{Milli: milli(cpus), LimitMilli: milli(cpus)}
		if limit != nil {
			r.LimitMilli = milli(*limit)
		}
		n := ownCPUs(&r)
		if c.Pod != nil && !c.PodLevelResources {
			n = 0 // the kubelet leaves such pods alone
		}
		got := hintsFor(topo, c.Free, c.Reusable, c.Held, n, slices.Contains(c.Options, "align-by-socket"))
		return sameHints(got, c.Want.Hints.hints(t, topo))
	})
}

// TestMergeExact compares merge with trying all combinations.
func TestMergeExact(t *testing.T) {
	t.Parallel()
	seed := uint64(1)
	random := func(n uint64) uint64 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return seed >> 33 % n
	}
	for range 3000 {
		nodes := int(random(4)) + 1
		lists := make([][]place.Hint, random(3)+1)
		for i := range lists {
			for range random(4) + 1 {
				lists[i] = append(lists[i], place.Hint{Nodes: random(1<<nodes-1) + 1, Preferred: random(2) == 0})
			}
		}
		p := Policy{TopologyManager: TopologyManagerBestEffort}
		got, _ := p.merge(nil, nodes, lists)
		if want := bruteForce(nodes, lists); got != want {
			t.Fatalf("%d nodes, %v: got %v, want %v", nodes, lists, got, want)
		}
	}
}

func bruteForce(nodes int, lists [][]place.Hint) place.Hint {
	r := &ranker{width: width(lists)}
	var best *place.Hint
	var walk func(i int, chosen []place.Hint)
	walk = func(i int, chosen []place.Hint) {
		if i < len(lists) {
			for _, h := range lists[i] {
				walk(i+1, append(chosen, h))
			}
			return
		}
		got := place.Hint{Nodes: 1<<nodes - 1, Preferred: true}
		for _, h := range chosen {
			got.Nodes &= h.Nodes
			got.Preferred = got.Preferred && h.Preferred && h.Nodes == chosen[0].Nodes
		}
		if r.better(best, got) {
			best = &got
		}
	}
	walk(0, nil)
	if best == nil {
		return place.Hint{Nodes: 1<<nodes - 1}
	}
	return *best
}

// BenchmarkMerge merges all node sets of 8 nodes for 4 resources.
func BenchmarkMerge(b *testing.B) {
	lists := make([][]place.Hint, 4)
	for i := range lists {
		for m := uint64(1); m < 256; m++ {
			lists[i] = append(lists[i], place.Hint{Nodes: m, Preferred: bits.OnesCount64(m) == i%2+1})
		}
	}
	p := Policy{TopologyManager: TopologyManagerBestEffort}
	b.ReportAllocs()
	for b.Loop() {
		p.merge(nil, 8, lists)
	}
}

// hintsFor is cpuHints for a workload that may hold CPUs already, which Berth
// does not place again.
func hintsFor(t *place.Topology, free, reusable, held cpuset.Set, n int, socket bool) []place.Hint {
	switch {
	case n == 0:
		return nil
	case held.IsEmpty():
		return cpuHints(t, free.Union(reusable), reusable, n, socket)
	case held.Len() != n:
		return []place.Hint{}
	}
	return cpuHints(t, held, cpuset.Set{}, n, socket)
}

// better reports whether a candidate replaces the current choice, if any.
func (r *ranker) better(current *place.Hint, candidate place.Hint) bool {
	switch {
	case candidate.Nodes == 0:
		return false
	case current == nil || current.Preferred != candidate.Preferred:
		return current == nil || candidate.Preferred
	}
	a, b := r.rank(candidate.Nodes), r.rank(current.Nodes)
	order := a.Compare(&b)
	return order < 0 || order == 0 && candidate.Nodes < current.Nodes
}
