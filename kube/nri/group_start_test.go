package nri

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/fakekernel"
)

var gold = map[string]string{"berth.dev/cache": "gold"}

// newContainerd is a host with classes whose plugin is connected to containerd.
func newContainerd(t *testing.T, change func(*Options)) *classHost {
	t.Helper()
	h := newClassHost(t, fakekernel.V2(), change)
	h.connect()
	return h
}

func (h *classHost) connect() {
	h.t.Helper()
	_, err := h.p.Configure(context.Background(), "", "containerd", "v2.4.0")
	must(h.t, err)
}

// numbered is a container of a pod, in its nth start.
func numbered(p *api.PodSandbox, n string) *api.Container {
	c := container(p, "a", 100)
	c.Id += "." + n
	c.Linux.CgroupsPath += "." + n
	return c
}

// failed are the failures told that name the group.
func (h *classHost) failed() (some []string) {
	for _, text := range h.heard.kinds(string(agent.Failed)) {
		if strings.Contains(text, "berth-gold") {
			some = append(some, text)
		}
	}
	return some
}

// starts has the runtime start a container that was created.
func (h *classHost) starts(p *api.PodSandbox, c *api.Container) {
	h.t.Helper()
	h.make(c)
	must(h.t, h.p.StartContainer(context.Background(), p, c))
}

// Where the runtime refuses the group, one container fails by it on each connection: no other one is
// asked for before that has started, and none after it never did.
func TestFirstShowsWhetherItWorks(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, ends := range map[string]func(*classHost, *api.PodSandbox, *api.Container) error{
		"stopped": func(h *classHost, p *api.PodSandbox, c *api.Container) error {
			_, err := h.p.StopContainer(ctx, p, c)
			return err
		},
		"removed":     func(h *classHost, p *api.PodSandbox, c *api.Container) error { return h.p.RemoveContainer(ctx, p, c) },
		"pod removed": func(h *classHost, p *api.PodSandbox, c *api.Container) error { return h.p.RemovePodSandbox(ctx, p) },
		"next of its name": func(h *classHost, p *api.PodSandbox, c *api.Container) error {
			if got := h.createIn(p, numbered(p, "1")); got != "" {
				h.t.Errorf("the next of its name is to start in %q", got)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newContainerd(t, nil)
			one, two, three := pod("one", gold), pod("two", gold), pod("three", gold)
			a := numbered(one, "0")
			if got := h.createIn(one, a); got != "berth-gold" {
				t.Fatalf("the first is to start in %q", got)
			}
			b := numbered(two, "0")
			if got := h.createIn(two, b); got != "" {
				t.Errorf("before the first has started, the second is to start in %q", got)
			}
			h.starts(two, b) // it went without, and shows nothing
			if got := h.tasks("gold"); got != h.pids[b.Id] {
				t.Errorf("in gold are %q", got)
			}
			must(t, ends(h, one, a))
			for i, c := range []*api.Container{numbered(three, "0"), numbered(three, "1")} {
				if got := h.createIn(three, c); got != "" {
					t.Errorf("after the first never started, container %d of another pod is to start in %q", i, got)
				}
			}
			if told := h.failed(); len(told) != 1 || !strings.Contains(told[0], "may have refused") {
				t.Errorf("told %q", told)
			}
			h.connect() // maybe to another runtime
			if got := h.createIn(pod("four", gold), numbered(pod("four", gold), "0")); got != "berth-gold" {
				t.Errorf("on the next connection one is to start in %q", got)
			}
		})
	}
}

