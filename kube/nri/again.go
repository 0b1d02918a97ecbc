package nri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
		if ctx.Err() != nil {
			return
		}
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
		if p.lost[id] == l { // no other decision about it has failed meanwhile
			delete(p.lost, id)
		}
		p.mu.Unlock()
		if p.table.has(id) {
			p.tell(about(Recovered, l.pod, l.c, "it has what it asks for now"))
		}
	}
}

// abandon gives the CPUs of containers back that were created and not started, or of which
// nothing is left: the runtime was killed, or its request was cut, and the kubelet has not
// collected them yet; or it ended while a plugin was being adopted. No handler tells.
func (p *Plugin) abandon(ctx context.Context) {
	for _, s := range p.abandoned(p.opt.Unstarted) {
		_, placed := p.workload(s.id)
		p.table.leaveBehind(s.id, true)
		give := func() (err error) { _, err = p.giveBack(ctx, s.id, true); return err }
		if placed && p.toBegin(s.id) {
			give = func() error { return p.keepGroup(ctx, s.id) }
		}
		if err := give(); err != nil {
			p.table.leaveBehind(s.id, false) // and tried again
			p.tell(s.of.event(string(agent.Failed), fmt.Sprintf("its CPUs are not given back yet: %v", err)))
		} else if placed {
			why := fmt.Sprintf("created %s ago and not started", time.Since(s.came).Round(time.Second))
			if s.started {
				why = fmt.Sprintf("gone for %s without an end that the runtime told", time.Since(s.gone).Round(time.Second))
			}
			p.tell(s.of.event(Abandoned, fmt.Sprintf("%s: it gives CPUs %s back, and is placed anew if it starts", why, s.want.cpus)))
		}
	}
}

// abandoned are copies of the seats of containers that for so long neither the runtime nor the
// kernel says to be there.
func (p *Plugin) abandoned(since time.Duration) []seat {
	return slices.DeleteFunc(p.table.abandoned(since), func(s seat) bool {
		if !p.opt.Busy(s.group) {
			return false
		}
		is, _ := p.opt.Effective(s.group)
		p.table.started(s.id, is)
		return true
	})
}

func (t *table) abandoned(since time.Duration) (all []seat) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.line {
		began := s.came
		if s.started {
			began = s.gone
		}
		if !s.fresh && !s.left && !began.IsZero() && time.Since(began) >= since {
			all = append(all, *s)
		}
	}
	return all
}

// missing notes whether the kernel has a container that was started.
func (t *table) missing(id string, is bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch s := t.seats[id]; {
	case s == nil || is && !(s.seen && s.gone.IsZero()):
	case is:
		s.gone = time.Now()
	default:
		s.seen, s.gone = true, time.Time{}
	}
}

// leaveBehind has a container that nobody starts follow the shared pool.
func (t *table) leaveBehind(id string, is bool) {
	t.follow(id)
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seats[id]; s != nil {
		s.left = is
		t.wake()
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
	w, lost, err := p.arrive(ctx, &held, held.Spec, false) // it runs: too late to refuse it
	if err == nil {
		p.tellLost(l.pod, l.c, lost)
		p.settle(ctx, l.c.GetId(), &w)
	}
	return err
}
