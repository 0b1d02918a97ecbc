package policies_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// TestFields compares what policies do with what they say of the fields that they know: on
// random machines with workloads, a field that a policy ignores changes no answer, and one
// that it knows changes some.
func TestFields(t *testing.T) {
	t.Parallel()
	balloons := map[string]any{"balloonTypes": []any{map[string]any{"name": "web", "maxCPUs": 4, "namespaces": []any{"*"}}}}
	pools := map[string]any{"pools": []any{map[string]any{"name": "web", "lists": []any{"0"}}}}
	for _, tc := range []struct {
		policy  string
		options map[string]any
	}{
		{"berth", nil}, {"koordinator", nil},
		{"kubelet", nil},
		{"kubelet", map[string]any{"cpuManagerPolicy": "static"}},
		{"kubelet", map[string]any{"cpuManagerPolicy": "static", "topologyManagerPolicy": "best-effort"}},
		{"kubelet", map[string]any{"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node", "memoryManagerPolicy": "Static"}},
		{"kubelet", map[string]any{"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"}},
		{"kubelet", map[string]any{"maxPods": 3}},
		{"controlplane-default", nil}, {"controlplane-numa", nil},
		{"controlplane-numa-namespace", nil}, {"controlplane-numa-namespace-exclusive", nil},
		{"controlplane-default", map[string]any{"pinMemory": true}},
		{"topology-aware", nil},
		{"topology-aware", map[string]any{"colocatePods": true}},
		{"balloons", nil}, {"balloons", balloons},
		{"static-pools", pools},
		{"podpools", map[string]any{"pools": []any{map[string]any{"name": "web", "cpus": 1, "instances": 1, "maxPods": 1}}}},
	} {
		t.Run(fmt.Sprintf("%s%v", tc.policy, tc.options), func(t *testing.T) {
			t.Parallel()
			p, err := policies.New(tc.policy, tc.options)
			if err != nil {
				t.Fatal(err)
			}
			var ignores []place.Field
			if i, ok := p.(place.Ignorer); ok {
				ignores = i.Ignores()
			}
			for _, f := range place.Fields() {
				ignored := slices.Contains(ignores, f)
				differ, asked := differing(t, p, f, !ignored)
				switch {
				case ignored && differ != "":
					t.Errorf("it ignores %s by its own words, but: %s", f, differ)
				case !ignored && differ == "":
					t.Errorf("it knows %s by its own words, but in %d answers it counted for nothing", f, asked)
				}
			}
		})
	}
}

