package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fakenet"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

// limits are those of all groups, by directory.
func (h *host) limits(net *fakenet.Network) map[string]traffic.Limit {
	h.t.Helper()
	all := map[string]traffic.Limit{}
	err := fs.WalkDir(h.k.FS(), "sys/fs/cgroup", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		l, err := net.Limit(name)
		if l != (traffic.Limit{}) {
			all[name] = l
		}
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

func (h *host) wantLimits(net *fakenet.Network, when string, want map[string]traffic.Limit) {
	h.t.Helper()
	if got := h.limits(net); !maps.Equal(got, want) {
		h.t.Errorf("%s: limits %v, want %v", when, got, want)
	}
}

// A workload's group has the limit of its spec and of its class, the smaller of both, as long
// as it has it, and no device is divided for that alone.
func TestNetLimits(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for layout, dir := range map[string]string{"v2": "sys/fs/cgroup/berth/api", "hybrid": "sys/fs/cgroup/unified/berth-net-api"} {
		t.Run(layout, func(t *testing.T) {
			h, net := netHost(t, layout)
			h.opt.Classes.Net.Classes["first"] = traffic.Share{Receive: 20e6}
			n := h.open()
			s := spec("api", place.LS, 100, 9000100)
			s.Bandwidth.Limit = traffic.Limit{Send: 10e6, Receive: 50e6}
			h.place(n, s)
			h.wantLimits(net, "placed", map[string]traffic.Limit{dir: {Send: 10e6, Receive: 50e6}})
			if root, _ := net.Of("eth0"); root.Kind != "pfifo_fast" || len(h.marks(net)) > 0 {
				t.Errorf("eth0 has %v, marks %v", root, h.marks(net))
			}
			if got := h.file(dir + "/cgroup.procs"); got != "9000100" {
				t.Errorf("processes in %s: %q", dir, got)
			}
			writes := net.Writes
			if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 || net.Writes != writes {
				t.Errorf("again: %v, %v, %d writes", repairs, err, net.Writes-writes)
			}
			if err := net.SetLimit(dir, traffic.Limit{}); err != nil { // somebody else
				t.Fatal(err)
			}
			if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) != 1 {
				t.Errorf("repaired: %v, %v", repairs, err)
			}
			s.PID = 0
			for _, step := range []struct {
				when string
				to   Spec
				want traffic.Limit
			}{
				{"in first", netted(s, "first"), traffic.Limit{Send: 10e6, Receive: 20e6}},
				{"in bulk", netted(s, "bulk"), traffic.Limit{Send: 10e6, Receive: 50e6}},
				{"none of its own", netted(spec("api", place.LS, 100, 0), "first"), traffic.Limit{Receive: 20e6}},
			} {
				if _, err := n.Resize(ctx, step.to); err != nil {
					t.Fatal(err)
				}
				h.wantLimits(net, step.when, map[string]traffic.Limit{dir: step.want})
			}
			if _, err := n.Resize(ctx, spec("api", place.LS, 100, 0)); err != nil {
				t.Fatal(err)
			}
			h.wantLimits(net, "none", map[string]traffic.Limit{})
		})
	}
}

// A limit of the group around workloads, a pod's, is there as long as one of them is, and a
// kill leaves nothing behind.
func TestNetLimitAround(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h, net := netHost(t, "v2")
	for _, dir := range []string{"pods", "pods/p", "pods/p/a", "pods/p/b"} {
		if err := h.k.Mkdir("sys/fs/cgroup/" + dir); err != nil {
			t.Fatal(err)
		}
	}
	n := h.open()
	of := func(id string, around bool) Spec {
		s := spec(id, place.LS, 100, 0)
		s.Group = "pods/p/" + id
		s.Bandwidth = Bandwidth{traffic.Limit{Receive: 20e6}, around}
		return s
	}
	h.place(n, of("a", true))
	h.place(n, of("b", true))
	pod := map[string]traffic.Limit{"sys/fs/cgroup/pods/p": {Receive: 20e6}}
	h.wantLimits(net, "both", pod)
	for i, id := range []string{"a", "b"} {
		if err := n.Release(ctx, id, Keep); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			pod = map[string]traffic.Limit{}
		}
		h.wantLimits(net, "released "+id, pod)
	}
	h.place(n, of("a", true))
	n = h.open() // the former one was killed
	if err := n.Release(ctx, "a", Keep); err != nil {
		t.Fatal(err)
	}
	h.wantLimits(net, "killed, and released", map[string]traffic.Limit{})
}

