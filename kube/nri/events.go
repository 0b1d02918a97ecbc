package nri

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
)

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

// identity names a container and its pod.
type identity struct{ namespace, pod, uid, sandbox, container string }

func identityOf(pod *api.PodSandbox, c *api.Container) identity {
	return identity{pod.GetNamespace(), pod.GetName(), pod.GetUid(), pod.GetId(), c.GetName()}
}

// identityOfID is the container that a workload is of, by the workload's name (workloadID). The last part of a
// name that was cut may be the beginning of a name only: it is left out.
func identityOfID(id string) identity {
	name, _, more := strings.Cut(id, "~")
	parts := strings.Split(name, "/")
	cut := more && len(name) == cutID
	if cut {
		parts[len(parts)-1] = ""
	}
	switch {
	case len(parts) == 3:
		return identity{namespace: parts[0], pod: parts[1], container: parts[2]}
	case len(parts) == 2 && cut:
		return identity{namespace: parts[0]}
	}
	return identity{container: id} // one of berth run
}

// emitFor reports what happened to a workload: with the container that has it or, while none has, the one that
// its name says.
func (p *Plugin) emitFor(id, kind, text string) {
	p.mu.Lock()
	n := p.ids[p.names[id]]
	p.mu.Unlock()
	w := n.of
	if n.id != id {
		w = identityOfID(id)
	}
	if w.container == "" {
		text = id + ": " + text
	}
	p.emit(w.event(kind, text))
}

// identityOfFile is the container in whose group a file is, or the pod in whose group it is.
func (p *Plugin) identityOfFile(file string) (w identity) {
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

// emitNode reports an event of the node, about the container or pod that it concerns.
func (p *Plugin) emitNode(e agent.Event) {
	file, text := "/"+strings.TrimPrefix(e.Object, "/"), e.Text
	if e.Object != "" {
		text = file + ": " + text
	}
	if e.ID != "" {
		p.emitFor(e.ID, string(e.Kind), text)
		return
	}
	p.emit(p.identityOfFile(file).event(string(e.Kind), text))
}

// emitFailed reports an error: each failed write in a pod's group as an event of that pod, and the whole error,
// which may name groups of several pods, as one of the node. An error that is one write is reported once.
func (p *Plugin) emitFailed(err error) {
	for _, step := range steps(err) {
		w := p.identityOfFile("/" + step.Step.Path)
		if w == (identity{}) {
			continue
		}
		p.emit(w.event(string(agent.Failed), step.Error()))
		if error(step) == err {
			return
		}
	}
	p.emit(identity{}.event(string(agent.Failed), err.Error()))
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

func (w identity) event(kind, text string) Event {
	return Event{Kind: kind, Namespace: w.namespace, Pod: w.pod, UID: w.uid, Container: w.container, Text: text}
}

func about(kind string, pod *api.PodSandbox, c *api.Container, format string, args ...any) Event {
	return identityOf(pod, c).event(kind, fmt.Sprintf(format, args...))
}

// The kinds of events, besides those of agent.Event.
const (
	Word      = "word"      // of a pod that was not followed
	Rejected  = "rejected"  // a container that is not to run
	Fallback  = "fallback"  // the shared pool instead of what was asked for
	Late      = "late"      // the shared pool, as the decision took too long
	Recovered = "recovered" // what was asked for, after Fallback, Late or Abandoned
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