// differing looks for a request that is answered otherwise without a field; enough ends the
// search at the first.
func differing(t *testing.T, p place.Policy, f place.Field, enough bool) (differ string, asked int) {
	machines := 150
	if enough {
		machines = 1500
	}
	for seed := range uint64(machines) {
		rng := rand.New(rand.NewPCG(seed, 11))
		m := placetest.Machine(rng, 24)
		topology, err := place.NewTopology(m)
		if err != nil {
			t.Fatal(err)
		}
		s, err := place.Start(p, topology, placetest.Config(rng, m))
		if err != nil {
			continue // not on this machine
		}
		for i := range 1 + rng.IntN(5) {
			r := placetest.Request(rng, m, fmt.Sprintf("held%d", i))
			r.Role = place.App // the CPUs of an init container pass to its group by a rule of its own
			if o, err := place.Place(p, s, &r); err == nil {
				if s, err = s.Commit(o); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 4 {
			with, without := pair(rng, m, f)
			if !f.In(&with) || f.In(&without) {
				t.Fatalf("%s: %+v has it and %+v has it not, it says otherwise", f, with, without)
			}
			if with.Validate() != nil {
				continue
			}
			asked++
			a, b := answer(p, s, with), answer(p, s, without)
			if !reflect.DeepEqual(a, b) {
				return fmt.Sprintf("seed %d: %+v got %+v; without it %+v", seed, with, a, b), asked
			}
		}
	}
	return "", asked
}

// answer is what a policy gives for a request, and for a second one of its group, nil if it
// refuses.
func answer(p place.Policy, s *place.State, r place.Request) any {
	second := r
	second.ID = "second"
	all := []place.Request{r, second}
	if r.Group != "" {
		next, _, err := place.PlacePod(p, s, place.Pod{ID: r.Group, Containers: all})
		if err != nil {
			return nil
		}
		s = next
	} else {
		for i := range all {
			o, err := place.Place(p, s, &all[i])
			if err != nil {
				return nil
			}
			if s, err = s.Commit(o); err != nil {
				return err.Error()
			}
		}
	}
	var got []any
	for _, r := range all {
		g, _ := s.Grant(r.ID)
		of := *g
		of.Request, of.Why = place.Request{}, nil
		cpus, _ := s.CPUs(r.ID)
		got = append(got, of, cpus)
	}
	return got
}

// pair returns a random request with a field, and the same without it.
func pair(rng *rand.Rand, m *machine.Machine, f place.Field) (with, without place.Request) {
	r := placetest.Request(rng, m, "new")
	if rng.IntN(2) == 0 {
		r = place.Request{ID: "new", Class: r.Class, Milli: r.Milli}
	}
	r.Role = place.App
	if f == place.FieldMixed {
		r.Milli, r.SharedMilli = 1000*(1+rng.IntN(2))+500, 0
	}
	with, without = r, r
	nodes := m.ByKind(machine.Node)
	switch f {
	case place.FieldMixed:
		with.Mode, without.Mode = place.Mixed, place.Auto
	case place.FieldBind, place.FieldBindRequired:
		with.Bind, without.Bind = place.FullPCPUs+place.Bind(rng.IntN(2)), place.BindAny
		with.BindRequired, without.BindRequired = f == place.FieldBindRequired, false
	case place.FieldExclusivity:
		with.Exclusivity, without.Exclusivity = place.PCPULevel+place.Exclusivity(rng.IntN(2)), place.CPULevel
	case place.FieldStrategy:
		with.Strategy, without.Strategy = place.MostAllocated+place.Strategy(rng.IntN(3)), place.StrategyAny
	case place.FieldIsolated:
		with.Isolated, without.Isolated = place.Avoid+place.Want(rng.IntN(2)), place.Unasked
	case place.FieldIsolatedRequired:
		with.Isolated, without.Isolated = place.Require, place.Unasked
	case place.FieldCoreKind:
		with.CoreKind, without.CoreKind = machine.KindE, ""
	case place.FieldNodes, place.FieldNodesRequired:
		with.Nodes, without.Nodes = cpuset.MustOf(nodes[rng.IntN(len(nodes))].ID), cpuset.Set{}
		with.NodesRequired, without.NodesRequired = f == place.FieldNodesRequired, false
	case place.FieldMaxNodes:
		with.MaxNodes, without.MaxNodes = 1, 0
	case place.FieldMemory:
		with.Memory, without.Memory = []place.Amount{{Resource: place.Memory, Bytes: int64(1+rng.IntN(2048)) << 20}}, nil
	case place.FieldDevices:
		with.Devices, without.Devices = []place.DeviceRequest{{Kind: "gpu", Count: 1}}, nil
	case place.FieldAffinity:
		with.Affinity = []place.Affinity{{ID: "held0", Weight: 10 - 20*rng.IntN(2)}}
		without.Affinity = nil
	case place.FieldGroup:
		with.Group, without.Group = fmt.Sprintf("g%d", rng.IntN(4)), ""
		if rng.IntN(2) == 0 {
			with.Hints = map[string]string{"balloon": "web"}
			without.Hints = with.Hints
		}
	case place.FieldHints:
		words := []map[string]string{
			{"balloon": "web"}, {"preferred-cpus": "0-1"}, {"prefer-shared-cpus": "true"}, {"hide-hyperthreads": "true"}, {"preferred-devices": "gpu1,gpu2"},
		}
		with.Hints, without.Hints = words[rng.IntN(len(words))], nil
		if len(with.Devices) == 0 && rng.IntN(2) == 0 {
			with.Devices = []place.DeviceRequest{{Kind: "gpu", Count: 1}}
			without.Devices = with.Devices
		}
	}
	return with, without
}
