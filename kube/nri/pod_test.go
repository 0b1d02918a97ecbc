package nri

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
	"berth.dev/berth/place/kubelet"
	"berth.dev/berth/podwords"
)

// known is an API server that knows pods.
type known map[string]*PodInfo

func (k known) Pod(uid string) (*PodInfo, bool) { p, ok := k[uid]; return p, ok }

func needs(name string, role place.Role, milli int) ContainerInfo {
	return ContainerInfo{Name: name, Role: role, Resources: podwords.Resources{Milli: milli, LimitMilli: milli}}
}

// of makes a Guaranteed pod of containers.
func (k known) of(name string, containers ...ContainerInfo) *api.PodSandbox {
	p := guaranteed(pod(name, nil))
	k[p.Uid] = &PodInfo{Resources: podwords.Resources{QoS: place.LSR}, Containers: containers}
	return p
}

// Under the topology manager's scope pod, all of a pod is on one NUMA node, or nothing of it
// starts elsewhere: the places are there before the containers, and stay until the sandbox stops.
func TestPodAsAWhole(t *testing.T) {
	t.Parallel()
	api := known{}
	n := newNode(t, "1s2n4c1t", func(o *Options) {
		o.Pods = api
		o.Node.Policy = kubelet.Policy{CPUManager: kubelet.CPUManagerStatic, TopologyManager: kubelet.TopologyManagerSingle, TopologyManagerScope: kubelet.ScopePod}
		o.Node.Config.Reserved = setOf(0)
	})
	p := api.of("p", needs("init", place.Init, 3000), needs("side", place.Sidecar, 1000), needs("a", place.App, 1000), needs("b", place.App, 2000))
	must(t, n.create(p, container(p, "init", 3000), 0))
	all, err := n.p.node.List(context.Background())
	must(t, err)
	of := map[string]place.Grant{}
	for i := range all {
		of[strings.TrimPrefix(all[i].ID(), "default/p/")] = *all[i].Grant
	}
	if len(of) != 4 || n.p.opt.Node.Machine == nil {
		t.Fatalf("places: %v; events %+v", of, n.heard.all)
	}
	whole := of["side"].Own.Union(of["a"].Own).Union(of["b"].Own)
	if whole.Len() != 4 || whole != setOf(4, 5, 6, 7) {
		t.Errorf("the pod has CPUs %s, not those of NUMA node 1", whole)
	}
	must(t, n.stop("p.init"))
	if got := n.p.node; got == nil || n.shared().Overlaps(of["init"].Own) {
		t.Errorf("the CPUs %s of the init container are not kept: the pool is %s", of["init"].Own, n.shared())
	}
	for name, milli := range map[string]int{"side": 1000, "a": 1000, "b": 2000} {
		must(t, n.create(p, container(p, name, milli), milli/1000))
	}
	n.asBooks("all run")
	for _, name := range []string{"side", "a", "b"} {
		if got := n.cpus("p." + name); got != of[name].Own {
			t.Errorf("%s has %s, and its place was %s", name, got, of[name].Own)
		}
	}
	before := n.cpus("p.a")
	must(t, n.stop("p.a")) // it starts again
	must(t, n.create(p, container(p, "a", 1000), 1))
	if n.cpus("p.a") != before {
		t.Errorf("a restart moves it from %s to %s", before, n.cpus("p.a"))
	}
	for _, name := range []string{"side", "a", "b"} {
		must(t, n.stop("p."+name))
	}
	must(t, n.stopPod(p))
	eventually(t, "the pod's places are given back", func() bool {
		all, err := n.p.node.List(context.Background())
		return err == nil && len(all) == 0
	})
}

