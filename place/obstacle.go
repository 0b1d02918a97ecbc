package place

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
)

// Obstacle is a rule that keeps CPUs from becoming a workload's own.
type Obstacle struct {
	CPUs cpuset.Set `json:"cpus"`
	// Rule is "allowed", "reserved", "floor" (fields of Config), "exclusive", "idle
	// siblings", "counted", "pool" or "shared".
	Rule string `json:"rule"`
	// By names the workloads, or the pool, that have the CPUs.
	By []string `json:"by,omitempty"`
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
	note(Obstacle{CPUs: left.Minus(s.conf.Allowed), Rule: "allowed"})
	if !r.Class.Traits().Reserved {
		note(Obstacle{CPUs: s.conf.Reserved, Rule: "reserved"})
	}
	note(Obstacle{CPUs: s.conf.Floor, Rule: "floor"})
	reusable := s.OwnableBy(r)
	for g := range s.Grants() {
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
		note(Obstacle{CPUs: p.CPUs, Rule: "pool", By: []string{p.Name}})
	}
	if o, ok := s.needed(r.ID); ok {
		note(o)
	}
	return all
}

// needed is what workloads in the default pool, but for one, leave of it.
func (s *State) needed(but string) (o Obstacle, ok bool) {
	milli := 0
	for g := range s.Grants() {
		if g.ID == but || g.Share.Counted || g.Share.Within.IsEmpty() {
			continue
		}
		o.By = append(o.By, g.ID)
		if !g.Request.Class.Traits().Borrow {
			milli += g.Share.Milli
		}
	}
	o.CPUs, o.Rule, o.Needs = s.Sharable(), "shared", max(1, WholeCPUs(milli))
	return o, len(o.By) > 0
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
	by := listed(o.By)
	switch o.Rule {
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
		return fmt.Sprintf("%s %s of the pool %s", cpus, is, by)
	}
	return fmt.Sprintf("%s %s shared by %s, which %s %s", cpus, is, by, needs, plain.Count(o.Needs, "CPU"))
}

// listed names the first few of names.
func listed(names []string) string {
	const most = 4
	if more := len(names) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// ShortageError is a refusal for want of CPUs, with what stands in the way.
type ShortageError struct {
	Err       error // with a *CPUsError, *SMTError, *FloorError or *ConflictError
	Obstacles []Obstacle
}

// Error is the refusal, and each obstacle.
func (e *ShortageError) Error() string {
	clauses := make([]string, len(e.Obstacles))
	for i, o := range e.Obstacles {
		clauses[i] = o.String()
	}
	if len(clauses) == 0 {
		return e.Err.Error()
	}
	return e.Err.Error() + ": " + strings.Join(clauses, "; ")
}

// Unwrap returns the refusal.
func (e *ShortageError) Unwrap() error { return e.Err }

// Blame is an error of Place, Resize or Commit on a state, as a *ShortageError if it is
// for want of CPUs; any other error stays, and so does one that is blamed already.
func (s *State) Blame(r *Request, err error) error {
	var cpus *CPUsError
	var smt *SMTError
	var floor *FloorError
	var conflict *ConflictError
	if blamed := (*ShortageError)(nil); errors.As(err, &blamed) {
		return err
	}
	if errors.As(err, &conflict) && !conflict.CPUs.IsEmpty() {
		if all := s.Obstacles(r); len(all) > 0 {
			all = slices.DeleteFunc(all, func(o Obstacle) bool { return !o.CPUs.Overlaps(conflict.CPUs) })
			return &ShortageError{err, all}
		}
	}
	if !errors.As(err, &cpus) && !errors.As(err, &smt) && !errors.As(err, &floor) {
		return err
	}
	all := s.Obstacles(r)
	if cpus != nil && cpus.Milli { // CPU time of a pool: what the configuration keeps is shared, too
		all = slices.DeleteFunc(all, func(o Obstacle) bool { return o.Rule == "reserved" || o.Rule == "floor" })
	}
	if len(all) == 0 {
		return err
	}
	if cpus != nil && !cpus.Milli && r.Milli%1000 != 0 {
		err = fmt.Errorf("%w (%s is rounded up to whole CPUs)", err, Milli(r.Milli))
	}
	return &ShortageError{err, all}
}
