package control

import (
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/enum"
	"berth.dev/berth/kernel/cgroup"
)

// Action is one change to one group.
type Action struct {
	Remedy detect.Remedy `json:"remedy"`
	// Group is whose knob it is: the suspect, a group around it, or the victim
	// itself (Burst, ExclusiveCPUs).
	Group string `json:"group"`
	// Victim and Suspect are for whom and against whom; both are empty for best-effort
	// suppression, Suspect alone where the victim itself is helped.
	Victim   string          `json:"victim,omitempty"`
	Suspect  string          `json:"suspect,omitempty"`
	Resource detect.Resource `json:"resource"`
	// Limits are the settings that the group is to have; those that are zero stay.
	// ExclusiveCPUs has the CPUs that the victim is to have alone, CoreSched nothing.
	Limits cgroup.Limits `json:"limits,omitzero"`
	// Part is the part of the ways of a last-level cache (CacheWays), or of the
	// memory bandwidth (BandwidthCap), that the group may use, from 0 to 1; 0 for
	// other remedies.
	Part float64 `json:"part,omitempty"`
}

// String says in a few words what is done: "weight batch: idle".
func (a Action) String() string { return a.Remedy.String() + " " + a.Group + ": " + a.amount() }

func (a Action) amount() string {
	switch l := a.Limits; a.Remedy {
	case detect.Weight:
		if l.Idle == cgroup.On {
			return "idle"
		}
		return fmt.Sprintf("weight %d", l.Weight)
	case detect.HeadroomCap:
		return fmt.Sprintf("%.2f CPUs", cpusOf(l))
	case detect.ShrinkCPUs, detect.ExclusiveCPUs:
		return "CPUs " + l.CPUs.String()
	case detect.CacheWays:
		return fmt.Sprintf("%.0f %% of the ways", 100*a.Part)
	case detect.BandwidthCap:
		return fmt.Sprintf("%.0f %% of the bandwidth", 100*a.Part)
	case detect.Burst:
		return fmt.Sprintf("burst %v", l.Burst)
	case detect.MemoryHigh:
		return fmt.Sprintf("high %d MiB", l.MemoryHigh>>20)
	case detect.IOWeight:
		return fmt.Sprintf("weight %d", l.IOWeight)
	}
	return "on"
}

// Outcome is what became of an action.
type Outcome uint8

// The outcomes.
const (
	Applied    Outcome = iota // it is in force, and is being verified
	WouldApply                // it would have been applied, in mode preview
	Kept                      // the victim got better
	Reverted                  // it was taken back: it did not help, or is not needed or allowed any more
	OnTrial                   // it was taken back or made weaker on trial, as the victim has been well
	Relaxed                   // the trial went well, or it was made weaker for the sake of the suspect's floor
	Restored                  // the trial went badly, or somebody else had changed it, and it is back in force
	GaveUp                    // nothing helps, or nothing more: somebody has to look
	Refused                   // nothing may be done
	Failed                    // the Actuator could not
	Adopted                   // it was found in force
	Yielded                   // somebody else keeps changing what was set: it is theirs
)

var outcomeNames = []string{
	Applied: "applied", WouldApply: "would_apply", Kept: "kept", Reverted: "reverted", OnTrial: "on_trial", Relaxed: "relaxed",
	Restored: "restored",
	GaveUp:   "gave_up", Refused: "refused", Failed: "failed", Adopted: "adopted", Yielded: "yielded",
}

// String returns the outcome's name, "gave_up".
func (o Outcome) String() string { return enum.Name(outcomeNames, o) }

// MarshalText writes the outcome's name.
func (o Outcome) MarshalText() ([]byte, error) { return enum.Marshal(outcomeNames, o) }

// UnmarshalText reads the outcome's name.
func (o *Outcome) UnmarshalText(text []byte) error { return enum.Unmarshal(outcomeNames, text, o) }

// Event is one step of the loop: what it did, would do or cannot do, for whom and
// against whom, why, and what came of it.
type Event struct {
	Time    time.Time `json:"time"`
	Mode    Mode      `json:"mode"`
	Outcome Outcome   `json:"outcome"`
	// Victim is empty for best-effort suppression, Suspect where nobody is accused.
	Victim   string          `json:"victim,omitempty"`
	Suspect  string          `json:"suspect,omitempty"`
	Resource detect.Resource `json:"resource"`
	// Confidence and Evidence are those of the finding that led to the action.
	Confidence float64           `json:"confidence,omitempty"`
	Evidence   []detect.Evidence `json:"evidence,omitempty"`
	// Action is the rung of the ladder; nil if there is none.
	Action *Action `json:"action,omitempty"`
	// Changes are the values that were, or would be, written for it now; none if it
	// was in force already.
	Changes []Change `json:"changes,omitempty"`
	// Effect is what was measured, once it was.
	Effect *Effect `json:"effect,omitempty"`
	// Skipped are the rungs that were not taken, and why.
	Skipped []Skip `json:"skipped,omitempty"`
	// Alert says that somebody should look.
	Alert bool `json:"alert,omitempty"`
	// Text says why, in words; for Failed the error.
	Text string `json:"text,omitempty"`
}

// Effect is what an action did to the victim: strengths as in detect.Symptom,
// medians of the windows looked at.
type Effect struct {
	Before float64 `json:"before"`
	After  float64 `json:"after"`
	// Better of Windows windows were better: the strength was below 1, or at most
	// 0.8 times Before, or so was that part of it which others impose, while that was
	// 1 or more before.
	Better  int `json:"better"`
	Windows int `json:"windows"`
}

// Skip is a remedy that was not taken.
type Skip struct {
	Remedy detect.Remedy `json:"remedy"`
	Reason string        `json:"reason"`
}

// String says it in one line.
func (e Event) String() string {
	var b strings.Builder
	b.WriteString(e.Outcome.String())
	if e.Action != nil {
		fmt.Fprintf(&b, " %v", e.Action)
	}
	if e.Victim != "" {
		fmt.Fprintf(&b, " for %s (%v)", e.Victim, e.Resource)
	}
	if e.Suspect != "" {
		fmt.Fprintf(&b, " against %s", e.Suspect)
	}
	if e.Effect != nil {
		fmt.Fprintf(&b, "; symptom %.2f, then %.2f", e.Effect.Before, e.Effect.After)
	}
	if e.Text != "" {
		fmt.Fprintf(&b, "; %s", e.Text)
	}
	for _, s := range e.Skipped {
		fmt.Fprintf(&b, "; no %v: %s", s.Remedy, s.Reason)
	}
	return b.String()
}