// Without cgroup v2 a limit that is asked for is refused with the reason.
func TestNetLimitWithoutV2(t *testing.T) {
	t.Parallel()
	l := fakekernel.V1()
	l.Own = "/"
	h := newHost(t, l)
	h.net = fakenet.New(h.k.FS(), "eth0")
	n := h.open()
	s := spec("api", place.LS, 100, 9000100)
	s.Bandwidth.Send = 10e6
	_, err := n.Place(context.Background(), s)
	class, ok := errors.AsType[*ClassError](err)
	if !ok || class.Kind != NetClass || class.ID != "api" || !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "cgroup v2 is not mounted") {
		t.Errorf("%v", err)
	}
	s.Bandwidth.Send = 1
	if _, err := n.Place(context.Background(), s); err == nil || !strings.Contains(err.Error(), "bandwidth: 1bit is not 8kbit to 10Tbit") {
		t.Errorf("a bit per second: %v", err)
	}
}

// Over a tree that is not the live host, a limit is refused, and of one that is on record a note
// says so.
func TestNetLimitNotLive(t *testing.T) {
	t.Parallel()
	h, _ := netHost(t, "v2")
	s := spec("api", place.LS, 100, 9000100)
	s.Bandwidth.Send = 10e6
	h.place(h.open(), s)
	h.net = nil
	n := h.open()
	if w, err := n.Get(context.Background(), "api"); err != nil || !strings.Contains(strings.Join(w.Notes, "\n"), "has no limit of its own: network classes: not supported: this is not the live host") {
		t.Errorf("notes %q, %v", w.Notes, err)
	}
	s.Request.ID, s.PID = "web", 9000101
	_, err := n.Place(context.Background(), s)
	class, ok := errors.AsType[*ClassError](err)
	if !ok || !class.Limit || class.ID != "web" || !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("%v", err)
	}
}

// What a class receives together is the same of the groups of all its workloads, as long as they
// have it, beside what each receives.
func TestNetTogether(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for layout, dirs := range map[string][2]string{
		"v2":     {"sys/fs/cgroup/berth/api", "sys/fs/cgroup/berth/web"},
		"hybrid": {"sys/fs/cgroup/unified/berth-net-api", "sys/fs/cgroup/unified/berth-net-web"},
	} {
		h, net := netHost(t, layout)
		h.opt.Classes.Net.Classes["mirror"] = traffic.Share{Receive: 20e6, ReceiveTogether: 30e6}
		n := h.open()
		want := h.opt.Classes.Net.TogetherOf("mirror")
		shows := func(when string, want ...traffic.Together) {
			t.Helper()
			for i, dir := range dirs {
				got, err := net.Together(dir)
				if errors.Is(err, fs.ErrNotExist) {
					err = nil
				}
				if err != nil || got != want[i] {
					t.Errorf("%s, %s, %s: %+v, %v, want %+v", layout, when, dir, got, err, want[i])
				}
			}
		}
		h.place(n, netted(spec("api", place.LS, 100, 9000100), "mirror"))
		h.place(n, netted(spec("web", place.LS, 100, 9000101), "mirror"))
		shows("placed", want, want)
		h.wantLimits(net, "placed", map[string]traffic.Limit{dirs[0]: {Receive: 20e6}, dirs[1]: {Receive: 20e6}})
		writes := net.Writes
		if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 || net.Writes != writes {
			t.Errorf("%s: again: %v, %v, %d writes", layout, repairs, err, net.Writes-writes)
		}
		if err := net.SetTogether(dirs[0], traffic.Together{}); err != nil { // somebody else
			t.Fatal(err)
		}
		if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) != 1 {
			t.Errorf("%s: repaired: %v, %v", layout, repairs, err)
		}
		shows("repaired", want, want)
		if root, _ := net.Of("eth0"); root.Kind != "pfifo_fast" || len(h.marks(net)) > 0 {
			t.Errorf("%s: eth0 has %v, marks %v", layout, root, h.marks(net))
		}
		none, err := n.ClassReport(ctx)
		if mirror := none.NetOf(&Workload{Classes: map[ClassKind]string{NetClass: "mirror"}}); err != nil || mirror.Dropped == nil || *mirror.Dropped != 0 {
			t.Errorf("%s: nothing is dropped: %+v, %v", layout, mirror, err)
		}
		net.DropOf(dirs[0], 3, 7)
		net.DropOf(dirs[1], 0, 7) // one program drops for both
		r, err := n.ClassReport(ctx)
		if err != nil {
			t.Fatal(err)
		}
		section := r.Kinds[slices.IndexFunc(r.Kinds, func(s ClassSection) bool { return s.Kind == NetClass })]
		if diff := cmp.Diff([]WorkloadDrops{{"api", 3}, {"web", 0}}, section.Drops); diff != "" {
			t.Errorf("%s: dropped (-want +got):\n%s", layout, diff)
		}
		if mirror := r.NetOf(&Workload{Classes: map[ClassKind]string{NetClass: "mirror"}}); mirror.Dropped == nil || *mirror.Dropped != 7 {
			t.Errorf("%s: the class has %+v", layout, mirror)
		}
		if _, err := n.Resize(ctx, netted(spec("web", place.LS, 100, 0), "first")); err != nil {
			t.Fatal(err)
		}
		shows("web in first", want, traffic.Together{})
		h.wantLimits(net, "web in first", map[string]traffic.Limit{dirs[0]: {Receive: 20e6}})
		if err := n.Release(ctx, "api", Keep); err != nil {
			t.Fatal(err)
		}
		shows("released", traffic.Together{}, traffic.Together{})
	}
}

