package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/doctor"
	"berth.dev/berth/kube/api"
	"berth.dev/berth/kube/batch"
	"berth.dev/berth/kube/publish"
	"berth.dev/berth/kube/usage"
	"berth.dev/berth/kube/zones"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// Everything that the agent does at an API server, with its own role and nothing else.
func TestRealServer(t *testing.T) {
	t.Parallel()
	s := start(t)
	token := s.cluster()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := s.client(token)
	var mu sync.Mutex
	var told []error
	pods := c.NewPods(func(err error) { mu.Lock(); told = append(told, err); mu.Unlock() })
	go pods.Run(ctx)
	for _, part := range []struct {
		name string
		test func(*testing.T, *server, *api.Client, *api.Pods)
	}{
		{"pods", testPods}, {"events", testEvents}, {"topology", testTopology}, {"features", testFeatures}, {"batch", testBatch}, {"reservation", testReservation},
	} {
		ok := t.Run(part.name, func(t *testing.T) {
			s.t = t
			part.test(t, s, c, pods)
		})
		if s.t = t; !ok {
			t.Fatal("the other parts need this one")
		}
	}
	t.Run("manifests", func(t *testing.T) {
		s.t = t
		s.apply("../deploy/daemonset.yaml")
		s.apply("../../examples/kube/profile-intel-rdt.yaml")
		s.apply("../../examples/kube/profile-amd-chiplets.yaml")
	})
	t.Run("refused", func(t *testing.T) { s.t = t; testRole(t, s, token); s.t = t })
	t.Run("the server restarts", func(t *testing.T) {
		s.t = t
		s.kill(s.apiserver)
		events := c.NewEvents(pods, nil)
		go events.Run(ctx)
		events.Tell(api.Note{About: api.About{Namespace: "default", Pod: "mine"}, Reason: "Late", Text: "told while the server was away"})
		wait(t, 30*time.Second, "the loss to be told", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(told) > 1 && told[len(told)-1] != nil
		})
		if all, synced := pods.All(); !synced || len(all) == 0 {
			t.Error("what was known is forgotten")
		}
		s.serve()
		s.pod("default", "after", "n1", "")
		wait(t, 60*time.Second, "the pod that came later", func() bool { return pods.UID("default", "after", "") != "" })
		wait(t, 60*time.Second, "the event", func() bool { return events.Counts().Sent == 1 })
	})
}

func testPods(t *testing.T, s *server, _ *api.Client, pods *api.Pods) {
	s.must(http.MethodPost, "/apis/scheduling.k8s.io/v1/priorityclasses", isJSON, "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: koord-batch}, value: 5500}")
	s.pod("default", "mine", "n1", `priorityClassName: koord-batch, resources: {requests: {cpu: 2500m, memory: 100Mi}, limits: {cpu: "3"}},
		initContainers: [{name: side, image: x, restartPolicy: Always, resources: {requests: {cpu: 1m}}}, {name: init, image: x, resources: {requests: {cpu: 1200m}}}],`)
	s.pod("default", "other", "n2", "")
	wait(t, 15*time.Second, "the pod", func() bool { return pods.UID("default", "mine", "") != "" })
	uid := pods.UID("default", "mine", "")
	info, ok := pods.Pod(uid)
	if !ok || info.Milli != 2500 || info.LimitMilli != 3000 || info.Memory != 100<<20 || info.Priority != 5500 || info.PriorityClass != "koord-batch" || info.QoS != place.LS {
		t.Fatalf("%+v, %v", info, ok)
	}
	if c := info.Container("c"); c.Milli != 1300 || c.Role != place.App || info.Container("side").Role != place.Sidecar || info.Container("side").Milli != 1 || info.Container("init").Role != place.Init {
		t.Errorf("%+v", info.Containers)
	}
	if pods.UID("default", "other", "") != "" {
		t.Error("the pod of another node is known")
	}
	// A resize in place shows.
	s.must(http.MethodPatch, "/api/v1/namespaces/default/pods/mine/resize", "application/strategic-merge-patch+json",
		`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1400m"}}}]}}`)
	wait(t, 15*time.Second, "the resize", func() bool { p, _ := pods.Pod(uid); return p.Container("c").Milli == 1400 })
	s.pod("default", "short", "n1", "")
	wait(t, 15*time.Second, "the pod", func() bool { return pods.UID("default", "short", "") != "" })
	s.must(http.MethodDelete, "/api/v1/namespaces/default/pods/short", isJSON, nil)
	wait(t, 15*time.Second, "the pod to be gone", func() bool { return pods.UID("default", "short", "") == "" })
	s.pod("default", "failed", "n1", "")
	wait(t, 15*time.Second, "the pod", func() bool { return pods.UID("default", "failed", "") != "" })
	s.must(http.MethodPatch, "/api/v1/namespaces/default/pods/failed/status", isMerge, "status: {phase: Failed}")
	wait(t, 15*time.Second, "the pod that has ended to be gone", func() bool { return pods.UID("default", "failed", "") == "" })
}

