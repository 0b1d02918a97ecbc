package place

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
)

// Request is the request of one workload. Only ID is required. A workload without
// CPU time runs in a shared pool.
type Request struct {
	// ID names the workload; it is unique in a State.
	ID string `json:"id"`
	// Group joins workloads that start and end together, such as the
	// containers of a pod; "" is no group. Policies and affinities match on
	// Namespace and Labels.
	Group     string            `json:"group,omitempty"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Role      Role              `json:"role,omitzero"`
	Class     Class             `json:"class"`

	// Milli is the total CPU time asked for, in thousandths of a CPU.
	Milli int `json:"milli,omitempty"`
	// LimitMilli is the most CPU time that the workload may use; 0 is no limit.
	LimitMilli int  `json:"limitMilli,omitempty"`
	Mode       Mode `json:"mode,omitzero"`
	// SharedMilli is, with Mode Mixed, the part of Milli that comes from a
	// pool; 0 is Milli's remainder of a whole CPU.
	SharedMilli int `json:"sharedMilli,omitempty"`

	Bind Bind `json:"bind,omitzero"`
	// BindRequired makes Bind a condition instead of a preference.
	BindRequired bool        `json:"bindRequired,omitempty"`
	Exclusivity  Exclusivity `json:"exclusivity,omitzero"`
	Strategy     Strategy    `json:"strategy,omitzero"`
	// Isolated asks for CPUs that the kernel's scheduler does not balance onto.
	Isolated Want `json:"isolated,omitzero"`
	// CoreKind is the preferred kind of core of a hybrid machine
	// (machine.KindP, ...); "" is no preference.
	CoreKind string `json:"coreKind,omitempty"`
	// Nodes are the NUMA nodes that CPUs should come from; empty is any.
	Nodes cpuset.Set `json:"nodes,omitzero"`
	// NodesRequired makes Nodes a condition instead of a preference.
	NodesRequired bool `json:"nodesRequired,omitempty"`
	// MaxNodes is the largest number of NUMA nodes that exclusive CPUs may
	// span; 0 is no limit.
	MaxNodes int `json:"maxNodes,omitempty"`

	Memory   []Amount        `json:"memory,omitempty"`
	Devices  []DeviceRequest `json:"devices,omitempty"`
	Affinity []Affinity      `json:"affinity,omitempty"`

	// Hints are words for one policy, such as a group to join. A policy
	// documents those that it knows.
	Hints map[string]string `json:"hints,omitempty"`
	// Explain asks for Grant.Why.
	Explain bool `json:"-"`
}

// SameDevices reports whether two requests ask for the same devices.
func (r *Request) SameDevices(other *Request) bool {
	return slices.EqualFunc(r.Devices, other.Devices, func(a, b DeviceRequest) bool {
		return a.Kind == b.Kind && a.Count == b.Count && slices.Equal(a.Names, b.Names)
	})
}

// Want says how much a property is wanted.
type Want = plain.Enum[wantWords]

// The degrees of wanting.
const (
	Unasked Want = iota // the policy's own preference
	Avoid
	Prefer
	Require
)

type wantWords struct{}

func (wantWords) Words() []string { return []string{"", "avoid", "prefer", "require"} }

// Memory is the name of ordinary memory as a resource of a NUMA node. Other
// resources have names of the caller's choice, such as "hugepages-2Mi".
const Memory = "memory"

// HugePagesPrefix is what the names of huge pages as resources begin with; the size follows.
const HugePagesPrefix = "hugepages-"

// HugePages is the name of huge pages of a size as a resource: "hugepages-2Mi".
func HugePages(size Bytes) string { return HugePagesPrefix + size.String() }

// ParseHugePages reads a size of huge pages and how much of them, as in "2Mi" and "512Mi".
func ParseHugePages(size, amount string) (a Amount, err error) {
	var page, bytes Bytes
	if err := page.UnmarshalText([]byte(size)); err != nil || page <= 0 {
		return a, fmt.Errorf("%q is no size of a page, such as 2Mi or 1Gi", size)
	}
	if err := bytes.UnmarshalText([]byte(amount)); err != nil || bytes <= 0 || bytes%page != 0 {
		return a, fmt.Errorf("%q is no amount of pages of %s, such as %s", amount, page, 2*page)
	}
	return Amount{HugePages(page), int64(bytes)}, nil
}

// Amount is a quantity of a resource that NUMA nodes have.
type Amount struct {
	Resource string `json:"resource"`
	Bytes    int64  `json:"bytes"`
}

// DeviceRequest asks for devices, by kind and number or by name.
type DeviceRequest struct {
	Kind  string   `json:"kind,omitempty"`
	Count int      `json:"count,omitempty"`
	Names []string `json:"names,omitempty"`
}

// ParseDevice reads a device by name, as in "nic0", or so many of a kind, as in "gpu=2".
func ParseDevice(text string) (d DeviceRequest, err error) {
	kind, count, counted := strings.Cut(text, "=")
	if !counted {
		d.Names = []string{text}
	} else if d.Count, err = strconv.Atoi(count); err != nil || d.Count < 1 {
		return d, fmt.Errorf("%q is no device: NAME or KIND=COUNT, as in nic0 or gpu=2", text)
	}
	if counted {
		d.Kind = kind
	}
	if kind == "" {
		return d, fmt.Errorf("%q is no device: NAME or KIND=COUNT, as in nic0 or gpu=2", text)
	}
	return d, nil
}

// Affinity draws a workload to others or keeps it from them. It concerns the
// held grants whose request agrees with every field that is set.
type Affinity struct {
	ID        string            `json:"id,omitempty"`
	Group     string            `json:"group,omitempty"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Weight is how strongly; negative keeps apart.
	Weight int `json:"weight"`
	// Glob makes the fields globs (path.Match).
	Glob bool `json:"glob,omitempty"`
}

