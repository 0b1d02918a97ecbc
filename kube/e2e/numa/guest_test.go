package numa

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/kube/e2e/nodekit"
)

const (
	berthNode = "/bin/berth-node"
	state     = "/var/lib/e2e"
	classFile = state + "/node.yaml"
	logs      = "/var/log"
)

// classes are those that containers may have here: of best effort, and by name.
const classes = `
apiVersion: berth.dev/v1alpha1
kind: NodeConfig
classes:
  io:
    classes: {slow: [{devices: [vda], readBPS: 1M}, {priority: best-effort/7}]}
    service: {BE: slow}
kubernetes:
  words:
    - {namespaces: [default], words: ["*", "berth.dev/io=slow", "berth.dev/power=performance"]}
`

// guest is what runs in it, the kubelet in one of both. It is set by TestMain before any test.
type guest struct {
	containerd, plugin, kubelet *nodekit.Process

	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
}

var the guest

func TestMain(m *testing.M) {
	if inside() {
		start := the.start
		if underSystemd() {
			start = the.startUnits
		}
		if err := start(); err != nil {
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
	if err := g.prepare(nodekit.Cgroupfs, classes); err != nil {
		return err
	}
	if err := g.containerd.Start(); err != nil {
		return err
	}
	if err := g.connect(); err != nil {
		return err
	}
	if err := g.plugin.Start(); err != nil {
		return err
	}
	return g.connected(1)
}

// prepare makes the files of containerd and of the plugin, with its configuration, and serves the image.
func (g *guest) prepare(driver nodekit.Driver, configuration string) (err error) {
	for _, dir := range []string{state, "/etc", logs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"hosts", "resolv.conf", "hostname"} { // which sandboxes get
		if err := os.WriteFile("/etc/"+name, nil, 0o644); err != nil {
			return err
		}
	}
	if _, err := nodekit.Serve("/bin/work"); err != nil {
		return err
	}
	if g.containerd, err = nodekit.Containerd(state, func(name string) string { return "/bin/" + name }, "", driver); err != nil {
		return err
	}
	g.plugin = &nodekit.Process{Args: []string{berthNode, "nri", "--config", classFile, "--budget", nodekit.Budget.String(), "--nri-socket", nodekit.NRI}, Log: state + "/plugin.log"}
	return os.WriteFile(classFile, []byte(configuration), 0o600)
}

// connect waits for containerd, and has it pull the image.
func (g *guest) connect() error {
	if err := nodekit.Listens("unix", nodekit.CRI, 5*time.Minute); err != nil {
		return fmt.Errorf("%w\n%s", err, g.containerd.Tail(20))
	}
	conn, err := grpc.NewClient("unix://"+nodekit.CRI, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	g.runtime, g.images = cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn)
	if _, err = g.images.PullImage(context.Background(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: nodekit.Image}}); err != nil {
		err = fmt.Errorf("%w\n%s", err, g.containerd.Tail(20))
	}
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

// connects is how often the plugin has adopted what runs.
func (g *guest) connects() int { return strings.Count(g.plugin.Output(), "msg=connected") }

// connected waits until the plugin has adopted what runs so many times.
func (g *guest) connected(times int) error {
	return within(func() error {
		if g.connects() < times {
			return fmt.Errorf("the plugin does not connect:\n%s\n%s", g.plugin.Tail(20), g.containerd.Tail(5))
		}
		return nil
	})
}

// again ends a process by a signal, starts it, and waits until the plugin has adopted what runs.
func (g *guest) again(t *testing.T, p *nodekit.Process, sig syscall.Signal) {
	t.Helper()
	times := g.connects()
	if err := p.Again(sig); err != nil {
		t.Fatal(err)
	}
	if err := g.connected(times + 1); err != nil {
		t.Fatal(err)
	}
}

// within tries until there is no error, for as long as anything may take on a busy host.
func within(try func() error) error {
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if err := try(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// container is a container that runs, in a pod of its own.
type container struct{ pod, id, group, log string }

// The groups of classes of pods: of the kubelet's driver cgroupfs, and by the names of its driver
// systemd.
const (
	guaranteed      = "/kubepods"
	burstable       = "/kubepods/burstable"
	burstableSlice  = "/kubepods.slice/kubepods-burstable.slice"
	bestEffortSlice = "/kubepods.slice/kubepods-besteffort.slice"
)

// podGroup is the group that a kubelet would make for a pod in that of its class. But for the dot,
// containerd would leave a slice to systemd, which is not here.
func podGroup(class, uid string) string {
	if slice, ok := strings.CutSuffix(path.Base(class), ".slice"); ok {
		return class + "/" + slice + "-pod" + uid + ".slice/."
	}
	return class + "/pod" + uid
}

// run makes a pod of one container as the kubelet does, in the group of its class.
func run(t *testing.T, name, class string, milli int64, words map[string]string, args ...string) (container, error) {
	t.Helper()
	began, sum := time.Now(), sha256.Sum256([]byte(name))
	uid := hex.EncodeToString(sum[:16])
	parent := podGroup(class, uid)
	config := &cri.PodSandboxConfig{
		Metadata:    &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: uid},
		Annotations: words, LogDirectory: logs,
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: parent, SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE},
		}},
	}
	made, err := the.runtime.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return container{}, err
	}
	c := container{pod: made.PodSandboxId, log: filepath.Join(logs, name+".log")}
	t.Cleanup(func() { c.remove(t) })
	linux := &cri.LinuxContainerResources{CpuShares: max(2, milli*1024/1000), MemoryLimitInBytes: 64 << 20}
	if class == guaranteed {
		linux.CpuPeriod, linux.CpuQuota = 100_000, milli*100
	}
	got, err := the.runtime.CreateContainer(t.Context(), &cri.CreateContainerRequest{
		PodSandboxId: c.pod, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "a"}, Image: &cri.ImageSpec{Image: nodekit.Image},
			Args: args, LogPath: filepath.Base(c.log), Linux: &cri.LinuxContainerConfig{Resources: linux},
		},
	})
	if err != nil {
		return c, err
	}
	c.id = got.ContainerId
	c.group = filepath.Join("/sys/fs/cgroup", parent, c.id)
	_, err = the.runtime.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: c.id})
	t.Logf("%s runs after %.1f s", name, time.Since(began).Seconds())
	return c, err
}

