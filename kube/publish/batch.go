package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kube/api"
	"berth.dev/berth/kube/batch"
	"berth.dev/berth/kube/predict"
	"berth.dev/berth/kube/usage"
	"berth.dev/berth/place"
)

// Batch says how batch and mid resources are told.
type Batch struct {
	Strategy batch.Strategy
	// Meter measures; it belongs to the Agent from New on.
	Meter interface {
		Sample(now time.Time) error
		Report(last time.Duration) (r usage.Report, ok bool)
	}
	// Learnt is the file that keeps, over restarts, what was learnt of prod pods; only this
	// user's may be written there. It is of a Strategy that Predicts.
	Learnt string
	// Sample is how often it measures, Every how often the node's status is looked at; 0 is
	// 15 s and 60 s.
	Sample, Every time.Duration
	// Stale is how long ago the resources may have been known last until they are taken away; 0 is 15 min.
	// They are not known without figures of use, without the watch of pods, or while the node or one of its
	// annotations cannot be read.
	Stale time.Duration
	// Rewrite is how often the status is written though it changed by less than a tenth; 0
	// is 5 min.
	Rewrite time.Duration
}

// Window is over how long use is averaged, but for predictions.
const Window = 5 * time.Minute

// The extended resources of Koordinator.
const (
	batchCPU    = "kubernetes.io/batch-cpu"
	batchMemory = "kubernetes.io/batch-memory"
	midCPU      = "kubernetes.io/mid-cpu"
	midMemory   = "kubernetes.io/mid-memory"
)

func (a *Agent) batch(ctx context.Context) {
	b := a.opt.Batch
	told := trouble{what: "batch", tell: a.opt.Tell}
	s := status{client: a.opt.Client, rewrite: cmp.Or(b.Rewrite, 5*time.Minute)}
	sampling := time.NewTicker(cmp.Or(b.Sample, 15*time.Second))
	defer sampling.Stop()
	writing := time.NewTicker(cmp.Or(b.Every, time.Minute))
	defer writing.Stop()
	began := time.Now()
	var unmeasured, unkept error
	var l *learner
	var learning <-chan time.Time
	if b.Strategy.Predicts() {
		var err error
		l, err = newLearner(b, began)
		told.note(err)
		every := time.NewTicker(predict.Every)
		defer every.Stop()
		learning = every.C
		defer func() {
			if err := l.keep(time.Now()); err != nil {
				told.note(err)
			}
		}()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-sampling.C:
			unmeasured = b.Meter.Sample(time.Now())
		case now := <-learning:
			if pods, synced := a.opt.Pods.All(); synced {
				unkept = l.learn(now, pods)
			}
		case <-writing.C:
			err := a.tellBatch(ctx, &s, l, began)
			if ctx.Err() != nil {
				return
			}
			told.note(errors.Join(err, unmeasured, unkept))
		}
	}
}

// errNoFigures is why nothing is known while the Meter has no figures, or the watch of pods none.
var errNoFigures = errors.New("no figures of what pods use")

// tellBatch writes what is left for batch work. While that is not known it leaves what it wrote for a while,
// then takes it away.
func (a *Agent) tellBatch(ctx context.Context, s *status, l *learner, began time.Time) error {
	node, amounts, err := a.left(ctx, s, l)
	if s.fresh.IsZero() {
		s.fresh = began
	}
	until := s.fresh.Add(cmp.Or(a.opt.Batch.Stale, 15*time.Minute))
	switch now := time.Now(); {
	case now.After(until):
		err = fmt.Errorf("batch resources are taken away: since %s they are not known: %w", s.fresh.UTC().Format(time.RFC3339), cmp.Or(err, errNoFigures))
		return errors.Join(err, s.write(ctx, nil))
	case errors.Is(err, errNoFigures):
		return nil // as after each start
	case err != nil:
		return fmt.Errorf("batch resources stay as told until %s: %w", until.UTC().Format(time.RFC3339), err)
	}
	return s.update(ctx, node, amounts)
}

