package replay

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/place"
)

// What is read of the objects of Kubernetes; all other fields are none of a replay's.
type (
	objectFile struct {
		strictyaml.Open
		Metadata metaFile `json:"metadata"`
		Spec     struct {
			podSpecFile      // of a Pod
			Replicas    *int `json:"replicas"`
			Parallelism *int `json:"parallelism"`
			Completions *int `json:"completions"`
			Ordinals    struct {
				Start int `json:"start"`
			} `json:"ordinals"`
			Template    podFile `json:"template"`
			JobTemplate struct {
				strictyaml.Open
				Spec struct {
					strictyaml.Open
					Parallelism *int    `json:"parallelism"`
					Completions *int    `json:"completions"`
					Template    podFile `json:"template"`
				} `json:"spec"`
			} `json:"jobTemplate"`
		} `json:"spec"`
	}
	metaFile struct {
		strictyaml.Open
		Name         string            `json:"name"`
		GenerateName string            `json:"generateName"`
		Namespace    string            `json:"namespace"`
		Labels       map[string]string `json:"labels"`
		Annotations  map[string]string `json:"annotations"`
	}
	podFile struct {
		strictyaml.Open
		Metadata metaFile    `json:"metadata"`
		Spec     podSpecFile `json:"spec"`
	}
	podSpecFile struct {
		strictyaml.Open
		InitContainers []podContainer `json:"initContainers"`
		Containers     []podContainer `json:"containers"`
		Resources      *resourcesFile `json:"resources"`
	}
	podContainer struct {
		strictyaml.Open
		Name          string        `json:"name"`
		RestartPolicy string        `json:"restartPolicy"`
		Resources     resourcesFile `json:"resources"`
	}
	resourcesFile struct {
		Requests map[string]place.Quantity `json:"requests"`
		Limits   map[string]place.Quantity `json:"limits"`
		Claims   any                       `json:"claims"`
	}
)

// The kinds of objects that make pods, with their only apiVersion and where their pod is.
var workloadKinds = map[string]struct{ version, pod string }{
	"Pod":                   {"v1", ""},
	"ReplicationController": {"v1", "spec.template."},
	"Deployment":            {"apps/v1", "spec.template."},
	"ReplicaSet":            {"apps/v1", "spec.template."},
	"StatefulSet":           {"apps/v1", "spec.template."},
	"DaemonSet":             {"apps/v1", "spec.template."},
	"Job":                   {"batch/v1", "spec.template."},
	"CronJob":               {"batch/v1", "spec.jobTemplate.spec.template."},
}

// objectReader reads objects of Kubernetes into steps.
type objectReader struct {
	*parser
	podResources bool           // whether the node manages resources of a pod as a whole
	seen         map[string]int // pods, with their lines
	others       []string       // kinds that make no pods
	unread       []string       // annotations that would matter and are not read
}

// IsObjects reports whether the text holds objects of Kubernetes, by its first document.
func IsObjects(text string) bool {
	docs, err := strictyaml.Documents([]byte(text), "")
	if first, _, more := strings.Cut(text, "\n---"); err != nil && more {
		return IsObjects(first) // what is wrong with the others is told when they are read
	}
	return err == nil && len(docs) > 0 && docs[0].Text("apiVersion") != "" && docs[0].Text("kind") != ""
}

// objects returns the objects of a file, those of lists one by one. field names the file.
func (p *parser) objects(field, name string) []strictyaml.Document {
	if p.load.File == nil {
		p.field(field, errors.New("objects cannot be read here"))
		return nil
	}
	text, err := p.load.File(name)
	if err != nil {
		p.field(field, err)
		return nil
	}
	docs, err := strictyaml.Documents([]byte(text), name)
	if err != nil {
		p.errs = append(p.errs, err)
	}
	for i := 0; i < len(docs); i++ {
		if kind := docs[i].Text("kind"); strings.HasSuffix(kind, "List") && docs[i].Text("apiVersion") != "" {
			docs = slices.Replace(docs, i, i+1, docs[i].Items("items")...)
			i--
		}
	}
	return docs
}

