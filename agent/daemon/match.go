package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/place"
)

// names reports whether the configuration says of a group of another user, by path from
// the base on, that it is a workload. Any goroutine may ask.
func (l *loop) names(path string) bool {
	_, ok := l.config().Match(config.Candidate{Path: l.prefix + "/" + path, Delegated: true})
	return ok
}

// match asks a configuration what a group is. It reports whether another user chose
// the group's name.
func (l *loop) match(c *config.NodeConfig, g *group) (delegated bool) {
	g.entry, g.id = nil, ""
	entry, delegated, ok := l.entryOf(c, g.path)
	if ok {
		g.entry, g.id = entry, idOf(entry.Name, g.path)
	}
	return delegated
}

func idOf(name, path string) string {
	id := name + ":" + path
	if len(url.PathEscape(id)) > maxID {
		sum := sha256.Sum256([]byte(path))
		id = name + ":~" + hex.EncodeToString(sum[:8])
	}
	return id
}

// SpecOf is what a configuration wants for a workload of its that is known as id.
func SpecOf(c *config.NodeConfig, w *config.Workload, id string) agent.Spec {
	spec := agent.Spec{Request: w.Request(id), Limits: c.LimitsOf(w).Cgroup(), Bandwidth: agent.Bandwidth{Limit: w.Bandwidth}}
	for kind, name := range w.ClassesOf() {
		spec.SetClass(agent.ClassKind(kind), name)
	}
	return spec
}

// ClassesOf returns the classes that a configuration defines, beside those of service.
func ClassesOf(c *config.NodeConfig) agent.ClassConfig {
	return agent.ClassConfig{Cache: c.Classes.Cache, IO: c.Classes.IO, Power: c.Classes.Power, Net: c.Classes.Net}
}

func (l *loop) specOf(c *config.NodeConfig, g *group) agent.Spec {
	spec := SpecOf(c, g.entry, g.id)
	spec.Group = g.path
	spec.Request.Labels = map[string]string{label: g.entry.Name}
	spec.Request.Explain = true
	return spec
}

// settle gives a group the place that the configuration says, if it has another
// or none.
func (l *loop) settle(ctx context.Context, g *group) {
	if g.entry == nil {
		g.wait = nil
		return
	}
	_ = l.keeper.do(api.WithOrigin(ctx, api.ByConfig), func(n *agent.Node) error {
		l.put(ctx, n, g)
		return nil
	})
}

// put places the workload of a group, or resizes it if it has another place.
func (l *loop) put(ctx context.Context, n *agent.Node, g *group) {
	spec := l.specOf(l.conf, g)
	has, err := n.Get(ctx, g.id)
	if _, none := errors.AsType[*place.NotHeldError](err); none && g.entry.Group != "" {
		l.putTogether(ctx, n, g)
		return
	} else if none {
		_, err = n.Place(ctx, spec)
	} else if err == nil && !has.Spec.SameAs(&spec) {
		_, err = n.Resize(ctx, spec)
	}
	if err == nil {
		g.wait = nil
	} else {
		g.waitFor(err.Error())
	}
}

// putTogether places a workload that has none with all of its NodeConfig group, unless one
// of those has its place already: then it follows.
func (l *loop) putTogether(ctx context.Context, n *agent.Node, g *group) {
	var specs []agent.Spec
	members, missing := l.members(l.conf, l.groups, g.entry.Group)
	for _, m := range members {
		if _, err := n.Get(ctx, m.id); err == nil {
			specs, missing = []agent.Spec{l.specOf(l.conf, g)}, ""
			members = []*group{g}
			break
		}
		specs = append(specs, l.specOf(l.conf, m))
	}
	reason := missing
	if missing == "" {
		if _, err := n.PlaceTogether(ctx, specs); err != nil {
			reason = err.Error()
		}
	}
	for _, m := range members {
		if reason == "" {
			m.wait = nil
		} else {
			m.waitFor(reason)
		}
	}
}

// members are the workloads of a group of a configuration, and why they cannot be placed as
// a whole yet; "" if each entry of the group matches one.
func (l *loop) members(c *config.NodeConfig, groups map[string]*group, name string) (members []*group, missing string) {
	there := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(groups)) {
		if m := groups[path]; m.entry != nil && m.entry.Group == name {
			members, there[m.entry.Name] = append(members, m), true
		}
	}
	for i := range c.Workloads {
		if w := &c.Workloads[i]; w.Group == name && !there[w.Name] {
			missing = fmt.Sprintf("group %s is placed as a whole, and no control group of %s is there yet", name, w.Name)
		}
	}
	return members, missing
}

// waitFor notes why a group has no place, or not the one that it is to have. Others may
// look at the former note.
func (g *group) waitFor(reason string) {
	since := time.Now()
	if g.wait != nil && g.wait.ID == g.id {
		since = g.wait.Since
	}
	g.wait = &api.Waiting{ID: g.id, Group: g.path, Since: since, Reason: reason}
}

func (l *loop) release(ctx context.Context, id string) error {
	return ignoreNotHeld(l.keeper.Release(ctx, id, agent.WhenEmpty))
}

// ignoreNotHeld drops the error of a release of what has no place.
func ignoreNotHeld(err error) error {
	if _, none := errors.AsType[*place.NotHeldError](err); none {
		return nil
	}
	return err
}
