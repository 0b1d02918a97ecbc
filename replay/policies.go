package replay

import (
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

// Named is a policy that a scenario can name.
type Named struct {
	Name  string
	About string // one line
	// New returns the policy with options, a YAML mapping; empty is none. An
	// option that the policy does not have is an error.
	New func(options []byte) (place.Policy, error)
}

// Policies lists the policies, the default first.
func Policies() []Named {
	return []Named{
		{Name: "berth", About: "the default: whole cores, few and near NUMA nodes and L3 domains, symmetric exclusivity", New: optionsOver(berth.Policy{})},
		{Name: "kubelet", About: "the kubelet's CPU, topology, memory and device managers; without options all CPUs are shared", New: optionsOver(kubelet.Policy{})},
		{Name: "koordinator", About: "Koordinator's binding of LSE and LSR, with exclusivity enforced", New: optionsOver(koordinator.Policy{})},
		{Name: "controlplane-default", About: "Intel CPU control plane: the first run of consecutive CPUs", New: newControlplane(controlplane.Default)},
		{Name: "controlplane-numa", About: "Intel CPU control plane: the deepest part of the machine that has room", New: newControlplane(controlplane.NUMA)},
		{Name: "controlplane-numa-namespace", About: "Intel CPU control plane: a bucket of CPUs per namespace", New: newControlplane(controlplane.NUMANamespace)},
		{
			Name: "controlplane-numa-namespace-exclusive", About: "the same, with CPUs of their own for guaranteed workloads",
			New: newControlplane(controlplane.NUMANamespaceExclusive),
		},
		{Name: "topology-aware", About: "NRI plugins and CRI-RM: a tree of pools, exclusive and shared CPUs by request class", New: optionsOver(topologyaware.Default())},
		{Name: "balloons", About: "balloons of whole CPUs, grown and shrunk, shared by their members only", New: optionsOver(balloons.Policy{})},
	}
}

// newPolicy returns the policy of a name, which may carry a variant behind a
// slash: "berth/even" is policy berth with other options.
func newPolicy(name string, options []byte) (place.Policy, error) {
	base, _, _ := strings.Cut(name, "/")
	p, err := Policy(base)
	if err != nil {
		return nil, err
	}
	return p.New(options)
}

// Policy returns the policy of a name.
func Policy(name string) (Named, error) {
	var names []string
	for _, p := range Policies() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Named{}, fmt.Errorf("there is no policy %q%s", name, strictyaml.Nearest(name, names))
}

// readOptions reads a YAML mapping over what into has. Fields are named as in
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
// options; start has those that are not named.
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
