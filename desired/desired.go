// Package desired holds the desired settings of subjects as data: per subject and knob
// overrides of what it has otherwise, each with its owner and reason. It decides which
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

// State has the claims of all subjects, per setting by age, the oldest first. The zero value
// has none.
type State struct {
	subjects map[string]map[knob.ID][]Claim
}

// Clone returns a copy that changes on its own.
func (s *State) Clone() State {
	copied := State{map[string]map[knob.ID][]Claim{}}
	for subject, settings := range s.subjects {
		copied.subjects[subject] = maps.Clone(settings)
	}
	return copied
}

// Override makes a claim an owner's override, in place of the owner's earlier one.
func (s *State) Override(subject string, id knob.ID, c Claim) {
	if s.subjects == nil {
		s.subjects = map[string]map[knob.ID][]Claim{}
	}
	if s.subjects[subject] == nil {
		s.subjects[subject] = map[knob.ID][]Claim{}
	}
	s.subjects[subject][id] = append(without(s.subjects[subject][id], c.Owner), c)
}

// Remove takes an owner's override away.
func (s *State) Remove(subject string, id knob.ID, owner string) {
	settings := s.subjects[subject]
	if left := without(settings[id], owner); len(left) > 0 {
		settings[id] = left
	} else if delete(settings, id); len(settings) == 0 {
		delete(s.subjects, subject)
	}
}

func without(all []Claim, owner string) []Claim {
	return slices.DeleteFunc(slices.Clone(all), func(c Claim) bool { return c.Owner == owner })
}

// Values are the effective claims of one subject.
type Values map[knob.ID]Claim

// Base returns settings as the claims of an owner.
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

// Of returns the effective claims of a subject. Per setting that is the widest of the
// overrides that widen it, or the narrowest of the others if that is narrower still. Of
// equal claims the oldest counts; of values that are not comparable, the newest. A setting
// that another effective one locks has no claim.
func (s *State) Of(subject string) Values {
	values := Values{}
	for id, overrides := range s.subjects[subject] {
		values[id] = effective(id.Knob, overrides)
	}
	settings := values.Settings()
	maps.DeleteFunc(values, func(id knob.ID, _ Claim) bool { return settings.Locked(id.Knob) != nil })
	return values
}

func effective(k *knob.Knob, overrides []Claim) Claim {
	var best *Claim
	for _, widens := range []bool{true, false} {
		for i := range overrides {
			if c := &overrides[i]; c.Widens == widens && (best == nil || stronger(k, *c, best.Value)) {
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
