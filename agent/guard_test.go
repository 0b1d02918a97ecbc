package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

const batchCPUs = "sys/fs/cgroup/cpuset/batch/cpuset.cpus"

// guarded is a host with a group "batch" on CPUs 0-3, for a node that confines it and a
// guard that narrows it.
func guarded(t *testing.T) *host {
	t.Helper()
	h := newHost(t, fakekernel.Layout{V1: []string{"cpu,cpuacct", "cpuset", "memory"}, Own: "/", CPUs: "0-7", Mems: "0-1"})
	h.opt.Confine = []string{"batch"}
	if err := h.k.Mkdir("sys/fs/cgroup/cpuset/batch"); err != nil {
		t.Fatal(err)
	}
	for _, v1 := range []string{"cpu,cpuacct", "memory"} {
		if err := h.k.Mkdir("sys/fs/cgroup/" + v1 + "/batch"); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(h.k.WriteFile(batchCPUs, "0-3"), h.k.WriteFile("sys/fs/cgroup/cpuset/batch/cpuset.mems", "0-1")); err != nil {
		t.Fatal(err)
	}
	return h
}

// narrow opens a guard that has batch on these CPUs.
func (h *host) narrow(cpus string) *actuate.Host {
	h.t.Helper()
	g := h.guard()
	a := control.Action{Group: "batch", Remedy: detect.ShrinkCPUs, Limits: cgroup.Limits{CPUs: cpuset.MustParse(cpus)}}
	if _, err := g.Apply(context.Background(), a); err != nil {
		h.t.Fatal(err)
	}
	h.batch("narrowed", cpus)
	return g
}

func (h *host) guard() *actuate.Host {
	h.t.Helper()
	g, err := actuate.Open(actuate.Options{Root: h.options().Root, Dir: GuardDir(h.state)})
	if err != nil {
		h.t.Fatal(err)
	}
	return g
}

func (h *host) batch(when, want string) {
	h.t.Helper()
	if got := strings.TrimSpace(h.tree()[batchCPUs]); got != want {
		h.t.Errorf("%s: batch has CPUs %s, want %s", when, got, want)
	}
}

// TestKilledGuard has a guard killed while it has a group narrowed, and each opener of the node
// come after it: the original comes back, whichever of node and guard gives back first.
func TestKilledGuard(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	own := spec("web", place.LSE, 2000, 0)
	own.CPUs = cpuset.MustParse("2-3")
	guardOff := func(h *host) {
		g := h.guard()
		if _, err := g.Restore(); err != nil {
			h.t.Error(err)
		}
		if err := g.Close(); err != nil {
			h.t.Error(err)
		}
	}
	for _, guardFirst := range []bool{true, false} {
		h := guarded(t)
		if err := h.narrow("3").Close(); err != nil { // it stays in force, as after kill -9
			t.Fatal(err)
		}
		n := h.open()
		h.batch("opened", "0-3")
		h.place(n, own)
		h.batch("placed", "0-1")
		if guardFirst {
			guardOff(h)
			h.batch("guard off", "0-1")
		}
		if err := n.Release(ctx, "web", WhenEmpty); err != nil {
			t.Error(err)
		}
		if !guardFirst {
			guardOff(h)
		}
		h.batch("released", "0-3")
	}

	// A guard that came after the node, and was killed above its value.
	for what, after := range map[string]func(h *host) error{
		"release": func(h *host) error { return h.open().Release(ctx, "web", WhenEmpty) },
		"restore": func(h *host) error { _, err := Restore(ctx, h.options()); return err },
	} {
		h := guarded(t)
		n := h.open()
		h.place(n, own)
		if err := errors.Join(n.Close(), h.narrow("1").Close()); err != nil {
			t.Fatal(err)
		}
		if err := after(h); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		h.batch(what, "0-3")
	}
}

// TestLivingGuard has the node place and release beside a guard that goes on, and that ends
// before or after.
func TestLivingGuard(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	own := spec("web", place.LSE, 2000, 0)
	own.CPUs = cpuset.MustParse("2-3")
	end := func(h *host, g *actuate.Host) {
		h.t.Helper()
		if _, err := g.Restore(); err != nil {
			h.t.Error(err)
		}
		if err := g.Close(); err != nil {
			h.t.Error(err)
		}
	}
	for _, guardFirst := range []bool{true, false} { // the node notes below the guard's value
		h := guarded(t)
		g := h.narrow("3")
		n := h.open()
		h.batch("opened", "3")
		h.place(n, own)
		h.batch("placed", "0-1")
		if guardFirst {
			end(h, g)
		}
		if err := n.Release(ctx, "web", WhenEmpty); err != nil {
			t.Error(err)
		}
		h.batch("released", "0-3")
		if !guardFirst {
			end(h, g)
		}
		h.batch("in the end", "0-3")
	}

	// The guard writes above the node's value. The node takes that away where it has to
	// widen the group, and leaves it where it only gives back.
	h := guarded(t)
	n := h.open()
	h.place(n, own)
	g := h.narrow("1")
	if err := n.Release(ctx, "web", WhenEmpty); err != nil {
		t.Error(err)
	}
	end(h, g)
	h.batch("released, then ended", "0-3")

	h = guarded(t)
	n = h.open()
	h.place(n, own)
	g = h.narrow("1")
	items, err := n.Restore(ctx)
	if !slices.ContainsFunc(items, func(i kernel.Item) bool { return i.Outcome == kernel.Covered }) || err == nil || !strings.Contains(err.Error(), "end the guard") {
		t.Errorf("restored below the guard: %v, %v", items, err)
	}
	h.batch("restored below the guard", "1")
	end(h, g)
	h.batch("the guard has ended", "0-1")
	h.open()
	h.batch("opened again", "0-3")
}
