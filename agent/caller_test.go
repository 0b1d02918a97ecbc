package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// users gives the fake processes to users: real, effective and saved.
func (h *host) users(of map[int]string) {
	h.t.Helper()
	for pid, uids := range of {
		if err := h.k.Put(fmt.Sprintf("proc/%d/status", pid), "Name:\tx\nUmask:\t0022\nUid:\t"+uids+"\nGid:\t0\t0\t0\t0\n"); err != nil {
			h.t.Fatal(err)
		}
	}
}

// by is a context for calls of an ordinary user.
func by(uid int) context.Context {
	return WithCaller(context.Background(), Caller{UID: uid})
}

// An ordinary user places own processes, and takes from others only what the policy
// gives.
func TestCallerPlaces(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Spec)
		denied string // "": it is placed
	}{
		"own":                {func(*Spec) {}, ""},
		"own, and owner":     {func(s *Spec) { s.Owner.PID = s.PID }, ""},
		"narrowing limits":   {func(s *Spec) { s.Limits = cgroup.Limits{Weight: 50, Quota: 1e8, MemoryMax: 1 << 30, PIDsMax: 9} }, ""},
		"yields":             {func(s *Spec) { s.Request.Class, s.Limits.Idle = place.BE, cgroup.On }, ""},
		"root's process":     {func(s *Spec) { s.PID = 9000100 }, "process 9000100 is not the user's own"},
		"root's as owner":    {func(s *Spec) { s.Owner.PID = 9000100 }, "process 9000100 is not the user's own"},
		"became root":        {func(s *Spec) { s.PID = 9000102 }, "process 9000102 is not the user's own"},
		"no process":         {func(s *Spec) { s.PID = 0 }, "names no process"},
		"a group":            {func(s *Spec) { s.Group = "system.slice" }, "names a control group"},
		"class of the host":  {func(s *Spec) { s.Request.Class = place.System }, "class SYSTEM"},
		"configuration's id": {func(s *Spec) { s.Request.ID = "web:a/b" }, "workloads of the configuration"},
		"weight":             {func(s *Spec) { s.Limits.Weight = 101 }, "weight above 100"},
		"I/O weight":         {func(s *Spec) { s.Limits.IOWeight = 10000 }, "I/O weight above 100"},
		"kept memory":        {func(s *Spec) { s.Limits.MemoryLow = 1 << 30 }, "memoryLow"},
		"frozen":             {func(s *Spec) { s.Limits.Frozen = cgroup.On }, "frozen"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, fakekernel.V2())
			h.users(map[int]string{9000100: "0\t0\t0\t0", 9000101: "1000\t1000\t1000\t1000", 9000102: "1000\t0\t0\t0"})
			if err := h.k.Mkdir("sys/fs/cgroup/system.slice"); err != nil {
				t.Fatal(err)
			}
			n := h.open()
			before := h.tree()
			s := spec("mine", place.LS, 0, 9000101)
			tc.change(&s)
			w, err := n.Place(by(1000), s)
			if tc.denied == "" {
				if err != nil || w.UID != 1000 {
					t.Errorf("placed for user %d: %v", w.UID, err)
				}
				return
			}
			var denied *DeniedError
			if !errors.As(err, &denied) || denied.UID != 1000 || !strings.Contains(denied.Rule, tc.denied) {
				t.Errorf("%v, want that it is denied: %s", err, tc.denied)
			}
			if _, _, err := n.Preview(by(1000), s); !errors.As(err, &denied) {
				t.Errorf("the preview says %v", err)
			}
			h.sameTree(before)
			if _, err := n.Place(WithCaller(context.Background(), Caller{UID: 1000, Admin: true}), s); errors.As(err, &denied) {
				t.Errorf("an admin is denied it: %v", err)
			}
		})
	}
}

// An ordinary user has a bounded number of places, also of one process, and nobody a
// request without end.
func TestCallerMeasure(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	h.users(map[int]string{9000101: "1000\t1000\t1000\t1000"})
	n := h.open()
	h.place(n, spec("root's", place.LS, 0, 9000100))
	for i := range maxOfUser {
		if _, err := n.Place(by(1000), spec(fmt.Sprintf("w%d", i), place.LS, 0, 9000101)); err != nil {
			t.Fatal(i, err)
		}
	}
	var denied *DeniedError
	if _, err := n.Place(by(1000), spec("more", place.LS, 0, 9000101)); !errors.As(err, &denied) || !strings.Contains(denied.Rule, "may have 128 at once") {
		t.Errorf("one more: %v", err)
	}
	if err := n.Release(by(1000), "w0", WhenEmpty); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Place(by(1000), spec("more", place.LS, 0, 9000101)); err != nil {
		t.Errorf("one for another: %v", err)
	}
	large := spec("large", place.LS, 0, 9000101)
	large.Request.Labels = map[string]string{"a": strings.Repeat("x", maxSpec)}
	if _, err := n.Place(context.Background(), large); err == nil || !strings.Contains(err.Error(), "as JSON: more than 16384") {
		t.Errorf("a large one: %v", err)
	}
}

