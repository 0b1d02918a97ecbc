package zones

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// The 100 pods and their fingerprint are a fact of the reference implementation.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/pods.txt")
	if err != nil {
		t.Fatal(err)
	}
	var pods []Pod
	for _, line := range strings.Fields(string(text)) {
		namespace, name, _ := strings.Cut(line, "/")
		pods = append(pods, Pod{namespace, name})
	}
	const want = "pfp0v001e0db114971e5928c"
	if got := Fingerprint(pods); len(pods) != 100 || got != want {
		t.Errorf("%d pods: %s, want %s", len(pods), got, want)
	}
	slices.Reverse(pods)
	if got := Fingerprint(pods); got != want {
		t.Errorf("in another order: %s", got)
	}
	if got := Fingerprint(pods[1:]); got == want {
		t.Error("one pod less has the same fingerprint")
	}
}

func state(t *testing.T, form string, conf place.Config) *place.State {
	t.Helper()
	m, err := machine.Short(form)
	if err != nil {
		t.Fatal(err)
	}
	topology, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	s, err := place.New(topology, conf)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *place.State, r place.Request) *place.State {
	t.Helper()
	offer, err := place.Place(&berth.Policy{}, s, &r)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.Commit(offer); err != nil {
		t.Fatal(err)
	}
	return s
}

// What Berth pins is not available, and what is shared is.
func TestZones(t *testing.T) {
	t.Parallel()
	s := state(t, "2s1n4c2t", place.Config{Reserved: cpuset.MustOf(0, 8), Memory: []place.Block{
		{Node: 0, Resource: place.Memory, Bytes: 100}, {Node: 1, Resource: place.Memory, Bytes: 200}, {Node: 1, Resource: "hugepages-2Mi", Bytes: 64},
	}})
	cpus := func(s *place.State) (all []string) {
		for _, z := range zones(s) {
			r := z.Resources[0]
			all = append(all, z.Name+" "+r.Name+" "+r.Capacity+" "+r.Allocatable+" "+r.Available)
		}
		return all
	}
	if diff := cmp.Diff([]string{"node-0 cpu 8 6 6", "node-1 cpu 8 8 8"}, cpus(s)); diff != "" {
		t.Error("an empty node:", diff)
	}
	s = put(t, s, place.Request{ID: "own", Class: place.LSR, Milli: 2000, Nodes: cpuset.MustOf(1), NodesRequired: true, Memory: []place.Amount{{Resource: place.Memory, Bytes: 60}}})
	if diff := cmp.Diff([]string{"node-0 cpu 8 6 6", "node-1 cpu 8 8 6"}, cpus(s)); diff != "" {
		t.Error("two CPUs of node 1 are pinned:", diff)
	}
	shared := put(t, s, place.Request{ID: "shared", Class: place.LS, Milli: 2500, Nodes: cpuset.MustOf(1), NodesRequired: true})
	if diff := cmp.Diff([]string{"node-0 cpu 8 6 6", "node-1 cpu 8 8 3"}, cpus(shared)); diff != "" {
		t.Error("three CPUs of node 1 are needed for what is shared:", diff)
	}
	for own, fits := range map[int]bool{3: true, 4: false} { // what is said is what a container gets
		r := place.Request{ID: "more", Class: place.LSR, Milli: own * 1000, Nodes: cpuset.MustOf(1), NodesRequired: true}
		if _, err := place.Place(&berth.Policy{}, shared, &r); (err == nil) != fits {
			t.Errorf("%d CPUs of node 1: %v", own, err)
		}
	}
	want := []Resource{{"hugepages-2Mi", "64", "64", "64"}, {"memory", "200", "200", "140"}}
	if diff := cmp.Diff(want, zones(s)[1].Resources[1:]); diff != "" {
		t.Error(diff)
	}
	if s, err := s.Release("own"); err != nil || zones(s)[1].Resources[0].Available != "8" {
		t.Errorf("after the release: %v, %v", zones(s)[1].Resources, err)
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	s := state(t, "1s1n2c1t", place.Config{Memory: []place.Block{{Node: 0, Resource: place.Memory, Bytes: 4096}}})
	got, err := json.Marshal(Of(&Node{Name: "n", UID: "u", Known: true}, s))
	if err != nil {
		t.Fatal(err)
	}
	// The lowest CPU is always shared: it is for pods, and no container's own.
	want := `{"apiVersion":"topology.node.k8s.io/v1alpha2","kind":"NodeResourceTopology",` +
		`"metadata":{"name":"n","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]},` +
		`"topologyPolicies":["BestEffortContainerLevel"],"zones":[{"name":"node-0","type":"Node","costs":[{"name":"node-0","value":10}],` +
		`"resources":[{"name":"cpu","capacity":"2","allocatable":"2","available":"1"},` +
		`{"name":"memory","capacity":"4096","allocatable":"4096","available":"4096"}]}],` +
		`"attributes":[{"name":"topologyManagerPolicy","value":"best-effort"},{"name":"topologyManagerScope","value":"container"},` +
		`{"name":"nodeTopologyPodsFingerprint","value":"pfp0v001ef46db3751d8e999"},{"name":"nodeTopologyPodsFingerprintMethod","value":"all"}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	for in, want := range map[[2]string]string{
		{"single-numa-node", "pod"}: "SingleNUMANodePodLevel", {"restricted", "container"}: "RestrictedContainerLevel",
		{"none", "pod"}: "None", {"odd", ""}: "None",
	} {
		if got := deprecated(in[0], in[1]); got != want {
			t.Errorf("%v: %s, want %s", in, got, want)
		}
	}
	if len(Of(&Node{Name: "n"}, s).Attributes) != 2 {
		t.Error("a fingerprint of pods that are not known")
	}
}