// Once it works, one that never started is its pod's affair, and told once.
func TestNeverStarted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := newContainerd(t, nil)
	p := pod("web", gold)
	first := numbered(p, "0")
	if got := h.createIn(p, first); got != "berth-gold" {
		t.Fatalf("the first is to start in %q", got)
	}
	h.starts(p, first)
	h.stop(p, first)
	for _, id := range []string{"1", "2", "3", "4"} {
		c, want := numbered(p, id), ""
		if id == "1" {
			want = "berth-gold"
		}
		if got := h.createIn(p, c); got != want {
			t.Errorf("start %s is to start in %q, want %q", id, got, want)
		}
		if id == "1" { // it is not started
			_, err := h.p.StopContainer(ctx, p, c)
			must(t, err)
			continue
		}
		h.starts(p, c)
		if got := h.tasks("gold"); got != h.pids[c.Id] {
			t.Errorf("start %s: in gold are %q", id, got)
		}
		h.stop(p, c)
	}
	if told := h.failed(); len(told) != 1 || !strings.Contains(told[0], "may have refused") {
		t.Errorf("told %q", told)
	}
	for _, other := range []*api.PodSandbox{pod("other", gold), pod("more", gold)} { // which does not wait for the first
		if got := h.createIn(other, numbered(other, "0")); got != "berth-gold" {
			t.Errorf("that of pod %s is to start in %q", other.Name, got)
		}
	}
}

// The group stays while a container is still to start in it, though its CPUs are given back.
func TestUnstartedKeepsItsGroup(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := newContainerd(t, func(o *Options) { o.Unstarted = time.Nanosecond })
	p := pod("db", map[string]string{"berth.dev/cache": "gold", "berth.dev/class": "LSR"})
	c := container(p, "a", 2000)
	if got := h.createIn(p, c); got != "berth-gold" {
		t.Fatalf("it is to start in %q", got)
	}
	dir := fakekernel.ResctrlDir + "/berth-gold"
	has, own := h.read(dir+"/schemata"), h.workload("default/db/a").Grant.Own
	if own.Len() != 2 || has == "" {
		t.Fatalf("it owns %s, the group has %q", own, has)
	}
	owned := func() string {
		s, err := h.p.node.State(ctx)
		must(t, err)
		return s.Owned().String()
	}
	for range 2 {
		h.p.abandon(ctx)
		if got := h.read(dir + "/schemata"); got != has || owned() != "" {
			t.Fatalf("not started, the group has %q, and CPUs %q are owned", got, owned())
		}
	}
	if told := h.heard.kinds(Abandoned); len(told) != 1 {
		t.Errorf("told %q", told)
	}
	h.starts(p, c)
	must(t, h.p.PostStartContainer(ctx, p, c))
	h.p.retryAll(ctx)
	w := h.workload("default/db/a")
	if w.Grant.Own.Len() != 2 || w.Classes["cache"] != "gold" || w.Spec.Annotations[fallbackKey] != "" || h.tasks("gold") != h.pids[c.Id] {
		t.Errorf("started, it is %+v; in gold are %q", w, h.tasks("gold"))
	}
	if told := h.heard.kinds(Recovered); len(told) != 1 {
		t.Errorf("told %q", told)
	}
	h.stop(p, c)
	if got := h.read(dir + "/schemata"); got != "" || owned() != "" {
		t.Errorf("at the end the group has %q, and CPUs %q are owned", got, owned())
	}

	d := numbered(p, "1")
	if got := h.createIn(p, d); got != "berth-gold" {
		t.Fatalf("it is to start in %q", got)
	}
	h.p.abandon(ctx)
	must(t, h.p.RemoveContainer(ctx, p, d))
	if got := h.read(dir + "/schemata"); got != "" {
		t.Errorf("removed and never started, the group has %q", got)
	}
}

// restart has another plugin in place of the one that ran, which the runtime tells what it has.
func (h *classHost) restart(p *api.PodSandbox, c *api.Container) {
	h.t.Helper()
	must(h.t, h.p.Close())
	h.p = open(h.t, h.opt)
	h.connect()
	_, err := h.p.Synchronize(context.Background(), []*api.PodSandbox{p}, []*api.Container{c})
	must(h.t, err)
}

