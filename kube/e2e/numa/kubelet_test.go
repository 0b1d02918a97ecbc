package numa

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/kube/e2e/nodekit"
)

const (
	nodeName  = "n1"
	manifests = state + "/manifests"
	groupsDir = "/sys/fs/cgroup"

	guaranteedSlice = "/kubepods.slice"

	containerdUnit = "containerd.service"
	kubeletUnit    = "kubelet.service"
	pluginUnit     = "berth-node.service"
)

// onNode has everything kept off exclusive CPUs, and pods of best effort run only when no other wants to.
const onNode = `
apiVersion: berth.dev/v1alpha1
kind: NodeConfig
reserved: "0"
confine: ["*"]
kubernetes: {idle: true}
`

// underSystemd reports whether systemd is process 1.
func underSystemd() bool { _, err := os.Stat("/run/systemd/system"); return err == nil }

// startUnits starts containerd, the plugin and a kubelet without an API server as units of systemd.
func (g *guest) startUnits() error {
	// The disk's file system does not say what kind of file a name is of, which overlayfs wants to know.
	err := errors.Join(os.MkdirAll(state, 0o755), command("mount", "-t", "tmpfs", "tmpfs", state), command("ip", "address", "add", nodekit.Address+"/32", "dev", "lo"))
	if err != nil {
		return err
	}
	if err := g.prepare(nodekit.Systemd, onNode); err != nil {
		return err
	}
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		return err
	}
	g.kubelet, err = nodekit.Kubelet(state, "/bin/kubelet", nodeName, nodekit.Systemd, "staticPodPath: "+manifests+"\nfileCheckFrequency: 1s\nenableServer: false\n")
	if err != nil {
		return err
	}
	// As containerd's own unit: its shims, and with them containers, outlive it.
	if err := startUnit(containerdUnit, g.containerd, "Delegate=yes\nKillMode=process\nTasksMax=infinity\n"); err != nil {
		return err
	}
	if err := g.connect(); err != nil {
		return err
	}
	if err := startUnit(pluginUnit, g.plugin, ""); err != nil {
		return err
	}
	if err := g.connected(1); err != nil {
		return err
	}
	return startUnit(kubeletUnit, g.kubelet, "KillMode=process\n")
}

// startUnit starts a process as a unit.
func startUnit(unit string, p *nodekit.Process, settings string) error {
	text := "[Service]\nExecStart=" + strings.Join(p.Args, " ") + "\nStandardOutput=append:" + p.Log + "\nStandardError=append:" + p.Log + "\n" + settings
	for _, env := range p.Env {
		text += "Environment=" + env + "\n"
	}
	if err := os.WriteFile("/run/systemd/system/"+unit, []byte(text), 0o644); err != nil {
		return err
	}
	return errors.Join(command("systemctl", "daemon-reload"), command("systemctl", "restart", unit))
}

func command(args ...string) error {
	text, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return nil
}

func systemctl(t *testing.T, args ...string) {
	t.Helper()
	if err := command(append([]string{"systemctl"}, args...)...); err != nil {
		t.Fatal(err)
	}
}

// property is what systemd has of a group's unit.
func property(unit, name string) string { return properties(name, unit)[0][name] }

// properties are some that systemd has, with commas between their names, of groups' units.
func properties(names string, groups ...string) (all []map[string]string) {
	args := []string{"show", "--property=" + names}
	for _, group := range groups {
		args = append(args, path.Base(group))
	}
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	blocks := strings.Split(string(out), "\n\n")
	for i := range groups {
		of := map[string]string{}
		if err == nil && i < len(blocks) {
			for line := range strings.Lines(blocks[i]) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
				of[name] = value
			}
		}
		all = append(all, of)
	}
	return all
}

// allowed checks which CPUs systemd allows the kubelet, which is to be kept off exclusive ones.
func allowed(cpus string) error {
	if is := property(kubeletUnit, "AllowedCPUs"); is != cpus {
		return fmt.Errorf("systemd allows the kubelet CPUs %q, want %q", is, cpus)
	}
	return nil
}

// nodesOf are the memory nodes of CPUs.
func nodesOf(cpus cpuset.Set) (nodes cpuset.Set) {
	for cpu := range cpus.All() {
		nodes = nodes.Union(cpuset.MustOf(cpu / 2))
	}
	return nodes
}

// said are lists of CPUs as systemd says them.
func said(cpus cpuset.Set) string { return strings.ReplaceAll(cpus.String(), ",", " ") }

