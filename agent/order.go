package agent

import (
	"errors"
	"fmt"

	"berth.dev/berth/cpuset"
)

// assignment is something that runs on CPUs, where it is and where it is to be.
type assignment struct {
	name       string
	have, want cpuset.Set
}

// move is one assignment's next set of CPUs.
type move struct {
	assignment int
	cpus       cpuset.Set
}

// order returns the moves that bring every assignment from have to want. contested
// are the CPUs that somebody owns, before or after; at no instant are two assignments
// on one of them, unless both are to be. Losers are narrowed first, then
// winners widened. Seats that wait for each other's CPUs go by way of shared.
func order(assignments []assignment, contested, shared cpuset.Set) ([]move, error) {
	o := ordering{assignments: append([]assignment(nil), assignments...), contested: contested}
	for i := range o.assignments {
		s := &o.assignments[i]
		if keep := s.have.Intersect(s.want); !keep.IsEmpty() {
			o.move(i, keep)
		}
	}
	for {
		left := o.settle()
		if len(left) == 0 {
			return o.moves, nil
		}
		if err := o.park(left, shared); err != nil {
			return nil, err
		}
	}
}

type ordering struct {
	assignments []assignment
	contested   cpuset.Set
	moves       []move
}

func (o *ordering) move(i int, cpus cpuset.Set) {
	if o.assignments[i].have != cpus {
		o.assignments[i].have = cpus
		o.moves = append(o.moves, move{i, cpus})
	}
}

// settle moves who can, until no one else can, and returns the others.
func (o *ordering) settle() []int {
	for {
		var left []int
		moved := false
		for i := range o.assignments {
			want := o.assignments[i].want
			switch {
			case o.assignments[i].have == want:
			case o.blocker(i, want) >= 0:
				left = append(left, i)
			default:
				o.move(i, want)
				moved = true
			}
		}
		if !moved || len(left) == 0 {
			return left
		}
	}
}

// blocker returns an assignment that is in the way of another, -1 if there is none.
func (o *ordering) blocker(i int, cpus cpuset.Set) int {
	s := &o.assignments[i]
	added := cpus.Minus(s.have).Intersect(o.contested)
	if added.IsEmpty() {
		return -1
	}
	for j := range o.assignments {
		other := &o.assignments[j]
		if j == i || !added.Overlaps(other.have) {
			continue
		}
		both := s.want.Intersect(other.want)
		if !added.Intersect(other.have).Minus(both).IsEmpty() {
			return j
		}
	}
	return -1
}

// park moves the first of those that wait for each other out of the way.
func (o *ordering) park(left []int, shared cpuset.Set) error {
	aside := shared.Minus(o.contested)
	for _, i := range left {
		if !aside.IsEmpty() && o.assignments[i].have != aside && o.blocker(i, aside) < 0 {
			o.move(i, aside)
			return nil
		}
	}
	i := left[0]
	s := o.assignments[i]
	if aside.IsEmpty() {
		return fmt.Errorf("move %s from %s to %s: %w", s.name, s.have, s.want,
			errors.New("it and others wait for each other's CPUs, and there is no shared one to wait on; move one of them away first"))
	}
	return fmt.Errorf("move %s from %s to %s: %s is on them", s.name, s.have, s.want, o.assignments[o.blocker(i, s.want)].name)
}
