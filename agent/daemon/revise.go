package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
)

// plan is a configuration that is not in force yet, and what it makes of the groups.
type plan struct {
	conf     *config.NodeConfig
	changes  []config.Change
	pending  []string
	admins   map[int]bool
	groups   map[string]*group
	revision agent.Revision
}

func (l *loop) hostErrors(c *config.NodeConfig) error { return hostErrors(l.base, c) }

// plan decides what it takes to have a configuration in force that passed hostErrors.
func (l *loop) plan(ctx context.Context, next *config.NodeConfig, replace bool) (p *plan, err error) {
	p = &plan{conf: next, groups: map[string]*group{}, revision: agent.Revision{Replace: replace}}
	if p.changes, err = config.Diff(l.conf, next); err != nil {
		return nil, err
	}
	if p.revision.Options, err = l.options(next); err != nil {
		return nil, err
	}
	if p.admins, err = adminsOf(next); err != nil {
		return nil, err
	}
	if p.pending, err = l.waitsForStart(next); err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, path := range l.paths() {
		g := *l.groups[path]
		l.match(next, &g)
		p.groups[path] = &g
		if g.entry != nil {
			wanted[g.id] = true
			p.revision.Specs = append(p.revision.Specs, l.specOf(next, &g))
		}
	}
	all, err := l.keeper.List(ctx)
	held := map[string]bool{}
	for i := range all {
		held[all[i].ID()] = true
	}
	p.revision.Specs = slices.DeleteFunc(p.revision.Specs, func(s agent.Spec) bool {
		if s.Request.Group == "" || held[s.Request.ID] {
			return false
		}
		members, missing := l.members(next, p.groups, s.Request.Group)
		if missing == "" || slices.ContainsFunc(members, func(m *group) bool { return held[m.id] }) {
			return false
		}
		p.groups[s.Group].waitFor(missing)
		return true
	})
	for i := range all {
		if w := &all[i]; w.Spec.Request.Labels[label] != "" && !wanted[w.ID()] {
			p.revision.Release = append(p.revision.Release, w.ID())
		}
	}
	return p, err
}

// carryOut has a plan in force. Commit is as of agent.Node.Revise.
func (l *loop) carryOut(ctx context.Context, p *plan, commit func() (func() error, error)) ([]agent.Effect, error) {
	effects, err := l.keeper.revise(ctx, p.revision, commit)
	if err != nil {
		return nil, err
	}
	failed := map[string]string{}
	for i := range effects {
		if e := &effects[i]; e.Reason != "" {
			failed[e.ID] = e.Reason
		}
	}
	for _, g := range p.groups {
		asked := slices.ContainsFunc(p.revision.Specs, func(s agent.Spec) bool { return s.Request.ID == g.id })
		if reason, ok := failed[g.id]; ok && g.entry != nil {
			g.waitFor(reason)
		} else if asked || g.entry == nil {
			g.wait = nil
		}
	}
	l.mu.Lock()
	l.groups = p.groups
	l.conf, l.admins, l.loaded, l.pending = p.conf, p.admins, time.Now(), p.pending
	l.mu.Unlock()
	l.show()
	l.guard(p.conf)
	return effects, nil
}

// remember keeps the configuration of the start as a version, if it differs from the
// latest; what cannot be kept does not keep the agent from its work.
func (l *loop) remember(text []byte) {
	if l.file.name == "" {
		return
	}
	err := l.versions.resume(text)
	if err == nil {
		err = l.record(api.Version{How: "start", UID: l.file.owner(), Text: string(text)})
	}
	l.complain(err)
}

// record keeps a configuration that is in force as a version.
func (l *loop) record(v api.Version) error {
	v.Since = time.Now()
	v, differs, err := l.versions.follow(v, l.file.name)
	if err != nil || !differs {
		return err
	}
	return l.versions.record(v)
}

// ask is something that the loop is to do between others.
type ask struct {
	do   func() error
	done chan error
}

// inTurn has the loop do something.
func (l *loop) inTurn(ctx context.Context, do func() error) error {
	a := ask{do, make(chan error, 1)}
	select {
	case l.asks <- a:
		return <-a.done
	case <-l.ended:
		return context.Canceled
	case <-ctx.Done():
		return ctx.Err()
	}
}

// propose makes a plan of a proposal, and says what it would come to; text is what the
// configuration file would hold.
func (l *loop) propose(ctx context.Context, p api.Proposal) (pl *plan, text string, r api.Revision, err error) {
	text, name := p.Text, p.Name
	if p.Version != 0 {
		if text != "" {
			return nil, "", r, &api.RequestError{Status: http.StatusBadRequest, Reason: "a text and a version: only one of them", Remedy: "leave one out"}
		}
		v, err := l.version(p.Version)
		if err != nil {
			return nil, "", r, err
		}
		text, name = v.Text, fmt.Sprintf("version %d", p.Version)
	}
	next, err := parse([]byte(text), name, l.hostErrors)
	if err != nil {
		return nil, "", r, invalid(err)
	}
	warn, left := l.warn, l.leftOut
	l.warn, l.leftOut = func(string, error) {}, map[string]bool{}
	pl, err = l.plan(ctx, next, p.Replace)
	l.warn, l.leftOut = warn, left
	if err != nil {
		return nil, "", r, err
	}
	effects, writes, err := l.keeper.previewRevision(ctx, pl.revision)
	if err != nil {
		return nil, "", r, err
	}
	r = api.Revision{Changes: inWords(pl.changes), Pending: pl.pending, Writes: len(writes)}
	for _, w := range next.Warnings() {
		r.Warnings = append(r.Warnings, w.String())
	}
	r.Effects, r.Unchanged, err = l.sum(ctx, effects)
	r.Digest = digest(&r)
	return pl, text, r, err
}

