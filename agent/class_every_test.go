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
	killedAtEach(t, step, 30, func(f *fate) bool {
		h, net := everyHost(t)
		before := h.tree()
		alive := h.restoredAfter(f, func(n *Node) {
			s := spec("api", place.LSE, 1000, 9000100)
			s.Classes = every
			h.hasEvery(n, net, h.place(n, s), every)
			if err := n.Release(ctx, "api", Keep); err != nil {
				t.Fatal(err)
			}
		})
		h.isRestored(before, func(name string) bool {
			return ofResctrl(name) || strings.HasPrefix(name, cpus) || strings.Contains(name, "/io.")
		})
		if root, _ := net.Of("eth0"); root.Handle != 0 || len(h.marks(net)) > 0 {
			t.Errorf("root %v, marks %v", root, h.marks(net))
		}
		return alive
	})
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
	h.repairsNothing(n, "again")
}
