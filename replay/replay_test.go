package replay_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
	"berth.dev/berth/replay"
)

func parse(t *testing.T, text string) *replay.Scenario {
	t.Helper()
	s, err := replay.Parse(text, replay.Loader{Machine: machine.Short})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func run(t *testing.T, text string) *replay.Result {
	t.Helper()
	s := parse(t, text)
	r, err := s.Run(s.Policy)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func Example() {
	s, err := replay.Parse(`
machine: 1n8c
steps:
  - {place: api, class: LSE, cpus: 4, expect: {count: 4}}
  - {place: cache, class: LSE, cpus: 4, expect: {error: not-enough-cpus}}
  - {release: api}
`, replay.Loader{Machine: machine.Short})
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := s.Run(s.Policy)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, step := range r.Steps {
		fmt.Printf("%s %s owns %q\n", step.Do, step.ID, step.Own)
	}
	fmt.Println(r.Failed(), "not as expected")
	// Output:
	// place api owns "1-4"
	// place cache owns ""
	// release api owns ""
	// 0 not as expected
}

func TestParseReadsEveryWord(t *testing.T) {
	t.Parallel()
	s := parse(t, `
about: everything
machine: 2s4c2t
isolated: "3"
config:
  allowed: 0-15
  reserved: 0,8
  floor: 0-1
  maxRefs: 2
  memory: {0: {memory: 8Gi, hugepages-2Mi: 512Mi}, 1: {memory: 4G}}
  devices: [{name: nic0, kind: nic, nodes: 1}]
policy: berth/full
options: {berth/full: {strategy: MostAllocated}}
steps:
  - place: a
    pod: p
    namespace: n
    labels: {app: x}
    role: sidecar
    class: LSR
    cpus: 3500m
    limit: 4
    mode: mixed
    shared: 500m
    bind: SpreadByPCPUs
    bindRequired: true
    exclusive: NUMANodeLevel
    strategy: DistributeEvenly
    isolated: prefer
    coreKind: P
    nodes: 0-1
    nodesRequired: true
    maxNodes: 2
    memory: 2Gi
    resources: {hugepages-2Mi: 4Mi}
    devices: [{kind: nic, count: 1}, {names: [nic0]}]
    affinity: [{id: b, pod: q, namespace: m, labels: {app: y}, weight: -3}]
    hints: {word: value}
    expect: {cpus: 1, own: "", mems: 0, count: 1, cores: 1, l3s: 1, nodes: 1, moved: 0}
  - {resize: a, cpus: 2.25, shared: 250m, nodesRequired: false, bind: FullPCPUs, labels: {}}
`)
	got := fmt.Sprintf("%+v", s.Steps[0].Request)
	want := `{ID:a Group:p Namespace:n Labels:map[app:x] Role:sidecar Class:LSR Milli:3500 LimitMilli:4000 Mode:mixed SharedMilli:500 ` +
		`Bind:SpreadByPCPUs BindRequired:true Exclusivity:NUMANodeLevel Strategy:DistributeEvenly Isolated:prefer CoreKind:P Nodes:0-1 ` +
		`NodesRequired:true MaxNodes:2 Memory:[{Resource:memory Bytes:2147483648} {Resource:hugepages-2Mi Bytes:4194304}] ` +
		`Devices:[{Kind:nic Count:1 Names:[]} {Kind: Count:0 Names:[nic0]}] ` +
		`Affinity:[{ID:b Group:q Namespace:m Labels:map[app:y] Weight:-3 Glob:false}] Hints:map[word:value] Explain:false}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	resized := s.Steps[1].Request
	if resized.Milli != 2250 || resized.SharedMilli != 250 || resized.NodesRequired || resized.Class != place.LSR ||
		resized.Bind != place.FullPCPUs || len(resized.Labels) != 0 || resized.MaxNodes != 2 || len(resized.Devices) != 2 {
		t.Errorf("the resize is of %+v", resized)
	}
	c := s.Config
	if got := fmt.Sprint(c.Allowed, c.Reserved, c.Floor, c.MaxRefs, c.Memory, c.Devices); got !=
		"0-15 0,8 0-1 2 [{0 hugepages-2Mi 536870912} {0 memory 8589934592} {1 memory 4000000000}] [{nic0 nic 1}]" {
		t.Errorf("config %s", got)
	}
	if iso := s.Topology.Machine().Isolated; iso != cpuset.MustOf(3) {
		t.Errorf("isolated %s", iso)
	}
}

func TestParseNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	const head = "machine: 1n8c\nsteps:\n"
	for name, tc := range map[string]struct {
		text string
		want string
	}{
		"empty":                  {"", "machine: none is named"},
		"no steps":               {"machine: 1n8c\n", "steps: there are none"},
		"unknown top field":      {head + "- {place: a}\nspeed: 3\n", `line 4: speed: unknown field`},
		"unknown step field":     {head + "- place: a\n- place: b\n  cpu: 4\n", `steps[1].cpu: unknown field`},
		"unknown expect field":   {head + "- place: a\n  expect:\n    cpu: 4\n", `steps[0].expect.cpu: unknown field`},
		"unknown config field":   {"config: {reserve: 0}\n" + head + "- {place: a}\n", `line 1: config.reserve: unknown field`},
		"unknown option":         {"options:\n  berth: {speed: 3}\n" + head + "- {place: a}\n", `line 2: options.berth: unknown field "speed"`},
		"option of bad word":     {"options:\n  berth: {strategy: Fast}\n" + head + "- {place: a}\n", `line 2: options.berth: "Fast" is not one of MostAllocated`},
		"options of nobody":      {"options:\n  ghost: {}\n" + head + "- {place: a}\n", `line 2: options.ghost: there is no policy "ghost"; there are: berth`},
		"unknown policy":         {"policy: ghost\n" + head + "- {place: a}\n", `policy: there is no policy "ghost"`},
		"field twice":            {head + "- place: a\n  cpus: 1\n  cpus: 2\n", `line 5: steps[0].cpus: is there twice, first in line 4`},
		"label twice":            {head + "- place: a\n  labels: {x: 1, x: 2}\n", `line 4: steps[0].labels.x: is there twice`},
		"two actions":            {head + "- {place: a, release: b}\n", "line 3: steps[0]: a step is one of place, release, resize, restart, placePod, releasePod, apply; here are 2"},
		"no action":              {head + "- {cpus: 4}\n", "here are 0 of them"},
		"restart: false":         {head + "- {restart: false}\n", "here are 0 of them"},
		"no mapping":             {head + "- place\n", `line 3: `},
		"release with fields":    {head + "- {place: a}\n- {release: a, cpus: 3}\n", "line 4: steps[1]: release takes no fields but expect"},
		"class":                  {head + "- {place: a, class: LSX}\n", `line 3: steps[0].class: "LSX" is not one of LS, LSE`},
		"bind":                   {head + "- {place: a, bind: Full}\n", `bind: "Full" is not one of FullPCPUs, SpreadByPCPUs`},
		"mode":                   {head + "- {place: a, mode: alone}\n", `mode: "alone" is not one of auto, exclusive`},
		"cpus":                   {head + "- {place: a, cpus: four}\n", `steps[0].cpus: "four" is no CPU time`},
		"negative cpus":          {head + "- {place: a, cpus: -1}\n", `cpus: "-1" is no CPU time`},
		"too fine cpus":          {head + "- {place: a, cpus: 0.0005}\n", `is no CPU time`},
		"huge cpus":              {head + "- {place: a, cpus: 99999999999999999999}\n", `is no CPU time`},
		"more than any machine":  {head + "- {place: a, cpus: 99999999999m}\n", `more CPU time than any machine has`},
		"memory":                 {head + "- {place: a, memory: 2GB}\n", `memory: "2GB" is no amount of bytes`},
		"huge memory":            {head + "- {place: a, memory: 9999999Ti}\n", `is no amount of bytes`},
		"memory twice":           {head + "- {place: a, memory: 2Gi, resources: {memory: 1Gi}}\n", `resources: memory is named twice`},
		"nodes":                  {head + "- {place: a, nodes: 0-}\n", "steps[0].nodes: "},
		"count no number":        {head + "- place: a\n  maxNodes: many\n", `line 4: steps[0].maxNodes: "many" is no whole number`},
		"list for a word":        {head + "- place: a\n  class: [LS]\n", "line 4: steps[0].class: a list stands where a text belongs"},
		"shared beyond all":      {head + "- {place: a, cpus: 1, shared: 2}\n", `steps[0]: request "a": the shared part is larger`},
		"device without kind":    {head + "- {place: a, devices: [{count: 1}]}\n", "a device request without kind"},
		"id that steers":         {head + "- {place: \"a\\x1b[2J\"}\n", `has a character that is no letter`},
		"expected word":          {head + "- {place: a, expect: {error: full}}\n", `expect.error: unknown word "full"`},
		"expected set":           {head + "- {place: a, expect: {own: x}}\n", "steps[0].expect.own: "},
		"CPUs of a failure":      {head + "- {place: a, expect: {error: any, own: 1}}\n", "a step that fails has no CPUs to expect"},
		"CPUs of a release":      {head + "- {place: a}\n- {release: a, expect: {own: 1}}\n", "release has no CPUs to expect"},
		"pod without containers": {head + "- {placePod: p}\n", "line 3: steps[0].containers: there are none"},
		"container without name": {head + "- {placePod: p, containers: [{cpus: 1}]}\n", "steps[0].containers[0].name: a container needs one"},
		"containers alike":       {head + "- {placePod: p, containers: [{name: x}, {name: x}]}\n", `containers[1].name: two containers named "x"`},
		"container of a bad id":  {head + "- {placePod: p, containers: [{name: \"x y\"}]}\n", `containers[0].name: id "x y" has a character`},
		"container of a pod":     {head + "- {placePod: p, containers: [{name: x, pod: q}]}\n", "containers[0].pod: is the pod's name"},
		"container's class":      {head + "- {placePod: p, containers: [{name: x, class: Y}]}\n", "steps[0].containers[0].class: "},
		"container's refusal":    {head + "- {placePod: p, containers: [{name: x, expect: {error: any}}]}\n", "error and moved are the pod's"},
		"unknown in container":   {head + "- {placePod: p, containers: [{name: x, cpu: 1}]}\n", `steps[0].containers[0].cpu: unknown field; did you mean "cpus"?`},
		"memory of a pod":        {head + "- {placePod: p, memory: 1Gi, containers: [{name: x}]}\n", "all else is its containers' own"},
		"containers of nobody":   {head + "- {place: p, containers: [{name: x}]}\n", "steps[0].containers: only placePod has some"},
		"released pod's fields":  {head + "- {releasePod: p, cpus: 1}\n", "releasePod takes no fields but expect"},
		"machine":                {"machine: 0c\nsteps:\n- {place: a}\n", "machine: "},
		"reserved beyond":        {"config: {reserved: 77}\n" + head + "- {place: a}\n", "config"},
		"bad set":                {"config: {allowed: a-b}\n" + head + "- {place: a}\n", "config.allowed: "},
		"no YAML":                {"machine: [\n", "line 1: "},
		"two documents":          {head + "- {place: a}\n---\nmachine: 2c\n", "more than one document"},
		"several things at once": {head + "- {place: a, class: X}\n- {place: b, cpus: y}\n", "line 4: steps[1].cpus"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := replay.Parse(tc.text, replay.Loader{Machine: machine.Short})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v\nwant %q in it", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "replay.") {
				t.Errorf("error %v names a Go type", err)
			}
		})
	}
}

func TestRunSaysWhatWasNotExpected(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ step, want string }{
		"met":             {"{place: a, class: LSE, cpus: 2, expect: {own: 1-2, cpus: 1-2, mems: 0, count: 2, cores: 2, l3s: 1, nodes: 1, moved: 0}}", ""},
		"met refusal":     {"{place: a, class: LSE, cpus: 9, expect: {error: not-enough-cpus}}", ""},
		"met any refusal": {"{place: a, class: LSE, cpus: 9, expect: {error: any, moved: 0}}", ""},
		"refused":         {"{place: a, class: LSE, cpus: 9, expect: {count: 9}}", "success was expected"},
		"refused, none":   {"{place: a, class: LSE, cpus: 9, expect: {error: none}}", "success was expected"},
		"not asked":       {"{place: a, class: LSE, cpus: 9}", ""},
		"admitted":        {"{place: a, class: LSE, cpus: 2, expect: {error: any}}", "an error was expected"},
		"other error":     {"{place: a, class: LSE, cpus: 9, expect: {error: numa}}", "error numa was expected"},
		"not held":        {"{release: x, expect: {error: not-held}}", ""},
		"resize not held": {"{resize: x, cpus: 2, expect: {error: not-held}}", ""},
		"own":             {"{place: a, class: LSE, cpus: 2, expect: {own: 3-4}}", "own CPUs 3-4 were expected, not 1-2"},
		"cpus":            {"{place: a, class: LSE, cpus: 2, expect: {cpus: ''}}", "CPUs none were expected, not 1-2"},
		"mems":            {"{place: a, class: LSE, cpus: 2, expect: {mems: 1}}", "mems 1 were expected, not 0"},
		"count":           {"{place: a, class: LSE, cpus: 2, expect: {count: 3}}", "3 CPUs were expected, not 2"},
		"cores":           {"{place: a, class: LSE, cpus: 2, expect: {cores: 1}}", "1 cores were expected, not 2"},
		"l3s":             {"{place: a, class: LSE, cpus: 2, expect: {l3s: 2}}", "2 L3 domains were expected, not 1"},
		"nodes":           {"{place: a, class: LSE, cpus: 2, expect: {nodes: 2}}", "2 NUMA nodes were expected, not 1"},
		"moved":           {"{place: a, class: LSE, cpus: 2, expect: {moved: 1}}", "1 moved workloads were expected, not 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, "machine: 1n4c\nsteps:\n- "+tc.step+"\n")
			if got := strings.Join(r.Steps[0].Unmet, "; "); got != tc.want {
				t.Errorf("unmet %q, want %q", got, tc.want)
			}
			if failed := r.Failed(); failed != min(1, len(tc.want)) {
				t.Errorf("%d steps failed", failed)
			}
		})
	}
}

func TestExpectationsAreThoseOfTheOwnPolicy(t *testing.T) {
	t.Parallel()
	s := parse(t, "machine: 1n4c\noptions: {berth/other: {}}\nsteps:\n- {place: a, class: LSE, cpus: 2, expect: {count: 3}}\n")
	for policy, want := range map[string]int{"berth": 1, "berth/other": 0} {
		r, err := s.Run(policy)
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed() != want {
			t.Errorf("under %s %d steps failed, want %d", policy, r.Failed(), want)
		}
	}
	if _, err := s.Run("ghost"); err == nil {
		t.Error("an unknown policy ran")
	}
}

func TestOptionsReachThePolicy(t *testing.T) {
	t.Parallel()
	for strategy, want := range map[string]string{"MostAllocated": "1", "LeastAllocated": "2"} {
		r := run(t, `
machine: 2s4c
options: {berth: {strategy: `+strategy+`}}
config: {reserved: "0"}
steps:
  - {place: a, class: LSE, cpus: 1}
  - {place: b, class: LSE, cpus: 1}
`)
		nodes := cpuset.Set{}
		for _, s := range r.Steps {
			nodes = nodes.Union(s.Mems)
		}
		if got := fmt.Sprint(nodes.Len()); got != want {
			t.Errorf("%s: %s nodes used, want %s", strategy, got, want)
		}
	}
}

func TestRestartKeepsAll(t *testing.T) {
	t.Parallel()
	r := run(t, `
machine: 2s4c2t
config: {reserved: "0", memory: {0: {memory: 4Gi}, 1: {memory: 4Gi}}, devices: [{name: nic, kind: nic, nodes: 1}]}
steps:
  - {place: a, class: LSE, cpus: 3, memory: 5Gi}
  - {place: b, class: LSR, cpus: 2500m, devices: [{kind: nic, count: 1}]}
  - {place: c, class: LS, cpus: 300m}
  - {place: d, class: BE}
  - {restart: true, expect: {error: none, moved: 0}}
`)
	if r.Failed() != 0 {
		t.Fatalf("%+v", r.Steps[4])
	}
	before, after := r.Steps[3].State, r.Steps[4].State
	if before == after {
		t.Error("the restart kept the state instead of reading it back")
	}
	if d := before.Difference(after); d != "" {
		t.Error(d)
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	r := run(t, `
machine: 2s4c2t
config: {reserved: "0,8"}
steps:
  - {place: a, class: LSE, cpus: 10}
  - {place: b, class: LSR, cpus: 1}
  - {place: web, class: LS, cpus: 500m}
  - {place: c, class: LSE, cpus: 99}
  - {release: a}
`)
	want := replay.Summary{
		Admitted: 3, Refused: 1, Granted: 11.5, Own: 2,
		Nodes:     replay.Spread{Workloads: 2, Mean: 1.5, Max: 2},
		L3s:       replay.Spread{Workloads: 2, Mean: 1.5, Max: 2},
		PoolNodes: replay.Spread{Workloads: 1, Mean: 1, Max: 1},
		// web runs on the sibling of b's CPU
		SharedCores: 1,
		Left:        []replay.Left{{Node: 0, Whole: 4, Any: 5}, {Node: 1, Whole: 8, Any: 8}},
	}
	if diff := cmp.Diff(want, r.Summary); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}

func TestPodsAreNoStrangers(t *testing.T) {
	t.Parallel()
	for pod, want := range map[string]int{"one": 0, "two": 1} {
		r := run(t, `
machine: 1n4c2t
steps:
  - {place: a, pod: one, class: LSR, cpus: 1, bind: SpreadByPCPUs}
  - {place: b, pod: `+pod+`, class: LS, cpus: 1}
`)
		if r.Summary.SharedCores != want {
			t.Errorf("pod %s: %d shared cores, want %d", pod, r.Summary.SharedCores, want)
		}
	}
}

func TestMovesAreCounted(t *testing.T) {
	t.Parallel()
	r := run(t, `
machine: 1n8c
policy: balloons
options: {balloons: {balloonTypes: [{name: jobs, namespaces: [jobs]}]}}
steps:
  - {place: a, namespace: jobs, cpus: 2}
  - {place: b, namespace: jobs, cpus: 2, expect: {moved: 0}}
  - {release: a, expect: {moved: 1}}
`)
	if r.Failed() != 0 || r.Summary.Moves != 1 {
		t.Errorf("%d moves, %+v", r.Summary.Moves, r.Steps[2])
	}
	if diff := cmp.Diff([]string{"b"}, r.Steps[2].Moved); diff != "" {
		t.Error(diff)
	}
}

const pods = `
machine: 1s2n4c
config: {reserved: "0"}
policy: kubelet/pod
options:
  kubelet/pod: {cpuManagerPolicy: static, topologyManagerPolicy: single-numa-node, topologyManagerScope: pod}
  kubelet/container: {cpuManagerPolicy: static, topologyManagerPolicy: single-numa-node}
steps:
  - {place: a, class: LSE, cpus: 1}
  - placePod: p
    containers:
      - {name: x, class: LSE, cpus: 2, expect: {own: 4-5}}
      - {name: y, class: LSE, cpus: 1, expect: {own: "6"}}
    expect: {own: 4-6, nodes: 1}
  - placePod: q
    containers:
      - {name: x, class: LSE, cpus: 2}
      - {name: y, class: LSE, cpus: 1}
      - {name: z, class: LSE, cpus: 1}
    expect: {error: numa}
  - {releasePod: p, expect: {moved: 0}}
  - {releasePod: p, expect: {error: not-held}}
`

func TestPodScope(t *testing.T) {
	t.Parallel()
	s := parse(t, pods)
	for policy, want := range map[string][2]string{ // CPUs of p, admitted and refused
		"kubelet/pod":       {"4-6", "3 3"},
		"kubelet/container": {"2-4", "3 3"},
		"berth":             {"2-4", "3 3"},
	} {
		r, err := s.Run(policy)
		if err != nil {
			t.Fatal(err)
		}
		if r.Failed() > 0 {
			t.Errorf("%s: %+v", policy, r.Steps)
		}
		got := [2]string{r.Steps[1].Own.String(), fmt.Sprint(r.Summary.Admitted, r.Summary.Refused)}
		if got != want {
			t.Errorf("%s: %q, want %q", policy, got, want)
		}
		if n := r.Steps[2].State.Len(); n != 3 {
			t.Errorf("%s: the refused pod left %d grants, want 3", policy, n)
		}
		if n := r.Steps[4].State.Len(); n != 1 || len(r.Steps[3].Moved) > 0 {
			t.Errorf("%s: after the release %d grants, moved %v", policy, n, r.Steps[3].Moved)
		}
	}
}

func TestPodExpectations(t *testing.T) {
	t.Parallel()
	s := parse(t, strings.Replace(pods, `own: "6"`, `own: "7"`, 1))
	r, err := s.Run(s.Policy)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(r.Steps[1].Unmet, "; "); got != "p/y: own CPUs 7 were expected, not 6" {
		t.Errorf("unmet %q", got)
	}
}

func TestErrorKinds(t *testing.T) {
	t.Parallel()
	const head = "machine: 2s2c2t\nconfig: {memory: {0: {memory: 1Gi}, 1: {memory: 1Gi}}}\nsteps:\n- {place: a, class: LSE, cpus: 2}\n"
	for kind, step := range map[string]string{
		"not-enough-cpus": "{place: b, class: LSE, cpus: 99}",
		"smt-alignment":   "{place: b, class: LSE, cpus: 3, bind: FullPCPUs, bindRequired: true}",
		"memory":          "{place: b, memory: 9Gi}",
		"device":          "{place: b, devices: [{kind: gpu, count: 1}]}",
		"held":            "{place: a}",
		"not-held":        "{release: z}",
	} {
		r := run(t, head+"- "+step+"\n")
		if got := r.Steps[1].Kind; got != kind {
			t.Errorf("%s: kind %q (%s), want %q", step, got, r.Steps[1].Error, kind)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("machine: 1n8c\nsteps:\n- {place: a, class: LSE, cpus: 4, expect: {own: 1-4}}\n- {resize: a, cpus: 2}\n- {restart: true}\n- {release: a}\n")
	f.Add("machine: 2s2c2t\nisolated: 1\nconfig: {reserved: 0, memory: {0: {memory: 1Gi}}, devices: [{name: n, kind: k, nodes: 1}]}\nsteps: [{place: a, memory: 3Mi}]\n")
	f.Add("options: {berth: {strategy: LeastAllocated}, berth/x: {}}\nmachine: 4c\nsteps: &s [{place: a, labels: {x: y}, devices: [{kind: k, count: 2}]}]\n")
	f.Add("machine: !!binary aGk=\nsteps: [{<<: {place: a}, hints: {a: b}}]\n")
	f.Add(pods)
	f.Add("machine: 4c2t\nkubelet: {apiVersion: kubelet.config.k8s.io/v1, kind: KubeletConfiguration}\nsteps: [{apply: x}]\n")
	f.Add("machine: 4c2t\nsteps:\n- apply: '{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, resources: {limits: {cpu: 1.5}}}]}}'\n")
	f.Add(churn)
	for _, p := range policies.All() {
		f.Add("machine: 2s4c2t\nconfig: {reserved: 0}\npolicy: " + p.Name + "\nsteps:\n- {place: a, class: LSE, cpus: 3}\n- {place: b, pod: p, class: LSR, cpus: 2}\n" +
			"- {place: c, pod: p, cpus: 300m, namespace: n}\n- {place: d, class: BE}\n- {resize: c, cpus: 1}\n- {restart: true}\n- {release: b}\n- {release: a}\n")
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := replay.Parse(text, replay.Loader{
			Machine: func(source string) (*machine.Machine, error) {
				m, err := machine.Short(source)
				if err == nil && m.Online.Len() > 64 {
					return nil, errors.New("large")
				}
				return m, err
			},
			File: func(name string) (string, error) { return name, nil },
		})
		if err != nil || len(s.Steps) > 50 {
			return
		}
		if g := s.Generate; g != nil {
			if g.Settle+g.Arrivals > 50 {
				return
			}
			s = s.Stream(1)
		}
		r, err := s.Run(s.Policy)
		if err != nil {
			if strings.Contains(err.Error(), "state of policy") {
				t.Error(err)
			}
			return // a policy that cannot start there
		}
		if len(r.Steps) != len(s.Steps) {
			t.Errorf("%d steps gave %d results", len(s.Steps), len(r.Steps))
		}
	})
}
