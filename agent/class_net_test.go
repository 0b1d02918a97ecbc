package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fakenet"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

// netHost has a device eth0 with classes, and eth1 without.
func netHost(t testing.TB, layout string) (*host, *fakenet.Network) {
	t.Helper()
	l := layouts()[layout]
	l.Own = "/"
	if layout == "hybrid" { // all controllers are v1's, as systemd has it
		l.V1, l.V2Controllers = fakekernel.V1().V1, nil
	}
	h := newHost(t, l)
	net := fakenet.New(h.k.FS(), "eth0", "eth1")
	h.net = net
	h.opt.Classes.Net = &traffic.Config{
		Devices: map[string]traffic.LinkConfig{"eth0": {Rate: 100e6}},
		Classes: map[string]traffic.Share{
			"first": {Floor: traffic.Amount{Rate: 30e6}, Priority: 1},
			"bulk":  {Floor: traffic.Amount{Percent: 10}, Ceiling: traffic.Amount{Rate: 50e6}, Priority: 8},
		},
		Service: map[string]string{"BE": "bulk"},
	}
	return h, net
}

// fqHost is a netHost of v2 whose eth0 has an fq of somebody's, and whose classes are ceilings.
func fqHost(t testing.TB) (*host, *fakenet.Network) {
	t.Helper()
	h, net := netHost(t, "v2")
	net.Put("eth0", traffic.Qdisc{Kind: "fq", Handle: 0x80010000, Paces: true})
	h.opt.Classes.Net.Classes = map[string]traffic.Share{"first": {Ceiling: traffic.Amount{Percent: 90}}, "bulk": {Ceiling: traffic.Amount{Rate: 50e6}}}
	return h, net
}

func netted(s Spec, name string) Spec {
	s.Classes = map[ClassKind]string{NetClass: name}
	return s
}