// A container that was not started gives its CPUs up and keeps the group in which it is to start, and has
// its CPUs once it starts, though the plugin starts anew meanwhile.
func TestUnstartedOverARestart(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	starts := func(h *classHost, p *api.PodSandbox, c *api.Container) {
		h.starts(p, c)
		must(h.t, h.p.PostStartContainer(ctx, p, c))
	}
	for name, tc := range map[string]struct {
		between func(h *classHost, p *api.PodSandbox, c *api.Container) *api.Container
		own     int
		gaveUp  int // how often
	}{
		"after it gave them up": {own: 2, gaveUp: 1, between: func(h *classHost, p *api.PodSandbox, c *api.Container) *api.Container {
			h.p.abandon(ctx)
			h.restart(p, c)
			h.p.abandon(ctx)
			starts(h, p, c)
			return c
		}},
		"before": {own: 2, gaveUp: 1, between: func(h *classHost, p *api.PodSandbox, c *api.Container) *api.Container {
			h.restart(p, c)
			h.p.abandon(ctx)
			starts(h, p, c)
			return c
		}},
		"it starts while no plugin runs": {own: 2, gaveUp: 1, between: func(h *classHost, p *api.PodSandbox, c *api.Container) *api.Container {
			h.p.abandon(ctx)
			h.make(c)
			c.State = api.ContainerState_CONTAINER_RUNNING
			h.restart(p, c)
			return c
		}},
		"it is resized meanwhile": {own: 4, gaveUp: 1, between: func(h *classHost, p *api.PodSandbox, c *api.Container) *api.Container {
			h.p.abandon(ctx)
			more := container(p, "a", 4000).Linux.Resources
			_, err := h.p.UpdateContainer(ctx, p, c, more)
			must(h.t, err)
			c = withResources(c, more)
			h.restart(p, c)
			starts(h, p, c)
			return c
		}},
		"it is resized before it has its CPUs again": {own: 4, gaveUp: 1, between: func(h *classHost, p *api.PodSandbox, c *api.Container) *api.Container {
			h.p.abandon(ctx)
			h.restart(p, c)
			starts(h, p, c)
			more := container(p, "a", 4000).Linux.Resources
			_, err := h.p.UpdateContainer(ctx, p, c, more)
			must(h.t, err)
			return c
		}},
		"it is placed while the records are loaded": {own: 2, gaveUp: 1, between: func(h *classHost, p *api.PodSandbox, c *api.Container) *api.Container {
			h.p.abandon(ctx)
			h.restart(p, c)
			starts(h, p, c)
			h.p.forget(c.Id) // as loadRecords does, before it knows the container by its record
			return c
		}},
		"it is being started": {own: 2, between: func(h *classHost, p *api.PodSandbox, c *api.Container) *api.Container {
			must(h.t, h.p.StartContainer(ctx, p, c))
			h.restart(p, c)
			h.make(c)
			must(h.t, h.p.PostStartContainer(ctx, p, c))
			return c
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newContainerd(t, func(o *Options) { o.Unstarted = time.Nanosecond })
			p := pod("db", map[string]string{"berth.dev/cache": "gold", "berth.dev/class": "LSR"})
			c := container(p, "a", 2000)
			group := h.createIn(p, c)
			if group != "berth-gold" {
				t.Fatalf("it is to start in %q", group)
			}
			c.State, c.Linux.Rdt = api.ContainerState_CONTAINER_CREATED, &api.LinuxRdt{ClosId: api.String(group)} // so the runtime lists it
			c = tc.between(h, p, c)
			if h.read(fakekernel.ResctrlDir+"/"+group+"/schemata") == "" {
				t.Error("the group is gone before it starts")
			}
			h.p.retryAll(ctx)
			w := h.workload("default/db/a")
			if w.Grant.Own.Len() != tc.own || w.Classes["cache"] != "gold" || w.Spec.Annotations[fallbackKey] != "" || h.tasks("gold") != h.pids[c.Id] {
				t.Errorf("started, it owns CPUs %s, classes %v, annotations %v; in gold are %q", w.Grant.Own, w.Classes, w.Spec.Annotations, h.tasks("gold"))
			}
			if given, got := len(h.heard.kinds(Abandoned)), len(h.heard.kinds(Recovered)); given != tc.gaveUp || got != tc.gaveUp {
				t.Errorf("told %d times that it gave CPUs up, and %d times that it has them", given, got)
			}
			h.stop(p, c)
			if diff := cmp.Diff(h.before, h.classFiles()); diff != "" {
				t.Errorf("at the end (-before +after):\n%s", diff)
			}
			if got := h.createIn(p, numbered(p, "1")); got != group {
				t.Errorf("the next of its name is to start in %q", got)
			}
		})
	}
}

