package replay

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// Parse reads a scenario file. All that is wrong with it is reported, joined, as
// strictyaml.Error with line and field.
func Parse(text string, load Loader) (*Scenario, error) {
	var f scenarioFile
	lines, err := strictyaml.Decode([]byte(text), "", &f)
	if err != nil {
		return nil, err
	}
	return f.scenario(&parser{lines: lines, load: load})
}

// Apply returns the scenario of the pods in files with objects of Kubernetes, one after the
// other, on a machine; a KubeletConfiguration among the objects is that of the node.
func Apply(machine string, files []string, load Loader) (*Scenario, error) {
	f := scenarioFile{Machine: machine}
	for _, name := range files {
		p := parser{load: load}
		docs := p.objects("", name)
		if len(p.errs) > 0 {
			return nil, errors.Join(p.errs...)
		}
		if slices.ContainsFunc(docs, isKubelet) {
			if f.Kubelet != "" {
				return nil, fmt.Errorf("%s and %s both hold a KubeletConfiguration", f.Kubelet, name)
			}
			f.Kubelet = name
		}
		if !slices.ContainsFunc(docs, isKubelet) || len(docs) > 1 {
			f.Steps = append(f.Steps, stepFile{Apply: name})
		}
	}
	if len(f.Steps) == 0 {
		return nil, fmt.Errorf("%s: a kubelet, and no pods: name a file with some, too", strings.Join(files, ", "))
	}
	return f.scenario(&parser{lines: strictyaml.Lines{}, load: load})
}

func (f *scenarioFile) scenario(p *parser) (*Scenario, error) {
	s := &Scenario{About: strings.TrimSpace(f.About), Policy: f.Policy}
	s.Topology = p.machine(f)
	s.Config = f.Config.config()
	s.policies = p.options(f.Options)
	podResources := true
	if f.Kubelet != "" && s.Topology != nil {
		podResources = p.node(f, s)
	}
	s.Policy = cmp.Or(s.Policy, policies.Default)
	if _, err := s.PolicyFor(s.Policy); err != nil {
		p.field("policy", err)
	}
	switch {
	case f.Generate == nil:
		reader := objectReader{parser: p, podResources: podResources, seen: map[string]int{}}
		s.Steps = p.steps(f.Steps, &reader)
		s.Notes = append(s.Notes, reader.notes()...)
	case len(f.Steps) > 0:
		p.field("generate", errors.New("there are steps as well"))
	default:
		s.Generate = p.generator(f.Generate)
	}
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	empty, err := place.New(s.Topology, s.Config)
	if err != nil {
		return nil, &strictyaml.Error{Line: p.lines.At("config"), Field: "config", Err: err}
	}
	s.allocatable = empty.Ownable(place.LSE).Len()
	return s, nil
}

// parser collects errors.
type parser struct {
	load  Loader
	file  string // "" is the scenario's
	line  int    // of the document in the file
	lines strictyaml.Lines
	where string // the current part, "steps[2]"; "" is the document
	errs  []error
}

// field adds an error of a field of the current part, or of the whole part.
func (p *parser) field(name string, err error) {
	if err == nil {
		return
	}
	if p.where != "" && name != "" {
		name = "." + name
	}
	line := cmp.Or(p.lines.At(p.where+name), p.line)
	p.errs = append(p.errs, &strictyaml.Error{File: p.file, Line: line, Field: p.where + name, Err: err})
}

func (p *parser) machine(f *scenarioFile) *place.Topology {
	if f.Machine == "" {
		p.field("machine", errors.New("none is named"))
		return nil
	}
	m, err := p.load.Machine(f.Machine)
	if err != nil {
		p.field("machine", err)
		return nil
	}
	if f.Isolated != nil {
		own := *m
		own.Isolated = *f.Isolated
		m = &own
	}
	t, err := place.NewTopology(m)
	p.field("machine", err)
	return t
}

func (f *configFile) config() place.Config {
	for _, node := range slices.Sorted(maps.Keys(f.Memory)) {
		for _, a := range amounts(f.Memory[node]) {
			f.Config.Memory = append(f.Config.Memory, place.Block{Node: node, Resource: a.Resource, Bytes: a.Bytes})
		}
	}
	return f.Config
}

func (p *parser) options(f map[string]map[string]any) map[string]place.Policy {
	made := map[string]place.Policy{}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		policy, err := newPolicy(name, f[name])
		made[name] = policy
		p.field("options."+name, err)
	}
	return made
}

