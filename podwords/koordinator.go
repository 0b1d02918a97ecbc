package podwords

import (
	"errors"
	"fmt"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/place"
)

func koordinatorRows() []Row {
	return []Row{
		{System: Koordinator, Word: "koordinator.sh/qosClass", Label: true, Means: "the class of service", Strong: []string{"SYSTEM"}, read: qosLabel},
		{System: Koordinator, Word: "koordinator.sh/priority-class", Label: true, Means: "koord-batch and koord-free are best effort, unless qosClass says a class", read: priorityClass},
		{System: Koordinator, Word: "koordinator.sh/priority", Label: true, Means: "it orders pods that wait for a node, and those to be evicted: this one has a node, and Berth evicts nobody"},
		{System: Koordinator, Word: "scheduling.koordinator.sh/resource-spec", Means: "required and preferred bind policy, and exclusivity", Strong: nil, read: resourceSpec},
		{System: Koordinator, Word: "scheduling.koordinator.sh/numa-topology-spec", Means: "SingleNUMANode is at most one NUMA node, Restricted as many as it takes on an empty machine; BestEffort is what every policy does", read: numaSpec},
		{System: Koordinator, Word: "scheduling.koordinator.sh/resource-status", Means: "the very CPUs that a scheduler chose, of a pod whose CPUs one container has", Strong: []string{"*"}, read: resourceStatus},
		{System: Koordinator, Word: "koordinator.sh/networkQOS", Means: "the most that the pod may receive and send, in bits per second", read: networkQOS},
		{System: Koordinator, Word: "koordinator.sh/cpuQOS", Means: "it is for a kernel with group identity: here the class of service decides who goes first"},
		{System: Koordinator, Word: "koordinator.sh/core-sched-group-id", Label: true, Means: "whom a pod shares a core with is not set by core scheduling: CPUs of its own are, in whole cores if it wants (berth.dev/bind, berth.dev/exclusivity)"},
		{System: Koordinator, Word: "koordinator.sh/core-sched-policy", Label: true, Means: "whom a pod shares a core with is not set by core scheduling: CPUs of its own are, in whole cores if it wants (berth.dev/bind, berth.dev/exclusivity)"},
		{System: Koordinator, Word: "scheduling.koordinator.sh/device-allocated", Means: "no environment or mount is added to containers: a device plugin of the kubelet, or CDI, gives them their devices"},
		{System: Koordinator, Word: "koordinator.sh/cpuBurst", Means: "the quota of a container stays as the kubelet writes it"},
		{System: Koordinator, Word: "koordinator.sh/memoryQOS", Means: "what protects and throttles the memory of a container stays as the kubelet writes it"},
		{System: Koordinator, Word: "koordinator.sh/blkioQOS", Means: "a pod sets no limits of a disk by itself: it names a class that the node's configuration defines (berth.dev/io)"},
		{System: Koordinator, Word: "node.koordinator.sh/resctrl", Means: "a pod defines no part of a cache by itself: it names a class that the node's configuration defines (berth.dev/cache)"},
		{System: Koordinator, Word: "node.koordinator.sh/extended-resource-spec", Means: "the limits of batch CPU time and memory of a container of class BE, and of mid ones of class BE or LS, which no kubelet sets; its share stays as the kubelet writes it", read: extendedResources},
	}
}

func qosLabel(_ *reading, text string) (w Wish, err error) {
	w.Class = new(place.Class)
	for _, class := range place.Classes() {
		if class.String() == text { // its webhook takes the exact words
			*w.Class = class
			return w, nil
		}
	}
	return Wish{}, errors.New("is none of LSE, LSR, LS, BE, SYSTEM")
}

// priorityClass reads the label that beats a pod's priority. It comes before qosClass in
// the order of keys, so that qosClass wins.
func priorityClass(r *reading, text string) (w Wish, err error) {
	switch text {
	case "koord-prod", "koord-mid":
		return w, nil
	case "koord-batch", "koord-free":
		if _, said := r.pod.Labels["koordinator.sh/qosClass"]; !said {
			w.Class = new(place.BE)
		}
		return w, nil
	}
	return w, errors.New("is none of koord-prod, koord-mid, koord-batch, koord-free")
}

