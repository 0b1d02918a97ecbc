package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
	"berth.dev/berth/podwords"
)

// The kubelet's arithmetic is undone exactly.
func TestMilliOfShares(t *testing.T) {
	t.Parallel()
	for milli := 3; milli <= 512_000; milli++ {
		if got := milliOf(uint64(milli) * 1024 / 1000); got != milli {
			t.Fatalf("%d thousandths of a CPU come back as %d", milli, got)
		}
	}
	for shares, want := range map[uint64]int{0: 0, 2: 0, 1 << 62: 976563} {
		if got := milliOf(shares); got != want {
			t.Errorf("%d shares: %d, want %d", shares, got, want)
		}
	}
}

func TestGroupOf(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/kubepods/besteffort/podx/id":                       "kubepods/besteffort/podx/id",
		"kubepods-besteffort-podx_y.slice:cri-containerd:id": "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx_y.slice/cri-containerd-id.scope",
		"kubepods.slice:cri-containerd:id":                   "kubepods.slice/cri-containerd-id.scope",
		"":                                                   "",
		"/../../etc":                                         "",
		"a:b":                                                "",
		"a/b.slice:c:d":                                      "",
		"x.slice:../..:d":                                    "",
		"kubepods-burstable.slice:crio:0123":                 "kubepods.slice/kubepods-burstable.slice/crio-0123.scope",
	} {
		if got, ok := groupOf(path); got != want && ok || ok != (want != "") {
			t.Errorf("%q: %q, %v; want %q", path, got, ok, want)
		}
	}
}

func TestQoS(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		parent string
		res    podwords.Resources
		want   place.Class
	}{
		{"/kubepods/besteffort/podx", podwords.Resources{}, place.BE},
		{"kubepods-burstable-podx.slice", podwords.Resources{Milli: 1000, LimitMilli: 1000, Memory: 1}, place.LS},
		{"/kubepods/podx", podwords.Resources{Milli: 1000, LimitMilli: 1000}, place.LSR},
		{"kubepods-podx.slice", podwords.Resources{}, place.LSR},
		{"/other", podwords.Resources{}, place.BE},
		{"/other", podwords.Resources{Milli: 1000, LimitMilli: 1000, Memory: 1}, place.LSR},
		{"/other", podwords.Resources{Milli: 1000}, place.LS},
	} {
		p := &api.PodSandbox{Linux: &api.LinuxPodSandbox{CgroupParent: c.parent}}
		if got := qosOf(p, &c.res); got != c.want {
			t.Errorf("%s %+v: %s, want %s", c.parent, c.res, got, c.want)
		}
	}
}

// Long names and labels without end still make a workload.
func TestLongNames(t *testing.T) {
	t.Parallel()
	opt, _ := options(t, "1s1n4c2t")
	p := open(t, opt)
	q := pod(strings.Repeat("n", 253), nil)
	q.Namespace = strings.Repeat("s", 63)
	q.Labels = map[string]string{}
	for i := range 1000 {
		q.Labels[name(i)] = strings.Repeat("v", 63)
	}
	for _, c := range []string{strings.Repeat("a", 63), strings.Repeat("a", 62) + "b"} {
		if _, _, err := p.CreateContainer(context.Background(), q, container(q, c, 100)); err != nil {
			t.Error(err)
		}
	}
	all, err := p.node.List(context.Background())
	must(t, err)
	if len(all) != 2 || len(all[0].ID()) > maxID {
		t.Errorf("%d workloads", len(all))
	}
}

// Two pods of one name, of which one is ending, are two workloads.
func TestSameName(t *testing.T) {
	t.Parallel()
	opt, _ := options(t, "1s1n4c2t")
	p := open(t, opt)
	ctx := context.Background()
	q := pod("web", exclusive)
	old, next := container(q, "a", 2000), container(q, "a", 2000)
	next.Id = "another"
	for _, c := range []*api.Container{old, next} {
		_, _, err := p.CreateContainer(ctx, q, c)
		must(t, err)
	}
	_, err := p.StopContainer(ctx, q, old)
	must(t, err)
	all, err := p.node.List(ctx)
	must(t, err)
	if len(all) != 1 || containerOf(&all[0]) != "another" {
		t.Errorf("%v", all)
	}
}

