package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
	"berth.dev/berth/place/koordinator"
)

// Several workloads are placed in one change, as a preview says, or none is.
func TestPlaceTogether(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, layout)
			n := h.open()
			before := h.tree()
			ctx := context.Background()
			shop := []Spec{spec("api", place.LSE, 2000, 9000100), spec("batch", place.BE, 0, 9000101), spec("db", place.LS, 0, 9000102)}
			drafts, plan, err := n.PreviewTogether(ctx, shop)
			if err != nil || len(drafts) != 3 || len(plan) == 0 {
				t.Fatalf("preview: %v, %d writes, %v", drafts, len(plan), err)
			}
			h.sameTree(before)
			all, err := n.PlaceTogether(ctx, shop)
			if err != nil {
				t.Fatal(err)
			}
			cpus := func(all []Workload) (sets []cpuset.Set) {
				for i := range all {
					sets = append(sets, all[i].CPUs)
				}
				return sets
			}
			if diff := cmp.Diff(cpus(drafts), cpus(all)); diff != "" || all[0].ID() != "api" || all[1].ID() != "batch" {
				t.Errorf("preview and place (-preview +place):\n%s", diff)
			}
			if all[0].Grant.Own.Len() != 2 || all[1].CPUs.Overlaps(all[0].CPUs) {
				t.Errorf("api has %s, batch %s", all[0].CPUs, all[1].CPUs)
			}
			if got := h.procs(n, "batch"); len(got) != 1 || got[0] != 9000101 {
				t.Errorf("processes of batch: %v", got)
			}
			held := h.tree()
			for what, specs := range map[string][]Spec{
				"too many CPUs": {spec("c", place.LSE, 2000, 9000103), spec("d", place.LSE, 99000, 9000103)},
				"no process":    {spec("c", place.LSE, 2000, 9000103), spec("d", place.LS, 0, 9009999)},
				"the name held": {spec("c", place.LSE, 2000, 9000103), spec("api", place.LS, 0, 9000103)},
				"twice":         {spec("c", place.LSE, 2000, 9000103), spec("c", place.LS, 0, 9000103)},
			} {
				_, err := n.PlaceTogether(ctx, specs)
				if err == nil || what != "no process" && !strings.Contains(err.Error(), "which is placed with 1 more or not at all") {
					t.Errorf("%s: %v", what, err)
				}
				h.sameTree(held)
			}
			for _, id := range []string{"api", "batch", "db"} {
				if err := n.Release(ctx, id, Keep); err != nil {
					t.Fatal(err)
				}
			}
			h.sameTree(before)
		})
	}
}

// Those of a user that are placed together count as if they were placed one after the other.
func TestTogetherMeasure(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	h.users(map[int]string{9000101: "1000\t1000\t1000\t1000"})
	n := h.open()
	var specs []Spec
	for i := range maxOfUser + 1 {
		specs = append(specs, spec(fmt.Sprintf("w%d", i), place.LS, 0, 9000101))
	}
	var denied *DeniedError
	if _, err := n.PlaceTogether(by(1000), specs); !errors.As(err, &denied) || !strings.Contains(denied.Rule, "may have 128 at once") {
		t.Errorf("one too many: %v", err)
	}
	if all, err := n.List(context.Background()); err != nil || len(all) > 0 {
		t.Errorf("%d are placed, %v", len(all), err)
	}
}

// countedPolicy counts how often it is asked for a place.
type countedPolicy struct {
	place.Policy
	calls *int
}

func (p countedPolicy) Place(s *place.State, r *place.Request) (place.Offer, error) {
	*p.calls++
	return p.Policy.Place(s, r)
}

// Too many, or one of a name that is held, are refused before the policy looks for places for them.
func TestTogetherRefusedFirst(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	h.users(map[int]string{9000100: "1000\t1000\t1000\t1000", 9000101: "1000\t1000\t1000\t1000"})
	calls := 0
	h.opt.Policy = countedPolicy{berth.Policy{}, &calls}
	n := h.open()
	pod := func(from, to int) (specs []Spec) {
		for i := from; i < to; i++ {
			s := spec(fmt.Sprintf("w%d", i), place.LS, 0, 9000100+i%2)
			s.Request.Group = "g"
			specs = append(specs, s)
		}
		return specs
	}
	refused := func(what string, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) || calls > 0 {
			t.Errorf("%s: %v after the policy was asked %d times; want %q after none", what, err, calls, want)
		}
		calls = 0
	}
	var denied *DeniedError
	const many = "the user has 0 workloads, asks for 129 more, and may have 128 at once; ask root"
	_, err := n.PlaceTogether(by(1000), pod(0, maxOfUser+1))
	refused("too many", err, many)
	if !errors.As(err, &denied) {
		t.Errorf("too many: %T", err)
	}
	_, _, err = n.PreviewTogether(by(1000), pod(0, maxOfUser+1))
	refused("a preview of too many", err, many)
	if _, err := n.PlaceTogether(by(1000), pod(0, 2)); err != nil || calls == 0 {
		t.Fatalf("two: %v, the policy was asked %d times", err, calls)
	}
	calls = 0
	_, err = n.PlaceTogether(by(1000), pod(1, maxOfUser))
	refused("one is held", err, `"w1"`)
	if !errors.As(err, new(*place.HeldError)) {
		t.Errorf("one is held: %T", err)
	}
	_, err = n.PlaceTogether(by(1000), pod(2, maxOfUser+1))
	refused("with those that there are", err, "has 2 workloads, asks for 127 more, and may have 128 at once; release one first")
}

// What the policy ignores is in the notes, but where CPUs are named and it is not asked.
func TestIgnoredNote(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	h.opt.Policy = koordinator.Policy{}
	n := h.open()
	s := spec("a", place.LS, 500, 9000100)
	s.Request.Affinity = []place.Affinity{{ID: "b", Weight: 10}}
	s.Request.Group = "shop"
	const want = "policy koordinator places it no nearer to its group than to others; policy koordinator ignores what it asks for by affinity"
	if w := h.place(n, s); !strings.Contains(strings.Join(w.Notes, "\n"), want) {
		t.Errorf("notes: %q", w.Notes)
	}
	s.Request.ID, s.PID, s.CPUs = "c", 9000101, cpuset.MustParse("3")
	if w := h.place(n, s); strings.Contains(strings.Join(w.Notes, "\n"), "ignores") {
		t.Errorf("notes: %q", w.Notes)
	}
}
