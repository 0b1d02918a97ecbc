package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/cpuset"
)

// online are the CPUs of the node.
func online(t *testing.T) cpuset.Set {
	t.Helper()
	all, err := readSet("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	if all.Len() < 2 {
		t.Skip("a CPU of its own and one for the others need two")
	}
	return all
}

// An exclusive CPU is taken from those who run, and goes back to them.
func TestExclusive(t *testing.T) {
	c, all := theNode(t), online(t)
	c.run(t, pod("shared", burstable("a", 50)))
	c.has(t, "shared", "a", all.Len(), cpuset.Set{})
	c.run(t, pod("own", guaranteed("a", 1000)))
	own := c.has(t, "own", "a", 1, cpuset.Set{})
	c.has(t, "shared", "a", all.Len()-1, own)
	c.run(t, pod("later", burstable("a", 50)))
	c.has(t, "later", "a", all.Len()-1, own)
	c.remove(t, "own")
	for _, name := range []string{"shared", "later"} {
		c.has(t, name, "a", all.Len(), cpuset.Set{})
	}
}

// Containers with CPUs of their own and others mix in one pod, and one of them has an I/O class.
func TestMixed(t *testing.T) {
	c, all := theNode(t), online(t)
	c.with(t, "--config", state+"/classes.yaml")
	p := pod("mixed", guaranteed("own", 1000), guaranteed("side", 50))
	p.Annotations["berth.dev/io.side"] = "slow"
	c.run(t, p)
	own := c.has(t, "mixed", "own", 1, cpuset.Set{})
	c.has(t, "mixed", "side", all.Len()-1, own)
	if is := c.reads(t, "mixed", "own"); is != "" {
		t.Errorf("a container without a class has I/O limits %q", is)
	}
	limits := c.reads(t, "mixed", "side")
	seen := 0
	for _, pattern := range []string{"vd*", "sd*", "nvme*"} {
		disks, err := filepath.Glob("/sys/block/" + pattern + "/dev")
		if err != nil {
			t.Fatal(err)
		}
		for _, disk := range disks {
			seen++
			if want := regexp.MustCompile("(?m)^" + readText(t, disk) + " (rbps=)?1000000\\b"); !want.MatchString(limits) {
				t.Errorf("a container of class slow has I/O limits %q, want %s", limits, want)
			}
		}
	}
	if seen == 0 {
		t.Log("no disk here: the limits of class slow were not compared")
	}
	t.Logf("I/O limits of class slow: %q", limits)
}

// reads are the limits that the kernel has for what a container reads of disks.
func (c *cluster) reads(t *testing.T, pod, container string) string {
	t.Helper()
	group, err := c.group(pod, container)
	if err != nil {
		t.Fatal(err)
	}
	if throttle := in("blkio", group); throttle != group {
		return readText(t, throttle+"/blkio.throttle.read_bps_device")
	}
	return readText(t, group+"/io.max")
}

// An init container has a CPU of its own while it runs, which the next one gets.
func TestInit(t *testing.T) {
	c, all := theNode(t), online(t)
	p := pod("init", guaranteed("app", 1000))
	p.Spec.InitContainers = []v1.Container{guaranteed("first", 1000)}
	c.create(t, p)
	c.has(t, "init", "first", 1, cpuset.Set{})
	c.end(t, "init", "first")
	if err := within(func() error { return c.runs("init") }); err != nil {
		t.Fatal(err)
	}
	own := c.has(t, "init", "app", 1, cpuset.Set{})
	c.run(t, pod("beside", burstable("a", 50)))
	c.has(t, "beside", "a", all.Len()-1, own)
}

// A sidecar (a restartable init container) keeps its CPU while the app runs, and after a
// second init container.
func TestSidecar(t *testing.T) {
	c, all := theNode(t), online(t)
	p := pod("sidecar", guaranteed("app", 50))
	side, second := guaranteed("side", 1000), guaranteed("second", 50)
	always := v1.ContainerRestartPolicyAlways
	side.RestartPolicy = &always
	second.Args = []string{"1s"}
	p.Spec.InitContainers = []v1.Container{side, second}
	c.run(t, p)
	own := c.has(t, "sidecar", "side", 1, cpuset.Set{})
	c.has(t, "sidecar", "app", all.Len()-1, own)
}

