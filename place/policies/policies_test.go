package policies_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
	"berth.dev/berth/place/berth"
	"berth.dev/berth/place/controlplane"
	"berth.dev/berth/place/koordinator"
	"berth.dev/berth/place/kubelet"
	"berth.dev/berth/place/policies"
	"berth.dev/berth/place/topologyaware"
)

func TestPolicies(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range policies.All() {
		if seen[p.Name] || p.About == "" {
			t.Errorf("policy %q is there twice or says nothing about itself", p.Name)
		}
		seen[p.Name] = true
		policy, err := p.New(nil)
		if err != nil {
			t.Errorf("policy %s without options: %v", p.Name, err)
			continue
		}
		if policy.Name() != p.Name {
			t.Errorf("policy %s calls itself %s", p.Name, policy.Name())
		}
		if _, err := p.New(map[string]any{"noSuchOption": 1}); err == nil {
			t.Errorf("policy %s takes any option", p.Name)
		}
	}
	if !seen[policies.Default] {
		t.Error("the default policy is not in the list")
	}
}

// TestOptions has every option of every policy read.
func TestOptions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		policy, options string
		want            place.Policy
	}{
		{"berth", "strategy: LeastAllocated", berth.Policy{Strategy: place.LeastAllocated}},
		{
			"koordinator", "bind: SpreadByPCPUs\nstrategy: MostAllocated\namplification: 150\nshareReserved: true",
			koordinator.Policy{Bind: place.SpreadByPCPUs, Strategy: place.MostAllocated, Amplification: 150, ShareReserved: true},
		},
		{"controlplane-default", "pinMemory: true", controlplane.Policy{PinMemory: true}},
		{"controlplane-numa", "", controlplane.Policy{Allocator: controlplane.NUMA}},
		{"controlplane-numa-namespace", "buckets: 3", controlplane.Policy{Allocator: controlplane.NUMANamespace, Buckets: 3}},
		{"controlplane-numa-namespace-exclusive", "", controlplane.Policy{Allocator: controlplane.NUMANamespaceExclusive}},
		{
			"kubelet", "cpuManagerPolicy: static\nfull-pcpus-only: true\ntopologyManagerPolicy: restricted\nprefer-closest-numa-nodes: true",
			kubelet.Policy{CPUManager: "static", FullPCPUsOnly: true, TopologyManager: "restricted", PreferClosestNUMANodes: true},
		},
		{"topology-aware", "", topologyaware.Default()},
		{
			"topology-aware", "pinMemory: false\npinCPU: true\npreferIsolatedCPUs: false\npreferSharedCPUs: true\n" +
				"reservedPoolNamespaces: [ops-*]\ncolocatePods: true\ncolocateNamespaces: true\nunlimitedBurstable: numa",
			topologyaware.Policy{
				PinCPU: true, PreferSharedCPUs: true, ReservedPoolNamespaces: []string{"ops-*"}, ColocatePods: true, ColocateNamespaces: true,
				UnlimitedBurstable: topologyaware.NUMA,
			},
		},
		{
			"balloons", "idleCPUClass: slow\nbranches: spread\nballoonTypes:\n- {name: web, namespaces: [web-*], shareIdleCPUsInSame: numa, lists: [0-3]}",
			balloons.Policy{IdleCPUClass: "slow", Branches: balloons.Spread, Types: []balloons.Type{{
				Name: "web", Namespaces: []string{"web-*"}, ShareIdle: balloons.NUMALevel, Lists: []cpuset.Set{cpuset.MustParse("0-3")},
			}}},
		},
		{
			"static-pools", "pools:\n- {name: rt, lists: ['1,5', 2-3], exclusive: true, namespaces: [rt-*]}\n- {name: rest, lists: ['4']}",
			balloons.Policy{As: "static-pools", Types: []balloons.Type{
				{
					Name: "rt", Namespaces: []string{"rt-*"}, Lists: []cpuset.Set{cpuset.MustParse("1,5"), cpuset.MustParse("2-3")},
					Overcommit: true, SpreadPods: true, PreferNew: true, Slots: 1,
				},
				{Name: "rest", Lists: []cpuset.Set{cpuset.MustParse("4")}, Overcommit: true, SpreadPods: true, PreferNew: true},
			}},
		},
		{
			"podpools", "pools: [{name: dual, cpus: 2, instances: 3, maxPods: 4, fill: packed}]",
			balloons.Policy{As: "podpools", Types: []balloons.Type{{
				Name: "dual", MinCPUs: 2, MaxCPUs: 2, MinBalloons: 3, MaxBalloons: 3, Slots: 4, Overcommit: true, Fill: balloons.Fullest, ElseDefault: true,
			}}},
		},
	} {
		named, err := policies.Find(tc.policy)
		if err != nil {
			t.Fatal(err)
		}
		var options map[string]any
		if _, err := strictyaml.Decode([]byte(tc.options), "", &options); err != nil {
			t.Fatal(err)
		}
		got, err := named.New(options)
		if err != nil {
			t.Errorf("%s: %v", tc.policy, err)
			continue
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s with %s (-want +got):\n%s", tc.policy, tc.options, diff)
		}
	}
}
