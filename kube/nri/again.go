package nri

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/place"
)

// later is a container that runs in the shared pool as its decision came too late or failed.
type later struct {
	pod  *api.PodSandbox
	c    *api.Container
	told string // why it still does
}

// tryLater has a container follow the shared pool until it can be placed.
func (p *Plugin) tryLater(pod *api.PodSandbox, c *api.Container) {
	p.table.follow(c.GetId())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost[c.GetId()] = &later{pod: pod, c: c}
}

// again places containers whose decision came too late or failed. No handler waits for it:
// what comes of it is sent, or is in the answer of the handler at work by then.
func (p *Plugin) again(ctx context.Context) {
	var all []*later
	p.mu.Lock()
	for _, l := range p.lost {
		all = append(all, l)
	}
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b *later) int { return strings.Compare(a.c.GetId(), b.c.GetId()) })
	for _, l := range all {
		id := l.c.GetId()
		err := p.place(ctx, l.pod, l.c)
		var held *place.HeldError
		if errors.As(err, &held) { // the late decision was noted after all
			err = p.found(ctx, l, held.ID)
		}
		if err != nil && p.table.has(id) {
			if text := err.Error(); text != l.told {
				l.told = text
				p.tell(about(Fallback, l.pod, l.c, "it stays in the shared pool: %s", text))
			}
			continue
		}
		p.mu.Lock()
		delete(p.lost, id)
		p.mu.Unlock()
		switch {
		case !p.table.has(id): // it ended meanwhile
			if _, err := p.release(ctx, id); err != nil {
				p.tell(about(string(agent.Failed), l.pod, l.c, "its CPUs are not given back yet: %v", err))
			}
		default:
			p.tell(about(Recovered, l.pod, l.c, "it has what it asks for now"))
		}
	}
}

// found gives a container the workload that a decision made after its time was over.
func (p *Plugin) found(ctx context.Context, l *later, id string) error {
	held, err := p.node.Get(ctx, id)
	if err != nil {
		return err
	}
	if containerOf(&held) != l.c.GetId() {
		return &place.HeldError{ID: id}
	}
	w, err := p.node.Arrive(ctx, id, held.Spec.Group, held.Spec.Annotations)
	if err == nil {
		p.name(l.c.GetId(), &w)
	}
	return err
}
