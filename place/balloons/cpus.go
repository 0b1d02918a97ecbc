package balloons

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// free returns the CPUs that balloons without lists may take.
func (k *task) free() cpuset.Set {
	return k.required(k.s.Ownable(place.LS).Minus(k.listed()))
}

// required returns the CPUs on the nodes that are a condition.
func (k *task) required(cpus cpuset.Set) cpuset.Set {
	if !k.r.NodesRequired || k.r.Nodes.IsEmpty() {
		return cpus
	}
	return cpus.Intersect(k.t.CPUsOf(k.r.Nodes))
}

// listed returns the CPUs that are kept for types with lists.
func (p *Policy) listed() cpuset.Set {
	var cpus cpuset.Set
	for i := range p.Types {
		for _, list := range p.Types[i].Lists {
			cpus = cpus.Union(list)
		}
	}
	return cpus
}

// idle returns the CPUs that members may use while they are in no balloon.
func (k *task) idle(ty *Type, cpus cpuset.Set) cpuset.Set {
	if ty.ShareIdle == NoLevel {
		return cpuset.Set{}
	}
	conf := k.s.Config()
	around := conf.Allowed
	if ty.ShareIdle != SystemLevel {
		around = k.t.Touched(machine.Kind(ty.ShareIdle-PackageLevel), cpus).Intersect(conf.Allowed)
	}
	return around.Minus(cpus).Minus(k.t.Machine().Isolated).Minus(conf.Reserved).Minus(conf.Floor).Minus(k.listed())
}

// take chooses n CPUs of from, for a balloon that has others.
func (k *task) take(ty *Type, from, has cpuset.Set, n int) (cpuset.Set, error) {
	if n > from.Len() {
		k.why.Lacking(k.t, "free CPUs", from)
		return cpuset.Set{}, &place.CPUsError{Asked: n, Available: from.Len()}
	}
	if n == 0 {
		return cpuset.Set{}, nil
	}
	from = k.prefer(ty, from, n)
	c := chooser{
		task: k, n: n, v: k.t.View(from, has),
		sign:   order(ty.Branches, k.Branches),
		spread: order(ty.Cores, k.Cores) < 0,
	}
	return c.choose()
}

// order returns 1 for pack, -1 for spread.
func order(own, all Order) int {
	if own == Spread || own == AsPolicy && all == Spread {
		return -1
	}
	return 1
}

// prefer narrows the CPUs to choose from as far as enough are left.
func (k *task) prefer(ty *Type, from cpuset.Set, n int) cpuset.Set {
	narrow := func(what string, to cpuset.Set) {
		if to == from {
			return
		}
		if to.Len() >= n {
			from = to
			k.why.Note("%s: %s", what, to)
		} else {
			k.why.Note("not %s: too few", what)
		}
	}
	isolated := k.t.Machine().Isolated
	for _, name := range ty.PreferNear {
		if d, _, ok := k.s.Device(name); ok && !d.Nodes.IsEmpty() {
			narrow("near "+name, from.Intersect(k.t.CPUsOf(d.Nodes)))
		}
	}
	if ty.PreferIsolated {
		narrow("isolated", from.Intersect(isolated))
	} else if !isolated.IsEmpty() {
		narrow("not isolated", from.Minus(isolated))
	}
	if ty.PreferCoreKind != "" {
		narrow("cores of kind "+ty.PreferCoreKind, from.Intersect(k.t.OfKind(ty.PreferCoreKind)))
	}
	if len(ty.PreferNear) > 0 || ty.PreferIsolated || ty.PreferCoreKind != "" {
		return from
	}
	for i := range k.Types {
		o := &k.Types[i]
		for _, name := range o.PreferNear {
			if d, _, ok := k.s.Device(name); ok {
				narrow("left to "+o.Name, from.Minus(k.t.CPUsOf(d.Nodes)))
			}
		}
		if o.PreferCoreKind != "" {
			narrow("left to "+o.Name, from.Minus(k.t.OfKind(o.PreferCoreKind)))
		}
	}
	return from
}

// chooser is one choice of CPUs.
type chooser struct {
	*task
	n      int
	v      *place.View
	sign   int  // 1 takes the fullest branch, -1 the emptiest
	spread bool // one CPU per core first
}

