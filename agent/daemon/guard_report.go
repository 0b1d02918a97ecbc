package daemon

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
)

// Name returns the workload that a group is, "" if it is none.
func (g *Guard) Name(group string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.names[group]
}

// found records findings that are new, or have lasted for long.
func (g *Guard) found(all []detect.Finding) {
	now := time.Now()
	for _, f := range all {
		report := guard.ReportFinding(now, f, g.party)
		g.record(context.Background(), api.Event{
			Event: agent.Event{Time: now, Kind: api.Found, ID: g.Name(f.Victim), Text: report.Text()}, Finding: &f,
		})
		if g.o.Sink != nil {
			g.o.Sink.Report(report)
		}
	}
}

// acted records a step of the guard.
func (g *Guard) acted(e control.Event) {
	g.record(context.Background(), api.Event{
		Event: agent.Event{Time: e.Time, Kind: api.Guarded, ID: g.Name(e.Victim), Text: g.named(e).String()}, Guard: &e,
	})
	if g.o.Sink != nil {
		g.o.Sink.Report(guard.ReportEvent(e, g.party))
	}
}

// named is an event with the names of groups in their place, for people.
func (g *Guard) named(e control.Event) control.Event {
	name := func(group string) string {
		if group == "" {
			return ""
		}
		return g.party(group).Name
	}
	e.Victim, e.Suspect = name(e.Victim), name(e.Suspect)
	if e.Action != nil {
		a := *e.Action
		a.Group, a.Victim, a.Suspect = name(a.Group), name(a.Victim), name(a.Suspect)
		e.Action = &a
	}
	return e
}

// party is what is known of a group.
func (g *Guard) party(group string) guard.Party {
	p := guard.Party{Group: group, Name: cmp.Or(g.Name(group), group)}
	if n, ok := g.pods.Of(group); ok && !g.chosen()(group) {
		p.Pod = &n
	}
	return p
}

// ofGuard is what the log says more of an event of the guard.
func ofGuard(e *api.Event) (args []any) {
	var evidence []detect.Evidence
	switch {
	case e.Finding != nil:
		evidence = e.Finding.Evidence
	case e.Guard != nil:
		evidence = e.Guard.Evidence
	default:
		return nil
	}
	var seen []string
	for _, one := range evidence {
		seen = append(seen, fmt.Sprintf("%s: %s", one.Subject, one))
	}
	if len(seen) > 0 {
		args = append(args, "evidence", strings.Join(seen, "; "))
	}
	if e.Guard == nil || len(e.Guard.Changes) == 0 {
		return args
	}
	var changes []string
	for _, c := range e.Guard.Changes {
		changes = append(changes, fmt.Sprintf("%s: %s -> %s", c.Path, c.From, c.To))
	}
	return append(args, "changes", strings.Join(changes, "; "))
}

// record notes an event, with its origin.
func (g *Guard) record(ctx context.Context, e api.Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.By = api.OriginOf(ctx)
	g.o.Record(e)
}

// complain records what the guard could not do, or found.
func (g *Guard) complain(text string, err error) {
	if err != nil {
		text += ": " + err.Error()
	}
	g.o.Record(api.Event{Event: agent.Event{Time: time.Now(), Kind: agent.Failed, Text: "guard: " + text, Err: err}})
}

// Guard says where the guard stands.
func (g *Guard) Guard(context.Context) (api.Guard, error) {
	if g.o.Sensors == nil {
		return api.Guard{Mode: config.GuardOff, Configured: config.GuardOff, Reason: errNoGuard.Error(), Workloads: map[string]string{}}, nil
	}
	g.mu.Lock()
	out := api.Guard{Mode: g.mode, Configured: config.GuardOff, Reason: g.reason, Workloads: map[string]string{}}
	if g.conf != nil {
		out.Configured = g.conf.Guard.Mode
	}
	runner, names := g.runner, g.names
	g.mu.Unlock()
	if runner == nil {
		return out, nil
	}
	s := runner.Status()
	out.Status = &s
	name := func(groups ...string) {
		for _, group := range groups {
			if id, ok := names[group]; ok {
				out.Workloads[group] = id
			}
		}
	}
	for i := range s.Findings {
		name(s.Findings[i].Victim, s.Findings[i].Suspect)
	}
	for i := range s.States {
		name(s.States[i].Victim)
		for _, a := range s.States[i].Actions {
			name(a.Group, a.Suspect)
		}
	}
	return out, nil
}
