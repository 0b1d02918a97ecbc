package nri

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

// Pods knows more of pods than the runtime tells: what the API server has of this node's.
// Its methods never wait, for a handler calls them, and may be called concurrently.
type Pods interface {
	// Pod returns what is known of a pod by its UID; ok is false if nothing is, or not yet.
	// The caller does not change it.
	Pod(uid string) (pod *PodInfo, ok bool)
}

// PodInfo is what the API server knows of a pod.
type PodInfo struct {
	// Resources are the pod's own, of pod-level resources (KEP-2837); zero means none. QoS is
	// the pod's class always.
	podwords.Resources
	// PriorityClass names the pod's priority class, Priority is its value.
	PriorityClass string
	Priority      int32
	// Containers are all of the pod, in the order of their start: first the init containers,
	// restartable ones among them.
	Containers []ContainerInfo
}

// ContainerInfo is what the API server knows of a container.
type ContainerInfo struct {
	Name string
	Role place.Role
	// Resources are its requests and limits, without rounding.
	podwords.Resources
}

// Container returns a container of a pod by its name; nil if it has none, or nothing is
// known of the pod.
func (p *PodInfo) Container(name string) *ContainerInfo {
	if p == nil {
		return nil
	}
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// tells reports whether a container with such shares has what the API server tells. Of one that asks
// for no CPUs these are its pod's limit, if there is one: the kubelet has it request what limits it.
func (p *PodInfo) tells(c *ContainerInfo, shares uint64) bool {
	shares = max(minShares, shares)
	limit := c.Milli == 0 && c.LimitMilli == 0 && p.LimitMilli > 0
	return shares == sharesOf(c.Milli) || limit && shares == sharesOf(p.LimitMilli)
}

// within is what a container may have of its pod's own resources, of which all containers have no
// more together: its own, or where it asks for none, its part of what the others leave. own is
// false if that is time to share: in such a pod only a container has CPUs of its own whose request
// is its limit, as to the kubelet, or that leaves nobody else a part.
func (p *PodInfo) within(c *ContainerInfo, res podwords.Resources) (_ podwords.Resources, own bool) {
	milli, divided := p.part(c, int64(res.Milli), int64(p.Milli), func(c *ContainerInfo) int64 { return int64(c.Milli) })
	own = p.Milli == 0 || res.Milli == 0 && !divided || res.Milli > 0 && res.Milli == res.LimitMilli
	res.Milli = int(milli)
	res.Memory, _ = p.part(c, res.Memory, p.Memory, func(c *ContainerInfo) int64 { return c.Memory })
	if p.LimitMilli > 0 && (res.LimitMilli == 0 || res.LimitMilli > p.LimitMilli) {
		res.LimitMilli = p.LimitMilli
	}
	return res, own
}

// part is how much of what the pod has a container may have that asks for so much. Without asking,
// those that run at a time have equal parts of what the others leave; an init container has all
// that sidecars leave. divided says that others have a part, too, at that time or later.
func (p *PodInfo) part(c *ContainerInfo, asks, has int64, of func(*ContainerInfo) int64) (part int64, divided bool) {
	switch {
	case has == 0:
		return asks, false
	case asks > 0:
		return min(asks, has), false
	}
	left, parts := has, int64(1)
	for i := range p.Containers {
		switch other := &p.Containers[i]; {
		case other.Name == c.Name:
		case c.Role == place.Init && other.Role == place.Sidecar:
			n, _ := p.part(other, of(other), has, of)
			left -= n
		case c.Role == place.Init || other.Role == place.Init: // not at the same time
		case of(other) > 0:
			left -= of(other)
		default:
			parts++
		}
	}
	return max(left, 0) / parts, parts > 1 || c.Role == place.Init
}

// Event is something that happened to a container, or to all.
type Event struct {
	// Kind is one word.
	Kind string
	// Namespace, Pod, UID and Container name whom it is about, if anybody: the UID is the
	// pod's.
	Namespace, Pod, UID, Container string
	// Text says what happened.
	Text string
}

// whose names a container and its pod.
type whose struct{ namespace, pod, uid, sandbox, container string }

func whoseOf(pod *api.PodSandbox, c *api.Container) whose {
	return whose{pod.GetNamespace(), pod.GetName(), pod.GetUid(), pod.GetId(), c.GetName()}
}

// whoseID is whose a workload is by its name (workloadID). Of one that was cut, the last part may be
// but the beginning of a name: it says nothing.
func whoseID(id string) whose {
	name, _, more := strings.Cut(id, "~")
	parts := strings.Split(name, "/")
	cut := more && len(name) == cutID
	if cut {
		parts[len(parts)-1] = ""
	}
	switch {
	case len(parts) == 3:
		return whose{namespace: parts[0], pod: parts[1], container: parts[2]}
	case len(parts) == 2 && cut:
		return whose{namespace: parts[0]}
	}
	return whose{container: id} // one of berth run
}

// tellOf tells what happened to a workload: the container that has it or, while none does, whose its
// name says it is.
func (p *Plugin) tellOf(id, kind, text string) {
	p.mu.Lock()
	n := p.ids[p.names[id]]
	p.mu.Unlock()
	w := n.of
	if n.id != id {
		w = whoseID(id)
	}
	if w.container == "" {
		text = id + ": " + text
	}
	p.tell(w.event(kind, text))
}

// whoseFile is the container whose group a file is in or, of a group around it, its pod.
func (p *Plugin) whoseFile(file string) (w whose) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.ids {
		switch {
		case strings.Contains(file, "/"+n.group+"/"):
			return n.of
		case strings.Contains(file, "/"+path.Dir(n.group)+"/"):
			w = n.of
			w.container = ""
		}
	}
	return w
}

