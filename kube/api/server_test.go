package api_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"berth.dev/berth/kube/api"
)

// server is etcd and an API server with RBAC, for one test.
type server struct {
	t         *testing.T
	dir, bin  string
	etcd, url string
	args      []string
	apiserver *exec.Cmd
	http      *http.Client
}

const admin = "admin-token"

// programs finds the directory of etcd and kube-apiserver.
func programs(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("it starts etcd and an API server: not with -short")
	}
	kit := os.Getenv("BERTH_E2E_NODE")
	if kit == "" {
		kit = "../../.cache/e2e/node"
	}
	for _, dir := range []string{os.Getenv("KUBEBUILDER_ASSETS"), filepath.Join(kit, "bin")} {
		found := dir != ""
		for _, name := range []string{"etcd", "kube-apiserver"} {
			_, err := os.Stat(filepath.Join(dir, name))
			found = found && err == nil
		}
		if found {
			return dir
		}
	}
	t.Skip("no etcd and kube-apiserver: make e2e-kube-fetch builds them, or KUBEBUILDER_ASSETS names their directory")
	return ""
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func start(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), bin: programs(t), http: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	s.file("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	s.file("tokens.csv", admin+",admin,admin,system:masters\n")
	s.etcd = fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	s.run("etcd", "--data-dir", filepath.Join(s.dir, "etcd"), "--listen-client-urls", s.etcd, "--advertise-client-urls", s.etcd,
		"--listen-peer-urls", "http://127.0.0.1:0", "--unsafe-no-fsync", "--log-level", "error")
	port := freePort(t)
	s.url = fmt.Sprintf("https://127.0.0.1:%d", port)
	s.args = []string{
		"--etcd-servers=" + s.etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir=" + filepath.Join(s.dir, "certs"), "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://127.0.0.1", "--service-account-key-file=" + filepath.Join(s.dir, "sa.key"),
		"--service-account-signing-key-file=" + filepath.Join(s.dir, "sa.key"), "--token-auth-file=" + filepath.Join(s.dir, "tokens.csv"),
		"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--allow-privileged=true",
	}
	s.serve()
	return s
}

func (s *server) file(name, text string) string {
	s.t.Helper()
	name = filepath.Join(s.dir, name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return name
}

// run starts a program that ends with the test, or with this process.
func (s *server) run(name string, args ...string) *exec.Cmd {
	s.t.Helper()
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.kill(cmd) })
	return cmd
}

