package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/kube/zones"
)

// stop ends a container.
func (r *runtime) stop(name string) {
	r.t.Helper()
	r.mu.Lock()
	i := slices.IndexFunc(r.containers, func(c *api.Container) bool { return c.Id == name })
	pod, c := r.pods[i], r.containers[i]
	r.pods, r.containers = slices.Delete(r.pods, i, i+1), slices.Delete(r.containers, i, i+1)
	r.mu.Unlock()
	res, err := r.nri.StopContainer(context.Background(), &api.StopContainerRequest{Pod: pod, Container: c})
	must(r.t, err)
	r.mu.Lock()
	r.apply(res.GetUpdate())
	r.mu.Unlock()
}

// topologies is an API server that takes the topology of node n1, and nothing else: the kubeconfig that names it, and
// what was written.
func topologies(t *testing.T) (kubeconfig string, told <-chan zones.Topology) {
	t.Helper()
	const object = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n1"
	written := make(chan zones.Topology, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodPatch || r.URL.Path != object { // its pods and its node it may not read
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
			return
		}
		var is zones.Topology
		if err := json.NewDecoder(r.Body).Decode(&is); err != nil || len(is.Zones) != 1 {
			t.Errorf("%+v, %v", is, err)
			return
		}
		written <- is
		fmt.Fprint(w, "{}")
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(file, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", server.URL), 0o600))
	return file, written
}

// The NodeResourceTopology follows what containers have within a second, from the answer to the runtime to the
// request to the API server. The quickest of all changes counts, and there are more of them while none was that
// quick: others on the host hold up any one.
func TestTopologyFollows(t *testing.T) {
	t.Parallel()
	file, told := topologies(t)
	r := newRuntime(t)
	ctx, stop := context.WithCancel(context.Background())
	said, ended := &log{}, make(chan int, 1)
	args := []string{
		"nri", "--root", host(t, "1s1n8c1t"), "--nri-socket", r.socket, "--state", filepath.Join(t.TempDir(), "state"), "--metrics", "off", "--guard", "off", "--budget", "1m",
		"--kubeconfig", file, "--node-name", "n1", "--topology",
	}
	go func() { ended <- program().Run(ctx, strings.NewReader(""), said, said, args) }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("it says:\n%s", said)
		}
	})
	r.connected()
	follows := func(want string) time.Duration {
		t.Helper()
		began := time.Now()
		for {
			select {
			case is := <-told:
				if is.Zones[0].Resources[0].Available == want {
					return time.Since(began)
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("it never says that %s CPUs are available", want)
			}
		}
	}
	follows("7") // one is always shared
	var took []time.Duration
	for round := 0; round == 0 || round < 10 && slices.Min(took) > time.Second; round++ {
		for _, c := range []struct{ create, stop, available string }{
			{create: "a", available: "5"}, {create: "b", available: "3"}, {create: "c", available: "1"},
			{stop: "a", available: "3"}, {stop: "b", available: "5"}, {stop: "c", available: "7"},
		} {
			if c.create != "" {
				r.create(c.create)
			} else {
				r.stop(c.stop)
			}
			took = append(took, follows(c.available))
		}
	}
	t.Logf("it follows after %s", took)
	if slices.Min(took) > time.Second {
		t.Errorf("it follows after %s: want a second at most", took)
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("status %d", code)
	}
}

// Under the kubelet's policy schedulers learn how it admits pods: it refuses some that others would not.
func TestTopologyHasPolicy(t *testing.T) {
	t.Parallel()
	kubeconfig, told := topologies(t)
	r := newRuntime(t)
	file := filepath.Join(t.TempDir(), "node.yaml")
	must(t, os.WriteFile(file, []byte("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\nreserved: 0\npolicy: {name: kubelet, options: "+
		"{cpuManagerPolicy: static, topologyManagerPolicy: single-numa-node, topologyManagerScope: pod}}\n"), 0o600))
	ctx, stop := context.WithCancel(context.Background())
	said, ended := &log{}, make(chan int, 1)
	args := []string{
		"nri", "--root", host(t, "1s1n8c1t"), "--config", file, "--nri-socket", r.socket, "--state", filepath.Join(t.TempDir(), "state"),
		"--metrics", "off", "--guard", "off", "--kubeconfig", kubeconfig, "--node-name", "n1", "--topology",
	}
	go func() { ended <- program().Run(ctx, strings.NewReader(""), said, said, args) }()
	r.connected()
	select {
	case is := <-told:
		want := []zones.Attribute{{Name: "topologyManagerPolicy", Value: "single-numa-node"}, {Name: "topologyManagerScope", Value: "pod"}}
		if !slices.Equal(is.Attributes, want) || !slices.Equal(is.Policies, []string{"SingleNUMANodePodLevel"}) {
			t.Errorf("attributes %v, policies %v", is.Attributes, is.Policies)
		}
	case <-time.After(2 * time.Minute):
		t.Errorf("no topology is told; it says:\n%s", said)
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("status %d", code)
	}
}
