package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/kube/e2e/nodekit"
)

// talkers are containers that send to, and receive from, who answers at an address: two send.
func talkers(at netip.Prefix) (all []v1.Container) {
	for _, name := range []string{"out", "more", "in"} {
		c := burstable(name, 50)
		c.Args = nodekit.Talk(name != "in", at)
		all = append(all, c)
	}
	return all
}

// lay makes a cable to another network, and has somebody answer at an address of one of both.
func lay(t *testing.T, w *nodekit.Cable, other *os.File, at netip.Prefix) {
	t.Helper()
	network := other
	if at == w.NearIP {
		network = nil
	}
	err := w.Lay(other)
	if errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	if err == nil {
		err = w.Answer(at, network)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
}

// passes waits for a second in which between so many bits per second pass.
func passes(t *testing.T, what string, p *nodekit.Peer, low, high float64) {
	t.Helper()
	var last float64
	if err := within(func() (err error) {
		if last, err = p.Rate(time.Second); err == nil && (last < low || last > high) {
			err = fmt.Errorf("%.1f Mbit/s pass, want %.1f to %.1f", last/1e6, low/1e6, high/1e6)
		}
		return err
	}); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	t.Logf("%s: %.1f Mbit/s in a second", what, last/1e6)
}

// kept waits for a second in which a limit is used, and checks that it has been kept all the time.
func kept(t *testing.T, what string, p *nodekit.Peer, limit float64) {
	t.Helper()
	passes(t, what, p, 0.6*limit, 1.4*limit)
	rate, err := p.Kept(limit)
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	t.Logf("%s: %.1f Mbit/s in all", what, rate/1e6)
}

// networkOf is that of a container.
func (c *cluster) networkOf(t *testing.T, pod, container string) *os.File {
	t.Helper()
	group, err := c.group(pod, container)
	if err != nil {
		t.Fatal(err)
	}
	is, err := os.Open("/proc/" + readText(t, group+"/cgroup.procs") + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { is.Close() })
	return is
}

// outside is a cable from the node to another network, in which somebody answers.
func outside(t *testing.T) *nodekit.Cable {
	t.Helper()
	other, err := netlink.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	w := nodekit.NewCable()
	lay(t, w, other, w.FarIP)
	return w
}

// talk runs a pod with talkers, in the node's network or in one of its own, and returns the cable
// that they talk through.
func (c *cluster) talk(t *testing.T, name string, hosts bool, words map[string]string) (w *nodekit.Cable) {
	t.Helper()
	if hosts {
		w = outside(t)
		p := pod(name, talkers(w.FarIP)...)
		p.Spec.HostNetwork, p.Annotations = true, words
		c.run(t, p)
		return w
	}
	w = nodekit.NewCable()
	p := pod(name, talkers(w.NearIP)...)
	p.Annotations = words
	c.run(t, p)
	lay(t, w, c.networkOf(t, name, "in"), w.NearIP)
	return w
}

// networkFiles are the kernel's files with what Berth sets of networks, read without the plugin.
func networkFiles(t *testing.T) fs.FS {
	t.Helper()
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	files := traffic.Over(root).FS()
	if err := agent.LacksBandwidth(files); err != nil {
		t.Skip(err)
	}
	return files
}

// fileSays is what a file says, "" if it is not there.
func fileSays(t *testing.T, files fs.FS, name string) string {
	t.Helper()
	text, err := fs.ReadFile(files, strings.TrimPrefix(name, "/"))
	if kernel.IgnoreAbsent(err) != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(text))
}

// explains is what the program says of a container.
func explains(t *testing.T, id string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(builtEnv), "berth-node"), "explain", id).CombinedOutput()
	if err != nil {
		t.Errorf("explain %s: %v\n%s", id, err, out)
	}
	return string(out)
}

// interruptions are ends of what sets limits, and of what runs the containers.
func (c *cluster) interruptions() []func() error {
	var all []func() error
	for _, p := range []struct {
		named
		sig syscall.Signal
	}{{named{"the plugin", c.plugin}, syscall.SIGTERM}, {named{"the plugin", c.plugin}, syscall.SIGKILL}, {named{"containerd", c.containerd}, syscall.SIGKILL}} {
		all = append(all, func() error { return c.again(p.named, p.sig) })
	}
	return all
}

// What a pod says of what it sends and receives, by the words of Kubernetes in the node's network and
// by Koordinator's in one of its own, holds its containers together, from their first byte on, while
// the plugin and the runtime end and come back, and goes with the pod.
func TestBandwidth(t *testing.T) {
	c, files := theNode(t), networkFiles(t)
	c.with(t, server()...)
	const rate = 20e6
	for name, words := range map[string]map[string]string{
		"Kubernetes":  {"kubernetes.io/egress-bandwidth": "20M", "kubernetes.io/ingress-bandwidth": "20M"},
		"Koordinator": {"koordinator.sh/networkQOS": `{"EgressLimit": "20M", "IngressLimit": "20M"}`},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := name == "Kubernetes"
			w := c.talk(t, "limited", hosts, words)
			own, err := c.group("limited", "out")
			if err != nil {
				t.Fatal(err)
			}
			group := filepath.Dir(in("unified", own))
			holds := func(when string) {
				t.Helper()
				if is, want := fileSays(t, files, traffic.LimitFile(group)), "send 2500000 receive 2500000"; is != want {
					t.Errorf("%s %s has the limit %q, want %q", when, group, is, want)
				}
				kept(t, when+", sent", w.Sent, rate)
				kept(t, when+", received", w.Received, rate)
			}
			holds("at first")
			if text, want := explains(t, "default/limited/out"), "its pod sends at most 20Mbit, receives at most 20Mbit"; !strings.Contains(text, want) {
				t.Errorf("explain does not say %q:\n%s", want, text)
			}
			for i, interrupt := range c.interruptions() {
				if err := interrupt(); err != nil {
					t.Fatal(err)
				}
				holds(fmt.Sprintf("after interruption %d", i+1))
			}
			c.remove(t, "limited")
			if err := within(func() error {
				_, err := os.Stat(group)
				if err == nil {
					return fmt.Errorf("the group %s is left", group)
				}
				return kernel.IgnoreAbsent(err)
			}); err != nil {
				t.Error(err)
			}
			free := c.talk(t, "free", hosts, nil)
			passes(t, "without words, sent", free.Sent, 4*rate, math.Inf(1))
			passes(t, "without words, received", free.Received, 4*rate, math.Inf(1))
		})
	}
}

