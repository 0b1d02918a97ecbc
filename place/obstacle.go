package place

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
)

// Obstacle is a rule that keeps CPUs from becoming a workload's own, or memory.
type Obstacle struct {
	CPUs cpuset.Set `json:"cpus"`
	// Rule is "machine" (it has no more), "memory" (of others), "nodes" (the request's), "allowed", "reserved",
	// "floor" (fields of Config), "exclusive", "idle siblings", "counted", "pool" or "shared".
	Rule string `json:"rule"`
	// By names the workloads that have the CPUs; the pool comes first. More is how many others
	// share, which are not named.
	By   []string `json:"by,omitempty"`
	More int      `json:"more,omitempty"`
	// Needs is how many of the CPUs shared workloads need.
	Needs int `json:"needs,omitempty"`
}

// Obstacles says for each online CPU that a request may not own why not, and which CPUs
// shared workloads need: what a refusal for want of CPUs comes from. They are in a fixed
// order: what the configuration keeps comes first.
func (s *State) Obstacles(r *Request) []Obstacle {
	var all []Obstacle
	left := s.t.Online()
	note := func(o Obstacle) {
		if o.CPUs = o.CPUs.Intersect(left); !o.CPUs.IsEmpty() {
			left = left.Minus(o.CPUs)
			all = append(all, o)
		}
	}
	if r.NodesRequired && !r.Nodes.IsEmpty() {
		note(Obstacle{CPUs: left.Minus(s.t.CPUsOf(r.Nodes)), Rule: "nodes"})
	}
	note(Obstacle{CPUs: left.Minus(s.conf.Allowed), Rule: "allowed"})
	if !r.Class.Traits().Reserved {
		note(Obstacle{CPUs: s.conf.Reserved, Rule: "reserved"})
	}
	note(Obstacle{CPUs: s.conf.Floor, Rule: "floor"})
	reusable := s.OwnableBy(r)
	for g := range s.owners.all() {
		if g.ID == r.ID {
			left = left.Minus(g.Held()) // its own CPUs stand in nobody's way
			continue
		}
		by := []string{g.ID}
		note(Obstacle{CPUs: g.Own.Minus(reusable), Rule: "exclusive", By: by})
		note(Obstacle{CPUs: g.Fence.Minus(reusable), Rule: "idle siblings", By: by})
		if g.Share.Counted && !g.Share.Open {
			note(Obstacle{CPUs: g.Share.Within, Rule: "counted", By: by})
		}
	}
	for p := range s.Pools() {
		note(Obstacle{CPUs: p.CPUs, Rule: "pool", By: append([]string{p.Name}, s.PoolMembers(p.Name)...)})
	}
	if o, ok := s.needed(r.ID); ok {
		note(o)
	}
	return all
}

// PoolMembers returns the ids of the workloads in a named pool.
func (s *State) PoolMembers(pool string) (ids []string) {
	for g := range s.Grants() {
		if g.Share.Pool == pool {
			ids = append(ids, g.ID)
		}
	}
	return ids
}

// needed is what workloads in the default pool, but for one, leave of it. The state has their
// sums: thousands may share, and a refusal names a few of them.
func (s *State) needed(but string) (o Obstacle, ok bool) {
	all, milli := 0, 0
	for _, b := range s.bounds {
		all += b.Grants
		if !b.BE {
			milli += b.Milli
		}
	}
	if g, held := s.Grant(but); held && g.Share.follows() {
		all--
		if !g.Request.Class.Traits().Borrow {
			milli -= g.Share.Milli
		}
	}
	if all == 0 {
		return o, false
	}
	for g := range s.Grants() {
		if g.ID != but && g.Share.follows() {
			if o.By = append(o.By, g.ID); len(o.By) == min(all, named+1) {
				break
			}
		}
	}
	o.CPUs, o.Rule, o.More, o.Needs = s.Sharable(), "shared", all-len(o.By), max(1, WholeCPUs(milli))
	return o, true
}

// String says it in a clause: "CPU 0 is reserved for the host (reserved)". The word in
// parentheses is the setting that changes it.
func (o Obstacle) String() string {
	cpus, is, stays, needs := "CPU "+o.CPUs.String(), "is", "stays", "needs"
	if o.CPUs.Len() > 1 {
		cpus, is, stays = "CPUs "+o.CPUs.String(), "are", "stay"
	}
	if len(o.By) > 1 {
		needs = "need"
	}
	by := names(o.By, o.More)
	switch o.Rule {
	case "machine":
		return "the host has " + plain.Count(o.CPUs.Len(), "CPU")
	case "memory":
		return "the rest is of " + by
	case "nodes":
		return fmt.Sprintf("%s %s not of the NUMA nodes asked for (nodes)", cpus, is)
	case "allowed":
		return fmt.Sprintf("%s %s not for workloads (allowed)", cpus, is)
	case "reserved":
		return fmt.Sprintf("%s %s reserved for the host (reserved)", cpus, is)
	case "floor":
		return fmt.Sprintf("%s %s shared, for workloads without CPUs of their own (floor, noFloor)", cpus, stays)
	case "exclusive":
		return fmt.Sprintf("%s %s exclusive to %s", cpus, is, by)
	case "idle siblings":
		return fmt.Sprintf("%s %s kept idle beside the CPUs of %s", cpus, is, by)
	case "counted":
		return fmt.Sprintf("%s %s held by %s", cpus, is, by)
	case "pool":
		if len(o.By) == 1 {
			return fmt.Sprintf("%s %s of the pool %s, which is empty", cpus, is, by)
		}
		return fmt.Sprintf("%s %s of the pool %s, of %s", cpus, is, o.By[0], Names(o.By[1:]))
	}
	return fmt.Sprintf("%s %s shared by %s, which %s %s", cpus, is, by, needs, plain.Count(o.Needs, "CPU"))
}

