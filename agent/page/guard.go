package page

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard/control"
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
	name := func(group string) string {
		if id, ok := g.Workloads[group]; ok {
			return id
		}
		return group
	}
	probe := "the run-queue probe is at rest"
	switch {
	case s.Probe.Reason != "":
		probe = "without the run-queue probe: " + s.Probe.Reason
	case s.Probe.Armed:
		probe = "the run-queue probe is armed"
	}
	out.About = fmt.Sprintf("%d looked after, %d more groups known; %s", len(s.Sensitive), s.Others, probe)
	for _, f := range s.Findings {
		f.Victim, f.Suspect = name(f.Victim), name(f.Suspect)
		what, _, _ := strings.Cut(f.String(), "\n")
		out.Suffers = append(out.Suffers, fmt.Sprintf("%s (%.0f %% sure)", what, 100*f.Confidence))
	}
	for _, state := range s.States {
		for _, a := range state.Actions {
			out.Done = append(out.Done, fmt.Sprintf("%s, for %s: %s", did(g.Mode, a), name(state.Victim), phase(state)))
		}
	}
	for _, a := range s.InForce {
		if a.Victim == "" { // of no victim: suppression
			out.Done = append(out.Done, did(g.Mode, a)+", for all others")
		}
	}
	slices.Sort(out.Suffers)
	return out
}

func did(mode config.GuardMode, a control.Action) string {
	if mode == config.GuardPreview {
		return "would: " + a.String()
	}
	return a.String()
}

// phase says how an action stands.
func phase(s control.State) string {
	return fmt.Sprintf("%v, symptom at %.1f of what counts", s.Phase, s.Strength)
}