// choose enters the domain to take from, then takes.
func (c *chooser) choose() (cpuset.Set, error) {
	kind, pos := c.scope()
	if pos >= 0 {
		c.v.Narrow(c.t.Units(kind)[pos].CPUs)
	}
	secondThreads := c.spread
	if c.spread {
		if fresh := c.untouched(c.v.Free); fresh.Len() >= c.n {
			c.v.Narrow(fresh)
			secondThreads = false
		}
	}
	var stages []place.Stage
	for _, wide := range []machine.Kind{machine.Node, machine.L3} {
		if len(c.t.Units(wide)) > 0 && (pos < 0 || kind < wide) {
			stages = append(stages, place.Stage{Name: wide.String(), Mode: place.Spill, Kind: wide, Criteria: []string{"not own", "not enough", "free"}, Rank: spill(wide)})
		}
	}
	switch {
	case secondThreads:
		stages = append(stages, place.Stage{
			Name: "cpu", Mode: place.Fill, Kind: place.CPU, Criteria: []string{"own in core"}, Again: true,
			Rank: func(v *place.View, pos int) place.Rank {
				return place.Rank{v.TakenIn(machine.Core, v.Up(machine.Core, place.CPU, pos))}
			},
		})
	case !c.spread:
		stages = append(stages,
			place.Stage{Name: "core", Mode: place.Fill, Kind: machine.Core, Rank: func(*place.View, int) place.Rank { return place.Rank{} }},
			place.Stage{
				Name: "cpu", Mode: place.Fill, Kind: place.CPU, Criteria: []string{"not in own core", "free in core"},
				Rank: func(v *place.View, pos int) place.Rank {
					core := v.Up(machine.Core, place.CPU, pos)
					return place.Rank{-v.TakenIn(machine.Core, core), v.FreeIn(machine.Core, core)}
				},
			})
	}
	return c.v.Take(c.n, stages, c.why)
}

// spill visits units with CPUs of the balloon first, then the tightest that has
// all that is needed, then the one with the most.
func spill(k machine.Kind) func(v *place.View, pos int) place.Rank {
	return func(v *place.View, pos int) place.Rank {
		free := v.FreeIn(k, pos)
		if free >= v.Need {
			return place.Rank{-v.TakenIn(k, pos), 0, free}
		}
		return place.Rank{-v.TakenIn(k, pos), 1, -free}
	}
}

// untouched returns one CPU for each core in which the balloon has no CPU.
func (c *chooser) untouched(from cpuset.Set) cpuset.Set {
	if !c.v.Taken.IsEmpty() {
		from = from.Minus(c.t.Touched(machine.Core, c.v.Taken))
	}
	return c.t.FirstThreads(from)
}

// scope returns the narrowest domain that has enough: one with CPUs of the
// balloon before any other. pos is -1 for the whole machine.
func (c *chooser) scope() (kind machine.Kind, pos int) {
	kinds := []machine.Kind{machine.Core, machine.L2, machine.L3, machine.Node, machine.Die, machine.Socket}
	if c.spread {
		kinds = kinds[3:]
	}
	for _, own := range []bool{true, false} {
		if own && c.v.Taken.IsEmpty() {
			continue
		}
		for _, kind := range kinds {
			if c.spread {
				if pos := c.best(kind, own, true); pos >= 0 {
					return kind, pos
				}
			}
			if pos := c.best(kind, own, false); pos >= 0 {
				return kind, pos
			}
		}
	}
	return machine.Socket, -1
}

// best returns the best domain of a kind that has enough CPUs, -1 if no domain has.
// With own the domain has CPUs of the balloon, with cores it has enough cores besides
// theirs.
func (c *chooser) best(kind machine.Kind, own, cores bool) int {
	var fresh cpuset.Set
	if cores {
		fresh = c.untouched(c.v.Free)
	}
	units := c.t.Units(kind)
	choice := place.Choice{
		Name: kind.String(), Criteria: []string{"own CPUs", "free in socket", "free in die", "free in node", "free in l3", "free in l2", "free in core"},
		Count: len(units),
		Fits: func(i int) string {
			switch {
			case c.v.FreeIn(kind, i) < c.n:
				return "too few free"
			case own && c.v.TakenIn(kind, i) == 0:
				return "no CPU of the balloon"
			case cores && units[i].CPUs.Overlap(&fresh) < c.n:
				return "too few cores"
			}
			return ""
		},
		Rank: func(i int) place.Rank {
			rank := place.Rank{-c.v.TakenIn(kind, i)}
			for wide := machine.Socket; wide <= kind; wide++ {
				up := i
				if wide < kind {
					up = c.v.Up(wide, kind, i)
				}
				if up >= 0 {
					rank[1+wide] = c.sign * c.v.FreeIn(wide, up)
				}
			}
			return rank
		},
		Tie:   func(i int) int { return units[i].First },
		Label: func(i int) string { return c.t.Label(kind, i) },
	}
	return choice.Best(c.why)
}