// Of a pod with resources of its own (spec.resources) a container that asks for nothing has what the
// others leave: a whole CPU of that is its own, and what two such containers divide is time to share.
// The kubelet tells the runtime of both that they have all that the pod has.
func TestPodLevel(t *testing.T) {
	c, all := theNode(t), online(t)
	c.with(t, server()...)
	run := func(name string, milli int64, containers ...v1.Container) {
		t.Helper()
		// While a first container runs the plugin hears of the pod.
		p, has := pod(name, containers...), guaranteed("", milli).Resources
		p.Spec.InitContainers = []v1.Container{guaranteed("first", 50)}
		has.Requests[v1.ResourceMemory] = resource.MustParse("96Mi")
		has.Limits = has.Requests.DeepCopy()
		p.Spec.Resources = &has
		c.create(t, p)
		c.has(t, name, "first", all.Len(), cpuset.Set{})
		c.end(t, name, "first")
		if err := within(func() error { return c.runs(name) }); err != nil {
			t.Fatalf("%v\nevents:\n%s", err, c.events(name))
		}
	}
	asksNothing := func(name string) v1.Container {
		a := burstable(name, 0)
		a.Resources = v1.ResourceRequirements{}
		return a
	}
	run("rest", 1050, asksNothing("a"), guaranteed("side", 50))
	own := c.has(t, "rest", "a", 1, cpuset.Set{})
	c.has(t, "rest", "side", all.Len()-1, own)
	c.remove(t, "rest")
	run("divided", 1000, asksNothing("a"), asksNothing("b"))
	for _, name := range []string{"a", "b"} {
		c.has(t, "divided", name, all.Len(), cpuset.Set{})
	}
}

// ask changes the requests of a container that runs.
func (c *cluster) ask(t *testing.T, name, container string, milli int64, limits bool) *resource.Quantity {
	t.Helper()
	q := resource.NewMilliQuantity(milli, resource.DecimalSI)
	resources := fmt.Sprintf(`{"requests":{"cpu":%q}}`, q)
	if limits {
		resources = fmt.Sprintf(`{"requests":{"cpu":%q},"limits":{"cpu":%[1]q}}`, q)
	}
	patch := fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"resources":%s}]}}`, container, resources)
	if _, err := c.client.CoreV1().Pods(namespace).Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), meta.PatchOptions{}, "resize"); err != nil {
		t.Fatal(err)
	}
	return q
}

// resize changes the requests of a container that runs, and waits until the kubelet has done it.
func (c *cluster) resize(t *testing.T, name, container string, milli int64, limits bool) {
	t.Helper()
	q := c.ask(t, name, container, milli, limits)
	err := within(func() error {
		p, err := c.get(name)
		if err != nil {
			return err
		}
		s, _ := statusOf(p, container)
		if s.Resources == nil || s.Resources.Requests.Cpu().Cmp(*q) != 0 {
			return fmt.Errorf("%s/%s: the kubelet has not resized it to %v: %+v", name, container, q, s.Resources)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, c.events(name))
	}
}

// A resize in place leaves a shared container where it is, gives one that now asks for
// whole CPUs its own, takes them back, and restarts nothing.
func TestResize(t *testing.T) {
	c, all := theNode(t), online(t)
	c.run(t, pod("resize", burstable("a", 50)))
	before := c.same(t, "resize", "a")
	c.resize(t, "resize", "a", 150, false)
	if after := c.same(t, "resize", "a"); after != before {
		t.Errorf("after a resize of a shared container: %v, before %v", after, before)
	}
	c.run(t, pod("grows", guaranteed("a", 500)))
	before = c.same(t, "grows", "a")
	c.resize(t, "grows", "a", 1000, true)
	own := c.has(t, "grows", "a", 1, cpuset.Set{})
	c.has(t, "resize", "a", all.Len()-1, own)
	c.resize(t, "grows", "a", 500, true)
	c.has(t, "grows", "a", all.Len(), cpuset.Set{})
	if after := c.same(t, "grows", "a"); after != before {
		t.Errorf("after resizes there and back: %v, before %v", after, before)
	}
}

// What batch resources limit, the plugin has on record after it has started anew, and says what is in
// force after a resize.
func TestBatchLimit(t *testing.T) {
	c := theNode(t)
	p := pod("batch", burstable("a", 50))
	p.Labels = map[string]string{"koordinator.sh/qosClass": "BE"}
	p.Annotations["node.koordinator.sh/extended-resource-spec"] = `{"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": 300}}}}`
	limited := func(when string) {
		t.Helper()
		err := within(func() error {
			if record, kernel := c.onRecord(t, "batch/a"), c.quota(t, "batch", "a"); record != 300 || kernel != 300 {
				return fmt.Errorf("%s: it may use %d thousandths of a CPU on record and %d in the kernel, want 300", when, record, kernel)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	c.run(t, p)
	limited("created")
	for i, more := range [][]string{nil, server()} {
		c.with(t, more...)
		if err := c.again(named{"the plugin", c.plugin}, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		c.resize(t, "batch", "a", int64(100+50*i), false)
		limited(fmt.Sprintf("resized, with arguments %q", more))
	}
}

// onRecord is the limit of CPU time that the plugin's records have, in thousandths of a CPU; 0 is none.
func (c *cluster) onRecord(t *testing.T, container string) int {
	t.Helper()
	text, err := exec.Command(filepath.Join(os.Getenv(builtEnv), "berth-node"), "explain", namespace+"/"+container, "-o", "json").Output()
	if err != nil {
		t.Fatalf("berth-node explain: %v\n%s", err, text)
	}
	var w struct {
		Spec struct {
			Request struct {
				LimitMilli int `json:"limitMilli"`
			} `json:"request"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(text, &w); err != nil {
		t.Fatal(err)
	}
	return w.Spec.Request.LimitMilli
}