// apply returns the steps that place the pods of a file.
func (p *objectReader) apply(known map[string]workloadFile, name string) (steps []Step) {
	back := *p.parser
	found := false
	var kinds []string
	for _, d := range p.objects("apply", name) {
		if isKubelet(d) {
			continue
		}
		errs := len(p.errs)
		pods := p.pods(d)
		_, makesPods := workloadKinds[d.Text("kind")]
		found = found || makesPods || len(pods) > 0
		kind := d.Text("kind")
		kinds = append(kinds, plain.Line(kind)+plain.Near(kind, slices.Sorted(maps.Keys(workloadKinds))))
		for _, f := range pods {
			p.where = ""
			s := Step{Line: d.Line, Do: PlacePod, ID: f.PlacePod}
			if len(p.errs) == errs {
				s.Pod, s.Expects = p.parser.pod(&f, known)
			}
			steps = append(steps, s)
		}
	}
	back.errs = p.errs
	if *p.parser = back; !found && len(p.errs) == 0 {
		err := fmt.Errorf("%s: no object of a kind that makes pods", name)
		if len(kinds) > 0 {
			slices.Sort(kinds)
			err = fmt.Errorf("%w, but %s", err, place.Names(slices.Compact(kinds)))
		}
		p.field("apply", err)
	}
	return steps
}

// pods returns a step for each pod of an object. The parser is at the object then.
func (p *objectReader) pods(d strictyaml.Document) (steps []stepFile) {
	kind, version := d.Text("kind"), d.Text("apiVersion")
	known, ok := workloadKinds[kind]
	group, _, _ := strings.Cut(version, "/")
	p.file, p.line, p.where, p.lines = d.File, d.Line, "", strictyaml.Lines{}
	switch {
	case kind == "" || version == "":
		p.field("", errors.New("no object of Kubernetes: it has no apiVersion and kind"))
		return nil
	case ok && version != known.version && slices.Contains([]string{"v1", "apps", "batch", "extensions"}, group):
		p.field("", fmt.Errorf("%s of %s: Kubernetes serves it as %s", kind, version, known.version))
		return nil
	}
	var o objectFile
	var err error
	p.lines, err = d.Decode(&o)
	if !ok || version != known.version {
		// Kinds of other projects mostly have their pod where those of Kubernetes have it.
		if known.pod = "spec.template."; err != nil || len(o.Spec.Template.Spec.Containers) == 0 {
			p.others = append(p.others, kind)
			return nil
		}
	}
	if err != nil {
		p.errs = append(p.errs, err)
		return nil
	}
	pod, replicas, numbered := podFile{Metadata: o.Metadata, Spec: o.Spec.podSpecFile}, 1, kind != "Pod" && kind != "DaemonSet"
	switch job := &o.Spec.JobTemplate.Spec; kind {
	case "Pod":
	case "CronJob":
		pod, replicas = job.Template, min(orOne(job.Parallelism), orOne(cmp.Or(job.Completions, job.Parallelism)))
	case "Job":
		pod, replicas = o.Spec.Template, min(orOne(o.Spec.Parallelism), orOne(cmp.Or(o.Spec.Completions, o.Spec.Parallelism)))
	default:
		pod = o.Spec.Template
		if numbered {
			replicas = orOne(o.Spec.Replicas)
		}
	}
	if replicas < 0 || replicas > maxReplicas {
		p.field("spec", fmt.Errorf("%d pods are not 0 to %d", replicas, maxReplicas))
		return nil
	}
	pod.Metadata.Name = cmp.Or(o.Metadata.Name, strings.TrimSuffix(o.Metadata.GenerateName, "-"))
	pod.Metadata.Namespace = cmp.Or(o.Metadata.Namespace, "default")
	p.where = known.pod
	step := p.pod(&pod)
	for i := range replicas {
		s := step
		s.Containers = slices.Clone(step.Containers)
		if numbered {
			s.PlacePod += "-" + strconv.Itoa(o.Spec.Ordinals.Start+i)
		}
		p.where = ""
		if line, twice := p.seen[s.PlacePod]; twice {
			p.field("metadata.name", fmt.Errorf("a second pod %s; the first is in line %d", s.PlacePod, line))
		}
		p.seen[s.PlacePod] = d.Line
		steps = append(steps, s)
	}
	return steps
}