// tellNode tells what happened to the node: first whose it is, then the file.
func (p *Plugin) tellNode(e agent.Event) {
	file, text := "/"+strings.TrimPrefix(e.Object, "/"), e.Text
	if e.Object != "" {
		text = file + ": " + text
	}
	if e.ID != "" {
		p.tellOf(e.ID, string(e.Kind), text)
		return
	}
	p.tell(p.whoseFile(file).event(string(e.Kind), text))
}

// tellFailed tells what failed: a pod of its own writes alone, and the node of all of it, which may
// name groups of several pods, unless that is one pod's write.
func (p *Plugin) tellFailed(err error) {
	for _, step := range steps(err) {
		w := p.whoseFile("/" + step.Step.Path)
		if w == (whose{}) {
			continue
		}
		p.tell(w.event(string(agent.Failed), step.Error()))
		if error(step) == err {
			return
		}
	}
	p.tell(whose{}.event(string(agent.Failed), err.Error()))
}

// steps are the writes that failed, of all that an error joins.
func steps(err error) (all []*kernel.StepError) {
	switch e := err.(type) {
	case *kernel.StepError:
		return []*kernel.StepError{e}
	case interface{ Unwrap() error }:
		return steps(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, steps(one)...)
		}
	}
	return all
}

func (w whose) event(kind, text string) Event {
	return Event{Kind: kind, Namespace: w.namespace, Pod: w.pod, UID: w.uid, Container: w.container, Text: text}
}

func about(kind string, pod *api.PodSandbox, c *api.Container, format string, args ...any) Event {
	return whoseOf(pod, c).event(kind, fmt.Sprintf(format, args...))
}

// The kinds of events, besides those of agent.Event.
const (
	Word      = "word"      // of a pod that was not followed
	Rejected  = "rejected"  // a container that is not to run
	Fallback  = "fallback"  // the shared pool instead of what was asked for
	Late      = "late"      // the shared pool, as the decision took too long
	Recovered = "recovered" // from one of both: it has what it asks for now
	Drifted   = "drifted"   // the kernel has other CPUs than it should
	Abandoned = "abandoned" // created and not started: its CPUs are the others' again
	Connected = "connected" // to the runtime, or Lost
	Lost      = "lost"
)

// Kinds are those kinds of events.
func Kinds() []string {
	return []string{Word, Rejected, Fallback, Late, Recovered, Drifted, Abandoned, Connected, Lost}
}

// Reason is the word for an event of the API server, in camel case; "" is for a kind that
// is not about a pod.
func (e *Event) Reason() string {
	if e.UID == "" {
		return ""
	}
	switch e.Kind {
	case Word:
		return "WordNotFollowed"
	case Rejected:
		return "NotPlaced"
	case Fallback:
		return "SharedPool"
	case Late:
		return "PlacedLate"
	case Recovered:
		return "Placed"
	case Drifted:
		return "CPUsChanged"
	case Abandoned:
		return "NotStarted"
	}
	return ""
}

// Warning reports whether an event is one that a person should look at.
func (e *Event) Warning() bool {
	switch e.Kind {
	case Word, Rejected, Fallback, Late, Drifted, Abandoned, Lost, "refused", "failed":
		return true
	}
	return false
}