// denied are calls that refuse, of one group, to read or write a limit.
type denied struct {
	*fakenet.Network
	group       string
	read, write error
}

func (d *denied) Limit(group string) (traffic.Limit, error) {
	if group == d.group && d.read != nil {
		return traffic.Limit{}, d.read
	}
	return d.Network.Limit(group)
}

func (d *denied) SetLimit(group string, l traffic.Limit) error {
	if group == d.group && d.write != nil {
		return d.write
	}
	return d.Network.SetLimit(group, l)
}

// What the kernel denies the limit of one workload is refused to the one who asks for it, and
// keeps nobody else from a place, a limit or a repair.
func TestNetLimitDenied(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const api, web = "sys/fs/cgroup/berth/api", "sys/fs/cgroup/berth/web"
	for what, d := range map[string]denied{"read": {group: api, read: syscall.EPERM}, "write": {group: api, write: syscall.EPERM}} {
		for _, placed := range []bool{false, true} {
			t.Run(what, func(t *testing.T) {
				h, net := netHost(t, "v2")
				d.Network = net
				limited := func(id string, pid int) Spec {
					s := spec(id, place.LS, 100, pid)
					s.Bandwidth.Send = 10e6
					return s
				}
				if placed {
					h.place(h.open(), limited("api", 9000100))
					if err := net.SetLimit(api, traffic.Limit{}); err != nil { // somebody else
						t.Fatal(err)
					}
				}
				h.net = &d
				n := h.open()
				if !placed {
					if what == "read" {
						h.place(n, spec("api", place.LS, 100, 9000100))
					} else {
						_, err := n.Place(ctx, limited("api", 9000100))
						if class, ok := errors.AsType[*ClassError](err); !ok || !class.Limit || class.ID != "api" || !errors.Is(err, syscall.EPERM) {
							t.Errorf("asked for: %v", err)
						}
					}
				}
				h.place(n, limited("web", 9000101))
				h.place(n, netted(limited("web2", 9000102), "first"))
				if got := h.limits(net)[web]; got.Send != 10e6 {
					t.Errorf("the other: %+v", got)
				}
				if err := net.SetLimit(web, traffic.Limit{}); err != nil {
					t.Fatal(err)
				}
				if _, err := n.Reconcile(ctx); err != nil || h.limits(net)[web].Send != 10e6 {
					t.Errorf("not repaired: %v, %v", h.limits(net), err)
				}
				if told := fmt.Sprint(h.events); placed && !strings.Contains(told, `workload "api" goes without`) {
					t.Errorf("told %q", told)
				}
			})
		}
	}
}