// Koordinator's policy Restricted refuses own CPUs on more NUMA nodes than an empty machine would
// take, and only that.
func TestFewestNodes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	opt, _ := options(t, "2s1n8c2t") // 16 CPUs each
	p := open(t, opt)
	create := func(name string, milli int, policy string) error {
		words := maps.Clone(exclusive)
		words["scheduling.koordinator.sh/numa-topology-spec"] = `{"numaTopologyPolicy": "` + policy + `"}`
		q := pod(name, words)
		_, _, err := p.CreateContainer(ctx, q, container(q, "a", milli))
		return err
	}
	for i := range 2 {
		must(t, create(name(i), 10000, "Restricted"))
	}
	if err := create("torn", 8000, "Restricted"); err == nil || !strings.Contains(err.Error(), "maxNodes") {
		t.Errorf("%v, want a refusal", err)
	}
	must(t, create("torn", 8000, "BestEffort"))
	for kept, want := range map[string]map[int]int{ // by the CPUs that nobody can own
		"floor":    {0: 1, 16: 1, 17: 2, 31: 2, 32: 0},
		"reserved": {0: 1, 14: 1, 15: 2, 28: 2, 29: 0},
		"both":     {0: 1, 14: 1, 15: 2, 26: 2, 27: 0},
		"none":     {0: 1, 16: 1, 17: 2, 32: 2, 33: 0},
	} {
		opt, _ := options(t, "2s1n8c2t")
		switch c := &opt.Node.Config; kept {
		case "reserved":
			c.Reserved = setOf(0, 1, 8, 9)
		case "both":
			c.Reserved, c.Floor = setOf(0, 1, 8, 9), setOf(2, 3)
		case "none":
			c.NoFloor = true
		}
		p := open(t, opt)
		for cpus, nodes := range want {
			if got := p.fewestNodes(cpus); got != nodes {
				t.Errorf("%s: %d CPUs: %d nodes, want %d", kept, cpus, got, nodes)
			}
		}
	}
}

func TestSharesOf(t *testing.T) {
	t.Parallel()
	for milli, want := range map[int]uint64{0: 2, 1: 2, 1500: 1536, 256_000: 262_144, 300_000: 262_144} {
		if got := sharesOf(milli); got != want {
			t.Errorf("shares of %dm: %d, want %d", milli, got, want)
		}
	}
}