type eventList struct {
	Items []struct {
		Reason, Message, Type string
		Count                 int
		InvolvedObject        struct{ UID, Name, FieldPath string }
		Related               *struct{ Name string }
		Source                struct{ Component, Host string }
	}
}

func testEvents(t *testing.T, s *server, c *api.Client, pods *api.Pods) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var refused error
	events := c.NewEvents(pods, func(err error) { refused = err })
	mine := api.About{Namespace: "default", Pod: "mine", Container: "c"}
	for range 3 {
		events.Tell(api.Note{About: mine, Reason: "WordNotFollowed", Warning: true, Text: "berth.dev/class: \"LSX\"\x1b[31m: invalid"})
	}
	events.TellFinding(&api.Finding{Victim: mine, Antagonist: api.About{Namespace: "default", Pod: "short"}, Resource: "l3", Evidence: "misses 3 times what they were"})
	for i := range 60 {
		events.Tell(api.Note{About: mine, Reason: "SharedPool", Text: fmt.Sprint("fallback ", i)})
	}
	go events.Run(ctx)
	wait(t, 20*time.Second, "all events", func() bool { n := events.Counts(); return n.Sent+n.HeldBack+n.Refused == 65 })
	n := events.Counts()
	if n.Refused != 0 || n.Dropped != 0 || n.HeldBack < 30 || refused != nil {
		t.Errorf("%+v, %v", n, refused)
	}
	list := get[eventList](s, "/api/v1/namespaces/default/events")
	seen := map[string]int{}
	for _, e := range list.Items {
		seen[e.Reason]++
		switch e.Reason {
		case "WordNotFollowed":
			if e.Count != 3 || e.Type != "Warning" || e.InvolvedObject.UID != pods.UID("default", "mine", "") || e.InvolvedObject.FieldPath != "spec.containers{c}" ||
				strings.ContainsRune(e.Message, '\x1b') || e.Source.Component != "berth" || e.Source.Host != "n1" {
				t.Errorf("%+v", e)
			}
		case "Disturbed":
			if e.Related == nil || e.Related.Name != "short" || e.Message != "l3: disturbed by default/short: misses 3 times what they were" {
				t.Errorf("%+v", e)
			}
		}
	}
	if seen["WordNotFollowed"] != 1 || seen["Disturbed"] != 1 || seen["Disturbs"] != 1 || seen["SharedPool"] == 0 || seen["SharedPool"] > 11 {
		t.Errorf("%v", seen)
	}
	kubectl := filepath.Join(s.bin, "kubectl")
	out, err := exec.Command(kubectl, "--kubeconfig", s.kubeconfig(admin), "describe", "pod", "mine").CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound) || strings.Contains(fmt.Sprint(err), "no such file"):
		t.Log("no kubectl: what it describes is not looked at")
	case err != nil || !strings.Contains(string(out), "WordNotFollowed") || !strings.Contains(string(out), "(x3 over"):
		t.Errorf("%v\n%s", err, out)
	default:
		_, list, _ := strings.Cut(string(out), "Events:")
		t.Logf("kubectl describe pod mine:\n%s", list)
	}
}

