package replay_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/replay"
)

// applied reads objects, each file under a name of its own.
func applied(form string, files ...string) (*replay.Scenario, error) {
	texts, names := map[string]string{}, []string{}
	for i, text := range files {
		name := fmt.Sprintf("%c.yaml", 'a'+i)
		texts[name], names = text, append(names, name)
	}
	return replay.Apply(form, names, replay.Loader{Machine: machine.Short, File: func(name string) (string, error) {
		if text, ok := texts[name]; ok {
			return text, nil
		}
		return "", errors.New("no such file")
	}})
}

// object is an object whose pod has one container with these resources.
func object(version, kind, spec, resources string) string {
	pod := "containers: [{name: c, image: i, resources: " + resources + "}]"
	switch kind {
	case "Pod":
		spec = pod
	case "CronJob":
		spec = "schedule: x, jobTemplate: {spec: {" + spec + "template: {spec: {" + pod + "}}}}"
	default:
		spec += "template: {spec: {" + pod + "}}"
	}
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: x}\nspec: {%s}\n", version, kind, spec)
}

func TestEveryKindMakesItsPods(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ version, kind, spec, want string }{
		{"v1", "Pod", "", "x"},
		{"apps/v1", "Deployment", "", "x-0"},
		{"apps/v1", "Deployment", "replicas: 0, ", ""},
		{"apps/v1", "Deployment", "replicas: 3, ", "x-0 x-1 x-2"},
		{"apps/v1", "ReplicaSet", "replicas: 2, ", "x-0 x-1"},
		{"v1", "ReplicationController", "replicas: 2, ", "x-0 x-1"},
		{"apps/v1", "StatefulSet", "replicas: 2, ordinals: {start: 5}, ", "x-5 x-6"},
		{"apps/v1", "DaemonSet", "replicas: 3, ", "x"},
		{"batch/v1", "Job", "", "x-0"},
		{"batch/v1", "Job", "parallelism: 3, ", "x-0 x-1 x-2"},
		{"batch/v1", "Job", "parallelism: 3, completions: 2, ", "x-0 x-1"},
		{"batch/v1", "Job", "completions: 4, ", "x-0"},
		{"batch/v1", "CronJob", "parallelism: 2, ", "x-0 x-1"},
	} {
		for _, form := range []string{"%s", "apiVersion: v1\nkind: List\nitems:\n- %s"} {
			text := object(tt.version, tt.kind, tt.spec, "{}")
			if form != "%s" {
				text = strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
			}
			s, err := applied("4c", fmt.Sprintf(form, text))
			if err != nil {
				t.Fatalf("%s: %v", tt.kind, err)
			}
			var ids []string
			for i := range s.Steps {
				ids = append(ids, s.Steps[i].ID)
			}
			if got := strings.Join(ids, " "); got != tt.want {
				t.Errorf("%s with %q makes pods %q, want %q", tt.kind, tt.spec, got, tt.want)
			}
		}
	}
}

