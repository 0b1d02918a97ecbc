package agent

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/place"
)

// between are the kernel's files; do is called once, after a file was read.
type between struct {
	*fakekernel.Kernel
	file string
	do   func()
	done *bool
}

func (b between) FS() fs.FS {
	return toldFS{b.Kernel.FS(), func(name string) {
		if name == b.file {
			b.read()
		}
	}}
}

// told are the kernel's files; read is told of each file that was read.
type told struct {
	*fakekernel.Kernel
	read func(name string)
}

func (f told) FS() fs.FS { return toldFS{f.Kernel.FS(), f.read} }

type toldFS struct {
	fs.FS
	read func(name string)
}

func (f toldFS) ReadFile(name string) ([]byte, error) {
	text, err := fs.ReadFile(f.FS, name)
	f.read(name)
	return text, err
}

func (f toldFS) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(f.FS, name) }

func (f toldFS) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if err == nil {
		file = &toldFile{file, name, f.read}
	}
	return file, err
}

type toldFile struct {
	fs.File
	name string
	read func(name string)
}

func (f *toldFile) Read(buf []byte) (int, error) {
	n, err := f.File.Read(buf)
	if err == io.EOF {
		f.read(f.name)
	}
	return n, err
}

func (b between) read() {
	if !*b.done {
		*b.done = true
		b.do()
	}
}

// group is a process's group in the tree of the cpuset controller.
func (h *host) group(pid string) string {
	h.t.Helper()
	text, err := fs.ReadFile(h.k.FS(), "proc/"+pid+"/cgroup")
	if err != nil {
		h.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if id, rest, _ := strings.Cut(strings.TrimSpace(line), ":"); id == "0" || strings.HasPrefix(rest, "cpuset:") {
			_, name, _ := strings.Cut(rest, ":")
			return name
		}
	}
	h.t.Fatalf("process %s: no cpuset in %q", pid, text)
	return ""
}

// A number that was read from a group and is another process's by the time that its
// processes are moved out moves nobody.
func TestRestoreMovesNobodyElse(t *testing.T) {
	t.Parallel()
	h := v2(t)
	n := h.open()
	w := h.place(n, spec("api", place.LSE, 1000, 0))
	n.Close()
	const pid = "9000101"
	procs := path.Join(w.Dirs[0], "cgroup.procs")
	if err := h.k.WriteFile(procs, pid); err != nil {
		t.Fatal(err)
	}
	h.files = between{h.k, procs, func() {
		if err := h.k.Reuse(pid); err != nil {
			t.Error(err)
		}
	}, new(bool)}
	if _, err := Restore(t.Context(), h.options()); err != nil {
		t.Fatal(err)
	}
	if got, want := h.group(pid), fakekernel.V2().Own; got != want {
		t.Errorf("another process was moved to %s", got)
	}
}

// A process that ends before its turn comes, and one that gets its number meanwhile, are
// not placed: neither while the node is waited for, nor between planning and writing.
func TestPlaceMovesNobodyElse(t *testing.T) {
	t.Parallel()
	const pid = "9000100"
	for name, file := range map[string]string{"waiting": path.Join("proc", pid, "stat"), "planned": path.Join("proc", pid, "cgroup")} {
		h := v2(t)
		h.files = between{h.k, file, func() {
			if err := h.k.Reuse(pid); err != nil {
				t.Error(err)
			}
		}, new(bool)}
		n := h.open()
		before := h.tree()
		_, err := n.Place(context.Background(), spec("api", place.LSE, 1000, 9000100))
		if err == nil || name == "waiting" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: placed: %v", name, err)
		}
		if got, want := h.group(pid), fakekernel.V2().Own; got != want {
			t.Errorf("%s: another process was moved to %s", name, got)
		}
		delete(before, "proc/"+pid+"/stat")
		after := h.tree()
		delete(after, "proc/"+pid+"/stat")
		if len(after) != len(before) {
			t.Errorf("%s: something was left behind", name)
		}
	}
}
