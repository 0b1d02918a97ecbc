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