// The record of an earlier version does not say that its container gave its CPUs up until it starts. The
// container gives up anew what it has not, which notes that, and so has its CPUs once it starts.
func TestUnstartedOfEarlierVersion(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := newContainerd(t, func(o *Options) { o.Unstarted = time.Nanosecond })
	p := pod("db", map[string]string{"berth.dev/cache": "gold", "berth.dev/class": "LSR"})
	c := container(p, "a", 2000)
	group := h.createIn(p, c)
	c.State, c.Linux.Rdt = api.ContainerState_CONTAINER_CREATED, &api.LinuxRdt{ClosId: api.String(group)}
	h.p.abandon(ctx)
	w := h.workload("default/db/a")
	if !unstarted(&w) || !w.Grant.Own.IsEmpty() {
		t.Fatalf("not started it owns CPUs %s, annotations %v", w.Grant.Own, w.Spec.Annotations)
	}
	w.Spec.Annotations = maps.Clone(w.Spec.Annotations)
	delete(w.Spec.Annotations, unstartedKey)
	_, err := h.p.node.Resize(ctx, w.Spec)
	must(t, err)
	h.restart(p, c)
	if h.p.gaveUp(c.Id) {
		t.Fatal("the record says more than an earlier version wrote")
	}
	h.p.abandon(ctx)
	h.starts(p, c)
	must(t, h.p.PostStartContainer(ctx, p, c))
	h.p.retryAll(ctx)
	if w := h.workload("default/db/a"); w.Grant.Own.Len() != 2 || w.Spec.Annotations[fallbackKey] != "" || h.tasks("gold") != h.pids[c.Id] {
		t.Errorf("started, it owns CPUs %s, annotations %v; in gold are %q", w.Grant.Own, w.Spec.Annotations, h.tasks("gold"))
	}
}

// What began, ended or went while there was no connection is not waited for, and shows nothing.
func TestStartsAfterAReconnection(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, tc := range map[string]struct {
		state api.ContainerState
		pods  int // that the runtime still has, and with them the container
		want  string
		again string // of the next of its name
	}{
		"running":     {api.ContainerState_CONTAINER_RUNNING, 1, "berth-gold", "berth-gold"},
		"stopped":     {api.ContainerState_CONTAINER_STOPPED, 1, "berth-gold", "berth-gold"},
		"pod gone":    {api.ContainerState_CONTAINER_UNKNOWN, 0, "berth-gold", "berth-gold"},
		"not started": {api.ContainerState_CONTAINER_CREATED, 1, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newContainerd(t, nil)
			p, other := pod("web", gold), pod("other", gold)
			c := numbered(p, "0")
			if got := h.createIn(p, c); got != "berth-gold" {
				t.Fatalf("it is to start in %q", got)
			}
			h.connect()
			c.State = tc.state
			_, err := h.p.Synchronize(ctx, []*api.PodSandbox{p}[:tc.pods], []*api.Container{c}[:tc.pods])
			must(t, err)
			o := numbered(other, "0")
			if got := h.createIn(other, o); got != tc.want {
				t.Errorf("another is to start in %q, want %q", got, tc.want)
			}
			h.starts(other, o)
			if got := h.createIn(p, numbered(p, "1")); got != tc.again {
				t.Errorf("the next of its name is to start in %q, want %q", got, tc.again)
			}
			if told := h.failed(); len(told) > 0 != (tc.again == "") {
				t.Errorf("told %q", told)
			}
		})
	}
}
