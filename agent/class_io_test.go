package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/place"
)

const ioClassesText = `
classes:
  slow:
  - {weight: 20}
  - {devices: [vd*], readBPS: 1M, writeIOPS: 50}
  - {devices: [sd*], weight: 30}
  gold: [{weight: 400}, {devices: [/dev/sda1], readBPS: 64M}]
  last: [{priority: idle}]
service: {BE: slow}
`

func ioConfig(t testing.TB, text string) ClassConfig {
	t.Helper()
	c, err := blockio.Parse([]byte(text), "io.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return ClassConfig{IO: c}
}

// ioHost has the disk vda, with a partition, and sda, whose scheduler is BFQ.
func ioHost(t testing.TB, l fakekernel.Layout, text string) *host {
	t.Helper()
	h := newHost(t, l)
	if err := errors.Join(h.k.PlugDisk("vda", "254:0", "", "vda1"), h.k.PlugDisk("sda", "8:0", "bfq", "sda1")); err != nil {
		t.Fatal(err)
	}
	h.opt.Classes = ioConfig(t, text)
	return h
}

func ofIO(s Spec, class string) Spec {
	s.Classes = map[ClassKind]string{IOClass: class}
	return s
}

// ioFiles are the texts of a workload's files about block devices.
func (h *host) ioFiles(w Workload) map[string]string {
	h.t.Helper()
	all := map[string]string{}
	for name, text := range h.tree() {
		file := path.Base(name)
		if slices.Contains(w.Dirs, path.Dir(name)) && (strings.HasPrefix(file, "io.") || strings.HasPrefix(file, "blkio.")) && strings.TrimSpace(text) != "" {
			all[file] = strings.TrimSpace(text)
		}
	}
	return all
}

// On every kind of mount a class comes to the values of the group; another class, another
// configuration and no class take away what the former one gave.
func TestIOClasses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	v2bfq := fakekernel.V2()
	v2bfq.Weights = "bfq"
	for what, tc := range map[string]struct {
		layout           fakekernel.Layout
		slow, gold, none map[string]string
	}{
		"v2": {v2bfq,
			map[string]string{"io.bfq.weight": "8:0 30\ndefault 20", "io.max": "254:0 rbps=1000000 wbps=max riops=max wiops=50"},
			map[string]string{"io.bfq.weight": "default 400", "io.max": "8:0 rbps=64000000 wbps=max riops=max wiops=max"},
			map[string]string{"io.bfq.weight": "default 100"},
		},
		"v1": {fakekernel.V1(),
			map[string]string{"blkio.bfq.weight": "20", "blkio.bfq.weight_device": "8:0 30", "blkio.throttle.read_bps_device": "254:0 1000000", "blkio.throttle.write_iops_device": "254:0 50"},
			map[string]string{"blkio.bfq.weight": "400", "blkio.throttle.read_bps_device": "8:0 64000000"},
			map[string]string{"blkio.bfq.weight": "100"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := ioHost(t, tc.layout, ioClassesText)
			n := h.open()
			slow := ofIO(spec("api", place.LS, 0, 9000100), "slow")
			_, plan, err := n.Preview(ctx, slow)
			if err != nil || !strings.Contains(plan.String(), "I/O class slow") {
				t.Fatalf("preview: %v\n%v", err, plan)
			}
			w := h.place(n, slow)
			is := func(when string, want map[string]string) {
				t.Helper()
				if got := h.ioFiles(w); !maps.Equal(got, want) {
					t.Errorf("%s: %q\nwant %q", when, got, want)
				}
				h.repairsNothing(n, when)
			}
			is("slow", tc.slow)
			if got, err := n.Get(ctx, "api"); err != nil || got.Limits.IOWeight != 20 || len(got.Limits.IOMax) != 2 || len(got.Notes) > 1 {
				t.Errorf("told: %+v, %q, %v", got.Limits, got.Notes, err)
			}
			resize := func(s Spec) {
				t.Helper()
				if _, err := n.Resize(ctx, s); err != nil {
					t.Fatal(err)
				}
			}
			resize(ofIO(spec("api", place.LS, 0, 0), "gold"))
			is("gold", tc.gold)
			resize(spec("api", place.BE, 0, 0))
			is("the class of BE", tc.slow)
			// The own limit goes over that of the class, for its device and word.
			own := ofIO(spec("api", place.LS, 0, 0), "slow")
			own.Limits.IOWeight = 7
			resize(own)
			if got := strings.Join(slices.Sorted(maps.Values(h.ioFiles(w))), " "); !strings.Contains(got, "7") || !strings.Contains(got, "1000000") {
				t.Errorf("own weight: %s", got)
			}
			resize(spec("api", place.LS, 0, 0))
			is("none", tc.none)
			// Somebody else's value is repaired, one of a device that no class names too.
			resize(slowOf(slow))
			h.write(w, map[string]string{"io.max": "254:0 rbps=5", "blkio.throttle.read_bps_device": "254:0 5"})
			if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) != 1 || !strings.Contains(repairs[0].Why, "slow") {
				t.Errorf("repairs: %v, %v", repairs, err)
			}
			is("repaired", tc.slow)
			// A configuration in which the class is less.
			h.opt.Classes = ioConfig(t, "classes: {slow: [{weight: 20}]}")
			n.Close()
			n = h.open()
			if _, err := n.Reconcile(ctx); err != nil {
				t.Fatal(err)
			}
			less := map[string]string{}
			for file, text := range tc.slow {
				if strings.HasSuffix(file, "bfq.weight") {
					_, text, _ = strings.Cut("\n"+text, "\n")
					less[file] = text[strings.LastIndex(text, "\n")+1:]
				}
			}
			is("less", less)
			// Classes that drop their weight, the class itself or that of the class of service.
			for what, text := range map[string]string{
				"no weight": "classes: {slow: [{priority: idle}]}\nservice: {BE: slow}", "no class of BE": "classes: {gold: [{weight: 400}]}",
			} {
				h.opt.Classes = ioConfig(t, ioClassesText)
				n.Close()
				n = h.open()
				resize(spec("api", place.BE, 0, 0))
				is("before "+what, tc.slow)
				h.opt.Classes = ioConfig(t, text)
				n.Close()
				n = h.open()
				if _, err := n.Reconcile(ctx); err != nil {
					t.Fatal(err)
				}
				is(what, tc.none)
			}
		})
	}
}

