package place

import (
	"iter"
	"slices"
)

// Load is the CPU time of the workloads that share some CPUs.
type Load struct {
	Grants int
	Milli  int // CPU time, in thousandths of a CPU
}

// CPUs returns the CPUs that the workloads need: one at least, if there are any.
func (l Load) CPUs() int { return max(min(1, l.Grants), WholeCPUs(l.Milli)) }

// Pools yields the named pools by name, with the load of their members. The
// caller must not change them.
func (s *State) Pools() iter.Seq2[*Pool, Load] {
	return func(yield func(*Pool, Load) bool) {
		for _, b := range s.pools {
			if !yield(&b.Pool, b.Load) {
				return
			}
		}
	}
}

// setPools first frees the CPUs of the named pools, then sets the pools anew, so
// that CPUs may pass from one to another. Members stay.
func (c *change) setPools(pools []Pool) error {
	for i := range pools {
		if pools[i].Name == "" {
			return &InvalidError{Reason: "a pool without name"}
		}
		if at, ok := c.pool(pools[i].Name); ok {
			c.unhold(c.pools[at].Pool.CPUs)
			c.narrowed = true
		}
	}
	if len(pools) > 0 {
		c.pools = slices.Clone(c.pools)
	}
	for i := range pools {
		p := &pools[i]
		at, ok := c.pool(p.Name)
		if p.CPUs.IsEmpty() {
			if ok {
				c.pools = slices.Delete(c.pools, at, at+1)
			}
			continue
		}
		if bad := p.CPUs.Minus(c.conf.Allowed.Minus(c.owned).Minus(c.closed)); !bad.IsEmpty() {
			return &ConflictError{p.Name, bad, "held by others or not allowed"}
		}
		if p.CPUs.Overlaps(c.conf.Floor) {
			return &FloorError{CPUs: c.conf.Floor}
		}
		c.hold(p.CPUs)
		b := &poolState{Pool: *p}
		if ok {
			b.Load = c.pools[at].Load
			c.pools[at] = b
		} else {
			c.pools = slices.Insert(c.pools, at, b)
		}
	}
	return nil
}
