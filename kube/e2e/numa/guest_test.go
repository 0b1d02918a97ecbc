package numa

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kube/e2e/nodekit"
)

const (
	berthNode = "/bin/berth-node"
	state     = "/var/lib/e2e"
)

// guest is what runs in it. It is set by TestMain before any test.
type guest struct {
	containerd, plugin *nodekit.Process

	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
}

var the guest

func TestMain(m *testing.M) {
	if inside() {
		if err := the.start(); err != nil {
			fmt.Fprintln(os.Stderr, "numa:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func (g *guest) start() error {
	if err := root(); err != nil {
		return err
	}
	for _, dir := range []string{state, "/etc", "/var/log"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"hosts", "resolv.conf", "hostname"} { // which sandboxes get
		if err := os.WriteFile("/etc/"+name, nil, 0o644); err != nil {
			return err
		}
	}
	if err := nodekit.Serve("/bin/work"); err != nil {
		return err
	}
	var err error
	if g.containerd, err = nodekit.Containerd(state, func(name string) string { return "/bin/" + name }, ""); err != nil {
		return err
	}
	g.plugin = &nodekit.Process{Args: []string{berthNode, "nri", "--nri-socket", nodekit.NRI}, Log: state + "/plugin.log"}
	if err := g.containerd.Start(); err != nil {
		return err
	}
	if err := nodekit.Listens("unix", nodekit.CRI, 2*time.Minute); err != nil {
		return fmt.Errorf("%w\n%s", err, g.containerd.Tail(20))
	}
	conn, err := grpc.NewClient("unix://"+nodekit.CRI, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	g.runtime, g.images = cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn)
	if err := g.plugin.Start(); err != nil {
		return err
	}
	if err := g.connected(1); err != nil {
		return err
	}
	_, err = g.images.PullImage(context.Background(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: nodekit.Image}})
	return err
}

// root makes a file system in memory the root: runc cannot leave an initramfs.
func root() error {
	const next = "/newroot"
	if err := os.MkdirAll(next, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", next, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount a root: %w", err)
	}
	for _, dir := range []string{"/bin", "/proc", "/sys", "/dev", "/run", "/tmp"} {
		if err := os.MkdirAll(next+dir, 0o755); err != nil {
			return err
		}
		flags := uintptr(unix.MS_MOVE)
		if dir == "/bin" {
			flags = unix.MS_BIND
		}
		err := unix.Mount(dir, next+dir, "", flags, "")
		if err == unix.EINVAL { // it is no mount of its own
			err = unix.Mount(dir, next+dir, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	if err := os.Chdir(next); err != nil {
		return err
	}
	if err := unix.Mount(next, "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

// connected waits until the plugin has adopted what runs so many times.
func (g *guest) connected(times int) error {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if strings.Count(g.plugin.Output(), "msg=connected") >= times {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the plugin does not connect:\n%s\n%s", g.plugin.Tail(20), g.containerd.Tail(5))
		}
	}
}

// container is a container that runs, in a pod of its own.
type container struct{ pod, id, group string }

// run makes a pod as the kubelet does: qos is "" or "burstable/".
func run(t *testing.T, name, qos string, milli int64, words map[string]string) (container, error) {
	t.Helper()
	began := time.Now()
	parent := "/kubepods/" + qos + "pod" + name
	config := &cri.PodSandboxConfig{
		Metadata:    &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		Annotations: words, LogDirectory: "/var/log",
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: parent, SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
		}},
	}
	made, err := the.runtime.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return container{}, err
	}
	c := container{pod: made.PodSandboxId}
	t.Cleanup(func() { c.remove(t) })
	linux := &cri.LinuxContainerResources{CpuShares: milli * 1024 / 1000, MemoryLimitInBytes: 64 << 20}
	if qos == "" {
		linux.CpuPeriod, linux.CpuQuota = 100_000, milli*100
	}
	got, err := the.runtime.CreateContainer(t.Context(), &cri.CreateContainerRequest{
		PodSandboxId: c.pod, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "a"}, Image: &cri.ImageSpec{Image: nodekit.Image},
			Linux: &cri.LinuxContainerConfig{Resources: linux},
		},
	})
	if err != nil {
		return c, err
	}
	c.id = got.ContainerId
	c.group = "/sys/fs/cgroup" + parent + "/" + c.id
	_, err = the.runtime.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: c.id})
	t.Logf("%s runs after %.1f s", name, time.Since(began).Seconds())
	return c, err
}

func mustRun(t *testing.T, name, qos string, milli int64, words map[string]string) container {
	t.Helper()
	c, err := run(t, name, qos, milli, words)
	if err != nil {
		t.Fatalf("%v\nthe plugin:\n%s", err, the.plugin.Tail(10))
	}
	return c
}

func (c container) remove(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	_, err := the.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: c.pod})
	if err == nil {
		_, err = the.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: c.pod})
	}
	if err != nil {
		t.Error(err)
	}
}

// sets are what the kernel has for a container.
func (c container) sets(t *testing.T) (cpus, mems cpuset.Set) {
	t.Helper()
	read := func(name string) cpuset.Set {
		text, err := os.ReadFile(filepath.Join(c.group, name))
		if err != nil {
			t.Fatal(err)
		}
		return cpuset.MustParse(strings.TrimSpace(string(text)))
	}
	cpus, mems = read("cpuset.cpus.effective"), read("cpuset.mems.effective")
	if is := read("cpuset.cpus"); is != cpus {
		t.Errorf("CPUs %s, in effect %s", is, cpus)
	}
	if is := read("cpuset.mems"); !is.IsEmpty() && is != mems {
		t.Errorf("memory nodes %s, in effect %s", is, mems)
	}
	return cpus, mems
}