// invalid is the error of a proposed configuration that is not valid.
func invalid(err error) error {
	return &api.RequestError{Status: http.StatusBadRequest, Reason: err.Error(), Remedy: "berth config check FILE says the same"}
}

// sum completes effects with how many workloads have none.
func (l *loop) sum(ctx context.Context, effects []agent.Effect) ([]agent.Effect, int, error) {
	all, err := l.keeper.List(ctx)
	unchanged := 0
	for i := range all {
		if !slices.ContainsFunc(effects, func(e agent.Effect) bool { return e.ID == all[i].ID() }) {
			unchanged++
		}
	}
	return append([]agent.Effect{}, effects...), unchanged, err
}

// digest is the same for the same changes and effects.
func digest(r *api.Revision) string {
	text, _ := json.Marshal([]any{r.Changes, r.Effects})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// PreviewConfig says what a configuration would come to.
func (d *daemon) PreviewConfig(ctx context.Context, p api.Proposal) (r api.Revision, err error) {
	err = d.loop.inTurn(ctx, func() (err error) {
		_, _, r, err = d.loop.propose(ctx, p)
		return err
	})
	return r, err
}

// ApplyConfig has a configuration in force, and keeps it in the agent's file. The loop
// does so in its own name: the caller's right was looked at.
func (d *daemon) ApplyConfig(ctx context.Context, p api.Proposal) (r api.Revision, err error) {
	err = d.loop.inTurn(ctx, func() (err error) {
		own := agent.WithCaller(context.WithoutCancel(ctx), agent.Caller{UID: os.Geteuid(), Admin: true})
		r, err = d.loop.apply(own, p)
		return err
	})
	return r, err
}

// apply has a proposal in force, unless it comes to something else than was previewed.
func (l *loop) apply(ctx context.Context, p api.Proposal) (api.Revision, error) {
	pl, text, r, err := l.propose(ctx, p)
	if err != nil {
		return r, err
	}
	conflict := func(remedy, form string, args ...any) error {
		return &api.RequestError{Status: http.StatusConflict, Reason: fmt.Sprintf(form, args...), Remedy: remedy}
	}
	if p.Digest != "" && p.Digest != r.Digest {
		return r, conflict("preview it again", "the configuration was not applied: what it comes to has changed since the preview")
	}
	if lost := losers(r.Effects); len(lost) > 0 && !p.Losses {
		return r, conflict("change what the reasons name, or apply it with --allow-loss", "the configuration was not applied: it would take the places of %s", some(lost, ", "))
	}
	v := api.Version{Since: time.Now(), How: "apply", Text: text}
	if p.Version != 0 {
		v.How, v.Of = "rollback", p.Version
	}
	if peer, ok := api.PeerOf(ctx); ok {
		v.UID, v.PID = peer.UID, peer.PID
	}
	keep := len(pl.changes) > 0 || p.Replace // a text that says the same is no version
	if v, _, err = l.versions.follow(v, l.file.name); err != nil {
		return r, err
	}
	effects, err := l.carryOut(ctx, pl, func() (func() error, error) {
		forget := func() error { return nil }
		if keep {
			if forget, err = l.versions.prepare(v); err != nil {
				return nil, err
			}
		}
		back, err := l.file.replace([]byte(text))
		if err != nil {
			return nil, errors.Join(err, forget())
		}
		return func() error { return errors.Join(back(), forget()) }, nil
	})
	if err != nil {
		return r, err
	}
	r.Writes = 0
	if keep {
		r.Version, err = l.versions.promote()
		l.complain(err)
	}
	l.accept(pl.changes, effects)
	if r.Effects, r.Unchanged, err = l.sum(ctx, effects); err == nil {
		r.Digest = digest(&r)
	}
	return r, err
}

// losers are the workloads that lose their places.
func losers(effects []agent.Effect) (ids []string) {
	for i := range effects {
		if effects[i].Kind == agent.EffectLost {
			ids = append(ids, effects[i].ID)
		}
	}
	return ids
}

// Versions are the last configurations that were in force.
func (d *daemon) Versions(ctx context.Context) (all []api.Version, err error) {
	err = d.loop.inTurn(ctx, func() (err error) {
		all, err = d.loop.versions.list()
		for i := range all {
			all[i].Text = ""
		}
		return err
	})
	return all, err
}

// Version is one of them, with its text.
func (d *daemon) Version(ctx context.Context, number int) (v api.Version, err error) {
	err = d.loop.inTurn(ctx, func() (err error) { v, err = d.loop.version(number); return err })
	return v, err
}

func (l *loop) version(number int) (api.Version, error) {
	all, err := l.versions.list()
	if err != nil {
		return api.Version{}, err
	}
	i := slices.IndexFunc(all, func(v api.Version) bool { return v.Number == number })
	if i < 0 {
		return api.Version{}, api.NoVersion(number)
	}
	return all[i], nil
}
