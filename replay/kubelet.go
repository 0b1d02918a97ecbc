package replay

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/kubelet"
)

// kubeletName is the policy that a KubeletConfiguration sets up.
const kubeletName = "kubelet"

// kubeletFile is what is read of a KubeletConfiguration (kubelet.config.k8s.io).
type kubeletFile struct {
	strictyaml.Open
	CPUManager      string            `json:"cpuManagerPolicy"`
	CPUOptions      map[string]string `json:"cpuManagerPolicyOptions"`
	TopologyManager string            `json:"topologyManagerPolicy"`
	Scope           string            `json:"topologyManagerScope"`
	TopologyOptions map[string]string `json:"topologyManagerPolicyOptions"`
	MemoryManager   string            `json:"memoryManagerPolicy"`
	ReservedMemory  []struct {
		Node   int                       `json:"numaNode"`
		Limits map[string]place.Quantity `json:"limits"`
	} `json:"reservedMemory"`
	ReservedCPUs   cpuset.Set                `json:"reservedSystemCPUs"`
	KubeReserved   map[string]place.Quantity `json:"kubeReserved"`
	SystemReserved map[string]place.Quantity `json:"systemReserved"`
	EvictionHard   map[string]string         `json:"evictionHard"`
	MaxPods        *int                      `json:"maxPods"`
	PodsPerCore    int                       `json:"podsPerCore"`
	FeatureGates   map[string]bool           `json:"featureGates"`
}

// kubeletWords are the names of the kubelet's managers.
var kubeletWords = map[string][]string{
	"cpuManagerPolicy":      {kubelet.CPUManagerNone, kubelet.CPUManagerStatic},
	"topologyManagerPolicy": {kubelet.TopologyManagerNone, kubelet.TopologyManagerBestEffort, kubelet.TopologyManagerRestricted, kubelet.TopologyManagerSingle},
	"topologyManagerScope":  {kubelet.ScopeContainer, kubelet.ScopePod},
	"memoryManagerPolicy":   {kubelet.MemoryManagerNone, kubelet.MemoryManagerStatic},
}

// The options of the kubelet's managers, and the feature gate that each needs, as of
// Kubernetes 1.37; "" means none.
var (
	cpuOptions = map[string]string{
		"full-pcpus-only": "", "strict-cpu-reservation": "", "prefer-align-cpus-by-uncorecache": "", "distribute-cpus-across-numa": "",
		"align-by-socket": alphaOptions, "distribute-cpus-across-cores": alphaOptions,
	}
	topologyOptions = map[string]string{"prefer-closest-numa-nodes": "", maxNodes: ""}
)

const (
	alphaOptions = "CPUManagerPolicyAlphaOptions"
	podManagers  = "PodLevelResourceManagers"
	maxNodes     = "max-allowable-numa-nodes"
	// The kubelet's defaults.
	defaultMaxPods, defaultMaxNodes = 110, 8
	defaultEviction                 = "100Mi"
)

// isKubelet reports whether a document is a KubeletConfiguration.
func isKubelet(d strictyaml.Document) bool {
	return d.Text("kind") == "KubeletConfiguration" && strings.HasPrefix(d.Text("apiVersion"), "kubelet.config.k8s.io/")
}

// node reads the KubeletConfiguration of a file as that of the scenario's node. It reports
// whether the node manages resources of a pod as a whole.
func (p *parser) node(f *scenarioFile, s *Scenario) (podResources bool) {
	docs := slices.DeleteFunc(p.objects("kubelet", f.Kubelet), func(d strictyaml.Document) bool { return !isKubelet(d) })
	_, twice := s.policies[kubeletName]
	switch {
	case len(docs) != 1:
		p.field("kubelet", fmt.Errorf("%s holds %d objects of kind KubeletConfiguration, not one", f.Kubelet, len(docs)))
		return
	case twice:
		p.field("options."+kubeletName, errors.New("the kubelet's configuration says them"))
		return
	case !s.Config.Reserved.IsEmpty():
		p.field("config.reserved", errors.New("the kubelet's configuration says it"))
		return
	}
	back := *p
	p.file, p.line, p.where = docs[0].File, docs[0].Line, ""
	var k kubeletFile
	var err error
	if p.lines, err = docs[0].Decode(&k); err != nil {
		p.errs = append(p.errs, err)
	} else {
		options := p.kubelet(&k, s.Topology, &s.Config)
		s.policies[kubeletName], err = newPolicy(kubeletName, options)
		if len(p.errs) == len(back.errs) {
			p.field("", err)
		}
	}
	back.errs = p.errs
	*p = back
	s.Policy = cmp.Or(s.Policy, kubeletName)
	s.Notes = append(s.Notes, k.note(s))
	return k.FeatureGates[podManagers]
}

