// Package policies is the registry of the placement policies: their names and
// how each is made from options that a user wrote.
package policies

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
	"berth.dev/berth/place/berth"
	"berth.dev/berth/place/controlplane"
	"berth.dev/berth/place/koordinator"
	"berth.dev/berth/place/kubelet"
	"berth.dev/berth/place/topologyaware"
)

// Default is the name of the default policy.
const Default = "berth"

// Named is a policy with its name.
type Named struct {
	Name  string
	About string // one line
	read  func(options []byte) (place.Policy, error)
}

// New returns the policy with options by name, nil for none. An option that the
// policy does not have is an error.
func (n Named) New(options map[string]any) (place.Policy, error) {
	text, err := json.Marshal(options) // which is YAML
	if err != nil {
		return nil, err
	}
	return n.read(text)
}

// All lists the policies, the default first.
func All() []Named {
	return []Named{
		{Name: "berth", About: "the default: whole cores, few and near NUMA nodes and L3 domains, symmetric exclusivity", read: optionsOver(berth.Policy{})},
		{Name: "kubelet", About: "the kubelet's CPU, topology, memory and device managers; without options all CPUs are shared", read: optionsOver(kubelet.Policy{})},
		{Name: "koordinator", About: "Koordinator's binding of LSE and LSR, with exclusivity enforced", read: optionsOver(koordinator.Policy{})},
		{Name: "controlplane-default", About: "Intel CPU control plane: the first run of consecutive CPUs", read: newControlplane(controlplane.Default)},
		{Name: "controlplane-numa", About: "Intel CPU control plane: the deepest part of the machine that has room", read: newControlplane(controlplane.NUMA)},
		{Name: "controlplane-numa-namespace", About: "Intel CPU control plane: a bucket of CPUs per namespace", read: newControlplane(controlplane.NUMANamespace)},
		{
			Name: "controlplane-numa-namespace-exclusive", About: "the same, with exclusive CPUs for guaranteed workloads",
			read: newControlplane(controlplane.NUMANamespaceExclusive),
		},
		{Name: "topology-aware", About: "NRI plugins and CRI-RM: a tree of pools, exclusive and shared CPUs by request class", read: optionsOver(topologyaware.Default())},
		{Name: "balloons", About: "balloons of whole CPUs, grown and shrunk, shared by their members only", read: optionsOver(balloons.Policy{})},
		{Name: "static-pools", About: "CRI-RM: lists of CPUs made once and for all, exclusive or shared", read: newPreset[balloons.StaticPools]},
		{Name: "podpools", About: "CRI-RM: pools of so many CPUs for so many pods each", read: newPreset[balloons.PodPools]},
	}
}

// Names lists the names of the policies, the default first.
func Names() []string {
	var names []string
	for _, p := range All() {
		names = append(names, p.Name)
	}
	return names
}

// Find returns the policy of a name; "" is the default.
func Find(name string) (Named, error) {
	for _, p := range All() {
		if p.Name == cmp.Or(name, Default) {
			return p, nil
		}
	}
	return Named{}, fmt.Errorf("there is no policy %q%s", name, strictyaml.Nearest(name, Names()))
}

// New returns the policy of a name with options by name.
func New(name string, options map[string]any) (place.Policy, error) {
	p, err := Find(name)
	if err != nil {
		return nil, err
	}
	return p.New(options)
}

// readOptions reads a YAML mapping over the values of into. Fields are named as in
// the policy's Go type, the first letter small.
func readOptions(text []byte, into any) error {
	err := yaml.UnmarshalStrict(text, into)
	if err == nil {
		return nil
	}
	what := err.Error()
	for _, wrapping := range []string{"error unmarshaling JSON: ", "while decoding JSON: ", "error converting YAML to JSON: ", "json: ", "yaml: "} {
		what = strings.TrimPrefix(what, wrapping)
	}
	return errors.New(what)
}

// optionsOver returns a constructor for a policy whose exported fields are its
// options; start has the values of options that are not named.
func optionsOver[P place.Policy](start P) func([]byte) (place.Policy, error) {
	return func(text []byte) (place.Policy, error) {
		p := start
		if err := readOptions(text, &p); err != nil {
			return nil, err
		}
		if v, ok := any(p).(interface{ Validate() error }); ok {
			return p, v.Validate()
		}
		return p, nil
	}
}

// newPreset makes a policy of options that are not its fields.
func newPreset[O interface {
	Policy() (place.Policy, error)
}](text []byte) (place.Policy, error) {
	var o O
	if err := readOptions(text, &o); err != nil {
		return nil, err
	}
	return o.Policy()
}

// newControlplane returns a constructor for one of the allocators, which have
// names of their own.
func newControlplane(allocator controlplane.Allocator) func([]byte) (place.Policy, error) {
	return func(text []byte) (place.Policy, error) {
		var o struct {
			Buckets   int  `json:"buckets"`
			PinMemory bool `json:"pinMemory"`
		}
		err := readOptions(text, &o)
		return controlplane.Policy{Allocator: allocator, Buckets: o.Buckets, PinMemory: o.PinMemory}, err
	}
}
