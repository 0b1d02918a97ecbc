package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// static builds a program as make image does.
func static(t *testing.T) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "work")
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if same := "go build -trimpath -buildvcs=false -ldflags='-s -w' -o"; !strings.Contains(string(makefile), same) {
		t.Fatalf("the Makefile does not build with %s", same)
	}
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file, "berth.dev/berth/kube/e2e/work")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func archive(t *testing.T, program []byte) []byte {
	t.Helper()
	m, err := Of(program, "work")
	if err != nil {
		t.Fatal(err)
	}
	var to bytes.Buffer
	if err := m.WriteArchive(&to, "registry.example:5000/a/work:1"); err != nil {
		t.Fatal(err)
	}
	return to.Bytes()
}

// entries are the files of a tar archive, with what must not be otherwise in the next one.
func entries(t *testing.T, from io.Reader) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	files, heads := map[string][]byte{}, map[string]*tar.Header{}
	for r := tar.NewReader(from); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, heads
		}
		if err == nil {
			files[head.Name], err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		heads[head.Name] = head
	}
}

// Two builds in two directories are one image, byte by byte.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	if a, b := archive(t, static(t)), archive(t, static(t)); !bytes.Equal(a, b) {
		t.Errorf("two archives of the same source differ: %s and %s", digest(a), digest(b))
	}
}

// An archive is what the specification says, from the index to the program.
func TestArchive(t *testing.T) {
	t.Parallel()
	program := static(t)
	files, _ := entries(t, bytes.NewReader(archive(t, program)))
	if got := string(files["oci-layout"]); got != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout is %s", got)
	}
	parse := func(text []byte, into any) {
		t.Helper()
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(d descriptor, kind string) []byte {
		t.Helper()
		data := files["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
		if len(data) != d.Size || digest(data) != d.Digest || d.MediaType != kind {
			t.Fatalf("%+v names %d bytes, %s", d, len(data), digest(data))
		}
		return data
	}
	var index struct{ Manifests []descriptor }
	parse(files["index.json"], &index)
	if len(index.Manifests) != 1 {
		t.Fatalf("index: %+v", index)
	}
	top := index.Manifests[0]
	if top.Annotations["io.containerd.image.name"] != "registry.example:5000/a/work:1" || top.Annotations["org.opencontainers.image.ref.name"] != "1" {
		t.Errorf("it is called %v", top.Annotations)
	}
	var manifest struct {
		SchemaVersion int
		MediaType     string
		Config        descriptor
		Layers        []descriptor
	}
	parse(blob(top, manifestType), &manifest)
	if manifest.SchemaVersion != 2 || manifest.MediaType != manifestType || len(manifest.Layers) != 1 {
		t.Fatalf("manifest: %+v", manifest)
	}
	var config struct {
		Architecture, OS string
		Config           struct{ Entrypoint []string }
		RootFS           struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	parse(blob(manifest.Config, configType), &config)
	if config.Architecture != runtime.GOARCH || config.OS != "linux" || len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != "/work" {
		t.Errorf("config: %+v", config)
	}
	z, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0], layerType)))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if len(config.RootFS.DiffIDs) != 1 || config.RootFS.DiffIDs[0] != digest(layer) {
		t.Errorf("diff ids %v, the layer is %s", config.RootFS.DiffIDs, digest(layer))
	}
	inside, heads := entries(t, bytes.NewReader(layer))
	if len(inside) != 1 || !bytes.Equal(inside["work"], program) || heads["work"].Mode != 0o755 || heads["work"].Uid != 0 {
		t.Errorf("the layer has %v", heads)
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	program := static(t)
	change := func(at func(elf []byte) []byte) []byte {
		other := bytes.Clone(program)
		copy(at(other), []byte{3, 0}) // PT_INTERP, EM_386
		return other
	}
	for want, bad := range map[string][]byte{
		"bad magic number":       []byte("#!/bin/sh\nexec berth-node"),
		"needs a dynamic linker": change(func(elf []byte) []byte { return elf[binary.LittleEndian.Uint64(elf[32:]):] }),
		"EM_386":                 change(func(elf []byte) []byte { return elf[18:] }),
	} {
		if _, err := Of(bad, "work"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	m, err := Of(program, "work")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "work", "work:1", "a/work", "a/work:", "a/:1", "registry.example:5000/work", "a/work:1 b", "a/work@sha256:00"} {
		if err := m.WriteArchive(io.Discard, name); err == nil || !strings.Contains(err.Error(), "want REGISTRY/NAME:TAG") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
