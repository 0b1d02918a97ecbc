package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"

	"berth.dev/berth/internal/plain"
)

// About names the pod, and maybe the container, that an event is about. UID is that on
// the node; "" is looked up among the node's pods.
type About struct{ Namespace, Pod, UID, Container string }

// Note is something to tell about a pod.
type Note struct {
	About
	// Other is another pod that has to do with it, if any.
	Other About
	// Reason is one word in CamelCase, the same for all notes of a kind.
	Reason string
	// Warning is whether somebody should look.
	Warning bool
	// Text is cut after MaxText bytes, and nothing in it acts on a terminal.
	Text string
	// At is when it happened; zero is now.
	At time.Time
}

const (
	// MaxText is how long the text of an event may be, in bytes; the API server takes 1024.
	MaxText = 1000
	// QueueLength is how many notes wait for the API server. Then new ones are dropped.
	QueueLength = 256
)

// Counts are what became of notes. Held back are those that the same reason on the same pod
// had too often.
type Counts struct{ Sent, HeldBack, Dropped, Refused uint64 }

// ByOutcome are the counts by the word for what became of the notes.
func (c Counts) ByOutcome() map[string]uint64 {
	return map[string]uint64{"sent": c.Sent, "held_back": c.HeldBack, "dropped": c.Dropped, "refused": c.Refused}
}

// Events writes notes as events (core/v1, what kubectl describe shows). Equal ones are
// counted in one event; of a pod, more than ten of a reason within ten minutes become one
// with a common text, and after 25 there is one in five minutes.
type Events struct {
	client *Client
	pods   *Pods
	told   func(error)
	queue  chan Note
	wait   time.Duration // before the second try
	denied bool          // the last event was forbidden; of Run only

	sent, held, dropped, refused atomic.Uint64
	once                         sync.Once
}

// NewEvents makes the writer. told is called with the first event that the server refuses,
// for which there is no second try; it may be nil.
func (c *Client) NewEvents(pods *Pods, told func(error)) *Events {
	if told == nil {
		told = func(error) {}
	}
	return &Events{client: c, pods: pods, told: told, queue: make(chan Note, QueueLength), wait: time.Second}
}

// Tell notes something. It never waits: where the queue is full, the note is dropped.
func (e *Events) Tell(n Note) {
	if n.At.IsZero() {
		n.At = time.Now()
	}
	n.Text = cut(n.Text)
	select {
	case e.queue <- n:
	default:
		e.dropped.Add(1)
	}
}

// cut makes a text harmless, and short enough.
func cut(text string) string {
	if len(text) > 4*MaxText {
		text = text[:4*MaxText]
	}
	text = plain.Line(text)
	if len(text) <= MaxText {
		return text
	}
	end := MaxText - len("…")
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// Finding is what the guard tells: a victim, who disturbs it, and what is done about it.
type Finding struct {
	Victim, Antagonist About
	// Resource is what both want: "cpu", "l3".
	Resource string
	// Evidence is the figures, with units.
	Evidence string
	// Action is what was done to the antagonist; "" is nothing, Undone that it was taken back.
	Action string
	Undone bool
}

// TellFinding tells of a finding on both pods. Either may be nobody of Kubernetes.
func (e *Events) TellFinding(f *Finding) {
	victim, antagonist := Note{About: f.Victim, Other: f.Antagonist}, Note{About: f.Antagonist, Other: f.Victim}
	switch {
	case f.Undone:
		victim.Reason, victim.Text = "NeighbourReleased", fmt.Sprintf("%s: %s is no longer slowed (%s)", f.Resource, name(f.Antagonist), f.Action)
		antagonist.Reason, antagonist.Text = "Released", fmt.Sprintf("%s: no longer slowed for %s (%s)", f.Resource, name(f.Victim), f.Action)
	case f.Action != "":
		victim.Reason, victim.Text = "NeighbourSlowed", fmt.Sprintf("%s: %s is slowed (%s): %s", f.Resource, name(f.Antagonist), f.Action, f.Evidence)
		antagonist.Reason, antagonist.Text, antagonist.Warning = "Slowed", fmt.Sprintf("%s: slowed for %s (%s): %s", f.Resource, name(f.Victim), f.Action, f.Evidence), true
	default:
		victim.Reason, victim.Text, victim.Warning = "Disturbed", fmt.Sprintf("%s: disturbed by %s: %s", f.Resource, name(f.Antagonist), f.Evidence), true
		antagonist.Reason, antagonist.Text = "Disturbs", fmt.Sprintf("%s: disturbs %s: %s", f.Resource, name(f.Victim), f.Evidence)
	}
	for _, n := range []Note{victim, antagonist} {
		if n.Pod != "" {
			e.Tell(n)
		}
	}
}

func name(a About) string {
	switch {
	case a.Pod == "":
		return "something outside of pods"
	case a.Container == "":
		return a.Namespace + "/" + a.Pod
	}
	return a.Namespace + "/" + a.Pod + "/" + a.Container
}

// Counts returns what became of all notes so far.
func (e *Events) Counts() Counts {
	return Counts{e.sent.Load(), e.held.Load(), e.dropped.Load(), e.refused.Load()}
}

// Run writes until ctx ends.
func (e *Events) Run(ctx context.Context) {
	correlator := record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{LRUCacheSize: 512})
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-e.queue:
			result, err := correlator.EventCorrelate(e.event(&n))
			if err == nil && result.Skip {
				e.held.Add(1)
				continue
			}
			var written *corev1.Event
			if err == nil {
				written, err = e.write(ctx, result)
			}
			switch {
			case err == nil:
				e.sent.Add(1)
				correlator.UpdateState(written)
			case ctx.Err() == nil:
				e.refused.Add(1)
				e.once.Do(func() { e.told(err) })
			}
		}
	}
}

