package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/place"
)

const rc = fakekernel.ResctrlDir

const classes = `
partitions:
  fast: {l3Allocation: "4 ways", classes: {gold: }}
  rest:
    l3Allocation: "5 ways"
    mbAllocation: ["100%", "40GBps"]
    classes:
      bulk: {l3Allocation: "50%", mbAllocation: ["20%", "5GBps"]}
      DEFAULT:
service: {BE: bulk}
`

func classConfig(t testing.TB, text string) ClassConfig {
	t.Helper()
	c, err := resctrl.Parse([]byte(text), "classes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return ClassConfig{Cache: c}
}

func classHost(t testing.TB, cpu string, change func(*fakekernel.Resctrl)) *host {
	t.Helper()
	l := layouts()["v2"]
	r := fakekernel.ResctrlCPUs()[cpu]
	if change != nil {
		change(&r)
	}
	l.Resctrl = &r
	h := newHost(t, l)
	h.opt.Classes = classConfig(t, classes)
	return h
}

func classed(s Spec, name string) Spec {
	s.Classes = map[ClassKind]string{CacheClass: name}
	return s
}

func (h *host) file(name string) string {
	h.t.Helper()
	text, err := kernel.ReadText(h.k.FS(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	return text
}

// schemata are the lines of a group, without the kernel's spaces.
func (h *host) schemata(group string) string {
	return strings.ReplaceAll(h.file(filepath.Join(rc, group, "schemata")), " ", "")
}

func (h *host) release(n *Node, id string) {
	h.t.Helper()
	if err := n.Release(context.Background(), id, Kill); err != nil {
		h.t.Fatal(err)
	}
}

// On every CPU a workload's threads are in the group of its class, which has what the
// configuration says; released, everything is as it was.
func TestCacheClasses(t *testing.T) {
	t.Parallel()
	for cpu := range fakekernel.ResctrlCPUs() {
		t.Run(cpu, func(t *testing.T) {
			t.Parallel()
			h := classHost(t, cpu, nil)
			before := h.tree()
			n := h.open()
			_, plan, err := n.Preview(context.Background(), classed(spec("api", place.LS, 0, 9000100), "gold"))
			if err != nil || !strings.Contains(plan.String(), "mkdir /"+rc+"/berth-gold") {
				t.Fatalf("preview: %v\n%v", err, plan)
			}
			h.place(n, classed(spec("api", place.LS, 0, 9000100), "gold"))
			h.place(n, spec("batch", place.BE, 0, 9000101))
			if got := h.file(rc + "/berth-gold/tasks"); got != "9000100" {
				t.Errorf("tasks of gold: %s", got)
			}
			if got := h.file(rc + "/berth-bulk/tasks"); got != "9000101" {
				t.Errorf("tasks of bulk, the class of BE: %s", got)
			}
			tree, err := resctrl.Read(h.k.FS())
			if err != nil {
				t.Fatal(err)
			}
			layout, err := h.opt.Classes.Cache.Layout(tree)
			if err != nil {
				t.Fatal(err)
			}
			if plan := layout.Plan(tree, []string{"gold", "bulk"}); len(plan) > 0 {
				t.Errorf("not as it is to be:\n%v", plan)
			}
			h.repairsNothing(n, "again")
			h.release(n, "api")
			if strings.Contains(fmt.Sprint(h.tree()), "berth-gold/") {
				t.Error("the group of a class that nobody has is there still")
			}
			h.release(n, "batch")
			n.Close()
			after := h.tree()
			for name := range before { // the killed processes
				if strings.HasPrefix(name, "proc/90001") || strings.HasSuffix(name, "/tasks") || strings.HasSuffix(name, "cgroup.procs") {
					delete(before, name)
					delete(after, name)
				}
			}
			if diff := cmp.Diff(before[rc+"/schemata"], after[rc+"/schemata"]); diff != "" {
				t.Errorf("default group (-was +is):\n%s", diff)
			}
			for name := range after {
				if _, was := before[name]; !was && strings.HasPrefix(name, rc) {
					t.Errorf("%s is left", name)
				}
			}
		})
	}
}

func TestCacheClassValues(t *testing.T) {
	t.Parallel()
	h := classHost(t, "skylake", nil)
	n := h.open()
	h.place(n, classed(spec("api", place.LS, 0, 9000100), "gold"))
	h.place(n, spec("batch", place.BE, 0, 9000101))
	for group, want := range map[string]string{
		"berth-gold": "L3:0=00f;1=00f\nMB:0=100;1=100", "berth-bulk": "L3:0=070;1=070\nMB:0=20;1=20", "": "L3:0=1f0;1=1f0\nMB:0=100;1=100",
	} {
		if got := h.schemata(group); got != want {
			t.Errorf("group %q: %s\nwant %s", group, got, want)
		}
	}
	w, err := n.Get(context.Background(), "api")
	if err != nil || len(w.Spec.Classes) != 1 {
		t.Errorf("%v, %v", w, err)
	}
	// Another class, and none.
	if _, err := n.Resize(context.Background(), classed(spec("api", place.LS, 0, 0), "bulk")); err != nil {
		t.Fatal(err)
	}
	if got := h.file(rc + "/berth-bulk/tasks"); !strings.Contains(got, "9000100") {
		t.Errorf("tasks of bulk: %s", got)
	}
	if _, err := n.Resize(context.Background(), spec("api", place.LS, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if got := h.file(rc + "/tasks"); !strings.Contains(got, "9000100") {
		t.Errorf("tasks of no class: %s", got)
	}
	// Drift is repaired, others' threads and groups are left.
	if err := h.k.WriteFile(rc+"/berth-bulk/schemata", "L3:0=7ff\n"); err != nil {
		t.Fatal(err)
	}
	repairs, err := n.Reconcile(context.Background())
	if err != nil || len(repairs) != 1 || !strings.HasSuffix(repairs[0].Path, "berth-bulk/schemata") {
		t.Errorf("repairs: %v, %v", repairs, err)
	}
	if got := h.schemata("berth-bulk"); !strings.HasPrefix(got, "L3:0=070") {
		t.Errorf("not repaired: %s", got)
	}
}

// Threads that come to a workload later are found, those that another program has in its own
// groups stay there, and those that have left are let go.
func TestCacheClassFollows(t *testing.T) {
	t.Parallel()
	h := classHost(t, "skylake", nil)
	if err := errors.Join(h.k.Mkdir(rc+"/pod-a"), h.k.WriteFile(rc+"/pod-a/schemata", "L3:0=1\n")); err != nil {
		t.Fatal(err)
	}
	pod := h.schemata("pod-a")
	n := h.open()
	w := h.place(n, classed(spec("api", place.LS, 0, 9000100), "gold"))
	procs := w.Dirs[0] + "/cgroup.procs"
	for _, pid := range []string{"9000101", "9000102"} {
		if err := h.k.WriteFile(procs, pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.k.WriteFile(rc+"/pod-a/tasks", "9000102"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := h.file(rc + "/berth-gold/tasks"); got != "9000100\n9000101" {
		t.Errorf("tasks of gold: %q", got)
	}
	if h.file(rc+"/pod-a/tasks") != "9000102" || h.schemata("pod-a") != pod {
		t.Errorf("the group of another program was changed: %s", h.schemata("pod-a"))
	}
	if err := h.k.WriteFile("sys/fs/cgroup/user.slice/session-1.scope/cgroup.procs", "9000101"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := h.file(rc + "/berth-gold/tasks"); got != "9000100" {
		t.Errorf("tasks of gold after one left: %q", got)
	}
}

// What cannot be is refused before anything is written, with the reason.
func TestCacheClassRefused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	try := func(h *host, s Spec) error {
		n := h.open()
		before := h.tree()
		_, err := n.Place(ctx, s)
		delete(before, "sys/fs/resctrl/info/last_cmd_status")
		after := h.tree()
		delete(after, "sys/fs/resctrl/info/last_cmd_status")
		for name, text := range before {
			if strings.HasPrefix(name, rc) && after[name] != text {
				h.t.Errorf("%s changed", name)
			}
		}
		return err
	}
	gold := classed(spec("api", place.LS, 0, 9000100), "gold")
	for what, c := range map[string]struct {
		host *host
		spec Spec
		want string
	}{
		"unknown":    {classHost(t, "skylake", nil), classed(gold, "glod"), `did you mean "gold"`},
		"no CLOSIDs": {classHost(t, "skylake", func(r *fakekernel.Resctrl) { r.Lines[1].CLOSIDs = 2 }), gold, "at most 1 classes fit"},
		"no RMIDs":   {classHost(t, "skylake", func(r *fakekernel.Resctrl) { r.RMIDs = 1 }), gold, `the kernel says "Out of RMIDs"`},
		"too small":  {classHost(t, "skylake", func(r *fakekernel.Resctrl) { r.Lines[0].Mask = 0xf }), gold, "need 9 ways"},
	} {
		if err := try(c.host, c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	h := newHost(t, layouts()["v2"])
	h.opt.Classes = classConfig(t, classes)
	if err := try(h, gold); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("without resctrl: %v", err)
	}
	h = classHost(t, "skylake", nil)
	if err := h.k.Mkdir(rc + "/berth-gold"); err != nil {
		t.Fatal(err)
	}
	if err := try(h, gold); err == nil || !strings.Contains(err.Error(), "did not make it") {
		t.Errorf("a group of that name: %v", err)
	}
	if err := mayHave(WithCaller(ctx, Caller{UID: 1000}), "place", &gold); err == nil || !strings.Contains(err.Error(), "takes from others") {
		t.Errorf("another user: %v", err)
	}
}

// Without resctrl a workload goes without the class of its class of service; one that asks by
// name is refused.
func TestCacheClassLacks(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	h.opt.Classes = classConfig(t, classes)
	n := h.open()
	h.place(n, spec("batch", place.BE, 0, 9000101))
	w, err := n.Get(context.Background(), "batch")
	if err != nil || w.Classes[CacheClass] != "bulk" || !strings.Contains(strings.Join(w.Notes, "\n"), `cache class "bulk": the workload goes without`) {
		t.Errorf("%v, notes %q, %v", w.Classes, w.Notes, err)
	}
	h.repairsNothing(n, "again")
	if _, err := n.Place(context.Background(), classed(spec("api", place.LS, 0, 9000100), "gold")); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("by name: %v", err)
	}
}

// Numbers of removed groups are not free at once.
func TestCacheClassLimbo(t *testing.T) {
	t.Parallel()
	h := classHost(t, "skylake", func(r *fakekernel.Resctrl) { r.RMIDs, r.Limbo = 2, true })
	n := h.open()
	h.place(n, classed(spec("api", place.LS, 0, 9000100), "gold"))
	h.release(n, "api")
	again := classed(spec("api", place.LS, 0, 9000101), "gold")
	if _, err := n.Place(context.Background(), again); err == nil || !strings.Contains(err.Error(), "not free yet") {
		t.Fatalf("in limbo: %v", err)
	}
	h.k.Settle()
	h.place(n, again)
}

// The group of a workload's class is told while this node has it there, and no other of its name.
func TestCacheGroup(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := classHost(t, "skylake", nil)
	n := h.open()
	h.place(n, classed(spec("api", place.LS, 0, 9000100), "gold"))
	h.place(n, spec("web", place.LS, 0, 9000101))
	has := func(when, id, want string) {
		t.Helper()
		if got, err := n.CacheGroup(ctx, id); got != want || err != nil {
			t.Errorf("%s: %s has %q, %v, want %q", when, id, got, err, want)
		}
	}
	has("placed", "api", "berth-gold")
	has("placed", "web", "")
	var gone *place.NotHeldError
	if _, err := n.CacheGroup(ctx, "nobody"); !errors.As(err, &gone) {
		t.Errorf("of nobody: %v", err)
	}
	for _, err := range []error{h.k.Rmdir(rc + "/berth-gold"), h.k.Mkdir(rc + "/berth-gold")} { // somebody else
		if err != nil {
			t.Fatal(err)
		}
	}
	has("another of its name", "api", "")
}

// A thousand threads are moved by a few writes, in passes: one that was made meanwhile is
// found, one that has ended is no error.
func TestCacheClassThousandThreads(t *testing.T) {
	t.Parallel()
	h := classHost(t, "skylake", nil)
	tids, tasks := []int{}, h.file(rc+"/tasks")
	for pid := 8000000; pid < 8001000; pid++ {
		tids, tasks = append(tids, pid), tasks+"\n"+strconv.Itoa(pid)
	}
	if err := h.k.Put(rc+"/tasks", tasks); err != nil {
		t.Fatal(err)
	}
	count := &counted{Kernel: h.k}
	root := kernel.NewRoot("", count)
	tree, err := resctrl.Read(h.k.FS())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.k.Mkdir(rc + "/berth-gold"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	pass := 0
	list := func() ([]int, error) {
		if pass++; pass == 2 { // one forked between the passes
			if err := h.k.Fork("9000100", "8001000"); err != nil {
				return nil, err
			}
			tids = append(tids, 8001000, 8009999) // and one that has ended
			return tids, nil
		}
		return slices.DeleteFunc(slices.Clone(tids), func(tid int) bool { return tid == 8009999 }), nil
	}
	moved, foreign, err := resctrl.Follow(root, tree, "berth-gold", list)
	if err != nil || moved != 1001 || foreign != 0 {
		t.Fatalf("moved %d, foreign %d, %v", moved, foreign, err)
	}
	if count.writes > 5 {
		t.Errorf("%d writes for a thousand threads", count.writes)
	}
	t.Logf("%d threads by %d writes in %v", moved, count.writes, time.Since(start))
}

type counted struct {
	*fakekernel.Kernel
	writes int
}

func (c *counted) WriteFile(name, data string) error {
	c.writes++
	return c.Kernel.WriteFile(name, data)
}