// What happens to the node says first whose it is: the container, or the pod around its group.
func TestWhose(t *testing.T) {
	t.Parallel()
	opt, heard := options(t, "1s1n4c1t")
	p := open(t, opt)
	p.name("c1", &agent.Workload{Spec: agent.Spec{Request: place.Request{ID: "default/web/a~uid-web"}, Group: "kubepods/podx/c1"}})
	p.name("", &agent.Workload{Spec: agent.Spec{Request: place.Request{ID: "default/waits/a"}, Group: "uid-waits/a"}}) // of a record without a container
	step := failedStep("kubepods/podx/c1/cpu.max")
	nobodys := failedStep("system.slice/cpu.max")
	long := func(pod, container int) string {
		return workloadID(&api.PodSandbox{Namespace: "default", Name: strings.Repeat("p", pod)}, &api.Container{Name: strings.Repeat("c", container)})
	}
	inContainer, inPod, fits, jobs := long(130, 60), long(200, 5), long(120, 42), strings.Repeat("j", cutID)+"~x"
	q := pod(strings.Repeat("p", 150), nil)
	c := container(q, strings.Repeat("c", 30), 0)
	p.table.add(q, c, resources{}, true)
	p.name(c.GetId(), &agent.Workload{Spec: agent.Spec{Request: place.Request{ID: workloadID(q, c)}, Group: "kubepods/pody/c2"}})
	for name, c := range map[string]struct {
		tell func()
		want string // namespace, pod, container, text
	}{
		"a name":                      {func() { p.emitNode(agent.Event{ID: "default/web/b", Text: "CPUs 2"}) }, "default web b CPUs 2"},
		"a name of several":           {func() { p.emitNode(agent.Event{ID: "default/web/a~uid-web", Text: "CPUs 2"}) }, "default web a CPUs 2"},
		"a job's":                     {func() { p.emitNode(agent.Event{ID: "job", Text: "CPUs 2"}) }, "  job CPUs 2"},
		"cut in the container's name": {func() { p.emitNode(agent.Event{ID: inContainer, Text: "CPUs 2"}) }, "default " + strings.Repeat("p", 130) + "  " + inContainer + ": CPUs 2"},
		"cut in the pod's name":       {func() { p.emitNode(agent.Event{ID: inPod, Text: "CPUs 2"}) }, "default   " + inPod + ": CPUs 2"},
		"cut, of a known container":   {func() { p.emitNode(agent.Event{ID: workloadID(q, c), Text: "CPUs 2"}) }, "default " + q.Name + " " + c.Name + " CPUs 2"},
		"a file of that":              {func() { p.emitNode(agent.Event{Object: "sys/fs/cgroup/kubepods/pody/c2/cpu.idle", Text: "0"}) }, "default " + q.Name + " " + c.Name + " /sys/fs/cgroup/kubepods/pody/c2/cpu.idle: 0"},
		"as long as can be":           {func() { p.emitNode(agent.Event{ID: fits, Text: "CPUs 2"}) }, "default " + strings.Repeat("p", 120) + " " + strings.Repeat("c", 42) + " CPUs 2"},
		"a job's of that length":      {func() { p.emitNode(agent.Event{ID: jobs, Text: "CPUs 2"}) }, "  " + jobs + " CPUs 2"},
		"a file":                      {func() { p.emitNode(agent.Event{Object: "sys/fs/cgroup/kubepods/podx/c1/cpu.idle", Text: "0"}) }, "default web a /sys/fs/cgroup/kubepods/podx/c1/cpu.idle: 0"},
		"of its pod":                  {func() { p.emitNode(agent.Event{Object: "/sys/fs/cgroup/kubepods/podx/cpu.idle", Text: "0"}) }, "default web  /sys/fs/cgroup/kubepods/podx/cpu.idle: 0"},
		"of nobody":                   {func() { p.emitNode(agent.Event{Object: "sys/fs/cgroup/kubepods/pod/cpu.idle", Text: "0"}) }, "   /sys/fs/cgroup/kubepods/pod/cpu.idle: 0"},
		"both":                        {func() { p.emitNode(agent.Event{ID: "default/web/b", Object: "run/b.json", Text: "gone"}) }, "default web b /run/b.json: gone"},
		"neither":                     {func() { p.emitNode(agent.Event{Text: "gone"}) }, "   gone"},
		"a write":                     {func() { p.emitFailed(step) }, "default web a " + step.Error()},
		"nobody's write":              {func() { p.emitFailed(nobodys) }, "   " + nobodys.Error()},
		"an error":                    {func() { p.emitFailed(errors.New("no")) }, "   no"},
	} {
		before := len(heard.all)
		c.tell()
		if len(heard.all) != before+1 {
			t.Fatalf("%s: %v", name, heard.all[before:])
		}
		e := heard.all[before]
		if got := fmt.Sprintf("%s %s %s %s", e.Namespace, e.Pod, e.Container, e.Text); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func failedStep(file string) *kernel.StepError {
	return &kernel.StepError{Step: kernel.Step{Path: "sys/fs/cgroup/" + file}, Err: errors.New("no")}
}

// A pod is told of its own writes and nothing of others'; the node is told of all.
func TestFailuresOfSeveral(t *testing.T) {
	t.Parallel()
	opt, heard := options(t, "1s1n4c1t")
	p := open(t, opt)
	for _, name := range []string{"x", "y"} {
		p.name(name, &agent.Workload{Spec: agent.Spec{Request: place.Request{ID: name + "/web/a"}, Group: "kubepods/" + name + "/c"}})
	}
	x, y, nobodys := failedStep("kubepods/x/c/cpu.max"), failedStep("kubepods/y/c/cpu.max"), failedStep("system.slice/cpu.max")
	for name, c := range map[string]struct {
		err  error
		pods map[string]string // what is told, by namespace
	}{
		"with words":            {fmt.Errorf("refused beside %w", x), map[string]string{"x": x.Error(), "": "refused beside " + x.Error()}},
		"joined":                {errors.Join(fmt.Errorf("refused: %w", x), y), map[string]string{"x": x.Error(), "y": y.Error(), "": "refused: " + x.Error() + "\n" + y.Error()}},
		"with what is nobody's": {errors.Join(nobodys, x), map[string]string{"x": x.Error(), "": nobodys.Error() + "\n" + x.Error()}},
		"with no write":         {errors.Join(errors.New("no"), y), map[string]string{"y": y.Error(), "": "no\n" + y.Error()}},
	} {
		before := len(heard.all)
		p.emitFailed(c.err)
		got := map[string]string{}
		for _, e := range heard.all[before:] {
			got[e.Namespace] += e.Text
		}
		if !maps.Equal(got, c.pods) {
			t.Errorf("%s: %q, want %q", name, got, c.pods)
		}
	}
}

// What batch and mid resources limit of a container the runtime is told with its place, unless the kubelet
// limits it. A pod with mid resources is best effort by itself, and LS if it says so.
func TestBatchLimits(t *testing.T) {
	t.Parallel()
	const word = "node.koordinator.sh/extended-resource-spec"
	const both = `{"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": 1500, "kubernetes.io/batch-memory": "1Gi"}}}}`
	const mid = `{"containers": {"a": {"limits": {"kubernetes.io/mid-cpu": 2500, "kubernetes.io/mid-memory": "2Gi"}}}}`
	const tiers = `{"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": 1500, "kubernetes.io/batch-memory": "4Gi", "kubernetes.io/mid-cpu": 2500, "kubernetes.io/mid-memory": "2Gi"}}}}`
	for name, c := range map[string]struct {
		words  map[string]string
		change func(*api.LinuxResources)
		want   string // quota, period, memory limit
		limit  int    // of the request
	}{
		"both":             {map[string]string{word: both}, nil, "150000 100000 1073741824", 1500},
		"little CPU time":  {map[string]string{word: `{"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": 1}}}}`}, nil, "1000 100000 0", 10},
		"memory":           {map[string]string{word: `{"containers": {"a": {"limits": {"kubernetes.io/batch-memory": 4096}}}}`}, nil, "0 0 4096", 0},
		"another's":        {map[string]string{word: `{"containers": {"b": {"limits": {"kubernetes.io/batch-cpu": 1500}}}}`}, nil, "0 0 0", 0},
		"none":             {nil, nil, "0 0 0", 0},
		"of class LS":      {map[string]string{word: both, "berth.dev/class": "LS"}, nil, "0 0 0", 0},
		"of both tiers":    {map[string]string{word: tiers}, nil, "150000 100000 2147483648", 1500},
		"those, class LS":  {map[string]string{word: tiers, "berth.dev/class": "LS"}, nil, "250000 100000 2147483648", 2500},
		"mid":              {map[string]string{word: mid}, nil, "250000 100000 2147483648", 2500},
		"mid, of class LS": {map[string]string{word: mid, "berth.dev/class": "LS"}, nil, "250000 100000 2147483648", 2500},
		"mid memory":       {map[string]string{word: `{"containers": {"a": {"limits": {"kubernetes.io/mid-memory": 4096}}}}`}, nil, "0 0 4096", 0},
		"the kubelet's": {map[string]string{word: both}, func(r *api.LinuxResources) {
			r.Cpu.Quota, r.Memory = api.Int64(int64(20000)), &api.LinuxMemory{Limit: api.Int64(int64(5))}
		}, "0 0 0", 200},
		"no quota of the kubelet's": {map[string]string{word: both}, func(r *api.LinuxResources) { r.Cpu.Quota = api.Int64(int64(-1)) }, "150000 100000 1073741824", 1500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opt, _ := options(t, "1s1n4c1t")
			p := open(t, opt)
			q := pod("job", c.words)
			q.Linux.CgroupParent = "/kubepods/besteffort/podjob"
			box := container(q, "a", 0)
			if c.change != nil {
				c.change(box.Linux.Resources)
			}
			adjust, _, err := p.CreateContainer(context.Background(), q, box)
			must(t, err)
			res := adjust.GetLinux().GetResources()
			if got := fmt.Sprint(res.GetCpu().GetQuota().GetValue(), res.GetCpu().GetPeriod().GetValue(), res.GetMemory().GetLimit().GetValue()); got != c.want {
				t.Errorf("quota, period, memory: %s, want %s", got, c.want)
			}
			w, err := p.node.Get(context.Background(), "default/job/a")
			must(t, err)
			if w.Spec.Request.LimitMilli != c.limit {
				t.Errorf("it may use %d thousandths of a CPU, want %d", w.Spec.Request.LimitMilli, c.limit)
			}
		})
	}
}

// Classes with CPUs of their own are limited by none of these resources.
func TestExtendedLimitsByClass(t *testing.T) {
	t.Parallel()
	cpu, memory := new(place.Milli(1500)), new(place.Bytes(1<<30))
	for tier, of := range map[string]struct {
		wish podwords.Wish
		held []place.Class
	}{
		"batch": {podwords.Wish{CPULimit: cpu, MemoryLimit: memory}, []place.Class{place.BE}},
		"mid":   {podwords.Wish{MidCPULimit: cpu, MidMemoryLimit: memory}, []place.Class{place.BE, place.LS}},
	} {
		for _, class := range place.Classes() {
			var want limits
			if slices.Contains(of.held, class) {
				want = limits{1500, 1 << 30}
			}
			if got := extendedLimits(&podwords.Reading{Wish: of.wish}, class, &api.Container{}); got != want {
				t.Errorf("%s, %s: %+v, want %+v", tier, class, got, want)
			}
		}
	}
}

// A record has the limits that its container was created with: the runtime is told none later.
func TestBatchLimitsInForce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	says := func(milli int) *api.PodSandbox {
		return bestEffort(pod("job", map[string]string{"node.koordinator.sh/extended-resource-spec": fmt.Sprintf(`{"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": %d}}}}`, milli)}))
	}
	limited := func(p *Plugin, want int) {
		t.Helper()
		w, err := p.node.Get(ctx, "default/job/a")
		must(t, err)
		if got := w.Spec.Request.LimitMilli; got != want {
			t.Errorf("it may use %d thousandths of a CPU on record, want %d", got, want)
		}
	}
	create := func(p *Plugin) {
		t.Helper()
		adjust, _, err := p.CreateContainer(ctx, says(1500), container(says(1500), "a", 0))
		must(t, err)
		if got := adjust.GetLinux().GetResources().GetCpu().GetQuota().GetValue(); got != 150000 {
			t.Errorf("quota %d", got)
		}
	}

	opt, _ := options(t, "1s1n4c1t")
	p := open(t, opt)
	running := container(says(1500), "a", 0)
	running.State = api.ContainerState_CONTAINER_RUNNING
	_, err := p.Synchronize(ctx, []*api.PodSandbox{says(1500)}, []*api.Container{running})
	must(t, err)
	limited(p, 0) // created while no plugin ran

	opt, _ = options(t, "1s1n4c1t")
	p = open(t, opt)
	create(p)
	_, err = p.UpdateContainer(ctx, says(3000), container(says(3000), "a", 0), &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(102))}})
	must(t, err)
	limited(p, 1500)
	_, err = p.UpdateContainer(ctx, says(3000), container(says(3000), "a", 0), &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(int64(20000))}})
	must(t, err)
	limited(p, 200) // by the kubelet

	opt, heard := options(t, "1s1n4c1t")
	free := make(chan struct{})
	opt.Budget, opt.Node.Policy = 100*time.Millisecond, slow{berth.Policy{}, func() { <-free }}
	p = open(t, opt)
	create(p)
	close(free)
	if late := heard.kinds(Late); len(late) != 1 {
		t.Errorf("events %q", late)
	}
	eventually(t, "it is placed", func() bool { p.retryAll(ctx); return len(heard.kinds(Recovered)) == 1 })
	limited(p, 1500)
}

