package features

import (
	"strconv"

	"berth.dev/berth/kube/zones"
	"berth.dev/berth/machine"
)

// Object is a NodeFeature of NFD (nfd.k8s-sigs.io/v1alpha1). Its labels become the node's,
// and rules can match all that is in its spec.
type Object struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   ObjectMeta `json:"metadata"`
	Spec       Spec       `json:"spec"`
}

// ObjectMeta names the object and the node that it is about.
type ObjectMeta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
	Owners    []zones.Owner     `json:"ownerReferences,omitempty"`
}

// Spec is what the node has.
type Spec struct {
	Labels   map[string]string `json:"labels"`
	Features Raw               `json:"features"`
}

// Raw is what rules match: berth.node holds the features, berth.l3 an instance for each L3
// domain.
type Raw struct {
	Flags      map[string]struct{}  `json:"flags"`
	Attributes map[string]Elements  `json:"attributes"`
	Instances  map[string]Instances `json:"instances"`
}

// Elements are named values.
type Elements struct {
	Elements map[string]string `json:"elements"`
}

// Instances are things of one kind.
type Instances struct {
	Elements []Instance `json:"elements"`
}

// Instance is one of them.
type Instance struct {
	Attributes map[string]string `json:"attributes"`
}

// Object returns the object of a node, in a namespace under a name. m may be nil.
func (f Features) Object(namespace, name, node, uid string, m *machine.Machine) *Object {
	o := &Object{
		APIVersion: "nfd.k8s-sigs.io/v1alpha1", Kind: "NodeFeature",
		Metadata: ObjectMeta{name, namespace, map[string]string{"nfd.node.kubernetes.io/node-name": node}, zones.OwnerOf(node, uid)},
		Spec: Spec{Labels: map[string]string{}, Features: Raw{
			Flags: map[string]struct{}{}, Attributes: map[string]Elements{"berth.node": {f}}, Instances: map[string]Instances{},
		}},
	}
	for name, value := range f {
		o.Spec.Labels[Prefix+name] = value
	}
	if m == nil {
		return o
	}
	l3 := Instances{Elements: []Instance{}}
	for _, d := range m.ByKind(machine.L3) {
		at := Features{}
		at.set("id", d.String())
		at.set("cpus", strconv.Itoa(d.CPUs.Len()))
		if d.Bytes > 0 {
			at.set("mib", strconv.Itoa(int(d.Bytes>>20)))
		}
		if cpu, ok := d.CPUs.First(); ok {
			if node, ok := m.Of(machine.Node, cpu); ok {
				at.set("numa-node", strconv.Itoa(node.ID))
			}
		}
		l3.Elements = append(l3.Elements, Instance{at})
	}
	o.Spec.Features.Instances["berth.l3"] = l3
	return o
}
