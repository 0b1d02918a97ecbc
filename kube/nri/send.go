package nri

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"path/filepath"
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

// sendLoop sends what no answer contained, and compares the kernel's CPUs with the wanted ones, until ctx ends.
func (p *Plugin) sendLoop(ctx context.Context, runtime updater) {
	every := time.NewTicker(p.opt.Every)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.table.wakeup:
		case <-p.verifyNow:
			p.verify()
		case <-every.C:
			p.verify()
		}
		p.send(runtime)
	}
}

// repairLoop places containers that could not be placed before, and repairs what is written besides the
// runtime's updates, until ctx ends and while the runtime is connected. It is apart from sendLoop, as a write
// may take long.
func (p *Plugin) repairLoop(ctx context.Context) {
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
			p.retryAll(ctx)
			p.abandon(ctx)
			p.endSandboxes(ctx)
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

// repair repairs what is written besides the runtime's updates, for some workloads or, without ids, for all,
// and releases those whose containers are gone.
func (p *Plugin) repair(ctx context.Context, ids ...string) {
	if _, err := p.node.Reconcile(ctx, ids...); err != nil && ctx.Err() == nil {
		p.emitFailed(err)
	}
}

// verifyIn has sendLoop call verify after d.
func (p *Plugin) verifyIn(d time.Duration) {
	time.AfterFunc(d, func() {
		select {
		case p.verifyNow <- struct{}{}:
		default:
		}
	})
}

// send sends what differs from what the runtime was sent before: first the updates that only take CPUs
// away, then the others. If the first fail, the others are not sent until the kernel shows who has what.
func (p *Plugin) send(runtime updater) {
	for _, lose := range []bool{true, false} {
		some := p.table.outgoing(lose, p.online)
		if len(some) == 0 {
			continue
		}
		_, err := runtime.UpdateContainers(updates(some))
		if err != nil { // it does not say of whom
			p.table.doubt()
		}
		p.table.sendDone(some)
		if err != nil {
			p.emit(Event{Kind: Drifted, Text: fmt.Sprintf("the runtime could not update some of %s: %v", plural(len(some), "container"), err)})
			p.verifyIn(2 * settling)
			return
		}
	}
}

// outgoing returns the moves to send, and notes them as being sent: with lose those that only take CPUs
// away, without it all. While a handler is at work there are none: its answer has them.
func (t *table) outgoing(lose bool, online cpuset.Set) (some []move) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.handlers > 0 || !t.synced {
		return nil
	}
	before := map[string]resources{}
	for id, s := range t.containers {
		before[id] = s.sent
	}
	contested := t.contested
	all, _, _ := t.moves("", online)
	for _, m := range all {
		if lose && !m.lose {
			t.containers[m.id].sent = before[m.id] // it is sent later
			t.contested = contested
			continue
		}
		some = append(some, m)
	}
	if len(some) > 0 {
		t.sending = map[string]cpuset.Set{}
		for _, m := range some {
			t.sending[m.id] = cmp.Or(before[m.id].cpus, online).Union(m.to.cpus)
		}
	}
	return some
}

// doubt notes that the update that is being sent failed, for some of its containers at least: until verify has
// compared what the kernel has, each of them may be on what it had before or on what it was sent.
func (t *table) doubt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.doubtedAt = time.Now(); t.doubted == nil {
		t.doubted = map[string]cpuset.Set{}
	}
	for id, has := range t.sending {
		t.doubted[id] = t.doubted[id].Union(has)
	}
}

// settleDoubt ends the doubt about a failed update, once a comparison that began at a time has shown what came
// of it.
func (t *table) settleDoubt(compared time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.doubted != nil && compared.Sub(t.doubtedAt) > settling {
		t.doubted = nil
		t.wake()
	}
}

// sendDone notes that the runtime has answered an update. A container for which an answer of a handler said
// something else meanwhile is sent again: the order in which the runtime applied the two is not known.
func (t *table) sendDone(some []move) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sending = nil
	for _, m := range some {
		if s := t.containers[m.id]; s != nil && s.sent != *m.to {
			s.sent = resources{}
			t.wake()
		}
	}
}

