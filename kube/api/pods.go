package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"berth.dev/berth/kube/nri"
	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

// MaxPods is how many pods of the node are kept; a kubelet has 110 unless it is told
// otherwise. Of others nothing is known, as without an API server.
const MaxPods = 2000

// Pod is what is kept of a pod.
type Pod struct {
	Namespace, Name, UID string
	// NodeUID is the UID that the runtime and the kubelet's groups know: that of the file
	// where the pod is static.
	NodeUID string
	// KoordQoS and KoordPriority are Koordinator's labels qosClass and priority-class.
	KoordQoS, KoordPriority string
	// Overhead is the runtime class's.
	Overhead podwords.Resources
	// Started ones have had all of their containers started (phase Running). Ending ones are being
	// deleted.
	Started, Ending bool
	nri.PodInfo
}

// Pods are the pods of this node that have not ended, as the API server last said. They are a
// cache.ReflectorStore of no more than what is asked of it: no informer keeps the objects besides.
type Pods struct {
	client *Client
	told   func(error)

	mu     sync.Mutex
	byUID  map[string]*Pod
	byName map[string]string   // UIDs
	static map[string][]string // UIDs of those that say to have a NodeUID
	synced bool
	over   bool // since the last list a pod found no room

	changed chan struct{}
}

// NewPods makes the watch. told is called with nil when the server answers, and with an
// error when it does not any more; it may be nil.
func (c *Client) NewPods(told func(error)) *Pods {
	if told == nil {
		told = func(error) {}
	}
	return &Pods{client: c, told: told, byUID: map[string]*Pod{}, byName: map[string]string{}, static: map[string][]string{}, changed: make(chan struct{}, 1)}
}

// Pod implements nri.Pods.
func (p *Pods) Pod(uid string) (*nri.PodInfo, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pod := p.onNode(uid); pod != nil {
		return &pod.PodInfo, true // a change makes another
	}
	return nil, false
}

// onNode is the pod that has a UID on the node: at the API server, or as the only one that says to be
// the mirror of a static pod. Anybody may say so of a pod, also with a UID that is another's.
func (p *Pods) onNode(uid string) *Pod {
	if pod := p.byUID[uid]; pod != nil {
		return pod
	}
	if of := p.static[uid]; len(of) == 1 {
		return p.byUID[of[0]]
	}
	return nil
}

// UID is a pod's UID at the API server: by its UID on the node if that is not "", else by
// its name. What is not known stays as it is.
func (p *Pods) UID(namespace, name, nodeUID string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if nodeUID == "" {
		return p.byName[namespace+"/"+name]
	}
	if pod := p.onNode(nodeUID); pod != nil {
		return pod.UID
	}
	return nodeUID
}

// All returns the pods by namespace and name. synced is false until the server has told of
// all of them, or if it told of more than MaxPods.
func (p *Pods) All() (all []*Pod, synced bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pod := range p.byUID {
		if p.onNode(pod.NodeUID) != pod {
			it := *pod
			it.NodeUID, pod = pod.UID, &it
		}
		all = append(all, pod)
	}
	slices.SortFunc(all, func(a, b *Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+a.UID, b.Namespace+"/"+b.Name+"/"+b.UID)
	})
	return all, p.synced && !p.over
}

// roomAgain reports whether a pod found no room since the last list, and would find some now.
func (p *Pods) roomAgain() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over && len(p.byUID) < MaxPods
}

// Changed has a value after something changed.
func (p *Pods) Changed() <-chan struct{} { return p.changed }

// Run watches until ctx ends. It comes back to a server that is away after 0.8 s to 30 s.
func (p *Pods) Run(ctx context.Context) {
	quiet := logr.Discard()
	r := cache.NewReflectorWithOptions(p.source(), &corev1.Pod{}, p, cache.ReflectorOptions{Name: "pods of this node", Logger: &quiet})
	r.RunWithContext(klog.NewContext(ctx, quiet))
}

