package agent

import (
	"context"
	"slices"
	"testing"

	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// A group that was kept off exclusive CPUs has its own value again, and nothing
// is noted of it, as soon as there are none, whoever else is still placed.
func TestGiveBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t, layouts()["v1"])
	w.opt.Keep = true
	n := w.open()
	w.place(n, spec("batch", place.BE, 500, 0))
	w.place(n, spec("api", place.LSE, 2000, 0))
	file := w.cpusets + "/system.slice/" + cpusFile
	isNoted := func() bool {
		return slices.ContainsFunc(n.held.ledger.Notes(), func(i kernel.Item) bool { return i.Step.Path == file })
	}
	if got := w.tree()[file]; got == w.original[file] || !isNoted() {
		t.Fatalf("with an exclusive workload: %q, noted %v", got, isNoted())
	}
	if err := n.Release(ctx, "api", false); err != nil {
		t.Fatal(err)
	}
	if got := w.tree()[file]; got != w.original[file] || isNoted() {
		t.Errorf("without: %q instead of %q, noted %v", got, w.original[file], isNoted())
	}
}

func TestNotesWhereWeightsAct(t *testing.T) {
	t.Parallel()
	w := newWorld(t, layouts()["v1"])
	n := w.open()
	for group, want := range map[string]bool{"web.slice": false, "system.slice/sshd.service": true, "": true} {
		s := spec("w"+fileName(group), place.BE, 500, 0)
		s.Group = group
		if got := len(w.place(n, s).Notes); got != 0 {
			t.Errorf("%q without a weight: %d notes", group, got)
		}
		s.Limits.Weight = 50
		after, err := n.Resize(context.Background(), s)
		if err != nil || len(after.Notes) > 0 != want {
			t.Errorf("%q: notes %q, %v", group, after.Notes, err)
		}
	}
}