// verify compares the CPUs that the kernel gives containers with those that they are to have. Those that
// differ are sent again, up to three times in a minute. Then a container on other CPUs is left as it is; one
// that has only some of its own is sent nothing until it is to have others.
func (p *Plugin) verify() {
	p.trim(p.table.groups())
	defer p.table.settleDoubt(time.Now())
	for _, s := range p.table.settled() {
		is, ok := p.opt.Effective(s.group)
		p.table.noteMissing(s.id, !ok)
		if !ok || is == s.want.cpus {
			continue
		}
		held, key := s.want.cpus.Contains(is), s.id
		if held {
			key = heldKey(s.id)
		}
		p.mu.Lock()
		told := p.drift.Yielded(key)
		count, yielded := p.drift.Found(key, int64(time.Since(p.start)))
		p.mu.Unlock()
		text := fmt.Sprintf("the kernel has CPUs %s instead of %s, time %d", is, s.want.cpus, count)
		if held {
			text += "; a group around it, or a partition, holds the others back"
		}
		if held && count > p.drift.Limit { // sending the same again changes nothing; other CPUs it is still sent
			if !told {
				p.emit(s.of.event(Drifted, text+"; it has them once that ends"))
			}
			continue
		}
		yielded = yielded && !held
		if yielded {
			text += "; it is left as it is"
		}
		if p.table.noteDrift(s.id, is, yielded) {
			p.emit(s.of.event(Drifted, text))
		}
	}
}

// heldKey is the key in Plugin.drift of how often a container had only some of its CPUs.
func heldKey(container string) string { return container + " held" }

// settling is how long the runtime may take from the answer of a handler until the kernel has what it says.
const settling = 300 * time.Millisecond

// settled are copies of the running containers that were sent all that they are to have longer ago than
// settling.
func (t *table) settled() (all []tracked) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.containers {
		if s.started && !s.fresh && !s.yielded && time.Since(s.since) > settling && s.sent.cpus == s.want.cpus && t.sending == nil && !s.want.cpus.IsEmpty() {
			all = append(all, *s)
		}
	}
	return all
}

// groups are the control groups of all containers, and groupsByID the same by the containers' ids.
func (t *table) groups() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]bool, len(t.order))
	for _, s := range t.order {
		all[s.group] = true
	}
	return all
}

func (t *table) groupsByID() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]string, len(t.order))
	for _, s := range t.order {
		all[s.id] = s.group
	}
	return all
}

// noteDrift notes what the kernel has, unless something else is wanted by now.
func (t *table) noteDrift(id string, is cpuset.Set, yielded bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.containers[id]
	if s == nil || s.sent.cpus != s.want.cpus {
		return false
	}
	s.sent.cpus, s.yielded = is, yielded
	t.wake()
	return true
}

// readersOf read the CPUs of control groups where CPUs are given on a host, and whether they
// have processes. The files with the CPUs stay open until trim closes those of groups that are not in
// use any more.
func readersOf(root *kernel.Root) (effective func(string) (cpuset.Set, bool), busy func(string) bool, trim func(used map[string]bool), err error) {
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, nil, nil, err
	}
	h, ok := host.Hierarchy(cgroup.CPUSet)
	if !ok {
		return nil, nil, nil, &kernel.NotSupportedError{Feature: "control groups with CPUs", Reason: "no hierarchy has the controller cpuset", Remedy: "mount one, or boot with cgroup v2"}
	}
	file := "cpuset.cpus.effective"
	if h.Version == 1 {
		file = "cpuset.effective_cpus"
	}
	busy = func(group string) bool {
		has, err := kernel.HasProcs(root.FS(), path.Join(h.Dir, group))
		return err == nil && has
	}
	dir, kept := filepath.Join(root.Name(), h.Dir), new(kernel.Kept)
	trim = func(used map[string]bool) {
		if kept.Len() > len(used) { // of each there is one at most
			_ = kept.Close(func(name string) bool {
				group, _ := filepath.Rel(dir, filepath.Dir(name))
				return !used[group]
			})
		}
	}
	effective = func(group string) (cpuset.Set, bool) {
		text, err := kept.Read(filepath.Join(dir, group, file))
		if err != nil {
			return cpuset.Set{}, false
		}
		cpus, err := cpuset.Parse(strings.TrimSpace(text))
		return cpus, err == nil
	}
	return effective, busy, trim, nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
