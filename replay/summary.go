package replay

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

const nodeKind = machine.Node

// Summary measures a run by the same yardstick whatever the policy.
type Summary struct {
	// Admitted and Refused count the placings and resizings.
	Admitted int `json:"admitted"`
	Refused  int `json:"refused"`
	// Nodes and L3s are what the CPUs of those admitted workloads touch that
	// hold CPUs by name (own or counted); PoolNodes what the others may run on.
	Nodes     Spread `json:"nodes"`
	L3s       Spread `json:"l3s"`
	PoolNodes Spread `json:"poolNodes"`
	// SharedCores is the most cores at any time that a workload which holds CPUs
	// of it by name shares with a workload of another pod: one that may run
	// on any of the core's CPUs.
	SharedCores int `json:"sharedCores"`
	// Moves counts, over releases and restarts, the other workloads that lost a
	// CPU or a memory node.
	Moves int `json:"moves"`
	// Left is, for each NUMA node with CPUs, the largest exclusive request that
	// the books would still accept after the last step.
	Left []Left `json:"left"`
}

// Spread is a number of domains over several workloads.
type Spread struct {
	Workloads int     `json:"workloads"`
	Mean      float64 `json:"mean"`
	Max       int     `json:"max"`
}

// Left is what is left of a NUMA node: the largest number of CPUs that one more
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
	cores                map[cpuset.Set]cpuset.Set // what touched found
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
	case Release, Restart:
		c.summary.Moves += len(r.Moved)
	case Place, Resize:
		if r.Error != "" {
			c.summary.Refused++
			break
		}
		c.summary.Admitted++
		if held := r.Own.Union(r.Counted); !held.IsEmpty() {
			c.nodes.add(c.t.Count(machine.Node, held))
			c.l3s.add(c.t.Count(machine.L3, held))
		} else {
			c.poolNode.add(c.t.Count(machine.Node, r.CPUs))
		}
	}
	c.summary.SharedCores = max(c.summary.SharedCores, c.sharedCores(r.State))
}

func (c *counter) sum(s *place.State) Summary {
	c.summary.Nodes, c.summary.L3s, c.summary.PoolNodes = c.nodes.spread(), c.l3s.spread(), c.poolNode.spread()
	for _, u := range c.t.Units(machine.Node) {
		if u.Size > 0 {
			ownable := s.Ownable(place.LSE).Intersect(u.CPUs)
			var cores []cpuset.Set
			for _, core := range c.t.Units(machine.Core) {
				if ownable.Contains(core.CPUs) {
					cores = append(cores, core.CPUs)
				}
			}
			c.summary.Left = append(c.summary.Left, Left{Node: u.ID, Whole: largest(s, cores), Any: largest(s, ones(ownable))})
		}
	}
	return c.summary
}

// sharedCores counts the cores that holders share with strangers: those that
// are held and on which two groups may run, for who holds a CPU runs on it.
func (c *counter) sharedCores(s *place.State) int {
	var held, once, twice cpuset.Set
	groups := map[string]cpuset.Set{}
	for g := range s.Grants() {
		held = held.Union(g.Own)
		if g.Share.Counted {
			held = held.Union(g.Share.Within)
		}
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

// largest returns how many CPUs of the units the books let one more workload
// own. They refuse the last CPU that somebody needs to share, so units are added
// one by one and those refused are left out.
func largest(s *place.State, units []cpuset.Set) int {
	const id = "\x00" // is no workload's
	var own cpuset.Set
	for _, u := range units {
		more := own.Union(u)
		o := s.Offer()
		o.Grant = &place.Grant{ID: id, Own: more, Request: place.Request{ID: id, Class: place.LSE, Milli: 1000 * more.Len()}}
		if _, err := s.Commit(o); err == nil {
			own = more
		}
	}
	return own.Len()
}
