package nodekit

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path"
	"runtime"
	"strconv"
)

// Registry is where Image comes from: a registry that has only that.
const Registry = "127.0.0.1:5000"

// Image is the only image: a program at /work, for containers and for sandboxes.
const Image = Registry + "/work:1"

// blob is one object of a registry.
type blob struct {
	kind string // media type
	data []byte
}

func (b blob) digest() string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b.data)) }

func (b blob) descriptor() map[string]any {
	return map[string]any{"mediaType": b.kind, "digest": b.digest(), "size": len(b.data)}
}

// Serve serves the image of a program until the process ends.
func Serve(program string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	blobs, err := image(data)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", Registry)
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(l, serve(blobs)) }()
	return nil
}

// image is one layer with the program.
func image(program []byte) (map[string]blob, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: "work", Mode: 0o755, Size: int64(len(program))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	files := blob{"application/vnd.oci.image.layer.v1.tar", layer.Bytes()}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/work"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{files.digest()}},
	})
	if err != nil {
		return nil, err
	}
	about := blob{"application/vnd.oci.image.config.v1+json", config}
	const kind = "application/vnd.oci.image.manifest.v1+json"
	text, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": kind, "config": about.descriptor(), "layers": []any{files.descriptor()},
	})
	if err != nil {
		return nil, err
	}
	top := blob{kind, text}
	return map[string]blob{files.digest(): files, about.digest(): about, top.digest(): top, "1": top}, nil
}

// serve answers as a registry does: /v2/NAME/manifests/REF and /v2/NAME/blobs/DIGEST.
func serve(blobs map[string]blob) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		b, ok := blobs[path.Base(r.URL.Path)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", b.kind)
		w.Header().Set("Content-Length", strconv.Itoa(len(b.data)))
		w.Header().Set("Docker-Content-Digest", b.digest())
		if r.Method != http.MethodHead {
			_, _ = w.Write(b.data)
		}
	})
}
