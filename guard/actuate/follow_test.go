package actuate

import (
	"context"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
)

// A group that is made while its parent is narrowed, and gets the parent's set as
// container runtimes do on v1, goes along with it; one that was there before, or has a
// set of its own, does not.
func TestNewChildrenFollow(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"v1", "hybrid"} {
		h := newHost(t, layout)
		ctx := context.Background()
		g := h.open()
		set := func(name, cpus string) {
			t.Helper()
			h.apply(g.base.Child(name).Set(cgroup.Limits{CPUs: cpuset.MustParse(cpus)}))
		}
		set("batch/a", "0-1") // the same as the parent will have
		apply := func(cpus string) {
			t.Helper()
			if _, err := g.Apply(ctx, shrink(cpus)); err != nil {
				t.Fatal(err)
			}
		}
		apply("0-1")
		for _, name := range []string{"batch/new", "batch/new/in", "batch/own"} {
			h.apply(g.base.Child(name).Create())
		}
		set("batch/new", "0-1")
		set("batch/new/in", "0-1")
		set("batch/own", "1")
		shows := func(batch, follows, own string) {
			t.Helper()
			for name, cpus := range map[string]string{"batch": batch, "batch/a": "0-1", "batch/new": follows, "batch/new/in": follows, "batch/own": own} {
				h.shows(map[string]string{h.sets + "/" + name + "/cpuset.cpus": cpus})
			}
		}
		apply("0-2")
		shows("0-2", "0-2", "1")
		if _, err := g.Revert(ctx, shrink("")); err != nil {
			t.Fatal(err)
		}
		shows("0-7", "0-7", "1")
		if notes := g.Notes(); len(notes) > 0 {
			t.Errorf("%s: still noted: %v", layout, notes)
		}
	}
}
