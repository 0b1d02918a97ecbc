package daemon

import (
	"context"
	"errors"
	"os"
	"strings"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// Draft is what a group would get.
type Draft struct {
	ID    string
	Class place.Class
	// CPUs are what it could run on in the end, Own those of its own.
	CPUs, Own, Mems cpuset.Set
	// Limits are the settings that it would have beside these, its class's included.
	Limits cgroup.Limits
	Err    error // why it would get none
}

// Preview says which groups that are there match, in the order of their paths, and
// what each would get on a host without other workloads. Nothing is changed.
func Preview(ctx context.Context, opt Options) (drafts []Draft, err error) {
	conf, _, err := (&file{name: opt.File}).read()
	if err == nil {
		err = opt.open()
	}
	if err != nil {
		return nil, err
	}
	// A node of its own, whose records nobody sees.
	dir, err := os.MkdirTemp("", "berth-preview-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	l := newLoop(nil, agent.Options{Root: opt.Root, Machine: opt.Machine, Dir: dir}, conf)
	nodeOptions, err := l.options(conf)
	if err != nil {
		return nil, err
	}
	n, err := agent.Open(ctx, nodeOptions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	trees, _, prefix, _, err := treesOf(l.base.Root, n.Bases())
	if err != nil || len(trees) == 0 {
		return nil, err
	}
	l.dir, l.prefix = n.Bases()[0], prefix
	state, err := n.State(ctx)
	if err != nil {
		return nil, err
	}
	paths, err := groupsBelow(l.base.Root, n.Bases()[0])
	if err != nil {
		return nil, err
	}
	return l.draft(state, nodeOptions.Policy, paths), nil
}

// groupsBelow are the paths of all groups below a base but Berth's own.
func groupsBelow(root *kernel.Root, base string) (paths []string, err error) {
	all, err := cgroup.Below(root.FS(), base)
	for _, name := range all {
		if at := strings.TrimPrefix(name, base+"/"); !agent.IsOwn(at) {
			paths = append(paths, at)
		}
	}
	return paths, kernel.IgnoreAbsent(err)
}

// draft places the groups that match one after the other.
func (l *loop) draft(state *place.State, policy place.Policy, paths []string) []Draft {
	var drafts []Draft
	l.warn = func(id string, err error) { drafts = append(drafts, Draft{ID: id, Err: err}) }
	for _, path := range paths {
		g := &group{path: path}
		l.match(l.conf, g)
		if g.entry == nil {
			continue
		}
		spec := l.specOf(l.conf, g)
		d := Draft{ID: g.id, Class: g.entry.Class, Limits: spec.Settings()}
		offer, err := place.Place(policy, state, &spec.Request)
		if err == nil {
			var next *place.State
			if next, err = state.Commit(offer); err == nil {
				state = next
			}
		}
		d.Err = state.Blame(&spec.Request, err)
		drafts = append(drafts, d)
	}
	for i := range drafts {
		d := &drafts[i]
		if g, ok := state.Grant(d.ID); ok {
			d.Own, d.Mems = g.Own, g.Mems
			d.CPUs, _ = state.CPUs(d.ID)
		}
	}
	return drafts
}