// maxReplicas is more pods than a node runs.
const maxReplicas = 10_000

func orOne(n *int) int { return value(cmp.Or(n, new(1))) }

// pod reads a pod as a step; the parser is at the pod.
func (p *objectReader) pod(pod *podFile) stepFile {
	meta, at := &pod.Metadata, p.where
	step := stepFile{PlacePod: podID(meta)}
	if p.at("metadata.name", checkID(step.PlacePod)); meta.Name == "" {
		p.at("metadata.name", errors.New("a pod needs one"))
	}
	if len(pod.Spec.Containers) == 0 {
		p.at("spec.containers", errors.New("there are none"))
	}
	shares := false // containers of a pod with resources that the node does not manage
	if r := pod.Spec.Resources; r != nil {
		p.where = at + "spec.resources."
		p.resources(r)
		if shares = !p.podResources; p.podResources {
			step.CPUs, step.Limit = p.cpu(r.Requests), p.cpu(r.Limits)
		}
	}
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for i := range all {
		c, role := &all[i], place.App
		p.where = at + fmt.Sprintf("spec.containers[%d].", i-len(pod.Spec.InitContainers))
		if i < len(pod.Spec.InitContainers) {
			p.where, role = at+fmt.Sprintf("spec.initContainers[%d].", i), place.Init
			if c.RestartPolicy == "Always" {
				role = place.Sidecar
			}
		}
		where := p.where
		p.where += "resources."
		p.resources(&c.Resources)
		w := workloadFile{Namespace: meta.Namespace, Labels: meta.Labels, Role: &role, CPUs: p.cpu(c.Resources.Requests), Limit: p.cpu(c.Resources.Limits)}
		p.amounts(&w, c.Resources.Requests)
		p.where = where
		step.Containers = append(step.Containers, containerFile{Name: c.Name, workloadFile: w})
	}
	class := qosClass(&pod.Spec, all)
	for i := range step.Containers {
		w := &step.Containers[i].workloadFile
		w.Class = &class
		// Only pods that are Guaranteed as a whole get exclusive CPUs, and memory of a node.
		if equal := value(w.CPUs) == value(w.Limit); shares || class == place.LS && equal && value(w.CPUs) > 0 {
			w.Mode = new(place.Shared)
		}
		p.where = at + "metadata."
		p.annotations(meta, step.Containers[i].Name, w)
	}
	return step
}

// podID names a pod: behind its namespace, where that is not default.
func podID(meta *metaFile) string {
	if meta.Namespace == "default" {
		return meta.Name
	}
	return meta.Namespace + "/" + meta.Name
}

// at notes an error of a field below where the parser is.
func (p *objectReader) at(name string, err error) {
	if err != nil {
		name = p.where + name
		p.errs = append(p.errs, &strictyaml.Error{File: p.file, Line: cmp.Or(p.lines.At(name), p.line), Field: name, Err: err})
	}
}

