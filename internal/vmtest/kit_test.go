package vmtest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text string
		want       error // nil, fs.ErrNotExist, or any other for neither
	}{
		{"complete", `{"qemu": "qemu", "kernels": [{"name": "6.1", "image": "vmlinuz", "modules": "modules"}]}`, nil},
		{"image missing", `{"qemu": "qemu", "kernels": [{"name": "6.1", "image": "gone"}]}`, fs.ErrNotExist},
		{"QEMU missing", `{"qemu": "gone"}`, fs.ErrNotExist},
		{"not JSON", `{`, errors.ErrUnsupported},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{KitFile: tc.text, "qemu": "", "vmlinuz": ""} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		kit, err := Open(dir)
		if (err == nil) != (tc.want == nil) || errors.Is(err, fs.ErrNotExist) != (tc.want == fs.ErrNotExist) {
			t.Errorf("%s: Open = %v, want %v", tc.name, err, tc.want)
			continue
		}
		if err != nil {
			continue
		}
		if kit.Disk != "" {
			t.Errorf("%s: there is a disk %s", tc.name, kit.Disk)
		}
		if kernel, ok := kit.Kernel("6.1"); !ok || kernel.Image != filepath.Join(dir, "vmlinuz") {
			t.Errorf("%s: kernel %+v, %v", tc.name, kernel, ok)
		}
		if _, ok := kit.Kernel("6.2"); ok {
			t.Errorf("%s: there is a kernel 6.2", tc.name)
		}
	}
	withDisk := t.TempDir()
	for name, text := range map[string]string{KitFile: `{"qemu": "qemu"}`, "qemu": "", DiskFile: ""} {
		if err := os.WriteFile(filepath.Join(withDisk, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kit, err := Open(withDisk); err != nil || kit.Disk != filepath.Join(withDisk, DiskFile) {
		t.Errorf("Open of a kit with a disk = %+v, %v", kit, err)
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of an empty directory = %v", err)
	}
}

func TestKVMUsable(t *testing.T) {
	t.Parallel()
	device := &fstest.MapFile{}
	for _, tc := range []struct {
		flags string
		fsys  fstest.MapFS
		want  bool
	}{
		{"flags : fpu vmx sse", fstest.MapFS{"dev/kvm": device}, true},
		{"flags : fpu svm", fstest.MapFS{"dev/kvm": device}, true},
		{"flags : fpu sse", fstest.MapFS{"dev/kvm": device}, false},
		{"flags : fpu vmx", fstest.MapFS{}, false},
	} {
		tc.fsys["proc/cpuinfo"] = &fstest.MapFile{Data: []byte(tc.flags + "\n")}
		if got := kvmUsable(tc.fsys); got != tc.want {
			t.Errorf("kvmUsable with %q and %d files = %v, want %v", tc.flags, len(tc.fsys), got, tc.want)
		}
	}
}

func TestArchive(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	a := &archive{w: &b}
	a.file("/bin/sh", []byte("12345"))
	a.file("/bin/ls", nil)
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	// A reader of the format walks it: headers and data start at multiples of 4.
	var names []string
	for rest := b.Bytes(); len(rest) > 0; {
		name, size := string(rest[110:110+hex(rest[94:102])-1]), hex(rest[54:62])
		if string(rest[:6]) != "070701" {
			t.Fatalf("entry %d does not start with the magic number: %q", len(names), rest[:6])
		}
		names = append(names, name)
		data := (110 + len(name) + 1 + 3) / 4 * 4
		if name == "bin/sh" && string(rest[data:data+size]) != "12345" {
			t.Errorf("data of %s is %q", name, rest[data:data+size])
		}
		rest = rest[data+(size+3)/4*4:]
	}
	if got, want := strings.Join(names, " "), "bin bin/sh bin/ls TRAILER!!!"; got != want {
		t.Errorf("entries %q, want %q", got, want)
	}
}

func hex(digits []byte) int {
	n := 0
	for _, d := range digits {
		n = n*16 + strings.IndexByte("0123456789abcdef", d)
	}
	return n
}

func TestTail(t *testing.T) {
	t.Parallel()
	var console tail
	for range 3 {
		if n, err := console.Write(bytes.Repeat([]byte("x"), tailBytes)); n != tailBytes || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	console.Write([]byte("end"))
	if got := console.String(); len(got) != tailBytes || !strings.HasSuffix(got, "xend") {
		t.Errorf("%d bytes that end in %q", len(got), got[max(0, len(got)-4):])
	}
}