// A place is its user's and the admins' to change; others may look at it.
func TestCallerChangesOwn(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	h.users(map[int]string{9000101: "1000\t1000\t1000\t1000"})
	n := h.open()
	h.place(n, spec("root's", place.LS, 0, 9000100))
	if _, err := n.Place(by(1000), spec("mine", place.LS, 0, 9000101)); err != nil {
		t.Fatal(err)
	}
	n = h.reopened(n)
	changes := func(ctx context.Context, id string) map[string]error {
		all := map[string]error{}
		_, all["resize"] = n.Resize(ctx, spec(id, place.LS, 100, 0))
		_, all["move"] = n.Move(ctx, id, testMachine().Online, testMachine().Online.Minus(testMachine().Online))
		all["kill"] = n.Release(ctx, id, Kill)
		all["release"] = n.Release(ctx, id, WhenEmpty)
		return all
	}
	var denied *DeniedError
	for uid, id := range map[int]string{1000: "root's", 1001: "mine"} {
		for what, err := range changes(by(uid), id) {
			if !errors.As(err, &denied) || !strings.Contains(err.Error(), "belongs to user") || denied.UID != uid {
				t.Errorf("user %d may %s %s: %v", uid, what, id, err)
			}
		}
		if _, err := n.Get(by(uid), id); err != nil {
			t.Errorf("user %d does not see %s: %v", uid, id, err)
		}
		if _, _, err := n.Preview(by(uid), spec(id, place.LS, 100, 0)); err != nil {
			t.Errorf("user %d has no preview of %s: %v", uid, id, err)
		}
	}
	heavy := spec("mine", place.LS, 0, 0)
	heavy.Limits.Weight = 200
	if _, err := n.Resize(by(1000), heavy); !errors.As(err, &denied) {
		t.Errorf("resized beyond what may be placed: %v", err)
	}
	// The agent kills for admins only: in the group may be others' processes.
	for what, err := range changes(by(1000), "mine") {
		var occupied *OccupiedError
		switch what {
		case "kill":
			if !errors.As(err, &denied) || !strings.Contains(err.Error(), "end the processes yourself") {
				t.Errorf("kill: %v", err)
			}
		case "release":
			if !errors.As(err, &occupied) {
				t.Errorf("release: %v", err)
			}
		default:
			if err != nil {
				t.Errorf("user 1000 may not %s an own workload: %v", what, err)
			}
		}
	}
	if err := h.k.Exit("9000101"); err != nil {
		t.Fatal(err)
	}
	if err := n.Release(by(1000), "mine", WhenEmpty); err != nil {
		t.Error(err)
	}
	if err := n.Release(WithCaller(context.Background(), Caller{UID: 1000, Admin: true}), "root's", WhenEmpty); errors.As(err, &denied) {
		t.Errorf("an admin may not release root's: %v", err)
	}
}

// reopened is the node as another process finds it.
func (h *host) reopened(n *Node) *Node {
	h.t.Helper()
	if err := n.Close(); err != nil {
		h.t.Fatal(err)
	}
	return h.open()
}

// A record without a user is root's.
func TestRecordWithoutUser(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	n := h.open()
	h.place(n, spec("old", place.LS, 0, 9000100))
	if os.Geteuid() == 0 {
		name := h.state + "/old" + recordExt
		if text, err := os.ReadFile(name); err != nil || strings.Contains(string(text), `"uid"`) {
			t.Fatalf("root's record tells a user: %s, %v", text, err)
		}
		var denied *DeniedError
		if err := h.reopened(n).Release(by(1000), "old", WhenEmpty); !errors.As(err, &denied) {
			t.Errorf("another user may release it: %v", err)
		}
	}
}

// swap simulates that a process ends, and another one gets its number, when its group is
// made.
type swap struct {
	*fakekernel.Kernel
	pid  string
	done bool
}

func (s *swap) Mkdir(name string) error {
	if strings.HasSuffix(name, "/mine") && !s.done {
		s.done = true
		if err := s.Put("proc/"+s.pid+"/stat", s.pid+" (root's) S"+strings.Repeat(" 0", 18)+" 99999\n"); err != nil {
			return err
		}
	}
	return s.Kernel.Mkdir(name)
}

// A number that has passed to another process between looking at it and writing it
// places nobody: the other process is put back.
func TestProcessSwapped(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	h.users(map[int]string{9000101: "1000\t1000\t1000\t1000"})
	s := &swap{Kernel: h.k, pid: "9000101"}
	h.files = s
	n := h.open()
	before, err := os.ReadFile(h.dir + "/proc/9000101/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var missing *MissingError
	if _, err := n.Place(by(1000), spec("mine", place.LS, 0, 9000101)); !errors.As(err, &missing) || !s.done {
		t.Errorf("placed: %v", err)
	}
	if after, err := os.ReadFile(h.dir + "/proc/9000101/cgroup"); err != nil || string(after) != string(before) {
		t.Errorf("the other process is in %s, %v; it was in %s", after, err, before)
	}
	if all, err := n.List(context.Background()); err != nil || len(all) != 0 {
		t.Errorf("placed are %v, %v", all, err)
	}
}
