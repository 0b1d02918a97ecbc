package topologyaware

import (
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// choose returns the best pool.
func (k *task) choose() (int, error) {
	var width []int
	if len(k.r.Memory) > 0 {
		width = k.memoryWidth()
	}
	c := place.Choice{
		Name: "pool", Count: len(k.pools),
		Criteria: []string{
			"isolated missing", "repulsion", "hints missed", "limit or level missed", "NUMA nodes of memory", "time taken", "height",
			"exclusive taken", "sharers", "shared time taken",
		},
		Fits:  func(i int) string { return k.detail(i, k.fits(i)) },
		Rank:  func(i int) place.Rank { return k.rank(i, width) },
		Tie:   func(i int) int { return k.pools[i].id },
		Label: func(i int) string { return k.pools[i].label(k.t) },
	}
	if at := c.Best(k.why); at >= 0 {
		return at, nil
	}
	return 0, k.onFloor()
}

// around returns the deepest pool around a set that can hold the request.
func (k *task) around(cpus *cpuset.Set) (int, error) {
	for at := k.locate(cpus); at >= 0; at = k.pools[at].parent {
		reason := k.fits(at)
		if reason == "" {
			k.why.Note("stays in %s", k.pools[at].label(k.t))
			return at, nil
		}
		k.why.Note("%s: %s", k.pools[at].label(k.t), k.detail(at, reason))
	}
	return 0, k.onFloor()
}

// onFloor sends a workload without CPU time to the floor if all else is owned;
// others are refused.
func (k *task) onFloor() error {
	if k.own == 0 && k.milli == 0 && k.has[0].free == 0 && !k.r.NodesRequired && k.conf.Floor.Overlaps(k.s.Sharable()) {
		k.why.Note("all sharable CPUs are owned: the floor")
		return nil
	}
	return k.refusal()
}

// refusal names the resource that the whole machine lacks.
func (k *task) refusal() error {
	root := &k.has[0]
	owned := 1000 * k.own
	switch {
	case k.own > 0 && k.isolated == place.Require && root.iso < k.own:
		return &place.CPUsError{Asked: k.own, Available: root.iso, Rule: place.OnlyIsolated(k.t)}
	case k.own > root.slice && k.own > root.iso:
		return &place.CPUsError{Asked: k.own, Available: max(root.slice, root.iso)}
	case k.milli > root.room-owned && root.iso < k.own || k.milli > root.room:
		return &place.CPUsError{Asked: k.milli, Available: max(0, root.room-owned), Milli: true}
	case root.free == 0:
		return &place.CPUsError{Asked: 1}
	}
	setting := "maxNodes"
	if k.r.NodesRequired {
		setting = "nodes"
	}
	return &place.NUMAError{Nodes: k.r.Nodes, Reason: "no pool inside the asked nodes has room (" + setting + ")"}
}

// detail adds the pool's figures to a reason, if an explanation is asked for.
func (k *task) detail(i int, reason string) string {
	if reason == "" || k.why == nil {
		return reason
	}
	has := &k.has[i]
	if k.own == 0 {
		return fmt.Sprintf("%s (%dm to share)", reason, max(0, has.room))
	}
	return fmt.Sprintf("%s (%d CPUs to own, %d isolated, %dm to share)", reason, has.slice, has.iso, max(0, has.room))
}

// fits says why a pool cannot hold the request.
func (k *task) fits(i int) string {
	p, has := &k.pools[i], &k.has[i]
	slice := k.own
	if k.isolated >= place.Prefer && has.iso >= k.own {
		slice = 0
	}
	switch {
	case k.isolated == place.Require && slice > 0:
		return "too few isolated CPUs"
	case slice > has.slice:
		return "too few CPUs that can be owned"
	case k.r.NodesRequired && !k.r.Nodes.IsEmpty() && !k.t.CPUsOf(k.r.Nodes).Contains(p.cpus):
		return "reaches beyond the asked nodes"
	case k.own > 0 && k.r.MaxNodes > 0 && p.nodes.Len() > k.r.MaxNodes:
		return "more NUMA nodes than asked"
	case k.own > 0 && k.milli == 0:
		return ""
	case has.free == 0:
		return "no CPU left to share"
	case k.milli > 0 && k.milli > has.room-1000*max(0, slice-has.again):
		return "too little time left"
	}
	return ""
}

func (k *task) rank(i int, width []int) place.Rank {
	p, has := &k.pools[i], &k.has[i]
	var rank place.Rank
	left := has.slice
	if k.isolated >= place.Prefer {
		if left = has.iso; has.iso < k.own {
			rank[0], left = 1, has.slice
		}
	}
	rank[1], rank[2] = -k.affinity(i), k.missed(i)
	if k.burst {
		rank[3] = max(0, k.r.LimitMilli-has.room)
		if k.r.LimitMilli == 0 {
			rank[3] = max(height(p.level)-height(k.level), height(k.level)-height(p.level))
			rank[5] = -has.room
		}
	}
	if width != nil {
		rank[4] = width[i]
	}
	rank[6] = -p.depth
	if k.own > 0 {
		rank[7] = -left
	}
	if k.own == 0 || k.milli > 0 {
		rank[8], rank[9] = has.Grants, -has.room
	}
	return rank
}

// memoryWidth returns, by pool, the number of NUMA nodes that its memory would
// come from.
func (k *task) memoryWidth() []int {
	width := make([]int, len(k.pools))
	for i := range k.pools {
		p := &k.pools[i]
		if p.parent >= 0 && p.level == L3Cache && k.pools[p.parent].level == NUMA {
			width[i] = width[p.parent]
			continue
		}
		nodes := p.mems
		if k.s.Shortage(nodes, k.r.Memory) > 0 {
			if wider, _, err := k.s.FitMemory(nodes, k.r.Memory); err == nil {
				nodes = wider
			}
		}
		width[i] = nodes.Len()
	}
	return width
}

// attract sums up, by pool, the weights of the held workloads that the request
// has an affinity to.
func (k *task) attract() {
	all := k.r.Affinity
	if len(all) == 0 {
		if k.p.ColocatePods && k.r.Group != "" {
			all = append(all, place.Affinity{Group: k.r.Group, Weight: 10})
		}
		if k.p.ColocateNamespaces && k.r.Namespace != "" {
			all = append(all, place.Affinity{Namespace: k.r.Namespace, Weight: 10})
		}
	}
	if len(all) == 0 {
		return
	}
	k.pull = make([]int, len(k.pools))
	for g := range k.s.Grants() {
		weight := 0
		for i := range all {
			if all[i].Matches(&g.Request) {
				weight += min(max(all[i].Weight, -1000), 1000)
			}
		}
		if weight == 0 {
			continue
		}
		if cpus := g.Own.Union(g.Share.Within); !cpus.IsEmpty() {
			k.pull[k.locate(&cpus)] += weight
		}
	}
}

// affinity returns the score of a pool: the weights above and below it, times
// 0.75 per level between, in fractions of 1/1024.
func (k *task) affinity(at int) int {
	if k.pull == nil {
		return 0
	}
	score := 0
	for i, weight := range k.pull {
		if weight == 0 {
			continue
		}
		high, low := i, at
		if k.pools[i].depth > k.pools[at].depth {
			high, low = at, i
		}
		if k.below(low, high) {
			score += fade(weight*1024, k.pools[low].depth-k.pools[high].depth, 3, 4)
		}
	}
	return score
}

// fade returns x times (num/den)^n, rounded towards zero.
func fade(x, n, num, den int) int {
	for range n {
		x = x * num / den
	}
	return x
}

// full is the score of a pool that meets all hints.
const full = 1 << 20

// missed returns how much a pool lacks of the full score by hints.
func (k *task) missed(at int) int {
	score := full
	if !k.r.Nodes.IsEmpty() {
		for id := range k.r.Nodes.All() {
			score = k.meets(score, at, cpuset.MustOf(id))
		}
	}
	if len(k.r.Devices) == 0 {
		return full - score
	}
	names, _, err := k.s.FitDevices(k.pools[at].nodes, k.r.Devices)
	if err != nil {
		return full - score
	}
	for _, name := range names {
		if d, _, _ := k.s.Device(name); !d.Nodes.IsEmpty() {
			score = k.meets(score, at, d.Nodes)
		}
	}
	return full - score
}

// meets lowers a score by how a pool meets a hint at some nodes: one of them has to
// be in it, or it in one of them.
func (k *task) meets(score, at int, nodes cpuset.Set) int {
	best := 0
	near := false
	for _, u := range k.t.Units(machine.Node) {
		if !nodes.Has(u.ID) || u.Size == 0 {
			continue
		}
		near = true
		if u.CPUs.Overlap(&k.pools[at].cpus) > 0 {
			wider := max(0, k.pools[k.locate(&u.CPUs)].depth-k.pools[at].depth)
			best = max(best, fade(score, wider, 9, 10))
		}
	}
	if !near {
		return score
	}
	return best
}
