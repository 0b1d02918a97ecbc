// Package publish keeps what a node tells current: its topology and features at the API
// server and in NFD's directory, and what batch work may use in the node's status. It
// reads from those who know, and decides nothing.
package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/doctor"
	"berth.dev/berth/kube/api"
	"berth.dev/berth/kube/features"
	"berth.dev/berth/kube/zones"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Options say what is told. The zero value is nothing.
type Options struct {
	// Client and Pods are the API server; nil means none.
	Client *api.Client
	Pods   *api.Pods
	// State is who holds what; with it and a Client the topology is told. TopologyPolicy and
	// TopologyScope are in it as those of zones.Node.
	State                         func(context.Context) (*place.State, error)
	TopologyPolicy, TopologyScope string
	// Machine and Look are the hardware and what the host can do; Policy is how CPUs are
	// chosen. Dir is NFD's directory and Namespace that of the NodeFeature; "" is neither.
	Machine        *machine.Machine
	Look           func() *doctor.Report
	Policy         string
	Dir, Namespace string
	// Batch is nil for none.
	Batch *Batch
	// Ownable are the CPUs that containers may own. It is told where Koordinator reserves some of them
	// on the node; empty is not to look.
	Ownable cpuset.Set
	// Tell is told of an error when it comes first, and with nil when it is over. What is one
	// of "topology", "features", "batch", Reserving. Nil is nobody.
	Tell func(what string, err error)

	settle time.Duration // 0 is 100 ms
	retry  time.Duration // 0 is 1 s
}

// Agent tells.
type Agent struct {
	opt  Options
	kick chan struct{}
}

// New makes an agent.
func New(opt Options) *Agent {
	if opt.Tell == nil {
		opt.Tell = func(string, error) {}
	}
	opt.settle, opt.retry = cmp.Or(opt.settle, 100*time.Millisecond), cmp.Or(opt.retry, time.Second)
	return &Agent{opt: opt, kick: make(chan struct{}, 1)}
}

// Changed has the topology told anew. It never waits.
func (a *Agent) Changed() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// Run tells until ctx ends. What was told stays.
func (a *Agent) Run(ctx context.Context) {
	var loops []func(context.Context)
	if a.opt.Client != nil && a.opt.State != nil {
		loops = append(loops, a.topology)
	}
	if a.opt.Look != nil && (a.opt.Dir != "" || a.opt.Client != nil && a.opt.Namespace != "") {
		loops = append(loops, a.features)
	}
	if a.batches() {
		loops = append(loops, a.batch)
	}
	if a.opt.Client != nil && !a.opt.Ownable.IsEmpty() {
		loops = append(loops, a.reservation)
	}
	done := make(chan struct{})
	for _, loop := range loops {
		go func() { loop(ctx); done <- struct{}{} }()
	}
	for range loops {
		<-done
	}
}

// Reserving is what is told of Koordinator's reservation of CPUs.
const Reserving = "reservation"

// batches reports whether batch resources are told.
func (a *Agent) batches() bool {
	return a.opt.Batch != nil && a.opt.Client != nil && a.opt.Pods != nil
}

// trouble tells of errors once.
type trouble struct {
	what string
	tell func(string, error)
	last string
}

func (t *trouble) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != t.last {
		t.tell(t.what, err)
	}
	t.last = text
}

const longestRetry = time.Minute

// topology tells what is held shortly after it changed: changes of a moment together.
func (a *Agent) topology(ctx context.Context) {
	doc, told := a.opt.Client.Topology(), trouble{what: "topology", tell: a.opt.Tell}
	var pods <-chan struct{}
	if a.opt.Pods != nil {
		pods = a.opt.Pods.Changed()
	}
	owner := owner{client: a.opt.Client}
	retry := a.opt.retry
	again := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.kick:
		case <-pods:
		case <-again:
		}
		if !sleep(ctx, a.opt.settle) {
			return
		}
		drain(a.kick)
		err := a.tellTopology(ctx, doc, &owner)
		if ctx.Err() != nil {
			return
		}
		told.note(err)
		if err == nil {
			again, retry = time.After(rewrite), a.opt.retry
			continue
		}
		if !sleep(ctx, retry) { // changes meanwhile do not hurry it
			return
		}
		again, retry = time.After(0), min(2*retry, longestRetry)
	}
}

