package agent

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fakenet"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

// everyHost has classes of each kind.
func everyHost(t *testing.T) (*host, *fakenet.Network) {
	t.Helper()
	l, r, p := layouts()["v2"], fakekernel.ResctrlCPUs()["skylake"], fakekernel.PowerHosts()["intel_pstate"]
	r.Domains, p.CPUs = r.Domains[:1], 8
	l.Own, l.Resctrl, l.Power = "/", &r, &p
	h := newHost(t, l)
	if err := h.k.PlugDisk("vda", "254:0", "", "vda1"); err != nil {
		t.Fatal(err)
	}
	net := fakenet.New(h.k.FS(), "eth0")
	h.net = net
	h.opt.Classes = ClassConfig{Cache: classConfig(t, classes).Cache, IO: ioConfig(t, ioClassesText).IO, Power: powerConfig(), Net: &traffic.Config{
		Devices: map[string]traffic.LinkConfig{"eth0": {Rate: 100e6}},
		Classes: map[string]traffic.Share{"bulk": {Floor: traffic.Amount{Percent: 10}, Ceiling: traffic.Amount{Rate: 50e6}, Priority: 8}},
	}}
	return h, net
}

// One workload has a class of each kind at once. Killed before and after changes of files, amid placing
// and releasing, restoring gives all back. Without BERTH_CRASHES, a third of the changes kill.
func TestEveryClassAtOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	every := map[ClassKind]string{CacheClass: "gold", IOClass: "slow", NetClass: "bulk", PowerClass: "steady"}
	step := 3
	if os.Getenv("BERTH_CRASHES") != "" {
		step = 1
	}
	for at, alive := 1, false; !alive; at += step {
		for _, after := range []bool{false, true} {
			h, net := everyHost(t)
			before := h.tree()
			f := &fate{at: at, after: after}
			h.net = doomedNet{net, f}
			n := h.doom(f)
			h.net = net
			alive = survives(n, func() {
				s := spec("api", place.LSE, 1000, 9000100)
				s.Classes = every
				w, err := n.Place(ctx, s)
				if err != nil {
					t.Fatal(err)
				}
				h.hasEvery(n, net, w, every)
				if err := n.Release(ctx, "api", Keep); err != nil {
					t.Fatal(err)
				}
			})
			if alive {
				n.Close()
			}
			if items, err := Restore(ctx, h.options()); err != nil {
				t.Fatalf("killed at %d (%v): %v\n%v", at, after, err, items)
			}
			sorted := func(text string) string {
				words := strings.Fields(text)
				slices.Sort(words)
				return strings.Join(words, " ")
			}
			now := h.tree()
			for name, text := range before {
				about := strings.HasPrefix(name, rc) || strings.HasPrefix(name, cpus) || strings.Contains(name, "/io.")
				if about && !strings.HasSuffix(name, "last_cmd_status") && sorted(now[name]) != sorted(text) {
					t.Errorf("killed at %d (%v): %s is %q, was %q", at, after, name, now[name], text)
				}
			}
			for name := range now {
				if _, was := before[name]; !was && strings.HasPrefix(name, rc) {
					t.Errorf("killed at %d (%v): %s is left", at, after, name)
				}
			}
			if root, _ := net.Of("eth0"); root.Handle != 0 || len(h.marks(net)) > 0 {
				t.Errorf("killed at %d (%v): root %v, marks %v", at, after, root, h.marks(net))
			}
			if t.Failed() {
				t.FailNow()
			}
		}
		if alive && at < 30 {
			t.Errorf("%d changes: the sequence does little", at)
		}
	}
}

// hasEvery checks that a workload has a class of each kind, in the files and in the report.
func (h *host) hasEvery(n *Node, net *fakenet.Network, w Workload, every map[ClassKind]string) {
	h.t.Helper()
	if got := h.file(rc + "/berth-gold/tasks"); got != "9000100" {
		h.t.Errorf("tasks of gold: %q", got)
	}
	cpu := w.Grant.Own.String()
	if got := h.file(cpus + "/cpufreq/policy" + cpu + "/scaling_governor"); got != "performance" {
		h.t.Errorf("governor of CPU %s: %q", cpu, got)
	}
	if got := h.ioFiles(w)["io.max"]; !strings.Contains(got, "254:0 rbps=1000000") {
		h.t.Errorf("io.max: %q", got)
	}
	if marks := h.marks(net); len(marks) != 1 {
		h.t.Errorf("marks %v", marks)
	}
	r, err := n.ClassReport(context.Background())
	if err != nil {
		h.t.Fatal(err)
	}
	for _, kind := range r.Kinds {
		if !slices.ContainsFunc(kind.Classes, func(c ClassUse) bool {
			return c.Name == every[kind.Kind] && c.InForce && slices.Contains(c.Workloads, "api")
		}) {
			h.t.Errorf("%s: %+v", kind.Kind, kind.Classes)
		}
	}
	if len(r.Kinds) != len(every) {
		h.t.Errorf("%d kinds of classes", len(r.Kinds))
	}
	if repairs, err := n.Reconcile(context.Background()); err != nil || len(repairs) > 0 {
		h.t.Errorf("repairs: %v, %v", repairs, err)
	}
}
