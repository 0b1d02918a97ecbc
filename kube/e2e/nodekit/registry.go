package nodekit

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"sync"

	"berth.dev/berth/kube/image"
)

// registry is where images come from.
const registry = "127.0.0.1:5000"

// Image is a program at /work, for containers and for sandboxes.
const Image = registry + "/work:1"

// Registry has images of programs, for the runtime of a test.
type Registry struct {
	mu    sync.Mutex
	blobs map[string]image.Blob // by digest, and by NAME:TAG
}

// Serve serves images until the process ends, at first that of the program of Image.
func Serve(work string) (*Registry, error) {
	r := &Registry{blobs: map[string]image.Blob{}}
	if _, err := r.Add(work); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", registry)
	if err != nil {
		return nil, err
	}
	go func() { _ = http.Serve(l, r) }()
	return r, nil
}

// Add adds the image of a program, and returns what it is called.
func (r *Registry) Add(program string) (name string, err error) {
	data, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	m, err := image.Of(data, filepath.Base(program))
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range m.Blobs() {
		r.blobs[b.Digest()] = b
	}
	name = filepath.Base(program) + ":1"
	r.blobs[name] = m.Manifest
	return registry + "/" + name, nil
}

// ServeHTTP answers as a registry does: /v2/NAME/manifests/REF and /v2/NAME/blobs/DIGEST.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/v2/" {
		return
	}
	ref := path.Base(req.URL.Path)
	name := path.Base(path.Dir(path.Dir(req.URL.Path)))
	r.mu.Lock()
	b, ok := r.blobs[ref]
	if !ok {
		b, ok = r.blobs[fmt.Sprintf("%s:%s", name, ref)]
	}
	r.mu.Unlock()
	if !ok {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", b.MediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(b.Data)))
	w.Header().Set("Docker-Content-Digest", b.Digest())
	if req.Method != http.MethodHead {
		_, _ = w.Write(b.Data)
	}
}
