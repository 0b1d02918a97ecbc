package control

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel/cgroup"
)

// Action is one change to one group.
type Action struct {
	Remedy detect.Remedy `json:"remedy"`
	// Group is whose setting changes: the suspect, a group around it, or the victim
	// itself (Burst).
	Group string `json:"group"`
	// Victim and Suspect are for whom and against whom; both are empty for best-effort
	// suppression, Suspect alone where the victim itself is helped.
	Victim   string          `json:"victim,omitempty"`
	Suspect  string          `json:"suspect,omitempty"`
	Resource detect.Resource `json:"resource"`
	// Limits are the settings that the group is to have; those that are zero stay.
	Limits cgroup.Limits `json:"limits,omitzero"`
	// Processes are those whose settings change, where Group is detect.Outside.
	Processes []Process `json:"processes,omitempty"`
	// Share is what it is to have at most of caches and memory bandwidth.
	Share Share `json:"share,omitzero"`
}

// Process is a process in no group.
type Process struct {
	PID int `json:"pid"`
	// Start tells it from a later one with its number (kernel.Process.Start).
	Start   string `json:"start"`
	Program string `json:"program"`
}

// Is reports whether two are one process, whatever it calls itself.
func (p Process) Is(o Process) bool { return p.PID == o.PID && p.Start == o.Start }

// programs names the programs of processes, the first few, each once.
func programs(of []Process) string {
	const few = 3
	var names []string
	for _, p := range of {
		if !slices.Contains(names, p.Program) {
			names = append(names, p.Program)
		}
	}
	if len(names) > few {
		names = append(names[:few], "and others")
	}
	return strings.Join(names, ", ")
}

// String says in a few words what is done: "weight batch: idle".
func (a Action) String() string {
	return a.Remedy.String() + " " + a.Group + ": " + find(builtIn, a.Remedy).amount(&a)
}

// Sentence says it in plain words, with a name for the group.
func (a Action) Sentence(group string) string {
	if a.Share != (Share{}) {
		return shareSentence(group, a.Share)
	}
	if len(a.Processes) > 0 {
		group = fmt.Sprintf("%s (%s)", detect.Called(a.Group), programs(a.Processes))
	}
	if r := find(builtIn, a.Remedy); r != nil && r.Sentence != nil {
		return r.Sentence(group, a.Limits)
	}
	return a.String()
}

// amount says what settings are; "on" where the remedy has no words for it.
func (r *Remedy) amount(a *Action) string {
	if a.Share != (Share{}) {
		return a.Share.String()
	}
	if r == nil || r.Amount == nil {
		return "on"
	}
	return r.Amount(a.Limits)
}

// Outcome is what became of an action.
type Outcome = plain.Enum[outcomes]

// The outcomes.
const (
	Applied    Outcome = iota // it is active, and is being verified
	WouldApply                // it would have been applied, in mode preview
	Kept                      // the victim got better
	Reverted                  // it did not help, or is not needed or allowed any more
	OnTrial                   // it was reverted or made weaker on trial, as the victim has been well
	Relaxed                   // the trial went well, or it was made weaker for the sake of the suspect's floor
	Restored                  // the trial went badly, or somebody else had changed it, and it is active again
	GaveUp                    // nothing helps, or nothing more: somebody has to look
	Refused                   // nothing may be done
	Failed                    // the Actuator could not
	Adopted                   // an earlier loop had done it: in records of earlier versions only
	Yielded                   // somebody else keeps changing what was set: it is theirs
	Undecided                 // it is not known whether it helps: it stays active, and is tried anew
	Spared                    // a suspect is left alone, as it uses little; told once in five minutes
)

type outcomes struct{}

var outcomeNames = []string{
	Applied: "applied", WouldApply: "would_apply", Kept: "kept", Reverted: "reverted", OnTrial: "on_trial", Relaxed: "relaxed",
	Restored: "restored",
	GaveUp:   "gave_up", Refused: "refused", Failed: "failed", Adopted: "adopted", Yielded: "yielded",
	Undecided: "undecided", Spared: "spared",
}

func (outcomes) Words() []string { return outcomeNames }

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
	// Action is the step, or nil.
	Action *Action `json:"action,omitempty"`
	// Changes are the values that were, or would be, written for it now; none if it
	// was active already.
	Changes []Change `json:"changes,omitempty"`
	// Effect is what was measured, once it was.
	Effect *Effect `json:"effect,omitempty"`
	// Skipped are the steps that were not taken, and why.
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
	// Better of Windows windows were better: the strength was below 1, or the run delay
	// was less by at least half of what the suspect's part of it is less; where the run
	// delay is not known, the strength was at most 0.8 times Before. Or so was that part
	// of it which others impose, while that was 1 or more before.
	Better  int `json:"better"`
	Windows int `json:"windows"`
	// RunDelay is what it did to the run delay, for the CPU; nil where that is not known.
	RunDelay *DelayEffect `json:"runDelay,omitempty"`
}

// DelayEffect is what an action did to the time for which the victim waits for a CPU,
// in seconds per second that it runs.
type DelayEffect struct {
	// Before and After are all of it or, with the run-queue probe, what is behind others.
	Before float64 `json:"before"`
	After  float64 `json:"after"`
	// SuspectBefore and SuspectAfter are the suspect's part; by its share of the CPU time
	// that others use where there is no probe.
	SuspectBefore float64 `json:"suspectBefore"`
	SuspectAfter  float64 `json:"suspectAfter"`
	// Outside is the share of processes in no group in what is left, from 0 to 1.
	Outside float64 `json:"outside"`
}

// Skip is a remedy that was not taken.
type Skip struct {
	Remedy detect.Remedy `json:"remedy"`
	Reason string        `json:"reason"`
}

// Sentence says in one short sentence what was done or left, with names for the groups.
func (e Event) Sentence(name func(group string) string) string {
	text := name(e.Victim)
	switch {
	case e.Action != nil:
		text = e.Action.Sentence(name(e.Action.Group))
		if e.Victim != "" && e.Victim != e.Action.Group {
			text += ", for " + name(e.Victim)
		}
	case e.Suspect != "":
		text += " against " + name(e.Suspect)
	}
	switch f := e.Effect; {
	case f == nil:
	case f.RunDelay != nil:
		text += fmt.Sprintf(": for each second that it ran it waited %.2f s, then %.2f s", f.RunDelay.Before, f.RunDelay.After)
	default:
		text += fmt.Sprintf(": its symptom was at %.0f %% of where it counts, then at %.0f %%", 100*f.Before, 100*f.After)
	}
	if e.Text != "" {
		text += "; " + e.Text
	}
	if e.Action == nil && len(e.Skipped) > 0 {
		text += "; " + e.Skipped[0].Reason
	}
	return text
}

// String says all of it in one line, in the words of the rules.
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
	if f := e.Effect; f != nil && f.RunDelay != nil {
		d := f.RunDelay
		fmt.Fprintf(&b, "; run delay %.2f s per second run, then %.2f (due to %s %.2f, then %.2f)", d.Before, d.After, e.Suspect, d.SuspectBefore, d.SuspectAfter)
	} else if f != nil {
		fmt.Fprintf(&b, "; symptom %.2f, then %.2f", f.Before, f.After)
	}
	if e.Text != "" {
		fmt.Fprintf(&b, "; %s", e.Text)
	}
	for _, s := range e.Skipped {
		fmt.Fprintf(&b, "; no %v: %s", s.Remedy, s.Reason)
	}
	return b.String()
}