func slowOf(s Spec) Spec { s.PID = 0; return s }

func (h *host) write(w Workload, files map[string]string) {
	h.t.Helper()
	for _, dir := range w.Dirs {
		for file, text := range files {
			if _, err := kernel.ReadText(h.k.FS(), dir+"/"+file); err == nil {
				if err := h.k.WriteFile(dir+"/"+file, text); err != nil {
					h.t.Fatal(err)
				}
			}
		}
	}
}

// A device that is not there is a note, one that comes is limited at the next comparison, and
// one that goes takes its line along.
func TestIOClassDevices(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := ioHost(t, fakekernel.V2(), "classes: {slow: [{devices: [vdb, vda], readBPS: 1M}, {devices: [vda], weight: 5, writeBPS: 1M}]}")
	n := h.open()
	w := h.place(n, ofIO(spec("api", place.LS, 0, 9000100), "slow"))
	notes := strings.Join(w.Notes, "; ")
	if !strings.Contains(notes, `I/O class "slow": device vdb: no such block device`) || !strings.Contains(notes, "disk vda: its weight is not set") {
		t.Errorf("notes: %s", notes)
	}
	is := func(want string) {
		t.Helper()
		if _, err := n.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
		if got := h.ioFiles(w)["io.max"]; got != want {
			t.Errorf("io.max: %q, want %q", got, want)
		}
	}
	const vda = "254:0 rbps=max wbps=1000000 riops=max wiops=max"
	is(vda)
	if err := h.k.PlugDisk("vdb", "254:16", ""); err != nil {
		t.Fatal(err)
	}
	is("254:0 rbps=max wbps=1000000 riops=max wiops=max\n254:16 rbps=1000000 wbps=max riops=max wiops=max")
	if got, err := n.Get(ctx, "api"); err != nil || strings.Contains(strings.Join(got.Notes, ""), "vdb") {
		t.Errorf("notes once it is there: %q, %v", got.Notes, err)
	}
	if err := h.k.UnplugDisk("vdb"); err != nil {
		t.Fatal(err)
	}
	is(vda)
}

