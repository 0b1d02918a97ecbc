package agent

import (
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// Limits that a workload has no more become the kernel's defaults, in a group that the
// node has made, too.
func TestDroppedLimits(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, layout)
			n := h.open()
			plain := spec("web", place.LS, 0, 0)
			w := h.place(n, plain)
			settings := func() string {
				var shown []string
				for file, text := range h.tree() {
					if base := path.Base(file); path.Base(path.Dir(file)) == path.Base(w.Group) && !strings.HasPrefix(base, "cgroup.") && base != "tasks" {
						shown = append(shown, path.Base(file)+" "+strings.TrimSpace(text))
					}
				}
				return strings.Join(slices.Sorted(slices.Values(shown)), "\n")
			}
			before := settings()
			for i, l := range []cgroup.Limits{
				{Weight: 50, Quota: 20 * time.Millisecond, Burst: 10 * time.Millisecond, MemoryMax: 1 << 20},
				{Idle: cgroup.On, Quota: 10 * time.Millisecond, Period: 10 * time.Millisecond},
				{Weight: 7},
			} {
				limited := plain
				limited.Limits = l
				for _, s := range []Spec{limited, plain} {
					if _, err := n.Resize(t.Context(), s); err != nil {
						t.Fatalf("%d: %v", i, err)
					}
					if diff := cmp.Diff(before, settings()); (diff == "") != (s.Limits.Weight == 0 && s.Limits.Idle == cgroup.Leave) {
						t.Errorf("%d: settings of %s with %+v (-before +after):\n%s", i, w.Group, s.Limits, diff)
					}
				}
			}
		})
	}
}

// Whatever another writes into a setting is found, also if nothing had changed at the
// comparison before.
func TestLimitsDriftLater(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, l := range []cgroup.Limits{
				{Weight: 50, Quota: 20 * time.Millisecond, Burst: 10 * time.Millisecond, MemoryMax: 1 << 20},
				{Idle: cgroup.On, Quota: 10 * time.Millisecond, Period: 10 * time.Millisecond},
				{Weight: 7, MemoryMax: 2 << 20},
			} {
				h := newHost(t, layout)
				h.opt.Keep, h.opt.Rewrites = true, 1000
				n := h.open()
				plain := spec("web", place.LS, 0, 0)
				h.place(n, plain)
				before := h.tree()
				plain.Limits = l
				if _, err := n.Resize(t.Context(), plain); err != nil {
					t.Fatal(err)
				}
				want := h.tree()
				compare := func(repaired int) {
					t.Helper()
					if repairs, err := n.Reconcile(t.Context()); err != nil || len(repairs) < repaired || repaired == 0 && len(repairs) > 0 {
						t.Errorf("%+v: repairs %+v, %v", l, repairs, err)
					}
					h.sameTree(want)
				}
				for file, text := range want {
					if before[file] == text || strings.HasPrefix(path.Base(file), "cgroup.") {
						continue
					}
					compare(0)
					compare(0)
					if err := h.k.WriteFile(file, before[file]); err != nil {
						continue // the kernel refuses that value: it is locked
					}
					compare(1)
				}
				// What it shows still is not all that there is to do.
				compare(0)
				plain.Limits = cgroup.Limits{}
				if _, err := n.Resize(t.Context(), plain); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, h.tree()); diff != "" {
					t.Errorf("%d: without limits (-before +after):\n%s", i, diff)
				}
			}
		})
	}
}