func testTopology(t *testing.T, s *server, c *api.Client, pods *api.Pods) {
	m, err := machine.Short("2s1n4c2t")
	if err != nil {
		t.Fatal(err)
	}
	top, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	state, err := place.New(top, place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := publish.New(publish.Options{Client: c, Pods: pods, State: func(context.Context) (*place.State, error) {
		mu.Lock()
		defer mu.Unlock()
		return state, nil
	}, Tell: func(what string, err error) { t.Error(what, err) }})
	done := make(chan struct{})
	go func() { a.Run(ctx); close(done) }()
	const path = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n1"
	free := func() string {
		status, _ := s.do(admin, http.MethodGet, path, isJSON, nil)
		if status != http.StatusOK {
			return ""
		}
		all := get[zones.Topology](s, path)
		if len(all.Zones) != 2 {
			return ""
		}
		return all.Zones[0].Resources[0].Available + "+" + all.Zones[1].Resources[0].Available
	}
	wait(t, 15*time.Second, "the topology", func() bool { return free() == "7+8" })
	// Others on the host hold up any one change: of five the quickest counts.
	var took []time.Duration
	for i, want := range []string{"4+8", "1+8", "1+5", "1+2", "4+2"} {
		var next *place.State
		if i < 4 {
			offer, err := place.Place(&berth.Policy{}, state, &place.Request{ID: fmt.Sprint(i), Class: place.LSR, Milli: 3000, Nodes: cpuset.MustOf(i / 2), NodesRequired: true})
			if err != nil {
				t.Fatal(err)
			}
			next, err = state.Commit(offer)
			if err != nil {
				t.Fatal(err)
			}
		} else if next, err = state.Release("0"); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		state = next
		mu.Unlock()
		began := time.Now()
		a.Changed()
		wait(t, 15*time.Second, want+" CPUs to be available", func() bool { return free() == want })
		took = append(took, time.Since(began).Round(time.Millisecond))
	}
	t.Logf("changes show after %s", took)
	if slices.Min(took) > time.Second {
		t.Errorf("changes show after %s: want a second at most", took)
	}
	version := get[object](s, path).Metadata.ResourceVersion
	for range 5 { // nothing changed: nothing is written
		a.Changed()
		time.Sleep(150 * time.Millisecond)
	}
	if now := get[object](s, path).Metadata.ResourceVersion; now != version {
		t.Errorf("version %s became %s without a change", version, now)
	}
	// Once all pods have started there is a fingerprint, and another one with another pod.
	starts := func(namespace, name string) {
		s.must(http.MethodPatch, "/api/v1/namespaces/"+namespace+"/pods/"+name+"/status", isMerge, "status: {phase: Running}")
	}
	attributes := func() []zones.Attribute { return get[zones.Topology](s, path).Attributes }
	known, _ := pods.All()
	for _, p := range known {
		starts(p.Namespace, p.Name)
	}
	wait(t, 15*time.Second, "the fingerprint", func() bool { return len(attributes()) == 4 })
	before := attributes()[2]
	s.pod("default", "printed", "n1", "")
	wait(t, 15*time.Second, "the fingerprint to be gone", func() bool { return len(attributes()) == 2 })
	starts("default", "printed")
	wait(t, 15*time.Second, "another fingerprint", func() bool { now := attributes(); return len(now) == 4 && now[2] != before })
	all, _ := pods.All()
	var names []zones.Pod
	for _, p := range all {
		names = append(names, zones.Pod{Namespace: p.Namespace, Name: p.Name})
	}
	if got := get[zones.Topology](s, path); got.Attributes[2].Value != zones.Fingerprint(names) || got.Metadata.Owners[0].Name != "n1" {
		t.Errorf("%+v", got)
	}
	cancel()
	<-done
}

func testFeatures(t *testing.T, s *server, c *api.Client, _ *api.Pods) {
	m, err := machine.Short("1s2n4c2t")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a := publish.New(publish.Options{
		Client: c, Machine: m, Look: func() *doctor.Report { return &doctor.Report{} }, Namespace: "berth",
		Tell: func(what string, err error) { t.Error(what, err) },
	})
	done := make(chan struct{})
	go func() { a.Run(ctx); close(done) }()
	const path = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/berth/nodefeatures/berth-n1"
	wait(t, 15*time.Second, "the features", func() bool { status, _ := s.do(admin, http.MethodGet, path, isJSON, nil); return status == 200 })
	got := get[struct {
		object
		Spec struct{ Labels map[string]string }
	}](s, path)
	if got.Metadata.Labels["nfd.node.kubernetes.io/node-name"] != "n1" || got.Spec.Labels["berth.dev/numa-nodes"] != "2" {
		t.Errorf("%+v", got)
	}
	cancel()
	<-done
}

// What Koordinator's annotation of the node reserves and containers may own is told, by the role of the agent.
func testReservation(t *testing.T, s *server, c *api.Client, _ *api.Pods) {
	const node = "/api/v1/nodes/n1"
	s.must(http.MethodPatch, node, isMerge, `{metadata: {annotations: {node.koordinator.sh/reservation: '{"reservedCPUs": "0-1"}'}}}`)
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan string, 10), make(chan struct{})
	a := publish.New(publish.Options{Client: c, Ownable: cpuset.MustParse("1-7"), Tell: func(what string, err error) { told <- fmt.Sprint(what, ": ", err) }})
	go func() { a.Run(ctx); close(done) }()
	select {
	case text := <-told:
		if !strings.HasPrefix(text, "reservation: ") || !strings.Contains(text, "reserves CPUs 1,") {
			t.Error(text)
		}
	case <-time.After(15 * time.Second):
		t.Error("nothing was told")
	}
	cancel()
	<-done
	s.must(http.MethodPatch, node, isMerge, `{metadata: {annotations: {node.koordinator.sh/reservation: null}}}`)
}