// A group that was there gets its own lines back, and nothing else changes.
func TestIOClassOfGroup(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := ioHost(t, fakekernel.V1(), ioClassesText)
	const dir, file = "sys/fs/cgroup/blkio/theirs", "/blkio.throttle.read_bps_device"
	for _, name := range []string{"cpu,cpuacct", "cpuset", "memory", "blkio", "pids", "freezer"} {
		if err := h.k.Mkdir("sys/fs/cgroup/" + name + "/theirs"); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(h.k.WriteFile(dir+file, "254:0 777"), h.k.WriteFile(dir+file, "8:0 888")); err != nil {
		t.Fatal(err)
	}
	n := h.open()
	s := ofIO(spec("theirs", place.LS, 0, 0), "slow")
	s.Group, s.Owner = "theirs", Owner{}
	h.place(n, s)
	if got := h.file(dir + file); got != "254:0 1000000\n8:0 888" {
		t.Errorf("slow: %q", got)
	}
	s.Classes[IOClass] = "gold"
	if _, err := n.Resize(ctx, s); err != nil {
		t.Fatal(err)
	}
	if got := h.file(dir + file); got != "254:0 777\n8:0 64000000" {
		t.Errorf("gold: %q", got)
	}
	h.release(n, "theirs")
	if got := h.file(dir + file); got != "254:0 777\n8:0 888" {
		t.Errorf("released: %q", got)
	}
}

func TestIOClassRefused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	slow := ofIO(spec("api", place.LS, 0, 9000100), "slow")
	noIO := fakekernel.V2()
	noIO.V2Controllers = []string{"cpu", "cpuset", "memory", "pids"}
	for what, tc := range map[string]struct {
		h    *host
		spec Spec
		want string
	}{
		"unknown":       {ioHost(t, fakekernel.V2(), ioClassesText), ofIO(slow, "slwo"), `did you mean "slow"`},
		"no controller": {ioHost(t, noIO, ioClassesText), slow, "not supported"},
		"latency on v1": {ioHost(t, fakekernel.V1(), "classes: {slow: [{devices: [vda], latency: 5ms}]}"), slow, "io.latency: not supported"},
	} {
		n := tc.h.open()
		before := tc.h.tree()
		_, err := n.Place(ctx, tc.spec)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", what, err)
		}
		for name, text := range tc.h.tree() {
			if before[name] != text {
				t.Errorf("%s: %s is %q, was %q", what, name, text, before[name])
			}
		}
	}
	if err := mayHave(WithCaller(ctx, Caller{UID: 1000}), "place", &slow); err == nil || !strings.Contains(err.Error(), "io class slow") {
		t.Errorf("another user: %v", err)
	}
}

const costText = `
classes:
  slow: [{devices: [vda], weight: 5, latency: 20ms}]
  last: [{priority: best-effort/7}]
  idle: [{priority: idle}]
cost: [{devices: [vda], readPercent: 95, readLatency: 5ms}, {devices: [nvme*]}]
`

// io.cost is on while a workload has an I/O class; then it shares out the disk by weight.
func TestIOCost(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := ioHost(t, fakekernel.V2(), costText)
	const qos = "sys/fs/cgroup/io.cost.qos"
	if err := h.k.WriteFile(qos, "254:0 enable=1"); err != nil {
		t.Fatal(err)
	}
	before := h.file(qos)
	n := h.open()
	w := h.place(n, ofIO(spec("api", place.LS, 0, 9000100), "slow"))
	if got := h.file(qos); !strings.HasPrefix(got, "254:0 enable=1 ctrl=user rpct=95.00 rlat=5000 ") {
		t.Errorf("qos: %q", got)
	}
	if !strings.Contains(strings.Join(w.Notes, ""), "nvme*: no such") {
		t.Errorf("notes: %q", w.Notes)
	}
	if _, err := n.Reconcile(ctx); err != nil { // the disk shares its time by now
		t.Fatal(err)
	}
	if got := h.ioFiles(w); got["io.weight"] != "254:0 5\ndefault 100" || got["io.latency"] != "254:0 target=20000" {
		t.Errorf("files: %q", got)
	}
	h.release(n, "api")
	if got := h.file(qos); got != before || !strings.Contains(got, "enable=1 ctrl=auto") {
		t.Errorf("released: %q, was %q", got, before)
	}
}

// Where the kernel has no io.cost, workloads are placed all the same, and a note says so.
func TestIOCostLacks(t *testing.T) {
	t.Parallel()
	bfq := fakekernel.V2()
	bfq.Weights = "bfq"
	for _, l := range []fakekernel.Layout{fakekernel.V1(), bfq} {
		h := ioHost(t, l, ioClassesText+"cost: [{devices: [vda]}]")
		n := h.open()
		w := h.place(n, ofIO(spec("api", place.LS, 0, 9000100), "slow"))
		if notes := strings.Join(w.Notes, "; "); !strings.Contains(notes, `I/O class "slow": io.cost.qos: not supported`) {
			t.Errorf("notes: %s", notes)
		}
		if err := LacksIOCost(kernel.NewRoot("", h.k)); !errors.Is(err, kernel.ErrNotSupported) {
			t.Errorf("lacks: %v", err)
		}
	}
	if err := LacksIOCost(kernel.NewRoot("", ioHost(t, fakekernel.V2(), costText).k)); err != nil {
		t.Errorf("lacks: %v", err)
	}
}

// priorityFile is where the fake kernel keeps a priority.
func priorityFile(pid int) string { return fmt.Sprintf("proc/%d/ioprio", pid) }

