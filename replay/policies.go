package replay

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
	"berth.dev/berth/place/controlplane"
	"berth.dev/berth/place/koordinator"
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
		{Name: "berth", About: "the default: whole cores, few and near NUMA nodes and L3 domains, symmetric exclusivity", New: newBerth},
		{Name: "koordinator", About: "Koordinator's binding of LSE and LSR, with exclusivity enforced", New: newKoordinator},
		{Name: "controlplane-default", About: "Intel CPU control plane: the first run of consecutive CPUs", New: newControlplane(controlplane.Default)},
		{Name: "controlplane-numa", About: "Intel CPU control plane: the deepest part of the machine that has room", New: newControlplane(controlplane.NUMA)},
		{Name: "controlplane-numa-namespace", About: "Intel CPU control plane: a bucket of CPUs per namespace", New: newControlplane(controlplane.NUMANamespace)},
		{
			Name: "controlplane-numa-namespace-exclusive", About: "the same, with CPUs of their own for guaranteed workloads",
			New: newControlplane(controlplane.NUMANamespaceExclusive),
		},
	}
}

// newPolicy returns the policy of a name, which may carry a variant behind a
// slash: "berth/even" is policy berth with other options.
func newPolicy(name string, options []byte) (place.Policy, error) {
	base, _, _ := strings.Cut(name, "/")
	all := Policies()
	i := slices.IndexFunc(all, func(n Named) bool { return n.Name == base })
	if i < 0 {
		var names []string
		for _, n := range all {
			names = append(names, n.Name)
		}
		return nil, fmt.Errorf("there is no policy %q; there are: %s", base, strings.Join(names, ", "))
	}
	return all[i].New(options)
}

// readOptions reads options strictly. The lines of its errors are dropped: the
// text was written anew from the scenario file.
func readOptions[T any](text []byte) (options T, err error) {
	errs := decode(string(text), &options)
	for i := range errs {
		errs[i].Line = 0
	}
	return options, join(errs)
}

func newBerth(text []byte) (place.Policy, error) {
	o, err := readOptions[struct {
		Strategy place.Strategy `yaml:"strategy"`
	}](text)
	return berth.Policy{Strategy: o.Strategy}, err
}

func newKoordinator(text []byte) (place.Policy, error) {
	o, err := readOptions[struct {
		Bind          place.Bind     `yaml:"bind"`
		Strategy      place.Strategy `yaml:"strategy"`
		Amplification int            `yaml:"amplification"`
		ShareReserved bool           `yaml:"shareReserved"`
	}](text)
	return koordinator.Policy(o), err
}

func newControlplane(allocator controlplane.Allocator) func([]byte) (place.Policy, error) {
	return func(text []byte) (place.Policy, error) {
		o, err := readOptions[struct {
			Buckets   int  `yaml:"buckets"`
			PinMemory bool `yaml:"pinMemory"`
		}](text)
		return controlplane.Policy{Allocator: allocator, Buckets: o.Buckets, PinMemory: o.PinMemory}, err
	}
}
