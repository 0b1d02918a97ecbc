package agent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// revisions are other ways to keep a world that has the workloads of revised.
func revisions() map[string]func(*Revision) {
	return map[string]func(*Revision){
		"moves": func(r *Revision) {
			r.Options.Config.Floor = cpuset.MustParse("0-3")
			web := spec("web", place.LS, 500, 0)
			web.Group = "web.slice"
			r.Specs = []Spec{web}
		},
		"release": func(r *Revision) { r.Release = []string{"web"} },
		"replace": func(r *Revision) {
			r.Options.Config.Floor, r.Replace = cpuset.MustParse("4-5"), true
		},
	}
}

// filled has the workloads in place that the revisions are about.
func (w *world) filled() []Workload {
	w.t.Helper()
	w.opt.Keep = true
	n := w.open()
	defer n.Close()
	web := spec("web", place.LS, 1000, 0)
	web.Group, web.Limits = "web.slice", cgroup.Limits{Weight: 300}
	for _, s := range []Spec{spec("api", place.LSE, 2000, 9000101), spec("db", place.LSR, 1000, 9000102), web} {
		w.place(n, s)
	}
	return w.list(n)
}

// revise makes a revision with a fate; committed is true once the configuration is the
// new one.
func (w *world) revise(f *fate, change func(*Revision)) (alive, committed bool, effects []Effect, err error) {
	w.t.Helper()
	n := w.doom(&fate{})
	if err := n.keep(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.files = doomed{w.k, f}
	r := Revision{Options: w.options()}
	w.files = w.k
	r.Options.Confine = w.opt.Confine
	change(&r)
	n.touch = func(string) error { return f.change(func() error { return nil }) }
	var next *Node
	alive = survives(n, func() {
		next, effects, err = n.Revise(w.t.Context(), r, func() (func() error, error) {
			return func() error { committed = false; return nil }, f.change(func() error { committed = true; return nil })
		})
	})
	n.Close()
	if next != nil {
		next.Close()
	}
	if committed {
		w.opt.Config, w.opt.Confine = r.Options.Config, r.Options.Confine
	}
	return alive, committed, effects, err
}

// A revision that is killed at any change of the kernel's files and of the records leaves
// the old options or the new ones in force, the kernel as the records say, and the way
// back; no exclusive CPU has two owners meanwhile. Without BERTH_CRASHES each is killed
// once, before or after a change that depends on the layout.
func TestKilledRevision(t *testing.T) {
	t.Parallel()
	every := os.Getenv("BERTH_CRASHES") != ""
	for layout, l := range layouts() {
		for name, change := range revisions() {
			t.Run(layout+" "+name, func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(13, uint64(len(layout)+len(name))))
				whole := newWorld(t, l)
				whole.filled()
				f := &fate{}
				if alive, _, _, err := whole.revise(f, change); err != nil || !alive || f.count < 5 {
					t.Fatalf("a revision of %d changes: %v", f.count, err)
				}
				want := whole.list(whole.open())
				first, last := 1, f.count
				if !every {
					first = 1 + rng.IntN(f.count)
					last = first
				}
				for at := first; at <= last; at++ {
					for _, after := range []bool{false, true} {
						w := newWorld(t, l)
						w.killed(fmt.Sprintf("killed at %d of %d, after %v", at, f.count, after), &fate{at: at, after: after, each: w.look}, change, want)
						if t.Failed() {
							return
						}
					}
				}
			})
		}
	}
}

// killed has a revision killed, and looks at what is left of it.
func (w *world) killed(name string, f *fate, change func(*Revision), want []Workload) {
	w.t.Helper()
	before := w.filled()
	alive, committed, _, _ := w.revise(f, change)
	if alive {
		w.t.Errorf("%s: it was not", name)
	}
	n, after := w.settled(name)
	w.exclusive(name, before, after)
	if !committed {
		w.same(name, before, after)
	} else { // the agent asks for its workloads again
		r := Revision{Options: w.options()}
		change(&r)
		r.Options.Confine, r.Replace = w.opt.Confine, false
		next, _, err := n.Revise(w.t.Context(), r, nil)
		if err != nil {
			w.t.Fatalf("%s: again: %v", name, err)
		}
		w.log = nil
		n = next
		ids := func(all []Workload) (ids []string) {
			for i := range all {
				ids = append(ids, all[i].ID())
			}
			return ids
		}
		if diff := cmp.Diff(ids(want), ids(w.list(n))); diff != "" {
			w.t.Errorf("%s: workloads under the new options (-want +got):\n%s", name, diff)
		}
	}
	n.Close()
	w.opt.Keep = false
	w.restored(name)
}

// same compares where workloads are, and what they ask for.
func (w *world) same(name string, want, got []Workload) {
	w.t.Helper()
	for i := range want {
		want[i].Limits, want[i].Notes = cgroup.Limits{}, nil
	}
	for i := range got {
		got[i].Limits, got[i].Notes = cgroup.Limits{}, nil
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b cpuset.Set) bool { return a == b }), cmp.Comparer(func(a, b *place.Grant) bool { return a.Equal(b) })); diff != "" {
		w.t.Errorf("%s: workloads (-before +after):\n%s", name, diff)
	}
}

// A revision that the kernel, the records or the committer refuses leaves all as it was,
// and the node goes on.
func TestRefusedRevision(t *testing.T) {
	t.Parallel()
	refusal := errors.New("refused")
	for name, change := range revisions() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			count := 0
			for at := 1; at == 1 || at <= count; at++ {
				w := newWorld(t, layouts()["v2"])
				before := w.filled()
				tree := w.tree()
				f := &fate{at: at, err: refusal}
				_, committed, _, err := w.revise(f, change)
				if count = max(count, f.count); err == nil {
					continue // what can wait waits: the next transaction does it
				}
				if !errors.Is(err, refusal) || committed {
					t.Fatalf("refused at %d: %v, committed %v", at, err, committed)
				}
				n := w.open()
				w.same(fmt.Sprintf("refused at %d", at), before, w.list(n))
				w.sameTree(tree)
				n.Close()
				if t.Failed() {
					return
				}
			}
		})
	}
}

// What is previewed is what happens, and a preview changes nothing.
func TestPreviewedRevision(t *testing.T) {
	t.Parallel()
	for name, change := range revisions() {
		w := newWorld(t, layouts()["v2"])
		w.filled()
		tree := w.tree()
		n := w.open()
		r := Revision{Options: w.options()}
		change(&r)
		want, plan, err := n.PreviewRevision(t.Context(), r)
		if err != nil || len(want) == 0 || len(plan) == 0 {
			t.Fatalf("%s: %v, %d writes: %v", name, want, len(plan), err)
		}
		w.sameTree(tree)
		next, got, err := n.Revise(t.Context(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		opts := cmp.Options{cmp.Comparer(func(a, b cpuset.Set) bool { return a == b }), cmp.FilterPath(func(p cmp.Path) bool {
			f, ok := p.Last().(cmp.StructField)
			return ok && (f.Name() == "follows" || f.Name() == "evicted" || f.Name() == "err")
		}, cmp.Ignore())}
		if diff := cmp.Diff(want, got, opts...); diff != "" {
			t.Errorf("%s (-previewed +happened):\n%s", name, diff)
		}
	}
}