func (p *parser) steps(files []stepFile, reader *objectReader) []Step {
	if len(files) == 0 {
		p.field("steps", errors.New("there are none"))
	}
	known := map[string]workloadFile{}
	steps := make([]Step, 0, len(files))
	for i := range files {
		f := &files[i]
		p.where = fmt.Sprintf("steps[%d]", i)
		do, id, err := f.action()
		if err != nil {
			p.field("", err)
			continue
		}
		s := Step{Line: p.lines.At(p.where), Do: do, ID: id}
		switch do {
		case apply:
			if f.Expect != nil || f.Containers != nil || !f.workloadFile.isEmpty() {
				p.field("", errors.New("apply takes no other field"))
			}
			steps = append(steps, reader.apply(known, f.Apply)...)
			continue
		case Place:
			known[id] = f.workloadFile
			s.Request = p.request(id, &f.workloadFile)
		case Resize:
			known[id] = known[id].overlay(&f.workloadFile)
			w := known[id]
			s.Request = p.request(id, &w)
		case PlacePod:
			s.Pod, s.Expects = p.pod(f, known)
		default:
			if !f.workloadFile.isEmpty() {
				p.field("", fmt.Errorf("%s takes no fields but expect", do))
			}
		}
		if do != PlacePod && len(f.Containers) > 0 {
			p.field("containers", errors.New("only placePod has some"))
		}
		s.Expect = p.expect(f.Expect, do)
		steps = append(steps, s)
	}
	p.where = ""
	return steps
}

// pod reads the containers of a pod, and notes each as known.
func (p *parser) pod(f *stepFile, known map[string]workloadFile) (pod *place.Pod, expects []*Expect) {
	rest := f.workloadFile
	rest.CPUs, rest.Limit = nil, nil
	if !rest.isEmpty() {
		p.field("", errors.New("a pod has containers, cpus and limit; all else is its containers' own"))
	}
	p.field("", (&place.Request{ID: f.PlacePod, Milli: int(value(f.CPUs)), LimitMilli: int(value(f.Limit))}).Validate())
	if len(f.Containers) == 0 {
		p.field("containers", errors.New("there are none"))
	}
	pod = &place.Pod{ID: f.PlacePod, Milli: int(value(f.CPUs)), LimitMilli: int(value(f.Limit))}
	names := map[string]bool{}
	where := p.where
	for i := range f.Containers {
		c := &f.Containers[i]
		p.where = fmt.Sprintf("%s.containers[%d]", where, i)
		id := f.PlacePod + "/" + c.Name
		switch {
		case c.Name == "":
			p.field("name", errors.New("a container needs one"))
		case names[c.Name]:
			p.field("name", fmt.Errorf("two containers named %q", c.Name))
		case c.Pod != "":
			p.field("pod", errors.New("is the pod's name"))
		}
		p.field("name", checkID(c.Name))
		names[c.Name] = true
		c.Pod = f.PlacePod
		known[id] = c.workloadFile
		r := p.request(id, &c.workloadFile)
		if c.Expect != nil && (c.Expect.Error != "" || c.Expect.Moved != nil) {
			p.field("expect", errors.New("a container is admitted with its pod: error and moved are the pod's"))
		}
		r.Explain = true
		pod.Containers = append(pod.Containers, r)
		expects = append(expects, p.expect(c.Expect, Place))
	}
	p.where = where
	return pod, expects
}

// request makes the request of a workload.
func (p *parser) request(id string, w *workloadFile) place.Request {
	r := place.Request{
		ID: id, Group: w.Pod, Namespace: w.Namespace, Labels: w.Labels, Role: value(w.Role), Class: value(w.Class),
		Milli: int(value(w.CPUs)), LimitMilli: int(value(w.Limit)), Mode: value(w.Mode), SharedMilli: int(value(w.Shared)),
		Bind: value(w.Bind), BindRequired: value(w.BindRequired), Exclusivity: value(w.Exclusive), Strategy: value(w.Strategy),
		Isolated: value(w.Isolated), CoreKind: w.CoreKind, Nodes: w.Nodes, NodesRequired: value(w.NodesRequired),
		MaxNodes: value(w.MaxNodes), Devices: w.Devices, Hints: w.Hints,
	}
	if w.Memory != nil {
		r.Memory = []place.Amount{{Resource: place.Memory, Bytes: int64(*w.Memory)}}
		if _, twice := w.Resources[place.Memory]; twice {
			p.field("resources", errors.New("memory is named twice"))
		}
	}
	r.Memory = append(r.Memory, amounts(w.Resources)...)
	for _, a := range w.Affinity {
		r.Affinity = append(r.Affinity, place.Affinity(a))
	}
	p.field("", r.Validate())
	return r
}

// value returns what a pointer points to, zero for nil.
func value[T any](p *T) (v T) {
	if p != nil {
		return *p
	}
	return v
}

// amounts returns amounts by rising name.
func amounts(of map[string]place.Bytes) []place.Amount {
	var amounts []place.Amount
	for _, resource := range slices.Sorted(maps.Keys(of)) {
		amounts = append(amounts, place.Amount{Resource: resource, Bytes: int64(of[resource])})
	}
	return amounts
}
