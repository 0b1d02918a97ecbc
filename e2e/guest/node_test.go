package guest

import (
	"context"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/place"
)

// host is the guest with groups that are not Berth's, each with a process, and
// the state of a node.
type host struct {
	tree
	t       *testing.T
	machine *machine.Machine
	opt     agent.Options
	events  []agent.Event
	// worker is a process in session.slice, to be placed.
	worker int
}

// foreign are groups that are not Berth's.
func foreign() []string { return []string{"system.slice", "session.slice"} }

// newHost simulates a host until the test ends, when everything has to be as before.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{tree: openTree(t), t: t}
	h.group(t, "system.slice", "sshd.service")
	session := h.group(t, "session.slice", "one").Child("one")
	web := h.group(t, "web.slice")
	var err error
	if h.machine, err = sysfs.Live("/"); err != nil {
		t.Fatal(err)
	}
	h.opt = agent.Options{
		Root: h.Root, Dir: t.TempDir(), Settings: agent.Settings{Confine: []string{"*.slice"}},
		Events: func(e agent.Event) { h.events = append(h.events, e) },
	}
	before := h.settings()
	t.Cleanup(func() {
		// By now the processes have ended, and sets can be empty again on all kernels.
		if diff := cmp.Diff(before, h.restore()); diff != "" {
			t.Errorf("restored (-before +after):\n%s", diff)
		}
	})
	h.child(t, h.base.Child("system.slice/sshd.service"), "sleep")
	h.child(t, web, "sleep")
	h.worker = h.child(t, session, "sleep")
	return h
}

// online are the CPUs that the kernel uses.
func (h *host) online() cpuset.Set { return h.cpus("") }

// cpus are those that a group may use, as the kernel says.
func (h *host) cpus(group string) cpuset.Set {
	h.t.Helper()
	return cpuset.MustParse(h.text(h.t, group, "cpuset.cpus.effective"))
}

func (h *host) mems(group string) cpuset.Set {
	h.t.Helper()
	return cpuset.MustParse(h.text(h.t, group, "cpuset.mems.effective"))
}

// open opens the node anew.
func (h *host) open() *agent.Node {
	h.t.Helper()
	n, err := agent.Open(context.Background(), h.opt)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { n.Close() })
	return n
}

func (h *host) place(n *agent.Node, s agent.Spec) agent.Workload {
	h.t.Helper()
	w, err := n.Place(context.Background(), s)
	if err != nil {
		h.t.Fatal(err)
	}
	return w
}

