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

// read returns the hints of a request that are true or false, and the level of
// unlimited-burstable, or fallback without that hint. It ignores the words of another
// policy.
func read(r *place.Request, fallback Level) (yes map[string]bool, level Level, err error) {
	if len(r.Hints) == 0 {
		return nil, fallback, nil
	}
	yes, level = map[string]bool{}, fallback
	for _, hint := range []string{"prefer-shared-cpus", "prefer-reserved-cpus", "hide-hyperthreads", "cpu.preserve", "memory.preserve"} {
		text, ok := r.Hints[hint]
		if text == "true" || text == "false" {
			yes[hint] = text == "true"
		} else if ok {
			return nil, level, &place.InvalidError{ID: r.ID, Reason: fmt.Sprintf("hint %s: %q is neither true nor false", hint, text)}
		}
	}
	if text, ok := r.Hints["unlimited-burstable"]; ok {
		if err := level.UnmarshalText([]byte(text)); err != nil {
			return nil, level, &place.InvalidError{ID: r.ID, Reason: fmt.Sprintf("hint unlimited-burstable: %v", err)}
		}
	}
	return yes, level, nil
}

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
	yes, level, err := read(r, p.UnlimitedBurstable)
	if err != nil {
		return demand{}, err
	}
	w := demand{
		reserved: p.usesReserved(r) || yes["prefer-reserved-cpus"], burst: r.Class == place.LS, level: level,
		pinCPU: p.PinCPU && !yes["cpu.preserve"], pinMem: p.PinMemory && !yes["memory.preserve"], hideSecond: yes["hide-hyperthreads"],
	}
	shared, told := yes["prefer-shared-cpus"]
	w.own, w.milli = p.split(r, shared || p.PreferSharedCPUs && !told, told)
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
// whether the request, or else the policy, prefers shared CPUs.
func (p Policy) split(r *place.Request, prefers, told bool) (own, milli int) {
	if r.Mode != place.Auto {
		return r.Split()
	}
	guaranteed := r.Class.Traits().Own
	whole, fraction := r.Milli/1000, r.Milli%1000
	switch {
	case !guaranteed || whole == 0 || prefers:
		return 0, r.Milli
	case whole >= 2 && fraction > 0 && !told:
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
