package podwords

import (
	"cmp"
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// Resources are what a container pays for, by its requests and limits.
type Resources struct {
	// Milli and LimitMilli are CPU time, in thousandths of a CPU; 0 means none.
	Milli, LimitMilli int
	// Memory is in bytes; 0 means none.
	Memory int64
	// QoS is the class that stands for the pod's QoS class: LSR, LS or BE.
	QoS place.Class
}

// Kubernetes returns the request that plain Kubernetes makes, as its static CPU manager
// reads it: whole CPUs of a Guaranteed pod are the container's own, anything else is time
// of the shared pool.
func Kubernetes(res Resources) place.Request {
	r := place.Request{Class: res.QoS, Milli: res.Milli, LimitMilli: res.LimitMilli}
	if r.Class.Traits().Own && !whole(r.Milli) {
		r.Mode = place.Shared
	}
	if res.Memory > 0 && r.Class.Traits().Own { // others have no memory of a node promised
		r.Memory = []place.Amount{{Resource: place.Memory, Bytes: res.Memory}}
	}
	return r
}

func whole(milli int) bool { return milli > 0 && milli%1000 == 0 }

// Required reports whether the pod asks for own CPUs by a word: then time of the pool is
// no substitute.
func (r *Reading) Required() bool {
	w := &r.Wish
	return w.Own != nil && *w.Own > 0 || !w.CPUs.IsEmpty() || w.Mode != nil && *w.Mode != place.Shared && *w.Mode != place.Auto ||
		w.Class != nil && w.Class.Traits().Own || r.Strict()
}

// Strict reports whether the pod refuses to run where a word cannot be followed.
func (r *Reading) Strict() bool { return r.Wish.Strict != nil && *r.Wish.Strict }

// Apply returns a request with all words that it can have, and the very CPUs to have, if
// any. A word that asks for more than the request's own CPU time pays for is Impossible,
// and left out. threads is how many CPUs a core of the machine has; where it is above 1,
// whole cores are for whole numbers of cores.
func (r *Reading) Apply(base place.Request, threads int) (place.Request, cpuset.Set) {
	w := r.Wish
	impossible := func(field string, format string, args ...any) {
		word, value := field, ""
		for _, s := range r.Sources {
			if s.Field == field {
				word, value = s.From, s.Value
			}
		}
		r.Problems = append(r.Problems, Problem{word, value, Impossible, fmt.Errorf(format, args...)})
	}
	cores := threads < 2 || base.Milli%(1000*threads) == 0
	if w.Class != nil && w.Class.Traits().WholeCores && (!whole(base.Milli) || !cores) {
		impossible("class", "whole cores for %d thousandths of a CPU would be more than it requests", base.Milli)
		w.Class = nil
	}
	if w.Mode != nil && *w.Mode == place.Exclusive && !whole(base.Milli) {
		impossible("mode", "%d thousandths of a CPU are no whole CPUs", base.Milli)
		w.Mode = nil
	}
	if w.Exclusive != nil && *w.Exclusive == place.PCPULevel && !cores {
		impossible("exclusive", "%d thousandths of a CPU are no whole cores", base.Milli)
		w.Exclusive = nil
	}
	if w.Own != nil && *w.Own*1000 > base.Milli {
		impossible("cpus", "it requests %d thousandths of a CPU", base.Milli)
		w.Own = nil
	}
	if !w.CPUs.IsEmpty() && (w.CPUs.Len()*1000 != base.Milli || w.Own != nil) {
		impossible("cpuset", "%d CPUs for a container that requests %d thousandths of one", w.CPUs.Len(), base.Milli)
		w.CPUs = cpuset.Set{}
	}
	out := w.over(base)
	if w.P99 != nil && !out.Class.Traits().Sensitive {
		impossible("p99", "nobody keeps a response time of class %s, which yields to others", out.Class)
		r.Wish.P99 = nil
	}
	named := out
	named.ID = cmp.Or(out.ID, r.Container)
	if err := named.Validate(); err != nil {
		r.Problems = append(r.Problems, Problem{"all words", "", Impossible, err})
		return base, cpuset.Set{}
	}
	return out, w.CPUs
}

// over is a request with the fields that a wish has.
func (w *Wish) over(r place.Request) place.Request {
	if w.Class != nil {
		r.Class = *w.Class
		r.Mode = place.Auto
	}
	set(&r.Mode, w.Mode)
	if w.Own != nil {
		r.Mode, r.SharedMilli = OwnPart(*w.Own, r.Milli)
	}
	if w.Shared != nil {
		r.SharedMilli = int(*w.Shared)
	}
	set(&r.Role, w.Role)
	set(&r.Bind, w.Bind)
	set(&r.BindRequired, w.BindRequired)
	set(&r.Exclusivity, w.Exclusive)
	set(&r.Strategy, w.Strategy)
	set(&r.Isolated, w.Isolated)
	set(&r.NodesRequired, w.NodesRequired)
	set(&r.MaxNodes, w.MaxNodes)
	if w.CoreKind != "" {
		r.CoreKind = w.CoreKind
	}
	if !w.Nodes.IsEmpty() {
		r.Nodes = w.Nodes
	}
	for _, a := range w.Affinity {
		r.Affinity = append(r.Affinity, place.Affinity(a))
	}
	if len(w.Hints) > 0 {
		r.Hints = w.Hints
	}
	return r
}

// OwnPart returns the mode of a container that is to own so many of its CPUs, and the part
// that is time of the pool.
func OwnPart(own, milli int) (mode place.Mode, sharedMilli int) {
	switch rest := milli - own*1000; {
	case own == 0:
		return place.Shared, 0
	case rest == 0:
		return place.Exclusive, 0
	default:
		return place.Mixed, rest
	}
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}
