package sysfs

import (
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// memory is a read-only file system of small files: an archive that was read.
type memory struct {
	files map[string]string
	dirs  map[string][]string // names of the entries, sorted
}

// newMemory makes a file system of files, by their valid paths. A name that is
// both a file and a directory is a file.
func newMemory(files map[string]string) *memory {
	m := &memory{files: files, dirs: map[string][]string{".": nil}}
	for name := range files {
		for name != "." {
			dir := path.Dir(name)
			_, known := m.dirs[dir]
			m.dirs[dir] = append(m.dirs[dir], path.Base(name))
			if known {
				break
			}
			name = dir
		}
	}
	for dir, names := range m.dirs {
		slices.Sort(names)
		m.dirs[dir] = slices.Compact(names)
	}
	return m
}

// Open implements fs.FS.
func (m *memory) Open(name string) (fs.File, error) {
	info, err := m.stat("open", name)
	if err != nil {
		return nil, err
	}
	if !info.dir {
		return &memoryFile{info: info, Reader: strings.NewReader(m.files[name])}, nil
	}
	entries, err := m.ReadDir(name)
	return &memoryDir{info: info, entries: entries}, err
}

// ReadDir implements fs.ReadDirFS.
func (m *memory) ReadDir(name string) ([]fs.DirEntry, error) {
	info, err := m.stat("readdir", name)
	if err != nil {
		return nil, err
	}
	if !info.dir {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	var entries []fs.DirEntry
	for _, base := range m.dirs[name] {
		child, err := m.stat("stat", path.Join(name, base))
		if err != nil {
			return nil, err
		}
		entries = append(entries, fs.FileInfoToDirEntry(child))
	}
	return entries, nil
}

func (m *memory) stat(op, name string) (memoryInfo, error) {
	if !fs.ValidPath(name) {
		return memoryInfo{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	if data, ok := m.files[name]; ok {
		return memoryInfo{name: path.Base(name), size: int64(len(data))}, nil
	}
	if _, ok := m.dirs[name]; ok {
		return memoryInfo{name: path.Base(name), dir: true}, nil
	}
	return memoryInfo{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

type memoryInfo struct {
	name string
	size int64
	dir  bool
}

func (i memoryInfo) Name() string       { return i.name }
func (i memoryInfo) Size() int64        { return i.size }
func (i memoryInfo) ModTime() time.Time { return time.Time{} }
func (i memoryInfo) IsDir() bool        { return i.dir }
func (i memoryInfo) Sys() any           { return nil }

func (i memoryInfo) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o555
	}
	return 0o444
}

type memoryFile struct {
	info memoryInfo
	*strings.Reader
}

func (f *memoryFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *memoryFile) Close() error               { return nil }

type memoryDir struct {
	info    memoryInfo
	entries []fs.DirEntry
}

func (d *memoryDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *memoryDir) Close() error               { return nil }

func (d *memoryDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.info.name, Err: fs.ErrInvalid}
}

// ReadDir implements fs.ReadDirFile.
func (d *memoryDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		n = len(d.entries)
	} else if len(d.entries) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(d.entries))
	out := d.entries[:n:n]
	d.entries = d.entries[n:]
	return out, nil
}