// named is how many workloads a text names, or one more if that is all.
const named = 4

// Names lists the first few of names.
func Names(list []string) string { return names(list, 0) }

// names lists the first few of a list that goes on.
func names(list []string, more int) string {
	if more += len(list) - named; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:named], ", "), more)
	}
	return strings.Join(list, ", ")
}

// OnlyIsolated is the rule of a request that isolated CPUs are a condition of.
func OnlyIsolated(t *Topology) Rule {
	isolated := t.Machine().Isolated
	if isolated.IsEmpty() {
		return Rule{Text: "isolated CPUs are asked for, and the host has none (isolated; isolcpus of the kernel)", Alone: true}
	}
	return Rule{Text: fmt.Sprintf("only isolated CPUs are asked for, which are %s (isolated)", isolated), Within: isolated}
}

// ShortageError is a refusal for want of CPUs or memory, with what stands in the way.
type ShortageError struct {
	Err       error // with a *CPUsError, *MemoryError, *SMTError, *NUMAError, *FloorError, *RejectedError or *ConflictError
	Obstacles []Obstacle
}

// Error is the refusal, and each obstacle.
func (e *ShortageError) Error() string {
	clauses := make([]string, len(e.Obstacles))
	for i, o := range e.Obstacles {
		clauses[i] = o.String()
	}
	between := ": "
	if cpus := (*CPUsError)(nil); errors.As(e.Err, &cpus) && cpus.Rule.Text != "" {
		between = "; " // the rule was the first
	}
	return e.Err.Error() + between + strings.Join(clauses, "; ")
}

// Unwrap returns the refusal.
func (e *ShortageError) Unwrap() error { return e.Err }

// Blame is an error of Place, Resize or Commit on a state, as a *ShortageError if it is
// for want of CPUs or memory that others have, or that the configuration keeps; any other error
// stays, and so does one that is blamed already.
func (s *State) Blame(r *Request, err error) error {
	if blamed := (*ShortageError)(nil); errors.As(err, &blamed) {
		return err
	}
	var all []Obstacle
	var cpus *CPUsError
	var memory *MemoryError
	var conflict *ConflictError
	switch {
	case errors.As(err, &conflict):
		all = s.obstacles(r, conflict.CPUs)
	case errors.As(err, &cpus):
		if cpus.Rule.Alone {
			return err
		}
		within := s.t.Online()
		if !cpus.Rule.Within.IsEmpty() {
			within = cpus.Rule.Within
		}
		all = s.obstacles(r, within)
		asked := cpus.Asked
		if cpus.Milli { // CPU time of a pool: what the configuration keeps is shared, too
			all = slices.DeleteFunc(all, func(o Obstacle) bool { return o.Rule == "reserved" || o.Rule == "floor" })
			asked = WholeCPUs(asked)
		} else if r.Milli%1000 != 0 {
			err = fmt.Errorf("%w (%s is rounded up to whole CPUs)", err, Milli(r.Milli))
		}
		if online := s.t.Online(); asked > online.Len() {
			all = slices.Insert(all, 0, Obstacle{CPUs: online, Rule: "machine"})
		}
	case errors.As(err, &memory):
		all = s.holding(r, memory.Resource)
	case s.short(r, err):
		online := s.t.Online()
		within := online
		var rejected *RejectedError
		var floor *FloorError
		if errors.As(err, &rejected) && !rejected.Within.IsEmpty() {
			within = rejected.Within
		} else if errors.As(err, &floor) && !floor.CPUs.IsEmpty() {
			within = floor.CPUs
		}
		if all = s.obstacles(r, within); WholeCPUs(r.Milli) > online.Len() {
			all = slices.Insert(all, 0, Obstacle{CPUs: online, Rule: "machine"})
		}
	}
	if len(all) == 0 {
		return err
	}
	return &ShortageError{err, all}
}

// obstacles are those that concern some CPUs.
func (s *State) obstacles(r *Request, cpus cpuset.Set) []Obstacle {
	return slices.DeleteFunc(s.Obstacles(r), func(o Obstacle) bool { return !o.CPUs.Overlaps(cpus) })
}

// holding says who else has a resource of the NUMA nodes, nil if nobody has.
func (s *State) holding(r *Request, resource string) []Obstacle {
	o := Obstacle{Rule: "memory"}
	for g := range s.Grants() {
		if g.ID != r.ID && slices.ContainsFunc(g.Memory, func(b Block) bool { return b.Resource == resource }) {
			o.By = append(o.By, g.ID)
		}
	}
	if o.By == nil {
		return nil
	}
	return []Obstacle{o}
}

// short reports whether a refusal that does not count CPUs is for want of them.
func (s *State) short(r *Request, err error) bool {
	var smt *SMTError
	var numa *NUMAError
	var rejected *RejectedError
	switch {
	case errors.As(err, &smt):
		return smt.PerCore <= 1 || smt.Asked%smt.PerCore == 0
	case errors.As(err, &rejected):
		return rejected.Short
	case errors.As(err, &numa):
		return s.mostTogether(r) < r.Whole()
	}
	return errors.As(err, new(*FloorError))
}

// mostTogether is how many CPUs a request could own in the nodes that it must have, or in
// one node.
func (s *State) mostTogether(r *Request) (most int) {
	free := s.OwnableBy(r)
	if r.NodesRequired && !r.Nodes.IsEmpty() {
		in := s.t.CPUsOf(r.Nodes)
		return free.Overlap(&in)
	}
	for _, node := range s.t.Units(machine.Node) {
		most = max(most, free.Overlap(&node.CPUs))
	}
	return most
}