// rewrite is how often what did not change is looked at all the same.
const rewrite = time.Minute

func (a *Agent) tellTopology(ctx context.Context, doc *api.Document, o *owner) error {
	n := zones.Node{Name: a.opt.Client.Node(), UID: o.uid(ctx), Policy: a.opt.TopologyPolicy, Scope: a.opt.TopologyScope}
	if a.opt.Pods != nil {
		n.Pods, n.Known = a.counted()
	}
	s, err := a.opt.State(ctx) // after the pods, so that it has what they hold
	if err == nil {
		_, err = doc.Write(ctx, zones.Of(&n, s))
	}
	return err
}

// counted are the pods that have not ended. ok is whether these are all, and a state that is read from now on has
// what they hold: all containers of each have started, and were placed before. A scheduler counts a pod from then
// on, and gives up what it reserved for pods when those that it counts are those of the fingerprint.
func (a *Agent) counted() (pods []zones.Pod, ok bool) {
	all, ok := a.opt.Pods.All()
	for _, p := range all {
		pods, ok = append(pods, zones.Pod{Namespace: p.Namespace, Name: p.Name}), ok && p.Started
	}
	return pods, ok
}

// owner is the node's UID, as soon as it can be read: without it, objects have no owner.
type owner struct {
	client *api.Client
	known  string
	asked  time.Time
}

func (o *owner) uid(ctx context.Context) string {
	if o.known == "" && time.Since(o.asked) > rewrite {
		o.asked = time.Now()
		if n, err := o.client.GetNode(ctx); err == nil {
			o.known = string(n.UID)
		}
	}
	return o.known
}

// Features are told again long before they expire.
const (
	lookEvery = 20 * time.Minute
	expireIn  = time.Hour
)

func (a *Agent) features(ctx context.Context) {
	told := trouble{what: "features", tell: a.opt.Tell}
	var doc *api.Document
	owner := owner{client: a.opt.Client}
	if a.opt.Client != nil && a.opt.Namespace != "" {
		doc = a.opt.Client.Features(a.opt.Namespace)
	}
	for wait := time.Duration(0); sleep(ctx, wait); {
		f := features.Of(a.opt.Machine, a.opt.Look(), a.opt.Policy)
		var err error
		if a.opt.Dir != "" {
			err = features.Write(a.opt.Dir, f, time.Now().Add(expireIn))
		}
		if doc != nil && err == nil {
			node := a.opt.Client.Node()
			_, err = doc.Write(ctx, f.Object(a.opt.Namespace, api.FeaturesName(node), node, owner.uid(ctx), a.opt.Machine))
		}
		if ctx.Err() != nil {
			return
		}
		told.note(err)
		switch {
		case err == nil:
			wait = lookEvery
		case wait == 0 || wait >= lookEvery:
			wait = a.opt.retry
		default:
			wait = min(2*wait, longestRetry)
		}
	}
}

// reservation tells where the node's annotation reserves what containers may own. What batch tells it does
// not tell: that it may not read the node, or cannot read the annotation. A server that does not answer is
// for others to tell.
func (a *Agent) reservation(ctx context.Context) {
	told := trouble{what: Reserving, tell: a.opt.Tell}
	for wait := time.Duration(0); sleep(ctx, wait); {
		node, err := a.opt.Client.GetNode(ctx)
		switch {
		case err == nil:
			err = unreserved(node, a.opt.Ownable)
			if _, unread := errors.AsType[*unreadError](err); !unread || !a.batches() {
				told.note(err)
			}
			wait = lookEvery
		case apierrors.IsForbidden(err):
			if !a.batches() {
				told.note(fmt.Errorf("whether CPUs are reserved that containers may own is not known: let the agent get its node: %w", err))
			}
			wait = lookEvery
		case wait == 0 || wait >= lookEvery:
			wait = a.opt.retry
		default:
			wait = min(2*wait, longestRetry)
		}
	}
}

// sleep reports whether ctx goes on after d.
func sleep(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func drain(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}