// An init container's CPUs are kept for the pod's others, which use them again, and are free
// once all of these run; also where an annotation says what it is.
func TestInitContainers(t *testing.T) {
	t.Parallel()
	api := known{}
	n := newNode(t, "1s1n8c1t", func(o *Options) { o.Pods = api })
	p := api.of("p", needs("init", place.Init, 4000), needs("a", place.App, 2000))
	must(t, n.create(p, container(p, "init", 4000), 4))
	init := n.cpus("p.init")
	must(t, n.stop("p.init"))
	q := guaranteed(pod("q", nil))
	must(t, n.create(q, container(q, "a", 2000), 2))
	if n.cpus("q.a").Overlaps(init) {
		t.Errorf("another pod has %s of the CPUs %s that are kept", n.cpus("q.a"), init)
	}
	must(t, n.create(p, container(p, "a", 2000), 2))
	if !init.Contains(n.cpus("p.a")) {
		t.Errorf("the pod's own container has %s and not of %s", n.cpus("p.a"), init)
	}
	n.asBooks("all run")
	if all, _ := n.p.node.List(context.Background()); len(all) != 2 {
		t.Errorf("%d places", len(all))
	}
	r := guaranteed(pod("r", map[string]string{"berth.dev/role.init": "init"}))
	must(t, n.create(r, container(r, "init", 2000), 2))
	kept := n.cpus("r.init")
	must(t, n.stop("r.init"))
	if !n.shared().Intersect(kept).IsEmpty() {
		t.Errorf("the CPUs %s are not kept", kept)
	}
	must(t, n.stopPod(r))
	eventually(t, "they are given back", func() bool { return n.shared().Contains(kept) })
}

// They are free, too, where another pod has the name of theirs, and however the last of the others came.
func TestInitContainersDone(t *testing.T) {
	t.Parallel()
	const older, late, away = "an older pod has its name", "it is placed late", "it came while the plugin was away"
	ctx := context.Background()
	for _, name := range []string{older, late, away} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			apis, free, over := known{}, make(chan struct{}), make(chan time.Time)
			close(over)
			var stuck atomic.Bool
			opt, heard := options(t, "1s1n8c1t")
			opt.Pods, opt.Node.Policy = apis, slow{berth.Policy{}, func() {
				if stuck.Load() {
					<-free
				}
			}}
			p := open(t, opt)
			p.after = func(time.Duration) <-chan time.Time {
				if stuck.Load() {
					return over
				}
				return nil
			}
			create := func(pod *api.PodSandbox, c *api.Container) {
				t.Helper()
				_, _, err := p.CreateContainer(ctx, pod, c)
				must(t, err)
			}
			q, places := apis.of("q", needs("init", place.Init, 4000), needs("a", place.App, 2000)), 1
			init, a := container(q, "init", 4000), container(q, "a", 2000)
			if name == older {
				was := guaranteed(pod("q", nil))
				was.Id, was.Uid = "pod-older", "uid-older"
				c := container(was, "a", 1000)
				c.Id = "older"
				create(was, c)
				places++
			}
			create(q, init)
			_, err := p.StopContainer(ctx, q, init)
			must(t, err)
			if !p.isReserved("default/q/init", q.Uid) {
				t.Fatal("its CPUs are not kept")
			}
			switch name {
			case late:
				stuck.Store(true)
				create(q, a)
				stuck.Store(false)
				close(free)
				eventually(t, "the last is placed", func() bool { p.retryAll(ctx); return len(heard.kinds(Recovered)) == 1 })
			case away:
				a.State, a.Linux.Resources.Cpu.Cpus = api.ContainerState_CONTAINER_RUNNING, "0-7"
				_, err := p.Synchronize(ctx, []*api.PodSandbox{q}, []*api.Container{a})
				must(t, err)
			default:
				create(q, a)
			}
			all, err := p.node.List(ctx)
			must(t, err)
			if len(all) != places || len(p.reserving()) > 0 {
				t.Errorf("%d places, want %d; events %+v", len(all), places, heard.all)
			}
		})
	}
}