// quota is the limit that the kernel has, likewise.
func (c *cluster) quota(t *testing.T, pod, container string) int {
	t.Helper()
	group, err := c.group(pod, container)
	if err != nil {
		t.Fatal(err)
	}
	var quota, period string
	if v1 := in("cpu", group); v1 != group {
		quota, period = readText(t, v1+"/cpu.cfs_quota_us"), readText(t, v1+"/cpu.cfs_period_us")
	} else {
		quota, period, _ = strings.Cut(readText(t, group+"/cpu.max"), " ")
	}
	n, err := strconv.Atoi(quota)
	of, _ := strconv.Atoi(period)
	if err != nil || n < 0 || of == 0 {
		return 0
	}
	return n * 1000 / of
}

// says waits for an event of a pod that has a text.
func (c *cluster) says(t *testing.T, name, text string) {
	t.Helper()
	if err := within(func() error {
		if all := c.events(name); !strings.Contains(all, text) {
			return fmt.Errorf("no event of pod %s has %q:\n%s", name, text, all)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A pod that requires what cannot be had is told why in its events, and runs when it can.
func TestRefused(t *testing.T) {
	c, all := theNode(t), online(t)
	if all.Len() > 2 {
		t.Skip("written for two CPUs: one pod owns all that can be owned")
	}
	c.run(t, pod("owner", guaranteed("a", 1000)))
	p := pod("required", guaranteed("a", 1000))
	p.Annotations["berth.dev/class"] = "LSR"
	p.Annotations["berth.dev/cpus"] = "1"
	c.create(t, p)
	c.says(t, "required", "not placed: ")
	t.Logf("events of the pod that requires it:\n%s", c.events("required"))
	c.remove(t, "owner") // the kubelet has no room for a third
	if err := within(func() error { return c.runs("required") }); err != nil {
		t.Fatal(err)
	}
	own := c.has(t, "required", "a", 1, cpuset.Set{})
	c.run(t, pod("asks", guaranteed("a", 1000))) // without a word: time of the shared pool
	c.has(t, "asks", "a", all.Len()-1, own)
}

// Without the plugin the runtime refuses a pod that requires it, and takes others.
func TestRequiredPlugin(t *testing.T) {
	c := theNode(t)
	connects := c.connects()
	c.plugin.End(syscall.SIGTERM)
	p := pod("needs", guaranteed("a", 1000))
	p.Annotations["required-plugins.noderesource.dev"] = "[ berth ]"
	c.create(t, p)
	c.says(t, "needs", `required plugin "berth" not present`)
	c.run(t, pod("free", burstable("a", 50)))
	if err := c.plugin.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.connected(connects); err != nil {
		t.Fatal(err)
	}
	if err := within(func() error { return c.runs("needs") }); err != nil {
		t.Fatal(err)
	}
	own := c.has(t, "needs", "a", 1, cpuset.Set{})
	c.has(t, "free", "a", online(t).Len()-1, own)
}

// Whatever restarts, and however it ended, nothing that runs moves or restarts, and what
// is created next is placed.
func TestRestarts(t *testing.T) {
	c, all := theNode(t), online(t)
	c.run(t, pod("own", guaranteed("a", 1000), guaranteed("side", 50)))
	c.run(t, pod("shared", burstable("a", 50)))
	own := c.has(t, "own", "a", 1, cpuset.Set{})
	c.has(t, "shared", "a", all.Len()-1, own)
	who := [][2]string{{"own", "a"}, {"own", "side"}, {"shared", "a"}}
	var before []same
	for _, w := range who {
		before = append(before, c.same(t, w[0], w[1]))
	}
	for _, p := range []named{{"the plugin", c.plugin}, {"containerd", c.containerd}, {"kubelet", c.kubelet}} {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			t.Run(fmt.Sprintf("%s/%v", p.name, sig), func(t *testing.T) {
				moves := c.watch(t)
				if err := c.again(p, sig); err != nil {
					t.Fatal(err)
				}
				c.run(t, pod("next", burstable("a", 50)))
				c.has(t, "next", "a", all.Len()-1, own)
				c.remove(t, "next")
				time.Sleep(2 * time.Second)
				for i, w := range who {
					if after := c.same(t, w[0], w[1]); after != before[i] {
						t.Errorf("%s/%s: %v, before %v", w[0], w[1], after, before[i])
					}
				}
				samples, changes := moves.stop()
				for _, w := range who {
					group, err := c.group(w[0], w[1])
					if err != nil {
						t.Fatal(err)
					}
					if len(changes[group]) != 1 {
						t.Errorf("%s/%s had CPUs %v meanwhile, want always the same", w[0], w[1], changes[group])
					}
				}
				t.Logf("%d samples", samples)
			})
		}
	}
}