// note says what the kubelet's configuration comes to.
func (k *kubeletFile) note(s *Scenario) string {
	words := []string{
		"CPU manager " + cmp.Or(k.CPUManager, kubelet.CPUManagerNone),
		"topology manager " + cmp.Or(k.TopologyManager, kubelet.TopologyManagerNone) + " (" + cmp.Or(k.Scope, kubelet.ScopeContainer) + ")",
		"memory manager " + cmp.Or(k.MemoryManager, kubelet.MemoryManagerNone),
	}
	for _, options := range []map[string]string{k.CPUOptions, k.TopologyOptions} {
		for _, name := range slices.Sorted(maps.Keys(options)) {
			words = append(words, name+" "+options[name])
		}
	}
	words = append(words, fmt.Sprintf("reserved CPUs %s", orNone(s.Config.Reserved)), fmt.Sprintf("at most %d pods", k.maxPods(s.Topology)))
	return "kubelet: " + strings.Join(words, ", ")
}

// kubelet reads the configuration of a kubelet: the options of its policy, and what it
// changes in conf. The parser is at the document.
func (p *parser) kubelet(k *kubeletFile, t *place.Topology, conf *place.Config) map[string]any {
	options := map[string]any{"fit-allocatable": true, "maxPods": k.maxPods(t)}
	for field, name := range map[string]string{
		"cpuManagerPolicy": k.CPUManager, "topologyManagerPolicy": k.TopologyManager, "topologyManagerScope": k.Scope, "memoryManagerPolicy": k.MemoryManager,
	} {
		switch words := kubeletWords[field]; {
		case slices.Contains(words, name):
			options[field] = name
		case name != "":
			p.field(field, fmt.Errorf("%q is not one of %s%s", name, strings.Join(words, ", "), plain.Near(name, words)))
		}
	}
	p.kubeletOptions("cpuManagerPolicyOptions", k.CPUOptions, cpuOptions, k.FeatureGates, options)
	p.kubeletOptions("topologyManagerPolicyOptions", k.TopologyOptions, topologyOptions, k.FeatureGates, options)
	static := k.CPUManager == kubelet.CPUManagerStatic
	if len(k.CPUOptions) > 0 && !static {
		p.field("cpuManagerPolicyOptions", errors.New("the kubelet does not start: only the static CPU manager has options"))
	}
	most, _ := options[maxNodes].(int)
	delete(options, maxNodes)
	if topology := options["topologyManagerPolicy"]; topology != nil && topology != kubelet.TopologyManagerNone && len(t.Units(machine.Node)) > max(most, defaultMaxNodes) {
		p.field("topologyManagerPolicy", fmt.Errorf("the kubelet does not start: the machine has %d NUMA nodes, and %s is %d", len(t.Units(machine.Node)), maxNodes, max(most, defaultMaxNodes)))
	}
	policy, err := newPolicy(kubeletName, options)
	if err != nil {
		p.field("", err)
		return options
	}
	reserved := 1000 * k.ReservedCPUs.Len()
	conf.Reserved = k.ReservedCPUs
	if k.ReservedCPUs.IsEmpty() {
		for _, of := range []map[string]place.Quantity{k.KubeReserved, k.SystemReserved} {
			milli, ok := of[cpu].Milli()
			if !ok {
				p.field("kubeReserved", errors.New("more CPU time than any machine has"))
				return options
			}
			reserved += milli
		}
		if conf.Reserved, err = policy.(kubelet.Policy).ReservedCPUs(t, place.WholeCPUs(reserved)); err != nil {
			p.field("kubeReserved", err)
		}
	}
	if static && reserved == 0 {
		p.field("cpuManagerPolicy", errors.New("the kubelet does not start: the static CPU manager needs reservedSystemCPUs, or cpu in kubeReserved or systemReserved"))
	}
	options["reserved-cpu"] = place.Milli(reserved).String()
	if k.MemoryManager == kubelet.MemoryManagerStatic {
		p.reservedMemory(k, t, conf)
	}
	return options
}

