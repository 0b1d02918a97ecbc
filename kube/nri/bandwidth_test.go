package nri

import (
	"context"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fakenet"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

// A pod's containers are held together to what its words say, as long as one of them is there:
// to Koordinator's always, to those of Kubernetes in the host's network, where no network plugin
// does it. What cannot be is told with the reason, and a strict pod refused.
func TestBandwidth(t *testing.T) {
	t.Parallel()
	kubernetes := map[string]string{"kubernetes.io/egress-bandwidth": "10M", "kubernetes.io/ingress-bandwidth": "20M"}
	koordinator := map[string]string{"koordinator.sh/networkQOS": `{"EgressLimit": "10M", "IngressLimit": "20M"}`}
	own := []*api.LinuxNamespace{{Type: "ipc"}, {Type: "network", Path: "/run/netns/x"}}
	hosts := []*api.LinuxNamespace{{Type: "ipc"}}
	both := traffic.Limit{Send: 10e6, Receive: 20e6}
	beside := fakekernel.V1()
	beside.V2 = fakekernel.Hybrid().V2
	for name, c := range map[string]struct {
		layout     fakekernel.Layout
		words      map[string]string
		namespaces []*api.LinuxNamespace
		parent     string
		want       traffic.Limit
		problem    string
	}{
		"Kubernetes, the host's network": {fakekernel.V2(), kubernetes, hosts, "/kubepods/poduid-web", both, ""},
		"Kubernetes, its own network":    {fakekernel.V2(), kubernetes, own, "/kubepods/poduid-web", traffic.Limit{}, ""},
		"Kubernetes, not told which":     {fakekernel.V2(), kubernetes, nil, "/kubepods/poduid-web", traffic.Limit{}, ""},
		"Koordinator":                    {fakekernel.V2(), koordinator, own, "/kubepods/poduid-web", both, ""},
		"v2 beside v1":                   {beside, koordinator, own, "/kubepods/poduid-web", both, ""},
		"too little":                     {fakekernel.V2(), map[string]string{"kubernetes.io/egress-bandwidth": "1k"}, hosts, "/kubepods/poduid-web", traffic.Limit{}, "1kbit is not 8kbit to 10Tbit"},
		"v1":                             {fakekernel.V1(), koordinator, own, "/kubepods/poduid-web", traffic.Limit{}, "cgroup v2 is not mounted"},
		"no group of the pod's":          {fakekernel.V2(), koordinator, own, "/kubepods/podother", traffic.Limit{}, "is not that of its pod"},
	} {
		for _, strict := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var net *fakenet.Network
				h := newClassHost(t, c.layout, func(o *Options) {
					net = fakenet.New(o.Node.Root.FS(), "eth0")
					o.Node.Root = traffic.Lay(o.Node.Root, net)
					o.Words.Strict = strict
				})
				p := pod("web", c.words)
				p.Linux.CgroupParent, p.Linux.Namespaces = c.parent, c.namespaces
				a, b := container(p, "a", 100), container(p, "b", 100)
				if strict && c.problem != "" {
					if err := h.create(p, a); err == nil || !strings.Contains(err.Error(), c.problem) {
						t.Errorf("strict: %v", err)
					}
					return
				}
				h.begin(p, a)
				h.begin(p, b)
				dir := ""
				if c.layout.V2 != "" {
					dirs := h.dirs(a)
					dir = path.Dir(dirs[len(dirs)-1])
				}
				limit := func() (l traffic.Limit) {
					if dir != "" {
						var err error
						l, err = net.Limit(dir)
						must(t, err)
					}
					return l
				}
				if got := limit(); got != c.want {
					t.Errorf("limit %+v, want %+v", got, c.want)
				}
				told := h.heard.kinds(Word)
				if c.problem == "" && len(told) > 0 || c.problem != "" && !slices.ContainsFunc(told, func(text string) bool { return strings.Contains(text, c.problem) }) {
					t.Errorf("told %q, want %q", told, c.problem)
				}
				must(t, h.p.Close()) // and another one goes on
				h.p = open(t, h.opt)
				_, err := h.p.Synchronize(context.Background(), []*api.PodSandbox{p}, []*api.Container{a, b})
				must(t, err)
				h.stop(p, a)
				if got := limit(); got != c.want {
					t.Errorf("one has stopped: limit %+v, want %+v", got, c.want)
				}
				h.stop(p, b)
				if got := limit(); got != (traffic.Limit{}) {
					t.Errorf("both have stopped: limit %+v", got)
				}
			})
		}
	}
}

