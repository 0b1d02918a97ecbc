package kubelet

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
)

type allocateWant struct {
	CPUs, Default                     *cpuset.Set
	Error                             string
	Requested, Available, CPUsPerCore int
}

type hintText struct {
	Nodes     *string
	Preferred bool
}

func (h *hintText) hint(t *testing.T, topo *place.Topology) place.Hint {
	t.Helper()
	if h.Nodes == nil || *h.Nodes == "any" {
		return place.Hint{Any: true, Preferred: h.Preferred}
	}
	nodes, err := cpuset.Parse(*h.Nodes)
	if err != nil {
		t.Fatal(err)
	}
	out := place.Hint{Preferred: h.Preferred}
	for id := range nodes.All() {
		pos := id
		if topo != nil {
			pos, _ = topo.Node(id)
		}
		out.Nodes |= 1 << pos
	}
	return out
}

type allocateStep struct {
	Allocate, Remove, Kind, Operation string
	CPUs                              float64
	Limit                             *float64
	Want                              allocateWant
}

type allocateCase struct {
	header
	Machine           string
	Reserved, Default cpuset.Set
	Assigned          map[string]cpuset.Set
	CPUs              float64
	Limit             *float64
	Operation         string
	Options           []string
	Hint              *hintText
	Want              allocateWant
	Steps             []allocateStep
}

// withOptions is a static CPU manager with options by their names.
func withOptions(t *testing.T, options []string) Policy {
	t.Helper()
	p := Policy{CPUManager: CPUManagerStatic}
	for _, o := range options {
		field, ok := map[string]*bool{
			"full-pcpus-only": &p.FullPCPUsOnly, "distribute-cpus-across-numa": &p.DistributeAcrossNUMA, "align-by-socket": &p.AlignBySocket,
			"distribute-cpus-across-cores": &p.DistributeAcrossCores, "strict-cpu-reservation": &p.StrictReservation,
			"prefer-align-cpus-by-uncorecache": &p.PreferAlignByUncoreCache, "uncore": &p.PreferAlignByUncoreCache,
		}[o]
		if !ok {
			t.Fatalf("unknown option %s", o)
		}
		*field = true
	}
	return p
}

