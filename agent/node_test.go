package agent

import (
	"context"
	"testing"

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
				if err := n.Release(ctx, id, false); err == nil {
					t.Errorf("released %s with processes", id)
				}
			}
			for _, pid := range []string{"9000100", "9000101"} {
				if err := h.k.Exit(pid); err != nil {
					t.Fatal(err)
				}
			}
			for _, id := range []string{"api", "batch"} {
				if err := n.Release(ctx, id, false); err != nil {
					t.Error(err)
				}
			}
			for _, pid := range []string{"9000100", "9000101"} {
				delete(before, "proc/"+pid+"/")
				delete(before, "proc/"+pid+"/stat")
				delete(before, "proc/"+pid+"/cgroup")
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
