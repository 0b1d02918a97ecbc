package agent

import (
	"context"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// Books in memory are not searched for who died at every change; who has died
// neither keeps his CPUs from others nor holds up a change that meets his group.
func TestWhoDiedMeanwhile(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, layout := range layouts() {
		h := newHost(t, layout)
		h.opt.Keep = true
		n := h.open()
		whole := h.place(n, spec("whole", place.LSE, 6000, 0))
		if _, err := n.Place(ctx, spec("next", place.LSE, 4000, 0)); err == nil {
			t.Fatalf("%s: there was room", name)
		}
		h.events = nil
		h.rmdirs(whole)
		h.place(n, spec("next", place.LSE, 4000, 0))
		if want := []EventKind{Released, Placed}; !slices.Equal(h.kinds(), want) {
			t.Errorf("%s: room of the dead: %v instead of %v", name, h.kinds(), want)
		}

		pool := h.place(n, spec("pool", place.LS, 500, 0))
		other := h.place(n, spec("other", place.LS, 500, 0))
		h.events = nil
		h.rmdirs(pool)
		h.place(n, spec("third", place.LSE, 2000, 0)) // the pool narrows for it
		if want := []EventKind{Released, Placed}; !slices.Equal(h.kinds(), want) {
			t.Errorf("%s: a dead one in the pool: %v instead of %v", name, h.kinds(), want)
		}
		h.events = nil
		h.rmdirs(other)
		if _, err := n.Resize(ctx, spec("other", place.LS, 600, 0)); err == nil {
			t.Errorf("%s: a dead one was resized", name)
		}
		if want := []EventKind{Released, Refused}; !slices.Equal(h.kinds(), want) {
			t.Errorf("%s: resizing a dead one: %v instead of %v", name, h.kinds(), want)
		}
		all, err := n.List(ctx)
		if err != nil || len(all) != 2 {
			t.Errorf("%s: left are %v, %v", name, all, err)
		}
	}
}

// rmdirs removes a workload's group in every hierarchy.
func (h *host) rmdirs(w Workload) {
	h.t.Helper()
	for _, dir := range w.Dirs {
		if err := h.k.Rmdir(dir); err != nil {
			h.t.Fatal(err)
		}
	}
}

// Where someone removed a workload's group in one hierarchy, which takes that its
// processes had left it: it is made again around those that are elsewhere in it, or
// for one that is yet to come; else the workload has ended.
func TestGroupVanishesInOneHierarchy(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, c := range []struct {
		name  string
		setup func(*host, *Spec)
		stays bool
	}{
		{"its process is elsewhere in it", func(h *host, s *Spec) { s.PID = 9000100 }, true},
		{"its process is yet to come", func(h *host, s *Spec) { s.Owner.PID = 9000101 }, true},
		{"its process has ended", func(h *host, s *Spec) { s.PID = 9000102 }, false},
		{"it never had any", func(*host, *Spec) {}, false},
	} {
		h := newHost(t, layouts()["v1"])
		h.opt.Keep = true
		n := h.open()
		s := spec("api", place.LSE, 2000, 0)
		c.setup(h, &s)
		w := h.place(n, s)
		cpusets := "sys/fs/cgroup/cpuset/"
		switch {
		case s.PID != 0 && c.stays:
			if err := h.k.WriteFile(cpusets+"cgroup.procs", "9000100"); err != nil {
				t.Fatal(err)
			}
		case s.PID != 0:
			if err := h.k.Exit("9000102"); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.k.Rmdir(cpusets + w.Group); err != nil {
			t.Fatal(err)
		}
		h.events = nil
		if _, err := n.Reconcile(ctx); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		all, err := n.List(ctx)
		if err != nil || (len(all) == 1) != c.stays {
			t.Errorf("%s: left are %v, %v; events %v", c.name, all, err, h.events)
		}
		procs, err := kernel.ReadText(n.root.FS(), cpusets+w.Group+"/cgroup.procs")
		if (err == nil) != c.stays {
			t.Errorf("%s: its group: %v", c.name, err)
		}
		if s.PID != 0 && c.stays && procs != "9000100" {
			t.Errorf("%s: its processes are %q", c.name, procs)
		}
		if !c.stays && !slices.Contains(h.kinds(), Released) {
			t.Errorf("%s: events %v", c.name, h.events)
		}
		if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
			t.Errorf("%s: then it repairs %v, %v", c.name, repairs, err)
		}
	}
}

// A group that Berth was given has ended when it is no longer where CPUs are given.
func TestGivenGroupVanishesInOneHierarchy(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t, layouts()["v1"])
	w.opt.Keep = true
	n := w.open()
	s := spec("web", place.LS, 1000, 0)
	s.Group = "web.slice"
	w.place(n, s)
	if err := w.k.WriteFile("sys/fs/cgroup/cpu,cpuacct/web.slice/cgroup.procs", "9000103"); err != nil {
		t.Fatal(err)
	}
	if err := w.k.WriteFile("sys/fs/cgroup/cpuset/cgroup.procs", "9000104"); err != nil {
		t.Fatal(err)
	}
	if err := w.k.Rmdir("sys/fs/cgroup/cpuset/web.slice"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reconcile(ctx, "web"); err != nil {
		t.Fatal(err)
	}
	if all, err := n.List(ctx); err != nil || len(all) > 0 {
		t.Errorf("left are %v, %v", all, err)
	}
	if _, err := kernel.ReadText(n.root.FS(), "sys/fs/cgroup/cpuset/web.slice/cpuset.cpus"); err == nil {
		t.Error("it was made again")
	}
}

// What is left to someone else is told as it is, and not as it was asked for.
func TestMoveOfWhatIsYielded(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, layout := range layouts() {
		h := newHost(t, layout)
		n := h.open()
		h.place(n, spec("api", place.LSE, 2000, 9000100))
		file := "sys/fs/cgroup/berth/api/cpuset.cpus"
		if len(layout.V1) > 0 {
			file = "sys/fs/cgroup/cpuset/berth/api/cpuset.cpus"
		}
		for range 4 {
			if err := h.k.WriteFile(file, "7"); err != nil {
				t.Fatal(err)
			}
			if _, err := n.Reconcile(ctx); err != nil {
				t.Fatal(err)
			}
		}
		h.events = nil
		w, err := n.Move(ctx, "api", cpuset.MustParse("4-5"), cpuset.Set{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		notes := strings.Join(w.Notes, "\n")
		note := "/" + file + ` is left to someone else who keeps changing it: the kernel has "7" instead of "4-5"`
		if w.CPUs.String() != "7" || !strings.Contains(notes, note) {
			t.Errorf("%s: told are CPUs %s, %s", name, w.CPUs, notes)
		}
		if len(h.events) != 1 || h.events[0].Text != "CPUs 4-5 are granted; "+note {
			t.Errorf("%s: events %v", name, h.events)
		}
		if text, _ := kernel.ReadText(n.root.FS(), file); text != "7" {
			t.Errorf("%s: the kernel has %s", name, text)
		}
	}
}
