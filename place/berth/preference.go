package berth

import (
	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// preference is a property that CPUs should or must have, in the words of explanations.
type preference string

const (
	onNodes     preference = "the asked nodes"
	isolated    preference = "isolated CPUs"
	notIsolated preference = "CPUs that are not isolated"
	ofKind      preference = "the asked kind of core"
	onePerCore  preference = "one CPU per core"
)

// preferences returns the preferences, the most important first, and the requirements.
func (k *task) preferences() (preferred, required []preference) {
	add := func(must bool, w preference) {
		if must {
			required = append(required, w)
		} else {
			preferred = append(preferred, w)
		}
	}
	if !k.r.Nodes.IsEmpty() {
		add(k.r.NodesRequired, onNodes)
	}
	switch k.r.Isolated {
	case place.Prefer, place.Require:
		add(k.r.Isolated == place.Require, isolated)
	default:
		if !k.t.Machine().Isolated.IsEmpty() {
			add(true, notIsolated)
		}
	}
	if k.r.CoreKind != "" {
		add(false, ofKind)
	}
	if k.r.Bind == place.SpreadByPCPUs {
		add(k.r.BindRequired, onePerCore)
	}
	return preferred, required
}

// keep returns the CPUs that have all the properties.
func (k *task) keep(cpus cpuset.Set, preferences []preference) cpuset.Set {
	for _, w := range preferences {
		switch w {
		case onNodes:
			cpus = cpus.Intersect(k.t.CPUsOf(k.r.Nodes))
		case isolated:
			cpus = cpus.Intersect(k.t.Machine().Isolated)
		case notIsolated:
			cpus = cpus.Minus(k.t.Machine().Isolated)
		case ofKind:
			cpus = cpus.Intersect(k.t.OfKind(k.r.CoreKind))
		case onePerCore:
			cpus = k.t.FirstThreads(cpus)
		}
	}
	return cpus
}
