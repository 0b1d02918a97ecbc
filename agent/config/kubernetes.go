package config

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
)

// Kubernetes is what berth-node nri does for the containers of a node. Policy, Allowed,
// Reserved, Floor, Devices, Confine, Protected and Agent.StateDir are the plugin's, too.
type Kubernetes struct {
	// NRISocket is where the container runtime listens for plugins. Default:
	// /var/run/nri/nri.sock.
	NRISocket string `json:"nriSocket,omitempty"`
	// Index are two digits: the runtime calls plugins in their order. Default: "50".
	Index string `json:"index,omitempty"`
	// Budget is how long a decision may take until the container gets the shared pool.
	// Default: 1s.
	Budget Duration `json:"budget,omitzero"`
	// Strict refuses every container of which a word cannot be followed. Default: false.
	Strict bool `json:"strict,omitempty"`
	// PodScope places all containers of a pod together, or none, where the pod does not say
	// otherwise. Default: false, as the policy does.
	PodScope bool `json:"podScope,omitempty"`
	// Idle has pods of the QoS class BestEffort run only when no other pod wants to
	// (cpu.idle). Default: false.
	Idle bool `json:"idle,omitempty"`
	// CacheAfterStart has containers put into the group of their cache class (resctrl) once they
	// are there, and never started in it: for a containerd whose default runtime is not runc.
	// Default: false.
	CacheAfterStart bool `json:"cacheAfterStart,omitempty"`
	// ConfineTo says where groups that confine names are, the sandboxes of pods among them:
	// shared (what no container owns) or reserved. berth agent follows it, too. Default: shared.
	ConfineTo string `json:"confineTo,omitempty"`
	// Words say which words of pods count, by namespace: the first that names it decides.
	// Default: all but those that need a rule.
	Words []WordRule `json:"words,omitempty"`
}

// WordRule says which words pods of some namespaces may use.
type WordRule struct {
	// Namespaces are globs. Required.
	Namespaces []string `json:"namespaces"`
	// Words are globs of words, or WORD=VALUE for a value that needs a rule. Default: none.
	Words []string `json:"words,omitempty"`
}

// The values of Kubernetes.ConfineTo.
const (
	ConfineShared   = "shared"
	ConfineReserved = "reserved"
)

func (v *validator) kubernetes(c *NodeConfig) {
	k := &c.Kubernetes
	v.want(k.Index == "" || len(k.Index) == 2 && strings.Trim(k.Index, "0123456789") == "", "kubernetes.index", "%q is not two digits", k.Index)
	v.want(slices.Contains([]string{"", ConfineShared, ConfineReserved}, k.ConfineTo), "kubernetes.confineTo", "%q is not one of %s, %s", k.ConfineTo, ConfineShared, ConfineReserved)
	v.want(k.ConfineTo != ConfineReserved || c.floor() != (cpuset.Set{}), "kubernetes.confineTo", "there are no reserved CPUs")
	for i, r := range k.Words {
		at := fmt.Sprintf("kubernetes.words[%d]", i)
		v.want(len(r.Namespaces) > 0, at+".namespaces", "is missing: globs of namespaces")
		for _, glob := range slices.Concat(r.Namespaces, r.Words) {
			if _, err := path.Match(glob, ""); err != nil {
				v.fail(at, fmt.Errorf("%q is no glob", glob))
			}
		}
	}
}

// floor are the CPUs that the configuration says nobody may own.
func (c *NodeConfig) floor() cpuset.Set {
	if !c.Floor.IsEmpty() {
		return c.Floor
	}
	return c.Reserved
}

// Within are the CPUs that what is confined on a node of Kubernetes has; empty is all that
// nobody owns.
func (c *NodeConfig) Within() cpuset.Set {
	if c.Kubernetes.ConfineTo == ConfineReserved {
		return c.floor()
	}
	return cpuset.Set{}
}