// Matches reports whether a concerns a workload placed for r.
func (a *Affinity) Matches(r *Request) bool {
	if !a.is(a.ID, r.ID) || !a.is(a.Group, r.Group) || !a.is(a.Namespace, r.Namespace) {
		return false
	}
	for k, v := range a.Labels {
		if got, ok := r.Labels[k]; !ok || got != v && !(a.Glob && a.is(v, got)) {
			return false
		}
	}
	return true
}

// is reports whether a field that is set agrees with a value. A glob that is none matches
// nothing.
func (a *Affinity) is(want, value string) bool {
	if want == "" || want == value || !a.Glob {
		return want == "" || want == value
	}
	ok, _ := path.Match(want, value)
	return ok
}

// WholeCPUs returns CPU time in thousandths of a CPU as CPUs, rounded up.
func WholeCPUs(milli int) int { return (milli + 999) / 1000 }

// Whole returns the number of whole CPUs in Milli, rounded up.
func (r *Request) Whole() int { return WholeCPUs(r.Milli) }

// Split returns how many CPUs the request wants for itself and how much time
// of a pool, by its mode. Auto is left to the policy and read as Shared.
func (r *Request) Split() (own, sharedMilli int) {
	switch r.Mode {
	case Exclusive:
		return r.Whole(), 0
	case Mixed:
		shared := r.SharedMilli
		if shared == 0 {
			shared = r.Milli % 1000
		}
		return (r.Milli - shared) / 1000, shared
	}
	return 0, r.Milli
}

// Validate reports the first thing in r that no policy could act on, as an
// *InvalidError.
func (r *Request) Validate() error {
	switch {
	case r.ID == "":
		return &InvalidError{Reason: "no id"}
	case r.Milli < 0 || r.LimitMilli < 0 || r.SharedMilli < 0 || r.MaxNodes < 0:
		return &InvalidError{r.ID, "an amount is negative"}
	case r.Milli > maxMilli || r.LimitMilli > maxMilli:
		return &InvalidError{r.ID, "more CPU time than any machine has"}
	case r.SharedMilli > r.Milli:
		return &InvalidError{r.ID, "the shared part is larger than the whole"}
	case r.Mode == Mixed && r.SharedMilli != 0 && (r.Milli-r.SharedMilli)%1000 != 0:
		return &InvalidError{r.ID, "the exclusive part is no whole number of CPUs"}
	}
	for _, a := range r.Memory {
		if a.Resource == "" || a.Bytes < 0 {
			return &InvalidError{r.ID, "a memory amount without resource, or negative"}
		}
	}
	for _, d := range r.Devices {
		if d.Count < 0 || d.Kind == "" && len(d.Names) == 0 {
			return &InvalidError{r.ID, "a device request without kind and names, or negative"}
		}
	}
	return nil
}

// maxMilli bounds CPU time so that sums stay far from overflow.
const maxMilli = cpuset.Limit * 1000 * 1000
