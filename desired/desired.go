// Package desired holds the desired settings of subjects as data: per subject and knob a
// base value, and overrides above it, each with its owner and reason. It decides which
// value is effective, which settings change from one state to another, when a refused
// change is tried again, and when a value that somebody else keeps changing is theirs. It
// writes nothing and reads no clock.
//
// An override ends by being removed: the value below it is effective again. Nobody writes
// an old value back by hand.
package desired

import (
	"maps"
	"slices"

	"berth.dev/berth/kernel/knob"
)

// Claim is a value that an owner wants a setting to have.
type Claim struct {
	Owner  string `json:"owner"`
	Reason string `json:"reason,omitempty"`
	Value  string `json:"value"`
	// Widens is for an override that gives the subject more; others take from it.
	Widens bool `json:"widens,omitempty"`
}

// State has the claims of all subjects. The zero value has none.
type State struct {
	subjects map[string]map[knob.ID]*claims
}

// claims are those for one setting.
type claims struct {
	base      *Claim
	overrides []Claim // by age, the oldest first
}

// Clone returns a copy that changes on its own.
func (s *State) Clone() State {
	copied := State{subjects: map[string]map[knob.ID]*claims{}}
	for subject, settings := range s.subjects {
		copied.subjects[subject] = map[knob.ID]*claims{}
		for id, at := range settings {
			copied.subjects[subject][id] = &claims{at.base, slices.Clone(at.overrides)}
		}
	}
	return copied
}

// SetBase gives a setting its base value, in place of an earlier one.
func (s *State) SetBase(subject string, id knob.ID, c Claim) { s.make(subject, id).base = &c }

// RemoveBase takes the base value away.
func (s *State) RemoveBase(subject string, id knob.ID) {
	s.change(subject, id, func(at *claims) { at.base = nil })
}

// Override makes a claim an owner's override, in place of the owner's earlier one.
func (s *State) Override(subject string, id knob.ID, c Claim) {
	at := s.make(subject, id)
	at.overrides = append(without(at.overrides, c.Owner), c)
}

// Remove takes an owner's override away.
func (s *State) Remove(subject string, id knob.ID, owner string) {
	s.change(subject, id, func(at *claims) { at.overrides = without(at.overrides, owner) })
}

func without(all []Claim, owner string) []Claim {
	return slices.DeleteFunc(slices.Clone(all), func(c Claim) bool { return c.Owner == owner })
}

func (s *State) make(subject string, id knob.ID) *claims {
	if s.subjects == nil {
		s.subjects = map[string]map[knob.ID]*claims{}
	}
	if s.subjects[subject] == nil {
		s.subjects[subject] = map[knob.ID]*claims{}
	}
	if s.subjects[subject][id] == nil {
		s.subjects[subject][id] = &claims{}
	}
	return s.subjects[subject][id]
}

// change edits the claims for a setting, and forgets a setting without claims.
func (s *State) change(subject string, id knob.ID, edit func(*claims)) {
	at := s.subjects[subject][id]
	if at == nil {
		return
	}
	edit(at)
	if at.base == nil && len(at.overrides) == 0 {
		delete(s.subjects[subject], id)
	}
	if len(s.subjects[subject]) == 0 {
		delete(s.subjects, subject)
	}
}

// Values are the effective claims of one subject.
type Values map[knob.ID]Claim

// Base returns settings as the base values of an owner.
func Base(owner string, settings knob.Settings) Values {
	values := Values{}
	for id, value := range settings {
		values[id] = Claim{Owner: owner, Value: value}
	}
	return values
}

// Settings returns the values without their owners.
func (v Values) Settings() knob.Settings {
	settings := knob.Settings{}
	for id, c := range v {
		settings[id] = c.Value
	}
	return settings
}

// Of returns the effective claims of a subject. Per setting that is the base value, or the
// widest of the overrides that widen it if that is wider, or the narrowest of the other
// overrides if that is narrower still. Of equal claims the oldest counts; of values that
// are not comparable, the newest. A setting that another effective one locks has no claim.
func (s *State) Of(subject string) Values {
	values := Values{}
	for id, at := range s.subjects[subject] {
		values[id] = at.effective(id.Knob)
	}
	settings := values.Settings()
	maps.DeleteFunc(values, func(id knob.ID, _ Claim) bool { return settings.Locked(id.Knob) != nil })
	return values
}

func (at *claims) effective(k *knob.Knob) Claim {
	var best *Claim
	if at.base != nil {
		best = at.base
	}
	for _, widens := range []bool{true, false} {
		for i := range at.overrides {
			c := &at.overrides[i]
			if c.Widens != widens {
				continue
			}
			if best == nil || stronger(k, *c, best.Value) {
				best = c
			}
		}
	}
	return *best
}

// stronger reports whether an override goes further than a value.
func stronger(k *knob.Knob, c Claim, than string) bool {
	order := k.Compare(c.Value, than)
	return k.Direction == knob.Neither || c.Widens && order > 0 || !c.Widens && order < 0
}

// All returns the effective claims of every subject.
func (s *State) All() map[string]Values {
	all := map[string]Values{}
	for subject := range s.subjects {
		all[subject] = s.Of(subject)
	}
	return all
}

// Change is a setting that gets another value.
type Change struct {
	Setting knob.ID `json:"setting"`
	// Claim has the new value; nil stands for the value that it had without Berth.
	Claim *Claim `json:"claim,omitempty"`
}

// Update has the changes of one subject, in the order in which they are written.
type Update struct {
	Subject string   `json:"subject"`
	Changes []Change `json:"changes"`
}

// Diff returns the updates that lead from one state to another, by rising subject. A
// locked setting does not change; once it is unlocked, it gets its claim, or the value that
// it had without Berth.
func Diff(from, to map[string]Values) []Update {
	subjects := maps.Clone(from)
	maps.Copy(subjects, to)
	var updates []Update
	for _, subject := range slices.Sorted(maps.Keys(subjects)) {
		if changes := diff(from[subject], to[subject]); len(changes) > 0 {
			updates = append(updates, Update{subject, changes})
		}
	}
	return updates
}

func diff(from, to Values) []Change {
	was, will := from.Settings(), to.Settings()
	about := maps.Clone(was)
	maps.Copy(about, will)
	for id := range was {
		for _, locked := range id.Locks {
			if other := (knob.ID{Knob: knob.Find(locked)}); was.Locked(other.Knob) != nil {
				about[other] = ""
			}
		}
	}
	var changes []Change
	for _, id := range about.IDs() {
		value, set := will[id]
		before, had := was[id]
		switch {
		case will.Locked(id.Knob) != nil:
		case set && (!had || before != value):
			c := to[id]
			changes = append(changes, Change{id, &c})
		case !set:
			changes = append(changes, Change{Setting: id})
		}
	}
	return changes
}
