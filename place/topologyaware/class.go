package topologyaware

import (
	"fmt"
	"path"

	"berth.dev/berth/place"
)

// demand is the need of a workload by its class and words.
type demand struct {
	reserved bool
	own      int // exclusive CPUs
	milli    int // shared CPU time
	isolated place.Want
	// burst is true for LS: the limit, or the level, says how wide the pool is.
	burst          bool
	level          Level
	pinCPU, pinMem bool
	hideSecond     bool // threads of a core
}

// words are the hints of a request.
type words struct {
	shared, reserved, hide, keepCPU, keepMem *bool
	level                                    *Level
}

// read reads the hints; it ignores a word of another policy.
func read(r *place.Request) (words, error) {
	if len(r.Hints) == 0 {
		return words{}, nil
	}
	var w words
	for _, hint := range []struct {
		key  string
		into **bool
	}{
		{"prefer-shared-cpus", &w.shared}, {"prefer-reserved-cpus", &w.reserved}, {"hide-hyperthreads", &w.hide},
		{"cpu.preserve", &w.keepCPU}, {"memory.preserve", &w.keepMem},
	} {
		text, ok := r.Hints[hint.key]
		if yes := text == "true"; yes || text == "false" {
			*hint.into = &yes
		} else if ok {
			return w, &place.InvalidError{ID: r.ID, Reason: fmt.Sprintf("hint %s: %q is neither true nor false", hint.key, text)}
		}
	}
	if text, ok := r.Hints["unlimited-burstable"]; ok {
		w.level = new(Level)
		if err := w.level.UnmarshalText([]byte(text)); err != nil {
			return w, &place.InvalidError{ID: r.ID, Reason: fmt.Sprintf("hint unlimited-burstable: %v", err)}
		}
	}
	return w, nil
}

func is(b *bool) bool { return b != nil && *b }

// classify applies the table of classes. It refuses conditions that the policy
// does not know.
func (p Policy) classify(r *place.Request) (demand, error) {
	for _, glob := range p.ReservedPoolNamespaces {
		if _, err := path.Match(glob, ""); err != nil {
			return demand{}, &place.InvalidError{ID: r.ID, Reason: fmt.Sprintf("reserved pool namespace %q: %v", glob, err)}
		}
	}
	switch {
	case r.Bind != place.BindAny && r.BindRequired:
		return demand{}, &place.RejectedError{ID: r.ID, Reason: "topology-aware has no CPU bind policies"}
	case r.Exclusivity != place.CPULevel:
		return demand{}, &place.RejectedError{ID: r.ID, Reason: "topology-aware has no levels of exclusivity"}
	}
	h, err := read(r)
	if err != nil {
		return demand{}, err
	}
	w := demand{
		reserved: p.usesReserved(r) || is(h.reserved), burst: r.Class == place.LS, level: p.UnlimitedBurstable,
		pinCPU: p.PinCPU && !is(h.keepCPU), pinMem: p.PinMemory && !is(h.keepMem), hideSecond: is(h.hide),
	}
	if h.level != nil {
		w.level = *h.level
	}
	w.own, w.milli = p.split(r, h.shared)
	w.isolated = p.wantIsolated(r, w.own)
	if w.isolated == place.Require && w.own == 0 {
		return demand{}, &place.RejectedError{ID: r.ID, Reason: "isolated CPUs are exclusive, and this workload shares"}
	}
	if !w.pinCPU {
		if r.Mode == place.Exclusive || r.Mode == place.Mixed || r.Isolated == place.Require {
			return demand{}, &place.RejectedError{ID: r.ID, Reason: "without PinCPU nobody owns CPUs"}
		}
		w.own, w.milli, w.isolated = 0, r.Milli, place.Unasked
	}
	if r.Class.Traits().Uncounted && w.own == 0 {
		w.milli = 0
	}
	return w, nil
}

// split returns the exclusive CPUs and the shared time by mode, class, amount and
// the preference for shared CPUs, nil if the request has none.
func (p Policy) split(r *place.Request, shared *bool) (own, milli int) {
	if r.Mode != place.Auto {
		return r.Split()
	}
	guaranteed := r.Class.Traits().Own
	prefers := p.PreferSharedCPUs
	if shared != nil {
		prefers = *shared
	}
	whole, fraction := r.Milli/1000, r.Milli%1000
	switch {
	case !guaranteed || whole == 0 || prefers:
		return 0, r.Milli
	case whole >= 2 && fraction > 0 && shared == nil:
		return 0, r.Milli
	}
	return whole, fraction
}

func (p Policy) wantIsolated(r *place.Request, own int) place.Want {
	switch {
	case own == 0 && r.Isolated != place.Require:
		return place.Unasked
	case r.Isolated == place.Unasked && p.PreferIsolatedCPUs && own == 1 && r.Milli < 2000:
		return place.Prefer
	}
	return r.Isolated
}