// A network class that a pod names holds its containers together to the ceiling of a device, while the
// plugin and the runtime end and come back. With the pod the device has no classes any more.
func TestNetClass(t *testing.T) {
	c, files := theNode(t), networkFiles(t)
	w := outside(t)
	device := "sys/net/" + w.Near + "/root"
	before := fileSays(t, files, device)
	config := filepath.Join(state, "network.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: berth.dev/v1alpha1
kind: NodeConfig
classes:
  net: {devices: {%s: {rate: 200Mbit}}, classes: {bulk: {ceiling: 20Mbit, priority: 8}}}
kubernetes:
  words: [{namespaces: [%s], words: ["*", "berth.dev/net=bulk"]}]
`, w.Near, namespace), 0o600); err != nil {
		t.Fatal(err)
	}
	c.with(t, append(server(), "--config", config)...)
	p := pod("bulk", talkers(w.FarIP)[:2]...) // both send
	p.Spec.HostNetwork = true
	p.Annotations["berth.dev/net"] = "bulk"
	c.run(t, p)
	const rate = 20e6
	mark := ""
	holds := func(when string) {
		t.Helper()
		if is := fileSays(t, files, device); is != "htb 6be7:" {
			t.Errorf("%s %s has %q", when, w.Near, is)
		}
		for _, container := range []string{"out", "more"} {
			group, err := c.group("bulk", container)
			if err != nil {
				t.Fatal(err)
			}
			is := fileSays(t, files, traffic.MarkFile(in("unified", group)))
			if mark == "" {
				mark = is
			}
			if !strings.HasPrefix(is, "6be7:") || is != mark {
				t.Errorf("%s the packets of %s have the class %q, before %q", when, container, is, mark)
			}
		}
		kept(t, when, w.Sent, rate)
	}
	holds("at first")
	text := explains(t, "default/bulk/out")
	for _, want := range []string{"net class", "bulk", "through " + w.Near, "20Mbit"} {
		if !strings.Contains(text, want) {
			t.Errorf("explain does not say %q:\n%s", want, text)
		}
	}
	for i, interrupt := range c.interruptions() {
		if err := interrupt(); err != nil {
			t.Fatal(err)
		}
		holds(fmt.Sprintf("after interruption %d", i+1))
	}
	c.remove(t, "bulk")
	if err := within(func() error {
		if is := fileSays(t, files, device); is != before {
			return fmt.Errorf("%s is left with %q, before it had %q", w.Near, is, before)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// Where the node has no resctrl, a pod that names a cache class is told why in an event and goes
// without, one whose class of service has one starts without an event, and explain says why it goes
// without; a strict one does not start.
func TestCacheClass(t *testing.T) {
	c := theNode(t)
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	_, err = resctrl.Read(root.FS())
	no, ok := errors.AsType[*kernel.NotSupportedError](err)
	if !ok {
		t.Skipf("written for a host without resctrl: %v", err)
	}
	lacks := fmt.Sprintf("cache classes: not supported: %s (%s)", no.Reason, no.Remedy)
	config := filepath.Join(state, "cache.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: berth.dev/v1alpha1
kind: NodeConfig
classes:
  cache:
    partitions:
      fast: {l3Allocation: "40%%", classes: {gold: }}
      rest: {l3Allocation: "60%%", classes: {bulk: , DEFAULT: }}
    service: {BE: bulk}
kubernetes:
  words: [{namespaces: [%s], words: ["*", "berth.dev/cache=gold"]}]
`, namespace), 0o600); err != nil {
		t.Fatal(err)
	}
	c.with(t, append(server(), "--config", config)...)
	named := func(name string) *v1.Pod {
		p := pod(name, burstable("a", 50))
		p.Annotations["berth.dev/cache"] = "gold"
		return p
	}
	c.run(t, named("asks"))
	c.says(t, "asks", "WordNotFollowed: ")
	c.says(t, "asks", lacks)
	t.Logf("events of the pod that asks:\n%s", c.events("asks"))
	best := burstable("a", 0)
	best.Resources = v1.ResourceRequirements{}
	c.run(t, pod("best", best))
	if text := c.events("best"); strings.Contains(text, "WordNotFollowed") {
		t.Errorf("of a class that nobody named it is told:\n%s", text)
	}
	if text := explains(t, "default/best/a"); !strings.Contains(text, `cache class "bulk": the workload goes without`) || !strings.Contains(text, no.Reason) {
		t.Errorf("explain does not say that it goes without, and why:\n%s", text)
	}
	strict := named("requires")
	strict.Annotations["berth.dev/strict"] = "true"
	c.create(t, strict)
	c.says(t, "requires", "not placed: ")
	c.says(t, "requires", lacks)
	if err := c.runs("requires"); err == nil {
		t.Error("a pod that requires its class runs without")
	}
	t.Logf("events of the strict pod:\n%s", c.events("requires"))
}
