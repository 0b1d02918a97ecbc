// Package zones says what the NUMA nodes of a host have, and what of it Berth has given
// away, as a NodeResourceTopology (topology.node.k8s.io/v1alpha2), which schedulers read.
// The kubelet's own account knows nothing of CPUs that Berth pins.
package zones

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Topology is a NodeResourceTopology. The names in JSON are those of its definition.
type Topology struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	// Policies is deprecated, and required; Attributes say the same.
	Policies   []string    `json:"topologyPolicies"`
	Zones      []Zone      `json:"zones"`
	Attributes []Attribute `json:"attributes"`
}

// Metadata names the object, and whose it is: it goes when the node goes.
type Metadata struct {
	Name   string  `json:"name"`
	Owners []Owner `json:"ownerReferences,omitempty"`
}

// Owner is the node.
type Owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// OwnerOf is the owner of the objects of a node; none without its UID.
func OwnerOf(node, uid string) []Owner {
	if uid == "" {
		return nil
	}
	return []Owner{{"v1", "Node", node, uid}}
}

// Zone is a NUMA node.
type Zone struct {
	Name      string     `json:"name"`
	Type      string     `json:"type"`
	Costs     []Cost     `json:"costs,omitempty"`
	Resources []Resource `json:"resources"`
}

// Cost is the distance to a zone, 10 to itself.
type Cost struct {
	Name  string `json:"name"`
	Value int    `json:"value"`
}

// Resource is how much of something a zone has: in all, for pods, and not given away. CPUs
// are whole CPUs, all else is bytes.
type Resource struct {
	Name        string `json:"name"`
	Capacity    string `json:"capacity"`
	Allocatable string `json:"allocatable"`
	Available   string `json:"available"`
}

// Attribute is a fact about the node.
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Pod names a pod.
type Pod struct{ Namespace, Name string }

// Node is what of a node is not in its place.State.
type Node struct {
	Name, UID string
	// Policy and Scope are the topology manager's words for how pods are placed: "" is
	// best-effort and container.
	Policy, Scope string
	// Pods are those that have not ended. Known is whether they are all, and the state counts what all
	// of them hold: else there is no fingerprint.
	Pods  []Pod
	Known bool
}

// Of returns the topology of a node. A CPU is available if it can become some container's
// own: it is no other's, not reserved, not of the CPUs that are always shared, and not
// needed by those who share the CPUs of its NUMA node.
func Of(n *Node, s *place.State) *Topology {
	policy, scope := cmp.Or(n.Policy, "best-effort"), cmp.Or(n.Scope, "container")
	t := &Topology{
		APIVersion: "topology.node.k8s.io/v1alpha2", Kind: "NodeResourceTopology",
		Metadata: Metadata{n.Name, OwnerOf(n.Name, n.UID)},
		Policies: []string{deprecated(policy, scope)},
		Zones:    zones(s),
		Attributes: []Attribute{
			{"topologyManagerPolicy", policy}, {"topologyManagerScope", scope},
		},
	}
	if n.Known {
		t.Attributes = append(t.Attributes,
			Attribute{"nodeTopologyPodsFingerprint", Fingerprint(n.Pods)}, Attribute{"nodeTopologyPodsFingerprintMethod", "all"})
	}
	return t
}

// deprecated is the one word for policy and scope.
func deprecated(policy, scope string) string {
	word := map[string]string{"none": "None", "best-effort": "BestEffort", "restricted": "Restricted", "single-numa-node": "SingleNUMANode"}[policy]
	switch {
	case word == "None" || word == "":
		return "None"
	case scope == "pod":
		return word + "PodLevel"
	}
	return word + "ContainerLevel"
}

func zones(s *place.State) []Zone {
	m := s.Topology().Machine()
	conf, ownable := s.Config(), s.Ownable(place.LSR)
	forPods := conf.Allowed.Minus(conf.Reserved)
	nodes := m.ByKind(machine.Node)
	if len(nodes) == 0 { // no NUMA at all
		nodes = []machine.Domain{{Kind: machine.Node, CPUs: m.Online}}
	}
	all := make([]Zone, 0, len(nodes))
	for i, node := range nodes {
		z := Zone{Name: name(node.ID), Type: "Node", Resources: []Resource{}}
		if i < len(m.Distances) {
			for j, distance := range m.Distances[i] {
				z.Costs = append(z.Costs, Cost{name(nodes[j].ID), distance})
			}
		}
		if !node.CPUs.IsEmpty() {
			free := min(node.CPUs.Intersect(ownable).Len(), node.CPUs.Intersect(s.Sharable()).Len()-sharers(s, node.CPUs))
			z.Resources = append(z.Resources, Resource{
				"cpu", strconv.Itoa(node.CPUs.Len()), strconv.Itoa(node.CPUs.Intersect(forPods).Len()), strconv.Itoa(max(free, 0)),
			})
		}
		for _, resource := range s.Resources() {
			free, total, ok := s.FreeBytes(node.ID, resource)
			if !ok || total == 0 {
				continue
			}
			capacity := total
			if resource == place.Memory {
				capacity = max(total, node.Bytes)
			}
			z.Resources = append(z.Resources, Resource{resource, bytes(capacity), bytes(total), bytes(max(free, 0))})
		}
		all = append(all, z)
	}
	return all
}

// sharers is how many CPUs of a node those need that share them and no others.
func sharers(s *place.State, node cpuset.Set) int {
	milli, grants := s.SharedMilli(node)
	return max(place.WholeCPUs(milli), min(grants, 1))
}

func name(node int) string { return "node-" + strconv.Itoa(node) }

func bytes(n int64) string { return strconv.FormatInt(n, 10) }

// Fingerprint is the fingerprint of a set of pods by which a scheduler finds out whether
// this topology counts all pods that it knows (podfingerprint, version v001): xxHash64 of
// the sorted hashes of the names, each with the hash of the namespace as its seed.
func Fingerprint(pods []Pod) string {
	hashes := make([]uint64, len(pods))
	for i, p := range pods {
		d := xxhash.NewWithSeed(xxhash.Sum64String(p.Namespace))
		_, _ = d.WriteString(p.Name)
		hashes[i] = d.Sum64()
	}
	slices.Sort(hashes)
	d := xxhash.New()
	for _, h := range hashes {
		_, _ = d.Write(binary.LittleEndian.AppendUint64(nil, h))
	}
	return "pfp0v001" + hex.EncodeToString(d.Sum(nil))
}
