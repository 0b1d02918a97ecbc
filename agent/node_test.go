package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

func TestPlaceAndRelease(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, layout)
			before := h.tree()
			n := h.open()
			h.place(n, spec("batch", place.BE, 500, 9000100))
			w := h.place(n, spec("api", place.LSE, 2000, 9000101))
			if w.Grant.Own.Len() != 2 || w.CPUs != w.Grant.Own {
				t.Errorf("api has %s, own %s", w.CPUs, w.Grant.Own)
			}
			all, err := n.List(ctx)
			if err != nil || len(all) != 2 {
				t.Fatalf("list: %d workloads, %v", len(all), err)
			}
			if all[1].CPUs.Overlaps(w.Grant.Own) {
				t.Errorf("batch has %s, among them some of %s", all[1].CPUs, w.Grant.Own)
			}
			repairs, err := n.Reconcile(ctx)
			if err != nil || len(repairs) > 0 {
				t.Errorf("nothing has drifted: %v, %v", repairs, err)
			}
			for _, id := range []string{"api", "batch"} {
				if err := n.Release(ctx, id, WhenEmpty); err == nil {
					t.Errorf("released %s with processes", id)
				}
			}
			for _, pid := range []string{"9000100", "9000101"} {
				if err := h.k.Exit(pid); err != nil {
					t.Fatal(err)
				}
			}
			for _, id := range []string{"api", "batch"} {
				if err := n.Release(ctx, id, WhenEmpty); err != nil {
					t.Error(err)
				}
			}
			for _, pid := range []string{"9000100", "9000101"} {
				delete(before, "proc/"+pid+"/")
				delete(before, "proc/"+pid+"/stat")
				delete(before, "proc/"+pid+"/cgroup")
				delete(before, "proc/"+pid+"/ioprio")
			}
			got := h.tree()
			for name := range before {
				if got[name] != before[name] && !isProcs(name) {
					t.Errorf("%s: %q, was %q", name, got[name], before[name])
				}
			}
			for name := range got {
				if _, ok := before[name]; !ok {
					t.Errorf("%s is left", name)
				}
			}
			for _, e := range h.events {
				if e.Kind == Failed {
					t.Error(e)
				}
			}
		})
	}
}

// An event has the time that placing took, and the typed error of a refusal.
func TestEventsTell(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	opt := h.options()
	opt.Now = func() time.Time { h.now = h.now.Add(time.Millisecond); return h.now }
	n, err := Open(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	if _, err := n.Place(context.Background(), spec("big", place.LSE, 64000, 9000101)); err == nil {
		t.Fatal("placed a workload on 64 of 8 CPUs")
	}
	placed, refused := h.events[0], h.events[1]
	if placed.Kind != Placed || placed.Took < time.Millisecond || placed.Err != nil {
		t.Errorf("placed: %+v", placed)
	}
	var few *place.CPUsError
	if refused.Kind != Refused || !errors.As(refused.Err, &few) {
		t.Errorf("refused: %+v", refused)
	}
}

// What is not there to be placed, or may not be, is told by type, and nothing changes.
func TestPlaceWhatCannotBe(t *testing.T) {
	t.Parallel()
	h := v2(t)
	h.opt.Protected = []string{"kept"}
	for _, group := range []string{"held", "kept"} {
		if err := h.k.Mkdir("sys/fs/cgroup/" + group); err != nil {
			t.Fatal(err)
		}
	}
	n := h.open()
	held := spec("holder", place.LS, 100, 0)
	held.Group = "held"
	h.place(n, held)
	before := h.tree()
	in := func(s Spec, group string) Spec { s.Group = group; return s }
	for what, s := range map[string]Spec{
		`group "none" is not there`:                in(spec("a", place.LS, 100, 0), "none"),
		"process 4000000 is not there":             spec("a", place.LS, 100, 4000000),
		"process 4000000, its owner, is not there": {Request: place.Request{ID: "a", Class: place.LS, Milli: 100}, Owner: Owner{PID: 4000000}},
	} {
		_, err := n.Place(t.Context(), s)
		var missing *MissingError
		if !errors.As(err, &missing) || err.Error() != `place workload "a": `+what {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, group := range []string{"held", "held/below", "kept"} {
		_, err := n.Place(t.Context(), in(spec("a", place.LS, 100, 0), group))
		var refused *GroupError
		if !errors.As(err, &refused) || refused.Group != group {
			t.Errorf("%s: %v", group, err)
		}
	}
	if diff := cmp.Diff(before, h.tree()); diff != "" {
		t.Errorf("tree (-before +after):\n%s", diff)
	}
}

// Own CPUs by affinity are nobody's alone, not even among Berth's nodes.
func TestExposedByAffinity(t *testing.T) {
	t.Parallel()
	n := &Node{opt: Options{Settings: Settings{Confine: []string{"*"}}}}
	w := &Workload{Grant: &place.Grant{Own: cpuset.MustParse("2-3")}}
	notes := strings.Join(n.exposed(w), "\n")
	if !strings.Contains(notes, "2-3") || !strings.Contains(notes, "another state directory") {
		t.Errorf("by affinity it notes %q", notes)
	}
	w.Group = ownGroup + "/api"
	if notes := n.exposed(w); len(notes) > 0 {
		t.Errorf("in a group, with others confined, it notes %q", notes)
	}
}
