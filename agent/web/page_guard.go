package web

import (
	"fmt"
	"slices"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/internal/plain"
)

// Guard is where the guard stands, in words.
type Guard struct {
	Mode string `json:"mode"`
	// About says whom it looks after and by what, or why it does not run.
	About string `json:"about"`
	// Suffers says who suffers, from what, by whom and how sure that is, Done what was
	// done, or would be, and how it stands.
	Suffers []string `json:"suffers"`
	Done    []string `json:"done"`
}

func guardOf(g api.Guard) Guard {
	out := Guard{Mode: string(g.Mode), About: g.Reason, Suffers: []string{}, Done: []string{}}
	s := g.Status
	if s == nil {
		return out
	}
	name := naming(g)
	probe := "the run-queue probe is at rest"
	switch {
	case s.Probe.Reason != "":
		probe = "without the run-queue probe: " + s.Probe.Reason
	case s.Probe.Armed:
		probe = "the run-queue probe is armed"
	case s.Probe.NoAlarm != "":
		probe += ", and the kernel gives no alarm: " + s.Probe.NoAlarm
	}
	out.About = fmt.Sprintf("%s, %s known; %s", plain.Count(len(s.Sensitive), "sensitive workload"), plain.Count(s.Others, "other group"), probe)
	for _, f := range s.Findings {
		f.Victim, f.Suspect = name(f.Victim), name(f.Suspect)
		out.Suffers = append(out.Suffers, f.Sentence())
	}
	for _, state := range s.States {
		for _, a := range state.Actions {
			out.Done = append(out.Done, fmt.Sprintf("%s, for %s: %s", did(g.Mode, a, name), name(state.Victim), stands(state)))
		}
	}
	for _, a := range s.Active {
		if a.Victim == "" { // of no victim: suppression
			out.Done = append(out.Done, did(g.Mode, a, name)+", for all others")
		}
	}
	slices.Sort(out.Suffers)
	return out
}

// naming gives groups the names of their workloads.
func naming(g api.Guard) func(group string) string {
	return func(group string) string {
		if id, ok := g.Workloads[group]; ok {
			return id
		}
		if group == ended {
			return "a group that is gone or not to be seen from here"
		}
		return group
	}
}

// ended is what the guard calls groups whose names it could not see, mostly as they had ended
// (guard/observe).
const ended = "(ended)"

// did says what an action does.
func did(mode config.GuardMode, a control.Action, name func(string) string) string {
	text := a.Sentence(name(a.Group))
	if mode == config.GuardPreview {
		return "would be done: " + text
	}
	return text
}

// stands says how the help for a victim stands. A symptom counts from 100 % on.
func stands(s control.State) string {
	text := s.Phase.String()
	switch s.Phase {
	case control.Verifying:
		text = "whether it helps is being measured"
	case control.Holding:
		text = "it helped"
	case control.Relaxing:
		text = "whether less will do is being tried"
	case control.Unresolved:
		text = "nothing more that may be done helps"
	}
	if s.Strength >= 2 {
		return fmt.Sprintf("%s; the symptom is %.3g times its threshold", text, s.Strength)
	}
	return fmt.Sprintf("%s; the symptom is at %.0f %% of its threshold", text, 100*s.Strength)
}