// marks are the marks of all groups, by directory.
func (h *host) marks(net *fakenet.Network) map[string]uint16 {
	h.t.Helper()
	all := map[string]uint16{}
	err := fs.WalkDir(h.k.FS(), "sys/fs/cgroup", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		minor, err := net.Mark(name)
		if minor != 0 {
			all[name] = minor
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// A workload's packets have its class as long as it has it, in any layout of control groups;
// with the last workload goes the discipline.
func TestNetClasses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for layout, dirs := range map[string][2]string{
		"v2":     {"sys/fs/cgroup/berth/api", "sys/fs/cgroup/berth-idle/batch"},
		"hybrid": {"sys/fs/cgroup/unified/berth-net-api", "sys/fs/cgroup/unified/berth-net-batch"},
	} {
		t.Run(layout, func(t *testing.T) {
			h, net := netHost(t, layout)
			n := h.open()
			if _, plan, err := n.Preview(ctx, netted(spec("api", place.LS, 100, 9000100), "first")); err != nil ||
				!strings.Contains(plan.String(), "mkdir /sys/net/eth0/htb  # HTB at the root of eth0, link 100Mbit") || !strings.Contains(plan.String(), dirs[0]+"/berth.net_class  # network class first") {
				t.Errorf("preview: %v\n%s", err, plan)
			}
			h.place(n, netted(spec("api", place.LS, 100, 9000100), "first"))
			h.place(n, spec("batch", place.BE, 100, 9000101))
			root, classes := net.Of("eth0")
			if root.Kind != "htb" || len(classes) != 4 {
				t.Errorf("eth0: %v %v", root, classes)
			}
			rates := map[traffic.Class]bool{}
			for _, c := range classes {
				rates[c] = true
			}
			want := map[traffic.Class]bool{{Rate: 12_500_000, Ceil: 12_500_000, Prio: 0}: true, {Rate: 7_500_000, Ceil: 12_500_000, Prio: 3}: true, {Rate: 3_750_000, Ceil: 12_500_000, Prio: 0}: true, {Rate: 1_250_000, Ceil: 6_250_000, Prio: 7}: true}
			if diff := cmp.Diff(want, rates); diff != "" {
				t.Errorf("classes (-want +got):\n%s", diff)
			}
			marks := h.marks(net)
			if classes[marks[dirs[0]]].Prio != 0 || classes[marks[dirs[1]]].Prio != 7 || len(marks) != 2 {
				t.Errorf("marks: %v of %v", marks, classes)
			}
			if layout == "hybrid" {
				if got := h.file(dirs[0] + "/cgroup.procs"); got != "9000100" {
					t.Errorf("processes in %s: %q", dirs[0], got)
				}
			}
			if root, _ := net.Of("eth1"); root.Kind != "pfifo_fast" {
				t.Errorf("eth1: %v", root)
			}
			writes := net.Writes
			if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 || net.Writes != writes {
				t.Errorf("again: %v, %v, %d writes", repairs, err, net.Writes-writes)
			}
			r, err := n.ClassReport(ctx)
			if err != nil {
				t.Fatal(err)
			}
			s := r.Kinds[slices.IndexFunc(r.Kinds, func(s ClassSection) bool { return s.Kind == NetClass })]
			bulk := ClassUse{
				Name: "bulk", InForce: true, Workloads: []string{"batch"}, Links: []ClassLink{{"eth0", 10e6, 50e6, 8, traffic.HTB, "classes have floors or priorities", new(uint64(0))}},
				Settings: []ClassSetting{{"eth0", "10Mbit to 50Mbit, priority 8"}},
			}
			if diff := cmp.Diff(bulk, s.Classes[0]); diff != "" || len(s.Classes) != 3 || s.Classes[2].Workloads[0] != everybodyElse {
				t.Errorf("report (-want +got):\n%s\n%+v", diff, s)
			}
			net.Drop("eth0", marks[dirs[1]], 17)
			if r, err = n.ClassReport(ctx); err != nil || cmp.Diff(new(uint64(17)), r.NetOf(&Workload{Classes: map[ClassKind]string{NetClass: "bulk"}}).Links[0].Dropped) != "" {
				t.Errorf("packets were dropped: %+v, %v", r, err)
			}
			if _, err := n.Resize(ctx, netted(spec("api", place.LS, 100, 0), "bulk")); err != nil {
				t.Fatal(err)
			}
			if now := h.marks(net); now[dirs[0]] != marks[dirs[1]] {
				t.Errorf("api is in bulk: marks %v, were %v", now, marks)
			}
			if _, err := n.Resize(ctx, netted(spec("api", place.LS, 100, 0), "none")); err != nil {
				t.Fatal(err)
			}
			if now := h.marks(net); len(now) != 1 {
				t.Errorf("api is in none: marks %v", now)
			}
			h.release(n, "batch")
			if root, _ := net.Of("eth0"); root.Kind != "pfifo_fast" {
				t.Errorf("nobody has a class: %v", root)
			}
			h.release(n, "api")
			if h.undoLog(n).Has(isNetStep) {
				t.Error("the undo log still has steps")
			}
			for name := range h.tree() {
				if strings.Contains(name, netGroup) {
					t.Errorf("released: /%s is left", name)
				}
			}
		})
	}
}

// The groups of a workload whose name is that of a group for its packets are no such groups.
func TestNetClassName(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"v2", "hybrid"} {
		h, net := netHost(t, layout)
		n := h.open()
		w := h.place(n, netted(spec(netGroup+"x", place.LS, 100, 0), "first"))
		h.place(n, netted(spec("y", place.LS, 100, 9000101), "first"))
		for _, dir := range w.Dirs {
			if _, err := fs.Stat(h.k.FS(), dir); err != nil {
				t.Errorf("%s: %v", layout, err)
			}
		}
		h.release(n, netGroup+"x")
		h.release(n, "y")
		if log := h.undoLog(n); log.Has(isNetStep) || len(h.marks(net)) > 0 {
			t.Errorf("%s: the undo log still has steps, or groups marks %v", layout, h.marks(net))
		}
		for name := range h.tree() {
			if strings.Contains(name, netGroup) {
				t.Errorf("%s: released: /%s is left", layout, name)
			}
		}
	}
}

// A device with fq keeps it, and classes that are ceilings are in force on it. Once they have
// floors, HTB takes the place of the kernel's fq, and the program goes; somebody's fq stays.
func TestNetClassByFq(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for what, kernels := range map[string]bool{"the kernel's": true, "somebody's": false} {
		h, net := fqHost(t)
		h.opt.Keep = true
		was, _ := net.Of("eth0")
		if kernels {
			was.Handle = 0
			net.Put("eth0", was)
		}
		n := h.open()
		h.place(n, netted(spec("api", place.LS, 100, 9000100), "first"))
		h.place(n, spec("batch", place.BE, 100, 9000101))
		root, classes := net.Of("eth0")
		if paced := net.PacedBy("eth0"); root != was || len(classes) > 0 || len(paced) != 3 || paced[h.marks(net)["sys/fs/cgroup/berth-idle/batch"]].Ceil != 6_250_000 {
			t.Errorf("%s: %v, %v, %v", what, root, classes, paced)
		}
		writes := net.Writes
		if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 || net.Writes != writes {
			t.Errorf("%s: again: %v, %v, %d writes", what, repairs, err, net.Writes-writes)
		}
		r, err := n.ClassReport(ctx)
		if err != nil {
			t.Fatal(err)
		}
		w, err := n.Get(ctx, "batch")
		want := []ClassLink{{"eth0", 8000, 50e6, 4, traffic.EDT, "eth0 has fq, and no class has a floor or a priority", new(uint64(0))}}
		if diff := cmp.Diff(want, r.NetOf(&w).Links); diff != "" || err != nil || len(w.Notes) > 0 || want[0].Text() != "at most 50Mbit, by fq" {
			t.Errorf("%s: report (-want +got):\n%s%v, notes %q", what, diff, err, w.Notes)
		}
		c := *h.opt.Classes.Net
		c.Classes = map[string]traffic.Share{"first": {Floor: traffic.Amount{Rate: 30e6}}, "bulk": c.Classes["bulk"]}
		h.opt.Classes.Net = &c
		next, _, err := n.Revise(ctx, Revision{Options: h.options()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		n = next
		root, classes = net.Of("eth0")
		if paced := net.PacedBy("eth0"); kernels && (root.Kind != "htb" || len(classes) != 4 || paced != nil) || !kernels && root != was {
			t.Errorf("%s, with a floor: %v, %v, %v", what, root, classes, paced)
		}
		for _, id := range []string{"api", "batch"} {
			h.release(n, id)
		}
		if root, _ := net.Of("eth0"); root.Kind == "htb" || net.PacedBy("eth0") != nil || len(h.marks(net)) > 0 {
			t.Errorf("%s, released: %v, %v, %v", what, root, net.PacedBy("eth0"), h.marks(net))
		}
		n.Close()
	}
}

// For the notes of all workloads, the devices are read once.
func TestNetNotesOnce(t *testing.T) {
	t.Parallel()
	h, net := netHost(t, "v2")
	n := h.open()
	for i, id := range []string{"a", "b", "c"} {
		h.place(n, netted(spec(id, place.LS, 100, 9000100+i), []string{"first", "bulk", "first"}[i]))
	}
	net.Put("eth0", traffic.Qdisc{Kind: "fq", Handle: 0x80010000})
	before := net.Reads
	all, err := n.List(context.Background())
	if err != nil || len(all) != 3 || net.Reads != before+1 {
		t.Errorf("%d workloads, %v, read %d times", len(all), err, net.Reads-before)
	}
	for _, w := range all {
		if want := fmt.Sprintf("network class %q: eth0 has a root", w.Spec.Classes[NetClass]); len(w.Notes) != 1 || !strings.HasPrefix(w.Notes[0], want) {
			t.Errorf("notes %q, want %q", w.Notes, want)
		}
	}
}

// A workload's group is named from the base on, in v2, too: there is another one of its name at
// the top.
func TestNetClassBelowBase(t *testing.T) {
	t.Parallel()
	h, _ := netHost(t, "hybrid")
	n := h.open()
	const unified = "sys/fs/cgroup/unified"
	for _, dir := range []string{"/web", "/a", "/a/web"} {
		if err := h.k.Mkdir(unified + dir); err != nil {
			t.Fatal(err)
		}
	}
	top := n.site.Top
	for base, want := range map[string]string{"": unified + "/web", "/a": unified + "/a/web", "/b": unified + "/" + netGroup + "x"} {
		n.site.Dirs = []string{top + base}
		w := &Workload{Spec: Spec{Request: place.Request{ID: "x"}, Group: "web"}, Dirs: []string{top + base + "/web"}}
		if g, err := (&netClasses{n}).groupOf(w); err != nil || g.dir != want {
			t.Errorf("base %q: %s, %v, want %s", base, g.dir, err, want)
		}
	}
	n.site.Dirs, n.site.Top = []string{top}, ""
	w := &Workload{Spec: Spec{Request: place.Request{ID: "x"}, Group: "web"}, Dirs: []string{top + "/web"}}
	if g, err := (&netClasses{n}).groupOf(w); err != nil || g.dir != unified+"/web" {
		t.Errorf("no top is told: %s, %v", g.dir, err)
	}
}

// A workload whose process began in another workload gets its class.
func TestNetClassNested(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h, net := netHost(t, "hybrid")
	n := h.open()
	h.place(n, netted(spec("outer", place.LS, 100, 9000100), "first"))
	const outer, inner = "sys/fs/cgroup/unified/berth-net-outer", "sys/fs/cgroup/unified/berth-net-inner"
	if err := h.k.WriteFile(outer+"/cgroup.procs", "9000101"); err != nil {
		t.Fatal(err)
	}
	if w := h.place(n, netted(spec("inner", place.LS, 100, 9000101), "bulk")); len(w.Notes) > 0 {
		t.Errorf("notes %q", w.Notes)
	}
	if _, err := n.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	if o, i := h.file(outer+"/cgroup.procs"), h.file(inner+"/cgroup.procs"); o != "9000100" || i != "9000101" {
		t.Errorf("processes %q in outer, %q in inner", o, i)
	}
	if marks := h.marks(net); len(marks) != 2 || marks[outer] == marks[inner] {
		t.Errorf("marks %v", marks)
	}
}

// A group that another program made within one of Berth's is that program's.
func TestNetClassForeignBelow(t *testing.T) {
	t.Parallel()
	h, net := netHost(t, "hybrid")
	n := h.open()
	h.place(n, netted(spec("outer", place.LS, 100, 9000100), "first"))
	const theirs = "sys/fs/cgroup/unified/berth-net-outer/theirs"
	if err := errors.Join(h.k.Mkdir(theirs), h.k.WriteFile(theirs+"/cgroup.procs", "9000101")); err != nil {
		t.Fatal(err)
	}
	_, err := n.Place(context.Background(), netted(spec("inner", place.LS, 100, 9000101), "bulk"))
	if !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "in the v2 group /berth-net-outer/theirs, by which another program keeps track of it") {
		t.Errorf("%v", err)
	}
	if procs := h.file(theirs + "/cgroup.procs"); procs != "9000101" || len(h.marks(net)) != 1 {
		t.Errorf("processes %q, marks %v", procs, h.marks(net))
	}
}

// A class that comes late leaves the sockets of before without it where a group is made for it, and
// that is told until it goes.
func TestNetClassLate(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, layout := range []string{"v2", "hybrid"} {
		h, _ := netHost(t, layout)
		n := h.open()
		h.place(n, spec("api", place.LS, 100, 9000100))
		h.place(n, netted(spec("web", place.LS, 100, 9000101), "first"))
		for i, s := range []struct {
			id, class string
			told      bool
		}{{"api", "first", true}, {"api", "bulk", true}, {"web", "bulk", false}, {"api", "none", false}} {
			if _, err := n.Resize(ctx, netted(spec(s.id, place.LS, 100, 0), s.class)); err != nil {
				t.Fatal(err)
			}
			if i == 1 {
				n = h.open() // it is on record
			}
			w, err := n.Get(ctx, s.id)
			has := slices.ContainsFunc(w.Notes, func(text string) bool { return strings.Contains(text, "it got the class while it ran") })
			if err != nil || has != (s.told && layout == "hybrid") {
				t.Errorf("%s, step %d: notes %q, %v", layout, i, w.Notes, err)
			}
		}
	}
}

// What sockets of adopted processes do without is told.
func TestNetClassAdopted(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"v2", "hybrid"} {
		h, _ := netHost(t, layout)
		n := h.open()
		adopted := netted(spec("api", place.LS, 100, 9000100), "first")
		adopted.Descendants = true
		h.place(n, adopted)
		h.place(n, netted(spec("web", place.LS, 100, 9000101), "first"))
		for id, told := range map[string]bool{"api": true, "web": false} {
			w, err := n.Get(context.Background(), id)
			if has := slices.ContainsFunc(w.Notes, func(text string) bool { return strings.Contains(text, "its processes were adopted") }); err != nil || has != told {
				t.Errorf("%s, %s: notes %q, %v", layout, id, w.Notes, err)
			}
		}
	}
}

// A process that gets the number of one that is to be moved, or of the one that was placed and has ended,
// stays where it is.
func TestNetClassMovesNobodyElse(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const group = "sys/fs/cgroup/unified/berth-net-api"
	for what, pass := range map[string]int{"before its start is read": 1, "before it is written": 2} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h, _ := netHost(t, "hybrid")
			w := h.place(h.open(), netted(spec("api", place.LS, 100, 9000100), "first"))
			for _, dir := range w.Dirs {
				if err := h.k.WriteFile(dir+"/cgroup.procs", "9000101"); err != nil {
					t.Fatal(err)
				}
			}
			lists, reused := 0, false
			h.files = told{h.k, func(name string) {
				switch {
				case name == group+"/cgroup.procs":
					lists++
				case name == w.Dirs[0]+"/cgroup.procs" && lists == pass && !reused:
					reused = true
					if err := h.k.Reuse("9000101"); err != nil {
						t.Error(err)
					}
				}
			}}
			n := h.open()
			if _, err := n.Reconcile(ctx); err != nil {
				t.Fatal(err)
			}
			if got := h.file(group + "/cgroup.procs"); got != "9000100" || !reused {
				t.Errorf("processes in the group: %q, the number passed on: %t", got, reused)
			}
		})
	}
	h, _ := netHost(t, "hybrid")
	n := h.open()
	s := netted(spec("api", place.LS, 100, 9000100), "first")
	s.Owner.PID = 9000101
	h.place(n, s)
	if err := h.k.Reuse("9000100"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	if w, err := n.Get(ctx, "api"); err != nil || h.file(group+"/cgroup.procs") != "" {
		t.Errorf("workload %v, %v: processes in its group: %q", w.State, err, h.file(group+"/cgroup.procs"))
	}
}

