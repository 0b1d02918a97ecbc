package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// host is a machine that a test simulates: 8 CPUs in 4 cores on 2 nodes.
type host struct {
	t      testing.TB
	k      *fakekernel.Kernel
	files  kernel.Files
	net    traffic.Calls    // nil without
	speed  power.SpeedCalls // nil without
	dir    string           // of the tree
	state  string
	events []Event
	now    time.Time
	opt    Options
}

func layouts() map[string]fakekernel.Layout {
	all := map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2(), "hybrid": fakekernel.Hybrid()}
	for name, l := range all {
		l.CPUs, l.Mems = "0-7", "0-1"
		l.Version = "7.3" // before Linux 7 a v2 set with processes below cannot be made empty again
		if name == "v1" {
			l.V1 = []string{"cpu,cpuacct", "cpuset", "memory"}
		}
		all[name] = l
	}
	return all
}

func newHost(t testing.TB, l fakekernel.Layout) *host {
	t.Helper()
	dir := fakekernel.MemoryDir(t)
	h := &host{t: t, dir: filepath.Join(dir, "root"), state: filepath.Join(dir, "state"), now: time.Unix(1000, 0)}
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if h.k, err = fakekernel.New(h.dir, l); err != nil {
		t.Fatal(err)
	}
	h.files = h.k
	for pid := 9000100; pid < 9000104; pid++ {
		if err := h.k.Start(fmt.Sprint(pid)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// testMachine has 2 nodes of 2 cores of 2 CPUs each.
func testMachine() *machine.Machine {
	m := &machine.Machine{Online: cpuset.MustParse("0-7")}
	for i := range 8 {
		m.CPUs = append(m.CPUs, machine.CPU{ID: i})
	}
	add := func(kind machine.Kind, sets ...string) {
		for i, set := range sets {
			m.Domains = append(m.Domains, machine.Domain{Kind: kind, ID: i, KernelID: i, CPUs: cpuset.MustParse(set)})
		}
	}
	add(machine.Node, "0-3", "4-7")
	add(machine.Core, "0-1", "2-3", "4-5", "6-7")
	return m
}

func (h *host) options() Options {
	o := h.opt
	o.Root, o.Dir, o.Machine = kernel.NewRoot(h.dir, h.files), h.state, testMachine()
	if h.net != nil {
		o.Root = traffic.Lay(o.Root, h.net)
	}
	if h.speed != nil {
		o.Root = power.Lay(o.Root, h.speed)
	}
	o.Root.Patience, o.Root.Marks = time.Millisecond, h.dir
	o.Now = func() time.Time { return h.now }
	o.Events = func(e Event) { h.events = append(h.events, e) }
	return o
}

func (h *host) open() *Node {
	h.t.Helper()
	n, err := Open(context.Background(), h.options())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { n.Close() })
	return n
}

func (h *host) tree() map[string]string {
	h.t.Helper()
	tree, err := h.k.Tree()
	if err != nil {
		h.t.Fatal(err)
	}
	for name := range tree { // moved processes are listed in another order
		if strings.HasPrefix(name, "proc/") {
			tree[name] = strings.TrimSpace(tree[name])
		}
	}
	return tree
}

func (h *host) sameTree(want map[string]string) {
	h.t.Helper()
	if diff := cmp.Diff(want, h.tree()); diff != "" {
		h.t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func spec(id string, class place.Class, milli, pid int) Spec {
	return Spec{Request: place.Request{ID: id, Class: class, Milli: milli}, PID: pid}
}

func (h *host) place(n *Node, s Spec) Workload {
	h.t.Helper()
	w, err := n.Place(context.Background(), s)
	if err != nil {
		h.t.Fatal(err)
	}
	return w
}

// repairsNothing checks that there is nothing to repair.
func (h *host) repairsNothing(n *Node, when string) {
	h.t.Helper()
	if repairs, err := n.Reconcile(context.Background()); err != nil || len(repairs) > 0 {
		h.t.Errorf("%s: repairs: %v, %v", when, repairs, err)
	}
}

// isProcs reports whether a file lists the processes of a control group.
func isProcs(name string) bool {
	file := filepath.Base(name)
	return file == "cgroup.procs" || file == "tasks" && strings.HasPrefix(name, "sys/fs/cgroup/")
}
