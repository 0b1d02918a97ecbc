package balloons

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/place"
)

// part is the share of an instance that follows one type's rules: all of it, or
// that of a component.
type part struct {
	ty   *Type
	cpus cpuset.Set
}

// parts returns the parts of an instance; nil if a component's type is no more.
func (p *Policy) parts(ty *Type, pool *place.Pool) []part {
	if len(ty.Components) == 0 {
		return []part{{ty, pool.CPUs}}
	}
	var parts []part
	for _, f := range strings.Fields(pool.Kind)[1:] {
		name, list, _ := strings.Cut(f, "=")
		c := p.find(name)
		cpus, err := cpuset.Parse(list)
		if c == nil || err != nil {
			return nil
		}
		parts = append(parts, part{c, cpus})
	}
	return parts
}

// blank returns the parts of an instance to be made.
func (k *task) blank(ty *Type) ([]part, error) {
	if len(ty.Components) == 0 {
		return []part{{ty: ty}}, nil
	}
	names := ty.Components
	if ty.BalanceComponents {
		c := place.Choice{
			Name: "component", Criteria: []string{"balloons"}, Count: len(names),
			Fits:  func(i int) string { return k.full(names[i], 1) },
			Rank:  func(i int) place.Rank { return place.Rank{k.count(names[i])} },
			Label: func(i int) string { return names[i] },
		}
		at := c.Best(k.why)
		if at < 0 {
			return nil, &place.RejectedError{ID: k.r.ID, Reason: "every component of " + ty.Name + " has all its balloons (maxBalloons)"}
		}
		names = names[at : at+1]
	}
	var parts []part
	wanted := map[string]int{}
	for _, name := range names {
		wanted[name]++
		if reason := k.full(name, wanted[name]); reason != "" {
			return nil, &place.RejectedError{ID: k.r.ID, Reason: "component " + name + ": " + reason}
		}
		parts = append(parts, part{ty: k.find(name)})
	}
	return parts, nil
}

// full says why there cannot be n more instances of a type, "" if there can.
func (k *task) full(name string, n int) string {
	c := k.find(name)
	switch {
	case c == nil:
		return "no such type"
	case c.MaxBalloons > 0 && k.count(name)+n > c.MaxBalloons:
		return "has all its balloons"
	}
	return ""
}

// size returns the CPUs that an instance with this load has; ok is false if that
// is more than the type allows.
func (ty *Type) size(milli int) (n int, ok bool) {
	n = max(1, ty.MinCPUs)
	if !ty.Overcommit {
		n = max(n, place.WholeCPUs(milli))
	}
	return n, ty.MaxCPUs == 0 || n <= ty.MaxCPUs
}

// split divides CPU time equally; the parts add up to it.
func split(milli, parts, i int) int {
	share := milli / parts
	if i < milli%parts {
		share++
	}
	return share
}

// needs returns how many CPUs an instance lacks for a load; ok is false if the
// load is more than its type allows.
func (p *Policy) needs(ty *Type, b *balloon, milli int) (lacks int, ok bool) {
	if len(ty.Components) == 0 { // the usual case, without allocations
		n, ok := ty.size(milli)
		return max(0, n-b.size), ok
	}
	parts := p.parts(ty, b.pool)
	for i := range parts {
		n, ok := parts[i].ty.size(split(milli, len(parts), i))
		if !ok {
			return 0, false
		}
		lacks += max(0, n-parts[i].cpus.Len())
	}
	return lacks, parts != nil
}

// fit returns the instance with a load. The instance grows around its CPUs and shrinks
// to a part of them, which includes its CPUs at the start.
func (k *task) fit(ty *Type, pool *place.Pool, milli int) (place.Pool, error) {
	if len(ty.Lists) > 0 {
		return k.fitLists(ty, pool, milli)
	}
	var parts []part
	var err error
	if pool.CPUs.IsEmpty() {
		parts, err = k.blank(ty)
	} else if parts = k.parts(ty, pool); parts == nil {
		err = &place.RejectedError{ID: k.r.ID, Reason: "a component of " + ty.Name + " is no more"}
	}
	if err != nil {
		return place.Pool{}, err
	}
	grow, shrink := false, false
	sizes := make([]int, len(parts))
	for i := range parts {
		n, ok := parts[i].ty.size(split(milli, len(parts), i))
		if !ok {
			rule := fmt.Sprintf("a balloon of type %s has at most %s (maxCPUs)", parts[i].ty.Name, plain.Count(parts[i].ty.MaxCPUs, "CPU"))
			return place.Pool{}, &place.CPUsError{Asked: n, Available: parts[i].ty.MaxCPUs, Rule: place.Rule{Text: rule, Alone: true}}
		}
		sizes[i] = n
		grow = grow || n > parts[i].cpus.Len()
		shrink = shrink || n < parts[i].cpus.Len()
	}
	if grow {
		err = k.grow(pool, parts, sizes)
	}
	if shrink && err == nil {
		err = k.shrink(parts, sizes, k.home(ty, pool, len(parts)))
	}
	if err != nil || !grow && !shrink {
		return *pool, err
	}
	return k.pool(ty, pool.Name, parts), nil
}