// What is reserved for a pod is given back once its sandbox has ended, also where the runtime does not tell of
// that: of a sandbox that it had before it was started anew, and of one that it lists and that has ended.
func TestSandboxEndsUntold(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	alive := true
	opt, _ := options(t, "1s1n8c1t")
	opt.Unstarted = time.Nanosecond
	opt.Busy = func(group string) bool { return alive && group == "kubepods/podr/pause" }
	p := open(t, opt)
	r := guaranteed(pod("r", map[string]string{"berth.dev/role.init": "init"}))
	r.Linux.CgroupsPath = "/kubepods/podr/pause"
	reserve := func() {
		t.Helper()
		c := container(r, "init", 2000)
		_, _, err := p.CreateContainer(ctx, r, c)
		must(t, err)
		_, err = p.StopContainer(ctx, r, c)
		must(t, err)
	}
	list := func() {
		t.Helper()
		_, err := p.Synchronize(ctx, []*api.PodSandbox{r}, nil)
		must(t, err)
	}
	owned := func(when string, want int) {
		t.Helper()
		s, err := p.node.State(ctx)
		must(t, err)
		if got := s.Owned(); got.Len() != want {
			t.Errorf("%s CPUs %q are kept, want %d", when, got, want)
		}
	}
	reserve()
	list()
	for range 3 {
		p.endSandboxes(ctx)
	}
	owned("in the sandbox", 2)
	alive = false
	p.endSandboxes(ctx)
	owned("when the sandbox is first seen without processes", 2)
	p.endSandboxes(ctx)
	owned("after the sandbox", 0)
	reserve() // in one that was never seen with processes
	for range 3 {
		p.endSandboxes(ctx)
	}
	owned("in a sandbox whose group cannot be read", 2)
	list()
	owned("after a sandbox that is still listed", 0)
}

// Without the plugin, the runtime's validator creates no container that requires it.
func TestRequiredPlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", nil)
	p := pod("p", map[string]string{"required-plugins.noderesource.dev": "[ berth ]"})
	must(t, n.create(p, container(p, "a", 100), 0))
	n.end()
	eventually(t, "the runtime misses it", func() bool {
		err := n.create(p, container(p, "b", 100), 0)
		return err != nil && strings.Contains(err.Error(), "required plugin")
	})
	must(t, n.create(pod("q", nil), container(pod("q", nil), "a", 100), 0))
}

// podOf is a Guaranteed pod with CPUs and memory of its own.
func (k known) podOf(name string, milli int, memory int64, containers ...ContainerInfo) *api.PodSandbox {
	p := k.of(name, containers...)
	k[p.Uid].Resources = podwords.Resources{Milli: milli, LimitMilli: milli, Memory: memory, QoS: place.LSR}
	return p
}

// What a pod has of its own is what its containers have together.
func TestWithinPod(t *testing.T) {
	t.Parallel()
	bytes := func(c ContainerInfo, memory int64) ContainerInfo { c.Memory = memory; return c }
	unlimited := needs("a", place.App, 2000)
	unlimited.LimitMilli = 0
	type part struct {
		milli, limit int
		memory       int64
		own          bool
	}
	for name, c := range map[string]struct {
		milli      int
		memory     int64
		containers []ContainerInfo
		want       []part
	}{
		"no resources of its own": {0, 0, []ContainerInfo{needs("a", place.App, 2000), needs("b", place.App, 0)}, []part{{2000, 2000, 0, true}, {0, 0, 0, true}}},
		"one container":           {4000, 100, []ContainerInfo{needs("a", place.App, 0)}, []part{{4000, 4000, 100, true}}},
		"two without":             {4000, 101, []ContainerInfo{needs("a", place.App, 0), needs("b", place.App, 0)}, []part{{2000, 4000, 50, false}, {2000, 4000, 50, false}}},
		"one has its own":         {4000, 100, []ContainerInfo{bytes(needs("a", place.App, 1000), 70), needs("b", place.App, 0)}, []part{{1000, 1000, 70, true}, {3000, 4000, 30, true}}},
		"no limit of its own":     {4000, 0, []ContainerInfo{unlimited, needs("b", place.App, 0)}, []part{{2000, 4000, 0, false}, {2000, 4000, 0, true}}},
		"nothing is left":         {2000, 0, []ContainerInfo{needs("a", place.App, 2000), needs("b", place.App, 0)}, []part{{2000, 2000, 0, true}, {0, 2000, 0, true}}},
		"more than the pod":       {2000, 50, []ContainerInfo{bytes(needs("a", place.App, 3000), 70), needs("b", place.App, 0)}, []part{{2000, 2000, 50, true}, {0, 2000, 0, true}}},
		"an init container has all that sidecars leave": {
			4000, 0, []ContainerInfo{needs("i", place.Init, 0), needs("s", place.Sidecar, 1000), needs("a", place.App, 0), needs("b", place.App, 0)},
			[]part{{3000, 4000, 0, false}, {1000, 1000, 0, true}, {1500, 4000, 0, false}, {1500, 4000, 0, false}},
		},
		"also one that has a part": {
			4000, 0, []ContainerInfo{needs("i", place.Init, 0), needs("s", place.Sidecar, 0), needs("a", place.App, 0)},
			[]part{{2000, 4000, 0, false}, {2000, 4000, 0, false}, {2000, 4000, 0, false}},
		},
	} {
		p := &PodInfo{Resources: podwords.Resources{Milli: c.milli, LimitMilli: c.milli, Memory: c.memory}, Containers: c.containers}
		for i := range p.Containers {
			got, own := p.within(&p.Containers[i], p.Containers[i].Resources)
			if is := (part{got.Milli, got.LimitMilli, got.Memory, own}); is != c.want[i] {
				t.Errorf("%s: %s has %+v, want %+v", name, p.Containers[i].Name, is, c.want[i])
			}
		}
	}
}