// stateOf is a state in which containers hold CPUs and the rest of a pool is free.
func stateOf(t *testing.T, topo *place.Topology, reserved, pool cpuset.Set, assigned map[string]cpuset.Set) *place.State {
	t.Helper()
	allowed := pool
	for _, cpus := range assigned {
		allowed = allowed.Union(cpus)
	}
	s, err := place.New(topo, place.Config{Allowed: allowed, Reserved: reserved, NoFloor: true})
	if err != nil {
		t.Fatal(err)
	}
	for id, cpus := range assigned {
		o := s.Offer()
		o.Grant = &place.Grant{ID: id, Own: cpus, Request: place.Request{ID: id, Class: place.System, Group: "pod"}}
		if s, err = s.Commit(o); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func role(kind string) place.Role {
	return map[string]place.Role{"init": place.Init, "sidecar": place.Sidecar}[kind]
}

func milli(cpus float64) int { return int(cpus*1000 + 0.5) }

func TestAllocateCases(t *testing.T) {
	t.Parallel()
	suite(t, "kubelet-allocate", nil, func(t *testing.T, f *placetest.Folder, c *allocateCase) string {
		topo := topology(t, f, c.Machine)
		steps := c.Steps
		if len(steps) == 0 {
			steps = []allocateStep{{Allocate: "new", CPUs: c.CPUs, Limit: c.Limit, Operation: c.Operation, Want: c.Want}}
		}
		s := stateOf(t, topo, c.Reserved, c.Default, c.Assigned)
		p := withOptions(t, c.Options)
		for _, step := range steps {
			wrong, next := step.run(t, p, s, c.Hint, c.Quirk != "")
			if wrong != "" {
				return wrong
			}
			s = next
		}
		return ""
	})
}

func (a *allocateStep) run(t *testing.T, p Policy, s *place.State, hint *hintText, quirk bool) (string, *place.State) {
	t.Helper()
	if a.Remove != "" {
		next, err := s.Release(a.Remove)
		if err != nil {
			return err.Error(), nil
		}
		if a.Want.Default != nil && next.Sharable() != *a.Want.Default {
			return fmt.Sprintf("default %s, want %s", next.Sharable(), a.Want.Default), nil
		}
		return "", next
	}
	r := &place.Request{ID: a.Allocate, Group: "pod", Role: role(a.Kind), Milli: milli(a.CPUs), LimitMilli: milli(a.CPUs)}
	if a.Limit != nil {
		r.LimitMilli = milli(*a.Limit)
	}
	if hint != nil {
		if h := hint.hint(t, s.Topology()); !h.Any {
			r.Nodes = (&task{t: s.Topology()}).ids(h.Nodes)
		}
	}
	do := place.Place
	if a.Operation != "" && a.Operation != "add" {
		do = place.Resize // of what is not held
	}
	next := s
	offer, err := do(p, s, r)
	if err == nil {
		if next, err = s.Commit(offer); err != nil {
			return err.Error(), nil
		}
	}
	return a.judge(next, err, quirk), next
}

func (a *allocateStep) judge(s *place.State, err error, quirk bool) string {
	var held *place.HeldError
	var none *place.NotHeldError
	if errors.As(err, &held) || errors.As(err, &none) {
		err = nil // what is held is kept, what is not held cannot be resized
	}
	if wrong := wrongError(err, &a.Want); wrong != "" || err != nil {
		return wrong
	}
	var own cpuset.Set
	if g, ok := s.Grant(a.Allocate); ok {
		own = g.Own
	}
	switch w := &a.Want; {
	case quirk:
	case w.CPUs != nil && own != *w.CPUs:
		return fmt.Sprintf("got %s, want %s", own, w.CPUs)
	case w.Default != nil && s.Sharable() != *w.Default:
		return fmt.Sprintf("default %s, want %s", s.Sharable(), w.Default)
	}
	if err := s.Audit(); err != nil {
		return err.Error()
	}
	return ""
}

func wrongError(err error, w *allocateWant) string {
	var few *place.CPUsError
	var smt *place.SMTError
	got := allocateWant{}
	switch {
	case errors.As(err, &few):
		got = allocateWant{Error: "not-enough-cpus", Requested: few.Asked, Available: few.Available}
	case errors.As(err, &smt):
		got = allocateWant{Error: "smt-alignment", Requested: smt.Asked, CPUsPerCore: smt.PerCore, Available: smt.Available}
	case err != nil:
		got.Error = err.Error()
	}
	differ := func(got, want int) bool { return want != 0 && got != want }
	if got.Error != w.Error || differ(got.Requested, w.Requested) || differ(got.Available, w.Available) || differ(got.CPUsPerCore, w.CPUsPerCore) {
		return fmt.Sprintf("error %v, want %+v", err, *w)
	}
	return ""
}

type stateCase struct {
	header
	Machine           string
	Reserved, Default cpuset.Set
	ReservedCount     *int
	Assigned          map[string]cpuset.Set
	Options           []string
	UnknownCPUs       cpuset.Set
	Want              struct {
		Default *cpuset.Set
		Error   string
	}
}

func TestStateCases(t *testing.T) {
	t.Parallel()
	suite(t, "kubelet-state", nil, func(t *testing.T, f *placetest.Folder, c *stateCase) string {
		count := -1
		if c.ReservedCount != nil {
			count = *c.ReservedCount
		}
		got, err := withOptions(t, c.Options).Check(topology(t, f, c.Machine), c.Reserved, count, Checkpoint{c.Default, c.Assigned})
		var bad *CheckpointError
		switch {
		case c.Want.Error != "" && errors.As(err, &bad) && bad.Reason == c.Want.Error:
			return ""
		case c.Want.Error != "" || err != nil:
			return fmt.Sprintf("error %v, want %q", err, c.Want.Error)
		case got.Default != *c.Want.Default:
			return fmt.Sprintf("default %s, want %s", got.Default, c.Want.Default)
		}
		return ""
	})
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := []Policy{
		{}, {CPUManager: CPUManagerStatic, FullPCPUsOnly: true, DistributeAcrossNUMA: true},
		{TopologyManager: TopologyManagerRestricted, AlignBySocket: true},
	}
	bad := []Policy{
		{CPUManager: "dynamic"}, {TopologyManager: "strict"}, {MemoryManager: "static"},
		{DistributeAcrossCores: true, FullPCPUsOnly: true}, {DistributeAcrossCores: true, DistributeAcrossNUMA: true},
		{DistributeAcrossCores: true, PreferAlignByUncoreCache: true}, {DistributeAcrossNUMA: true, PreferAlignByUncoreCache: true},
		{AlignBySocket: true, TopologyManager: TopologyManagerSingle},
	}
	for i, p := range slices.Concat(good, bad) {
		var invalid *place.InvalidError
		if err := p.Validate(); errors.As(err, &invalid) != (i >= len(good)) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}
