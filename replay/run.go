package replay

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Result is the result of a scenario under one policy.
type Result struct {
	Policy  string
	Steps   []StepResult
	Summary Summary
}

// StepResult is the result of one step.
type StepResult struct {
	Step  int    `json:"step,omitzero"` // counted from 1; 0 for a container
	Line  int    `json:"line,omitzero"`
	Do    Action `json:"do"`
	ID    string `json:"id,omitempty"`
	Class string `json:"class,omitempty"`
	// CPUs are those that the workload may run on after the step. Own are the
	// exclusive ones, Counted the ones bound by reference count, Fence the idle
	// siblings.
	CPUs    cpuset.Set    `json:"cpus"`
	Own     cpuset.Set    `json:"own"`
	Counted cpuset.Set    `json:"counted,omitzero"`
	Fence   cpuset.Set    `json:"fence,omitzero"`
	Pool    string        `json:"pool,omitempty"` // the named pool that it is in
	Mems    cpuset.Set    `json:"mems"`
	Memory  []place.Block `json:"memory,omitempty"`
	Devices []string      `json:"devices,omitempty"`
	// Ignored are the wishes that the policy does not know.
	Ignored []place.Field `json:"ignored,omitempty"`
	// Moved are the other workloads that lost a CPU or a memory node.
	Moved []string `json:"moved,omitempty"`
	// Kind is the word for Error, one of errorKinds.
	Error string `json:"error,omitempty"`
	Kind  string `json:"kind,omitempty"`
	// Unmet lists the expectations that were not met.
	Unmet []string `json:"unmet,omitempty"`
	// Why has the decisions that led to the grant, or those up to the refusal.
	Why *place.Why `json:"why,omitempty"`
	// Containers are those of an admitted pod. Then CPUs, Own, Counted, Fence and
	// Mems are of all of them together.
	Containers []StepResult `json:"containers,omitempty"`

	State *place.State `json:"-"` // after the step
}

// pinned returns the CPUs that the workload holds by name, or, if it holds none,
// those that it may run on.
func (r *StepResult) pinned() cpuset.Set {
	if held := r.Own.Union(r.Counted); !held.IsEmpty() {
		return held
	}
	return r.CPUs
}

// auditEvery is for how many workloads a state is audited a step later: a state with so few
// is after each step that changes it.
const auditEvery = 50

// Run replays the scenario under the named policy. The expectations are those
// of the scenario's own policy and are checked under it only. A refusal is a
// result; the error is about an unknown policy, one that cannot start on the
// machine, or one whose state is inconsistent.
func (s *Scenario) Run(policy string) (*Result, error) {
	p, state, count, err := s.start(policy)
	if err != nil {
		return nil, err
	}
	res := &Result{Policy: policy, Steps: make([]StepResult, 0, len(s.Steps))}
	unaudited := 0
	for i := range s.Steps {
		step := &s.Steps[i]
		next, why, err := act(p, s, state, step, true)
		r := describe(step, next, err)
		r.Step, r.Line = i+1, step.Line
		if err != nil {
			r.Why = why
		}
		adds := (step.Do == Place || step.Do == PlacePod) && state.SameCPUs(next)
		if next != state {
			unaudited++
			if !adds {
				r.Moved = moved(state, next, step)
			}
		}
		r.Ignored = ignored(p, step)
		if policy == s.Policy {
			r.Unmet = unmet(s.Topology, step, &r)
		}
		// An audit takes as long as there are workloads: with many, not after each step.
		if unaudited*auditEvery > next.Len() || unaudited > 0 && i == len(s.Steps)-1 {
			if err := next.Audit(); err != nil {
				return nil, fmt.Errorf("state of policy %s after step %d (%s): %w", policy, r.Step, step, err)
			}
			unaudited = 0
		}
		count.step(step, &r)
		if next != state && !(adds && count.joins(step, next)) {
			count.summary.SharedCores = max(count.summary.SharedCores, count.sharedCores(next, true))
		}
		state = next
		res.Steps = append(res.Steps, r)
	}
	res.Summary = count.sum(state)
	return res, nil
}

