package cgroup

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
	"testing/fstest"

	"berth.dev/berth/kernel"
)

// unlisted are files of which some directories cannot be listed.
type unlisted struct {
	fstest.MapFS
	why map[string]error
}

func (u unlisted) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := u.why[name]; err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	return u.MapFS.ReadDir(name)
}

// Groups that go while they are looked at are left out; others that cannot be read are told.
func TestBelow(t *testing.T) {
	t.Parallel()
	tree := fstest.MapFS{}
	for _, name := range []string{"top/a/b/tasks", "top/a-b/tasks", "top/gone/c/tasks", "top/shut/d/tasks", "top/tasks"} {
		tree[name] = &fstest.MapFile{Data: []byte("7\n")}
	}
	all := []string{"top/a", "top/a/b", "top/a-b", "top/gone", "top/gone/c", "top/shut", "top/shut/d"}
	for what, c := range map[string]struct {
		why  map[string]error
		want []string
		err  error // matched by that of Below
	}{
		"all":         {nil, all, nil},
		"one goes":    {map[string]error{"top/gone": fs.ErrNotExist}, slices.Concat(all[:4], all[5:]), nil},
		"one is shut": {map[string]error{"top/gone": fs.ErrNotExist, "top/shut": fs.ErrPermission}, slices.Concat(all[:4], all[5:6]), fs.ErrPermission},
		"top is shut": {map[string]error{"top": fs.ErrPermission}, nil, fs.ErrPermission},
		"top is gone": {map[string]error{"top": fs.ErrNotExist}, nil, fs.ErrNotExist},
	} {
		fsys := unlisted{tree, c.why}
		got, err := Below(fsys, "top")
		diff(t, what, c.want, got)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", what, err, c.err)
		}
		if _, err := Threads(fsys, "top"); !errors.Is(err, kernel.IgnoreAbsent(c.err)) {
			t.Errorf("%s: threads: %v", what, err)
		}
	}
}
