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
	c.summary.SharedCores = max(c.summary.SharedCores, sharedCores(r.State))
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

// party is a workload as its neighbours see it.
type party struct {
	group      string
	held, runs cpuset.Set
}

func parties(s *place.State) []party {
	all := make([]party, 0, s.Len())
	for g := range s.Grants() {
		p := party{group: "pod " + g.Request.Group, held: g.Own, runs: s.Effective(g)}
		if g.Request.Group == "" {
			p.group = g.ID
		}
		if g.Share.Counted {
			p.held = p.held.Union(g.Share.Within)
		}
		all = append(all, p)
	}
	return all
}

// sharedCores counts the cores that holders share with strangers.
func sharedCores(s *place.State) int {
	all, n := parties(s), 0
	for _, core := range s.Topology().Units(machine.Core) {
		if shared(&core.CPUs, all) {
			n++
		}
	}
	return n
}

// shared reports whether one who holds CPUs of the core has a stranger on it.
func shared(core *cpuset.Set, all []party) bool {
	holder, runner := "", ""
	var holders, strangers bool // of a second group
	for i := range all {
		p := &all[i]
		if p.held.Overlap(core) > 0 {
			holders = holders || holder != "" && holder != p.group
			holder = p.group
		}
		if p.runs.Overlap(core) > 0 {
			strangers = strangers || runner != "" && runner != p.group
			runner = p.group
		}
	}
	return holders || holder != "" && (strangers || runner != "" && runner != holder)
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
