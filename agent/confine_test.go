package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
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
		return slices.ContainsFunc(n.held.log.Notes(), func(i kernel.Item) bool { return i.Step.Path == file })
	}
	if got := w.tree()[file]; got == w.original[file] || !isNoted() {
		t.Fatalf("with an exclusive workload: %q, noted %v", got, isNoted())
	}
	if err := n.Release(ctx, "api", WhenEmpty); err != nil {
		t.Fatal(err)
	}
	if got := w.tree()[file]; got != w.original[file] || isNoted() {
		t.Errorf("without: %q instead of %q, noted %v", got, w.original[file], isNoted())
	}
}

// remake removes the group of process 9000104 and makes another one of its name, with CPUs
// of its own.
func (w *world) remake(dir, cpus string) {
	w.t.Helper()
	// One more directory in between, as an inode may be used again at once.
	other := w.cpusets + "/between"
	if err := errors.Join(w.k.Exit("9000104"), w.k.Rmdir(dir), w.k.Mkdir(other), w.k.Mkdir(dir), w.k.Rmdir(other)); err != nil {
		w.t.Fatal(err)
	}
	w.write(dir+"/cpuset.mems", "0-1")
	w.write(dir+"/cpuset.cpus", cpus)
}

// A group that was removed, and made anew by someone else under its name, is kept off
// exclusive CPUs from its own value on, and has that again afterwards.
func TestConfineGroupMadeAnew(t *testing.T) {
	t.Parallel()
	for name, l := range layouts() {
		if len(l.V1) == 0 || l.V2 != "" {
			continue
		}
		for _, keep := range []bool{false, true} {
			w := newWorld(t, l)
			w.opt.Keep = keep
			n := w.open()
			w.place(n, spec("batch", place.BE, 500, 0))
			own := w.place(n, spec("api", place.LSE, 2000, 0)).Grant.Own
			dir := w.cpusets + "/web.slice"
			if got := strings.TrimSpace(w.tree()[dir+"/"+cpusFile]); got == "0-7" {
				t.Fatalf("%s: not confined: %s", name, got)
			}
			w.remake(dir, "1-5")
			theirs := cpuset.MustParse("1-5")
			if !own.Overlaps(theirs) {
				t.Fatalf("api has %s, none of theirs", own)
			}
			if _, err := n.Reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(w.tree()[dir+"/"+cpusFile]); got != theirs.Minus(own).String() {
				t.Errorf("kept %v: confined to %s, want %s", keep, got, theirs.Minus(own))
			}
			if err := n.Release(t.Context(), "api", WhenEmpty); err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(w.tree()[dir+"/"+cpusFile]); got != "1-5" {
				t.Errorf("kept %v: in the end %s, want 1-5", keep, got)
			}
			if _, err := n.Restore(t.Context()); err != nil {
				t.Error(err)
			}
			if got := strings.TrimSpace(w.tree()[dir+"/"+cpusFile]); got != "1-5" {
				t.Errorf("kept %v: restored %s, want 1-5", keep, got)
			}
		}
	}
}

// Where a group that was kept off exclusive CPUs was made anew, nothing that was noted of
// the former one binds the new one: not to be confined any more, it is left alone, and the
// note goes.
func TestGroupMadeAnewIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, l := range layouts() {
		w := newWorld(t, l)
		n := w.open()
		w.place(n, spec("batch", place.BE, 500, 0))
		own := w.place(n, spec("api", place.LSE, 2000, 0)).Grant.Own
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		dir := w.cpusets + "/web.slice"
		file := dir + "/" + cpusFile
		w.remake(dir, "1-5")
		if !own.Overlaps(cpuset.MustParse("1-5")) {
			t.Fatalf("api has %s, none of theirs", own)
		}
		w.opt.Confine, w.opt.Keep = nil, true
		n = w.open()
		if _, err := n.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := n.Release(t.Context(), "batch", WhenEmpty); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(w.tree()[file]); got != "1-5" {
			t.Errorf("%s: it has %s, want its own 1-5", name, got)
		}
		if slices.ContainsFunc(n.held.log.Notes(), func(i kernel.Item) bool { return i.Step.Path == file }) {
			t.Errorf("%s: the former one is still noted", name)
		}
	}
}

// surrounded is an Enforcer beside whose workloads the groups of the host are.
type surrounded struct {
	*memory
	around *Surroundings
}

func (s *surrounded) Enforce(ctx context.Context, c *Transition) (Enforced, error) {
	if done, err := s.memory.Enforce(ctx, c); err != nil {
		return done, err
	}
	return s.around.Enforce(c, nil, func(error) {})
}

// Others are kept off the exclusive CPUs of a workload of which no group is known.
func TestConfineBesideNoGroup(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		w := newWorld(t, layout)
		if len(layout.V1) == 0 {
			w.write(w.cpusets+"/cgroup.subtree_control", "+cpuset")
		}
		w.opt.Confine = nil
		w.opt.Enforcer = func(root *kernel.Root) (Enforcer, Site, error) {
			around, err := OpenSurroundings(root, []string{"*"}, nil, cpuset.Set{})
			if err != nil {
				return nil, Site{}, err
			}
			m := &memory{groups: map[string]cpuset.Set{"": {}}}
			return &surrounded{m, around}, Site{Backend: "memory", Dirs: around.Dirs(), Around: around}, nil
		}
		n := w.open()
		own := w.place(n, spec("api", place.LSE, 2000, 0)).Grant.Own
		for _, group := range []string{"system.slice", "web.slice"} {
			text := strings.TrimSpace(w.tree()[w.cpusets+"/"+group+"/"+cpusFile])
			if own.IsEmpty() || text == "" || cpuset.MustParse(text).Overlaps(own) {
				t.Errorf("%s: %s has CPUs %q beside exclusive %s", name, group, text, own)
			}
		}
	}
}

func TestNotesWhereWeightsAct(t *testing.T) {
	t.Parallel()
	w := newWorld(t, layouts()["v1"])
	n := w.open()
	for group, want := range map[string]bool{"web.slice": false, "system.slice/sshd.service": true, "": true} {
		s := spec("w"+fileName(group), place.LS, 500, 0)
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

func TestGlobsAreBelowTheBase(t *testing.T) {
	t.Parallel()
	for _, glob := range []string{"", ".", "..", "../x", "/x", "x/", "a//b", "a/../b", "["} {
		if (Options{Settings: Settings{Confine: []string{glob}}}).Validate() == nil || (Options{Settings: Settings{Protected: []string{glob}}}).Validate() == nil {
			t.Errorf("%q is taken", glob)
		}
	}
	for _, glob := range []string{"*", "system.slice", "..x", "a/*/b", ".hidden"} {
		if err := (Options{Settings: Settings{Confine: []string{glob}, Protected: []string{glob}}}).Validate(); err != nil {
			t.Error(err)
		}
	}
}