// The rules of Kubernetes for classes of service, over the containers of a pod.
func TestQOS(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		containers string
		want       place.Class
		mode       place.Mode // of the first container
	}{
		{"[{name: a}]", place.BE, place.Auto},
		{"[{name: a, resources: {requests: {cpu: 0}}}]", place.BE, place.Auto},
		{"[{name: a, resources: {limits: {cpu: 2, memory: 1Gi}}}]", place.LSR, place.Auto},
		{"[{name: a, resources: {requests: {cpu: 2000m, memory: 1024Mi}, limits: {cpu: 2, memory: 1Gi}}}]", place.LSR, place.Auto},
		{"[{name: a, resources: {limits: {cpu: 2}}}]", place.LS, place.Shared}, // no memory: no exclusive CPUs
		{"[{name: a, resources: {requests: {cpu: 1}, limits: {cpu: 2, memory: 1Gi}}}]", place.LS, place.Auto},
		{"[{name: a, resources: {limits: {cpu: 2, memory: 1Gi}}}, {name: b}]", place.LS, place.Shared},
		{"[{name: a, resources: {requests: {memory: 1Gi}}}]", place.LS, place.Auto},
		{"[{name: a, resources: {limits: {ephemeral-storage: 1Gi}}}]", place.BE, place.Auto},
	} {
		s, err := applied("4c", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers: "+tt.containers+"\n")
		if err != nil {
			t.Fatalf("%s: %v", tt.containers, err)
		}
		for i, r := range s.Steps[0].Pod.Containers {
			if r.Class != tt.want || i == 0 && r.Mode != tt.mode {
				t.Errorf("%s: container %s is of class %s and mode %s, want %s and %s", tt.containers, r.ID, r.Class, r.Mode, tt.want, tt.mode)
			}
		}
	}
	s, err := applied("4c", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  initContainers: [{name: i}]\n  containers: [{name: a, resources: {limits: {cpu: 2, memory: 1Gi}}}]\n")
	if err != nil || s.Steps[0].Pod.Containers[1].Class != place.LS {
		t.Errorf("an init container without resources leaves the pod %s, %v; want LS", s.Steps[0].Pod.Containers[1].Class, err)
	}
}

func TestPodBecomesRequests(t *testing.T) {
	t.Parallel()
	s, err := applied("4c", `
apiVersion: v1
kind: Pod
metadata:
  name: shop
  namespace: blue
  labels: {app: shop}
  annotations:
    berth.dev/bind: FullPCPUs
    berth.dev/bind.logs: SpreadByPCPUs
    berth.dev/affinity: '[{labels: {app: db}, weight: 10}]'
    prefer-isolated-cpus.resource-policy.nri.io/container.server: "true"
    balloon.balloons.resource-policy.nri.io: fast
    balloon.balloons.resource-policy.nri.io/container.logs: slow
    memory-type.resource-policy.nri.io: hbm
    example.com/other: kept
spec:
  nodeSelector: {a: b}
  initContainers:
  - {name: setup, command: [sh]}
  - {name: mesh, restartPolicy: Always, resources: {limits: {cpu: 100m}}}
  containers:
  - name: server
    resources:
      requests: {cpu: 1500m, memory: 1.5Gi, ephemeral-storage: 1Gi}
      limits: {cpu: "2", hugepages-2Mi: 64Mi, example.com/nic: 2}
  - {name: logs}
`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range s.Steps[0].Pod.Containers {
		got = append(got, fmt.Sprint(r.ID, " ", r.Namespace, " ", r.Role, " ", r.Class, " ", r.Milli, "/", r.LimitMilli, " ", r.Memory, " ", r.Devices, " ", r.Bind, " ", r.Isolated, " ", r.Hints, " ", r.Affinity))
	}
	affinity := " [{   map[app:db] 10 false}]"
	want := []string{
		"blue/shop/setup blue init LS 0/0 [] [] FullPCPUs  map[balloon:fast]" + affinity,
		"blue/shop/mesh blue sidecar LS 100/100 [] [] FullPCPUs  map[balloon:fast]" + affinity,
		"blue/shop/server blue app LS 1500/2000 [{memory 1610612736} {hugepages-2Mi 67108864}] [{example.com/nic 2 []}] FullPCPUs prefer map[balloon:fast]" + affinity,
		"blue/shop/logs blue app LS 0/0 [] [] SpreadByPCPUs  map[balloon:slow]" + affinity,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if notes := strings.Join(s.Notes, "; "); notes != "annotations that are not read: memory-type.resource-policy.nri.io" {
		t.Errorf("notes %q", notes)
	}
}

func TestKoordinatorsWords(t *testing.T) {
	t.Parallel()
	s, err := applied("4c", `
apiVersion: v1
kind: Pod
metadata:
  name: x
  labels: {koordinator.sh/qosClass: LSE}
  annotations: {scheduling.koordinator.sh/resource-spec: '{"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}'}
spec: {containers: [{name: c, resources: {limits: {cpu: 2}}}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Steps[0].Pod.Containers[0]; r.Class != place.LSE || r.Bind != place.FullPCPUs || !r.BindRequired || r.Exclusivity != place.PCPULevel {
		t.Errorf("request %+v", r)
	}
}

// Batch resources are no devices, and what a scheduler chose for its node is none of a replay's.
func TestKoordinatorsBatchPods(t *testing.T) {
	t.Parallel()
	s, err := applied("4c", `
apiVersion: v1
kind: Pod
metadata:
  name: x
  labels: {koordinator.sh/qosClass: BE}
  annotations: {scheduling.koordinator.sh/resource-status: '{"cpuset": "0-1"}'}
spec:
  containers:
  - name: c
    resources:
      requests: {kubernetes.io/batch-cpu: 500, kubernetes.io/batch-memory: 1Gi}
      limits: {kubernetes.io/batch-cpu: 1500, kubernetes.io/batch-memory: 2Gi}
`)
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Steps[0].Pod.Containers[0]; r.Class != place.BE || r.Milli != 0 || len(r.Devices) > 0 || len(r.Memory) > 0 {
		t.Errorf("request %+v", r)
	}
	if notes := strings.Join(s.Notes, "; "); notes != "annotations that are not read: scheduling.koordinator.sh/resource-status" {
		t.Errorf("notes %q", notes)
	}
}

func TestObjectsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	pod := func(resources string) string { return object("v1", "Pod", "", resources) }
	annotated := func(annotation string) string {
		return strings.Replace(pod("{}"), "{name: x}", "\n  name: x\n  annotations:\n    "+annotation, 1)
	}
	for name, tt := range map[string]struct{ text, want string }{
		"quantity":           {pod("\n    {requests:\n    {cpu: two}}"), `a.yaml:6: spec.containers[0].resources.requests.cpu: "two" is no amount`},
		"unit":               {pod("{limits: {memory: 2GB}}"), `"2GB" is no amount`},
		"below zero":         {pod("{limits: {memory: -2}}"), `"-2" is below zero`},
		"resource's name":    {pod("{limits: {cpus: 2}}"), `a.yaml:4: spec.containers[0].resources.limits.cpus: no resource of Kubernetes; did you mean "cpu"?`},
		"more than limit":    {pod("{requests: {cpu: 2001m}, limits: {cpu: 2}}"), "requests.cpu: asks for more than its limit"},
		"huge pages":         {pod("{requests: {hugepages-2Mi: 2Mi}, limits: {hugepages-2Mi: 4Mi}}"), "requests.hugepages-2Mi: its limit has to be the same"},
		"device in part":     {pod("{limits: {example.com/nic: 500m}}"), "limits.example.com/nic: is no whole number"},
		"field of resources": {pod("{request: {cpu: 2}}"), `resources.request: unknown field; did you mean "requests"?`},
		"no containers":      {"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {}\n", "a.yaml:4: spec.containers: there are none"},
		"no name":            {strings.Replace(pod("{}"), "name: x", "a: b", 1), "metadata.name: a pod needs one"},
		"container's name":   {strings.Replace(pod("{}"), "name: c, ", "", 1), "name: a container needs one"},
		"containers alike":   {strings.Replace(pod("{}"), "[{", "[{name: c}, {", 1), `two containers named "c"`},
		"template":           {object("apps/v1", "Deployment", "", "{limits: {cpu: x}}"), "spec.template.spec.containers[0].resources.limits.cpu"},
		"cron job":           {object("batch/v1", "CronJob", "", "{limits: {cpus: 1}}"), "spec.jobTemplate.spec.template.spec.containers[0].resources.limits.cpus"},
		"old version":        {object("extensions/v1beta1", "Deployment", "", "{}"), "a.yaml:1: Deployment of extensions/v1beta1: Kubernetes serves it as apps/v1"},
		"no object":          {"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c}]}\n---\na: b\n", "a.yaml:6: no object of Kubernetes"},
		"nothing to place":   {"apiVersion: v1\nkind: Service\nmetadata: {name: x}\n", "a.yaml: no object of a kind that makes pods, but Service"},
		"kind misspelt":      {"apiVersion: apps/v1\nkind: Deploymnet\nmetadata: {name: x}\n", `pods, but Deploymnet; did you mean "Deployment"?`},
		"pods alike":         {pod("{}") + "---\n" + pod("{}"), "a.yaml:8: metadata.name: a second pod x; the first is in line 1"},
		"replicas":           {object("apps/v1", "Deployment", "replicas: -1, ", "{}"), "-1 pods are not 0 to 10000"},
		"replicas as text":   {object("apps/v1", "Deployment", "replicas: two, ", "{}"), `spec.replicas: "two" is no whole number`},
		"no YAML":            {"apiVersion: v1\nkind: [\n", "a.yaml:"},
		"field of a wish":    {annotated("berth.dev/cpu: \"4\""), `a.yaml:6: metadata.annotations.berth.dev/cpu: no word that Berth knows; did you mean "berth.dev/cpus"?`},
		"word of a wish":     {annotated("berth.dev/bind: Full"), `metadata.annotations.berth.dev/bind: "Full" is not one of FullPCPUs`},
		"hint":               {annotated("prefer-isolated-cpus.resource-policy.nri.io: perhaps"), "is neither true nor false"},
		"koordinator":        {annotated("scheduling.koordinator.sh/resource-spec: '{'"), "metadata.annotations.scheduling.koordinator.sh/resource-spec"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := applied("4c", tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v\nwant %q in it", err, tt.want)
			}
		})
	}
}

const node = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func TestKubeletConfiguration(t *testing.T) {
	t.Parallel()
	pod := func(name, resources string) string {
		return strings.Replace(object("v1", "Pod", "", resources), "name: x", "name: "+name, 1)
	}
	guaranteed := "{limits: {cpu: 2, memory: 1Gi}}"
	for name, tt := range map[string]struct {
		config, pods string
		want         string // of the last pod: own CPUs, or the word of the refusal
	}{
		"all shared":          {"", pod("a", guaranteed), ""},
		"static":              {"cpuManagerPolicy: static\nreservedSystemCPUs: 0,4\n", pod("a", guaranteed), "1,5"},
		"reserved by amount":  {"cpuManagerPolicy: static\nkubeReserved: {cpu: 500m}\nsystemReserved: {cpu: 600m}\n", pod("a", guaranteed), "1,5"},
		"spread":              {"cpuManagerPolicy: static\nreservedSystemCPUs: 0,4\nfeatureGates: {CPUManagerPolicyAlphaOptions: true}\ncpuManagerPolicyOptions: {distribute-cpus-across-cores: \"true\"}\n", pod("a", guaranteed), "1-2"},
		"whole cores":         {"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ncpuManagerPolicyOptions: {full-pcpus-only: \"true\"}\n", pod("a", "{limits: {cpu: 3, memory: 1Gi}}"), "smt-alignment"},
		"too many pods":       {"maxPods: 1\n", pod("a", "{}") + "---\n" + pod("b", "{}"), "rejected"},
		"pods per core":       {"podsPerCore: 1\n", strings.Repeat(pod("a", "{}")+"---\n", 1) + object("apps/v1", "Deployment", "replicas: 8, ", "{}"), "rejected"},
		"allocatable":         {"kubeReserved: {cpu: 6100m}\n", pod("a", "{requests: {cpu: 1500m}}") + "---\n" + pod("b", "{requests: {cpu: 500m}}"), "not-enough-cpus"},
		"allocatable in part": {"kubeReserved: {cpu: 6100m}\n", pod("a", "{requests: {cpu: 1500m}}") + "---\n" + pod("b", "{requests: {cpu: 400m}}"), ""},
		"pod's resources": {
			"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ntopologyManagerPolicy: restricted\ntopologyManagerScope: pod\nfeatureGates: {PodLevelResourceManagers: true}\n",
			"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {resources: {limits: {cpu: 2, memory: 1Gi}}, containers: [{name: c, resources: {limits: {cpu: 1, memory: 1Mi}}}, {name: d}]}\n", "1",
		},
		"pod's resources, no gate": {
			"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n",
			"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {resources: {limits: {cpu: 2, memory: 1Gi}}, containers: [{name: c, resources: {limits: {cpu: 1, memory: 1Mi}}}, {name: d}]}\n", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := applied("4c2t", node+"clusterDNS: [10.0.0.10]\n"+tt.config, tt.pods)
			if err != nil {
				t.Fatal(err)
			}
			if s.Policy != "kubelet" {
				t.Errorf("policy %s", s.Policy)
			}
			r, err := s.Run(s.Policy)
			if err != nil {
				t.Fatal(err)
			}
			last := r.Steps[len(r.Steps)-1]
			if got := last.Own.String() + last.Kind; got != tt.want {
				t.Errorf("the last pod got %q (%s), want %q", got, last.Error, tt.want)
			}
		})
	}
}

func TestKubeletConfigurationNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ config, want string }{
		"no reservation": {"cpuManagerPolicy: static\n", "a.yaml:3: cpuManagerPolicy: the kubelet does not start: the static CPU manager needs reservedSystemCPUs"},
		"policy":         {"cpuManagerPolicy: dynamic\n", `"dynamic" is not one of none, static`},
		"option":         {"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ncpuManagerPolicyOptions: {full-pcpu-only: \"true\"}\n", `a.yaml:5: cpuManagerPolicyOptions.full-pcpu-only: no option; did you mean "full-pcpus-only"?`},
		"option's value": {"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ncpuManagerPolicyOptions: {full-pcpus-only: \"yes\"}\n", `"yes" is neither true nor false`},
		"option of none": {"cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}\n", "only the static CPU manager has options"},
		"alpha":          {"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ncpuManagerPolicyOptions: {align-by-socket: \"true\"}\n", "needs featureGates: {CPUManagerPolicyAlphaOptions: true}"},
		"options that exclude": {
			"cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ncpuManagerPolicyOptions: {distribute-cpus-across-numa: \"true\", prefer-align-cpus-by-uncorecache: \"true\"}\n", "distribute-cpus-across-numa excludes",
		},
		"NUMA nodes":         {"topologyManagerPolicyOptions: {max-allowable-numa-nodes: \"4\"}\n", "is no number from 8 on"},
		"reserved CPUs":      {"reservedSystemCPUs: 0-\n", "a.yaml:3: reservedSystemCPUs: "},
		"CPUs not there":     {"reservedSystemCPUs: \"99\"\n", "reserved or floor CPUs 99 are not online"},
		"quantity":           {"kubeReserved: {cpu: some}\n", `a.yaml:3: kubeReserved.cpu: "some" is no amount`},
		"more than all":      {"kubeReserved: {cpu: 99}\n", "not enough CPUs"},
		"reserved memory":    {"memoryManagerPolicy: Static\nkubeReserved: {memory: 1Gi}\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n", "reservedMemory: the kubelet does not start"},
		"memory's manager":   {"memoryManagerPolicy: static\n", `"static" is not one of None, Static`},
		"eviction threshold": {"memoryManagerPolicy: Static\nevictionHard: {memory.available: much}\n", "evictionHard"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := applied("4c2t", node+tt.config, object("v1", "Pod", "", "{}")); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v\nwant %q in it", err, tt.want)
			}
		})
	}
	if _, err := applied("4c", node, node, object("v1", "Pod", "", "{}")); err == nil || !strings.Contains(err.Error(), "both hold a KubeletConfiguration") {
		t.Errorf("two configurations: %v", err)
	}
}

// A scenario may apply objects among its steps, on a node with devices and expectations.
func TestScenarioAppliesObjects(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"node.yaml": node + "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n",
		"pod.yaml":  object("v1", "Pod", "", "{limits: {cpu: 2, memory: 1Gi, example.com/nic: 1}}"),
	}
	load := replay.Loader{Machine: machine.Short, File: func(name string) (string, error) { return files[name], nil }}
	s, err := replay.Parse(`
machine: 4c2t
kubelet: node.yaml
config: {devices: [{name: nic0, kind: example.com/nic}]}
steps:
- {apply: pod.yaml}
- {place: more, class: LSE, cpus: 2, expect: {own: "2,6"}}
- {releasePod: x}
`, load)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Run(s.Policy)
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() > 0 || r.Steps[0].Error != "" || r.Steps[0].Containers[0].Devices[0] != "nic0" || r.Steps[2].Error != "" {
		t.Errorf("steps %+v", r.Steps)
	}
	files["memory.yaml"] = node + "memoryManagerPolicy: Static\nkubeReserved: {memory: 512Mi}\nevictionHard: {memory.available: 10%}\n" +
		"reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 1, limits: {memory: 512Mi}}]\n"
	if s, err = replay.Parse("machine: 2n4c\nkubelet: memory.yaml\nconfig: {memory: {0: {memory: 6Gi}, 1: {memory: 4Gi}}}\nsteps: [{place: x}]\n", load); err != nil ||
		fmt.Sprint(s.Config.Memory) != "[{0 memory 5368709120} {1 memory 3758096384}]" {
		t.Errorf("memory %v, %v", s.Config.Memory, err)
	}
	for _, tt := range []struct{ text, want string }{
		{"machine: 4c\nkubelet: pod.yaml\nsteps: [{apply: pod.yaml}]\n", "line 2: kubelet: pod.yaml holds 0 objects"},
		{"machine: 4c\nkubelet: node.yaml\nconfig: {reserved: 1}\nsteps: [{apply: pod.yaml}]\n", "config.reserved: the kubelet's configuration says it"},
		{"machine: 4c\nkubelet: node.yaml\noptions: {kubelet: {}}\nsteps: [{apply: pod.yaml}]\n", "options.kubelet: the kubelet's configuration says them"},
		{"machine: 4c\nsteps:\n- {apply: pod.yaml, cpus: 2}\n", "line 3: steps[0]: apply takes no other field"},
		{"machine: 4c\nsteps:\n- {apply: node.yaml}\n", "line 3: steps[0].apply: node.yaml: no object of a kind that makes pods"},
	} {
		if _, err := replay.Parse(tt.text, load); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v\nwant %q in it", err, tt.want)
		}
	}
}