// grow gives free CPUs to the parts that want more.
func (k *task) grow(pool *place.Pool, parts []part, sizes []int) error {
	free := k.within(pool, k.free())
	for i := range parts {
		part := &parts[i]
		more, err := k.take(part.ty, free, part.cpus, max(0, sizes[i]-part.cpus.Len()))
		if err != nil {
			return err
		}
		free, part.cpus = free.Minus(more), part.cpus.Union(more)
	}
	return nil
}

// shrink leaves fewer CPUs to the parts that want fewer, those of their home
// among them.
func (k *task) shrink(parts []part, sizes []int, home []part) error {
	for i := range parts {
		part := &parts[i]
		if sizes[i] >= part.cpus.Len() {
			continue
		}
		first := home[i].cpus.Intersect(part.cpus)
		kept, err := k.take(part.ty, part.cpus.Minus(first), first, sizes[i]-first.Len())
		if err != nil {
			return err
		}
		part.cpus = first.Union(kept)
	}
	return nil
}

// within keeps growth inside the nodes that are a condition of a member.
func (k *task) within(pool *place.Pool, free cpuset.Set) cpuset.Set {
	if pool.CPUs.IsEmpty() {
		return free
	}
	for g := range k.s.Grants() {
		if g.Request.NodesRequired && g.Share.Pool == pool.Name && g.ID != k.r.ID {
			free = free.Intersect(k.t.CPUsOf(g.Request.Nodes))
		}
	}
	return free
}

// pool puts an instance together.
func (k *task) pool(ty *Type, name string, parts []part) place.Pool {
	next := place.Pool{Name: name, Kind: ty.Name}
	for _, part := range parts {
		next.CPUs = next.CPUs.Union(part.cpus)
		if len(ty.Components) > 0 {
			next.Kind += " " + part.ty.Name + "=" + part.cpus.String()
		}
	}
	next.Idle = k.idle(ty, next.CPUs)
	return next
}

// home returns the CPUs that the parts of an instance had at the start; none if the
// instance did not exist then.
func (k *task) home(ty *Type, pool *place.Pool, parts int) []part {
	if number(pool.Name) < ty.MinBalloons {
		if empty, err := place.New(k.t, *k.s.Config()); err == nil {
			pools, _ := k.first(empty)
			for i := range pools {
				if pools[i].Name != pool.Name {
					continue
				}
				if was := k.parts(ty, &pools[i]); len(was) == parts {
					return was
				}
			}
		}
	}
	return make([]part, parts)
}

// first returns the instances that exist from the start; s is empty.
func (p *Policy) first(s *place.State) ([]place.Pool, error) {
	types := p.Types
	if !slices.ContainsFunc(types, func(ty Type) bool { return ty.Name == Default }) {
		types = append(slices.Clip(types), *p.find(Default))
	}
	var pools []place.Pool
	for i := range types {
		ty := &types[i]
		if i == len(p.Types) && p.task(s, &place.Request{}).free().IsEmpty() {
			break // without a CPU to spare the floor serves
		}
		for n := range ty.MinBalloons {
			k := p.task(s, &place.Request{ID: name(ty, n)})
			pool, err := k.fit(ty, &place.Pool{Name: name(ty, n)}, 0)
			if err == nil {
				o := s.Offer()
				o.Pools = []place.Pool{pool}
				s, err = s.Commit(o)
			}
			if err != nil {
				return nil, fmt.Errorf("balloons of type %q: %w", ty.Name, err)
			}
			pools = append(pools, pool)
		}
	}
	return pools, nil
}

// fitLists returns an instance made of lists: as it is, or a new one of the
// first free ones.
func (k *task) fitLists(ty *Type, pool *place.Pool, milli int) (place.Pool, error) {
	if !pool.CPUs.IsEmpty() {
		if n := place.WholeCPUs(milli); n > pool.CPUs.Len() && !ty.Overcommit {
			rule := fmt.Sprintf("%s has CPUs %s and does not grow (lists)", pool.Name, pool.CPUs)
			return place.Pool{}, &place.CPUsError{Asked: n, Available: pool.CPUs.Len(), Rule: place.Rule{Text: rule, Alone: true}}
		}
		return *pool, nil
	}
	count := 1
	if text, ok := k.r.Hints[HintLists]; ok {
		count, _ = strconv.Atoi(text)
	}
	allowed := k.s.Config().Allowed.Minus(k.s.Owned())
	allowed = k.required(allowed)
	next := place.Pool{Name: pool.Name, Kind: ty.Name}
	got := 0
	var all cpuset.Set
	for _, list := range ty.Lists {
		all = all.Union(list)
	}
	for _, list := range ty.Lists {
		enough := ty.Overcommit || 1000*next.CPUs.Len() >= milli
		if got > 0 && got >= count && enough {
			break
		}
		if allowed.Contains(list) && k.onSocket(list) {
			next.CPUs = next.CPUs.Union(list)
			got++
		}
	}
	if got == 0 || got < count || !ty.Overcommit && 1000*next.CPUs.Len() < milli {
		return place.Pool{}, &place.RejectedError{ID: k.r.ID, Reason: "too few free CPU lists of " + k.kind() + ty.Name + " (lists)", Short: true, Within: all}
	}
	next.Idle = k.idle(ty, next.CPUs)
	return next, nil
}
