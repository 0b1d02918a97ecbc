package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// child makes one fake process the child of another.
func (h *host) child(pid, parent int) {
	h.t.Helper()
	stat := fmt.Sprintf("%d (a) S %d%s 7%d\n", pid, parent, strings.Repeat(" 0", 17), pid)
	if err := h.k.Put(fmt.Sprintf("proc/%d/stat", pid), stat); err != nil {
		h.t.Fatal(err)
	}
}

// family is a host with the processes 9000100 > 9000101 > 9000102, and a stranger, 9000103.
func family(t *testing.T, h *host) {
	t.Helper()
	h.child(9000101, 9000100)
	h.child(9000102, 9000101)
}

// whole is a spec for the process 9000100 and those below it.
func whole(id string) Spec {
	s := spec(id, place.BE, 0, 9000100)
	s.Descendants = true
	return s
}

func (h *host) procs(n *Node, id string) []int {
	h.t.Helper()
	w, err := n.Get(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	pids, _, err := n.enforcer.(Supervisor).Processes(&w)
	if err != nil {
		h.t.Fatal(err)
	}
	return pids
}

// What runs already is adopted with its children, and is as it was when it is released
// and runs on.
func TestAdoptAndKeep(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, layout)
			family(t, h)
			n := h.open()
			before := h.tree()
			w := h.place(n, whole("job"))
			if got, want := h.procs(n, "job"), []int{9000100, 9000101, 9000102}; !slices.Equal(got, want) {
				t.Errorf("in the group are %v, want %v", got, want)
			}
			put := func(name, text string) {
				if err := h.k.WriteFile(name, text); err != nil {
					t.Fatal(err)
				}
			}
			// One that was forked in the group since, and one in a group below.
			for pid, group := range map[string]string{"9000110": "", "9000111": "/below"} {
				if err := h.k.Start(pid); err != nil {
					t.Fatal(err)
				}
				for _, dir := range w.Dirs {
					if group != "" {
						if err := h.k.Mkdir(dir + group); err != nil {
							t.Fatal(err)
						}
						if strings.Contains(dir, "cpuset") {
							put(dir+group+"/cpuset.mems", "0")
							put(dir+group+"/cpuset.cpus", "0")
						}
					}
					put(dir+group+"/cgroup.procs", pid)
				}
			}
			if err := n.Release(t.Context(), "job", WhenEmpty); !errors.As(err, new(*OccupiedError)) {
				t.Errorf("release: %v", err)
			}
			if err := n.Release(t.Context(), "job", Keep); err != nil {
				t.Fatal(err)
			}
			for _, pid := range []string{"9000110", "9000111"} {
				if err := h.k.Exit(pid); err != nil {
					t.Fatal(err)
				}
			}
			h.sameTree(before)
		})
	}
}

// A write that fails leaves everything as it was; a death at any write is made good by the
// next who opens the node.
func TestAdoptFails(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, wrong := range []error{syscall.ENOSPC, nil} {
				for at := 1; ; at++ {
					h := newHost(t, layout)
					family(t, h)
					if err := h.open().Close(); err != nil {
						t.Fatal(err)
					}
					before := h.tree()
					f := &fate{at: at, err: wrong}
					n := h.doom(f)
					var err error
					alive := survives(n, func() { _, err = n.Place(t.Context(), whole("job")) })
					if alive && f.count < at {
						break
					}
					again := h.open()
					if _, gone := again.Get(t.Context(), "job"); gone == nil {
						if err := again.Release(t.Context(), "job", Keep); err != nil {
							t.Fatalf("change %d (%v): release: %v", at, wrong, err)
						}
					} else if alive && err == nil {
						t.Fatalf("change %d (%v): placed, and gone", at, wrong)
					}
					h.sameTree(before)
					if t.Failed() {
						t.Fatalf("change %d (%v, alive %t): %v", at, wrong, alive, err)
					}
					again.Close()
				}
			}
		})
	}
}

// Processes of another user, and of another workload, stay where they are.
func TestAdoptLeavesOthers(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	family(t, h)
	h.users(map[int]string{9000100: "1000\t1000\t1000\t1000", 9000101: "1000\t1000\t1000\t1000", 9000102: "0\t0\t0\t0"})
	n := h.open()
	if _, err := n.Place(by(1000), whole("mine")); err != nil {
		t.Fatal(err)
	}
	if got, want := h.procs(n, "mine"), []int{9000100, 9000101}; !slices.Equal(got, want) {
		t.Errorf("of a user: %v, want %v", got, want)
	}
	if err := n.Release(by(1000), "mine", Keep); err != nil {
		t.Fatal(err)
	}
	h.place(n, spec("other", place.LS, 0, 9000101))
	if err := n.Release(by(1000), "other", Keep); !errors.As(err, new(*DeniedError)) {
		t.Errorf("a user releases root's: %v", err)
	}
	h.place(n, whole("all"))
	if got, want := h.procs(n, "all"), []int{9000100, 9000102}; !slices.Equal(got, want) {
		t.Errorf("beside another workload: %v, want %v", got, want)
	}
	var group *GroupError
	third := spec("third", place.LS, 0, 9000101)
	third.Descendants = true
	if _, err := n.Place(context.Background(), third); !errors.As(err, &group) || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("the process of another workload: %v", err)
	}
	if err := (&Spec{Request: place.Request{ID: "x"}, Descendants: true}).Validate(); err == nil {
		t.Error("descendants of nothing are valid")
	}
}