// source lists and watches the pods of this node only. Those that have ended stay at the API server
// for long, and no quota counts them: anybody may make thousands that a kubelet has no room for.
func (p *Pods) source() *cache.ListWatch {
	mine := fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", p.client.node),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)), fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	).String()
	var mu sync.Mutex
	last := errors.New("")
	tell := func(err error) {
		if errors.Is(err, context.Canceled) {
			return
		}
		mu.Lock()
		same := (err == nil) == (last == nil)
		last = err
		mu.Unlock()
		if !same || err != nil {
			p.told(err)
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = mine
			ctx, cancel := context.WithTimeout(ctx, 3*p.client.timeout)
			defer cancel()
			var list corev1.PodList
			err := p.client.rest.Get().Resource("pods").VersionedParams(&o, p.client.params).Do(ctx).Into(&list)
			if err != nil {
				err = fmt.Errorf("list the pods of node %s: %w", p.client.node, err)
			}
			tell(err)
			return &list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			lists := o.SendInitialEvents != nil && *o.SendInitialEvents
			if !lists && p.roomAgain() { // upon this error the reflector lists
				return nil, apierrors.NewResourceExpired("a pod that found no room would find some now")
			}
			o.FieldSelector, o.Watch = mine, true
			w, err := p.client.rest.Get().Resource("pods").VersionedParams(&o, p.client.params).Watch(ctx)
			if err != nil {
				err = fmt.Errorf("watch the pods of node %s: %w", p.client.node, err)
			}
			tell(err)
			return w, err
		},
	}
}

// Transformer implements cache.TransformingStore: what is not kept goes before a long list
// is complete.
func (*Pods) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			trim(pod)
		}
		return obj, nil
	}
}

// trim drops from a pod what podOf does not read.
func trim(pod *corev1.Pod) {
	uid, static := pod.Annotations[mirrorKey]
	pod.ManagedFields, pod.Annotations, pod.OwnerReferences = nil, nil, nil
	if static {
		pod.Annotations = map[string]string{mirrorKey: uid}
	}
	spec := &pod.Spec
	pod.Spec = corev1.PodSpec{
		NodeName: spec.NodeName, Priority: spec.Priority, PriorityClassName: spec.PriorityClassName,
		Resources: spec.Resources, Overhead: spec.Overhead, InitContainers: spec.InitContainers, Containers: spec.Containers,
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			list[i] = corev1.Container{Name: list[i].Name, Resources: list[i].Resources, RestartPolicy: list[i].RestartPolicy}
		}
	}
	pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, QOSClass: pod.Status.QOSClass}
}

// mirrorKey is the annotation of what stands for a static pod at the API server, with the UID that
// the pod has on the node: to the runtime, and in the names of groups. Nobody can change it, and
// the kubelet deletes a pod that has it and stands for no static one.
const mirrorKey = "kubernetes.io/config.mirror"

func podOf(o *corev1.Pod) *Pod {
	qos := qosOf(o.Status.QOSClass)
	p := &Pod{
		Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), NodeUID: cmp.Or(o.Annotations[mirrorKey], string(o.UID)),
		KoordQoS: o.Labels["koordinator.sh/qosClass"], KoordPriority: o.Labels["koordinator.sh/priority-class"],
		Overhead: resources(o.Spec.Overhead, nil, qos),
		Started:  o.Status.Phase == corev1.PodRunning, Ending: o.DeletionTimestamp != nil,
	}
	p.QoS, p.PriorityClass = qos, o.Spec.PriorityClassName
	if o.Spec.Priority != nil {
		p.Priority = *o.Spec.Priority
	}
	if r := o.Spec.Resources; r != nil {
		p.Resources = resources(r.Requests, r.Limits, qos)
	}
	for _, c := range o.Spec.InitContainers {
		role := place.Init
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			role = place.Sidecar
		}
		p.Containers = append(p.Containers, nri.ContainerInfo{Name: c.Name, Role: role, Resources: resources(c.Resources.Requests, c.Resources.Limits, qos)})
	}
	for _, c := range o.Spec.Containers {
		p.Containers = append(p.Containers, nri.ContainerInfo{Name: c.Name, Role: place.App, Resources: resources(c.Resources.Requests, c.Resources.Limits, qos)})
	}
	return p
}

// qosOf is the class of service that stands for a QoS class. One that is not told yet is
// the one between.
func qosOf(qos corev1.PodQOSClass) place.Class {
	switch qos {
	case corev1.PodQOSGuaranteed:
		return place.LSR
	case corev1.PodQOSBestEffort:
		return place.BE
	}
	return place.LS
}

// most and mostMemory are the most CPU time, in thousandths of a CPU, and memory, in bytes, that a pod
// and a container are believed to request, so that no sum overflows. What names its node itself may
// request any amount.
const (
	most       = 1_000_000
	mostMemory = 1 << 46
)

