// Package api is what the node agent needs of the API server of Kubernetes: a watch on the
// pods of its own node, events on them, and documents that are written only when they
// change. Nothing waits for the server: without one the agent works on, and what it knows
// is as old as the last answer.
//
// One REST client with a scheme of two groups stands for the clientsets of client-go, which
// know every object of Kubernetes.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Manager names Berth as the one who set a field of an object.
const Manager = "berth"

// Config says where the API server is. The zero value means none.
type Config struct {
	// Kubeconfig is a file; "" means none.
	Kubeconfig string
	// InCluster takes the service account of the pod that this process is in.
	InCluster bool
	// Node is the name of this node as an object.
	Node string
	// Timeout is how long a request other than a watch may take; 0 is 10 s.
	Timeout time.Duration
}

// On reports whether there is a server to talk to.
func (c *Config) On() bool { return c.Kubeconfig != "" || c.InCluster }

// Validate reports what is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Kubeconfig != "" && c.InCluster:
		return errors.New("a kubeconfig and the service account of the pod: only one of them says where the API server is")
	case c.Timeout < 0:
		return fmt.Errorf("time-out %s: less than 0", c.Timeout)
	case !c.On():
		return nil
	}
	if problems := validation.IsDNS1123Subdomain(c.Node); len(problems) > 0 {
		return fmt.Errorf("node %q is no name of a node: %s", c.Node, strings.Join(problems, "; "))
	}
	return nil
}

// Client talks to the API server as the agent of one node.
type Client struct {
	node    string
	timeout time.Duration
	rest    *rest.RESTClient
	params  runtime.ParameterCodec
}

// New makes a client, without connecting.
func New(c Config) (*Client, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if !c.On() {
		return nil, errors.New("connect to the API server: neither a kubeconfig nor a service account")
	}
	var cfg *rest.Config
	var err error
	if c.InCluster {
		cfg, err = rest.InClusterConfig()
	} else {
		cfg, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return newClient(cfg, c)
}

func newClient(cfg *rest.Config, c Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.UserAgent = "/api", "berth-node"
	cfg.GroupVersion = &corev1.SchemeGroupVersion
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.QPS, cfg.Burst = 10, 50
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	return &Client{node: c.Node, timeout: c.Timeout, rest: client, params: runtime.NewParameterCodec(scheme)}, nil
}

// Node returns the node's name.
func (c *Client) Node() string { return c.node }

// GetNode reads this node's object.
func (c *Client) GetNode(ctx context.Context) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var n corev1.Node
	if err := c.rest.Get().Resource("nodes").Name(c.node).Do(ctx).Into(&n); err != nil {
		return nil, fmt.Errorf("read node %s: %w", c.node, err)
	}
	return &n, nil
}

// PatchNodeStatus merges a patch into the status of this node.
func (c *Client) PatchNodeStatus(ctx context.Context, status any) error {
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err = c.rest.Patch(types.MergePatchType).Resource("nodes").Name(c.node).SubResource("status").
		Param("fieldManager", Manager).Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("patch status of node %s: %w", c.node, err)
	}
	return nil
}

// apply makes an object what a document says, by server-side apply: fields of others stay.
func (c *Client) apply(ctx context.Context, path string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err := c.rest.Patch(types.ApplyPatchType).AbsPath(path).Param("fieldManager", Manager).Param("force", "true").
		Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