func mustRun(t *testing.T, name, class string, milli int64, words map[string]string, args ...string) container {
	t.Helper()
	c, err := run(t, name, class, milli, words, args...)
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

// place is where a container may run.
type place struct{ cpus, mems cpuset.Set }

func (p place) String() string { return fmt.Sprintf("CPUs %s, memory nodes %s", p.cpus, p.mems) }

// place is what the kernel has for a container, which has to be in effect.
func (c container) place() (is place, err error) {
	read := func(name string) (s cpuset.Set) {
		text, failed := os.ReadFile(filepath.Join(c.group, name))
		if failed == nil {
			s, failed = cpuset.Parse(strings.TrimSpace(string(text)))
		}
		err = errors.Join(err, failed)
		return s
	}
	is = place{read("cpuset.cpus.effective"), read("cpuset.mems.effective")}
	if cpus := read("cpuset.cpus"); err == nil && cpus != is.cpus {
		err = fmt.Errorf("CPUs %s, in effect %s", cpus, is.cpus)
	}
	if mems := read("cpuset.mems"); err == nil && !mems.IsEmpty() && mems != is.mems {
		err = fmt.Errorf("memory nodes %s, in effect %s", mems, is.mems)
	}
	return is, err
}

// at is where it is now.
func (c container) at(t *testing.T) place {
	t.Helper()
	is, err := c.place()
	if err != nil {
		t.Error(err)
	}
	return is
}

// has waits until a container is where it is to be.
func (c container) has(t *testing.T, want string, ok func(place) bool) (is place) {
	t.Helper()
	err := within(func() (err error) {
		if is, err = c.place(); err == nil && !ok(is) {
			err = fmt.Errorf("CPUs %s and memory nodes %s, want %s", is.cpus, is.mems, want)
		}
		return err
	})
	if err != nil {
		t.Errorf("%v\nthe plugin:\n%s", err, the.plugin.Tail(10))
	}
	return is
}

// owns waits until a container has so many CPUs.
func (c container) owns(t *testing.T, count int) place {
	t.Helper()
	return c.has(t, fmt.Sprintf("%d CPUs", count), func(is place) bool { return is.cpus.Len() == count })
}

// text is what a file says.
func text(t *testing.T, file string) string {
	t.Helper()
	all, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(all))
}