func resources(requests, limits corev1.ResourceList, qos place.Class) podwords.Resources {
	milli := func(q *resource.Quantity) int { return int(Bounded(q, resource.Milli, most)) }
	return podwords.Resources{
		Milli: milli(requests.Cpu()), LimitMilli: milli(limits.Cpu()), Memory: Bounded(requests.Memory(), 0, mostMemory), QoS: qos,
	}
}

// Bounded is a quantity in a unit (resource.Milli for thousandths, 0 for ones), rounded up, from 0 to top. The
// quantity is compared, not the number: one that does not fit an int64 wraps around, to less than 0 or to any
// other number.
func Bounded(q *resource.Quantity, unit resource.Scale, top int64) int64 {
	switch {
	case q.Sign() <= 0:
		return 0
	case q.Cmp(*resource.NewScaledQuantity(top, unit)) >= 0:
		return top
	}
	return q.ScaledValue(unit)
}

// Requests are what the pod pays for as a whole, as the scheduler counts it: what the pod
// says of itself, or the most that its containers have at a time; and the overhead. Memory is
// in bytes.
func (p *Pod) Requests() (milli int, memory int64) {
	var sidecars, apps, peak podwords.Resources
	for i := range p.Containers {
		c := &p.Containers[i]
		switch c.Role {
		case place.Sidecar:
			sidecars = plus(sidecars, c.Resources)
			peak = larger(peak, sidecars)
		case place.Init:
			peak = larger(peak, plus(sidecars, c.Resources))
		default:
			apps = plus(apps, c.Resources)
		}
	}
	sum := larger(peak, plus(apps, sidecars))
	if p.Milli > 0 {
		sum.Milli = p.Milli
	}
	if p.Memory > 0 {
		sum.Memory = p.Memory
	}
	sum = plus(sum, p.Overhead)
	return min(sum.Milli, most), min(sum.Memory, mostMemory)
}

func plus(a, b podwords.Resources) podwords.Resources {
	return podwords.Resources{Milli: a.Milli + b.Milli, Memory: a.Memory + b.Memory}
}

func larger(a, b podwords.Resources) podwords.Resources {
	return podwords.Resources{Milli: max(a.Milli, b.Milli), Memory: max(a.Memory, b.Memory)}
}

// Add implements cache.ReflectorStore.
func (p *Pods) Add(obj any) error { return p.Update(obj) }

// Update implements cache.ReflectorStore.
func (p *Pods) Update(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("keep a pod: it is a %T", obj)
	}
	p.mu.Lock()
	p.put(podOf(pod))
	p.mu.Unlock()
	p.wake()
	return nil
}

func (p *Pods) put(pod *Pod) {
	if p.byUID[pod.UID] == nil && len(p.byUID) >= MaxPods {
		p.over = true
		return
	}
	p.byUID[pod.UID], p.byName[pod.Namespace+"/"+pod.Name] = pod, pod.UID
	if of := p.static[pod.NodeUID]; pod.NodeUID != pod.UID && !slices.Contains(of, pod.UID) {
		p.static[pod.NodeUID] = append(of, pod.UID)
	}
}

// Delete implements cache.ReflectorStore.
func (p *Pods) Delete(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("forget a pod: it is a %T", obj)
	}
	p.mu.Lock()
	gone := podOf(pod)
	delete(p.byUID, gone.UID)
	if name := gone.Namespace + "/" + gone.Name; p.byName[name] == gone.UID {
		delete(p.byName, name)
	}
	of := slices.DeleteFunc(p.static[gone.NodeUID], func(uid string) bool { return uid == gone.UID })
	if p.static[gone.NodeUID] = of; len(of) == 0 {
		delete(p.static, gone.NodeUID)
	}
	p.mu.Unlock()
	p.wake()
	return nil
}

// Replace implements cache.ReflectorStore.
func (p *Pods) Replace(list []any, _ string) error {
	p.mu.Lock()
	clear(p.byUID)
	clear(p.byName)
	clear(p.static)
	p.over, p.synced = false, true
	for _, obj := range list {
		if pod, ok := obj.(*corev1.Pod); ok {
			p.put(podOf(pod))
		}
	}
	p.mu.Unlock()
	p.wake()
	return nil
}

// Resync implements cache.ReflectorStore: there is nothing to say again.
func (*Pods) Resync() error { return nil }

func (p *Pods) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

var _ interface {
	nri.Pods
	cache.TransformingStore
} = (*Pods)(nil)