// Threads have the priority of the class, those that join later too; they get back what they
// had, and those that have inherited it, none.
func TestIOPriority(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := ioHost(t, fakekernel.V2(), costText)
	priority := func(pid int) string { return h.file(priorityFile(pid)) }
	if err := h.k.WriteFile(priorityFile(9000101), "best-effort/0"); err != nil {
		t.Fatal(err)
	}
	h.child(9000102, 9000100)
	n := h.open()
	w := h.place(n, ofIO(spec("api", place.LS, 0, 9000100), "last"))
	if got := priority(9000100); got != "best-effort/7" {
		t.Errorf("placed: %s", got)
	}
	join := func(pids ...int) {
		for _, pid := range pids {
			if err := h.k.WriteFile(w.Dirs[0]+"/cgroup.procs", fmt.Sprint(pid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	join(9000101, 9000102, 9000103)
	for _, pid := range []int{9000102, 9000103} { // inherited; and that of another program
		if err := h.k.WriteFile(priorityFile(pid), "best-effort/7"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	if got := priority(9000101); got != "best-effort/7" {
		t.Errorf("joined: %s", got)
	}
	for _, class := range []string{"idle", "last"} { // at once, without the next comparison
		if _, err := n.Resize(ctx, ofIO(spec("api", place.LS, 0, 0), class)); err != nil {
			t.Fatal(err)
		}
		if got, want := priority(9000101), h.opt.Classes.IO.Priority(class); got != want {
			t.Errorf("class %s: %s, want %s", class, got, want)
		}
	}
	if _, err := n.Resize(ctx, spec("api", place.LS, 0, 0)); err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]string{9000100: "none", 9000101: "best-effort/0", 9000102: "none", 9000103: "best-effort/7"} {
		if got := priority(pid); got != want {
			t.Errorf("process %d without a class: %s, want %s", pid, got, want)
		}
	}
}

// A configuration in which the class of the same name has another priority, or none, changes
// that of threads that have inherited the former one, too.
func TestIOPriorityRevised(t *testing.T) {
	t.Parallel()
	for priority, want := range map[string]string{"idle": "idle", "": "none"} {
		h := ioHost(t, fakekernel.V2(), "classes: {last: [{devices: [vda], readBPS: 1M}, {priority: best-effort/7}]}")
		h.child(9000101, 9000100)
		h.opt.Keep = true
		n := h.open()
		w := h.place(n, ofIO(spec("api", place.LS, 0, 9000100), "last"))
		if err := errors.Join(h.k.WriteFile(w.Dirs[0]+"/cgroup.procs", "9000101"), h.k.WriteFile(priorityFile(9000101), "best-effort/7")); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		opt := h.options()
		text := "classes: {last: [{devices: [vda], readBPS: 1M}]}"
		if priority != "" {
			text = strings.Replace(text, "}]", "}, {priority: "+priority+"}]", 1)
		}
		opt.Classes = ioConfig(t, text)
		n, _, err := n.Revise(t.Context(), Revision{Options: opt}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		for _, pid := range []int{9000100, 9000101} {
			if got := h.file(priorityFile(pid)); got != want {
				t.Errorf("priority %q: process %d has %s", priority, pid, got)
			}
		}
		h.release(n, "api")
	}
}

// A priority that another program changes is put back, counted, and left to it if it insists.
func TestIOPriorityYields(t *testing.T) {
	t.Parallel()
	h := ioHost(t, fakekernel.V2(), costText)
	n := h.open()
	h.place(n, ofIO(spec("api", place.LS, 0, 9000100), "last"))
	file := priorityFile(9000100)
	for time := 1; ; time++ {
		if err := h.k.WriteFile(file, "realtime/0"); err != nil {
			t.Fatal(err)
		}
		repairs, err := n.Reconcile(t.Context())
		if err != nil || len(repairs) != 1 || repairs[0].Path != sched.IOPriorityFile(9000100, "79000100") || repairs[0].Count != time || repairs[0].Found != "realtime/0" || time > 5 {
			t.Fatalf("time %d: %+v, %v", time, repairs, err)
		}
		if repairs[0].Yielded {
			break
		}
		if got := h.file(file); got != "best-effort/7" {
			t.Errorf("time %d: %s", time, got)
		}
	}
	h.repairsNothing(n, "yielded")
	if kinds := h.kinds(); !slices.Contains(kinds, Repaired) || !slices.Contains(kinds, Yielded) {
		t.Errorf("events %v", kinds)
	}
	if _, err := n.Resize(t.Context(), spec("api", place.LS, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if got := h.file(file); got != "realtime/0" {
		t.Errorf("without a class: %s, want that of the other program", got)
	}
}