// A plugin that starts anew knows the limits on record, and what the runtime lists.
func TestBatchLimitsOutliveAPlugin(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	q := bestEffort(pod("job", map[string]string{"node.koordinator.sh/extended-resource-spec": `{"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": 1500}}}}`}))
	knows := known{q.Uid: {Resources: podwords.Resources{QoS: place.BE}, Containers: []ContainerInfo{{Name: "a"}}}} // no CPU time, as batch pods have none
	for name, c := range map[string]struct {
		pods   Pods
		lists  bool // the runtime lists what the plugin set
		placed bool // before the restart
		quota  int64
		want   int // thousandths of a CPU on record
		source bool
	}{
		"the runtime lists none":    {nil, false, true, 0, 1500, true},
		"it lists all":              {nil, true, true, 0, 1500, true},
		"with an API server":        {knows, true, true, 0, 1500, true},
		"with one, none listed":     {knows, false, true, 0, 1500, true},
		"not placed before":         {knows, true, false, 0, 1500, false},
		"the kubelet limits it":     {knows, true, true, 20000, 200, false},
		"it does, none was listed":  {nil, false, true, 20000, 200, false},
		"nor placed, nor is listed": {knows, false, false, 0, 0, false},
		"the kubelet lifts it":      {nil, true, true, -1, 1500, true},
		"so with an API server":     {knows, true, true, -1, 1500, true},
		"lifted, none was listed":   {nil, false, true, -1, 1500, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opt, heard := options(t, "1s1n4c1t")
			opt.Pods = c.pods
			if !c.placed {
				opt.Node.Policy = failing{berth.Policy{}}
			}
			p := open(t, opt)
			box := container(q, "a", 0)
			adjust, _, err := p.CreateContainer(ctx, q, box)
			must(t, err)
			if got := adjust.GetLinux().GetResources().GetCpu().GetQuota().GetValue(); got != 150000 || len(heard.kinds(Fallback)) > 0 == c.placed {
				t.Fatalf("quota %d, events %+v", got, heard.all)
			}
			must(t, p.Close())
			if c.lists {
				box = withResources(box, adjust.GetLinux().GetResources())
			}
			box.State = api.ContainerState_CONTAINER_RUNNING
			opt.Node.Policy = berth.Policy{}
			p = open(t, opt)
			_, err = p.Synchronize(ctx, []*api.PodSandbox{q}, []*api.Container{box})
			must(t, err)
			change := &api.LinuxCPU{Shares: api.UInt64(uint64(102))}
			if c.pods != nil {
				change.Shares = api.UInt64(uint64(2)) // other ones would be news to the API server
			}
			if c.quota != 0 {
				change.Quota, change.Period = api.Int64(c.quota), api.UInt64(uint64(100000))
			}
			_, err = p.UpdateContainer(ctx, q, box, &api.LinuxResources{Cpu: change})
			must(t, err)
			_, err = p.UpdateContainer(ctx, q, withResources(box, &api.LinuxResources{Cpu: change}), &api.LinuxResources{})
			must(t, err)
			w, err := p.node.Get(ctx, "default/job/a")
			must(t, err)
			if got, source := w.Spec.Request.LimitMilli, w.Spec.Annotations[limitKey]; got != c.want || (source != "") != c.source {
				t.Errorf("it may use %d thousandths of a CPU on record, by %q; want %d", got, source, c.want)
			}
		})
	}
}

