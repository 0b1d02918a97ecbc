package runq

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// below says whether path is dir or a path below it; both are clean and begin
// with a slash.
func below(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// idsBelow returns the ids of the group at dir and of all below it, its own
// first. The id of a group is the inode number of its directory, as it has 64
// bits (kernfs, since Linux 5.5).
func idsBelow(dir string) ([]uint64, error) {
	var ids []uint64
	err := walk(dir, func(_ string, id uint64) { ids = append(ids, id) })
	return ids, err
}

// Paths returns the groups at and below root by their ids, as paths below root
// that begin with a slash: the names of culprits. A culprit that is not among
// them has ended, or has been made since.
func Paths(root string) (map[uint64]string, error) {
	paths := map[uint64]string{}
	err := walk(root, func(path string, id uint64) {
		paths[id] = filepath.Join("/", strings.TrimPrefix(path, filepath.Clean(root)))
	})
	if err != nil {
		return nil, fmt.Errorf("list control groups: %w", err)
	}
	return paths, nil
}

// walk visits dir and the directories below it. Those that go meanwhile, dir
// excepted, are skipped.
func walk(dir string, visit func(path string, id uint64)) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && path != dir && errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		}
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) && path != dir {
			return nil
		}
		if err != nil {
			return err
		}
		visit(path, info.Sys().(*syscall.Stat_t).Ino)
		return nil
	})
}
