package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kube/e2e/nodekit"
)

const namespace = "default"

// pod is a pod of the node.
func pod(name string, containers ...v1.Container) *v1.Pod {
	grace := int64(1)
	return &v1.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name, Namespace: namespace, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			NodeName: node, Containers: containers, TerminationGracePeriodSeconds: &grace,
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
		},
	}
}

// guaranteed is a container that gets exactly so many thousandths of a CPU.
func guaranteed(name string, milli int64) v1.Container {
	c := burstable(name, milli)
	c.Resources.Requests[v1.ResourceMemory] = resource.MustParse("32Mi")
	c.Resources.Limits = c.Resources.Requests.DeepCopy()
	return c
}

// burstable asks for so many thousandths of a CPU, and may use more.
func burstable(name string, milli int64) v1.Container {
	return v1.Container{
		Name: name, Image: nodekit.Image, ImagePullPolicy: v1.PullIfNotPresent,
		Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}},
	}
}

func (c *cluster) get(name string) (*v1.Pod, error) {
	return c.client.CoreV1().Pods(namespace).Get(context.Background(), name, meta.GetOptions{})
}

// create creates a pod, which is gone when the test has ended.
func (c *cluster) create(t *testing.T, p *v1.Pod) {
	t.Helper()
	if _, err := c.client.CoreV1().Pods(namespace).Create(t.Context(), p, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.remove(t, p.Name) })
}

// remove deletes a pod and waits until it is gone.
func (c *cluster) remove(t *testing.T, name string) {
	t.Helper()
	if err := c.gone(name); err != nil {
		t.Error(err)
	}
}

func (c *cluster) gone(name string) error {
	return within(func() error {
		err := c.client.CoreV1().Pods(namespace).Delete(context.Background(), name, meta.DeleteOptions{})
		if errors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("pod %s is still there (%v)", name, err)
	})
}

// run creates a pod and waits until all of its containers run.
func (c *cluster) run(t *testing.T, p *v1.Pod) {
	t.Helper()
	c.create(t, p)
	if err := within(func() error { return c.runs(p.Name) }); err != nil {
		t.Fatalf("%v\nevents:\n%s", err, c.events(p.Name))
	}
}

func (c *cluster) runs(name string) error {
	p, err := c.get(name)
	if err != nil {
		return err
	}
	for _, cond := range p.Status.Conditions {
		if cond.Type == v1.ContainersReady && cond.Status == v1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("pod %s does not run: %s %s %v", name, p.Status.Phase, p.Status.Reason, p.Status.ContainerStatuses)
}

// events are those of a pod, a line each.
func (c *cluster) events(pod string) string {
	list, err := c.client.CoreV1().Events(namespace).List(context.Background(), meta.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for _, e := range list.Items {
		fmt.Fprintf(&text, "%s: %s\n", e.Reason, e.Message)
	}
	return text.String()
}

// cpus are those that the kernel has for a container.
type cpus struct{ set, effective cpuset.Set }

// statusOf is that of a container of any kind.
func statusOf(p *v1.Pod, container string) (v1.ContainerStatus, bool) {
	for _, list := range [][]v1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for _, s := range list {
			if s.Name == container {
				return s, true
			}
		}
	}
	return v1.ContainerStatus{}, false
}

// group is the control group of a container that runs, with its CPUs.
func (c *cluster) group(pod, container string) (string, error) {
	p, err := c.get(pod)
	if err != nil {
		return "", err
	}
	s, _ := statusOf(p, container)
	_, id, _ := strings.Cut(s.ContainerID, "://")
	if id == "" {
		return "", fmt.Errorf("pod %s: container %s does not run", pod, container)
	}
	dirs, err := filepath.Glob(pods() + "/pod*/" + id)
	if err == nil && len(dirs) == 0 {
		dirs, err = filepath.Glob(pods() + "/*/pod*/" + id)
	}
	if err != nil || len(dirs) != 1 {
		return "", fmt.Errorf("pod %s: container %s has groups %v (%v)", pod, container, dirs, err)
	}
	return dirs[0], nil
}

// pods is the group of all pods in the hierarchy with CPUs.
func pods() string {
	if _, err := os.Stat("/sys/fs/cgroup/cpuset"); err == nil {
		return "/sys/fs/cgroup/cpuset/kubepods"
	}
	return "/sys/fs/cgroup/kubepods"
}

// end has the process of a container end, with status 0.
func (c *cluster) end(t *testing.T, pod, container string) {
	t.Helper()
	group, err := c.group(pod, container)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(group + "/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGTERM)
	}
	if err != nil {
		t.Fatalf("end %s/%s: %v", pod, container, err)
	}
}

func readSet(file string) (cpuset.Set, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return cpuset.Set{}, err
	}
	return cpuset.Parse(strings.TrimSpace(string(text)))
}

// readCPUs reads a group's.
func readCPUs(group string) (c cpus, err error) {
	if c.set, err = readSet(group + "/cpuset.cpus"); err != nil {
		return c, err
	}
	effective := group + "/cpuset.effective_cpus"
	if _, err := os.Stat(effective); err != nil {
		effective = group + "/cpuset.cpus.effective"
	}
	c.effective, err = readSet(effective)
	return c, err
}

// cpusOf reads the CPUs of a container from the kernel, which have to be in effect.
func (c *cluster) cpusOf(t *testing.T, pod, container string) cpuset.Set {
	t.Helper()
	group, err := c.group(pod, container)
	if err != nil {
		t.Fatal(err)
	}
	is, err := readCPUs(group)
	if err != nil {
		t.Fatal(err)
	}
	if is.set != is.effective {
		t.Errorf("%s/%s: CPUs %s, in effect %s", pod, container, is.set, is.effective)
	}
	return is.set
}

// has waits until a container has so many CPUs, and none of those.
func (c *cluster) has(t *testing.T, pod, container string, count int, none cpuset.Set) cpuset.Set {
	t.Helper()
	var set cpuset.Set
	err := within(func() error {
		group, err := c.group(pod, container)
		if err != nil {
			return err
		}
		is, err := readCPUs(group)
		if err != nil {
			return err
		}
		set = is.set
		if is.set != is.effective || set.Len() != count || !set.Intersect(none).IsEmpty() {
			return fmt.Errorf("%s/%s: CPUs %s, in effect %s; want %d, and none of %s", pod, container, is.set, is.effective, count, none)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return set
}

// same is what must not change of a container that runs on.
type same struct {
	id       string
	restarts int32
	started  time.Time
	cpus     cpuset.Set
}

func (c *cluster) same(t *testing.T, pod, container string) same {
	t.Helper()
	p, err := c.get(pod)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := statusOf(p, container)
	if s.State.Running == nil {
		t.Errorf("%s/%s does not run: %+v", pod, container, s)
		return same{}
	}
	return same{s.ContainerID, s.RestartCount, s.State.Running.StartedAt.Time, c.cpusOf(t, pod, container)}
}
