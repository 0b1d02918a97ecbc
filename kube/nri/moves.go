package nri

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
)

// BusyError is a container for which there is no CPU until the runtime has applied an update.
// The kubelet tries it again by itself.
type BusyError struct{ CPUs cpuset.Set }

func (e *BusyError) Error() string {
	return fmt.Sprintf("CPUs %s are still being taken from other containers; try again", e.CPUs)
}

// move is one update for the runtime: a container and what it is to have.
type move struct {
	id   string
	to   *resources // moves to the same resources, one after the other, share it
	lose bool       // it only takes CPUs away
}

// moves returns the updates that the runtime needs, in an order in which no exclusive CPU ever has two
// owners, and notes them as sent. A container that needs two steps gets the first one, and nothing after
// its second step is returned: the next call returns the rest. answered is the container whose creation is
// being answered, "" if none: its resources are own and not among the moves, and busy is an error if there
// are no CPUs for it yet.
func (t *table) moves(answered string, online cpuset.Set) (all []move, own resources, busy error) {
	assignments, members := t.changes(answered, online)
	steps, err := cgroup.Order(assignments, t.contested, t.shared)
	if err != nil {
		return nil, own, err
	}
	now, done, waits := time.Now(), make([]bool, len(assignments)), false
	all = make([]move, 0, len(t.order))
	for _, step := range steps {
		if done[step.Assignment] {
			break
		}
		done[step.Assignment] = true
		lose := assignments[step.Assignment].Have.Contains(step.CPUs)
		for _, s := range members[step.Assignment] {
			to := resources{step.CPUs, s.want.mems}
			if s.fresh {
				own = to
			} else {
				all = appendMove(all, s.id, to, lose)
			}
			s.noteSent(to, now)
			waits = waits || !s.started
		}
	}
	for i, a := range assignments { // those whose CPUs do not change
		for _, s := range members[i] {
			switch {
			case done[i]:
				continue
			case s.fresh: // it has to wait for others, who need two steps
				own = resources{t.shared.Minus(t.contested), s.want.mems}
				if s.noteSent(own, now); own.cpus.IsEmpty() {
					busy = &BusyError{a.Want}
				}
			case a.Have == a.Want:
				all = appendMove(all, s.id, s.want, true)
				s.noteSent(s.want, now)
			default:
				continue
			}
			waits = waits || !s.started
		}
	}
	if waits { // by then what a container may begin on is known
		time.AfterFunc(startTimeout, t.wake)
	}
	t.contested = t.owned
	return all, own, busy
}

// changes are the pairs of CPUs that containers have and are to have, and which containers each pair
// concerns. A new container has a pair of its own.
func (t *table) changes(answered string, online cpuset.Set) (all []cgroup.Assignment, members [][]*tracked) {
	type change struct{ have, want cpuset.Set }
	known, blocked := map[change]int{}, t.heldBack(online)
	for _, s := range t.order {
		if s.fresh && s.id != answered {
			continue // it has nothing yet, and the answer to its creation gives it its CPUs
		}
		w := change{cmp.Or(s.sent.cpus, online), s.want.cpus}
		switch {
		case s.fresh:
			w.have = cpuset.Set{}
		case s.yielded || w.have == w.want && s.sent.cpus == w.have && sameMems(s) || w.want.IsEmpty():
			continue
		}
		if !blocked.IsEmpty() {
			if w.want = t.untilFree(s, w.want, w.have, blocked); !s.fresh && w.want == w.have && s.sent.cpus == w.have {
				continue
			}
		}
		i, ok := known[w]
		if !ok || s.fresh {
			i = len(all)
			all, members = append(all, cgroup.Assignment{Name: s.id, Have: w.have, Want: w.want}), append(members, nil)
			if !s.fresh {
				known[w] = i
			}
		}
		members[i] = append(members[i], s)
	}
	return all, members
}

// noteSent notes what the runtime is sent for a container. For one that is not started it comes too late if the
// runtime has begun to start it: no handler is called before the runtime has read on which CPUs.
func (s *tracked) noteSent(to resources, at time.Time) {
	switch {
	case !s.started:
		s.mayRunOn(to.cpus, at)
	case !s.startingSince.IsZero():
		s.startCPUs = s.startCPUs.Union(to.cpus)
	}
	s.sent, s.since, s.fresh = to, at, false
}

