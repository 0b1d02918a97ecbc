package cgroup

import (
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
)

// Assignment is something that runs on CPUs, where it is and where it is to be.
type Assignment struct {
	Name       string
	Have, Want cpuset.Set
}

// Move is the next set of CPUs of an assignment, given by its position.
type Move struct {
	Assignment int
	CPUs       cpuset.Set
}

// Order returns the moves that bring every assignment from Have to Want. contested are the
// CPUs that are exclusive, before or after; at no instant are two assignments on one of
// them, unless both are to be. Losers are narrowed first, then winners widened. Assignments
// that wait for each other's CPUs go by way of shared.
func Order(assignments []Assignment, contested, shared cpuset.Set) ([]Move, error) {
	o := ordering{assignments: slices.Clone(assignments), contested: contested}
	for i, s := range assignments {
		if keep := s.Have.Intersect(s.Want); !keep.IsEmpty() {
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
	assignments []Assignment
	contested   cpuset.Set
	moves       []Move
}

func (o *ordering) move(i int, cpus cpuset.Set) {
	if o.assignments[i].Have != cpus {
		o.assignments[i].Have = cpus
		o.moves = append(o.moves, Move{i, cpus})
	}
}

// settle moves every assignment that is not blocked, until all others are, and returns those.
func (o *ordering) settle() []int {
	for {
		var left []int
		moved := false
		for i := range o.assignments {
			want := o.assignments[i].Want
			switch {
			case o.assignments[i].Have == want:
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

// blocker returns an assignment that is in the way of another, or -1.
func (o *ordering) blocker(i int, cpus cpuset.Set) int {
	s := &o.assignments[i]
	added := cpus.Minus(s.Have).Intersect(o.contested)
	if added.IsEmpty() {
		return -1
	}
	for j := range o.assignments {
		other := &o.assignments[j]
		if j == i || !added.Overlaps(other.Have) {
			continue
		}
		both := s.Want.Intersect(other.Want)
		if !added.Intersect(other.Have).Minus(both).IsEmpty() {
			return j
		}
	}
	return -1
}

// park moves the first of those that wait for each other out of the way.
func (o *ordering) park(left []int, shared cpuset.Set) error {
	aside := shared.Minus(o.contested)
	for _, i := range left {
		if !aside.IsEmpty() && o.assignments[i].Have != aside && o.blocker(i, aside) < 0 {
			o.move(i, aside)
			return nil
		}
	}
	i := left[0]
	s := o.assignments[i]
	if aside.IsEmpty() {
		return fmt.Errorf("move %s from %s to %s: %w", s.Name, s.Have, s.Want,
			errors.New("it and others wait for each other's CPUs, and there is no shared one to wait on; move one of them away first"))
	}
	return fmt.Errorf("move %s from %s to %s: %s is on them", s.Name, s.Have, s.Want, o.assignments[o.blocker(i, s.Want)].Name)
}
