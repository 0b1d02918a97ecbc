package controlplane

import (
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// task is one request on its way to a grant.
type task struct {
	p      Policy
	s      *place.State
	t      *place.Topology
	r      *place.Request
	old    *place.Grant
	why    *place.Why
	conf   *place.Config
	held   cpuset.Set // CPUs to keep: those of the workload, or to own again
	bucket cpuset.Set // the CPUs that the request may use
	leaves []int      // of the bucket, in the order of the tree; only with namespaces
}

// newTask surveys the state. old is the workload's own grant, which s does not have; nil
// if it holds none.
func newTask(p Policy, s *place.State, r *place.Request, old *place.Grant) *task {
	k := &task{p: p, s: s, t: s.Topology(), r: r, old: old, why: place.NewWhy(r), conf: s.Config()}
	k.bucket = k.conf.Allowed.Without(k.t.Machine().Isolated)
	k.bucket = k.bucket.Without(k.conf.Reserved)
	reserved := k.conf.Reserved.Intersect(k.conf.Allowed)
	host := r.Class.Traits().Reserved && !reserved.IsEmpty()
	if host {
		k.bucket = reserved
	}
	if p.Allocator >= NUMANamespace && !host {
		k.enterBucket()
	}
	return k
}

// enterBucket narrows the task to the bucket of its namespace.
func (k *task) enterBucket() {
	k.leaves = leaves(k.t, k.bucket, k.bucket.Len())
	buckets := k.p.Buckets
	if buckets == 0 {
		buckets = k.t.Count(machine.Node, k.bucket)
	}
	buckets = min(buckets, len(k.leaves))
	at := k.bucketOf(buckets)
	k.leaves = k.leaves[at*len(k.leaves)/buckets : (at+1)*len(k.leaves)/buckets]
	k.bucket = cpuset.MustOf(k.leaves...)
	k.why.Note("namespace %q has bucket %d of %d: CPUs %s", k.r.Namespace, at, buckets, k.bucket)
}

// bucketOf returns the bucket of the request's namespace, by number.
func (k *task) bucketOf(buckets int) int {
	if k.old != nil && k.old.Request.Namespace == k.r.Namespace {
		if at := k.holds(k.old, buckets); at >= 0 {
			return at
		}
	}
	for g := range k.s.Grants() {
		if g.Request.Namespace != k.r.Namespace {
			continue
		}
		if at := k.holds(g, buckets); at >= 0 {
			return at
		}
	}
	of := map[string]int{}
	for g := range k.s.Grants() {
		if _, seen := of[g.Request.Namespace]; !seen {
			if at := k.holds(g, buckets); at >= 0 {
				of[g.Request.Namespace] = at
			}
		}
	}
	namespaces := make([]int, buckets)
	for _, at := range of {
		namespaces[at]++
	}
	c := place.Choice{
		Name: "bucket", Criteria: []string{"namespaces"}, Count: buckets,
		Rank: func(i int) place.Rank { return place.Rank{namespaces[i]} },
	}
	return c.Best(k.why)
}

// holds returns the bucket that a grant lies in, -1 if in no bucket.
func (k *task) holds(g *place.Grant, buckets int) int {
	first, ok := g.Own.First()
	if !ok {
		first, ok = g.Share.Within.First()
	}
	if i := slices.Index(k.leaves, first); ok && i >= 0 {
		return ((i+1)*buckets - 1) / len(k.leaves)
	}
	return -1
}

// cpus gives the workload CPUs to own or to share.
func (k *task) cpus(g *place.Grant) error {
	if n := guaranteed(k.r); n > 0 {
		return k.take(g, n)
	}
	return k.share(g)
}

// take finds n CPUs to own, or to be bound to.
func (k *task) take(g *place.Grant, n int) error {
	find := k.choose
	if !k.held.IsEmpty() {
		find = k.around
	}
	cpus, err := find(k.free(), n)
	if err != nil {
		return err
	}
	if k.p.Allocator == NUMANamespace {
		g.Share = place.Share{Within: cpus, Milli: k.r.Milli, Counted: true, Open: true}
	} else {
		g.Own = cpus
	}
	return k.leaveEnough(cpus)
}

// choose takes n free CPUs by the allocator.
func (k *task) choose(free cpuset.Set, n int) (cpuset.Set, error) {
	switch {
	case k.p.Allocator == Default:
		return k.consecutive(free, n)
	case k.p.Allocator == NUMA && free.Len() >= n:
		free = k.deepest(free, n)
	}
	return k.firstLeaves(free, n)
}

// free returns the CPUs of the bucket that can be taken.
func (k *task) free() cpuset.Set {
	if k.p.Allocator != NUMANamespace {
		return k.s.OwnableBy(k.r).Intersect(k.bucket)
	}
	return k.bucket.Minus(k.bound()).Minus(k.s.Owned())
}

// bound returns the CPUs of the bucket that workloads are bound to.
func (k *task) bound() cpuset.Set {
	bound := make([]int, 0, k.bucket.Len())
	for cpu := range k.bucket.All() {
		if k.s.Refs(cpu) > 0 {
			bound = append(bound, cpu)
		}
	}
	return cpuset.MustOf(bound...)
}

// run is a row of consecutive CPU numbers.
type run struct{ first, length int }

// consecutive takes from the first run that is long enough.
func (k *task) consecutive(free cpuset.Set, n int) (cpuset.Set, error) {
	var runs []run
	longest := 0
	for cpu := range free.All() {
		if last := len(runs) - 1; last >= 0 && cpu == runs[last].first+runs[last].length {
			runs[last].length++
		} else {
			runs = append(runs, run{cpu, 1})
		}
		longest = max(longest, runs[len(runs)-1].length)
	}
	c := place.Choice{
		Name: "run of CPUs", Count: len(runs),
		Fits: func(i int) string {
			if runs[i].length < n {
				return "too short"
			}
			return ""
		},
		Label: func(i int) string { return cpusOf(runs[i].first, runs[i].length).String() },
	}
	at := c.Best(k.why)
	if at < 0 {
		rule := place.Rule{Text: "the CPUs of a workload have consecutive numbers (allocator default)"}
		return cpuset.Set{}, &place.CPUsError{Asked: n, Available: longest, Rule: rule}
	}
	return cpusOf(runs[at].first, n), nil
}

// cpusOf returns a run as a set; its members are CPUs of the machine.
func cpusOf(first, n int) cpuset.Set {
	cpus, _ := cpuset.Range(first, first+n-1)
	return cpus
}

// firstLeaves takes the first n CPUs of a set in the order of the tree.
func (k *task) firstLeaves(free cpuset.Set, n int) (cpuset.Set, error) {
	if available := free.Len(); n > available {
		k.why.Lacking(k.t, "free CPUs", free)
		return cpuset.Set{}, &place.CPUsError{Asked: n, Available: available, Rule: k.rule(n)}
	}
	return cpuset.Of(leaves(k.t, free, n)...)
}

// deepest returns the free CPUs of the deepest part of the tree that has n, those
// held among them. A single CPU is the deepest part by itself: the first will do.
func (k *task) deepest(free cpuset.Set, n int) cpuset.Set {
	threads, _ := k.t.ThreadsPerCore()
	for _, kind := range []machine.Kind{machine.Core, machine.Die, machine.Socket, machine.Node} {
		if n == 1 || kind == machine.Core && n > threads {
			continue
		}
		units := k.t.Units(kind)
		c := place.Choice{
			Name: kind.String(), Count: len(units),
			Fits: func(i int) string {
				if units[i].CPUs.Overlap(&free) < n {
					return "too few free"
				}
				if k.held.Len() < n && !units[i].CPUs.Contains(k.held) {
					return "without the CPUs held"
				}
				if kind != machine.Core && kind != machine.Node && k.t.Count(machine.Node, units[i].CPUs) > 1 {
					return "wider than a NUMA node"
				}
				return ""
			},
			Criteria: []string{"node", "socket", "die"},
			Rank: func(i int) place.Rank {
				cpu := units[i].First
				return place.Rank{k.t.At(machine.Node, cpu), k.t.At(machine.Socket, cpu), k.t.At(machine.Die, cpu)}
			},
			Tie:   func(i int) int { return units[i].First },
			Label: func(i int) string { return k.t.Label(kind, i) },
		}
		if at := c.Best(k.why); at >= 0 {
			return free.Intersect(units[at].CPUs)
		}
	}
	return free
}

// leaveEnough refuses to take CPUs that the sharers need: those for the time that
// they ask for and, if the CPUs are to be owned, at least one.
func (k *task) leaveEnough(taken cpuset.Set) error {
	milli, grants := k.s.SharedMilli(k.bucket)
	need := place.WholeCPUs(milli)
	if k.p.Allocator != NUMANamespace && (grants > 0 || !k.conf.NoFloor) {
		need = max(need, 1)
	}
	left := k.left().Minus(taken).Len()
	if left < need {
		k.why.Note("CPUs %s: those who share need %d CPUs, %d are left", taken, need, left)
		return &place.CPUsError{Asked: taken.Len(), Available: max(0, left+taken.Len()-need), Rule: k.rule(taken.Len())}
	}
	return nil
}

// rule says, for a refusal of n CPUs, which CPUs the workload's namespace has, if
// namespaces have CPUs.
func (k *task) rule(n int) place.Rule {
	if k.leaves == nil {
		return place.Rule{}
	}
	return place.Rule{
		Text:   fmt.Sprintf("namespace %q has the CPUs %s (buckets)", k.r.Namespace, k.bucket),
		Within: k.bucket, Alone: n > k.bucket.Len(),
	}
}

// left returns the CPUs of the bucket that no workload owns or is bound to.
func (k *task) left() cpuset.Set {
	left := k.bucket.Minus(k.s.Owned())
	if k.p.Allocator == NUMANamespace {
		left = left.Minus(k.bound())
	}
	return left
}

// share lets a workload use the CPUs of its bucket.
func (k *task) share(g *place.Grant) error {
	g.Share = place.Share{Within: k.bucket, Milli: k.r.Milli}
	if k.r.Class.Traits().Uncounted {
		g.Share.Milli = 0
	}
	if k.bucket.Minus(k.s.Owned()).IsEmpty() {
		return &place.CPUsError{Asked: 1}
	}
	milli, _ := k.s.SharedMilli(k.bucket)
	if free := 1000*k.left().Len() - milli; g.Share.Milli > max(0, free) {
		k.why.Note("CPUs %s have %dm free", k.bucket, max(0, free))
		k.why.Lacking(k.t, "CPUs to share", k.left())
		return &place.CPUsError{Asked: g.Share.Milli, Available: max(0, free), Milli: true, Rule: k.rule(place.WholeCPUs(g.Share.Milli))}
	}
	k.why.Note("shares CPUs %s", k.bucket)
	return nil
}