// maxPods returns how many pods the kubelet admits; 0 is any number.
func (k *kubeletFile) maxPods(t *place.Topology) int {
	most := defaultMaxPods
	if k.MaxPods != nil {
		most = *k.MaxPods
	}
	if k.PodsPerCore > 0 {
		most = min(most, k.PodsPerCore*t.Online().Len())
	}
	return most
}

// kubeletOptions reads options of a manager, which are text.
func (p *parser) kubeletOptions(field string, of map[string]string, known map[string]string, gates map[string]bool, options map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		gate, ok := known[name]
		on, err := strconv.ParseBool(of[name])
		switch n, wrong := strconv.Atoi(of[name]); {
		case !ok:
			p.field(field+"."+name, fmt.Errorf("no option%s", strictyaml.Nearest(name, slices.Sorted(maps.Keys(known)))))
		case gate != "" && !gates[gate]:
			p.field(field+"."+name, fmt.Errorf("needs featureGates: {%s: true}", gate))
		case name == maxNodes && (wrong != nil || n < defaultMaxNodes):
			p.field(field+"."+name, fmt.Errorf("%q is no number from %d on", of[name], defaultMaxNodes))
		case name == maxNodes:
			options[name] = n
		case err != nil:
			p.field(field+"."+name, fmt.Errorf("%q is neither true nor false", of[name]))
		default:
			options[name] = on
		}
	}
}

// reservedMemory takes the reserved memory of the NUMA nodes off theirs. The kubelet wants it
// to be what is reserved and kept free altogether.
func (p *parser) reservedMemory(k *kubeletFile, t *place.Topology, conf *place.Config) {
	var all, kept int64
	if conf.Memory == nil {
		for _, u := range t.Units(machine.Node) {
			if u.Bytes > 0 {
				conf.Memory = append(conf.Memory, place.Block{Node: u.ID, Resource: place.Memory, Bytes: u.Bytes})
			}
		}
	}
	for _, b := range conf.Memory {
		if b.Resource == place.Memory {
			all += b.Bytes
		}
	}
	eviction, ok := k.EvictionHard["memory.available"]
	if !ok {
		eviction = defaultEviction
	}
	var q place.Quantity
	if percent, ok := strings.CutSuffix(eviction, "%"); ok {
		part, err := strconv.ParseFloat(percent, 64)
		p.field("evictionHard.memory.available", err)
		kept = int64(part / 100 * float64(all))
	} else {
		p.field("evictionHard.memory.available", q.UnmarshalText([]byte(eviction)))
		kept = q.Value()
	}
	kept += k.KubeReserved[place.Memory].Value() + k.SystemReserved[place.Memory].Value()
	for i, r := range k.ReservedMemory {
		for name, q := range r.Limits {
			if name == place.Memory {
				kept -= q.Value()
			}
			at := slices.IndexFunc(conf.Memory, func(b place.Block) bool { return b.Node == r.Node && b.Resource == name })
			switch {
			case at < 0 && len(conf.Memory) > 0:
				p.field(fmt.Sprintf("reservedMemory[%d]", i), fmt.Errorf("NUMA node %d has no %s", r.Node, name))
			case at >= 0 && conf.Memory[at].Bytes < q.Value():
				p.field(fmt.Sprintf("reservedMemory[%d]", i), fmt.Errorf("NUMA node %d has less %s", r.Node, name))
			case at >= 0:
				conf.Memory[at].Bytes -= q.Value()
			}
		}
	}
	if kept != 0 {
		p.field("reservedMemory", fmt.Errorf("the kubelet does not start: it has to be the memory of kubeReserved, systemReserved and evictionHard together, and differs by %d bytes", kept))
	}
}
