package nri

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/place"
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
