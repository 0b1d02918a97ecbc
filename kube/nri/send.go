package nri

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// updater sends updates outside of answers; stub.Stub is one.
type updater interface {
	UpdateContainers([]*api.ContainerUpdate) ([]*api.ContainerUpdate, error)
}

// keep makes true what no answer made true, and compares what is in force, until ctx ends.
func (p *Plugin) keep(ctx context.Context, runtime updater) {
	every := time.NewTicker(p.opt.Every)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.table.kick:
		case <-p.verifyNow:
			p.verify()
		case <-every.C:
			p.verify()
		}
		p.send(runtime)
	}
}

// mend places what could not be placed, and compares what is written besides, until ctx ends and while
// the runtime is there. A write that takes long holds up neither keep nor the next connection.
func (p *Plugin) mend(ctx context.Context) {
	every, rescan := time.NewTicker(p.opt.Every), time.NewTicker(p.opt.Rescan)
	defer every.Stop()
	defer rescan.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			if !p.connected.Load() {
				continue
			}
			p.again(ctx)
			p.abandon(ctx)
			if p.table.writes() {
				p.repair(ctx)
			}
		case <-rescan.C:
			if p.connected.Load() && !p.table.writes() && p.hasClasses() {
				p.repair(ctx)
			}
		}
	}
}

// repair compares what is written besides what the runtime is told, of some workloads or, without
// ids, of all, and releases those whose containers are gone.
func (p *Plugin) repair(ctx context.Context, ids ...string) {
	if _, err := p.node.Reconcile(ctx, ids...); err != nil && ctx.Err() == nil {
		p.tellFailed(err)
	}
}

// verifyIn has what is in force compared after a while.
func (p *Plugin) verifyIn(d time.Duration) {
	time.AfterFunc(d, func() {
		select {
		case p.verifyNow <- struct{}{}:
		default:
		}
	})
}

// send sends what differs from what the runtime was told, those that lose CPUs before those
// that gain. If taking away fails, nothing is given until the kernel shows who has what.
func (p *Plugin) send(runtime updater) {
	for _, lose := range []bool{true, false} {
		some := p.table.outgoing(lose, p.online)
		if len(some) == 0 {
			continue
		}
		_, err := runtime.UpdateContainers(updates(some))
		p.table.sent(some)
		if err != nil { // it does not say of whom
			p.tell(Event{Kind: Drifted, Text: fmt.Sprintf("the runtime could not update some of %s: %v", plural(len(some), "container"), err)})
			p.verifyIn(2 * settling)
			return
		}
	}
}

// outgoing takes the moves that only take CPUs away, or if there are none all, and notes
// them as on their way. While a handler is at work there are none: its answer has them.
func (t *table) outgoing(lose bool, online cpuset.Set) (some []move) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.handlers > 0 || !t.synced {
		return nil
	}
	told := map[string]resources{}
	for id, s := range t.seats {
		told[id] = s.told
	}
	contested := t.contested
	all, _, _ := t.moves("", online)
	for _, m := range all {
		if lose && !m.lose {
			t.seats[m.id].told = told[m.id] // later
			t.contested = contested
			continue
		}
		some = append(some, m)
	}
	if len(some) > 0 {
		t.sending = map[string]cpuset.Set{}
		for _, m := range some {
			t.sending[m.id] = cmp.Or(told[m.id].cpus, online).Union(m.to.cpus)
		}
	}
	return some
}

// sent ends an update on its way. Whoever was told something else meanwhile, in an answer,
// is told again: the runtime applied the two in an order that is not known.
func (t *table) sent(some []move) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sending = nil
	for _, m := range some {
		if s := t.seats[m.id]; s != nil && s.told != *m.to {
			s.told = resources{}
			t.wake()
		}
	}
}

// verify compares the CPUs that the kernel gives containers with those that they are to
// have. What differs is told again, up to three times in a minute; then it is left alone.
func (p *Plugin) verify() {
	for _, s := range p.table.settled() {
		is, ok := p.opt.Effective(s.group)
		p.table.missing(s.id, !ok)
		if !ok || is == s.want.cpus {
			continue
		}
		p.mu.Lock()
		count, yielded := p.drift.Found(s.id, int64(time.Since(p.start)))
		p.mu.Unlock()
		text := fmt.Sprintf("the kernel has CPUs %s instead of %s, time %d", is, s.want.cpus, count)
		if s.want.cpus.Contains(is) {
			text += "; a group around it, or a partition, holds the others back"
		}
		if yielded {
			text += "; it is left as it is"
		}
		if p.table.found(s.id, is, yielded) {
			p.tell(s.of.event(Drifted, text))
		}
	}
}

// settling is how long an answer may take from the handler to the kernel: the runtime
// applies it after the handler.
const settling = 300 * time.Millisecond

// settled are copies of the seats of running containers that were told all that they are
// to have, and not just now.
func (t *table) settled() (all []seat) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.seats {
		if s.started && !s.fresh && !s.yielded && time.Since(s.since) > settling && s.told.cpus == s.want.cpus && t.sending == nil && !s.want.cpus.IsEmpty() {
			all = append(all, *s)
		}
	}
	return all
}

// found notes what the kernel has, unless something else is wanted by now.
func (t *table) found(id string, is cpuset.Set, yielded bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.seats[id]
	if s == nil || s.told.cpus != s.want.cpus {
		return false
	}
	s.told.cpus, s.yielded = is, yielded
	t.wake()
	return true
}

// readersOf read the CPUs of control groups where CPUs are given on a host, and whether they
// have processes.
func readersOf(root *kernel.Root) (effective func(string) (cpuset.Set, bool), busy func(string) bool, err error) {
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, nil, err
	}
	h, ok := host.Hierarchy(cgroup.CPUSet)
	if !ok {
		return nil, nil, &kernel.NotSupportedError{Feature: "control groups with CPUs", Reason: "no hierarchy has the controller cpuset", Remedy: "mount one, or boot with cgroup v2"}
	}
	file := "cpuset.cpus.effective"
	if h.Version == 1 {
		file = "cpuset.effective_cpus"
	}
	busy = func(group string) bool {
		has, err := kernel.HasProcs(root.FS(), path.Join(h.Dir, group))
		return err == nil && has
	}
	effective = func(group string) (cpuset.Set, bool) {
		text, err := fs.ReadFile(root.FS(), path.Join(h.Dir, group, file))
		if err != nil {
			return cpuset.Set{}, false
		}
		cpus, err := cpuset.Parse(strings.TrimSpace(string(text)))
		return cpus, err == nil
	}
	return effective, busy, nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