// ignored returns the wishes of a step that a policy does not know. The group of a pod's
// containers is none: they are a pod anyway.
func ignored(p place.Policy, step *Step) (fields []place.Field) {
	switch step.Do {
	case Place, Resize:
		return place.Ignored(p, &step.Request)
	case PlacePod:
		for i := range step.Pod.Containers {
			r := step.Pod.Containers[i]
			r.Group = ""
			fields = append(fields, place.Ignored(p, &r)...)
		}
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

func (s *Scenario) start(policy string) (place.Policy, *place.State, *counter, error) {
	p, err := s.PolicyFor(policy)
	if err != nil {
		return nil, nil, nil, err
	}
	state, err := place.Start(p, s.Topology, s.Config)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("start policy %s: %w", policy, err)
	}
	return p, state, &counter{t: s.Topology, cores: map[cpuset.Set]cpuset.Set{}}, nil
}

// samples is how many states of a stream are looked at.
const samples = 100

// Measure replays a stream of a Generator for its summary only, and leaves out of
// it the arrivals that fill the machine. Errors are those of Run.
func (s *Scenario) Measure(policy string) (*Summary, error) {
	p, state, count, err := s.start(policy)
	if err != nil {
		return nil, err
	}
	count.summary.Average = &Average{}
	every, arrivals := max(1, s.Generate.Arrivals/samples), -s.Generate.Settle
	for i := range s.Steps {
		step := &s.Steps[i]
		if _, held := state.Grant(step.ID); step.Do == Release && !held {
			continue // was refused
		}
		if step.Do == Place {
			if arrivals >= 0 && arrivals%every == 0 {
				count.sample(state)
				if err := state.Audit(); err != nil {
					return nil, fmt.Errorf("state of policy %s before step %d (%s): %w", policy, i+1, step, err)
				}
			}
			arrivals++
		}
		next, _, err := act(p, s, state, step, false)
		if arrivals > 0 {
			r := describe(step, next, err)
			if step.Do == Release {
				r.Moved = moved(state, next, step)
			}
			count.step(step, &r)
		}
		state = next
	}
	summary := count.sum(state)
	return &summary, nil
}

// Failed returns the number of steps whose expectations were not met.
func (r *Result) Failed() int {
	n := 0
	for i := range r.Steps {
		if len(r.Steps[i].Unmet) > 0 {
			n++
		}
	}
	return n
}

// act does a step and returns the state after it; why explains a refusal.
func act(p place.Policy, s *Scenario, state *place.State, step *Step, explain bool) (next *place.State, why *place.Why, err error) {
	request := step.Request
	request.Explain = explain
	defer func() {
		next = cmp.Or(next, state)
		if explain && (step.Do == Place || step.Do == Resize) {
			err = state.Blame(&request, err)
		}
	}()
	var offer place.Offer
	switch step.Do {
	case Place:
		offer, err = place.Place(p, state, &request)
	case Resize:
		offer, err = place.Resize(p, state, &request)
	case Release:
		offer, err = place.Release(p, state, step.ID)
	case PlacePod:
		return place.PlacePod(p, state, *step.Pod)
	case ReleasePod:
		next, err = releasePod(p, state, step.ID)
		return next, nil, err
	case Restart:
		next, err = restart(s, state)
		return next, nil, err
	}
	if err != nil {
		return nil, offer.Why, err
	}
	next, err = state.Commit(offer)
	return next, nil, err
}

// releasePod releases all members of a group.
func releasePod(p place.Policy, state *place.State, group string) (*place.State, error) {
	var ids []string
	for g := range state.Members(group) {
		ids = append(ids, g.ID)
	}
	if len(ids) == 0 {
		return nil, &place.NotHeldError{ID: group}
	}
	for _, id := range ids {
		offer, err := place.Release(p, state, id)
		if err != nil {
			return nil, err
		}
		if state, err = state.Commit(offer); err != nil {
			return nil, err
		}
	}
	return state, nil
}

// restart saves all grants as a file would and reinstates them, last grant first.
func restart(s *Scenario, state *place.State) (*place.State, error) {
	text, err := json.Marshal(state.Save())
	if err != nil {
		return nil, fmt.Errorf("save grants: %w", err)
	}
	var saved place.Saved
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, fmt.Errorf("read saved grants: %w", err)
	}
	slices.Reverse(saved.Grants)
	fresh, err := place.New(s.Topology, s.Config)
	if err != nil {
		return nil, err
	}
	next, err := fresh.Reinstate(saved)
	if err == nil {
		if difference := state.Difference(next); difference != "" {
			err = errors.New("after the restart: " + difference)
		}
	}
	return next, err
}

