package guard

import (
	"strings"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch/pods"
)

// Sink is told what a guard finds and does, to tell others: as Events of Kubernetes on the
// pods of both, for example. Report is called by one goroutine at a time and must not
// block, as the guard waits for it.
type Sink interface{ Report(Report) }

// Report is a finding, or a step of the guard, with whom it is about. One of Finding and
// Event is set: they have the evidence, and what was written.
type Report struct {
	Time time.Time
	// Victim suffers, Antagonist is accused of it; either may be unknown (Party.Group "").
	Victim, Antagonist Party
	// Acted is whose settings changed, or would: the antagonist, the victim, or a group around
	// one of them. It is unknown for a finding.
	Acted   Party
	Finding *detect.Finding
	Event   *control.Event
}

// Party is one of those whom a report is about.
type Party struct {
	// Group is its control group, Name what it is called, which may be the group.
	Group, Name string
	// Pod is whose container, or which pod, it is; nil means none, or not known.
	Pod *pods.Name
}

// Resource is what the victim lacks.
func (r *Report) Resource() detect.Resource {
	if r.Finding != nil {
		return r.Finding.Resource
	}
	return r.Event.Resource
}

// Evidence is what the finding was made from.
func (r *Report) Evidence() []detect.Evidence {
	if r.Finding != nil {
		return r.Finding.Evidence
	}
	return r.Event.Evidence
}

// Text says it in one sentence, with the names of the parties.
func (r *Report) Text() string {
	if r.Finding != nil {
		f := *r.Finding
		f.Victim, f.Suspect = r.Victim.Name, r.Antagonist.Name
		text, _, _ := strings.Cut(f.String(), "\n")
		return text
	}
	return r.Event.Sentence(func(group string) string {
		for _, p := range []Party{r.Victim, r.Antagonist, r.Acted} {
			if p.Group == group {
				return p.Name
			}
		}
		return group
	})
}

// ReportFinding and ReportEvent make a report. who says what is known of a group.
func ReportFinding(at time.Time, f detect.Finding, who func(group string) Party) Report {
	return Report{Time: at, Victim: party(f.Victim, who), Antagonist: party(f.Suspect, who), Finding: &f}
}

// ReportEvent is documented with ReportFinding.
func ReportEvent(e control.Event, who func(group string) Party) Report {
	r := Report{Time: e.Time, Victim: party(e.Victim, who), Antagonist: party(e.Suspect, who), Event: &e}
	if e.Action != nil {
		r.Acted = party(e.Action.Group, who)
	}
	return r
}

func party(group string, who func(string) Party) Party {
	if group == "" {
		return Party{}
	}
	return who(group)
}