// Where the node's root is not the live one, as in a container with the host's below /host, no pod
// has a limit, and is told so.
func TestBandwidthNotLive(t *testing.T) {
	t.Parallel()
	h := newClassHost(t, fakekernel.V2(), nil)
	p := pod("web", map[string]string{"koordinator.sh/networkQOS": `{"EgressLimit": "10M"}`})
	p.Linux.CgroupParent = "/kubepods/poduid-web"
	h.begin(p, container(p, "a", 100))
	if told := h.heard.kinds(Word); len(told) != 1 || !strings.Contains(told[0], "this is not the live host") {
		t.Errorf("told %q", told)
	}
}

// On the live host no kind of class is missing because this were another one.
func TestClassesLive(t *testing.T) {
	t.Parallel()
	root, err := kernel.Open("/")
	must(t, err)
	net := &traffic.Config{Devices: map[string]traffic.LinkConfig{"lo": {Rate: 100e6}}, Classes: map[string]traffic.Share{"bulk": {Priority: 8}}}
	p := &Plugin{opt: Options{Node: agent.Options{Root: root}}}
	p.opt.Node.Classes.Net = net
	must(t, p.surveyClasses())
	for kind, lack := range p.lacks {
		if strings.Contains(lack.Error(), "not the live host") {
			t.Errorf("%s: %v", kind, lack)
		}
	}
}

// A limit that cannot be had takes no class with it, and a class no limit.
func TestDropLimit(t *testing.T) {
	t.Parallel()
	spec := agent.Spec{Request: place.Request{ID: "a"}, Annotations: map[string]string{}, Bandwidth: agent.Bandwidth{Limit: traffic.Limit{Send: 10e6}}}
	spec.SetClass(agent.NetClass, "bulk")
	for _, limit := range []bool{true, false} {
		specs := []agent.Spec{spec}
		lost := dropClasses(specs, &agent.ClassError{Kind: agent.NetClass, ID: "a", Limit: limit, Err: syscall.EPERM})
		if len(lost) != 1 || (lost[0].name == "") != limit || (specs[0].Classes[agent.NetClass] == "bulk") != limit || (specs[0].Bandwidth == agent.Bandwidth{}) != limit {
			t.Errorf("limit %v: lost %+v, left %+v", limit, lost, specs[0])
		}
	}
}

// A container's packets have the class that its pod names, once its group is there.
func TestNetClass(t *testing.T) {
	t.Parallel()
	beside := fakekernel.V1()
	beside.V2 = fakekernel.Hybrid().V2
	for name, layout := range map[string]fakekernel.Layout{"v2": fakekernel.V2(), "v2 beside v1": beside} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var net *fakenet.Network
			h := newClassHost(t, layout, func(o *Options) {
				net = fakenet.New(o.Node.Root.FS(), "eth0")
				o.Node.Root = traffic.Lay(o.Node.Root, net)
				o.Node.Classes.Net = &traffic.Config{Devices: map[string]traffic.LinkConfig{"eth0": {Rate: 100e6}}, Classes: map[string]traffic.Share{"bulk": {Priority: 8}}}
			})
			p := pod("web", map[string]string{"berth.dev/net": "bulk"})
			c := container(p, "a", 100)
			must(t, h.create(p, c))
			h.make(c)
			if all, err := fs.Glob(h.k.FS(), layout.V2+"/berth-net-*"); err != nil || len(all) > 0 {
				t.Errorf("before its own are there, groups %v are made for it; %v", all, err)
			}
			must(t, h.p.StartContainer(context.Background(), p, c))
			dirs := h.dirs(c)
			mark, err := net.Mark(dirs[len(dirs)-1])
			must(t, err)
			if root, classes := net.Of("eth0"); mark == 0 || classes[mark].Prio != 7 {
				t.Errorf("mark %x, eth0 has %v with %v; told %q", mark, root, classes, h.heard.kinds(Word))
			}
			h.stop(p, c)
			if root, _ := net.Of("eth0"); root.Kind != "pfifo_fast" {
				t.Errorf("stopped: eth0 has %v", root)
			}
		})
	}
}