// left is what is left for batch work of the node, as the API server has it. It notes of when the figures are.
func (a *Agent) left(ctx context.Context, s *status, l *learner) (*corev1.Node, map[corev1.ResourceName]int64, error) {
	b := a.opt.Batch
	report, measured := b.Meter.Report(Window)
	pods, synced := a.opt.Pods.All()
	if !synced || !measured {
		return nil, nil, errNoFigures
	}
	node, err := a.opt.Client.GetNode(ctx)
	if err != nil {
		return nil, nil, err
	}
	n, err := inputs(node, pods, &report)
	if err != nil {
		return nil, nil, err
	}
	s.fresh = report.At
	if l != nil {
		n.Reclaimable = l.Reclaimable(time.Now(), n.Capacity, counted(pods, &report))
	}
	amounts := map[corev1.ResourceName]int64{}
	left := b.Strategy.Batch(n)
	amounts[batchCPU], amounts[batchMemory] = left.Milli, left.Memory
	if b.Strategy.TellsMid() {
		mid := b.Strategy.Mid(n)
		amounts[midCPU], amounts[midMemory] = mid.Milli, mid.Memory
	}
	return node, amounts, nil
}

// inputs are what the formulas count.
func inputs(node *corev1.Node, pods []*api.Pod, r *usage.Report) (*batch.Node, error) {
	allocatable, err := unamplified(node)
	if err != nil {
		return nil, &unreadError{node.Name, rawKey, err}
	}
	n := &batch.Node{Capacity: amountOf(node.Status.Capacity), Used: r.Node, System: r.System()}
	left := amountOf(allocatable)
	n.Reserved = batch.Amount{Milli: max(n.Capacity.Milli-left.Milli, 0), Memory: max(n.Capacity.Memory-left.Memory, 0)}
	more, err := Reservation(node.Annotations[reservationKey])
	if err != nil {
		return nil, &unreadError{node.Name, reservationKey, err}
	}
	n.Reserved.Milli, n.Reserved.Memory = max(n.Reserved.Milli, more.Milli), max(n.Reserved.Memory, more.Memory)
	known := map[string]bool{}
	for _, p := range counted(pods, r) {
		known[p.UID] = true
		n.Pods = append(n.Pods, p.Pod)
	}
	for uid, used := range r.Pods {
		if !known[uid] {
			n.Gone.Milli += used.Milli
			n.Gone.Memory += used.Memory
		}
	}
	return n, nil
}

// mostMilli and mostMemory are the most CPU time, in thousandths of a CPU, and memory, in bytes, that a node is
// believed to have or to reserve, so that no sum overflows: who may change a node may write any quantity.
const (
	mostMilli  = 100_000_000
	mostMemory = 1 << 56
)

// amountOf are CPU time and memory of a list, each from 0 to the most.
func amountOf(list corev1.ResourceList) batch.Amount {
	return batch.Amount{Milli: api.Bounded(list.Cpu(), resource.Milli, mostMilli), Memory: api.Bounded(list.Memory(), 0, mostMemory)}
}

// counted are the pods that count, by their UIDs on the node, with what they use.
func counted(pods []*api.Pod, r *usage.Report) (all []predict.Pod) {
	for _, p := range pods {
		milli, memory := p.Requests()
		pod := predict.Pod{UID: p.NodeUID, Ending: p.Ending, Pod: batch.Pod{
			Kind: batch.KindOf(p.KoordPriority, p.Priority, p.KoordQoS == "BE" || p.KoordQoS == "" && p.QoS == place.BE),
			LSE:  p.KoordQoS == "LSE", Request: batch.Amount{Milli: int64(milli), Memory: memory},
		}}
		if used, ok := r.Pods[p.NodeUID]; ok {
			pod.Used = &used
		}
		all = append(all, pod)
	}
	return all
}

// rawKey is Koordinator's annotation of a node of which it amplifies what can be requested, with
// what there was before.
const rawKey = "node.koordinator.sh/raw-allocatable"

// maxAnnotation is how long an annotation of a node may be, in bytes.
const maxAnnotation = 64 << 10