// resourceSpec reads the binding that the annotation asks for. A required policy beats a
// preferred one.
func resourceSpec(_ *reading, text string) (w Wish, err error) {
	var spec struct {
		strictyaml.Open
		Required  string `json:"requiredCPUBindPolicy"`
		Preferred string `json:"preferredCPUBindPolicy"`
		Exclusive string `json:"preferredCPUExclusivePolicy"`
	}
	if _, err := strictyaml.Decode([]byte(text), "", &spec); err != nil {
		return w, errors.New(plain.Line(err.Error()))
	}
	for _, bind := range []string{spec.Preferred, spec.Required} {
		if bind != "" && bind != "Default" {
			w.Bind = new(place.Bind)
			if err := w.Bind.UnmarshalText([]byte(bind)); err != nil {
				return Wish{}, err
			}
		}
	}
	if spec.Required != "" && spec.Required != "Default" {
		w.BindRequired = new(true)
	}
	switch spec.Exclusive {
	case "", "None":
	case "PCPULevel":
		w.Exclusive = new(place.PCPULevel)
	case "NUMANodeLevel":
		return w, &Problem{Kind: NotAllowed, Err: errors.New("NUMANodeLevel keeps others off whole NUMA nodes: ask by berth.dev/exclusivity, which a rule may allow")}
	default:
		return w, fmt.Errorf("%q is none of None, PCPULevel, NUMANodeLevel", plain.Line(spec.Exclusive))
	}
	return w, nil
}

func numaSpec(r *reading, text string) (w Wish, err error) {
	var spec struct {
		strictyaml.Open
		Policy    string `json:"numaTopologyPolicy"`
		Exclusive string `json:"singleNUMANodeExclusive"`
	}
	if _, err := strictyaml.Decode([]byte(text), "", &spec); err != nil {
		return w, errors.New(plain.Line(err.Error()))
	}
	switch spec.Policy {
	case "", "BestEffort":
	case "SingleNUMANode":
		w.MaxNodes = new(1)
	case "Restricted":
		if !r.opt.Node {
			return w, notFollowed("policy Restricted: how many nodes could hold the CPUs is not known here")
		}
		w.Fewest = new(true)
	default:
		return w, fmt.Errorf("%q is none of BestEffort, Restricted, SingleNUMANode", plain.Line(spec.Policy))
	}
	if spec.Exclusive != "" {
		return w, &Problem{Kind: NotFollowed, Err: errors.New("singleNUMANodeExclusive: pods are not kept off nodes by how many nodes others span")}
	}
	return w, nil
}

func resourceStatus(r *reading, text string) (w Wish, err error) {
	var status struct {
		strictyaml.Open
		CPUs cpuset.Set `json:"cpuset"`
	}
	if _, err := strictyaml.Decode([]byte(text), "", &status); err != nil {
		return w, errors.New(plain.Line(err.Error()))
	}
	if !r.opt.Node && !status.CPUs.IsEmpty() {
		return w, notFollowed("the CPUs that a scheduler chose are those of its node")
	}
	w.CPUs = status.CPUs
	return w, nil
}

// maxExtended is the most batch or mid CPU time that a container may be limited to, in thousandths of a CPU.
const maxExtended = 1_000_000

// extendedResources reads what Koordinator's webhook notes of the batch resources of containers, and others
// of mid ones, each tier by itself.
func extendedResources(r *reading, text string) (w Wish, err error) {
	var spec struct {
		strictyaml.Open
		Containers map[string]struct {
			strictyaml.Open
			Limits map[string]place.Quantity `json:"limits"`
		} `json:"containers"`
	}
	if _, err := strictyaml.Decode([]byte(text), "", &spec); err != nil {
		return w, errors.New(plain.Line(err.Error()))
	}
	limits := spec.Containers[r.container].Limits
	for _, tier := range []struct {
		name   string
		cpu    **place.Milli
		memory **place.Bytes
	}{{"batch", &w.CPULimit, &w.MemoryLimit}, {"mid", &w.MidCPULimit, &w.MidMemoryLimit}} {
		resource := "kubernetes.io/" + tier.name + "-cpu"
		cpu, memory := limits[resource].Value(), limits["kubernetes.io/"+tier.name+"-memory"].Value()
		if cpu > maxExtended {
			return Wish{}, fmt.Errorf("%s: a limit of %d is more than %d thousandths of a CPU", resource, cpu, maxExtended)
		}
		if cpu > 0 {
			*tier.cpu = new(place.Milli(cpu))
		}
		if memory > 0 {
			*tier.memory = new(place.Bytes(memory))
		}
	}
	if !r.opt.Node && len(fields(&w)) > 0 {
		return Wish{}, notFollowed("containers are not limited here")
	}
	return w, nil
}
