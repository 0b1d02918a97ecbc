package replay

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Summary measures a run by the same yardstick whatever the policy.
type Summary struct {
	// Admitted and Refused count the placings and resizings, of a pod each container.
	Admitted int `json:"admitted"`
	Refused  int `json:"refused"`
	// Granted is the CPU time that the admitted placings asked for, in CPUs.
	Granted float64 `json:"granted"`
	// Nodes and L3s count the domains that the CPUs of admitted workloads touch, of
	// the workloads that asked for exclusive CPUs, whatever they got. PoolNodes is of
	// the others, without best effort, which runs on any free CPU.
	Nodes Spread `json:"nodes"`
	L3s   Spread `json:"l3s"`
	// Own counts those of them that got CPUs of their own, exclusive or counted.
	Own       int    `json:"own"`
	PoolNodes Spread `json:"poolNodes"`
	// SharedCores is the most cores at any time that a workload which holds CPUs
	// of it by name shares with a workload of another pod: one that may run
	// on any of the core's CPUs.
	SharedCores int `json:"sharedCores"`
	// Moves counts, over releases and restarts, the other workloads that lost a
	// CPU or a memory node.
	Moves int `json:"moves"`
	// Left is, for each NUMA node with CPUs, the largest exclusive request that
	// the state would still accept after the last step.
	Left []Left `json:"left"`
	// Average is of streams only.
	Average *Average `json:"average,omitempty"`
}

// Average has means over the samples of a stream: the states that every so
// many-th arrival finds. As arrivals are a Poisson process, which does not depend
// on the state, these are means over time.
type Average struct {
	Samples int `json:"samples"`
	// Used is the CPU time that those present asked for, in CPUs.
	Used        float64 `json:"used"`
	SharedCores float64 `json:"sharedCores"` // as in Summary, of the moment
	// Beside is SharedCores without those shared with best effort only.
	Beside float64 `json:"beside"`
	// Missing is the CPU time, in CPUs, that was promised to workloads that share
	// beyond the CPUs that they may use.
	Missing float64 `json:"missing"`
	// Left is the mean number of CPUs left in whole cores, over the NUMA nodes with
	// CPUs; Largest is that of the node with most.
	Left    float64 `json:"left"`
	Largest float64 `json:"largest"`
}

// Spread is a number of domains over several workloads.
type Spread struct {
	Workloads int     `json:"workloads"`
	Mean      float64 `json:"mean"`
	Max       int     `json:"max"`
}

// Left is the room left on a NUMA node: the largest number of CPUs that one more
// workload could own there, all in wholly free cores or anywhere.
type Left struct {
	Node  int `json:"node"`
	Whole int `json:"whole"`
	Any   int `json:"any"`
}

// counter makes a Summary, step by step.
type counter struct {
	t                    *place.Topology
	summary              Summary
	nodes, l3s, poolNode tally
	cores                map[cpuset.Set]cpuset.Set // results of touched
	twice                cpuset.Set                // cores of several pods, as sharedCores counted last
}

type tally struct{ n, sum, most int }

func (t *tally) add(n int) {
	t.n++
	t.sum += n
	t.most = max(t.most, n)
}

func (t *tally) spread() Spread {
	s := Spread{Workloads: t.n, Max: t.most}
	if t.n > 0 {
		s.Mean = float64(t.sum) / float64(t.n)
	}
	return s
}

func (c *counter) step(step *Step, r *StepResult) {
	switch step.Do {
	case Release, ReleasePod, Restart:
		c.summary.Moves += len(r.Moved)
	case PlacePod:
		if r.Error != "" {
			c.summary.Refused += len(step.Pod.Containers)
		}
		for i := range r.Containers {
			c.step(&Step{Do: Place, Request: step.Pod.Containers[i]}, &r.Containers[i])
		}
	case Place, Resize:
		if r.Error != "" {
			c.summary.Refused++
			break
		}
		c.summary.Admitted++
		if step.Do == Place {
			c.summary.Granted += float64(step.Request.Milli) / 1000
		}
		switch cpus := r.pinned(); {
		case wantsOwn(&step.Request):
			c.nodes.add(c.t.Count(machine.Node, cpus))
			c.l3s.add(c.t.Count(machine.L3, cpus))
			if !r.Own.IsEmpty() || !r.Counted.IsEmpty() {
				c.summary.Own++
			}
		case !step.Request.Class.Traits().Uncounted:
			c.poolNode.add(c.t.Count(machine.Node, cpus))
		}
	}
}

// wantsOwn reports whether a request asks for CPUs of its own, by class or mode.
func wantsOwn(r *place.Request) bool {
	switch r.Mode {
	case place.Exclusive, place.Mixed:
		return true
	case place.Auto:
		return r.Class.Traits().Own && r.Milli > 0
	}
	return false
}