// describe returns the result of a step.
func describe(step *Step, s *place.State, err error) StepResult {
	r := StepResult{Do: step.Do, ID: step.ID, State: s, Kind: errorKind(err)}
	if err != nil {
		r.Error = err.Error()
	}
	if step.Do == PlacePod {
		r.describePod(step, s, err)
		return r
	}
	if step.Do == Place || step.Do == Resize {
		r.Class = step.Request.Class.String()
	}
	g, held := s.Grant(step.ID)
	if !held || err != nil && step.Do == Place {
		return r
	}
	r.Class = g.Request.Class.String()
	r.CPUs, r.Own, r.Fence, r.Pool = s.Effective(g), g.Own, g.Fence, g.Share.Pool
	if g.Share.Counted {
		r.Counted = g.Share.Within
	}
	r.Mems, r.Memory, r.Devices = g.Mems, g.Memory, g.Devices
	if err == nil {
		r.Why = g.Why
	}
	return r
}

// describePod adds the results of the containers of a pod.
func (r *StepResult) describePod(step *Step, s *place.State, err error) {
	if err != nil {
		return
	}
	for i := range step.Pod.Containers {
		request := step.Pod.Containers[i]
		c := describe(&Step{Do: Place, ID: request.ID, Request: request}, s, nil)
		r.CPUs, r.Own, r.Counted = r.CPUs.Union(c.CPUs), r.Own.Union(c.Own), r.Counted.Union(c.Counted)
		r.Fence, r.Mems = r.Fence.Union(c.Fence), r.Mems.Union(c.Mems)
		r.Containers = append(r.Containers, c)
	}
}

// unmet lists the expectations of a step and its containers that are not met.
func unmet(t *place.Topology, step *Step, r *StepResult) []string {
	missed := step.Expect.unmet(t, r)
	for i := range r.Containers {
		c := &r.Containers[i]
		for _, what := range step.Expects[i].unmet(t, c) {
			missed = append(missed, c.ID+": "+what)
		}
	}
	return missed
}

// moved returns the workloads, other than those of the step, that may no longer
// use a CPU or a memory node that they could use before.
func moved(before, after *place.State, step *Step) []string {
	var ids []string
	for g := range before.Grants() {
		if g.ID == step.ID || step.Do == ReleasePod && g.Request.Group == step.ID {
			continue
		}
		now, held := after.Grant(g.ID)
		if !held || !after.Effective(now).Contains(before.Effective(g)) || !anyIfEmpty(after, now.Mems).Contains(anyIfEmpty(before, g.Mems)) {
			ids = append(ids, g.ID)
		}
	}
	return ids
}

// anyIfEmpty returns all nodes for the empty set, which means any node.
func anyIfEmpty(s *place.State, mems cpuset.Set) cpuset.Set {
	if !mems.IsEmpty() {
		return mems
	}
	var all cpuset.Set
	for _, u := range s.Topology().Units(machine.Node) {
		all, _ = all.With(u.ID)
	}
	return all
}
