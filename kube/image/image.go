// Package image makes container images of one static program without a container engine: an OCI
// image of one layer, the same bytes for the same program. It leaves building the program, and
// pushing the image, to others.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// The media types of github.com/opencontainers/image-spec.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// Blob is one object of an image.
type Blob struct {
	MediaType string
	Data      []byte
}

// Digest is "sha256:" and the hash of the data.
func (b *Blob) Digest() string { return digest(b.Data) }

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// descriptor is how other objects name a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func (b *Blob) descriptor() descriptor {
	return descriptor{MediaType: b.MediaType, Digest: b.Digest(), Size: len(b.Data)}
}

// Image is an image. The manifest names the others, and its digest is the image's.
type Image struct{ Manifest, Config, Layer Blob }

// Of makes the image of a program, which is /name in it, and what a container runs. A program
// that is no static ELF file of amd64 or arm64 is an error, as there is nothing else in the image.
func Of(program []byte, name string) (*Image, error) {
	arch, err := archOf(program)
	if err != nil {
		return nil, fmt.Errorf("make an image of %s: %w", name, err)
	}
	var layer, packed bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := add(w, name, 0o755, program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(layer.Bytes()); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	m := &Image{Layer: Blob{layerType, packed.Bytes()}, Config: Blob{MediaType: configType}, Manifest: Blob{MediaType: manifestType}}
	m.Config.Data, err = json.Marshal(map[string]any{
		"architecture": arch, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + name}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer.Bytes())}},
	})
	if err != nil {
		return nil, err
	}
	m.Manifest.Data, err = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": m.Config.descriptor(), "layers": []descriptor{m.Layer.descriptor()},
	})
	return m, err
}

// archOf is what the program runs on, as the specification of images spells it.
func archOf(program []byte) (string, error) {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return "", err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", errors.New("it needs a dynamic linker, which the image has not: build it with CGO_ENABLED=0")
		}
	}
	switch f.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("it is for %s: build it for amd64 or arm64", f.Machine)
}

// add adds a file, of no time and of root.
func add(w *tar.Writer, name string, mode int64, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data)), Format: tar.FormatUSTAR}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

// Blobs are the objects of an image.
func (m *Image) Blobs() []Blob { return []Blob{m.Layer, m.Config, m.Manifest} }

// WriteArchive writes an image as an OCI image layout in a tar file, which container engines
// import. Reference is what they are to call it, REGISTRY/NAME:TAG.
func (m *Image) WriteArchive(to io.Writer, reference string) error {
	name, tag, ok := strings.Cut(path.Base(reference), ":")
	if dir := path.Dir(reference); !ok || name == "" || tag == "" || dir == "." || strings.ContainsAny(reference, " @\n") {
		return fmt.Errorf("name an image %q: want REGISTRY/NAME:TAG", reference)
	}
	top := m.Manifest.descriptor()
	top.Annotations = map[string]string{"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{top}})
	if err != nil {
		return err
	}
	w := tar.NewWriter(to)
	if err := add(w, "oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := add(w, "index.json", 0o644, index); err != nil {
		return err
	}
	for _, b := range m.Blobs() {
		if err := add(w, "blobs/"+strings.Replace(b.Digest(), ":", "/", 1), 0o644, b.Data); err != nil {
			return err
		}
	}
	return w.Close()
}
