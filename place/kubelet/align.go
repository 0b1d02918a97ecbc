package kubelet

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// admit asks all managers for the node sets that would serve them, and merges.
func (k *task) admit() (place.Hint, error) {
	count := len(k.t.Units(machine.Node))
	if k.p.TopologyManager == "" || k.p.TopologyManager == TopologyManagerNone {
		if k.r.Nodes.IsEmpty() {
			return place.Hint{Any: true}, nil
		}
		return place.Hint{Nodes: k.nodes(k.r.Nodes)}, nil
	}
	if count > 64 {
		return place.Hint{}, &place.NUMAError{Reason: "the topology manager knows at most 64 NUMA nodes"}
	}
	var mask place.Hint
	var ok bool
	var lists [][]place.Hint
	if count > listed {
		mask, ok = k.narrow()
	} else {
		lists = k.within(k.hints())
		mask, ok = k.p.merge(k.t, count, lists)
	}
	k.explainMerge(lists, mask)
	if !ok {
		k.why.Lacking(k.t, "nodes by free CPUs", k.free)
		return mask, &place.NUMAError{Nodes: k.ids(mask.Nodes), Reason: k.alignment()}
	}
	return mask, nil
}

// alignment says in words which node sets the topology manager admits.
func (k *task) alignment() string {
	wants := "as few NUMA nodes as an empty machine would need"
	if k.p.TopologyManager == TopologyManagerSingle {
		wants = "all of it from one NUMA node"
	}
	return fmt.Sprintf("%s wants %s (topologyManagerPolicy)", k.p.TopologyManager, wants)
}

// explainMerge records a merge: the node sets that each resource would have, the
// preferred ones of them if there are any, and the result.
func (k *task) explainMerge(lists [][]place.Hint, merged place.Hint) {
	if k.why == nil {
		return
	}
	names := make([]string, 0, len(lists))
	for i := range k.r.Devices {
		names = append(names, "device "+cmp.Or(k.r.Devices[i].Kind, strings.Join(k.r.Devices[i].Names, ",")))
	}
	if k.cpus > 0 {
		names = append(names, "CPUs")
	}
	if len(k.need) > 0 {
		names = append(names, "memory")
	}
	for i, list := range lists {
		k.why.Note("%s: %s", names[i], k.sets(list))
	}
	nodes := "any"
	if !merged.Any {
		nodes = k.ids(merged.Nodes).String()
	}
	k.why.Note("merged: nodes %s, preferred: %t", nodes, merged.Preferred)
}

// sets describes the node sets of a resource.
func (k *task) sets(list []place.Hint) string {
	const most = 8
	var preferred []string
	for _, h := range list {
		if h.Preferred && !h.Any {
			preferred = append(preferred, k.ids(h.Nodes).String())
		}
	}
	switch n := len(preferred); {
	case list == nil:
		return "any nodes"
	case len(list) == 0:
		return "no nodes suffice"
	case n == 0:
		return "nodes suffice, but no preferred ones"
	case n > most:
		return fmt.Sprintf("prefers nodes %s or %d other sets", strings.Join(preferred[:most], " or "), n-most)
	}
	return "prefers nodes " + strings.Join(preferred, " or ")
}

// hints returns one list per resource.
func (k *task) hints() [][]place.Hint {
	var lists [][]place.Hint
	for i := range k.r.Devices {
		d := &k.r.Devices[i]
		lists = append(lists, deviceHints(k.devicesFor(d), wanted(d)))
	}
	if k.cpus > 0 {
		from := k.free
		if k.p.FullPCPUsOnly {
			from = k.t.Whole(machine.Core, from)
		}
		lists = append(lists, cpuHints(k.t, from, k.reusable, k.cpus, k.p.AlignBySocket))
	}
	if len(k.need) > 0 {
		lists = append(lists, memoryHints(k.memoryNodes(), amounts(k.need)))
	}
	return lists
}

// within drops the node sets that leave the required nodes.
func (k *task) within(lists [][]place.Hint) [][]place.Hint {
	if !k.bound() {
		return lists
	}
	allowed := k.nodes(k.r.Nodes)
	for i, list := range lists {
		if list == nil {
			continue
		}
		lists[i] = slices.DeleteFunc(list, func(h place.Hint) bool { return !h.Any && h.Nodes&^allowed != 0 })
	}
	return lists
}