// resources applies the rules of the API server: what has a limit and no request
// asks for the limit.
func (p *objectReader) resources(r *resourcesFile) {
	if r.Requests == nil {
		r.Requests = map[string]place.Quantity{}
	}
	for name, limit := range r.Limits {
		if _, asked := r.Requests[name]; !asked {
			r.Requests[name] = limit
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		asked := r.Requests[name]
		limit, limited := r.Limits[name]
		at := "requests." + name
		if _, own := p.lines[p.where+at]; !own {
			at = "limits." + name
		}
		huge, extended := strings.HasPrefix(name, hugePages), isDevice(name)
		switch _, fits := asked.Milli(); {
		case !huge && !strings.Contains(name, "/") && !slices.Contains([]string{cpu, place.Memory, ephemeral}, name):
			p.at(at, fmt.Errorf("no resource of Kubernetes%s", strictyaml.Nearest(name, []string{cpu, place.Memory, ephemeral, "hugepages-2Mi", "DOMAIN/NAME"})))
		case name == cpu && !fits:
			p.at(at, errors.New("more CPU time than any machine has"))
		case limited && asked.Compare(limit) > 0:
			p.at(at, errors.New("asks for more than its limit"))
		case (huge || extended) && asked != limit:
			p.at(at, errors.New("its limit has to be the same"))
		case extended && asked.Compare(whole(asked)) != 0:
			p.at(at, errors.New("is no whole number"))
		}
	}
}

// The resources of Kubernetes that are no memory of a name of their own.
const (
	cpu       = "cpu"
	ephemeral = "ephemeral-storage"
	hugePages = "hugepages-"
	// Koordinator's kubernetes.io/batch-cpu and others: what is left of CPU time and memory.
	kubernetes = "kubernetes.io/"
)

// isDevice reports whether a resource is what device plugins tell.
func isDevice(resource string) bool {
	return strings.Contains(resource, "/") && !strings.HasPrefix(resource, kubernetes)
}

func whole(q place.Quantity) (w place.Quantity) {
	_ = w.UnmarshalText([]byte(strconv.FormatInt(q.Value(), 10)))
	return w
}

func (p *objectReader) cpu(of map[string]place.Quantity) *place.Milli {
	q, ok := of[cpu]
	if !ok {
		return nil
	}
	milli, _ := q.Milli()
	return new(place.Milli(milli))
}

// amounts reads what is no CPU time.
func (p *objectReader) amounts(w *workloadFile, of map[string]place.Quantity) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		switch n := of[name].Value(); {
		case n == 0 || name == cpu || name == ephemeral:
		case name == place.Memory:
			w.Memory = new(place.Bytes(n))
		case strings.HasPrefix(name, hugePages):
			if w.Resources == nil {
				w.Resources = map[string]place.Bytes{}
			}
			w.Resources[name] = place.Bytes(n)
		case isDevice(name):
			w.Devices = append(w.Devices, place.DeviceRequest{Kind: name, Count: int(min(n, maxReplicas))})
		}
	}
}

// qosClass returns the class that stands for the QoS class of a pod, by the rules of
// Kubernetes: CPU time and memory of its own or of all its containers.
func qosClass(spec *podSpecFile, all []podContainer) place.Class {
	parts := make([]*resourcesFile, 0, len(all))
	for i := range all {
		parts = append(parts, &all[i].Resources)
	}
	if spec.Resources != nil && len(spec.Resources.Requests) > 0 {
		parts = []*resourcesFile{spec.Resources}
	}
	some, guaranteed := false, true
	for _, r := range parts {
		for _, name := range []string{cpu, place.Memory} {
			some = some || !r.Requests[name].IsZero() || !r.Limits[name].IsZero()
			guaranteed = guaranteed && !r.Limits[name].IsZero() && r.Requests[name] == r.Limits[name]
		}
	}
	switch {
	case !some:
		return place.BE
	case guaranteed:
		return place.LSR
	}
	return place.LS
}

// notes says what of the objects is no part of the replay.
func (p *objectReader) notes() (notes []string) {
	for _, n := range []struct {
		what  string
		names []string
	}{{"no workloads, and left out", p.others}, {"annotations that are not read", p.unread}} {
		if slices.Sort(n.names); len(n.names) > 0 {
			notes = append(notes, n.what+": "+plain.Line(strings.Join(slices.Compact(n.names), ", ")))
		}
	}
	return notes
}
