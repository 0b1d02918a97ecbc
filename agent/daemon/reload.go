package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

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

// globsWithBelow are globs likewise, for who means the groups below as well.
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
	next, err := src.read()
	var changes []config.Change
	if err == nil {
		changes, err = config.Diff(l.conf, next)
	}
	var moved []string
	if err == nil && len(changes) > 0 {
		moved, err = l.apply(ctx, next, changes)
	}
	if err != nil {
		l.refuse(err)
		return
	}
	l.accept(changes, moved)
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

func (l *loop) accept(changes []config.Change, moved []string) {
	l.mu.Lock()
	back := l.refused != ""
	l.refused = ""
	l.mu.Unlock()
	if len(changes) == 0 && !back {
		return
	}
	var words []string
	for _, c := range changes {
		words = append(words, c.String())
	}
	text := some(words, "; ")
	if len(changes) == 0 {
		text = "the file says what is in force"
	}
	if len(moved) > 0 {
		text += fmt.Sprintf("; it took %d moves: %s", len(moved), some(moved, ", "))
	}
	l.note(api.Reloaded, text)
}

// atStart are fields that are read at the start only.
var atStart = []string{"agent.socket", "agent.group", "agent.metrics", "agent.network", "agent.hosts", "agent.stateDir", "agent.rescan"}

// ofNode are fields, or what is before a dot, that the node is opened with.
var ofNode = []string{"policy", "allowed", "reserved", "floor", "noFloor", "confine", "protected", "agent.yieldAfter"}

func (l *loop) apply(ctx context.Context, next *config.NodeConfig, changes []config.Change) (moved []string, err error) {
	opt, err := l.check(next)
	if err != nil {
		return nil, err
	}
	admins, err := adminsOf(next)
	if err != nil {
		return nil, err
	}
	waiting, err := l.waitsForStart(next)
	if err != nil {
		return nil, err
	}
	before, err := l.keeper.List(ctx)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(changes, func(c config.Change) bool { return isOne(c.Field, ofNode) }) {
		if err := l.keeper.open(ctx, opt); err != nil {
			return nil, err
		}
	}
	after, err := l.keeper.List(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.conf, l.admins, l.loaded, l.pending = next, admins, time.Now(), waiting
	l.mu.Unlock()
	l.rematch(ctx)
	l.reconcile(ctx)
	l.guard(next)
	return moves(before, after), nil
}

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

// moves says who has other CPUs or memory nodes of its own than before.
func moves(before, after []agent.Workload) []string {
	var moved []string
	for i := range before {
		was := &before[i]
		j := slices.IndexFunc(after, func(w agent.Workload) bool { return w.ID() == was.ID() })
		switch {
		case j < 0:
			moved = append(moved, was.ID()+" has no place any more")
		case was.Grant != nil && after[j].Grant != nil && !was.Grant.Equal(after[j].Grant):
			moved = append(moved, fmt.Sprintf("%s from %s to %s", was.ID(), was.CPUs, after[j].CPUs))
		}
	}
	return moved
}

// rematch asks the configuration anew about every group: first goes what is no
// workload any more, so that others find room. A group that becomes another workload does so
// in one use of the node, so that no list lacks it.
func (l *loop) rematch(ctx context.Context) {
	former := map[string]*group{}
	for _, path := range l.paths() {
		g := l.groups[path]
		was := g.id
		l.match(g)
		if was != "" && was != g.id {
			g.wait, former[was] = nil, g
		}
	}
	l.complain(l.keeper.do(api.WithOrigin(ctx, api.ByConfig), func(n *agent.Node) error {
		var errs []error
		for _, was := range slices.Sorted(maps.Keys(former)) {
			errs = append(errs, ignoreNotHeld(n.Release(ctx, was, agent.WhenEmpty)))
		}
		for _, was := range slices.Sorted(maps.Keys(former)) {
			if g := former[was]; g.entry != nil {
				l.put(ctx, n, g)
			}
		}
		return errors.Join(errs...)
	}))
	for _, path := range l.paths() {
		l.settle(ctx, l.groups[path])
	}
	l.show()
}