// event is a note as an object.
func (e *Events) event(n *Note) *corev1.Event {
	e.find(&n.About)
	e.find(&n.Other)
	at := metav1.NewTime(n.At)
	ev := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: util.GenerateEventName(n.Pod, n.At.UnixNano()), Namespace: n.Namespace},
		InvolvedObject: n.reference(),
		Reason:         n.Reason, Message: n.Text, Type: corev1.EventTypeNormal, Count: 1,
		FirstTimestamp: at, LastTimestamp: at,
		Source:              corev1.EventSource{Component: Manager, Host: e.client.node},
		ReportingController: "berth.dev/node", ReportingInstance: e.client.node, Action: n.Reason,
	}
	if n.Warning {
		ev.Type = corev1.EventTypeWarning
	}
	if n.Other.Pod != "" {
		other := n.Other.reference()
		ev.Related = &other
	}
	return ev
}

func (e *Events) find(a *About) {
	if a.Pod != "" && e.pods != nil {
		a.UID = e.pods.UID(a.Namespace, a.Pod, a.UID)
	}
}

func (a *About) reference() corev1.ObjectReference {
	r := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: a.Namespace, Name: a.Pod, UID: types.UID(a.UID)}
	if a.Container != "" {
		r.FieldPath = "spec.containers{" + a.Container + "}"
	}
	return r
}

// write writes one event, and tries again as long as the server is away or busy. One that
// starts forbids what it will allow once it knows its roles: that is tried a few times,
// unless the last event was forbidden, too.
func (e *Events) write(ctx context.Context, r *record.EventCorrelateResult) (*corev1.Event, error) {
	wait := e.wait
	for tries := 1; ; tries++ {
		written, err := e.try(ctx, r)
		denied := (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
		again := denied && !e.denied && tries < 6
		if err == nil || final(err) && !again {
			e.denied = denied
			return written, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, 30*time.Second)
	}
}

func (e *Events) try(ctx context.Context, r *record.EventCorrelateResult) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, e.client.timeout)
	defer cancel()
	into := &corev1.Event{}
	ev, rest := r.Event, e.client.rest
	if ev.Count > 1 && len(r.Patch) > 0 {
		err := rest.Patch(types.StrategicMergePatchType).Namespace(ev.Namespace).Resource("events").Name(ev.Name).Body(r.Patch).Do(ctx).Into(into)
		if !apierrors.IsNotFound(err) {
			return into, err
		}
	}
	fresh := ev.DeepCopy()
	fresh.ResourceVersion = ""
	err := rest.Post().Namespace(ev.Namespace).Resource("events").Body(fresh).Do(ctx).Into(into)
	if apierrors.IsAlreadyExists(err) {
		return ev, nil
	}
	return into, err
}

// final reports whether another try cannot help.
func final(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !apierrors.IsTooManyRequests(err) && !apierrors.IsServerTimeout(err) &&
		!apierrors.IsInternalError(err) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err)
}