// meter is figures by hand.
type meter struct {
	mu  sync.Mutex
	r   usage.Report
	err error
}

func (m *meter) Sample(now time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.r.At = now
	}
	return m.err
}

func (m *meter) Report(time.Duration) (usage.Report, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.r, !m.r.At.IsZero()
}

func testBatch(t *testing.T, s *server, c *api.Client, pods *api.Pods) {
	m := &meter{r: usage.Report{Node: batch.Amount{Milli: 10_000, Memory: 20 << 30}}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var told []string
	a := publish.New(publish.Options{Client: c, Pods: pods, Batch: &publish.Batch{
		Meter: m, Sample: 10 * time.Millisecond, Every: 50 * time.Millisecond, Stale: time.Second,
	}, Tell: func(what string, err error) { mu.Lock(); told = append(told, fmt.Sprint(what, ": ", err)); mu.Unlock() }})
	done := make(chan struct{})
	go func() { a.Run(ctx); close(done) }()
	status := func() map[string]string { return get[object](s, "/api/v1/nodes/n1").Status.Allocatable }
	// 60 of 100 CPUs, less 10 of the system, less what pods without figures request. The
	// pod of koord-batch is batch work itself.
	all, _ := pods.All()
	want := int64(50_000)
	for _, p := range all {
		if p.Name != "mine" {
			milli, _ := p.Requests()
			want -= int64(milli)
		}
	}
	cpu := func() string { return status()["kubernetes.io/batch-cpu"] }
	show := func() string { // 48700 may be told as 48700 or 48.7k
		q := cpu()
		if k, ok := strings.CutSuffix(q, "k"); ok {
			return k + "000"
		}
		return q
	}
	wait(t, 15*time.Second, "batch-cpu", func() bool { return show() == fmt.Sprint(want) })
	t.Logf("allocatable: %v", status())
	if got := status(); got["cpu"] != "96" || got["kubernetes.io/batch-memory"] == "" || got["kubernetes.io/mid-cpu"] != "" {
		t.Errorf("%v", got)
	}
	// The kubelet sets it to zero when it registers; a small change is not written at once.
	s.must(http.MethodPatch, "/api/v1/nodes/n1/status", isMerge, `{status: {allocatable: {kubernetes.io/batch-cpu: "0"}}}`)
	wait(t, 15*time.Second, "batch-cpu to be back", func() bool { return show() == fmt.Sprint(want) })
	m.mu.Lock()
	m.r.Node.Milli += 1000
	m.mu.Unlock()
	time.Sleep(200 * time.Millisecond)
	if show() != fmt.Sprint(want) {
		t.Errorf("a fiftieth was written: %s", cpu())
	}
	m.mu.Lock()
	m.r.Node.Milli += 20_000
	m.mu.Unlock()
	wait(t, 15*time.Second, "the larger change", func() bool { return show() == fmt.Sprint(want-21_000) })
	// Without figures it is taken away.
	m.mu.Lock()
	m.err = errors.New("no figures")
	m.mu.Unlock()
	wait(t, 15*time.Second, "batch-cpu to be gone", func() bool { return cpu() == "" })
	if got := status(); got["cpu"] != "96" || got["kubernetes.io/batch-memory"] != "" {
		t.Errorf("%v", got)
	}
	mu.Lock()
	text := strings.Join(told, "\n")
	mu.Unlock()
	if !strings.Contains(text, "no figures") || !strings.Contains(text, "taken away") {
		t.Errorf("told %q", text)
	}
	cancel()
	<-done
}

// testRole tries what the agent may not.
func testRole(t *testing.T, s *server, token string) {
	const events = "/api/v1/namespaces/default/events"
	event := func(host string) string {
		return fmt.Sprintf(`{"metadata":{"name":"e-%s","namespace":"default"},"involvedObject":{"kind":"Pod","name":"mine","namespace":"default"},"reason":"R","message":"m","type":"Normal","source":{"component":"berth","host":%q}}`, host, host)
	}
	topology := func(node string) string {
		return fmt.Sprintf("{apiVersion: topology.node.k8s.io/v1alpha2, kind: NodeResourceTopology, metadata: {name: %s}, topologyPolicies: [], zones: []}", node)
	}
	feature := func(node, of string) string {
		return fmt.Sprintf("{apiVersion: nfd.k8s-sigs.io/v1alpha1, kind: NodeFeature, metadata: {name: berth-%s, labels: {nfd.node.kubernetes.io/node-name: %s}}, spec: {labels: {a: b}}}", node, of)
	}
	const (
		nrt   = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
		nfd   = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/berth/nodefeatures"
		how   = "?fieldManager=berth&force=true"
		batch = `{status: {allocatable: {kubernetes.io/batch-cpu: "5"}}}`
	)
	s.must(http.MethodPost, "/api/v1/namespaces/default/secrets", isJSON, "{apiVersion: v1, kind: Secret, metadata: {name: s}}")
	for _, c := range []struct {
		method, path, kind string
		body               any
		want               int
		says               string
	}{
		// what it must
		{http.MethodGet, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", isJSON, nil, 200, ""},
		{http.MethodGet, "/api/v1/nodes/n1", isJSON, nil, 200, ""},
		{http.MethodPost, events, isJSON, event("n1"), 201, ""},
		{http.MethodPatch, "/api/v1/nodes/n1/status", isMerge, batch, 200, ""},
		{http.MethodPatch, nrt + "/n1" + how, isApply, topology("n1"), 200, ""},
		{http.MethodPatch, nfd + "/berth-n1" + how, isApply, feature("n1", "n1"), 200, ""},
		// of other nodes
		{http.MethodPatch, "/api/v1/nodes/n2/status", isMerge, batch, 422, "its own node only"},
		{http.MethodPatch, nrt + "/n2" + how, isApply, topology("n2"), 422, "its own node only"},
		{http.MethodPatch, nfd + "/berth-n2" + how, isApply, feature("n2", "n2"), 422, "its own node only"},
		{http.MethodPatch, nfd + "/berth-n1" + how, isApply, feature("n1", "n2"), 422, "its own node only"},
		{http.MethodPost, events, isJSON, event("n2"), 422, "its own node only"},
		// more of its own node than is its own
		{http.MethodPatch, "/api/v1/nodes/n1/status", isMerge, `{status: {allocatable: {cpu: "1000"}}}`, 422, "batch and mid resources"},
		{http.MethodPatch, "/api/v1/nodes/n1/status", isMerge, `{status: {capacity: {nvidia.com/gpu: "8"}}}`, 422, "batch and mid resources"},
		{http.MethodPatch, "/api/v1/nodes/n1/status", isMerge, `{status: {capacity: {pods: null}}}`, 422, "batch and mid resources"},
		{http.MethodPatch, "/api/v1/nodes/n1/status", isMerge, `{status: {conditions: []}}`, 422, "batch and mid resources"},
		{http.MethodPatch, "/api/v1/nodes/n1", isMerge, `{metadata: {labels: {a: b}}}`, 403, ""},
		{http.MethodPatch, "/api/v1/nodes/n1", isMerge, `{spec: {unschedulable: true}}`, 403, ""},
		{http.MethodDelete, "/api/v1/nodes/n1", isJSON, nil, 403, ""},
		{http.MethodDelete, "/api/v1/nodes/n2", isJSON, nil, 403, ""},
		{http.MethodGet, "/api/v1/nodes", isJSON, nil, 403, ""},
		// anything else
		{http.MethodGet, "/api/v1/namespaces/default/secrets/s", isJSON, nil, 403, ""},
		{http.MethodGet, "/api/v1/secrets", isJSON, nil, 403, ""},
		{http.MethodGet, "/api/v1/configmaps", isJSON, nil, 403, ""},
		{http.MethodPatch, "/api/v1/namespaces/default/pods/other", isMerge, `{metadata: {labels: {a: b}}}`, 403, ""},
		{http.MethodPatch, "/api/v1/namespaces/default/pods/mine", isMerge, `{metadata: {labels: {a: b}}}`, 403, ""},
		{http.MethodPatch, "/api/v1/namespaces/default/pods/mine/status", isMerge, `{status: {phase: Failed}}`, 403, ""},
		{http.MethodDelete, "/api/v1/namespaces/default/pods/other", isJSON, nil, 403, ""},
		{http.MethodPost, "/api/v1/namespaces/default/pods", isJSON, "{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: c, image: x}]}}", 403, ""},
		{http.MethodPost, "/api/v1/namespaces/default/pods/mine/eviction", isJSON, "{apiVersion: policy/v1, kind: Eviction, metadata: {name: mine}}", 403, ""},
		{http.MethodPost, "/api/v1/namespaces/default/pods/mine/exec?command=id", isJSON, nil, 403, ""},
		{http.MethodPost, "/api/v1/namespaces/default/pods/mine/binding", isJSON, "{apiVersion: v1, kind: Binding, target: {kind: Node, name: n2}}", 403, ""},
		{http.MethodDelete, nrt + "/n1", isJSON, nil, 403, ""},
		{http.MethodGet, nrt + "/n2", isJSON, nil, 403, ""},
		{http.MethodDelete, nfd + "/berth-n1", isJSON, nil, 403, ""},
		{http.MethodPatch, "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/default/nodefeatures/berth-n1" + how, isApply, feature("n1", "n1"), 403, ""},
		{http.MethodGet, events, isJSON, nil, 403, ""},
		{http.MethodPost, "/api/v1/namespaces/berth/serviceaccounts/berth-node/token", isJSON, "{apiVersion: authentication.k8s.io/v1, kind: TokenRequest}", 403, ""},
		{http.MethodGet, "/apis/rbac.authorization.k8s.io/v1/clusterroles", isJSON, nil, 403, ""},
	} {
		status, answer := s.do(token, c.method, c.path, c.kind, c.body)
		if status != c.want || !strings.Contains(string(answer), c.says) {
			t.Errorf("%s %s %v: %d, want %d %q: %s", c.method, c.path, c.body, status, c.want, c.says, answer)
		}
	}
}