func (h *host) list(n *agent.Node) []agent.Workload {
	h.t.Helper()
	all, err := n.List(context.Background())
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

func (h *host) get(n *agent.Node, id string) agent.Workload {
	h.t.Helper()
	w, err := n.Get(context.Background(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return w
}

func (h *host) release(n *agent.Node, id string) {
	h.t.Helper()
	if err := n.Release(context.Background(), id, agent.WhenEmpty); err != nil {
		h.t.Fatal(err)
	}
}

// ask is a spec of that many CPUs near a NUMA node.
func ask(id string, class place.Class, cpus, node int) agent.Spec {
	return agent.Spec{Request: place.Request{
		ID: id, Class: class, Milli: 1000 * cpus, Nodes: cpuset.MustOf(node), NodesRequired: true,
	}}
}

// settings are all settings of all groups, and the processes of all but the top.
func (h *host) settings() map[string]string {
	h.t.Helper()
	files := map[string]bool{
		"cgroup.procs": true, "cgroup.subtree_control": true, "cpuset.cpus": true, "cpuset.mems": true, "cpuset.cpus.partition": true,
		"cpu.weight": true, "cpu.idle": true, "cpu.max": true, "memory.max": true, "io.weight": true, "pids.max": true,
	}
	all := map[string]string{}
	err := fs.WalkDir(h.FS(), v2, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !files[d.Name()] || name == v2+"/cgroup.procs" {
			return err
		}
		text, err := fs.ReadFile(h.FS(), name)
		all[strings.TrimPrefix(name, v2)] = strings.TrimSpace(string(text))
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// restore gives everything back and returns what is there then.
func (h *host) restore() map[string]string {
	h.t.Helper()
	n, err := agent.Open(context.Background(), h.opt)
	if err != nil {
		h.t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Restore(context.Background()); err != nil {
		h.t.Errorf("restore: %v", err)
	}
	return h.settings()
}

// settled compares what the node planned with what the kernel says.
func (h *host) settled(when string, n *agent.Node) {
	h.t.Helper()
	state, err := n.State(context.Background())
	if err != nil {
		h.t.Fatal(err)
	}
	all, owned := h.list(n), state.Owned()
	for _, w := range all {
		if got := h.cpus(w.Group); got != w.CPUs || got.IsEmpty() {
			h.t.Errorf("%s: %s runs on CPUs %s, planned %s", when, w.ID(), got, w.CPUs)
		}
		if got := h.mems(w.Group); !w.Mems.IsEmpty() && got != w.Mems {
			h.t.Errorf("%s: %s has memory of nodes %s, planned %s", when, w.ID(), got, w.Mems)
		}
		if w.Spec.PID != 0 && allowed(h.t, w.Spec.PID) != w.CPUs {
			h.t.Errorf("%s: process %d of %s may use %s", when, w.Spec.PID, w.ID(), allowed(h.t, w.Spec.PID))
		}
	}
	h.exclusive(when, all)
	for _, group := range foreign() {
		if got, want := h.cpus(group), h.online().Minus(owned); got != want {
			h.t.Errorf("%s: %s is on %s, want %s", when, group, got, want)
		}
	}
	repairs, err := n.Reconcile(context.Background())
	if err != nil || len(repairs) > 0 {
		h.t.Errorf("%s: to repair: %v, %v", when, repairs, err)
	}
}

// exclusive checks that nobody else may use the workloads' own CPUs, or the rest
// of their cores where they are LSE.
func (h *host) exclusive(when string, all []agent.Workload) {
	h.t.Helper()
	for _, w := range all {
		own := w.Grant.Own
		for _, core := range h.machine.ByKind(machine.Core) {
			if w.Spec.Request.Class == place.LSE && core.CPUs.Overlaps(own) {
				own = own.Union(core.CPUs)
			}
		}
		for _, group := range h.groups() {
			lent := w.Grant.Lent && h.idle(group, all)
			if group != w.Group && !lent && h.cpus(group).Overlaps(own) {
				h.t.Errorf("%s: %s, on %s, is on CPUs of %s, %s", when, group, h.cpus(group), w.ID(), own)
			}
		}
	}
}

func (h *host) idle(group string, all []agent.Workload) bool {
	for _, w := range all {
		if w.Group == group {
			return w.Spec.Request.Class == place.BE
		}
	}
	return false
}

// groups are all groups that hold processes or are a workload's.
func (h *host) groups() []string {
	h.t.Helper()
	var groups []string
	err := fs.WalkDir(h.FS(), v2, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || name == v2 {
			return err
		}
		group := strings.TrimPrefix(name, v2+"/")
		if path.Dir(group) == "berth" || h.text(h.t, group, "cgroup.procs") != "" {
			groups = append(groups, group)
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return groups
}

// TestNode places workloads on two sockets and releases them: at any time the
// kernel's sets are the planned ones. The shared pool shrinks and grows back, and
// so do groups that are not Berth's.
func TestNode(t *testing.T) {
	onlyOn(t, "2s4n", "server-order")
	h := newHost(t)
	n := h.open()
	last := len(h.machine.ByKind(machine.Node)) - 1
	h.place(n, ask("web", place.LS, 1, 0))
	wide := h.cpus("berth/web")
	h.settled("a pool", n)

	api := h.place(n, ask("api", place.LSE, 4, 0))
	if got, want := h.cpus("berth/web"), wide.Minus(api.CPUs); got != want || got == wide {
		t.Errorf("beside own CPUs the pool is %s, want %s", got, want)
	}
	h.settled("own CPUs", n)
	spec := ask("batch", place.BE, 1, last)
	spec.PID = h.worker
	batch := h.place(n, spec).Group
	cache := h.place(n, ask("cache", place.LSR, 2, last))
	if !h.cpus(batch).Contains(cache.Grant.Own) {
		t.Errorf("batch is on %s, without what is lent, %s", h.cpus(batch), cache.Grant.Own)
	}
	db := h.place(n, ask("db", place.LSE, 3, last))
	h.settled("two sockets", n)
	for i, w := range []agent.Workload{api, db} {
		if socket := h.machine.ByKind(machine.Socket)[i]; !socket.CPUs.Contains(w.CPUs) {
			t.Errorf("%s is on %s, socket %d has %s", w.ID(), w.CPUs, i, socket.CPUs)
		}
	}

	before := h.list(n)
	n.Close()
	n = h.open()
	if diff := cmp.Diff(before, h.list(n), cmp.Comparer(func(a, b cpuset.Set) bool { return a == b })); diff != "" {
		t.Errorf("opened again (-before +after):\n%s", diff)
	}
	h.settled("opened again", n)

	h.release(n, "api")
	if got := h.cpus("berth/web"); got != wide {
		t.Errorf("own CPUs released, the pool is %s, was %s before", got, wide)
	}
	h.settled("released", n)
	h.release(n, "db")
	h.release(n, "cache")
	for _, group := range foreign() {
		if got := h.cpus(group); got != h.online() {
			t.Errorf("nobody has own CPUs, %s is on %s", group, got)
		}
	}
	h.settled("all released", n)
}

// TestNodeMemory has a process of a workload take its memory from the workload's
// nodes, and keep it there when the workload moves.
func TestNodeMemory(t *testing.T) {
	onlyOn(t, "2s4n")
	h := newHost(t)
	n := h.open()
	spec := ask("heap", place.LSE, 2, 2)
	spec.Request.Memory = []place.Amount{{Resource: place.Memory, Bytes: 2 * heldBytes}}
	w := h.place(n, spec)
	pid := h.child(t, h.base.Child(w.Group), "hold memory")
	for _, node := range []int{2, 1} {
		if w = h.get(n, "heap"); w.Mems != cpuset.MustOf(node) {
			t.Errorf("memory of nodes %s, want %d", w.Mems, node)
		}
		for at, bytes := range anonByNode(t, pid) {
			if at == node && bytes < heldBytes || at != node && bytes > heldBytes/10 {
				t.Errorf("on node %d: %d bytes are on node %d", node, bytes, at)
			}
		}
		h.settled("memory", n)
		if _, err := n.Move(context.Background(), "heap", cpuset.MustParse("8-9"), cpuset.MustOf(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Release(context.Background(), "heap", agent.Kill); err != nil {
		t.Error(err)
	}
}

// TestNodeWriter has someone else change a workload's CPUs: that is repaired, and
// left to them if they keep at it.
func TestNodeWriter(t *testing.T) {
	onlyOn(t, "flat8")
	h := newHost(t)
	n := h.open()
	h.place(n, ask("api", place.LSE, 2, 0))
	w := h.get(n, "api")
	for i := range 5 {
		h.write(t, w.Group, "cpuset.cpus", "0-7")
		repairs, err := n.Reconcile(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		got, yielded := h.cpus(w.Group), i >= 3
		if wide := got == h.online(); wide != yielded {
			t.Errorf("rewritten %d times: on %s", i+1, got)
		}
		if i <= 3 && (len(repairs) != 1 || repairs[0].Count != i+1 || repairs[0].Yielded != yielded) {
			t.Errorf("rewritten %d times: %+v", i+1, repairs)
		}
	}
	if notes := strings.Join(h.get(n, "api").Notes, "\n"); !strings.Contains(notes, "cpuset.cpus is left to someone else") {
		t.Errorf("notes %q", notes)
	}
}

// TestNodeOffline takes a CPU away that a workload owns, and gives it back. The
// workload gets another, and keeps those whose cores are whole; the others stay.
func TestNodeOffline(t *testing.T) {
	onlyOn(t, "2s4n")
	h := newHost(t)
	n := h.open()
	api := h.place(n, ask("api", place.LSE, 4, 2))
	db := h.place(n, ask("db", place.LSE, 4, 0))
	gone, _ := api.Grant.Own.Last()
	h.switchCPU(gone, "0")
	h.reconcile(n)
	h.settled("offline", n)
	now := h.get(n, "api").Grant.Own
	if kept := now.Intersect(api.Grant.Own); now.Len() != 4 || kept.Len() != 2 {
		t.Errorf("without CPU %d, %s became %s", gone, api.Grant.Own, now)
	}
	h.switchCPU(gone, "1")
	h.reconcile(n)
	h.settled("online again", n)
	for id, want := range map[string]cpuset.Set{"api": now, "db": db.Grant.Own} {
		if got := h.get(n, id).Grant.Own; got != want {
			t.Errorf("%s moved from %s to %s", id, want, got)
		}
	}
}

func (h *host) reconcile(n *agent.Node) {
	h.t.Helper()
	if _, err := n.Reconcile(context.Background()); err != nil {
		h.t.Error(err)
	}
}

// switchCPU switches a CPU on or off, and on at the latest when the test ends.
func (h *host) switchCPU(cpu int, to string) {
	h.t.Helper()
	file := "/sys/devices/system/cpu/cpu" + cpuset.MustOf(cpu).String() + "/online"
	if err := os.WriteFile(file, []byte(to), 0); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = os.WriteFile(file, []byte("1"), 0) })
}