// A user who is no admin has only so many processes moved; with one more, nothing is left of the attempt.
func TestAdoptMost(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	of := map[int]string{9000100: "1000\t1000\t1000\t1000"}
	for i := range mostBelow {
		h.child(9100000+i, 9000100)
		of[9100000+i] = of[9000100]
	}
	h.users(of)
	n := h.open()
	if below, err := n.descendants(new(whole("mine")), Caller{UID: 1000}); err != nil || len(below) != mostBelow {
		t.Errorf("%d are moved, %v; want %d", len(below), err, mostBelow)
	}
	h.child(9200000, 9100000)
	before := h.tree()
	var denied *DeniedError
	const rule = "process 9000100 has 1025 processes below it, and may have 1024; place it before it starts them"
	if _, err := n.Place(by(1000), whole("mine")); !errors.As(err, &denied) || denied.Rule != rule || denied.Change != `place workload "mine"` {
		t.Errorf("one more: %v", err)
	}
	other := whole("other")
	other.PID = 9100001
	if _, err := n.PlaceTogether(by(1000), []Spec{whole("mine"), other}); !errors.As(err, &denied) || !strings.Contains(denied.Rule, "2 of them ask for the processes below") {
		t.Errorf("two at once: %v", err)
	}
	h.sameTree(before)
	if notes := h.undoLog(n).Notes(); len(notes) > 0 {
		t.Errorf("noted to be undone: %v", notes)
	}
	if below, err := n.descendants(new(whole("mine")), Caller{Admin: true}); err != nil || len(below) != mostBelow+1 {
		t.Errorf("of an admin %d are moved, %v", len(below), err)
	}
}

// A process that gets the number of one below, between the look at that one's user and the write, stays
// where it is.
func TestAdoptMovesNobodyElse(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const child = "9000101"
			h := newHost(t, layout)
			h.child(9000101, 9000100)
			h.users(map[int]string{9000100: "1000\t1000\t1000\t1000", 9000101: "1000\t1000\t1000\t1000"})
			done := false
			h.files = between{h.k, "proc/" + child + "/status", func() {
				if err := h.k.Reuse(child); err != nil {
					t.Error(err)
				}
				h.users(map[int]string{9000101: "0\t0\t0\t0"})
			}, &done}
			n := h.open()
			if _, err := n.Place(by(1000), whole("mine")); err != nil {
				t.Fatal(err)
			}
			if got := h.procs(n, "mine"); !slices.Equal(got, []int{9000100}) || !done {
				t.Errorf("in the group are %v, the number passed on: %t", got, done)
			}
			if got := h.group(child); got != layout.Own {
				t.Errorf("another process was moved to %s", got)
			}
		})
	}
}

// Where a process came from may be gone by then: it goes to the top of the tree.
func TestKeepWithoutFormerGroup(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, layout)
			n := h.open()
			tops := n.site.Dirs
			put := func(name, text string) {
				t.Helper()
				if err := h.k.WriteFile(name, text); err != nil {
					t.Fatal(err)
				}
			}
			for _, top := range tops {
				if err := h.k.Mkdir(top + "/scope"); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(top, "cpuset") {
					put(top+"/scope/cpuset.mems", "0")
					put(top+"/scope/cpuset.cpus", "0-7")
				}
				put(top+"/scope/cgroup.procs", "9000100")
			}
			h.users(map[int]string{9000100: "1000\t1000\t1000\t1000"})
			if _, err := n.Place(by(1000), whole("job")); err != nil {
				t.Fatal(err)
			}
			for _, top := range tops {
				if err := h.k.Rmdir(top + "/scope"); err != nil {
					t.Fatal(err)
				}
			}
			// That is out of the user's own limits, so not for the user to ask for.
			if err := n.Release(by(1000), "job", Keep); !errors.As(err, new(*DeniedError)) {
				t.Errorf("by the user: %v", err)
			}
			if err := n.Release(t.Context(), "job", Keep); err != nil {
				t.Fatal(err)
			}
			for _, top := range tops {
				text, err := kernel.ReadText(n.root.FS(), top+"/cgroup.procs")
				if err != nil || !slices.Contains(strings.Fields(text), "9000100") {
					t.Errorf("%s has %q, %v", top, text, err)
				}
			}
		})
	}
}
