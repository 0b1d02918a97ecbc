package machine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
)

func TestNodesOfMemory(t *testing.T) {
	t.Parallel()
	set := cpuset.MustParse
	for name, c := range map[string]struct {
		m     Memories
		kinds []MemoryKind
		want  string // sets, or a part of the error
	}{
		"its kind":                {Memories{Of: [3]cpuset.Set{set("0-1"), set("2-3")}}, []MemoryKind{PMEM}, "2-3"},
		"several, each a set":     {Memories{Of: [3]cpuset.Set{set("0-1"), set("2-3")}}, []MemoryKind{DRAM, PMEM}, "0-1 2-3"},
		"those that there are":    {Memories{Of: [3]cpuset.Set{set("0-1"), set("2-3")}}, MemoryKinds(), "0-1 2-3"},
		"none":                    {Memories{Of: [3]cpuset.Set{set("0-1")}}, []MemoryKind{PMEM, HBM}, "kind pmem or hbm: no NUMA node is known to have it"},
		"untold":                  {Memories{Of: [3]cpuset.Set{set("0-1")}, Untold: set("2")}, []MemoryKind{HBM}, "does not tell of what kind NUMA nodes 2 are"},
		"untold, and another":     {Memories{Of: [3]cpuset.Set{set("0-1")}, Untold: set("2")}, []MemoryKind{DRAM, HBM}, "0-1"},
		"movable":                 {Memories{Of: [3]cpuset.Set{set("0-1"), set("2-3")}, Movable: set("2-3")}, []MemoryKind{PMEM}, "nodes 2-3 have movable memory only"},
		"movable beside other":    {Memories{Of: [3]cpuset.Set{set("0-1"), set("2-3")}, Movable: set("2-3")}, []MemoryKind{DRAM, PMEM}, "0-1 2-3"},
		"some of it is movable":   {Memories{Of: [3]cpuset.Set{set("0-1"), set("2-3")}, Movable: set("3")}, []MemoryKind{PMEM}, "2-3 2"},
		"some of each is movable": {Memories{Of: [3]cpuset.Set{set("0-1"), set("2-3")}, Movable: set("0,3")}, []MemoryKind{DRAM, PMEM}, "0-1 2-3 1-2"},
		"some of one is movable":  {Memories{Of: [3]cpuset.Set{set("0-1"), set("2-3")}, Movable: set("3")}, []MemoryKind{DRAM, PMEM}, "0-1 2-3"},
		"a machine without nodes": {Memories{}, []MemoryKind{DRAM}, "no NUMA node is known to have it"},
	} {
		sets, err := c.m.Nodes(c.kinds)
		var all []string
		for _, s := range sets {
			all = append(all, s.String())
		}
		got := strings.Join(all, " ")
		if wrong, ok := errors.AsType[*MemoryKindError](err); ok {
			if got = wrong.Error(); strings.Contains(got, c.want) && slices.Equal(wrong.Kinds, c.kinds) {
				continue
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