func (*server) kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// serve starts the API server and waits until it is ready.
func (s *server) serve() {
	s.t.Helper()
	s.apiserver = s.run("kube-apiserver", s.args...)
	wait(s.t, 60*time.Second, "the API server to be ready", func() bool {
		req, _ := http.NewRequest(http.MethodGet, s.url+"/readyz", nil)
		req.Header.Set("Authorization", "Bearer "+admin)
		res, err := s.http.Do(req)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

func wait(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s", limit, what)
		}
	}
}

// do sends a request; body is YAML or JSON as text, or anything else as JSON.
func (s *server) do(token, method, path, kind string, body any) (status int, answer []byte) {
	s.t.Helper()
	var text []byte
	switch b := body.(type) {
	case nil:
	case string:
		var err error
		if text, err = yaml.YAMLToJSON([]byte(b)); err != nil {
			s.t.Fatal(err)
		}
	default:
		text, _ = json.Marshal(b)
	}
	req, err := http.NewRequest(method, s.url+path, bytes.NewReader(text))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", kind)
	res, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	answer, _ = io.ReadAll(res.Body)
	return res.StatusCode, answer
}

const (
	isJSON  = "application/json"
	isMerge = "application/merge-patch+json"
	isApply = "application/apply-patch+yaml"
)

// must is do as the administrator, which works.
func (s *server) must(method, path, kind string, body any) (answer []byte) {
	s.t.Helper()
	status, answer := s.do(admin, method, path, kind, body)
	if status >= 300 {
		s.t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	return answer
}

// get reads an object.
func get[T any](s *server, path string) (v T) {
	s.t.Helper()
	if err := json.Unmarshal(s.must(http.MethodGet, path, isJSON, nil), &v); err != nil {
		s.t.Fatal(err)
	}
	return v
}

// apply makes all objects of a manifest.
func (s *server) apply(file string) {
	s.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, doc := range strings.Split(string(text), "\n---\n") {
		var o struct {
			APIVersion, Kind string
			Metadata         struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			s.t.Fatalf("%s: %v", file, err)
		}
		if o.Kind == "Pod" && o.Metadata.Namespace == "" {
			o.Metadata.Namespace = "default"
		}
		resource := strings.ToLower(o.Kind) + "s"
		resource = strings.Replace(resource, "policys", "policies", 1)
		path := "/apis/" + o.APIVersion
		if o.APIVersion == "v1" {
			path = "/api/v1"
		}
		if o.Metadata.Namespace != "" {
			path += "/namespaces/" + o.Metadata.Namespace
		}
		s.must(http.MethodPatch, path+"/"+resource+"/"+o.Metadata.Name+"?fieldManager=test&force=true", isApply, doc)
	}
}

// kubeconfig writes one for a token.
func (s *server) kubeconfig(token string) string {
	s.t.Helper()
	return s.file("kubeconfig-"+token[:min(len(token), 8)], fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {token: %q}}]
`, s.url, filepath.Join(s.dir, "certs/apiserver.crt"), token))
}

// cluster makes two nodes, and the agent's role, and returns the token of the agent on the
// first.
func (s *server) cluster() (token string) {
	s.t.Helper()
	s.apply("testdata/crds.yaml")
	s.apply("../deploy/rbac.yaml")
	for _, node := range []string{"n1", "n2"} {
		s.must(http.MethodPost, "/api/v1/nodes", isJSON, "{apiVersion: v1, kind: Node, metadata: {name: "+node+"}}")
		s.must(http.MethodPatch, "/api/v1/nodes/"+node+"/status", isMerge, `status:
  capacity: {cpu: "100", memory: 400Gi, pods: "110"}
  allocatable: {cpu: "96", memory: 392Gi, pods: "110"}
  conditions: [{type: Ready, status: "True", reason: Test, message: x}]`)
	}
	s.pod("berth", "agent", "n1", "serviceAccountName: berth-node, ")
	for _, path := range []string{"/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies", "/apis/nfd.k8s-sigs.io/v1alpha1/nodefeatures"} {
		wait(s.t, 10*time.Second, path, func() bool { status, _ := s.do(admin, http.MethodGet, path, isJSON, nil); return status == 200 })
	}
	uid := get[object](s, "/api/v1/namespaces/berth/pods/agent").Metadata.UID
	answer := s.must(http.MethodPost, "/api/v1/namespaces/berth/serviceaccounts/berth-node/token", isJSON, `apiVersion: authentication.k8s.io/v1
kind: TokenRequest
spec: {audiences: ["https://127.0.0.1"], boundObjectRef: {apiVersion: v1, kind: Pod, name: agent, uid: `+uid+`}}`)
	var request struct{ Status struct{ Token string } }
	if err := json.Unmarshal(answer, &request); err != nil {
		s.t.Fatal(err)
	}
	return request.Status.Token
}

// object is what tests read of objects.
type object struct {
	Metadata struct {
		Name, UID, ResourceVersion string
		Labels                     map[string]string
	}
	Status struct {
		Allocatable, Capacity map[string]string
	}
}

// pod makes a pod on a node; more is the beginning of its spec.
func (s *server) pod(namespace, name, node, more string) {
	s.t.Helper()
	s.must(http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods", isJSON, fmt.Sprintf(
		"{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {%s nodeName: %s, terminationGracePeriodSeconds: 0, containers: [{name: c, image: x, resources: {requests: {cpu: 1300m, memory: 64Mi}}}]}}",
		name, more, node))
}

func (s *server) client(token string) *api.Client {
	s.t.Helper()
	c, err := api.New(api.Config{Kubeconfig: s.kubeconfig(token), Node: "n1"})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}