// kubelets make a container that asks for nothing in a pod with limits of its own: with none of
// them, as a kubelet does that leaves the limits to the pod's group, or with all of them.
var kubelets = map[string]func(known, *api.PodSandbox, string) *api.Container{
	"without the pod's limits": func(_ known, p *api.PodSandbox, name string) *api.Container { return container(p, name, 0) },
	"with the pod's limits": func(k known, p *api.PodSandbox, name string) *api.Container {
		c := container(p, name, k[p.Uid].LimitMilli)
		c.Linux.Resources.Memory = &api.LinuxMemory{Limit: api.Int64(k[p.Uid].Memory)}
		return c
	},
}

func TestPodLevelResources(t *testing.T) {
	t.Parallel()
	for name, made := range kubelets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			podLevelResources(t, made)
		})
	}
}

func podLevelResources(t *testing.T, container func(known, *api.PodSandbox, string) *api.Container) {
	for _, c := range []struct {
		policy place.Policy // nil is the default
		own    int
	}{
		{nil, 4}, {kubelet.Policy{CPUManager: kubelet.CPUManagerStatic}, 0},
	} {
		api := known{}
		n := newNode(t, "1s1n8c1t", func(o *Options) {
			o.Pods = api
			if c.policy != nil {
				o.Node.Policy, o.Node.Config.Reserved = c.policy, setOf(0)
			}
		})
		one := api.podOf("one", 4000, 1<<20, needs("a", place.App, 0))
		must(t, n.create(one, container(api, one, "a"), c.own))
		two := api.podOf("two", 2000, 1<<20, needs("a", place.App, 0), needs("b", place.App, 0))
		must(t, n.create(two, container(api, two, "a"), 0))
		must(t, n.create(two, container(api, two, "b"), 0))
		n.asBooks("pods with resources of their own")
		all, err := n.p.node.List(context.Background())
		must(t, err)
		for i := range all {
			milli, own := 1000, 0
			if all[i].ID() == "default/one/a" {
				milli, own = 4000, c.own
			}
			if g := all[i].Grant; g.Request.Milli != milli || g.Own.Len() != own {
				t.Errorf("%s counts as %d thousandths of a CPU and owns %s, want %d and %d CPUs", all[i].ID(), g.Request.Milli, g.Own, milli, own)
			}
		}
	}
}

// By words the containers of a pod get no more together than the pod has.
func TestPodLevelWords(t *testing.T) {
	t.Parallel()
	for name, made := range kubelets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := known{}
			n := newNode(t, "1s1n8c1t", func(o *Options) { o.Pods = api })
			p := api.podOf("p", 4000, 1<<20, needs("a", place.App, 0), needs("b", place.App, 0))
			p.Annotations = map[string]string{"berth.dev/cpus.a": "2", "berth.dev/cpus.b": "3"}
			must(t, n.create(p, made(api, p, "a"), 2))
			must(t, n.create(p, made(api, p, "b"), 0))
			if told := strings.Join(n.heard.kinds(Word), "\n"); !strings.Contains(told, "it requests 2000 thousandths of a CPU") {
				t.Errorf("%q", told)
			}
		})
	}
}
