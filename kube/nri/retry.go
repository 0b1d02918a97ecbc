package nri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/place"
)

// unplaced is a container that runs in the shared pool, as the decision about it came too late or failed.
type unplaced struct {
	pod *api.PodSandbox
	c   *api.Container
	why string // the last reason that was reported
}

// retryLater gives a container the shared pool until it can be placed.
func (p *Plugin) retryLater(pod *api.PodSandbox, c *api.Container) {
	p.table.followPool(c.GetId())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retries[c.GetId()] = &unplaced{pod: pod, c: c}
}

// retryResized has a container that is to be placed again ask for the resources that it has now.
func (p *Plugin) retryResized(c *api.Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u := p.retries[c.GetId()]; u != nil {
		p.retries[c.GetId()] = &unplaced{pod: u.pod, c: c, why: u.why}
	}
}

// retryAll places the containers about which a decision came too late or failed. No handler waits for it: its
// updates are sent, or are in the answer of the handler that is at work by then.
func (p *Plugin) retryAll(ctx context.Context) {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.retries))
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b *unplaced) int { return strings.Compare(a.c.GetId(), b.c.GetId()) })
	for _, u := range all {
		if ctx.Err() != nil {
			return
		}
		if !p.table.isAbandoned(u.c.GetId()) { // that is placed if it starts
			p.retry(ctx, u)
		}
	}
}

// retry places one of those.
func (p *Plugin) retry(ctx context.Context, u *unplaced) {
	id := u.c.GetId()
	err := p.place(ctx, u.pod, u.c)
	if held, ok := errors.AsType[*place.HeldError](err); ok { // the late decision was noted after all
		err = p.adoptLate(ctx, u, held.ID)
	}
	if err != nil && p.table.has(id) {
		if text := err.Error(); text != u.why {
			u.why = text
			p.emit(about(Fallback, u.pod, u.c, "it stays in the shared pool: %s", text))
		}
		return
	}
	p.mu.Lock()
	if p.retries[id] == u { // no other decision about it has failed meanwhile
		delete(p.retries, id)
	}
	p.mu.Unlock()
	p.initsDone(ctx, u.pod)
	if p.table.has(id) {
		p.emit(about(Recovered, u.pod, u.c, "it has what it asks for now"))
	}
}

// abandon gives back the CPUs of containers that were created and not started, or that the kernel has no more:
// the runtime was killed or its request was cut, and the kubelet has not removed them yet, or they ended
// while Synchronize was at work. The runtime calls no handler for these.
func (p *Plugin) abandon(ctx context.Context) {
	for _, s := range p.abandoned(p.opt.Unstarted) {
		_, placed := p.workload(s.id)
		if !p.table.setAbandoned(&s) {
			continue
		}
		var err error
		if placed && p.startsInGroup(s.id) {
			err = p.keepGroup(ctx, s.id)
		} else {
			_, err = p.giveBack(ctx, s.id, true)
		}
		if err != nil {
			p.table.clearAbandoned(s.id) // and tried again
			p.emit(s.of.event(string(agent.Failed), fmt.Sprintf("its CPUs are not given back yet: %v", err)))
		} else if placed {
			p.emit(s.of.event(Abandoned, fmt.Sprintf("%s: it gives CPUs %s back, and is placed anew if it starts", s.idleFor(), s.want.cpus)))
		}
	}
}

// idleFor says for how long an abandoned container has had no process.
func (s *tracked) idleFor() string {
	if s.started {
		return fmt.Sprintf("gone for %s without an end that the runtime told", time.Since(s.goneSince).Round(time.Second))
	}
	return fmt.Sprintf("created %s ago and not started", time.Since(s.came).Round(time.Second))
}

// abandoned returns copies of the containers that were created and not started, or are gone from the kernel,
// for at least since.
func (p *Plugin) abandoned(since time.Duration) []tracked {
	return slices.DeleteFunc(p.table.abandoned(since), func(s tracked) bool {
		if !p.opt.Busy(s.group) {
			return false
		}
		is, _ := p.opt.Effective(s.group)
		p.table.started(s.id, is)
		return true
	})
}

func (t *table) abandoned(since time.Duration) (all []tracked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.order {
		began := s.came
		if s.started {
			began = s.goneSince
		}
		if !s.fresh && !s.abandoned && !began.IsZero() && time.Since(began) >= since {
			all = append(all, *s)
		}
	}
	return all
}

// noteMissing notes whether the kernel lacks the group of a container.
func (t *table) noteMissing(id string, is bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch s := t.containers[id]; {
	case s == nil || is && !(s.seen && s.goneSince.IsZero()):
	case is:
		s.goneSince = time.Now()
	default:
		s.seen, s.goneSince = true, time.Time{}
	}
}

// setAbandoned notes that a container, as abandoned returned it, is abandoned, and gives it the shared pool. If
// the container started, ended or is back since then, it changes nothing and returns false.
func (t *table) setAbandoned(was *tracked) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.containers[was.id]
	if s == nil || s.started != was.started || s.startingSince != was.startingSince || s.goneSince != was.goneSince || s.came != was.came {
		return false
	}
	s.abandoned, s.unplaced, s.want = true, true, resources{cpus: t.shared}
	t.wake()
	return true
}

// clearAbandoned notes that a container still has its place.
func (t *table) clearAbandoned(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.containers[id]; s != nil {
		s.abandoned = false
	}
}

func (t *table) isAbandoned(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.containers[id] != nil && t.containers[id].abandoned
}

// adoptLate gives a container the workload that a decision made after its budget was used up.
func (p *Plugin) adoptLate(ctx context.Context, u *unplaced, id string) error {
	held, err := p.node.Get(ctx, id)
	if err != nil {
		return err
	}
	if containerOf(&held) != u.c.GetId() {
		return &place.HeldError{ID: id}
	}
	w, lost, err := p.arrive(ctx, &held, held.Spec, false) // it runs: too late to refuse it
	if err == nil {
		p.emitLost(u.pod, u.c, lost)
		p.attach(ctx, u.c.GetId(), &w)
	}
	if err == nil && p.table.runs(u.c.GetId()) { // its record may be of before its start
		_, err = p.restoreRequest(ctx, u.pod, u.c)
	}
	return err
}