// Where the kubelet resizes a container and lifts limits that it does not know, the container keeps them.
func TestLimitsThatTheKubeletLifts(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const word = "node.koordinator.sh/extended-resource-spec"
	const mid = `{"containers": {"a": {"limits": {"kubernetes.io/mid-cpu": 2500, "kubernetes.io/mid-memory": "2Gi"}}}}`
	lift := &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(int64(-1))}, Memory: &api.LinuxMemory{Limit: api.Int64(int64(-1))}}
	for name, c := range map[string]struct {
		words  map[string]string // when it is resized
		update *api.LinuxResources
		want   string // quota, period, memory limit that the answer adds
		limit  int    // on record
	}{
		"LS":              {map[string]string{word: mid, "berth.dev/class": "LS"}, lift, "250000 100000 2147483648", 2500},
		"BE":              {map[string]string{word: mid, "berth.dev/class": "BE"}, lift, "250000 100000 2147483648", 2500},
		"CPU time":        {map[string]string{word: mid, "berth.dev/class": "LS"}, &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(int64(-1))}}, "250000 100000 0", 2500},
		"the kubelet's":   {map[string]string{word: mid, "berth.dev/class": "LS"}, &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(int64(20000))}}, "0 0 0", 200},
		"no longer said":  {map[string]string{"berth.dev/class": "LS"}, lift, "0 0 0", 0},
		"shares, nothing": {map[string]string{word: mid, "berth.dev/class": "LS"}, &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(102))}}, "0 0 0", 2500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opt, _ := options(t, "1s1n4c1t")
			p := open(t, opt)
			other := bestEffort(pod("other", nil))
			_, _, err := p.CreateContainer(ctx, other, container(other, "a", 0))
			must(t, err)
			q := bestEffort(pod("job", map[string]string{word: mid, "berth.dev/class": cmp.Or(c.words["berth.dev/class"], "LS")}))
			box := container(q, "a", 0)
			_, _, err = p.CreateContainer(ctx, q, box)
			must(t, err)
			q.Annotations = c.words
			p.table.resend("other.a", p.online) // so that the answer is about both
			updates, err := p.UpdateContainer(ctx, q, box, c.update)
			must(t, err)
			for _, u := range updates {
				res, want := u.GetLinux().GetResources(), "0 0 0"
				if u.GetContainerId() == box.Id {
					want = c.want
				}
				if got := fmt.Sprint(res.GetCpu().GetQuota().GetValue(), res.GetCpu().GetPeriod().GetValue(), res.GetMemory().GetLimit().GetValue()); got != want || res.GetCpu().GetCpus() == "" {
					t.Errorf("%s: quota, period, memory: %s, CPUs %q, want %s", u.GetContainerId(), got, res.GetCpu().GetCpus(), want)
				}
			}
			if len(updates) != 2 {
				t.Errorf("the answer is %v", updates)
			}
			w, err := p.node.Get(ctx, "default/job/a")
			must(t, err)
			if got := w.Spec.Request.LimitMilli; got != c.limit {
				t.Errorf("it may use %d thousandths of a CPU on record, want %d", got, c.limit)
			}
		})
	}
}

// failing is a policy that is out of order.
type failing struct{ place.Policy }

func (failing) Place(*place.State, *place.Request) (place.Offer, error) {
	return place.Offer{}, errors.New("out of order")
}