// What others do to the disciplines is repaired, or left to them.
func TestNetClassDrift(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h, net := netHost(t, "hybrid")
	n := h.open()
	w := h.place(n, netted(spec("api", place.LS, 100, 9000100), "first"))
	if len(w.Notes) > 0 {
		t.Errorf("notes %q", w.Notes)
	}
	_, classes := net.Of("eth0")
	const group = "sys/fs/cgroup/unified/berth-net-api"
	whole := func(what string) {
		t.Helper()
		if _, err := n.Reconcile(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, now := net.Of("eth0"); !maps.Equal(classes, now) {
			t.Errorf("%s: %v, want %v", what, now, classes)
		}
		if h.marks(net)[group] == 0 || h.file(group+"/cgroup.procs") != "9000100" {
			t.Errorf("%s: marks %v, processes %q", what, h.marks(net), h.file(group+"/cgroup.procs"))
		}
	}
	net.Put("eth0", traffic.Qdisc{})
	whole("removed")
	index, err := net.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(net.SetClass(traffic.HTB, index["eth0"], 2, traffic.Class{Rate: 1000, Ceil: 1000}), net.SetClass(traffic.HTB, index["eth0"], 99, traffic.Class{Rate: 1000, Ceil: 1000}), net.SetMark(group, 0)); err != nil {
		t.Fatal(err)
	}
	whole("changed")
	// The kernel takes a ceiling below the rate.
	if err := net.SetClass(traffic.HTB, index["eth0"], 2, traffic.Class{Rate: 2000, Ceil: 1000}); err != nil {
		t.Fatal(err)
	}
	whole("changed to what Berth would not write")
	if err := h.k.WriteFile("sys/fs/cgroup/unified/cgroup.procs", "9000100"); err != nil {
		t.Fatal(err)
	}
	whole("moved out")

	theirs := traffic.Qdisc{Kind: "fq", Handle: 0x80010000}
	net.Put("eth0", theirs)
	h.repairsNothing(n, "replaced")
	if w, err := n.Get(ctx, "api"); err != nil || !slices.ContainsFunc(w.Notes, func(text string) bool {
		return strings.Contains(text, `network class "first": eth0 has a root queueing discipline of somebody else's, "fq 8001:", which is not replaced`)
	}) {
		t.Errorf("notes %q, %v", w.Notes, err)
	}
	if _, err := n.Place(ctx, netted(spec("web", place.LS, 100, 9000101), "bulk")); err == nil || !strings.Contains(err.Error(), "fq 8001:") {
		t.Errorf("asked for: %v", err)
	}
	h.release(n, "api")
	if root, _ := net.Of("eth0"); root != theirs {
		t.Errorf("released: %v", root)
	}
}

// A class that is asked for where it cannot be had is refused before anything is written; one
// that follows from the class of service is left out, and a note says so.
func TestNetClassRefused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for what, tc := range map[string]struct {
		layout, class string
		change        func(*host, *fakenet.Network)
		want          string
	}{
		"unknown class":  {"v2", "bulc", func(*host, *fakenet.Network) {}, `did you mean "bulk"`},
		"unknown device": {"v2", "bulk", func(_ *host, net *fakenet.Network) { net.Unplug("eth0") }, `there is no network device "eth0"; did you mean "eth1"`},
		"no room":        {"v2", "bulk", func(h *host, _ *fakenet.Network) { h.opt.Classes.Net.Devices["eth0"] = traffic.LinkConfig{Rate: 32e6} }, "add up to 33.2Mbit, more than the 32Mbit of eth0"},
		"fake tree":      {"v2", "bulk", func(h *host, _ *fakenet.Network) { h.net = nil }, "network classes: not supported: this is not the live host"},
		"v1":             {"v1", "bulk", func(*host, *fakenet.Network) {}, "cgroup v2 is not mounted"},
		"tracked": {"hybrid", "bulk", func(h *host, _ *fakenet.Network) {
			const dir = "sys/fs/cgroup/unified/user.slice"
			if err := errors.Join(h.k.Mkdir(dir), h.k.WriteFile(dir+"/cgroup.procs", "9000100")); err != nil {
				h.t.Fatal(err)
			}
		}, "its process 9000100 is in the v2 group /user.slice"},
	} {
		t.Run(what, func(t *testing.T) {
			h, net := netHost(t, tc.layout)
			tc.change(h, net)
			n := h.open()
			before := h.tree()
			if _, err := n.Place(ctx, netted(spec("api", place.LS, 100, 9000100), tc.class)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			h.sameTree(before)
			if net.Writes > 0 {
				t.Errorf("%d writes", net.Writes)
			}
			if tc.class != "bulk" {
				return
			}
			w := h.place(n, spec("batch", place.BE, 100, 9000100))
			if !slices.ContainsFunc(w.Notes, func(text string) bool {
				return strings.HasPrefix(text, `network class "bulk": `) && strings.Contains(text, tc.want)
			}) {
				t.Errorf("notes %q, want %q", w.Notes, tc.want)
			}
		})
	}
}

// doomedNet are the calls of a process with a fate.
type doomedNet struct {
	*fakenet.Network
	*fate
}

func (d doomedNet) Divide(by traffic.Mechanism, index int) error {
	return d.change(func() error { return d.Network.Divide(by, index) })
}

func (d doomedNet) Join(by traffic.Mechanism, index int) error {
	return d.change(func() error { return d.Network.Join(by, index) })
}

func (d doomedNet) SetClass(by traffic.Mechanism, index int, minor uint16, c traffic.Class) error {
	return d.change(func() error { return d.Network.SetClass(by, index, minor, c) })
}

func (d doomedNet) RemoveClass(by traffic.Mechanism, index int, minor uint16) error {
	return d.change(func() error { return d.Network.RemoveClass(by, index, minor) })
}

func (d doomedNet) SetMark(group string, minor uint16) error {
	return d.change(func() error { return d.Network.SetMark(group, minor) })
}

func (d doomedNet) SetLimit(group string, l traffic.Limit) error {
	return d.change(func() error { return d.Network.SetLimit(group, l) })
}

func (d doomedNet) SetTogether(group string, s traffic.Together) error {
	return d.change(func() error { return d.Network.SetTogether(group, s) })
}

// Killed before and after each change, amid placing, changing classes and releasing, restoring
// gives the device its discipline back, and no group has a mark or a limit.
func TestNetClassKilled(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, layout := range []string{"v2", "hybrid", "fq"} {
		killedAtEach(t, 1, 25, func(f *fate) bool {
			h, net := netHost(t, layout)
			if layout == "fq" {
				h, net = fqHost(t)
			}
			bulk := h.opt.Classes.Net.Classes["bulk"]
			bulk.Receive, bulk.ReceiveTogether, bulk.ReceiveFrom = 15e6, 30e6, "eth0/eth9"
			h.opt.Classes.Net.Classes["bulk"] = bulk
			was, _ := net.Of("eth0")
			h.place(h.open(), spec("there", place.LS, 100, 9000103)) // so that groups and marks of the node stay
			before := h.tree()
			alive := h.restoredAfter(f, func(n *Node) {
				s := netted(spec("api", place.LS, 100, 9000100), "first")
				s.Bandwidth.Limit = traffic.Limit{Send: 10e6, Receive: 20e6}
				h.place(n, s)
				_, err := n.Resize(ctx, netted(spec("api", place.LS, 100, 0), "bulk"))
				if err == nil {
					err = n.Release(ctx, "api", Keep)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
			root, _ := net.Of("eth0")
			if marks, limits := h.marks(net), h.limits(net); root != was || net.PacedBy("eth0") != nil || len(marks) > 0 || len(limits) > 0 {
				t.Errorf("%s: root %v, marks %v, limits %v", layout, root, marks, limits)
			}
			for name := range h.tree() {
				if _, ok := before[name]; !ok && strings.Contains(name, netGroup) {
					t.Errorf("%s: /%s is left", layout, name)
				}
			}
			return alive
		})
	}
}

// A change of the configuration changes what differs; without it all is as found.
func TestNetClassRevised(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h, net := netHost(t, "v2")
	h.opt.Keep = true
	n := h.open()
	h.place(n, netted(spec("api", place.LS, 100, 9000100), "first"))
	_, before := net.Of("eth0")
	before = maps.Clone(before)
	revise := func(c *traffic.Config) {
		t.Helper()
		h.opt.Classes.Net = c
		next, _, err := n.Revise(ctx, Revision{Options: h.options()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		n = next
	}
	c := *h.opt.Classes.Net
	c.Classes = maps.Clone(c.Classes)
	delete(c.Classes, "bulk")
	c.Service = nil
	c.Others.Floor = traffic.Amount{Rate: 60e6}
	writes := net.Writes
	revise(&c)
	_, after := net.Of("eth0")
	for minor, was := range before {
		if is, ok := after[minor]; ok != (was.Prio != 7) || ok && is != was {
			t.Errorf("class %x: %v, was %v", minor, is, was)
		}
	}
	if net.Writes != writes+1 {
		t.Errorf("%d writes for the removal of a class", net.Writes-writes)
	}
	revise(nil)
	if root, _ := net.Of("eth0"); root.Kind != "pfifo_fast" || len(h.marks(net)) > 0 {
		t.Errorf("without: %v, marks %v", root, h.marks(net))
	}
	n.Close()
}

// After any sequence of placing, changing and releasing, each workload has the mark of its
// class and nobody else one, and nothing is left to do.
func TestNetClassProperties(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 7))
		h, net := netHost(t, []string{"v2", "hybrid"}[seed%2])
		n := h.open()
		pids := map[string]int{"a": 9000100, "b": 9000101, "c": 9000102}
		for range 20 {
			id := []string{"a", "b", "c"}[rng.IntN(3)]
			s := spec(id, []place.Class{place.LS, place.BE}[rng.IntN(2)], 100, pids[id])
			s.SetClass(NetClass, []string{"first", "bulk", "none", ""}[rng.IntN(4)])
			var err error
			switch rng.IntN(3) {
			case 0:
				_, err = n.Place(ctx, s)
			case 1:
				s.PID = 0
				_, err = n.Resize(ctx, s)
			case 2:
				err = n.Release(ctx, id, Keep)
			}
			if _, ok := errors.AsType[*kernel.StepError](err); ok {
				t.Fatalf("refused by the kernel: %v", err)
			}
			all, err := n.List(ctx)
			if err != nil {
				t.Fatal(err)
			}
			marks, classed := h.marks(net), 0
			for i := range all {
				name := h.opt.Classes.ClassOf(NetClass, &all[i].Spec)
				if name == "" {
					continue
				}
				classed++
				if !slices.ContainsFunc(slices.Collect(maps.Keys(marks)), func(dir string) bool {
					return strings.TrimPrefix(path.Base(dir), netGroup) == all[i].ID()
				}) {
					t.Fatalf("seed %d: %s has class %s, marks %v", seed, all[i].ID(), name, marks)
				}
			}
			if root, _ := net.Of("eth0"); len(marks) != classed || (root.Kind == "htb") != (classed > 0) {
				t.Fatalf("seed %d: %d workloads with a class, root %v, marks %v", seed, classed, root, marks)
			}
			writes := net.Writes
			if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 || net.Writes != writes {
				t.Fatalf("seed %d: left to do: %v, %v, %d writes", seed, repairs, err, net.Writes-writes)
			}
		}
	}
}
