package policies_test

import (
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// Every cause of a refusal has a text of its own, under every policy, that names the rule or
// the setting, and who has what was asked for.
func TestRefusalsNameTheirCause(t *testing.T) {
	set := cpuset.MustParse
	lse := func(id string, n int) place.Request { return place.Request{ID: id, Class: place.LSE, Milli: 1000 * n} }
	ls := func(id string, n int) place.Request { return place.Request{ID: id, Class: place.LS, Milli: n} }
	g := func(r place.Request) place.Request { r.LimitMilli = r.Milli; return r }
	with := func(r place.Request, f func(*place.Request)) place.Request { f(&r); return r }
	in := func(r place.Request, balloon string) place.Request {
		r.Hints = map[string]string{"balloon": balloon}
		return r
	}
	static := map[string]any{"cpuManagerPolicy": "static"}
	single := map[string]any{"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node"}
	restricted := map[string]any{"cpuManagerPolicy": "static", "topologyManagerPolicy": "restricted"}
	full := map[string]any{"cpuManagerPolicy": "static", "full-pcpus-only": true}
	webs := map[string]any{"balloonTypes": []any{map[string]any{"name": "web", "maxCPUs": 4, "maxBalloons": 1}}}
	rt := map[string]any{"pools": []any{map[string]any{"name": "rt", "lists": []any{"1,5"}, "exclusive": true}, map[string]any{"name": "rest", "lists": []any{"2-3"}}}}
	dual := map[string]any{"pools": []any{map[string]any{"name": "dual", "cpus": 2, "maxPods": 1}}}
	node0 := func(r *place.Request) { r.Nodes, r.NodesRequired = set("0"), true }
	iso := func(r *place.Request) { r.Isolated = place.Require }
	cores := func(r *place.Request) { r.Bind, r.BindRequired = place.FullPCPUs, true }
	spread := func(r *place.Request) { r.Bind, r.BindRequired = place.SpreadByPCPUs, true }
	one := func(r *place.Request) { r.MaxNodes = 1 }
	pcpu := func(r *place.Request) { r.Exclusivity = place.PCPULevel }
	gpu := func(r *place.Request) { r.Devices = []place.DeviceRequest{{Kind: "gpu", Count: 2}} }
	nic := func(r *place.Request) { r.Devices = []place.DeviceRequest{{Names: []string{"nic0"}}} }
	mem := func(r *place.Request) { r.Memory = []place.Amount{{Resource: place.Memory, Bytes: 3 << 30}} }
	none := place.Config{NoFloor: true}
	dev := place.Config{Devices: []place.Device{{Name: "nic0"}, {Name: "gpu0", Kind: "gpu"}, {Name: "gpu1", Kind: "gpu"}}, Memory: []place.Block{{Node: 0, Resource: place.Memory, Bytes: 4 << 30}, {Node: 1, Resource: place.Memory, Bytes: 1 << 30}}}
	for _, c := range []struct {
		policy  string
		options map[string]any
		name    string
		conf    place.Config
		held    []place.Request
		r       place.Request
		want    string
	}{
		{
			"berth", nil, "more than the host has", place.Config{}, nil, lse("x", 9),
			"not enough CPUs: 9 asked, 6 available: the host has 8 CPUs; CPU 0 stays shared, for workloads without CPUs of their own (floor, noFloor)",
		},
		{
			"berth", nil, "time", place.Config{}, nil, ls("x", 9000),
			"not enough CPUs: 9 asked, 8 available: the host has 8 CPUs",
		},
		{
			"berth", nil, "reserved", place.Config{Reserved: set("0,4")}, nil, lse("x", 7),
			"not enough CPUs: 7 asked, 6 available: CPUs 0,4 are reserved for the host (reserved)",
		},
		{
			"berth", nil, "allowed", place.Config{Allowed: set("0-5"), NoFloor: true}, nil, lse("x", 6),
			"not enough CPUs: 6 asked, 4 available: class LSE takes whole cores of 2 CPUs; CPUs 6-7 are not for workloads (allowed)",
		},
		{
			"berth", nil, "exclusive", place.Config{}, []place.Request{lse("a", 2), lse("b", 2)}, lse("x", 4),
			"not enough CPUs: 4 asked, 2 available: class LSE takes whole cores of 2 CPUs; CPU 0 stays shared, for workloads without CPUs of their own (floor, noFloor); CPUs 1,5 are exclusive to a; CPUs 2,6 are exclusive to b",
		},
		{
			"berth", nil, "shared", none, []place.Request{ls("a", 5000)}, lse("x", 4),
			"not enough CPUs: 4 asked, 3 available: class LSE takes whole cores of 2 CPUs; CPUs 0-7 are shared by a, which needs 5 CPUs",
		},
		{
			"berth", nil, "time beside own", none, []place.Request{lse("a", 4), ls("b", 1000)}, ls("x", 5000),
			"not enough CPUs: 5 asked, 3 available: CPUs 0-1,4-5 are exclusive to a; CPUs 2-3,6-7 are shared by b, which needs 1 CPU",
		},
		{
			"berth", nil, "nodes", none, []place.Request{with(lse("a", 2), node0)}, with(lse("x", 4), node0),
			"not enough CPUs: 4 asked, 2 available: class LSE takes whole cores of 2 CPUs; CPUs 2-3,6-7 are not of the NUMA nodes asked for (nodes); CPUs 0,4 are exclusive to a",
		},
		{
			"berth", nil, "isolated", none, nil, with(lse("x", 1), iso),
			"not enough CPUs: 1 asked, 0 available: isolated CPUs are asked for, and the host has none (isolated; isolcpus of the kernel)",
		},
		{
			"berth", nil, "odd", none, nil, with(place.Request{ID: "x", Class: place.LSR, Milli: 3000}, cores),
			"SMT alignment: 3 CPUs asked, not a multiple of the 2 CPUs of a core (bind FullPCPUs, bindRequired)",
		},
		{
			"berth", nil, "cores", none, []place.Request{lse("a", 4)}, with(place.Request{ID: "x", Class: place.LSR, Milli: 6000}, cores),
			"SMT alignment: 6 CPUs asked, 4 available in whole cores (bind FullPCPUs, bindRequired): CPUs 0-1,4-5 are exclusive to a",
		},
		{
			"berth", nil, "maxNodes", none, []place.Request{lse("a", 2)}, with(lse("x", 6), one),
			"NUMA alignment: 6 CPUs do not fit into 1 NUMA node (maxNodes): CPUs 0,4 are exclusive to a",
		},
		{
			"berth", nil, "fraction", none, []place.Request{lse("a", 6)}, place.Request{ID: "x", Class: place.LSE, Milli: 2500},
			"not enough CPUs: 3 asked, 1 available (2500m is rounded up to whole CPUs): CPUs 0-2,4-6 are exclusive to a",
		},
		{
			"berth", nil, "memory", dev, []place.Request{with(lse("a", 1), mem)}, with(ls("x", 1), mem),
			"not enough memory: 3Gi asked, 2Gi available: the rest is of a",
		},
		{
			"berth", nil, "devices", dev, []place.Request{with(lse("a", 1), gpu)}, with(ls("x", 1), gpu),
			"device \"gpu\": 2 asked, the host has 2, held: gpu0 by a, gpu1 by a",
		},
		{
			"berth", nil, "device", dev, []place.Request{with(lse("a", 1), nic)}, with(ls("x", 1), nic),
			"device \"nic0\": held by a",
		},
		{
			"kubelet", static, "floor", place.Config{}, nil, g(lse("x", 8)),
			"not enough CPUs: 8 asked, 7 available: CPU 0 stays shared, for workloads without CPUs of their own (floor, noFloor)",
		},
		{
			"kubelet", static, "exclusive", place.Config{}, []place.Request{g(lse("a", 4))}, g(lse("x", 4)),
			"not enough CPUs: 4 asked, 3 available: CPU 0 stays shared, for workloads without CPUs of their own (floor, noFloor); CPUs 2-3,6-7 are exclusive to a",
		},
		{
			"kubelet", single, "single", none, []place.Request{g(lse("a", 3)), g(lse("b", 3))}, g(lse("x", 2)),
			"NUMA alignment: single-numa-node wants all of it from one NUMA node (topologyManagerPolicy): CPUs 0-1,4 are exclusive to a; CPUs 2-3,6 are exclusive to b",
		},
		{
			"kubelet", restricted, "restricted", none, []place.Request{g(lse("a", 3)), g(lse("b", 3))}, g(lse("x", 2)),
			"NUMA alignment on nodes 0-1: restricted wants as few NUMA nodes as an empty machine would need (topologyManagerPolicy): CPUs 0-1,4 are exclusive to a; CPUs 2-3,6 are exclusive to b",
		},
		{
			"kubelet", full, "full", none, nil, g(lse("x", 3)),
			"SMT alignment: 3 CPUs asked, not a multiple of the 2 CPUs of a core (full-pcpus-only)",
		},
		{
			"kubelet", map[string]any{"fit-allocatable": true}, "allocatable", none, []place.Request{ls("a", 5000)}, ls("x", 4000),
			"not enough CPUs: 4 asked, 3 available: 8 CPUs are allocatable (reservedSystemCPUs, systemReserved, kubeReserved), and a asked for 5",
		},
		{
			"kubelet", map[string]any{"maxPods": 1}, "pods", none, []place.Request{ls("a", 5000)}, ls("x", 4000),
			"request \"x\": the node takes at most 1 pod (maxPods)",
		},
		{
			"kubelet", map[string]any{"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node"}, "device", dev, []place.Request{with(g(lse("a", 1)), nic)}, with(g(ls("x", 1)), nic),
			"device \"nic0\": held by a",
		},
		{
			"koordinator", nil, "exclusive", none, []place.Request{lse("a", 3), lse("b", 3)}, lse("x", 3),
			"not enough CPUs: 3 asked, 2 available: CPUs 0-1,4 are exclusive to a; CPUs 2-3,6 are exclusive to b",
		},
		{
			"koordinator", nil, "time", none, []place.Request{lse("a", 3), ls("b", 3000)}, ls("x", 3000),
			"not enough CPUs: 3 asked, 2 available: CPUs 0-1,4 are exclusive to a; CPUs 2-3,5-7 are shared by b, which needs 3 CPUs",
		},
		{
			"koordinator", nil, "pcpu", none, []place.Request{with(lse("a", 4), spread)}, with(lse("x", 1), pcpu),
			"not enough CPUs: 1 asked, 0 available: others use a part of every other core (exclusivity PCPULevel); CPUs 0-3 are exclusive to a",
		},
		{
			"koordinator", nil, "spread", none, nil, with(lse("x", 5), spread),
			"not enough CPUs: 5 asked, 4 available: SpreadByPCPUs takes one CPU of a core (bind, bindRequired)",
		},
		{
			"koordinator", nil, "maxNodes", none, []place.Request{lse("a", 1)}, with(lse("x", 5), one),
			"NUMA alignment: 5 CPUs do not fit into 1 NUMA node (maxNodes): CPU 0 is exclusive to a",
		},
		{
			"koordinator", nil, "nodes", none, []place.Request{lse("a", 1)}, with(lse("x", 4), node0),
			"NUMA alignment on nodes 0: not enough CPUs: 4 asked, 3 available: CPUs 2-3,6-7 are not of the NUMA nodes asked for (nodes); CPU 0 is exclusive to a",
		},
		{
			"controlplane-default", nil, "run", none, []place.Request{lse("a", 3), lse("b", 2)}, lse("x", 4),
			"not enough CPUs: 4 asked, 3 available: the CPUs of a workload have consecutive numbers (allocator default); CPUs 0-2 are exclusive to a; CPUs 3-4 are exclusive to b",
		},
		{
			"controlplane-numa", nil, "numa", none, []place.Request{lse("a", 3), lse("b", 2)}, lse("x", 4),
			"not enough CPUs: 4 asked, 3 available: CPUs 0-1,4 are exclusive to a; CPUs 2,6 are exclusive to b",
		},
		{
			"controlplane-numa-namespace", nil, "bucket", none, nil, lse("x", 5),
			"not enough CPUs: 5 asked, 4 available: namespace \"\" has the CPUs 0-1,4-5 (buckets)",
		},
		{
			"controlplane-numa-namespace-exclusive", nil, "bucket, in part", none, []place.Request{lse("a", 3)}, lse("x", 2),
			"not enough CPUs: 2 asked, 1 available: namespace \"\" has the CPUs 0-1,4-5 (buckets); CPUs 0-1,4 are exclusive to a",
		},
		{
			"topology-aware", nil, "exclusive", none, []place.Request{lse("a", 3), lse("b", 2)}, lse("x", 4),
			"not enough CPUs: 4 asked, 3 available: CPUs 0-1,4 are exclusive to a; CPUs 2,6 are exclusive to b",
		},
		{
			"topology-aware", nil, "nodes", none, []place.Request{lse("a", 3)}, with(lse("x", 4), node0),
			"NUMA alignment on nodes 0: no pool inside the asked nodes has room (nodes): CPUs 2-3,6-7 are not of the NUMA nodes asked for (nodes); CPUs 0-1,4 are exclusive to a",
		},
		{
			"topology-aware", nil, "isolated", none, nil, with(lse("x", 1), iso),
			"not enough CPUs: 1 asked, 0 available: isolated CPUs are asked for, and the host has none (isolated; isolcpus of the kernel)",
		},
		{
			"balloons", webs, "maxCPUs", none, nil, in(ls("x", 5000), "web"),
			"not enough CPUs: 5 asked, 4 available: a balloon of type web has at most 4 CPUs (maxCPUs)",
		},
		{
			"balloons", webs, "maxBalloons", none, []place.Request{in(ls("a", 3000), "web")}, in(ls("x", 3000), "web"),
			"request \"x\": no balloon of type web has room (web/0 of a: more than its type may have (maxCPUs)), and there may be no more (maxBalloons; instances)",
		},
		{
			"balloons", webs, "grow", none, []place.Request{in(ls("a", 3000), "web"), ls("b", 2000)}, ls("x", 5000),
			"request \"x\": no balloon of type default has room (default/0 of b: too few CPUs to grow), and there may be no more (maxBalloons; instances): CPUs 0,2 are of the pool default/0, of b; CPUs 1,4-5 are of the pool web/0, of a",
		},
		{
			"static-pools", rt, "held", none, []place.Request{in(ls("a", 1000), "rt")}, in(ls("x", 1000), "rt"),
			"request \"x\": too few free CPU lists of pool rt (lists): CPUs 1,5 are of the pool rt/0, of a",
		},
		{
			"static-pools", rt, "unknown pool", none, nil, in(ls("x", 1000), "web"),
			"request \"x\": no pool web",
		},
		{
			"static-pools", map[string]any{"pools": []any{map[string]any{"name": "rt", "lists": []any{"1,5"}}}}, "default", none, []place.Request{ls("a", 6000)}, ls("x", 1000),
			"request \"x\": the pool default has no room (default/0 of a: too few CPUs to grow): CPUs 0,2-4,6-7 are of the pool default/0, of a",
		},
		{
			"static-pools", rt, "own", none, []place.Request{in(ls("a", 1000), "rt")}, lse("x", 6),
			"request \"x\": the pool default has no room (default/0: too few CPUs to grow): CPU 6 is of the pool default/0, which is empty; CPUs 1,5 are of the pool rt/0, of a",
		},
		{
			"static-pools", rt, "machine", none, nil, ls("x", 9000),
			"request \"x\": the pool default has no room (default/0: too few CPUs to grow): the host has 8 CPUs; CPU 6 is of the pool default/0, which is empty",
		},
		{
			"podpools", dual, "default", none, []place.Request{in(ls("a", 1000), "dual"), ls("b", 5000)}, in(ls("x", 2000), "dual"),
			"request \"x\": the pool default has no room (default/0 of b: too few CPUs to grow): CPUs 1-3,6-7 are of the pool default/0, of b; CPUs 0,4 are of the pool dual/0, of a",
		},
		{
			"podpools", dual, "unknown pool", none, nil, in(ls("x", 1000), "web"),
			"request \"x\": no pool web",
		},
		{
			"podpools", dual, "machine", none, nil, ls("x", 9000),
			"request \"x\": the pool default has no room (default/0: too few CPUs to grow): the host has 8 CPUs; CPU 1 is of the pool default/0, which is empty; CPUs 0,4 are of the pool dual/0, which is empty",
		},
	} {
		p, err := policies.New(c.policy, c.options)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		s, err := place.Start(p, placetest.Topology(t, "1s2n2c2t"), c.conf)
		for _, r := range c.held {
			var o place.Offer
			if o, err = place.Place(p, s, &r); err != nil {
				break
			}
			if s, err = s.Commit(o); err != nil {
				break
			}
		}
		if err != nil {
			t.Fatalf("%s, %s, before: %v", c.policy, c.name, err)
		}
		_, err = place.Place(p, s, &c.r)
		if err == nil {
			t.Errorf("%s, %s: not refused", c.policy, c.name)
			continue
		}
		if got := s.Blame(&c.r, err).Error(); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.policy, c.name, got, c.want)
		}
	}
}