// sample adds a state to the averages.
func (c *counter) sample(s *place.State) {
	a := c.summary.Average
	a.Samples++
	mean := func(sum *float64, x float64) { *sum += (x - *sum) / float64(a.Samples) }
	left, nodes, most := 0, 0, 0
	for _, u := range c.t.Units(machine.Node) {
		if u.Size > 0 {
			n := c.whole(s, &u)
			left, nodes, most = left+n, nodes+1, max(most, n)
		}
	}
	used, missing := cpuTime(s)
	mean(&a.Used, used)
	mean(&a.Missing, missing)
	cores := c.sharedCores(s, true)
	c.summary.SharedCores = max(c.summary.SharedCores, cores)
	mean(&a.SharedCores, float64(cores))
	mean(&a.Beside, float64(c.sharedCores(s, false)))
	mean(&a.Left, float64(left)/float64(nodes))
	mean(&a.Largest, float64(most))
}

// cpuTime returns, in CPUs, the CPU time that workloads asked for, and by how much the
// time promised to workloads that share, without best effort, exceeds their CPUs.
func cpuTime(s *place.State) (used, missing float64) {
	milli, shared := 0, 0
	var cpus cpuset.Set
	for g := range s.Grants() {
		milli += g.Request.Milli
		if g.Share.Milli > 0 && !g.Share.Counted && !g.Request.Class.Traits().Uncounted {
			shared += g.Share.Milli
			cpus = cpus.Union(s.Effective(g).Minus(g.Own))
		}
	}
	return float64(milli) / 1000, max(0, float64(shared)/1000-float64(cpus.Len()))
}

func (c *counter) sum(s *place.State) Summary {
	c.summary.Nodes, c.summary.L3s, c.summary.PoolNodes = c.nodes.spread(), c.l3s.spread(), c.poolNode.spread()
	for _, u := range c.t.Units(machine.Node) {
		if u.Size > 0 {
			left := Left{Node: u.ID, Whole: c.whole(s, &u), Any: largest(s, ones(s.Ownable(place.LSE).Intersect(u.CPUs)))}
			c.summary.Left = append(c.summary.Left, left)
		}
	}
	return c.summary
}

// whole returns how many CPUs one more workload could own on a node in wholly
// free cores.
func (c *counter) whole(s *place.State, node *place.Unit) int {
	ownable := s.Ownable(place.LSE).Intersect(node.CPUs)
	var cores []cpuset.Set
	for _, core := range c.t.Units(machine.Core) {
		if ownable.Contains(core.CPUs) {
			cores = append(cores, core.CPUs)
		}
	}
	return largest(s, cores)
}

// joins reports whether a step that moves nobody has added workloads that hold no CPUs by
// name to where several pods are already, which changes nothing of sharedCores.
func (c *counter) joins(step *Step, after *place.State) bool {
	added := after.Members(step.ID)
	if g, ok := after.Grant(step.ID); ok && step.Do == Place {
		added = func(yield func(*place.Grant) bool) { yield(g) }
	}
	for g := range added {
		if !g.Held().IsEmpty() || !c.twice.Contains(c.touched(after.Effective(g))) {
			return false
		}
	}
	return true
}

// sharedCores counts the cores that holders share with strangers: held cores on which
// two groups may run. A workload that holds a CPU runs on it. Without be, best effort
// is ignored.
func (c *counter) sharedCores(s *place.State, be bool) int {
	var held, once, twice cpuset.Set
	groups := map[string]cpuset.Set{}
	for g := range s.Grants() {
		if !be && g.Request.Class.Traits().Uncounted {
			continue
		}
		held = held.Union(g.Held())
		group := "pod " + g.Request.Group
		if g.Request.Group == "" {
			group = g.ID
		}
		groups[group] = groups[group].Union(c.touched(s.Effective(g)))
	}
	for _, cores := range groups {
		twice = twice.Union(once.Intersect(cores))
		once = once.Union(cores)
	}
	c.twice = twice
	return c.t.Count(machine.Core, c.touched(held).Intersect(twice))
}

// touched returns the CPUs of all cores that have one of the CPUs. Most steps
// ask for the same few sets.
func (c *counter) touched(cpus cpuset.Set) cpuset.Set {
	cores, known := c.cores[cpus]
	if !known {
		cores = c.t.Touched(machine.Core, cpus)
		c.cores[cpus] = cores
	}
	return cores
}

// ones returns the CPUs as sets of one.
func ones(cpus cpuset.Set) []cpuset.Set {
	var units []cpuset.Set
	for id := range cpus.All() {
		units = append(units, cpuset.MustOf(id))
	}
	return units
}

// largest returns how many CPUs of the units the state lets one more workload own. The
// state refuses the last shared CPU of another workload. So largest adds units in order
// and leaves out refused ones: halves first, as the parts of an accepted set are
// accepted, too.
func largest(s *place.State, units []cpuset.Set) int {
	const id = "\x00" // is no workload's
	var own cpuset.Set
	var add func(units []cpuset.Set)
	add = func(units []cpuset.Set) {
		if len(units) == 0 {
			return
		}
		more := own
		for _, u := range units {
			more = more.Union(u)
		}
		o := s.Offer()
		o.Grant = &place.Grant{ID: id, Own: more, Request: place.Request{ID: id, Class: place.LSE, Milli: 1000 * more.Len()}}
		if _, err := s.Commit(o); err == nil {
			own = more
		} else if half := len(units) / 2; half > 0 {
			add(units[:half])
			add(units[half:])
		}
	}
	add(units)
	return own.Len()
}
