package vmtest

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// archive writes a cpio archive in the "newc" form, which kernels unpack as
// their first file system: Documentation/driver-api/early-userspace/buffer-format.rst.
type archive struct {
	w    io.Writer
	dirs []string // written so far
	err  error    // the first
}

const (
	modeDir  = 0o040755
	modeFile = 0o100755
)

// file adds a file, and the directories above it that are not there yet.
func (a *archive) file(name string, data []byte) {
	name = strings.TrimPrefix(path.Clean(name), "/")
	a.parents(path.Dir(name))
	a.entry(name, modeFile, data)
}

func (a *archive) parents(dir string) {
	if dir == "." || slices.Contains(a.dirs, dir) {
		return
	}
	a.parents(path.Dir(dir))
	a.dirs = append(a.dirs, dir)
	a.entry(dir, modeDir, nil)
}

// close ends the archive and returns the first error.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

// entry writes a header of fourteen numbers, the name and the data, both
// padded to four bytes.
func (a *archive) entry(name string, mode int, data []byte) {
	const headerLen = 110
	header := "070701"
	for _, field := range []int{0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0} {
		header += fmt.Sprintf("%08x", field)
	}
	a.write([]byte(header + name + "\x00" + padding(headerLen+len(name)+1)))
	a.write(data)
	a.write([]byte(padding(len(data))))
}

func padding(n int) string { return "\x00\x00\x00"[:-n&3] }

func (a *archive) write(p []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(p)
	}
}