// slow are the limits of the I/O class slow.
const slow = " rbps=1000000 wbps=max riops=max wiops=max"

// printed is the first line that the program of a container wrote.
func (c container) printed(t *testing.T) (line string) {
	t.Helper()
	err := within(func() (err error) {
		all, err := os.ReadFile(c.log)
		ok := false
		if line, _, ok = strings.Cut(string(all), "\n"); err == nil && !ok {
			err = fmt.Errorf("%s has no line yet", c.log)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return line
}

// priority is the I/O priority of a container's program, of ioprio_get(2).
func (c container) priority(t *testing.T) uintptr {
	t.Helper()
	pid, err := strconv.Atoi(text(t, c.group+"/cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	const whoProcess = 1
	is, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, whoProcess, uintptr(pid), 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	return is
}

// scraped waits until the plugin's metrics have some lines.
func scraped(t *testing.T, lines ...string) {
	t.Helper()
	if err := within(func() error {
		answer, err := http.Get("http://127.0.0.1:9750/metrics")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		all, err := io.ReadAll(answer.Body)
		for _, line := range lines {
			if !strings.Contains(string(all), line+"\n") {
				err = errors.Join(err, fmt.Errorf("no metric says %s", line))
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// governor is how the kernel chooses the clock of a CPU.
func governor(t *testing.T, cpu int) string {
	t.Helper()
	return text(t, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", cpu))
}

// Exclusive CPUs come from one node, are taken from a container that runs, and go back, and with
// them how fast they run; an I/O class holds when the program begins.
func TestExclusiveFromOneNode(t *testing.T) {
	if !inside() {
		t.Skip("it runs in the guest")
	}
	shared := mustRun(t, "shared", burstable, 100, map[string]string{"berth.dev/io": "slow"}, "/sys/fs/cgroup/io.max")
	if line := shared.printed(t); !strings.Contains(line, slow) {
		t.Errorf("when its program began it had %q, want%s", line, slow)
	}
	const bestEffort7 = 2<<13 | 7
	if is := shared.priority(t); is != bestEffort7 {
		t.Errorf("its I/O priority is %#x, want %#x", is, bestEffort7)
	}
	had := shared.has(t, "the CPUs of one node", func(is place) bool {
		first, ok := is.cpus.First()
		return ok && is.cpus == nodeOf(first)
	})
	t.Logf("shared: CPUs %s, memory nodes %s", had.cpus, had.mems)
	first, _ := had.cpus.First()
	clock := governor(t, first)
	bound := mustRun(t, "bound", guaranteed, 1000, map[string]string{
		"berth.dev/numa": strconv.Itoa(first / 2), "berth.dev/nodesRequired": "true", "berth.dev/power": "performance",
	})
	taken := bound.has(t, fmt.Sprintf("a CPU of node %d", first/2), func(is place) bool { return is.cpus.Len() == 1 && nodeOf(first).Contains(is.cpus) })
	its, _ := taken.cpus.First()
	t.Logf("bound to node %d: CPUs %s, memory nodes %s, governor %s", first/2, taken.cpus, taken.mems, governor(t, its))
	if is := governor(t, its); is != "performance" || clock == is {
		t.Errorf("CPU %d has governor %s, and before had %s", its, is, clock)
	}
	if is := text(t, bound.group+"/io.max"); is != "" || bound.priority(t) == bestEffort7 {
		t.Errorf("without a class it has %q and I/O priority %#x", is, bound.priority(t))
	}
	scraped(t, `berth_class_workloads{kind="io",name="slow"} 1`, `berth_power_profile_cpus{name="performance"} 1`)
	own := mustRun(t, "own", guaranteed, 2000, nil)
	two := own.has(t, "the CPUs of one node, and its memory", func(is place) bool {
		first, ok := is.cpus.First()
		return ok && is.cpus == nodeOf(first) && is.mems == cpuset.MustOf(first/2)
	})
	t.Logf("own: CPUs %s, memory nodes %s", two.cpus, two.mems)
	exclusive := taken.cpus.Union(two.cpus)
	shared.has(t, "none of CPUs "+exclusive.String(), func(is place) bool { return !is.cpus.IsEmpty() && !is.cpus.Overlaps(exclusive) })
	books(t, own, bound, shared)
	bound.remove(t)
	shared.has(t, "what it had before another one owned CPU "+taken.cpus.String(), func(is place) bool { return is == had })
	if is := governor(t, its); is != clock {
		t.Errorf("CPU %d is left with governor %s, before it had %s", its, is, clock)
	}
}

// A best-effort pod takes the CPU time of another one, in groups by the names of the kubelet's
// driver systemd: the guard has the class as a whole, where the paths of both part, run only when
// nobody else wants to, no group in it, and gives it back when it ends.
func TestGuard(t *testing.T) {
	if !inside() {
		t.Skip("it runs in the guest")
	}
	on := map[string]string{"berth.dev/numa": "1", "berth.dev/nodesRequired": "true"}
	victim := mustRun(t, "victim", burstableSlice, 100, on, "2", "0.6")
	hog := mustRun(t, "hog", bestEffortSlice, 0, on, "4", "1")
	for _, c := range []container{victim, hog} {
		c.has(t, "the CPUs of node 1", func(is place) bool { return is.cpus == nodeOf(2) })
	}
	if is := text(t, hog.group+"/io.max"); !strings.HasSuffix(is, slow) {
		t.Errorf("by its class of service it has io.max %q, want%s", is, slow)
	}
	class := "/sys/fs/cgroup" + bestEffortSlice
	others := []string{victim.group, path.Dir(victim.group), "/sys/fs/cgroup" + burstableSlice, hog.group, path.Dir(hog.group)}
	settings := func() (all []string) {
		for _, group := range append([]string{class}, others...) {
			for _, name := range []string{"cpu.idle", "cpu.weight", "cpu.max", "cpuset.cpus"} {
				all = append(all, group+"/"+name+": "+text(t, group+"/"+name))
			}
		}
		return all
	}
	before, args := settings(), the.plugin.Args
	the.plugin.Args = append(slices.Clone(args), "--guard", "enforce")
	end := sync.OnceFunc(func() {
		the.plugin.Args = args
		the.again(t, the.plugin, syscall.SIGTERM)
	})
	t.Cleanup(end)
	the.again(t, the.plugin, syscall.SIGTERM)
	if err := within(func() error {
		if text(t, class+"/cpu.idle") != "1" {
			return fmt.Errorf("the class of best effort is not idle; the plugin:\n%s", the.plugin.Tail(20))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, group := range others {
		if text(t, group+"/cpu.idle") != "0" {
			t.Errorf("%s is idle", group)
		}
	}
	t.Logf("the plugin:\n%s", the.plugin.Tail(10))
	end()
	if after := settings(); !slices.Equal(after, before) {
		t.Errorf("after the guard:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// nodeOf are the CPUs of a memory node: 2n and 2n+1.
func nodeOf(cpu int) cpuset.Set { return cpuset.MustOf(cpu&^1, cpu|1) }

// What cannot be had is refused with the reason, and moves nobody.
func TestRefused(t *testing.T) {
	if !inside() {
		t.Skip("it runs in the guest")
	}
	own := mustRun(t, "own", guaranteed, 4000, nil)
	before := own.owns(t, 4)
	_, err := run(t, "much", guaranteed, 4000, map[string]string{"berth.dev/cpus": "4"})
	if err == nil || !strings.Contains(err.Error(), "not placed: ") {
		t.Errorf("4 of 8 CPUs, where 4 are owned: %v", err)
	}
	t.Log(err)
	if is := own.at(t); is != before {
		t.Errorf("a refused pod moved another one from %v to %v", before, is)
	}
}

// The plugin and containerd are killed: nothing moves, and the books are what the kernel has.
func TestKilled(t *testing.T) {
	if !inside() {
		t.Skip("it runs in the guest")
	}
	all := []container{mustRun(t, "one", guaranteed, 2000, nil), mustRun(t, "two", guaranteed, 1000, nil), mustRun(t, "shared", burstable, 100, nil)}
	before := []place{all[0].owns(t, 2), all[1].owns(t, 1)}
	owned := before[0].cpus.Union(before[1].cpus)
	free := func(is place) bool { return !is.cpus.IsEmpty() && !is.cpus.Overlaps(owned) }
	before = append(before, all[2].has(t, "none of CPUs "+owned.String(), free))
	for _, p := range []*nodekit.Process{the.plugin, the.containerd} {
		the.again(t, p, syscall.SIGKILL)
		time.Sleep(2 * time.Second) // in which something might move
		for i, c := range all {
			if is := c.at(t); is != before[i] {
				t.Errorf("after a kill of %s: %v, before %v", p.Args[0], is, before[i])
			}
		}
		books(t, all...)
	}
	mustRun(t, "next", guaranteed, 1000, nil).has(t, "a CPU of its own", func(is place) bool { return is.cpus.Len() == 1 && free(is) })
}

// kept waits for a second in which a limit is used, and checks that it has been kept all the time.
func kept(t *testing.T, what string, p *nodekit.Peer, limit float64) {
	t.Helper()
	uses(t, what, p, 0.6*limit, 1.4*limit)
	rate, err := p.Kept(limit)
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	t.Logf("%s: %.2f Mbit/s in all", what, rate/1e6)
}

// uses waits for a second in which between so many bits per second pass.
func uses(t *testing.T, what string, p *nodekit.Peer, low, high float64) {
	t.Helper()
	if err := within(func() error {
		is, err := p.Rate(time.Second)
		if err == nil && (is < low || is > high) {
			err = fmt.Errorf("%.2f Mbit/s pass, want %.2f to %.2f", is/1e6, low/1e6, high/1e6)
		}
		return err
	}); err != nil {
		t.Errorf("%s: %v\nthe plugin:\n%s", what, err, the.plugin.Tail(10))
	}
}

// cable is one to another network, in which somebody answers.
func cable(t *testing.T) *nodekit.Cable {
	t.Helper()
	other, err := netlink.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	w := nodekit.NewCable()
	if err := errors.Join(w.Lay(other), w.Answer(w.FarIP, other)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// ofNetworks is what a file says of what Berth sets of networks, read without the plugin.
func ofNetworks(t *testing.T, file string) string {
	t.Helper()
	top, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	is, err := fs.ReadFile(traffic.Over(top).FS(), strings.TrimPrefix(file, "/"))
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(is))
}

// What pods say of what they send and receive is at their groups, holds from their first byte on and
// while plugin and containerd are killed, and goes with their last container.
func TestBandwidth(t *testing.T) {
	if !inside() {
		t.Skip("it runs in the guest")
	}
	w := cable(t)
	const limit = 4e6
	sends := mustRun(t, "sends", burstable, 100, map[string]string{"koordinator.sh/networkQOS": `{"EgressLimit": "4M"}`}, nodekit.Talk(true, w.FarIP)...)
	receives := mustRun(t, "receives", burstable, 100, map[string]string{"kubernetes.io/ingress-bandwidth": "4M"}, nodekit.Talk(false, w.FarIP)...)
	has := func(when string, c container, want string) {
		t.Helper()
		file := traffic.LimitFile(path.Dir(c.group))
		if is := ofNetworks(t, file); is != want {
			t.Errorf("%s %s is %q, want %q", when, file, is, want)
		}
	}
	holds := func(when string) {
		t.Helper()
		has(when, sends, "send 500000")
		has(when, receives, "receive 500000")
		kept(t, when+", sent", w.Sent, limit)
		kept(t, when+", received", w.Received, limit)
	}
	holds("at first")
	for _, p := range []*nodekit.Process{the.plugin, the.containerd} {
		the.again(t, p, syscall.SIGKILL)
		holds("after a kill of " + p.Args[0])
	}
	for _, c := range []container{sends, receives} {
		c.remove(t)
		has("when its container is gone,", c, "none")
	}
	mustRun(t, "free", burstable, 100, nil, nodekit.Talk(true, w.FarIP)...)
	uses(t, "without words", w.Sent, 2*limit, math.Inf(1))
}

// A network class that a pod names holds it to the ceiling of a device, also after the plugin was killed. With the
// pod the device has no classes any more.
func TestNetClass(t *testing.T) {
	if !inside() {
		t.Skip("it runs in the guest")
	}
	w := cable(t)
	device := "sys/net/" + w.Near + "/root"
	before, args, file := ofNetworks(t, device), the.plugin.Args, state+"/network.yaml"
	if err := os.WriteFile(file, fmt.Appendf(nil, `apiVersion: berth.dev/v1alpha1
kind: NodeConfig
classes:
  net: {devices: {%s: {rate: 100Mbit}}, classes: {bulk: {ceiling: 4Mbit, priority: 8}}}
kubernetes:
  words: [{namespaces: [default], words: ["*", "berth.dev/net=bulk"]}]
`, w.Near), 0o600); err != nil {
		t.Fatal(err)
	}
	the.plugin.Args = slices.Clone(args)
	the.plugin.Args[slices.Index(args, classFile)] = file
	t.Cleanup(func() {
		the.plugin.Args = args
		the.again(t, the.plugin, syscall.SIGTERM)
	})
	the.again(t, the.plugin, syscall.SIGTERM)
	bulk := mustRun(t, "bulk", burstable, 100, map[string]string{"berth.dev/net": "bulk"}, nodekit.Talk(true, w.FarIP)...)
	holds := func(when string) {
		t.Helper()
		if is := ofNetworks(t, device); is != "htb 6be7:" {
			t.Errorf("%s %s has %q", when, w.Near, is)
		}
		if is := ofNetworks(t, traffic.MarkFile(bulk.group)); !strings.HasPrefix(is, "6be7:") {
			t.Errorf("%s its packets have the class %q", when, is)
		}
		kept(t, when, w.Sent, 4e6)
	}
	holds("at first")
	the.again(t, the.plugin, syscall.SIGKILL)
	holds("after a kill of the plugin")
	bulk.remove(t)
	if err := within(func() error {
		if is := ofNetworks(t, device); is != before {
			return fmt.Errorf("%s is left with %q, before it had %q", w.Near, is, before)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// books waits until berth-node ps says what the kernel has.
func books(t *testing.T, all ...container) {
	t.Helper()
	if err := within(func() error { return compare(all) }); err != nil {
		t.Error(err)
	}
}

func compare(all []container) error {
	type row struct {
		CPUs  cpuset.Set `json:"cpus"`
		Group string     `json:"group"`
		Usage struct {
			Tasks int `json:"tasks"`
		} `json:"usage"`
	}
	var rows []row
	text, err := exec.Command(berthNode, "ps", "-o", "json", "--interval", "10ms").Output()
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil {
		return fmt.Errorf("berth-node ps: %w\n%s", err, text)
	}
	if len(rows) != len(all) {
		return fmt.Errorf("%d containers in the books, want %d:\n%s", len(rows), len(all), text)
	}
	for _, c := range all {
		is, err := c.place()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(rows, func(r row) bool { return strings.Contains(path.Base(r.Group), c.id) })
		if i < 0 || rows[i].CPUs != is.cpus {
			return fmt.Errorf("container %s has CPUs %s, the books say:\n%s", c.id, is.cpus, text)
		}
		const most = 20 // threads of its one program; the guest has some hundred
		if tasks := rows[i].Usage.Tasks; tasks < 1 || tasks > most {
			return fmt.Errorf("container %s is said to have %d tasks", c.id, tasks)
		}
	}
	return nil
}
