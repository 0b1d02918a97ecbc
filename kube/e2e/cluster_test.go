package e2e

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/testbox"
	"berth.dev/berth/kube/e2e/nodekit"
)

// Where things are in the box, in memory.
const (
	state = "/var/lib/berth-e2e"
	api   = "https://127.0.0.1:6443"
	node  = "n1"
	token = "admin-token"
)

// cluster is the node, and what it is made of.
type cluster struct {
	etcd, apiserver, containerd, kubelet, plugin *nodekit.Process

	client *kubernetes.Clientset
	images *nodekit.Registry
}

var (
	once    sync.Once
	running *cluster
	failure error
)

// theNode returns the node, which all tests share, or skips.
func theNode(t *testing.T) *cluster {
	t.Helper()
	if !testbox.Inside() {
		t.Skip(cannot())
	}
	once.Do(func() {
		running = &cluster{}
		failure = running.start()
	})
	if failure != nil {
		t.Fatalf("start the node: %v", failure)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the plugin:\n%s\ncontainerd:\n%s\nkubelet:\n%s", running.plugin.Tail(30), running.containerd.Tail(8), running.kubelet.Tail(8))
		}
	})
	return running
}

// all are the processes, by name, in the order in which they start.
func (c *cluster) all() []named {
	return []named{{"etcd", c.etcd}, {"kube-apiserver", c.apiserver}, {"containerd", c.containerd}, {"kubelet", c.kubelet}, {"the plugin", c.plugin}}
}

type named struct {
	name string
	*nodekit.Process
}

func (c *cluster) start() error {
	kit, err := nodekit.Open(nodekit.Dir("../.."), nodekit.Names()...)
	if err != nil {
		return err
	}
	built := os.Getenv(builtEnv)
	work := filepath.Join(built, "work")
	if err := c.files(); err != nil {
		return err
	}
	if c.images, err = nodekit.Serve(work); err != nil {
		return err
	}
	if c.containerd, err = nodekit.Containerd(filepath.Join(state, "containerd"), kit.Program, work, nodekit.Cgroupfs); err != nil {
		return err
	}
	process := func(args ...string) *nodekit.Process {
		return &nodekit.Process{Args: args, Log: filepath.Join(state, filepath.Base(args[0])+".log")}
	}
	c.etcd = process(kit.Program("etcd"), "--data-dir", state+"/etcd", "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:0", "--unsafe-no-fsync", "--log-level", "warn")
	c.apiserver = process(kit.Program("kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=6443",
		"--cert-dir="+state+"/certs", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer="+api,
		"--service-account-key-file="+state+"/sa.key", "--service-account-signing-key-file="+state+"/sa.key", "--token-auth-file="+state+"/tokens.csv", "--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--kubelet-preferred-address-types=InternalIP", "--allow-privileged=true")
	if c.kubelet, err = nodekit.Kubelet(state, kit.Program("kubelet"), node, nodekit.Cgroupfs, "", "--kubeconfig="+state+"/kubeconfig"); err != nil {
		return err
	}
	c.plugin = process(filepath.Join(built, "berth-node"), "nri", "--budget", nodekit.Budget.String(), "--nri-socket", nodekit.NRI)
	if c.client, err = kubernetes.NewForConfig(&rest.Config{Host: api, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}); err != nil {
		return err
	}
	for _, p := range c.all() {
		if err := p.Start(); err != nil {
			return err
		}
		if err := c.up(p.name); err != nil {
			return fmt.Errorf("%s: %w\n%s", p.name, err, p.Tail(20))
		}
	}
	return nil
}

// up waits until a process does its work.
func (c *cluster) up(name string) error {
	switch name {
	case "kube-apiserver":
		return within(func() error {
			return c.client.RESTClient().Get().AbsPath("/readyz").Do(context.Background()).Error()
		})
	case "containerd":
		return nodekit.Listens("unix", nodekit.CRI, patience)
	case "kubelet":
		return within(func() error {
			n, err := c.client.CoreV1().Nodes().Get(context.Background(), node, meta.GetOptions{})
			if err != nil {
				return err
			}
			for _, cond := range n.Status.Conditions {
				if cond.Type == v1.NodeReady && cond.Status == v1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("the node is not ready: %v", n.Status.Conditions)
		})
	case "the plugin":
		return c.connected(0)
	}
	return nil
}

// connects is how often the plugin has adopted what runs.
func (c *cluster) connects() int { return strings.Count(c.plugin.Output(), "msg=connected") }

// connected waits until the plugin has adopted what runs more than so many times.
func (c *cluster) connected(before int) error {
	return within(func() error {
		if n := c.connects(); n <= before {
			return fmt.Errorf("the plugin has connected %d times, want more than %d", n, before)
		}
		return nil
	})
}

// patience is how long anything may take on a busy host.
const patience = 2 * time.Minute

// within tries until there is no error.
func within(try func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := try()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// files are what the programs read.
func (c *cluster) files() error {
	if err := os.MkdirAll(state, 0o755); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	pemKey := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	for name, text := range map[string]string{
		"sa.key":     string(pemKey),
		"tokens.csv": token + ",admin,admin,system:masters\n",
		"classes.yaml": `apiVersion: berth.dev/v1alpha1
kind: NodeConfig
classes:
  io: {classes: {slow: [{devices: ["vd*", "sd*", "nvme*"], readBPS: 1M}]}}
kubernetes:
  words:
    - {namespaces: [` + namespace + `], words: ["*", "berth.dev/io=slow"]}
`,
		"kubeconfig": `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: admin}}]
clusters: [{name: c, cluster: {server: "` + api + `", certificate-authority: ` + state + `/certs/apiserver.crt}}]
users: [{name: admin, user: {token: ` + token + `}}]
`,
	} {
		if err := os.WriteFile(filepath.Join(state, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// again ends a process by a signal, starts it, and waits until the node works again.
func (c *cluster) again(p named, sig syscall.Signal) error {
	connects := c.connects()
	if err := p.Again(sig); err != nil {
		return err
	}
	if err := c.up(p.name); err != nil {
		return err
	}
	if p.name == "containerd" || p.name == "the plugin" {
		return c.connected(connects)
	}
	return nil
}

// server are the plugin's arguments that have it know the API server.
func server() []string { return []string{"--kubeconfig", state + "/kubeconfig", "--node-name", node} }

// with starts the plugin anew with more arguments, until the function that it returns, or the test's
// end.
func (c *cluster) with(t *testing.T, more ...string) (end func()) {
	t.Helper()
	args := c.plugin.Args
	restart := func(args []string) {
		if slices.Equal(c.plugin.Args, args) {
			return
		}
		c.plugin.Args = args
		if err := c.again(named{"the plugin", c.plugin}, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	restart(append(slices.Clone(args), more...))
	end = func() { restart(args) }
	t.Cleanup(end)
	return end
}
