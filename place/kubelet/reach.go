package kubelet

import (
	"cmp"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// reach avoids ranking units that cannot be reached. Units are taken by the order of the
// domains around them, so only the first domains that together have enough count.
type reach struct {
	t             *place.Topology
	first, second machine.Kind
	has           func(v *place.View, k machine.Kind, pos int) int

	// For which view the rest holds.
	free  cpuset.Set
	need  int
	known bool
	near  []bool // by position of second: within reach
}

// usable reports whether the order of cores is that of the domains: all cores
// are alike, and each domain of second lies in one of first.
func (r *reach) usable() bool {
	if _, uniform := r.t.ThreadsPerCore(); !uniform {
		return false
	}
	for _, u := range r.t.Units(r.second) {
		if u.Size == 0 {
			continue
		}
		if !r.t.Units(r.first)[r.t.At(r.first, u.First)].CPUs.Contains(u.CPUs) {
			return false
		}
	}
	return true
}

// fits drops units out of reach.
func (r *reach) fits(kind machine.Kind) func(v *place.View, pos int) string {
	return func(v *place.View, pos int) string {
		if !r.known || r.need != v.Need || r.free != v.Free {
			r.look(v)
		}
		if r.near[v.Up(r.second, kind, pos)] {
			return ""
		}
		return "fuller domains suffice"
	}
}

func (r *reach) look(v *place.View) {
	type domain struct{ outerFree, outer, free, pos int }
	var domains []domain
	for pos, u := range r.t.Units(r.second) {
		if free := v.FreeIn(r.second, pos); u.Size > 0 && free > 0 {
			outer := v.Up(r.first, r.second, pos)
			domains = append(domains, domain{v.FreeIn(r.first, outer), outer, free, pos})
		}
	}
	slices.SortFunc(domains, func(a, b domain) int {
		return cmp.Or(cmp.Compare(a.outerFree, b.outerFree), cmp.Compare(a.outer, b.outer), cmp.Compare(a.free, b.free), cmp.Compare(a.pos, b.pos))
	})
	r.near = make([]bool, len(r.t.Units(r.second)))
	for left := v.Need; left > 0 && len(domains) > 0; domains = domains[1:] {
		r.near[domains[0].pos] = true
		left -= r.has(v, r.second, domains[0].pos)
	}
	r.free, r.need, r.known = v.Free, v.Need, true
}