// A group of the name of Berth's that somebody else made is left alone, with its processes.
func TestNetLimitForeignGroup(t *testing.T) {
	t.Parallel()
	const dir = "sys/fs/cgroup/unified/berth-net-api"
	h, net := netHost(t, "hybrid")
	if err := errors.Join(h.k.Mkdir(dir), h.k.WriteFile(dir+"/cgroup.procs", "9000102")); err != nil {
		t.Fatal(err)
	}
	n := h.open()
	s := spec("api", place.LS, 100, 9000100)
	s.Bandwidth.Send = 10e6
	if _, err := n.Place(context.Background(), s); err == nil || !strings.Contains(err.Error(), "is there, and this node did not make it") {
		t.Errorf("%v", err)
	}
	if got := h.file(dir + "/cgroup.procs"); got != "9000102" || len(h.limits(net)) > 0 {
		t.Errorf("processes %q, limits %v", got, h.limits(net))
	}
}

// What sockets do without is told of limits as of classes: of one that came by resize, by adoption
// or by a reload, and of a class that came by a reload.
func TestNetLimitLate(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h, _ := netHost(t, "hybrid")
	h.opt.Keep = true
	n := h.open()
	limited := func(id string, pid int) Spec {
		s := spec(id, place.LS, 100, pid)
		s.Bandwidth.Send = 10e6
		return s
	}
	h.place(n, limited("first", 9000100))
	h.place(n, spec("late", place.LS, 100, 9000101))
	adopted := limited("adopted", 9000102)
	adopted.Descendants = true
	h.place(n, adopted)
	h.place(n, spec("plain", place.LSR, 1000, 9000103))
	if _, err := n.Resize(ctx, limited("late", 0)); err != nil {
		t.Fatal(err)
	}
	check := func(when string, want map[string]string) {
		t.Helper()
		for _, id := range []string{"first", "late", "adopted", "plain"} {
			w, err := n.Get(ctx, id)
			notes := strings.Join(w.Notes, "\n")
			if err != nil || want[id] == "" && strings.Contains(notes, "stay without") || !strings.Contains(notes, want[id]) {
				t.Errorf("%s, %s: notes %q, %v; want %q", when, id, notes, err, want[id])
			}
		}
	}
	want := map[string]string{
		"late":    "what it sends and receives: it got the limit while it ran",
		"adopted": "what it sends and receives: its processes were adopted",
	}
	check("resized", want)
	c := *h.opt.Classes.Net
	c.Service = maps.Clone(c.Service)
	c.Service["LSR"] = "first"
	h.opt.Classes.Net = &c
	next, _, err := n.Revise(ctx, Revision{Options: h.options()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n = next
	want["plain"] = `network class "first": it got the class while it ran`
	check("reloaded", want)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = h.open()
	defer n.Close()
	check("opened again", want)
}

// A class that says only what its workloads receive takes no device: they send among the others.
func TestNetReceiveOnly(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for layout, dir := range map[string]string{"v2": "sys/fs/cgroup/berth/api", "hybrid": "sys/fs/cgroup/unified/berth-net-api"} {
		t.Run(layout, func(t *testing.T) {
			h, net := netHost(t, layout)
			h.opt.Classes.Net.Classes["mirror"] = traffic.Share{Receive: 20e6}
			n := h.open()
			h.place(n, netted(spec("api", place.LS, 100, 9000100), "bulk"))
			if _, err := n.Resize(ctx, netted(spec("api", place.LS, 100, 0), "mirror")); err != nil {
				t.Fatal(err)
			}
			h.wantLimits(net, "resized", map[string]traffic.Limit{dir: {Receive: 20e6}})
			if root, _ := net.Of("eth0"); root.Kind != "pfifo_fast" || len(h.marks(net)) > 0 {
				t.Errorf("eth0 has %v, marks %v", root, h.marks(net))
			}
			n.Close()
			h.opt.Classes.Net = &traffic.Config{Classes: map[string]traffic.Share{"mirror": {Receive: 20e6}}}
			if err := h.opt.Classes.Net.Validate(); err != nil {
				t.Error(err)
			}
			n = h.open()
			w := h.place(n, netted(spec("web", place.LS, 100, 9000101), "mirror"))
			if len(h.limits(net)) != 2 || strings.Contains(strings.Join(w.Notes, "\n"), "network class") {
				t.Errorf("no devices: %v, notes %q", h.limits(net), w.Notes)
			}
			r, err := n.ClassReport(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range r.Kinds {
				if k.Kind == NetClass && (len(k.Classes) != 1 || !k.Classes[0].InForce || len(k.Classes[0].Links) > 0) {
					t.Errorf("reported %+v", k.Classes)
				}
			}
		})
	}
}

// readCounted are the kernel's files; reads counts those of one file.
type readCounted struct {
	*fakekernel.Kernel
	file  string
	reads *int
}

func (c readCounted) FS() fs.FS { return readCountedFS{c.Kernel.FS(), c} }

type readCountedFS struct {
	fs.FS
	c readCounted
}

func (f readCountedFS) ReadFile(name string) ([]byte, error) {
	if name == f.c.file {
		*f.c.reads++
	}
	return fs.ReadFile(f.FS, name)
}

// How often the host's mounts are read does not grow with the workloads: a Kubernetes node has
// thousands of mounts, and hundreds of containers.
func TestMountsAreReadOnce(t *testing.T) {
	t.Parallel()
	h, _ := netHost(t, "v2")
	reads := 0
	h.files = readCounted{h.k, "proc/self/mountinfo", &reads}
	n := h.open()
	of := map[int]int{}
	for i := range 4 {
		s := spec(fmt.Sprintf("api-%d", i), place.LS, 100, 9000100+i)
		s.Bandwidth.Limit = traffic.Limit{Send: 10e6}
		h.place(n, s)
		for _, look := range []func() error{
			func() error { _, err := n.List(t.Context()); return err },
			func() error { _, err := n.Reconcile(t.Context()); return err },
		} {
			reads = 0
			if err := look(); err != nil {
				t.Fatal(err)
			}
			of[i+1] += reads
		}
	}
	if of[4] > of[1] {
		t.Errorf("the mounts were read %d times for one workload, %d times for four", of[1], of[4])
	}
}

// Opening a node writes again what it has set that stands for programs, so that those of another build
// of Berth give way; what is not there stays so.
func TestNetRenewed(t *testing.T) {
	t.Parallel()
	h, net := fqHost(t)
	h.opt.Classes.Net.Classes["bulk"] = traffic.Share{Ceiling: traffic.Amount{Rate: 50e6}, Receive: 20e6, ReceiveTogether: 30e6}
	n := h.open()
	h.place(n, netted(spec("api", place.LS, 100, 9000100), "bulk"))
	h.place(n, netted(spec("web", place.LS, 100, 9000101), "bulk"))
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := net.SetLimit("sys/fs/cgroup/berth/web", traffic.Limit{}); err != nil { // somebody else
		t.Fatal(err)
	}
	classes := maps.Clone(net.PacedBy("eth0"))
	before, limits := net.Writes, h.limits(net)
	h.open()
	if is := net.PacedBy("eth0"); !maps.Equal(is, classes) {
		t.Errorf("opened: classes %v, before %v", is, classes)
	}
	h.wantLimits(net, "opened", limits)
	// A class, the limit of api, and what both receive together.
	if got, want := net.Writes-before, 4; got != want {
		t.Errorf("opened: %d writes, want %d", got, want)
	}
}

// A class may say through which devices its workloads receive what it limits; the limit of a workload's
// own is beside that. Each comparison has devices that have come be counted.
func TestNetReceiveFrom(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for layout, dir := range map[string]string{"v2": "sys/fs/cgroup/berth/api", "hybrid": "sys/fs/cgroup/unified/berth-net-api"} {
		t.Run(layout, func(t *testing.T) {
			h, net := netHost(t, layout)
			h.opt.Classes.Net.Classes["mirror"] = traffic.Share{Receive: 20e6, ReceiveTogether: 30e6, ReceiveFrom: traffic.DevicesOf("eth1", "eth9")}
			if err := h.opt.Classes.Net.Validate(); err != nil {
				t.Fatal(err)
			}
			n := h.open()
			s := netted(spec("api", place.LS, 100, 9000100), "mirror")
			s.Bandwidth.Receive = 50e6
			w := h.place(n, s)
			of := traffic.Limit{Receive: 50e6, Arrival: traffic.Arrival{Devices: "eth1/eth9", Rate: 20e6}}
			h.wantLimits(net, "placed", map[string]traffic.Limit{dir: of})
			if got, err := net.Together(dir); err != nil || got.Devices != "eth1/eth9" || got.Rate != 30e6 {
				t.Errorf("together %+v, %v", got, err)
			}
			if root, _ := net.Of("eth1"); root.Kind != "pfifo_fast" || len(h.marks(net)) > 0 {
				t.Errorf("eth1 has %v, marks %v", root, h.marks(net))
			}
			const absent = `network class mirror: there is no network device "eth9"; did you mean "eth0"?: what arrives is counted once there is`
			if !slices.Contains(w.Notes, absent) {
				t.Errorf("notes %q, want %q", w.Notes, absent)
			}
			r, err := n.ClassReport(ctx)
			if err != nil {
				t.Fatal(err)
			}
			use := r.NetOf(&w)
			if use == nil || !use.InForce || !slices.Equal(use.Received(), []string{"20Mbit each from eth1 eth9", "30Mbit together from eth1 eth9"}) {
				t.Errorf("reported %+v", use)
			}
			net.Plug("eth9")
			writes := net.Writes
			if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 || net.Writes != writes+2 {
				t.Errorf("compared: %v, %v, %d writes, want those of two files", repairs, err, net.Writes-writes)
			}
			if w, err := n.Get(ctx, "api"); err != nil || slices.Contains(w.Notes, absent) {
				t.Errorf("eth9 is there: notes %q, %v", w.Notes, err)
			}
			for process, network := range map[string]string{"self": "net:[1]", "9000100": "net:[2]"} {
				ns := filepath.Join(h.dir, "proc", process, "ns")
				if err := errors.Join(os.MkdirAll(ns, 0o755), os.Symlink(network, filepath.Join(ns, "net"))); err != nil {
					t.Fatal(err)
				}
			}
			const apart = `network class "mirror": its process 9000100 has a network of its own: what that receives comes through none of eth1 eth9 of the host, and has no limit by the class (before Linux 6.15, it has through a device with the number of one of these)`
			if w, err := n.Get(ctx, "api"); err != nil || !slices.Contains(w.Notes, apart) {
				t.Errorf("apart: notes %q, %v", w.Notes, err)
			}
			net.Rename("eth0", "\t") // as no device is named
			const unread = `network class mirror: it is not known whether eth1 eth9 are there: read network devices: "\t pfifo_fast 0:\n"`
			if w, err := n.Get(ctx, "api"); err != nil || !strings.Contains(strings.Join(w.Notes, "\n"), unread) {
				t.Errorf("unread: notes %q, %v", w.Notes, err)
			}
			net.Rename("\t", "eth0")
			if err := net.SetLimit(dir, traffic.Limit{Receive: 50e6, Arrival: traffic.Arrival{Devices: "eth1", Rate: 20e6}}); err != nil { // somebody else
				t.Fatal(err)
			}
			if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) != 1 {
				t.Errorf("repaired: %v, %v", repairs, err)
			}
			h.wantLimits(net, "repaired", map[string]traffic.Limit{dir: of})
			if _, err := n.Resize(ctx, spec("api", place.LS, 100, 0)); err != nil {
				t.Fatal(err)
			}
			h.wantLimits(net, "none", map[string]traffic.Limit{})
			if got, err := net.Together(dir); err == nil && got != (traffic.Together{}) {
				t.Errorf("none: together %+v", got)
			}
		})
	}
}

// uncounted is a network that does not tell what was dropped.
type uncounted struct{ *fakenet.Network }

func (uncounted) Dropped(traffic.Mechanism, int) (map[uint16]uint64, error) {
	return nil, syscall.EPERM
}
func (uncounted) DroppedOf(string) (own, together uint64, err error) { return 0, 0, syscall.EPERM }

// A number of dropped packets that is not known is not 0.
func TestDroppedUnknown(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h, net := netHost(t, "v2")
	h.net = uncounted{net}
	h.opt.Classes.Net.Classes["mirror"] = traffic.Share{Receive: 20e6, ReceiveTogether: 30e6}
	n := h.open()
	h.place(n, netted(spec("api", place.LS, 100, 9000100), "mirror"))
	h.place(n, netted(spec("web", place.LS, 100, 9000101), "bulk"))
	r, err := n.ClassReport(ctx)
	if err != nil {
		t.Fatal(err)
	}
	of := func(class string) *ClassUse {
		return r.NetOf(&Workload{Classes: map[ClassKind]string{NetClass: class}})
	}
	if d := r.Kinds[slices.IndexFunc(r.Kinds, func(s ClassSection) bool { return s.Kind == NetClass })].Drops; len(d) > 0 {
		t.Errorf("workloads: %+v", d)
	}
	if of("mirror").Dropped != nil || len(of("bulk").Links) != 1 || of("bulk").Links[0].Dropped != nil {
		t.Errorf("mirror %+v, bulk %+v", of("mirror"), of("bulk"))
	}
}
