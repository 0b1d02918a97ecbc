package e2e

import (
	"context"
	stderrors "errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/cpuset"
)

// apply makes all objects of a manifest.
func (c *cluster) apply(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var o meta.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		path := "/apis/" + o.APIVersion
		if o.APIVersion == "v1" {
			path = "/api/v1"
		}
		if o.Namespace != "" {
			path += "/namespaces/" + o.Namespace
		}
		path += "/" + strings.Replace(strings.ToLower(o.Kind)+"s", "policys", "policies", 1) + "/" + o.Name
		if err := c.client.RESTClient().Patch(types.ApplyYAMLPatchType).AbsPath(path).Param("fieldManager", "test").Body([]byte(doc)).Do(t.Context()).Error(); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
}

// agentPod is the pod of the DaemonSet, on a node without a network for pods, with the token and the
// certificate that two programs add which do not run here.
func (c *cluster) agentPod(t *testing.T, image, features string) *v1.Pod {
	t.Helper()
	text, err := os.ReadFile("../deploy/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var set apps.DaemonSet
	if err := yaml.UnmarshalStrict(text, &set); err != nil {
		t.Fatal(err)
	}
	certificate, err := os.ReadFile(state + "/certs/apiserver.crt")
	if err != nil {
		t.Fatal(err)
	}
	roots := &v1.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": string(certificate)}}
	if _, err := c.client.CoreV1().ConfigMaps(set.Namespace).Create(t.Context(), roots, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := &v1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	p.Name, p.Namespace, p.Spec.NodeName = set.Name, set.Namespace, node
	p.Spec.HostNetwork = true
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
		{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: roots.Name}}},
	}}}})
	a := &p.Spec.Containers[0]
	a.Image = image
	a.Env = append(a.Env, v1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: "127.0.0.1"}, v1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: "6443"})
	a.VolumeMounts = append(a.VolumeMounts, v1.VolumeMount{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"})
	for i, arg := range a.Args {
		if strings.HasPrefix(arg, "--features-dir=") {
			a.Args[i] = "--features-dir=/host" + features
		}
	}
	return p
}

// The image runs as the DaemonSet says: it registers with the runtime, places containers, tells of
// them at the API server with its own role and no more, and writes the node's features.
func TestImage(t *testing.T) {
	c, all := theNode(t), online(t)
	image, err := c.images.Add(filepath.Join(os.Getenv(builtEnv), "berth-node"))
	if err != nil {
		t.Fatal(err)
	}
	features := state + "/features.d"
	if err := os.MkdirAll(features, 0o755); err != nil {
		t.Fatal(err)
	}
	c.apply(t, "../deploy/rbac.yaml")
	p := c.agentPod(t, image, features)
	pods, connects := c.client.CoreV1().Pods(p.Namespace), c.connects()
	c.plugin.End(syscall.SIGTERM)
	t.Cleanup(func() {
		err := within(func() error {
			if err := pods.Delete(context.Background(), p.Name, meta.DeleteOptions{}); !errors.IsNotFound(err) {
				return fmt.Errorf("pod %s is still there (%v)", p.Name, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := c.plugin.Start(); err != nil {
			t.Error(err)
		}
		if err := c.connected(connects); err != nil {
			t.Error(err)
		}
	})
	if _, err := pods.Create(t.Context(), p, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	log := func() string {
		files, _ := filepath.Glob("/var/log/pods/" + p.Namespace + "_" + p.Name + "_*/*/*.log")
		var text []byte
		for _, file := range files {
			more, err := os.ReadFile(file)
			if err != nil {
				more = []byte(err.Error())
			}
			text = append(text, more...)
		}
		return string(text)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent's pod:\n%s", log())
		}
	})
	err = within(func() error {
		if strings.Contains(log(), "msg=connected") {
			return nil
		}
		is, err := pods.Get(t.Context(), p.Name, meta.GetOptions{})
		if err != nil {
			return err
		}
		list, err := c.client.CoreV1().Events(p.Namespace).List(t.Context(), meta.ListOptions{})
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s does not register: %s %v", p.Name, is.Status.Phase, is.Status.ContainerStatuses)
		for _, e := range list.Items {
			text += "\n" + e.Reason + ": " + e.Message
		}
		return stderrors.New(text)
	})
	if err != nil {
		t.Fatal(err)
	}
	c.run(t, pod("shared", burstable("a", 50)))
	asks := pod("asks", guaranteed("a", 1000))
	asks.Annotations["berth.dev/numa"] = "nowhere"
	c.run(t, asks)
	own := c.has(t, "asks", "a", 1, cpuset.Set{})
	c.has(t, "shared", "a", all.Len()-1, own)
	c.says(t, "asks", "WordNotFollowed: ")
	if err := within(func() error {
		text, err := os.ReadFile(features + "/berth")
		if err == nil && !strings.Contains(string(text), fmt.Sprintf("berth.dev/cpus=%d\n", all.Len())) {
			err = fmt.Errorf("features are %s", text)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