// unamplified is what can be requested of a node, without Koordinator's amplification: the
// formulas count what is there.
func unamplified(node *corev1.Node) (corev1.ResourceList, error) {
	text := node.Annotations[rawKey]
	if text == "" {
		return node.Status.Allocatable, nil
	}
	if len(text) > maxAnnotation {
		return nil, fmt.Errorf("longer than %d KiB", maxAnnotation>>10)
	}
	var raw corev1.ResourceList
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, err
	}
	all := corev1.ResourceList{}
	maps.Copy(all, node.Status.Allocatable)
	maps.Copy(all, raw)
	return all, nil
}

// reservationKey is Koordinator's annotation of a node with what is reserved there.
const reservationKey = "node.koordinator.sh/reservation"

// Reserved is what that annotation says: an amount, and the CPUs if it names them.
type Reserved struct {
	batch.Amount
	CPUs cpuset.Set
}

// Reservation reads that annotation: amounts, or CPUs by number, which win. "" is nothing.
func Reservation(text string) (Reserved, error) {
	var said struct {
		Resources    corev1.ResourceList `json:"resources"`
		ReservedCPUs string              `json:"reservedCPUs"`
	}
	if text == "" {
		return Reserved{}, nil
	}
	if len(text) > maxAnnotation {
		return Reserved{}, fmt.Errorf("longer than %d KiB", maxAnnotation>>10)
	}
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		return Reserved{}, err
	}
	if said.Resources.Cpu().Sign() < 0 || said.Resources.Memory().Sign() < 0 {
		return Reserved{}, errors.New("less than nothing is reserved")
	}
	a := Reserved{Amount: amountOf(said.Resources)}
	if said.ReservedCPUs != "" {
		var err error
		if a.CPUs, err = cpuset.Parse(said.ReservedCPUs); err != nil {
			return Reserved{}, fmt.Errorf("reservedCPUs: %w", err)
		}
		a.Milli = int64(a.CPUs.Len()) * 1000
	}
	return a, nil
}

// unreadError is an annotation of a node that cannot be read.
type unreadError struct {
	node, key string
	err       error
}

func (e *unreadError) Error() string {
	return fmt.Sprintf("node %s: annotation %s: %v", e.node, e.key, e.err)
}

func (e *unreadError) Unwrap() error { return e.err }

// unreserved is an error if that annotation names CPUs that containers may own here, and an *unreadError if
// it cannot be read.
func unreserved(node *corev1.Node, ownable cpuset.Set) error {
	r, err := Reservation(node.Annotations[reservationKey])
	if err != nil {
		return &unreadError{node.Name, reservationKey, err}
	}
	if cpus := r.CPUs.Intersect(ownable); !cpus.IsEmpty() {
		return fmt.Errorf("node %s: annotation %s reserves CPUs %s, and containers may own them here: add them to reserved of the node's configuration", node.Name, reservationKey, cpus)
	}
	return nil
}

// status is the part of the node's status that is Berth's.
type status struct {
	client  *api.Client
	rewrite time.Duration
	fresh   time.Time // of the figures by which amounts were known last
	written time.Time
	gone    bool // it was taken away
}

// update writes amounts that differ by a tenth from what the node has, or any difference
// after a while. The kubelet sets extended resources to zero when it registers its node.
func (s *status) update(ctx context.Context, node *corev1.Node, amounts map[corev1.ResourceName]int64) error {
	far, differs := false, false
	for name, want := range amounts {
		q, there := node.Status.Allocatable[name]
		is := api.Bounded(&q, 0, mostMemory)
		differs = differs || !there || is != want
		far = far || !there || max(is-want, want-is) > is/10
	}
	if !far && (!differs || time.Since(s.written) < s.rewrite) {
		return nil
	}
	return s.write(ctx, amounts)
}

// write writes amounts, or takes them away. What was taken away stays so.
func (s *status) write(ctx context.Context, amounts map[corev1.ResourceName]int64) error {
	if amounts == nil && s.gone {
		return nil
	}
	list := map[string]any{batchCPU: nil, batchMemory: nil, midCPU: nil, midMemory: nil}
	for name, n := range amounts {
		list[string(name)] = strconv.FormatInt(n, 10)
	}
	err := s.client.PatchNodeStatus(ctx, map[string]any{"capacity": list, "allocatable": list})
	if err == nil {
		s.written, s.gone = time.Now(), amounts == nil
	}
	return err
}
