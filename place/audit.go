package place

import (
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
)

// Difference describes how s differs from o; "" if they are equal. Explanations
// and generations do not count.
func (s *State) Difference(o *State) string {
	a, b := slices.Collect(s.Grants()), slices.Collect(o.Grants())
	if !slices.EqualFunc(a, b, (*Grant).Equal) {
		for _, g := range a {
			if h, ok := o.Grant(g.ID); !ok || !g.Equal(h) {
				return fmt.Sprintf("grant %q", g.ID)
			}
		}
		return fmt.Sprintf("%d grants and %d", len(a), len(b))
	}
	switch {
	case !slices.EqualFunc(s.pools, o.pools, func(a, b *poolState) bool { return *a == *b }):
		return "pools"
	case s.owned != o.owned:
		return fmt.Sprintf("owned CPUs %s and %s", s.owned, o.owned)
	case !slices.Equal(s.refs, o.refs) || s.closed != o.closed:
		return fmt.Sprintf("counted CPUs %s and %s", s.closed, o.closed)
	case s.lent != o.lent:
		return fmt.Sprintf("lent CPUs %s and %s", s.lent, o.lent)
	case !slices.Equal(s.free, o.free):
		return "free memory"
	case !slices.Equal(s.using, o.using):
		return "devices"
	case !s.sameBounds(o):
		return "sums of the default pool"
	}
	return ""
}

// SameCPUs reports whether no CPU changed hands between two states: workloads that are in
// both, with the same grant, run on the same CPUs.
func (s *State) SameCPUs(o *State) bool {
	return s.holdings == o.holdings && slices.EqualFunc(s.pools, o.pools, func(a, b *poolState) bool { return a.Pool == b.Pool })
}

func (s *State) sameBounds(o *State) bool {
	return len(s.bounds) == len(o.bounds) && !slices.ContainsFunc(s.bounds, func(b Bound) bool {
		return !slices.ContainsFunc(o.bounds, func(c Bound) bool { return *b.Region == *c.Region && b.Load == c.Load })
	})
}

// Audit recomputes the state from its grants and pools, and reports each
// difference: a sum, a CPU with two owners, a workload without a CPU. Tests call
// it, and callers that check a state before they trust it.
func (s *State) Audit() error {
	var errs []error
	fresh, err := New(s.t, *s.conf)
	if err != nil {
		return err
	}
	again, err := fresh.Reinstate(s.Save())
	errs = append(errs, err)
	if diff := s.Difference(again); diff != "" {
		errs = append(errs, fmt.Errorf("state: recomputed from its grants: %s", diff))
	}
	errs = append(errs, s.auditOwners())
	for i, free := range s.free {
		if free < 0 || free > s.total[i] {
			errs = append(errs, fmt.Errorf("memory: %d of %d bytes free", free, s.total[i]))
		}
	}
	for g := range s.Grants() {
		cpus := s.Effective(g)
		if cpus.IsEmpty() {
			errs = append(errs, fmt.Errorf("grant %q: no CPU", g.ID))
		}
		if !s.conf.Allowed.Contains(cpus) {
			errs = append(errs, fmt.Errorf("grant %q: CPUs %s are not allowed", g.ID, cpus.Minus(s.conf.Allowed)))
		}
	}
	return errors.Join(errs...)
}

// auditOwners reports CPUs that one workload owns and another may run on.
func (s *State) auditOwners() error {
	var errs []error
	grants := slices.Collect(s.Grants())
	type use struct { // many run on the same CPUs
		cpus   cpuset.Set
		borrow bool
	}
	users := map[use][]*Grant{}
	var uses []use
	for _, g := range grants {
		u := use{s.Effective(g), g.Request.Class.Traits().Borrow}
		if users[u] == nil {
			uses = append(uses, u)
		}
		users[u] = append(users[u], g)
	}
	for _, g := range grants {
		if g.Own.IsEmpty() && g.Fence.IsEmpty() {
			continue
		}
		mine := g.Own.Union(g.Fence)
		for _, u := range uses {
			both := mine.Intersect(u.cpus)
			if both.IsEmpty() || u.borrow && g.Lent && !u.cpus.Overlaps(g.Fence) {
				continue
			}
			for _, o := range users[u] {
				if o != g && !takeTurns(&o.Request, &g.Request) {
					errs = append(errs, fmt.Errorf("CPUs %s: owned by %q, used by %q", both, g.ID, o.ID))
				}
			}
		}
		for p := range s.Pools() {
			if both := mine.Intersect(p.CPUs); !both.IsEmpty() {
				errs = append(errs, fmt.Errorf("CPUs %s: owned by %q, in pool %q", both, g.ID, p.Name))
			}
		}
		if floor := mine.Intersect(s.conf.Floor); !floor.IsEmpty() {
			errs = append(errs, fmt.Errorf("CPUs %s: owned by %q, of the floor", floor, g.ID))
		}
	}
	return errors.Join(errs...)
}
