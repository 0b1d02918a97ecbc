package agent

import (
	"context"
	"errors"
	"testing"

	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// A workload whose owner has ended stays as long as it has processes, and says so.
func TestOrphaned(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := &site{host: v2(t)}
	n := s.open()
	api := spec("api", place.LSE, 2000, 9000100)
	api.Owner.PID = 9000101
	s.place(n, api)
	s.same("placed", s.states(n), map[string]State{"api": Running})
	s.must(s.k.Exit("9000101"))
	_, err := n.Reconcile(ctx)
	s.must(err)
	s.same("its owner has ended", s.states(n), map[string]State{"api": Orphaned})
	s.must(s.k.Exit("9000100"))
	_, err = n.Reconcile(ctx)
	s.must(err)
	s.same("so have its processes", s.states(n), map[string]State{})
}

// podPolicy is a policy that places pods as a whole, up to two containers.
type podPolicy struct {
	berth.Policy
	pods *[]string
}

func (podPolicy) PodScope() bool { return true }

var _ place.PodPlacer = podPolicy{}

func (p podPolicy) PlacePod(s *place.State, pod place.Pod) (*place.State, *place.Why, error) {
	*p.pods = append(*p.pods, pod.ID)
	for i := range pod.Containers {
		r := &pod.Containers[i]
		if i == 2 {
			return nil, nil, &place.RejectedError{ID: r.ID, Reason: "a pod has two containers"}
		}
		offer, err := p.Place(s, r)
		if err != nil {
			return nil, nil, err
		}
		if s, err = s.Commit(offer); err != nil {
			return nil, nil, err
		}
	}
	return s, nil, nil
}

// Workloads of one group are reserved as the policy places pods, others one by one.
func TestReservePod(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := &site{host: v2(t)}
	var pods []string
	s.opt.Policy = podPolicy{pods: &pods}
	n := s.open()
	pod := []Spec{inGroup("a", place.LSE, 2000), inGroup("b", place.LSE, 1000), inGroup("c", place.LS, 100)}
	for i := range pod {
		pod[i].Request.Group = "shop"
	}
	c, err := n.Reserve(ctx, pod)
	if err == nil {
		s.must(c.Abort())
	}
	var rejected *place.RejectedError
	if !errors.As(err, &rejected) || rejected.ID != "c" {
		t.Errorf("a pod of three: %v", err)
	}
	s.same("refused", s.states(n), map[string]State{})
	c, err = n.Reserve(ctx, pod[:2])
	s.must(err)
	s.must(c.Enforce(ctx))
	s.must(c.Commit())
	s.same("reserved", s.states(n), map[string]State{"a": Reserved, "b": Reserved})
	s.same("pods", pods, []string{"shop", "shop"})

	pod[2].Request.Group = "other"
	one := inGroup("d", place.LS, 100)
	c, err = n.Reserve(ctx, []Spec{pod[2], one})
	s.must(err)
	s.must(c.Commit())
	s.same("no pod", pods, []string{"shop", "shop"})
	s.same("reserved one by one", s.states(n), map[string]State{"a": Reserved, "b": Reserved, "c": Reserved, "d": Reserved})
}
