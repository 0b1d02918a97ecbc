package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

const head = "apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\n"

func parse(t *testing.T, body string) *NodeConfig {
	t.Helper()
	c, err := Parse([]byte(head+body), "n.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDefaultIsValid(t *testing.T) {
	t.Parallel()
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(Default(), parse(t, "")); diff != "" {
		t.Errorf("a file that says nothing is not the default (-want +got)\n%s", diff)
	}
}

// The word none is no class, whether classes are defined or not.
func TestNoClass(t *testing.T) {
	t.Parallel()
	c := parse(t, "classes: {io: {classes: {slow: [{weight: 5}]}}}\nworkloads: [{name: a, match: {cgroup: /a}, cache: none, io: none, power: none}]\n")
	if got := c.Workloads[0].ClassesOf(); len(got) != 3 || got["io"] != "none" {
		t.Errorf("%v", got)
	}
}

// What a workload may send and receive is read, and what cannot be is told with its field.
func TestBandwidth(t *testing.T) {
	t.Parallel()
	c := parse(t, "workloads: [{name: a, match: {cgroup: /a}, bandwidth: {send: 10Mbit, receive: 2.5Gbit}}]\n")
	if got := c.Workloads[0].Bandwidth; got != (traffic.Limit{Send: 10e6, Receive: 2.5e9}) {
		t.Errorf("%+v", got)
	}
	if _, err := Parse([]byte(head+"workloads: [{name: a, match: {cgroup: /a}, bandwidth: {send: 10Mb}}]\n"), "n.yaml"); err == nil || !strings.Contains(err.Error(), `workloads[0].bandwidth.send: "10Mb" is no rate`) {
		t.Errorf("%v", err)
	}
}

func TestExample(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../examples/nodeconfig.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(text, "nodeconfig.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for group, want := range map[string]string{
		"/system.slice/nginx.service":      "api",
		"/system.slice/postgresql.service": "database",
		"/batch.slice/nightly.service":     "batch",
		"/system.slice/sshd.service":       "",
	} {
		w, ok := c.Match(Candidate{Path: group})
		if !ok {
			w = &Workload{}
		}
		if w.Name != want {
			t.Errorf("%s is workload %q, want %q", group, w.Name, want)
		}
	}
	if !c.IsConfined(Candidate{Path: "/system.slice"}) || c.IsConfined(Candidate{Path: "/init.scope"}) {
		t.Error("the example confines not what its comments say")
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	c := parse(t, `
policy: {name: topology-aware, options: {pinMemory: false}}
reserved: 0,8
classes:
  BE: {idle: true, memoryHigh: 4Gi, quota: 2}
  LS: {weight: 200}
workloads:
- name: api
  match: {unit: nginx.service}
  class: LSE
  cpus: 4
  bind: FullPCPUs
  exclusive: PCPULevel
  strategy: MostAllocated
  nodes: 0
  memory: 2Gi
- name: batch
  match: {cgroup: /batch.slice/*}
  class: BE
  limits: {weight: 50, quota: max, memoryMax: 8Gi, burst: 20ms}
agent: {rescan: 1m, metrics: "off", admins: [alice, 1000], hosts: [node7.example.org]}
`)
	want := place.Request{
		ID: "x", Milli: 4000, Class: place.LSE, Bind: place.FullPCPUs, Exclusivity: place.PCPULevel, Strategy: place.MostAllocated,
		Nodes: cpuset.MustOf(0), Memory: []place.Amount{{Resource: place.Memory, Bytes: 2 << 30}},
	}
	if diff := cmp.Diff(want, c.Workloads[0].Request("x")); diff != "" {
		t.Errorf("request (-want +got)\n%s", diff)
	}
	limits := cgroup.Limits{Weight: 50, Quota: cgroup.Unlimited, Burst: 20e6, MemoryMax: 8 << 30, MemoryHigh: 4 << 30}
	if diff := cmp.Diff(limits, c.LimitsOf(&c.Workloads[1]).Cgroup()); diff != "" {
		t.Errorf("limits (-want +got)\n%s", diff)
	}
	idle := cgroup.Limits{Idle: cgroup.On, Quota: 200e6, MemoryHigh: 4 << 30}
	if diff := cmp.Diff(idle, c.LimitsOf(&Workload{Class: place.BE}).Cgroup()); diff != "" {
		t.Errorf("limits of a class (-want +got)\n%s", diff)
	}
	p, err := c.NewPolicy()
	if err != nil || p.Name() != "topology-aware" {
		t.Errorf("policy %v, %v", p, err)
	}
	if diff := cmp.Diff(place.Config{Reserved: cpuset.MustOf(0, 8)}, c.PlaceConfig()); diff != "" {
		t.Errorf("place.Config (-want +got)\n%s", diff)
	}
	if c.Agent.Rescan != Duration(60e9) || c.Agent.Metrics != "off" || c.Agent.Socket != Default().Agent.Socket {
		t.Errorf("agent %+v", c.Agent)
	}
	if diff := cmp.Diff([][]string{{"alice", "1000"}, {"node7.example.org"}}, [][]string{c.Agent.Admins, c.Agent.Hosts}); diff != "" {
		t.Errorf("admins and hosts (-want +got)\n%s", diff)
	}
}

func TestLimitsGoOverThoseOfTheClass(t *testing.T) {
	t.Parallel()
	yes := true
	base := Limits{Weight: 1, Quota: 2000, Burst: 3e6, MemoryMax: 4, MemoryHigh: 5, MemoryLow: 6, IOWeight: 7}
	other := Limits{Weight: 11, Quota: 12000, Burst: 13e6, MemoryMax: 14, MemoryHigh: 15, MemoryLow: 16, IOWeight: 17}
	idle := base
	idle.Idle, idle.Weight = &yes, 0
	for _, tt := range []struct{ own, class, want Limits }{
		{Limits{}, base, base},
		{other, base, other},
		{base, Limits{}, base},
		{Limits{Idle: &yes}, base, idle},
		{Limits{Weight: 1}, idle, base},
	} {
		if diff := cmp.Diff(tt.want, tt.own.over(tt.class)); diff != "" {
			t.Errorf("%+v over %+v (-want +got)\n%s", tt.own, tt.class, diff)
		}
	}
}

func TestParseNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ body, want string }{
		"unknown field":     {"workloads:\n- name: a\n  match: {unit: a.service}\n  cpu: 4\n", `n.yaml:6: workloads[0].cpu: unknown field; did you mean "cpus"?`},
		"twice":             {"reserved: 0\nreserved: 1\n", "n.yaml:4: reserved: is there twice, first in line 3"},
		"type":              {"noFloor: 3\n", `n.yaml:3: noFloor: "3" is no true or false`},
		"cache class":       {"classes: {cache: {partitions: {p: {classes: {gold: }}}}}\nworkloads: [{name: a, match: {cgroup: /a}, cache: glod}]\n", `n.yaml:4: workloads[0].cache: there is no class "glod"; did you mean "gold"?`},
		"cache share":       {"classes: {cache: {partitions: {p: {l3Allocation: 0%}}}}\n", `n.yaml:3: classes.cache.partitions.p.l3Allocation: 0% is no part of a cache: leave it out, or give it at least one way`},
		"I/O class":         {"classes: {io: {classes: {slow: [{weight: 5}]}}}\nworkloads: [{name: a, match: {cgroup: /a}, io: slwo}]\n", `n.yaml:4: workloads[0].io: there is no class "slwo"; did you mean "slow"?`},
		"I/O key":           {"classes: {io: {classes: {slow: [{Weight: 5}]}}}\n", `n.yaml:3: classes.io.classes.slow[0].Weight: unknown field; did you mean "weight"?`},
		"I/O limit":         {"classes: {io: {classes: {slow: [{readBPS: 5M}]}}}\n", `n.yaml:3: classes.io.classes.slow[0].devices: is missing: the kernel limits each device on its own`},
		"I/O rate":          {"classes: {io: {classes: {slow: [{devices: [sda], readBPS: 0}]}}}\n", `n.yaml:3: classes.io.classes.slow[0].readBPS: "0" is no amount per second above 0`},
		"I/O service":       {"classes: {io: {classes: {slow: [{weight: 5}]}, service: {BE: fast}}}\n", `n.yaml:3: classes.io.service.BE: there is no class "fast"`},
		"class":             {"classes: {BEST: {weight: 3}}\n", `n.yaml:3: classes.BEST: unknown field; did you mean "BE"?`},
		"cpus":              {"allowed: 0-x\n", "n.yaml:3: allowed: "},
		"reserved":          {"allowed: 0-3\nreserved: 3-4\n", "n.yaml:4: reserved: CPUs 4 are not allowed ones"},
		"floor not allowed": {"allowed: 0-3\nfloor: 4\n", "n.yaml:4: floor: CPUs 4 are not allowed ones"},
		"negative burst":    {"classes: {LS: {burst: -1ms}}\n", `n.yaml:3: classes.LS.burst: "-1ms" is no length of time`},
		"socket's detour":   {"agent: {socket: /run/../x}\n", `n.yaml:3: agent.socket: "/run/../x" is no absolute path`},
		"long socket":       {"agent: {socket: /" + strings.Repeat("x", 107) + "}\n", "n.yaml:3: agent.socket: is 108 bytes long"},
		"no unit":           {"workloads: [{name: a, match: {unit: .service}}]\n", `n.yaml:3: workloads[0].match.unit: ".service" does not end in`},
		"floor":             {"floor: 1\nnoFloor: true\n", "n.yaml:4: noFloor: there is a floor: 1"},
		"policy":            {"policy: {name: kublet}\n", `n.yaml:3: policy.name: there is no policy "kublet"; did you mean "kubelet"?`},
		"weight of 0":       {"workloads:\n- name: a\n  match: {unit: a.service}\n  limits: {weight: 0}\n", `n.yaml:6: workloads[0].limits.weight: 0 is not 1 to 10000`},
		"quota of 0":        {"classes:\n  BE: {quota: 0}\n", `n.yaml:4: classes.BE.quota: 0 is not an amount of CPUs, or max`},
		"QoS class":         {"workloads:\n- name: a\n  match: {unit: a.service}\n  class: Guaranted\n", `LS, LSE, LSR, BE, SYSTEM; did you mean "Guaranteed"?`},
		"option":            {"policy:\n  options:\n    stratgy: x\n", `n.yaml:5: policy.options.stratgy: unknown field "stratgy"`},
		"option's value":    {"policy:\n  options: {strategy: x}\n", `n.yaml:4: policy.options: "x" is not one of MostAllocated, LeastAllocated, DistributeEvenly`},
		"glob":              {"confine: [/a, b/]\n", `n.yaml:3: confine[1]: "/b/" is no path from the root`},
		"glob with dots":    {"protected: [/a/../b]\n", `n.yaml:3: protected[0]: "/a/../b" is no path from the root`},
		"open glob":         {"confine:\n- /[a\n", `n.yaml:4: confine[0]: "[a" is no glob`},
		"part of **":        {"confine: [/a**]\n", "n.yaml:3: confine[0]: ** stands for whole components"},
		"glob twice":        {"confine: [/a, a]\n", `n.yaml:3: confine[1]: "/a" is there twice`},
		"weight":            {"classes:\n  LS:\n    weight: 10001\n", "n.yaml:4: classes.LS: weight 10001: not 1 to 10000"},
		"idle with weight":  {"classes: {BE: {idle: true, weight: 5}}\n", "n.yaml:3: classes.BE: weight 5: an idle group's weight is locked"},
		"quota":             {"classes: {LS: {quota: 9m}}\n", "n.yaml:3: classes.LS.quota: 9m is not 10m to 2048"},
		"huge quota":        {"classes: {LS: {quota: 99999999}}\n", "n.yaml:3: classes.LS.quota: 99999999 is not 10m to 2048"},
		"burst over class":  {"classes: {LS: {quota: 100m}}\nworkloads:\n- {name: a, match: {unit: a.scope}, limits: {burst: 20ms}}\n", "n.yaml:5: workloads[0]: burst 20ms: more than the quota"},
		"memory":            {"classes: {LS: {memoryMax: 1.5}}\n", `n.yaml:3: classes.LS.memoryMax: "1.5" is no amount of bytes`},
		"no name":           {"workloads: [{match: {unit: a.scope}}]\n", `n.yaml:3: workloads[0].name: "" is not a name`},
		"same name":         {"workloads:\n- {name: a, match: {unit: a.scope}}\n- {name: a, match: {unit: b.scope}}\n", `n.yaml:5: workloads[1].name: workloads[0] is named "a" too`},
		"same container":    {"workloads:\n- {name: a, match: {container: {id: x}}}\n- {name: b, match: {container: {pod: x}}}\n- {name: c, match: {container: {id: x}}}\n", `n.yaml:6: workloads[2].match: is never reached: workload "a" matches the same`},
		"same match":        {"workloads:\n- {name: a, match: {unit: a.scope}}\n- {name: b, match: {unit: a.scope}}\n", `n.yaml:5: workloads[1].match: is never reached: workload "a" matches the same`},
		"no match":          {"workloads: [{name: a}]\n", "n.yaml:3: workloads[0].match: has 0 of cgroup, unit and container; one is needed"},
		"two matches":       {"workloads: [{name: a, match: {unit: a.scope, cgroup: /a}}]\n", "n.yaml:3: workloads[0].match: has 2 of"},
		"unit without type": {"workloads: [{name: a, match: {unit: nginx}}]\n", `n.yaml:3: workloads[0].match.unit: "nginx" does not end in`},
		"runtime":           {"workloads: [{name: a, match: {container: {runtime: dokcer}}}]\n", `n.yaml:3: workloads[0].match.container.runtime: there is no runtime "dokcer"; did you mean "docker"?`},
		"empty container":   {"workloads: [{name: a, match: {container: {}}}]\n", "n.yaml:3: workloads[0].match.container: says nothing"},
		"container's name":  {"workloads: [{name: a, match: {container: {name: web}}}]\n", "n.yaml:3: workloads[0].match.container.name: match of a container's name: not supported"},
		"container's label": {"workloads: [{name: a, match: {container: {label: {app: web}}}}]\n", "n.yaml:3: workloads[0].match.container.label: match of a container's label: not supported"},
		"most cpus":         {"workloads: [{name: a, match: {unit: a.scope}, cpus: max}]\n", "n.yaml:3: workloads[0].cpus: max is no CPU time to ask for"},
		"too many cpus":     {"workloads: [{name: a, match: {unit: a.scope}, cpus: 99999999999m}]\n", "more CPU time than any machine has"},
		"socket":            {"agent: {socket: run/x}\n", `n.yaml:3: agent.socket: "run/x" is no absolute path`},
		"page's socket":     {"agent: {socket: /run/page.sock}\n", `n.yaml:3: agent.socket: "/run/page.sock" is where the status page's socket is`},
		"an admin's name":   {"agent: {admins: [alice, \"bob smith\"]}\n", `n.yaml:3: agent.admins[1]: "bob smith" is not the name or the number of a user`},
		"an admin twice":    {"agent: {admins: [alice, alice]}\n", `n.yaml:3: agent.admins[1]: "alice" is there twice`},
		"a host with port":  {"agent: {hosts: [\"node7:9750\"]}\n", `n.yaml:3: agent.hosts[0]: "node7:9750" is not the name of a host, without port`},
		"any host":          {"agent: {hosts: [\"*\"]}\n", `n.yaml:3: agent.hosts[0]: "*" is not the name of a host`},
		"metrics":           {"agent: {metrics: 9750}\n", `n.yaml:3: agent.metrics: "9750" is no HOST:PORT`},
		"metrics for all":   {"agent: {metrics: \":9750\"}\n", `n.yaml:3: agent.metrics: other hosts can reach ":9750"`},
		"metrics's host":    {"agent: {metrics: \"10.0.0.1:9750\"}\n", `n.yaml:3: agent.metrics: other hosts can reach`},
		"metrics's port":    {"agent: {metrics: localhost:http}\n", `n.yaml:3: agent.metrics: "localhost:http" is no HOST:PORT`},
		"rescan":            {"agent: {rescan: 10ms}\n", "n.yaml:3: agent.rescan: 10ms is less than 1s"},
		"rescan, no unit":   {"agent: {rescan: 10}\n", `n.yaml:3: agent.rescan: "10" is no length of time`},
		"guard's mode":      {"guard: {mode: watch}\n", `n.yaml:3: guard.mode: "watch" is no mode`},
		"guard's outsiders": {"guard: {outsiders: [idle, kill]}\n", `n.yaml:3: guard.outsiders: "kill" is not idle, nice or affinity`},
		"guard's probe":     {"guard: {probe: sometimes}\n", `n.yaml:3: guard.probe: "sometimes" is none of needed, eager, never, always`},
		"guard's hold":      {"guard: {hold: 10ms}\n", "n.yaml:3: guard.hold: 10ms is less than 1s"},
		"guard's globs":     {"guard: {allowed: [batch/]}\n", `n.yaml:3: guard.allowed[0]: "/batch/" is no path from the root`},
		"suppression":       {"guard: {suppression: {threshold: 101}}\n", "n.yaml:3: guard.suppression.threshold: 101 is not 1 to 100"},
		"suppressed group":  {"guard: {suppression: {group: /a/}}\n", `n.yaml:3: guard.suppression.group: "a/" is no path of a group`},
		"suppressed by":     {"guard: {suppression: {by: ways}}\n", `n.yaml:3: guard.suppression.by: "ways" is not cpus or quota`},
		"yieldAfter":        {"agent: {yieldAfter: 0}\n", "n.yaml:3: agent.yieldAfter: 0 is less than 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := Parse([]byte(head+tt.body), "n.yaml")
			if err == nil || c != nil {
				t.Fatalf("got %v, %v; want %q", c, err, tt.want)
			}
			if !strings.Contains(err.Error(), tt.want) || strings.Count(err.Error(), "\n") > 0 {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// A path of a group may be written with and without a slash before it, wherever one
// stands; Berth keeps one form.
func TestParseSlashes(t *testing.T) {
	t.Parallel()
	const text = `confine: [%[1]sa/*]
protected: [%[1]ssystem.slice]
workloads: [{name: web, match: {cgroup: %[1]snewc/web}}]
guard: {sensitive: [%[1]sweb], bestEffort: [%[1]sbatch], allowed: ["%[1]s*"], suppression: {group: %[1]snewc/batch}}
`
	with, err := Parse([]byte(head+strings.ReplaceAll(text, "%[1]s", "/")), "n.yaml")
	if err != nil {
		t.Fatal(err)
	}
	without, err := Parse([]byte(head+strings.ReplaceAll(text, "%[1]s", "")), "n.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(with, without); diff != "" {
		t.Errorf("(-with +without)\n%s", diff)
	}
	if with.Workloads[0].Match.Cgroup != "/newc/web" || with.Guard.Suppression.Group != "newc/batch" {
		t.Errorf("%+v", with)
	}
}

// What is of the wrong form hides only what is wrong around it and in it.
func TestParseNamesFormAndContent(t *testing.T) {
	t.Parallel()
	const text = `nonsense: 1
workloads:
- {name: a b, class: lsx, match: {cgruop: /a}, cpus: max}
agent: {yieldAfter: 0}
`
	_, err := Parse([]byte(head+text), "n.yaml")
	var at []string
	for _, e := range strictyaml.Errors(err) {
		at = append(at, fmt.Sprintf("%d %s", e.Line, e.Field))
	}
	want := []string{"3 nonsense", "5 workloads[0].class", "5 workloads[0].match.cgruop", "5 workloads[0].name", "5 workloads[0].cpus", "6 agent.yieldAfter"}
	if diff := cmp.Diff(want, at); diff != "" {
		t.Errorf("(-want +got)\n%s\n%v", diff, err)
	}
	if _, err := Parse([]byte("workloads: ["), "n.yaml"); len(strictyaml.Errors(err)) != 1 {
		t.Errorf("no YAML: %v", err)
	}
}

func TestParseJoinsErrors(t *testing.T) {
	t.Parallel()
	_, err := Parse([]byte("kind: Node\nworkloads:\n- name: a b\n  match: {container: {label: {a: b}}}\nagent: {yieldAfter: -1}\n"), "n.yaml")
	var fields []string
	for _, e := range strictyaml.Errors(err) {
		fields = append(fields, e.Field)
	}
	want := []string{"apiVersion", "kind", "workloads[0].name", "workloads[0].match.container.label", "agent.yieldAfter"}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("%v: not an ErrNotSupported", err)
	}
}

func FuzzParse(f *testing.F) {
	text, err := os.ReadFile("../../examples/nodeconfig.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(head + "classes: {BE: {idle: true}}\nworkloads: [{name: a, match: {container: {id: 3*}}}]\n"))
	f.Add([]byte(head + "policy: {name: balloons, options: {balloonTypes: [{name: a, minCPUs: 1}]}}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, "n.yaml")
		if (c == nil) != (err != nil) {
			t.Fatalf("%v, %v", c, err)
		}
		if c == nil {
			if len(strictyaml.Errors(err)) == 0 {
				t.Fatalf("%v names no field", err)
			}
			return
		}
		changes, err := Diff(c, c)
		if err != nil || len(changes) > 0 {
			t.Fatalf("differs from itself: %v, %v", changes, err)
		}
		if _, err := Diff(Default(), c); err != nil {
			t.Fatal(err)
		}
	})
}

// What a workload asks for beside CPUs and memory comes into its request.
func TestRequestOfUses(t *testing.T) {
	t.Parallel()
	c := parse(t, `
devices:
- {name: nic0, kind: nic, pci: '0000:3b:00.0'}
- {name: gpu0, kind: gpu, nodes: 1}
workloads:
- name: api
  match: {cgroup: /api}
  cpus: 2500m
  mode: mixed
  shared: 500m
  devices: [nic0, gpu=1]
  hugePages: {2Mi: 512Mi, 1Gi: 2Gi}
  affinity: [cache]
  antiAffinity: [batch]
  group: shop
  hints: {balloon: fast}
- {name: cache, match: {cgroup: /cache}, group: shop}
`)
	want := place.Request{
		ID: "x", Milli: 2500, Mode: place.Mixed, SharedMilli: 500, Group: "shop", Hints: map[string]string{"balloon": "fast"},
		Devices: []place.DeviceRequest{{Names: []string{"nic0"}}, {Kind: "gpu", Count: 1}},
		Memory:  []place.Amount{{Resource: "hugepages-1Gi", Bytes: 2 << 30}, {Resource: "hugepages-2Mi", Bytes: 512 << 20}},
		Affinity: []place.Affinity{
			{Labels: map[string]string{WorkloadLabel: "cache"}, Weight: 10}, {ID: "cache", Weight: 10},
			{Labels: map[string]string{WorkloadLabel: "batch"}, Weight: -10}, {ID: "batch", Weight: -10},
		},
	}
	if diff := cmp.Diff(want, c.Workloads[0].Request("x")); diff != "" {
		t.Errorf("request (-want +got)\n%s", diff)
	}
	devices := []place.Device{{Name: "nic0", Kind: "nic"}, {Name: "gpu0", Kind: "gpu", Nodes: cpuset.MustOf(1)}}
	if diff := cmp.Diff(devices, c.PlaceConfig().Devices); diff != "" {
		t.Errorf("devices (-want +got)\n%s", diff)
	}
}

func TestUsesRefused(t *testing.T) {
	t.Parallel()
	for more, want := range map[string]string{
		"devices: [nic1]":                 `workloads[0].devices[0]: there is no device "nic1" in devices`,
		"devices: [gpu=2]":                `workloads[0].devices[0]: there is no device of kind "gpu" in devices`,
		"devices: [nic=x]":                `workloads[0].devices[0]: "nic=x" is no device: NAME or KIND=COUNT`,
		"hugePages: {2Mi: 3Mi}":           `workloads[0].hugePages: "3Mi" is no amount of pages of 2Mi, such as 4Mi`,
		"hugePages: {big: 2Gi}":           `workloads[0].hugePages: "big" is no size of a page`,
		"mode: exclusive":                 "workloads[0].mode: exclusive: say how many CPUs with cpus",
		"cpus: 2, shared: 1":              "workloads[0].shared: is for mode mixed only",
		"cpus: 2, mode: mixed, shared: 3": "the shared part is larger than the whole",
		"affinity: [a, a]":                `workloads[0].affinity[1]: "a" is there twice`,
		"group: shop":                     `workloads[0].group: no other workload is in group "shop"`,
		"mode: both":                      "workloads[0].mode: ",
	} {
		_, err := Parse([]byte("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\ndevices: [{name: nic0, kind: nic}]\nworkloads: [{name: w, match: {cgroup: /w}, "+more+"}]\n"), "n")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", more, err, want)
		}
	}
	for more, want := range map[string]string{
		"devices: [{name: a}, {name: a}]":                                                 `devices[1].name: there are two devices "a"`,
		"devices: [{name: a, pci: 3b:00}]":                                                `devices[0].pci: "3b:00" is not a PCI address`,
		"policy: {name: balloons, options: {idleCPUClass: slow}}":                         `policy.options: idleCPUClass is "slow", and no agent sets classes of CPUs`,
		"policy: {name: balloons, options: {balloonTypes: [{name: x, cpuClass: turbo}]}}": `policy.options: cpuClass of balloon type x is "turbo"`,
		"policy: {name: static-pools, options: {pools: [{name: x}]}}":                     `static pool "x": each of its lists has a CPU`,
	} {
		_, err := Parse([]byte("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\n"+more+"\n"), "n")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", more, err, want)
		}
	}
}

// Who has a class with CPUs of its own and does not say how many is told of it.
func TestWarnsOfNoCPUs(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(`apiVersion: berth.dev/v1alpha1
kind: NodeConfig
workloads:
- {name: web, match: {cgroup: /web}, class: LSE}
- {name: db, match: {cgroup: /db}, class: LSR, cpus: 1}
- {name: job, match: {cgroup: /job}, class: BE}
`), "f")
	if err != nil {
		t.Fatal(err)
	}
	got := c.Warnings()
	if len(got) != 1 || !strings.HasPrefix(got[0].String(), "workloads[0].cpus: web: class LSE has CPUs of its own, and it asks for none") {
		t.Errorf("warnings %v", got)
	}
}
