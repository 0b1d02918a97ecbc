package actuate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
)

// monitored are the groups that the kernel tells, with their threads.
func (h *host) monitored() (all []string) {
	h.t.Helper()
	t, err := resctrl.Read(h.k.FS())
	if err != nil {
		h.t.Fatal(err)
	}
	for _, name := range t.Mon {
		of, ok := resctrl.MonOf(name)
		if !ok {
			continue
		}
		tids, err := resctrl.Tasks(h.k.FS(), t.Dir, name)
		if err != nil {
			h.t.Fatal(err)
		}
		all = append(all, fmt.Sprint(filepath.Dir(filepath.Dir(name)), " ", of, " ", tids))
	}
	slices.Sort(all)
	return all
}

func (h *host) wantMonitored(want ...string) {
	h.t.Helper()
	if got := h.monitored(); !slices.Equal(got, want) {
		h.t.Errorf("monitored: %q, want %q", got, want)
	}
}

var leaves = []string{"batch/a", "batch/b/c", "svc/web"}

// Each group is monitored within the one that allocates to its threads, new threads too, and
// follows when its share is cut; in the end all is as it was.
func TestMonitor(t *testing.T) {
	t.Parallel()
	h := shared(t, "skylake", nil)
	g := h.open()
	m, err := g.Monitor(leaves, nil)
	if err != nil || m.Of != 3 || m.At != 3 || m.Reason != "" {
		t.Fatalf("%+v, %v", m, err)
	}
	h.wantMonitored(". batch/a [100 101]", ". svc/web [200]", "berth-bulk batch/b/c [102]")
	before := h.now()
	if m, err := g.Monitor(append([]string{"batch/empty"}, leaves...), nil); err != nil || m.Of != 3 {
		t.Errorf("an empty group has no turn: %+v, %v", m, err)
	}
	h.same(before)
	if err := errors.Join(h.k.Start("103"), h.k.WriteFile(h.cpu+"/batch/a/cgroup.procs", "103")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Apply(context.Background(), ways("batch/b/c", 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Monitor(leaves, nil); err != nil {
		t.Error(err)
	}
	h.wantMonitored(". batch/a [100 101 103]", ". svc/web [200]", resctrl.GuardGroup("batch/b/c")+" batch/b/c [102]")
	if _, err := g.Revert(context.Background(), ways("batch/b/c", 2)); err != nil {
		t.Error(err)
	}
	if err := h.k.Exit("103"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Monitor(nil, nil); err != nil {
		t.Error(err)
	}
	h.same(h.tree)
	if len(g.Notes()) > 0 {
		t.Errorf("still noted: %v", g.Notes())
	}
}

// Where there are fewer numbers than groups, those have turns; one that has just been given back
// is waited for, and that is told.
func TestMonitorInTurns(t *testing.T) {
	t.Parallel()
	few := func(limbo bool) func(*fakekernel.Resctrl) {
		return func(r *fakekernel.Resctrl) {
			r.Lines[0].CLOSIDs, r.RMIDs, r.Limbo = 4, 6, limbo // two are left for groups that monitor
		}
	}
	h := shared(t, "skylake", few(false))
	g := h.open()
	seen := map[string]bool{}
	for range 2 {
		m, err := g.Monitor(leaves, []string{"svc/web"})
		if err != nil || m.At != 2 || m.Of != 3 || !slices.Contains(m.Groups, "svc/web") {
			t.Fatalf("%+v, %v", m, err)
		}
		if got := h.monitored(); len(got) != 2 {
			t.Errorf("monitored: %v", got)
		}
		for _, group := range m.Groups {
			seen[group] = true
		}
	}
	if len(seen) != 3 {
		t.Errorf("had a turn: %v", seen)
	}
	// A new class can be made all the same.
	if err := errors.Join(h.k.Mkdir(fakekernel.ResctrlDir+"/berth-x"), h.k.Mkdir(fakekernel.ResctrlDir+"/berth-y")); err != nil {
		t.Errorf("classes lack numbers: %v", err)
	}

	h = shared(t, "skylake", func(r *fakekernel.Resctrl) { few(true)(r); r.RMIDs = 5; r.Lines[0].CLOSIDs = 4 })
	if err := errors.Join(h.k.Mkdir(fakekernel.ResctrlDir+"/berth-x"), h.k.Mkdir(fakekernel.ResctrlDir+"/berth-y")); err != nil {
		t.Fatal(err)
	}
	g = h.open()
	var reasons []string
	for i := range 4 {
		m, err := g.Monitor(leaves, nil)
		if err != nil {
			t.Fatal(err)
		}
		if reasons = append(reasons, m.Reason); i == 1 {
			h.wantMonitored() // the turn of the first is over, its number is not free
			h.k.Settle()
		}
	}
	if reasons[0] != "" || !strings.Contains(reasons[1], "not free yet") || reasons[2] != "" {
		t.Errorf("%q", reasons)
	}
}

// Where groups share counters, one that came when none was free is given one as soon as there is
// one, and until then it is told.
func TestMonitorCounts(t *testing.T) {
	t.Parallel()
	h := shared(t, "zen5", func(r *fakekernel.Resctrl) { r.Counters = 8 }) // for two events of four groups: two have theirs
	for _, name := range []string{"pod-a", "pod-b"} {
		if err := h.k.Mkdir(fakekernel.ResctrlDir + "/" + name); err != nil {
			t.Fatal(err)
		}
	}
	g := h.open()
	assigned := func() string {
		name, _ := resctrl.MonName("batch/a")
		text, err := os.ReadFile(filepath.Join(h.dir, fakekernel.ResctrlDir, "mon_groups", name, "mbm_L3_assignments"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	m, err := g.Monitor(leaves[:1], nil)
	if err != nil || !strings.Contains(m.Reason, "mbm_total_bytes") || strings.Contains(assigned(), "=e") {
		t.Errorf("without a free counter: %+v, %v, %s", m, err, assigned())
	}
	for _, event := range []string{"mbm_total_bytes", "mbm_local_bytes"} {
		if err := h.k.WriteFile(fakekernel.ResctrlDir+"/pod-a/mbm_L3_assignments", event+":*=_\n"); err != nil {
			t.Fatal(err)
		}
	}
	m, err = g.Monitor(leaves[:1], nil)
	if err != nil || m.Reason != "" || strings.Contains(assigned(), "=_") {
		t.Errorf("with one: %+v, %v, %s", m, err, assigned())
	}
	name, _ := resctrl.MonName("batch/a")
	tree, err := resctrl.Read(h.k.FS())
	if err != nil {
		t.Fatal(err)
	}
	tree.Monitoring.Assigned = false
	if err := tree.Count(h.root(), "mon_groups/"+name); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("without assignment: %v", err)
	}
}

// A guard that is killed while it sets up monitoring leaves nothing behind, and one that only
// looks makes nothing.
func TestMonitorKilled(t *testing.T) {
	t.Parallel()
	h := shared(t, "skylake", nil)
	for at := 1; at <= 3; at++ {
		for _, after := range []bool{false, true} {
			h.fate.count, h.fate.at, h.fate.after = 0, at, after
			g := h.open()
			if fakekernel.Survives(func() { _, _ = g.Monitor(leaves, nil) }) {
				t.Fatalf("write %d: there is none", at)
			}
			g.lock.Close()
			h.fate.at = 0
			next := h.open()
			if _, err := next.Restore(); err != nil {
				t.Fatal(err)
			}
			if err := next.Close(); err != nil {
				t.Fatal(err)
			}
			h.same(h.tree)
		}
	}
	if _, err := h.open2().Monitor(leaves, nil); !errors.Is(err, kernel.ErrNotSupported) {
		t.Error(err)
	}
	h.same(h.tree)
}
