package agent

import (
	"context"
	"path"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// Before Linux 7, a set that holds processes cannot be made empty again:
// restoring gives everyone all CPUs and says what stays until the processes have
// ended.
func TestRestoreWidens(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	layout := layouts()["v2"]
	layout.Version = "6.12"
	w := newWorld(t, layout)
	web := w.refuse(path.Join(w.cpusets, "web.slice", cpusFile))
	web.refuses = false
	n := w.open()
	w.place(n, spec("api", place.LSE, 2000, 0))
	file := func(name string) string { return path.Join(w.cpusets, name, cpusFile) }
	controllers := w.cpusets + "/cgroup.subtree_control"
	restore := func(when string, want map[string]kernel.Outcome) {
		t.Helper()
		items, err := n.Restore(ctx)
		if refused := want[file("web.slice")] == kernel.Failed; (err != nil) != refused {
			t.Fatal(err)
		}
		got := map[string]kernel.Outcome{}
		for _, i := range items {
			if _, twice := got[i.Step.Path]; twice {
				t.Errorf("%s: /%s is told twice", when, i.Step.Path)
			}
			got[i.Step.Path] = i.Outcome
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	web.refuses = true
	restore("with processes in all groups, one of which the kernel refuses", map[string]kernel.Outcome{
		w.cpusets + "/berth":     kernel.Restored,
		w.cpusets + "/berth/api": kernel.Restored,
		controllers:              kernel.InUse,
		file("system.slice"):     kernel.Widened,
		file("user.slice"):       kernel.Widened,
		file("web.slice"):        kernel.Failed,
	})
	web.refuses = false
	restore("with processes in all groups", map[string]kernel.Outcome{
		controllers:          kernel.InUse,
		file("system.slice"): kernel.Widened,
		file("user.slice"):   kernel.Widened,
		file("web.slice"):    kernel.Widened,
	})
	for _, name := range []string{"system.slice", "user.slice", "web.slice"} {
		if got := w.tree()[file(name)]; got != "0-7\n" {
			t.Errorf("%s has %q, want all CPUs", name, got)
		}
	}
	for _, pid := range []string{"9000103", "9000104"} {
		if err := w.k.Exit(pid); err != nil {
			t.Fatal(err)
		}
	}
	restore("with processes in user.slice", map[string]kernel.Outcome{
		controllers:          kernel.InUse,
		file("system.slice"): kernel.Restored,
		file("user.slice"):   kernel.Widened,
		file("web.slice"):    kernel.Restored,
	})
}