// appendMove appends a move. One to the same as that before it goes together with it.
func appendMove(all []move, id string, to resources, lose bool) []move {
	if last := len(all) - 1; last >= 0 && *all[last].to == to {
		return append(all, move{id, all[last].to, lose})
	}
	return append(all, move{id, new(to), lose})
}

func sameMems(s *tracked) bool { return s.want.mems.IsEmpty() || s.want.mems == s.sent.mems }

// errDropped is the error of an answer for a connection that the runtime has dropped.
var errDropped = errors.New("the runtime has dropped the connection on which it waited for this answer")

// answer is moves as the updates of a handler's answer, on the connection of that number.
func (t *table) answer(connection int, created string, online cpuset.Set) ([]*api.ContainerUpdate, resources, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if connection != t.connection { // nothing of it is sent
		return nil, resources{}, errDropped
	}
	all, own, err := t.moves(created, online)
	return updates(all), own, err
}

// updates are moves as the runtime has them. Those that go together share what they hold.
func updates(all []move) (out []*api.ContainerUpdate) {
	var to *resources
	var linux *api.LinuxContainerUpdate
	for _, m := range all {
		if m.to != to {
			u := &api.ContainerUpdate{}
			u.SetLinuxCPUSetCPUs(m.to.cpus.String())
			if !m.to.mems.IsEmpty() {
				u.SetLinuxCPUSetMems(m.to.mems.String())
			}
			to, linux = m.to, u.Linux
		}
		out = append(out, &api.ContainerUpdate{ContainerId: m.id, Linux: linux})
	}
	return out
}

// startTimeout is how long a container that the runtime starts, or updates as it was asked to, may be on CPUs that
// it was given before. The runtime reports no start and no update that failed.
const startTimeout = 5 * time.Second

// blocked are exclusive CPUs that another container has before or after an update that is being sent: the
// runtime applies that after the answer of the handler at work. Those of an update that failed are blocked, too,
// and CPUs on which another container may be about to start: those that it was sent last among them, as what it
// is sent now may come too late.
func (t *table) blocked(online cpuset.Set) (cpus cpuset.Set) {
	now := time.Now()
	for _, s := range t.order {
		var may cpuset.Set
		if !s.startingSince.IsZero() && now.Sub(s.startingSince) < startTimeout {
			may = s.startCPUs
		}
		if !s.started && !s.fresh && !s.want.cpus.IsEmpty() {
			may = may.Union(cmp.Or(s.sent.cpus, s.startCPUs, online))
		}
		if !may.IsEmpty() {
			cpus = cpus.Union(may.Minus(s.want.cpus).Intersect(t.owned))
		}
	}
	for _, update := range []map[string]cpuset.Set{t.sending, t.doubted} {
		for id, has := range update {
			if s := t.containers[id]; s != nil {
				cpus = cpus.Union(has.Minus(s.want.cpus).Intersect(t.owned))
			}
		}
	}
	return cpus
}

// heldBack are the blocked CPUs, and those that containers keep while they wait for blocked ones.
func (t *table) heldBack(online cpuset.Set) cpuset.Set {
	blocked := t.blocked(online)
	for before := (cpuset.Set{}); before != blocked; {
		before = blocked
		for _, s := range t.order {
			if !s.fresh && !s.yielded {
				keeps := t.untilFree(s, s.want.cpus, cmp.Or(s.sent.cpus, online), before)
				blocked = blocked.Union(keeps.Minus(s.want.cpus).Intersect(t.owned))
			}
		}
	}
	return blocked
}

// untilFree is what a container has of the CPUs that it wants until the blocked ones are free.
func (t *table) untilFree(s *tracked, w, have, blocked cpuset.Set) cpuset.Set {
	gains := w.Minus(have).Intersect(blocked)
	switch rest := w.Minus(blocked); {
	case gains.IsEmpty():
		return w
	case s.fresh:
		return t.shared
	case rest.IsEmpty():
		return have
	default:
		return rest
	}
}