// narrow finds the fewest nodes that serve all resources together. They are
// preferred if every resource would need as many on an empty machine.
func (k *task) narrow() (place.Hint, bool) {
	units := k.t.Units(machine.Node)
	c := place.Cover{Has: make([][]int64, len(units))}
	least, alike := 0, true
	add := func(need int64, has, all func(pos int) int64) {
		c.Need = append(c.Need, need)
		width := place.Cover{Need: []int64{need}, Has: make([][]int64, len(units))}
		for pos := range units {
			n := int64(0)
			if !k.bound() || k.r.Nodes.Has(units[pos].ID) {
				n = has(pos)
			}
			c.Has[pos] = append(c.Has[pos], n)
			width.Has[pos] = []int64{all(pos)}
		}
		set, _ := width.Best()
		alike = alike && (least == 0 || least == len(set))
		least = max(least, len(set))
	}
	if k.cpus > 0 {
		add(int64(k.cpus), func(pos int) int64 { return int64(units[pos].CPUs.Overlap(&k.free)) }, func(pos int) int64 { return int64(units[pos].Size) })
	}
	k.narrowMemory(add)
	k.narrowDevices(add)
	all := place.Hint{Nodes: 1<<len(units) - 1, Preferred: len(c.Need) == 0}
	if len(c.Need) == 0 {
		return all, true
	}
	if k.p.PreferClosestNUMANodes {
		c.Rank = func(set []int) place.Rank {
			var r place.Rank
			for _, a := range set {
				for _, b := range set {
					r[0] += k.t.Distance(a, b)
				}
			}
			return r
		}
	}
	set, _ := c.Best()
	mask := place.Hint{Preferred: alike && len(set) == least}
	for _, pos := range set {
		mask.Nodes |= 1 << pos
	}
	if set == nil {
		mask = place.Hint{Nodes: all.Nodes}
	}
	if k.p.AlignBySocket && k.cpus > 0 && set != nil {
		perSocket := max(1, len(units)/len(k.t.Units(machine.Socket)))
		mask.Preferred = mask.Preferred || sockets(k.t, mask.Nodes) == ceil(least, perSocket)
	}
	single := k.p.TopologyManager == TopologyManagerSingle
	if single && bits.OnesCount64(mask.Nodes) > 1 {
		mask = place.Hint{Any: true}
	}
	return mask, mask.Preferred || k.p.TopologyManager == TopologyManagerBestEffort
}

func (k *task) narrowMemory(add func(need int64, has, all func(pos int) int64)) {
	if len(k.need) == 0 {
		return
	}
	nodes := k.memoryNodes()
	for i, a := range k.need {
		add(a.Bytes, func(pos int) int64 {
			if bits.OnesCount64(nodes[pos].group) > 1 {
				return 0
			}
			return nodes[pos].free[i]
		}, func(pos int) int64 { return nodes[pos].all[i] })
	}
}

func (k *task) narrowDevices(add func(need int64, has, all func(pos int) int64)) {
	for i := range k.r.Devices {
		devices := k.devicesFor(&k.r.Devices[i])
		if !slices.ContainsFunc(devices, func(d device) bool { return d.nodes != 0 }) {
			continue
		}
		count := func(free bool) func(pos int) int64 {
			return func(pos int) (n int64) {
				for _, d := range devices {
					if d.nodes>>pos&1 != 0 && (d.free || !free) {
						n++
					}
				}
				return n
			}
		}
		add(int64(wanted(&k.r.Devices[i])), count(true), count(false))
	}
}

// memory takes memory and huge pages on the nodes that the memory manager
// chooses for the mask.
func (k *task) memory(mask place.Hint) (mems cpuset.Set, blocks []place.Block, err error) {
	if len(k.t.Units(machine.Node)) > listed {
		return k.s.FitMemory(k.ids(mask.Nodes), k.need)
	}
	nodes := k.memoryNodes()
	chosen, err := memoryMask(nodes, amounts(k.need), mask)
	if err != nil {
		return mems, nil, err
	}
	for _, p := range fill(nodes, amounts(k.need), chosen) {
		blocks = append(blocks, place.Block{Node: k.t.Units(machine.Node)[p.pos].ID, Resource: k.need[p.resource].Resource, Bytes: p.bytes})
	}
	return k.ids(chosen), blocks, nil
}