// pod is one that the kubelet reads from a file, with one container.
type pod struct{ name, class, words, resources string }

func (p pod) file() string { return manifests + "/" + p.name + ".yaml" }

// start has the kubelet start it.
func (p pod) start(t *testing.T) (c container) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, annotations: {%s}}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{name: a, image: "%s", imagePullPolicy: IfNotPresent, resources: {%s}}]
`, p.name, p.words, nodekit.Image, p.resources)
	half, began := state+"/"+p.name, time.Now()
	if err := os.WriteFile(half, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(half, p.file()); err != nil { // whole
		t.Fatal(err)
	}
	if err := slowly(func() (err error) { c, err = p.find(t.Context()); return err }); err != nil {
		t.Fatalf("%v\nkubelet:\n%s\ncontainerd:\n%s\nthe plugin:\n%s", err, the.kubelet.Tail(20), the.containerd.Tail(10), the.plugin.Tail(10))
	}
	t.Logf("%s runs after %.1f s, in %s", p.name, time.Since(began).Seconds(), strings.TrimPrefix(c.group, groupsDir))
	return c
}

// find finds its container: a scope in the slice of the pod, in that of its class.
func (p pod) find(ctx context.Context) (c container, err error) {
	answer, err := the.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{"io.kubernetes.pod.name": p.name + "-" + nodeName},
	}})
	if err != nil {
		return c, err
	}
	if n := len(answer.Containers); n != 1 {
		return c, fmt.Errorf("pod %s has %d containers that run", p.name, n)
	}
	c = container{id: answer.Containers[0].Id, pod: answer.Containers[0].PodSandboxId}
	pattern := groupsDir + p.class + "/" + strings.TrimSuffix(path.Base(p.class), ".slice") + "-pod*.slice"
	found, err := filepath.Glob(pattern + "/cri-containerd-" + c.id + ".scope")
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("container %s has groups %q in %s", c.id, found, pattern)
	}
	if err == nil {
		c.group = found[0]
	}
	return c, err
}

// stop has the kubelet end it.
func (p pod) stop(t *testing.T) {
	t.Helper()
	if err := os.Remove(p.file()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// slowly is within for what takes the guest's CPU time itself.
func slowly(try func() error) error {
	return within(func() error {
		err := try()
		if err != nil {
			time.Sleep(time.Second)
		}
		return err
	})
}

// strangers are groups with processes that may run on a container's CPUs, but for its own, and those of
// process 1 and of the plugin.
func strangers(t *testing.T, own container, cpus cpuset.Set) (all []string) {
	t.Helper()
	err := filepath.WalkDir(groupsDir, func(dir string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && (!d.IsDir() || dir == groupsDir):
			return nil
		case err != nil:
			return err
		case dir == own.group, dir == groupsDir+"/init.scope", path.Base(dir) == pluginUnit:
			return fs.SkipDir
		}
		procs, err := os.ReadFile(dir + "/cgroup.procs")
		if err != nil || len(procs) == 0 {
			return nil // it has none, or is gone
		}
		for around := dir; ; around = path.Dir(around) {
			effective, err := os.ReadFile(around + "/cpuset.cpus.effective")
			if err != nil && around != groupsDir {
				continue
			}
			if is, err := cpuset.Parse(strings.TrimSpace(string(effective))); err != nil || is.Overlaps(cpus) {
				all = append(all, fmt.Sprintf("%s: %s %v", dir, is, err))
			}
			return nil
		}
	})
	if err != nil {
		t.Error(err)
	}
	return all
}

// healthy waits until the kubelet answers.
func healthy() error {
	return slowly(func() error {
		answer, err := http.Get("http://127.0.0.1:10248/healthz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("the kubelet is not healthy: %s", answer.Status)
		}
		return nil
	})
}

// reconnects restarts a unit and waits until the plugin has adopted what runs.
func reconnects(t *testing.T, restart func() error) {
	t.Helper()
	times := the.connects()
	if err := restart(); err != nil {
		t.Fatal(err)
	}
	if err := the.connected(times + 1); err != nil {
		t.Fatal(err)
	}
}

// Pods of a kubelet whose control groups systemd makes: the exclusive one has its CPUs and memory alone,
// neither systemd nor the kubelet undoes it, and what an administrator does is put right.
func TestKubeletPods(t *testing.T) {
	if !inside() {
		t.Skip("it runs in the guest")
	}
	shared := pod{"shared", burstableSlice, "", "requests: {cpu: 100m, memory: 16Mi}"}
	batch := pod{"batch", bestEffortSlice, "", ""}
	own := pod{"own", guaranteedSlice, "berth.dev/class: LSE", "limits: {cpu: 2, memory: 32Mi}"}
	t.Cleanup(func() {
		for _, p := range []pod{shared, batch, own} {
			p.stop(t)
		}
		if t.Failed() {
			t.Logf("kubelet:\n%s\ncontainerd:\n%s\nthe plugin:\n%s", the.kubelet.Tail(30), the.containerd.Tail(20), the.plugin.Tail(60))
		}
	})
	is := []container{shared.start(t), batch.start(t)}
	free := []place{is[0].at(t), is[1].at(t)}
	t.Logf("without exclusive CPUs: shared has %v, batch %v", free[0], free[1])
	is = append(is, own.start(t))
	its := is[2].has(t, "2 CPUs, and the memory of their nodes", func(p place) bool { return p.cpus.Len() == 2 && p.mems == nodesOf(p.cpus) })
	for _, c := range is[:2] {
		c.has(t, "none of CPUs "+its.cpus.String(), func(p place) bool { return !p.cpus.IsEmpty() && !p.cpus.Overlaps(its.cpus) })
	}
	before := []place{is[0].at(t), is[1].at(t), is[2].at(t)}
	t.Logf("shared has %v, batch %v, own %v", before[0], before[1], before[2])
	rest := cpuset.MustParse("0-3").Minus(its.cpus)
	idle := path.Dir(is[1].group)
	// stays checks that all is in force, and that systemd knows.
	stays := func(t *testing.T) {
		t.Helper()
		of := properties("AllowedCPUs,CPUWeight", is[0].group, is[1].group, is[2].group, kubeletUnit, idle)
		for i, c := range is {
			if now := c.at(t); now != before[i] {
				t.Errorf("%s is on %v, before on %v", c.group, now, before[i])
			}
			if as := of[i]["AllowedCPUs"]; as != said(before[i].cpus) {
				t.Errorf("systemd allows %s CPUs %q, want %s", c.group, as, before[i].cpus)
			}
			if as, weight := of[i]["CPUWeight"], text(t, c.group+"/cpu.weight"); as != weight {
				t.Errorf("systemd gives %s weight %q, the kernel %q", c.group, as, weight)
			}
		}
		if err := slowly(func() error { // a service that has just started is seen a little later
			if others := strangers(t, is[2], its.cpus); len(others) > 0 {
				return fmt.Errorf("on CPUs %s are, too:\n%s", its.cpus, strings.Join(others, "\n"))
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if as := of[3]["AllowedCPUs"]; as != said(rest) {
			t.Errorf("systemd allows the kubelet CPUs %q, want %s", as, rest)
		}
		if as, now := of[4]["CPUWeight"], text(t, idle+"/cpu.idle"); as != "idle" || now != "1" {
			t.Errorf("a pod of best effort has weight %q of systemd, cpu.idle %q", as, now)
		}
	}
	t.Run("placed", stays)
	t.Run("daemon-reload", func(t *testing.T) {
		systemctl(t, "daemon-reload")
		stays(t)
		time.Sleep(2 * time.Second) // in which systemd might write what it has put off
		stays(t)
	})
	t.Run("set-property", func(t *testing.T) {
		systemctl(t, "set-property", "--runtime", path.Base(is[2].group), "CPUWeight=300", "MemoryLow=1M")
		systemctl(t, "set-property", "--runtime", "kubepods.slice", "TasksMax=5000")
		systemctl(t, "set-property", "--runtime", kubeletUnit, "CPUWeight=200")
		stays(t)
	})
	t.Run("set-property AllowedCPUs", func(t *testing.T) {
		drifts := func() int { return strings.Count(the.plugin.Output(), "msg=drifted") }
		found := drifts()
		systemctl(t, "set-property", "--runtime", path.Base(is[0].group), "AllowedCPUs=0-3")
		systemctl(t, "set-property", "--runtime", kubeletUnit, "AllowedCPUs=0-3")
		if err := slowly(func() error { return allowed(said(rest)) }); err != nil {
			t.Error(err)
		}
		is[0].has(t, "what it had", func(p place) bool { return p == before[0] })
		if drifts() == found {
			t.Error("the plugin has not told of other CPUs of a container")
		}
		stays(t)
	})
	t.Run("resize", func(t *testing.T) {
		weight := text(t, is[0].group+"/cpu.weight")
		if _, err := the.runtime.UpdateContainerResources(t.Context(), &cri.UpdateContainerResourcesRequest{
			ContainerId: is[0].id, Linux: &cri.LinuxContainerResources{CpuShares: 512},
		}); err != nil {
			t.Error(err)
		}
		if now := text(t, is[0].group+"/cpu.weight"); now == weight {
			t.Errorf("the weight is still %s", now)
		}
		stays(t)
		systemctl(t, "daemon-reload")
		stays(t)
	})
	t.Run("kubelet", func(t *testing.T) {
		// Of its class of best effort, which the guard may have made idle, it writes the weight.
		file := strings.TrimPrefix(groupsDir, "/") + bestEffortSlice + "/cpu.idle"
		root, err := systemd.Open("/")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kernel.Apply(root, kernel.Plan{{Path: file, Value: "1"}}, nil); err != nil {
			t.Fatal(err)
		}
		systemctl(t, "restart", kubeletUnit)
		if err := errors.Join(healthy(), within(func() error {
			if is := text(t, "/"+file); is != "0" {
				return fmt.Errorf("the class of best effort has cpu.idle %s still", is)
			}
			return nil
		})); err != nil {
			t.Errorf("%v\nkubelet:\n%s", err, the.kubelet.Tail(30))
		}
		if is := property(kubeletUnit, "ActiveState"); is != "active" || strings.Contains(the.kubelet.Output(), "cpu.weight") {
			t.Errorf("the kubelet is %s:\n%s", is, the.kubelet.Tail(30))
		}
		stays(t)
	})
	t.Run("restart of containerd", func(t *testing.T) {
		reconnects(t, func() error { return command("systemctl", "restart", containerdUnit) })
		stays(t)
	})
	t.Run("restart of the plugin", func(t *testing.T) {
		reconnects(t, func() error { return command("systemctl", "restart", pluginUnit) })
		stays(t)
	})
	t.Run("host in a folder", func(t *testing.T) { // as a pod of the DaemonSet sees it
		if err := errors.Join(os.MkdirAll("/host", 0o755), command("mount", "--rbind", "/", "/host")); err != nil {
			t.Fatal(err)
		}
		root, err := systemd.Open("/host")
		if err != nil {
			t.Fatal(err)
		}
		file := strings.TrimPrefix(groupsDir, "/") + "/system.slice/" + kubeletUnit + "/cpu.weight"
		undo, err := kernel.Apply(root, kernel.Plan{{Path: file, Value: "150"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if as := property(kubeletUnit, "CPUWeight"); as != "150" {
			t.Errorf("systemd gives the kubelet weight %q", as)
		}
		if err := undo(); err != nil {
			t.Error(err)
		}
	})
	t.Run("told", func(t *testing.T) {
		books(t, is...)
		out, err := exec.Command(berthNode, "explain", "default/own-"+nodeName+"/a").CombinedOutput()
		t.Logf("berth-node explain:\n%s", out)
		for _, want := range []string{its.cpus.String(), path.Base(is[2].group), "annotation berth.dev/class"} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("explain has no %q (%v)", want, err)
			}
		}
		if strings.Contains(string(out), "none are confined") {
			t.Error("explain says that none are confined")
		}
		out, err = exec.Command(berthNode, "ps").CombinedOutput()
		t.Logf("berth-node ps (%v):\n%s", err, out)
	})
	t.Run("end of the pod", func(t *testing.T) {
		own.stop(t)
		for i, c := range is[:2] {
			c.has(t, fmt.Sprintf("what it had before: %v", free[i]), func(p place) bool { return p == free[i] })
		}
		if err := slowly(func() error { return allowed("") }); err != nil {
			t.Error(err)
		}
		books(t, is[:2]...)
	})
	t.Run("restore", func(t *testing.T) {
		systemctl(t, "stop", pluginUnit)
		if err := command(berthNode, "restore", "--all"); err != nil {
			t.Error(err)
		}
		for _, when := range []string{"restored", "restored, after a reload"} {
			if as, now := property(idle, "CPUWeight"), text(t, idle+"/cpu.idle"); as != "1" || now != "0" {
				t.Errorf("%s: a pod of best effort has weight %q of systemd, cpu.idle %q", when, as, now)
			}
			systemctl(t, "daemon-reload")
		}
	})
}
