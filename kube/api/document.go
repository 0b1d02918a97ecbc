package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Document is an object that this node keeps at the API server. It is for one goroutine.
type Document struct {
	client *Client
	path   string
	again  time.Duration
	last   []byte
	at     time.Time
}

// rewrite is how often a document that does not change is written all the same: somebody
// may have changed or removed the object.
const rewrite = 10 * time.Minute

// Topology is this node's NodeResourceTopology.
func (c *Client) Topology() *Document {
	return c.document("/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/" + c.node)
}

// Features is this node's NodeFeature of Berth in a namespace.
func (c *Client) Features(namespace string) *Document {
	return c.document("/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/" + namespace + "/nodefeatures/" + FeaturesName(c.node))
}

// FeaturesName is the name of Berth's NodeFeature of a node.
func FeaturesName(node string) string { return "berth-" + node }

func (c *Client) document(path string) *Document {
	return &Document{client: c, path: path, again: rewrite}
}

// Write makes the object what v says, as JSON, if it is not that already.
func (d *Document) Write(ctx context.Context, v any) (written bool, err error) {
	body, err := json.Marshal(v)
	if err != nil {
		return false, fmt.Errorf("write %s: %w", d.path, err)
	}
	if bytes.Equal(body, d.last) && time.Since(d.at) < d.again {
		return false, nil
	}
	if err := d.client.apply(ctx, d.path, body); err != nil {
		d.last = nil
		return false, err
	}
	d.last, d.at = body, time.Now()
	return true, nil
}
