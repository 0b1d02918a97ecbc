package nri

import (
	"cmp"
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

// move is an update for the runtime.
type move struct {
	id   string
	to   *resources // the same of all that go together
	lose bool       // only takes CPUs away
}

// moves brings what the runtime was told nearer to what is wanted, in an order in which no
// exclusive CPU ever has two owners, and notes it as told. Of a container that needs two
// steps it returns the first, and nothing that comes after the second: what is left shows
// at the next time. answered is the container whose creation is answered, "" if none; its
// own resources are not among the moves, and busy is an error if they cannot be had yet.
func (t *table) moves(answered string, online cpuset.Set) (all []move, own resources, busy error) {
	assignments, members := t.ways(answered, online)
	steps, err := cgroup.Order(assignments, t.contested, t.shared)
	if err != nil {
		return nil, own, err
	}
	now, done := time.Now(), make([]bool, len(assignments))
	all = make([]move, 0, len(t.line))
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
			s.tell(to, now)
		}
	}
	for i, a := range assignments { // those whose memory nodes alone change, or that are as wanted
		for _, s := range members[i] {
			switch {
			case done[i]:
			case s.fresh: // it has to wait for others, who need two steps
				own = resources{t.shared.Minus(t.contested), s.want.mems}
				if s.tell(own, now); own.cpus.IsEmpty() {
					busy = &BusyError{a.Want}
				}
			case a.Have == a.Want:
				all = appendMove(all, s.id, s.want, true)
				s.tell(s.want, now)
			}
		}
	}
	t.contested = t.owned
	return all, own, busy
}

// ways are the changes that are wanted: what containers have, and what they are to have. Those for
// which both are the same are the members of one; a new container is one of its own.
func (t *table) ways(answered string, online cpuset.Set) (all []cgroup.Assignment, members [][]*seat) {
	type way struct{ have, want cpuset.Set }
	known, blocked := map[way]int{}, t.heldBack(online)
	for _, s := range t.line {
		if s.fresh && s.id != answered {
			continue // it has nothing yet, and is told by the answer to its creation
		}
		w := way{cmp.Or(s.told.cpus, online), s.want.cpus}
		switch {
		case s.fresh:
			w.have = cpuset.Set{}
		case s.yielded || w.have == w.want && s.told.cpus == w.have && sameMems(s) || w.want.IsEmpty():
			continue
		}
		if !blocked.IsEmpty() {
			if w.want = t.without(s, w.want, w.have, blocked); !s.fresh && w.want == w.have && s.told.cpus == w.have {
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

// tell notes what the runtime is told of a container.
func (s *seat) tell(to resources, at time.Time) {
	if !s.fresh && !s.starts.IsZero() {
		s.begins = s.begins.Union(to.cpus)
	}
	s.told, s.since, s.fresh = to, at, false
}

// appendMove appends a move. One to the same as that before it goes together with it.
func appendMove(all []move, id string, to resources, lose bool) []move {
	if last := len(all) - 1; last >= 0 && *all[last].to == to {
		return append(all, move{id, all[last].to, lose})
	}
	return append(all, move{id, new(to), lose})
}

func sameMems(s *seat) bool { return s.want.mems.IsEmpty() || s.want.mems == s.told.mems }

// answer is moves as the updates of a handler's answer.
func (t *table) answer(created string, online cpuset.Set) ([]*api.ContainerUpdate, resources, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
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

// starting is how long a container that the runtime starts may begin on what it was told before.
// No event tells that a start has failed.
const starting = 5 * time.Second

// blocked are exclusive CPUs that somebody else has until an update on its way takes them,
// or gets by it: the runtime applies it after the answer of the handler at work. So are those
// on which somebody may be about to start.
func (t *table) blocked() (cpus cpuset.Set) {
	for _, s := range t.line {
		if !s.starts.IsZero() && time.Since(s.starts) < starting {
			cpus = cpus.Union(s.begins.Minus(s.want.cpus).Intersect(t.owned))
		}
	}
	for id, has := range t.sending {
		if s := t.seats[id]; s != nil {
			cpus = cpus.Union(has.Minus(s.want.cpus).Intersect(t.owned))
		}
	}
	return cpus
}

// heldBack are the blocked CPUs, and those that a container which has to wait for them keeps meanwhile.
func (t *table) heldBack(online cpuset.Set) cpuset.Set {
	blocked := t.blocked()
	for before := (cpuset.Set{}); before != blocked; {
		before = blocked
		for _, s := range t.line {
			if !s.fresh && !s.yielded {
				keeps := t.without(s, s.want.cpus, cmp.Or(s.told.cpus, online), before)
				blocked = blocked.Union(keeps.Minus(s.want.cpus).Intersect(t.owned))
			}
		}
	}
	return blocked
}

// without is a set of CPUs to have until the blocked ones are to be had.
func (t *table) without(s *seat, w, have, blocked cpuset.Set) cpuset.Set {
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
