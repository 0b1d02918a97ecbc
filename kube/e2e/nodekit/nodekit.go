// Package nodekit builds what a Kubernetes node is made of, for tests: etcd, the API
// server, kubelet, containerd and runc. Each family of programs is a module of its own
// in pins, whose go.mod and go.sum name every version and hash; none of them enters the
// go.mod of Berth.
package nodekit

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

//go:embed pins
var pins embed.FS

// Env names another directory of a kit than Dir.
const Env = "BERTH_E2E_NODE"

// Dir is where the kit is in the repository, below root.
func Dir(root string) string { return cmp.Or(os.Getenv(Env), filepath.Join(root, ".cache/e2e/node")) }

// program is one program of a kit.
type program struct {
	name, pkg string
	pins      string // the module that pins its version: a file of pins
	ldflags   string
	tags      string
	seccomp   bool // it is linked with C code and libseccomp
}

func programs() []program {
	const version = "k8s.io/component-base/version"
	kubernetes := fmt.Sprintf(" -X %s.gitVersion=v1.36.3 -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=36", version)
	return []program{
		{name: "etcd", pkg: "go.etcd.io/etcd/server/v3", pins: "etcd"},
		{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", pins: "kubernetes", ldflags: kubernetes},
		{name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet", pins: "kubernetes", ldflags: kubernetes},
		{name: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/containerd", pins: "containerd", tags: "no_btrfs no_zfs no_devmapper"},
		{name: "containerd-shim-runc-v2", pkg: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", pins: "containerd"},
		{name: "runc", pkg: "github.com/opencontainers/runc", pins: "runc", tags: "seccomp netgo osusergo", ldflags: " -extldflags -static", seccomp: true},
		{name: "loopback", pkg: "github.com/containernetworking/plugins/plugins/main/loopback", pins: "cni"},
	}
}

// Names are those of all programs.
func Names() (names []string) {
	for _, p := range programs() {
		names = append(names, p.name)
	}
	return names
}

// key changes when the program has to be built anew.
func (p *program) key() string {
	h := sha256.New()
	for _, file := range []string{p.pins + ".mod", p.pins + ".sum"} {
		text, err := pins.ReadFile("pins/" + file)
		if err != nil {
			panic(err) // it is embedded
		}
		h.Write(text)
	}
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, p.pkg, p.ldflags, p.tags)
	return hex.EncodeToString(h.Sum(nil))
}

// built is what a kit records of a program.
type built struct {
	Key    string `json:"key"`
	SHA256 string `json:"sha256"`
}

// recordFile is beside the programs: what is recorded of each, by name.
const recordFile = "programs.json"

// MissingError is a kit that lacks programs, or has them in another version than this
// source wants.
type MissingError struct {
	Dir   string
	Names []string
	Other bool // they are there, but of another version
}

func (e *MissingError) Error() string {
	what := "no "
	if e.Other {
		what = "another version than wanted of "
	}
	return what + strings.Join(e.Names, ", ") + " in " + e.Dir + ": make e2e-kube-fetch"
}

// Kit is a directory with programs.
type Kit struct{ dir string }

// Program is the path of a program.
func (k *Kit) Program(name string) string { return filepath.Join(k.dir, "bin", name) }

// Open opens the kit in dir. It is a *MissingError if it lacks one of the programs.
func Open(dir string, names ...string) (*Kit, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	k := &Kit{dir}
	record, err := k.record()
	if err != nil {
		return nil, err
	}
	missing, other := &MissingError{Dir: dir}, &MissingError{Dir: dir, Other: true}
	for _, p := range programs() {
		if !slices.Contains(names, p.name) {
			continue
		}
		_, err := os.Stat(k.Program(p.name))
		switch b, ok := record[p.name]; {
		case !ok || err != nil:
			missing.Names = append(missing.Names, p.name)
		case b.Key != p.key():
			other.Names = append(other.Names, p.name)
		}
	}
	for _, e := range []*MissingError{missing, other} {
		if len(e.Names) > 0 {
			return nil, e
		}
	}
	return k, nil
}

// record reads what the kit records; a kit without is empty.
func (k *Kit) record() (map[string]built, error) {
	record := map[string]built{}
	text, err := os.ReadFile(filepath.Join(k.dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return record, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &record)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of the kit: %w", recordFile, err)
	}
	return record, nil
}
