package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/kernel"
)

// globs are the configuration's globs of groups as agent.Options has them.
func globs(field string, all []string) ([]string, error) {
	var out []string
	for _, g := range all {
		if strings.Contains(g, "**") {
			return nil, &kernel.NotSupportedError{
				Feature: field + " " + g, Reason: "the agent looks at groups of a certain depth", Remedy: "name each level: /a/*, /a/*/*",
			}
		}
		out = append(out, strings.TrimPrefix(g, "/"))
	}
	return out, nil
}

// globsWithBelow are globs of fields that mean the groups below as well: a final "/**" adds nothing.
func globsWithBelow(field string, all []string) ([]string, error) {
	cut := make([]string, len(all))
	for i, glob := range all {
		cut[i] = strings.TrimSuffix(glob, "/**")
	}
	return globs(field, cut)
}

// reload reads the configuration and applies what differs. One that is refused
// changes nothing.
func (l *loop) reload(ctx context.Context, src sources) {
	l.complain(src.tell("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", monotonic())))
	defer func() { l.complain(src.tell("READY=1")) }()
	next, text, err := src.read()
	var p *plan
	if err == nil {
		p, err = l.plan(ctx, next, false)
	}
	var effects []agent.Effect
	if err == nil && len(p.changes) > 0 {
		effects, err = l.carryOut(api.WithOrigin(ctx, api.ByConfig), p, nil)
	}
	if err != nil {
		l.refuse(err)
		return
	}
	if len(p.changes) > 0 {
		l.complain(l.record(api.Version{How: "file", UID: l.file.owner(), Text: string(text)}))
	}
	l.accept(p.changes, effects)
}

// mostTold is how many errors, changes or moves of one reload an event tells: each is kept
// for clients, and a file may hold thousands.
const mostTold = 50

// some joins the first few words of many, and says how many more there are.
func some(words []string, separator string) string {
	if more := len(words) - mostTold; more > 0 {
		words = append(words[:mostTold:mostTold], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, separator)
}

// refuse keeps the configuration in force, and tells of it once.
func (l *loop) refuse(err error) {
	text := some(strings.Split(err.Error(), "\n"), "\n")
	l.mu.Lock()
	was := l.refused
	l.refused = text
	l.mu.Unlock()
	if was != text {
		l.note(api.Kept, "the configuration stays as it was: "+text)
	}
}

func (l *loop) accept(changes []config.Change, effects []agent.Effect) {
	l.mu.Lock()
	back := l.refused != ""
	l.refused = ""
	l.mu.Unlock()
	if len(changes) == 0 && len(effects) == 0 && !back {
		return
	}
	var words []string
	for _, c := range changes {
		words = append(words, c.String())
	}
	text := some(words, "; ")
	switch {
	case len(changes) == 0 && len(effects) > 0:
		text = "all workloads are placed anew"
	case len(changes) == 0:
		text = "the file says what is in force"
	}
	if moved := moves(effects); len(moved) > 0 {
		text += fmt.Sprintf("; it took %d moves: %s", len(moved), some(moved, ", "))
	}
	l.note(api.Reloaded, text)
}

// atStart are fields that are read at the start only.
var atStart = []string{"agent.socket", "agent.group", "agent.metrics", "agent.network", "agent.hosts", "agent.stateDir", "agent.rescan"}

// waitsForStart says what of a configuration is not as it was at the start, and is
// read only then.
func (l *loop) waitsForStart(next *config.NodeConfig) (pending []string, err error) {
	changes, err := config.Diff(l.first, next)
	for _, c := range changes {
		if isOne(c.Field, atStart) {
			pending = append(pending, c.String()+", from the next start on")
		}
	}
	return pending, err
}

func isOne(field string, of []string) bool {
	return slices.ContainsFunc(of, func(f string) bool { return field == f || strings.HasPrefix(field, f+".") })
}

// moves says who has other CPUs or memory nodes than before, and who has none any more.
func moves(effects []agent.Effect) []string {
	var moved []string
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case agent.EffectLost:
			moved = append(moved, e.ID+" has no place any more")
		case agent.EffectMoved:
			moved = append(moved, fmt.Sprintf("%s from %s to %s", e.ID, e.Was.CPUs, e.Is.CPUs))
		}
	}
	return moved
}
