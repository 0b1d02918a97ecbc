package systemd

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"time"

	"berth.dev/berth/kernel"
)

// FS is the tree for readers. What systemd would set in the group of a unit that
// is stopped shows as if the group were there, so that it can be undone: it
// comes back with the unit. So do files that are gone since Berth set a property of the
// group: a setting of their own brings them back. Files that systemd may write have no
// inode: their value outlives the group.
func (f *Files) FS() fs.FS { return view{f.Files.FS(), f} }

type view struct {
	fs.FS
	files *Files
}

func (v view) ReadFile(name string) ([]byte, error) {
	data, err := fs.ReadFile(v.FS, name)
	if kernel.Absent(err) {
		if text, ok, err := v.files.stopped(name); err != nil || ok {
			return []byte(text + "\n"), err
		}
	}
	return data, err
}

func (v view) Stat(name string) (fs.FileInfo, error) {
	info, err := fs.Stat(v.FS, name)
	if _, ok := knobOf(path.Base(name)); !ok && lineKnob(path.Base(name)) == nil {
		return info, err
	}
	if _, ok := named(path.Dir(name)); !ok {
		return info, err
	}
	if errors.Is(err, fs.ErrNotExist) {
		if text, ok, err := v.files.stopped(name); err != nil || ok {
			return &knobInfo{name: path.Base(name), size: int64(len(text) + 1)}, err
		}
	}
	if err != nil {
		return nil, err
	}
	return &knobInfo{path.Base(name), info.Size(), info.Mode(), info.ModTime()}, nil
}

func (v view) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(v.FS, name) }

func (v view) ReadLink(name string) (string, error) { return fs.ReadLink(v.FS, name) }

// stopped returns what systemd would write to a file of a unit's group, or what the file
// had when its controller went as nobody used it any more; ok is false if nothing.
func (f *Files) stopped(name string) (value string, ok bool, err error) {
	k, ok := knobOf(path.Base(name))
	if !ok && lineKnob(path.Base(name)) == nil {
		return "", false, nil
	}
	if f.isThere(path.Dir(name)) {
		bare, _ := f.noted(path.Dir(name), "")
		if !ok { // of lines, each kernel has those of io.max; others are there where the parent has them
			return "", bare && (path.Base(name) == ioMax || f.isThere(path.Join(path.Dir(name), "..", path.Base(name)))), nil
		}
		return k.Default, bare, nil // without the controller
	}
	if !ok {
		return "", false, nil // no lines outlive the group
	}
	ctx, cancel := context.WithTimeout(context.Background(), answer)
	defer cancel()
	u, ok, err := f.owner(ctx, path.Dir(name))
	if err != nil || !ok || u.active {
		return "", false, err
	}
	bus, err := f.connect(ctx)
	if err != nil {
		return "", false, err
	}
	var values []any
	for _, property := range k.properties {
		p, err := bus.GetUnitTypePropertyContext(ctx, u.name, u.kind, property)
		if err != nil {
			return "", false, unitError(u.name, err)
		}
		values = append(values, p.Value.Value())
	}
	if value, ok = k.decode(values); ok {
		return value, true, nil
	}
	_, given := f.noted(path.Dir(name), k.properties[0])
	return k.Default, given, nil
}

// knobInfo is a fs.FileInfo without an inode.
type knobInfo struct {
	name string
	size int64
	mode fs.FileMode
	time time.Time
}

func (i *knobInfo) Name() string       { return i.name }
func (i *knobInfo) Size() int64        { return i.size }
func (i *knobInfo) Mode() fs.FileMode  { return i.mode }
func (i *knobInfo) ModTime() time.Time { return i.time }
func (i *knobInfo) IsDir() bool        { return false }
func (i *knobInfo) Sys() any           { return nil }
