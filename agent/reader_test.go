package agent

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

func policies(string, map[string]any) (place.Policy, error) { return berth.Policy{}, nil }

// reader reads the node of h, which others may have open.
func (h *host) reader() *Node {
	h.t.Helper()
	opt := h.options()
	opt.Policies = policies
	r, err := NewReader(opt)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// recorded is the content of a state directory, by name.
func (h *host) recorded() map[string]string {
	h.t.Helper()
	entries, err := os.ReadDir(h.state)
	if err != nil {
		h.t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(h.state, e.Name()))
		if err != nil {
			h.t.Fatal(err)
		}
		all[e.Name()] = string(text)
	}
	return all
}

// TestReaderIsTheNode has a reader say what the open node says, in all layouts, with the
// lock kept by the node.
func TestReaderIsTheNode(t *testing.T) {
	t.Parallel()
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			h := newHost(t, l)
			h.opt.Keep = true
			h.opt.Config = place.Config{Reserved: cpuset.MustParse("0-1")}
			n := h.open()
			h.place(n, spec("api", place.LSE, 2000, 9000100))
			h.place(n, spec("db", place.LS, 1000, 9000101))
			h.opt = Options{}
			want, err := n.List(ctx)
			if err != nil {
				t.Fatal(err)
			}
			tree, records := h.tree(), h.recorded()
			r := h.reader()
			got, err := r.List(ctx)
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b cpuset.Set) bool { return a == b })); diff != "" || err != nil {
				t.Errorf("%v; list (-node +reader):\n%s", err, diff)
			}
			s, err := r.State(ctx)
			if err != nil || s.Config().Reserved != cpuset.MustParse("0-1") {
				t.Errorf("state: %v, %v", s, err)
			}
			add := spec("new", place.LSE, 2000, 9000102)
			w, plan, err := r.Preview(ctx, add)
			if err != nil || w.CPUs.Overlaps(cpuset.MustParse("0-1")) {
				t.Errorf("preview: %v, %v", w.CPUs, err)
			}
			if _, wantPlan, err := n.Preview(ctx, add); err != nil || plan.String() != wantPlan.String() {
				t.Errorf("preview, %v (-node +reader):\n%s", err, cmp.Diff(wantPlan.String(), plan.String()))
			}
			h.sameTree(tree)
			if diff := cmp.Diff(records, h.recorded()); diff != "" {
				t.Errorf("records (-before +after):\n%s", diff)
			}
		})
	}
}

// TestReaderAmidChange reads after every single change of a file of the state directory
// while workloads are placed, moved and released: the records before the change or after it,
// never a mixture, and never an error.
func TestReaderAmidChange(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := v2(t)
	n := h.open()
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	var seen []string
	look := func() {
		all, err := h.reader().List(ctx)
		if err != nil {
			t.Errorf("amid a change: %v", err)
		}
		var ids []string
		for _, w := range all {
			ids = append(ids, w.ID()+" "+w.Grant.Own.String())
		}
		seen = append(seen, strings.Join(ids, ", "))
	}
	n.touch = func(string) error { look(); return nil }
	h.place(n, spec("db", place.LSE, 2000, 9000101))
	if _, err := n.Move(ctx, "api", cpuset.MustParse("6-7"), cpuset.Set{}); err != nil {
		t.Error(err)
	}
	if err := n.Release(ctx, "db", Kill); err != nil {
		t.Error(err)
	}
	n.touch = nil
	look()
	if got := strings.Join(slices.Compact(seen), "; "); got != "api 2-3; api 2-3, db 4-5; api 6-7, db 4-5; api 6-7" {
		t.Errorf("seen: %s", got)
	}
}

// TestSettingsAreKept follows the stored settings through openers with and without a
// configuration.
func TestSettingsAreKept(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := v2(t)
	asked := []string{}
	command := func(name string, confine ...string) *Node {
		t.Helper()
		opt := h.options()
		opt.PolicyName, opt.Confine = name, confine
		opt.Policies = func(name string, options map[string]any) (place.Policy, error) {
			asked = append(asked, strings.Join(append([]string{name}, slices.Sorted(maps.Keys(options))...), " "))
			return berth.Policy{}, nil
		}
		n, err := Open(ctx, opt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	holds := func(what string, n *Node, policy, confine string) {
		t.Helper()
		if got := n.opt.PolicyName + " " + strings.Join(n.opt.Confine, ","); got != policy+" "+confine {
			t.Errorf("%s: settings %q, want %q", what, got, policy+" "+confine)
		}
	}
	holds("first", command("one", "a"), "one", "a")
	n := command("")
	holds("without workloads", n, "", "")
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	holds("named", command("two", "b"), "two", "b")
	holds("as named last", command(""), "two", "b")
	if err := n.Release(ctx, "api", Kill); err != nil {
		t.Fatal(err)
	}
	holds("after the last workload", command(""), "", "")

	h.opt = Options{Keep: true, Settings: Settings{PolicyName: "agents", PolicyOptions: map[string]any{"x": 1}, Confine: []string{"c"}}}
	if err := h.open().Close(); err != nil {
		t.Fatal(err)
	}
	h.opt = Options{}
	n = command("")
	holds("an agent's, without workloads", n, "agents", "c")
	if last := asked[len(asked)-1]; last != "agents x" {
		t.Errorf("asked for policy %q", last)
	}
	h.place(n, spec("api", place.LSE, 2000, 9000101))
	holds("named beside an agent's", command("three", "d"), "three", "d")
	holds("an agent's stay", command(""), "agents", "c")
	if _, err := n.Restore(ctx); err != nil {
		t.Fatal(err)
	}
	holds("after everything was given back", command(""), "", "")
}

// A reader of the live host looks at the affinity of processes, as a preview where there are no
// control groups does, and does not change it.
func TestReaderLooksAtAffinity(t *testing.T) {
	t.Parallel()
	live, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(Options{Root: live, Dir: filepath.Join(t.TempDir(), "none"), Machine: testMachine(), Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, looks := range []bool{r.looks, false} {
		a := newAffinity(r.root, "no control groups", looks)
		if _, err := a.get(os.Getpid()); (err == nil) != looks {
			t.Errorf("looks %v: %v", looks, err)
		}
		if _, err := a.set(os.Getpid(), sched.Attr{}); !errors.Is(err, kernel.ErrNotSupported) {
			t.Errorf("changed: %v", err)
		}
	}
	if !r.looks {
		t.Error("it does not look at the live host")
	}
}