// Exclusive CPUs come from one node, are taken from a container that runs, and go back.
func TestExclusiveFromOneNode(t *testing.T) {
	if !inside() {
		t.Skip("it runs in the guest")
	}
	shared := mustRun(t, "shared", "burstable/", 100, nil)
	had, mems := shared.sets(t)
	t.Logf("shared: CPUs %s, memory nodes %s", had, mems)
	first, _ := had.First()
	bound := mustRun(t, "bound", "", 1000, map[string]string{"berth.dev/numa": strconv.Itoa(first / 2), "berth.dev/nodesRequired": "true"})
	taken, mems := bound.sets(t)
	if taken.Len() != 1 || !nodeOf(first).Contains(taken) {
		t.Errorf("bound to node %d, it has CPUs %s", first/2, taken)
	}
	t.Logf("bound to node %d: CPUs %s, memory nodes %s", first/2, taken, mems)
	own := mustRun(t, "own", "", 2000, nil)
	cpus, mems := own.sets(t)
	first, _ = cpus.First()
	if cpus != nodeOf(first) {
		t.Errorf("CPUs %s are not those of one node", cpus)
	}
	if mems.String() != strconv.Itoa(first/2) {
		t.Errorf("CPUs %s, but memory nodes %s", cpus, mems)
	}
	t.Logf("own: CPUs %s, memory nodes %s", cpus, mems)
	if is, _ := shared.sets(t); is.Overlaps(taken) || is.Overlaps(cpus) || is.IsEmpty() {
		t.Errorf("shared has CPUs %s, of which %s are exclusive", is, taken.Union(cpus))
	}
	books(t, own, bound, shared)
	bound.remove(t)
	var is cpuset.Set
	for end := time.Now().Add(20 * time.Second); is != had && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		is, _ = shared.sets(t)
	}
	if is != had {
		t.Errorf("after the end of the one that owned CPU %s, shared has CPUs %s, before that %s", taken, is, had)
	}
}

// nodeOf are the CPUs of a memory node: 2n and 2n+1.
func nodeOf(cpu int) cpuset.Set { return cpuset.MustOf(cpu&^1, cpu|1) }

// What cannot be had is refused with the reason, and moves nobody.
func TestRefused(t *testing.T) {
	if !inside() {
		t.Skip("it runs in the guest")
	}
	own := mustRun(t, "own", "", 4000, nil)
	cpus, _ := own.sets(t)
	_, err := run(t, "much", "", 4000, map[string]string{"berth.dev/cpus": "4"})
	if err == nil || !strings.Contains(err.Error(), "not placed: ") {
		t.Errorf("4 of 8 CPUs, where 4 are owned: %v", err)
	}
	t.Log(err)
	if is, _ := own.sets(t); is != cpus {
		t.Errorf("a refused pod moved another one from CPUs %s to %s", cpus, is)
	}
}

// The plugin and containerd are killed: nothing moves, and the books are what the kernel has.
func TestKilled(t *testing.T) {
	if !inside() {
		t.Skip("it runs in the guest")
	}
	all := []container{mustRun(t, "one", "", 2000, nil), mustRun(t, "two", "", 1000, nil), mustRun(t, "shared", "burstable/", 100, nil)}
	type place struct{ cpus, mems cpuset.Set }
	var before []place
	for _, c := range all {
		cpus, mems := c.sets(t)
		before = append(before, place{cpus, mems})
	}
	for _, p := range []*nodekit.Process{the.plugin, the.containerd} {
		times := strings.Count(the.plugin.Output(), "msg=connected")
		if err := p.Again(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := the.connected(times + 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		for i, c := range all {
			if cpus, mems := c.sets(t); (place{cpus, mems}) != before[i] {
				t.Errorf("after a kill of %s: CPUs %s and memory nodes %s, before %v", p.Args[0], cpus, mems, before[i])
			}
		}
		books(t, all...)
	}
	next := mustRun(t, "next", "", 1000, nil)
	cpus, _ := next.sets(t)
	for i, b := range before {
		if i < 2 && cpus.Overlaps(b.cpus) {
			t.Errorf("a new container has CPUs %s, of which %s are another one's", cpus, b.cpus)
		}
	}
}

// books compares what berth-node ps says with the kernel.
func books(t *testing.T, all ...container) {
	t.Helper()
	var rows []struct {
		CPUs  cpuset.Set `json:"cpus"`
		Group string     `json:"group"`
	}
	text, err := exec.Command(berthNode, "ps", "-o", "json", "--interval", "10ms").Output()
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil {
		t.Errorf("berth-node ps: %v\n%s", err, text)
		return
	}
	if len(rows) != len(all) {
		t.Errorf("%d containers in the books, want %d:\n%s", len(rows), len(all), text)
	}
	for _, c := range all {
		cpus, _ := c.sets(t)
		found := false
		for _, r := range rows {
			if filepath.Base(r.Group) == c.id {
				found = true
				if r.CPUs != cpus {
					t.Errorf("the books say CPUs %s, the kernel %s", r.CPUs, cpus)
				}
			}
		}
		if !found {
			t.Errorf("container %s is not in the books", c.id)
		}
	}
}
