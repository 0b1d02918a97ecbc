package runq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// errCrowded ends a walk over more than MaxBelow groups.
var errCrowded = errors.New("too many groups")

// idsBelow returns the ids of a group and of all below it, its own first. The id of
// a group is the inode number of its directory, as it has 64 bits (kernfs, since
// Linux 5.5).
func idsBelow(root, path string) ([]uint64, error) {
	var ids []uint64
	err := walk(filepath.Join(root, path), func(_ string, id uint64) error {
		if len(ids) == MaxBelow {
			return errCrowded
		}
		ids = append(ids, id)
		return nil
	})
	if errors.Is(err, errCrowded) {
		err = &CrowdedError{path}
	}
	return ids, err
}

// Paths returns the groups at and below root by their ids, as paths below root
// that begin with a slash: the names of culprits. A culprit that is not among
// them has ended, or has been made since.
func Paths(root string) (map[uint64]string, error) {
	paths := map[uint64]string{}
	err := walk(root, func(path string, id uint64) error {
		paths[id] = filepath.Join("/", strings.TrimPrefix(path, filepath.Clean(root)))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list control groups: %w", err)
	}
	return paths, nil
}

// walk visits dir and the directories below it. Those that go meanwhile, dir
// excepted, are skipped.
func walk(dir string, visit func(path string, id uint64) error) error {
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
		return visit(path, info.Sys().(*syscall.Stat_t).Ino)
	})
}

// Name returns the group of a culprit, as a path below the root that begins with a
// slash. For one that has ended and was made while the probe was armed that is the
// closest group above it that is still there. It is fs.ErrNotExist without one.
// It takes a few system calls however many groups there are.
func (p *Probe) Name(id uint64) (string, error) {
	for range maxDepth {
		path, err := p.lookUp(id)
		if !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
		var from runqOrigin
		if p.objects.Made.Lookup(id, &from) != nil {
			break // made before the probe was armed, or long ago
		}
		id = from.Above
	}
	return "", fmt.Errorf("name of control group %d: %w", id, fs.ErrNotExist)
}

// maxDepth is how many groups above one are looked at for one that is still there.
const maxDepth = 16

// fileIDKernfs is FILEID_KERNFS of linux/exportfs.h: a handle that is the id.
const fileIDKernfs = 0xfe

// lookUp opens a group by its id, as open_by_handle_at(2) does.
func (p *Probe) lookUp(id uint64) (string, error) {
	handle := unix.NewFileHandle(fileIDKernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(int(p.mount.Fd()), handle, unix.O_PATH|unix.O_CLOEXEC)
	if errors.Is(err, unix.ESTALE) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return "", fmt.Errorf("name of control group %d: %w", id, err)
	}
	defer unix.Close(fd)
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "", fmt.Errorf("name of control group %d: %w", id, err)
	}
	if _, err := os.Lstat(path); err != nil { // it has ended since, and the link says so
		return "", fmt.Errorf("name of control group %d: %w", id, fs.ErrNotExist)
	}
	return filepath.Join("/", strings.TrimPrefix(path, p.mountAt)), nil
}

// hierarchyNumber is that of the v1 cpu controller (/proc/cgroups, cgroups(7)).
func hierarchyNumber() (int32, error) {
	const file = "/proc/cgroups"
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("number of the cpu hierarchy: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "cpu" {
			number, err := strconv.ParseInt(fields[1], 10, 32)
			if err != nil {
				return 0, fmt.Errorf("number of the cpu hierarchy: %s: %w", file, err)
			}
			return int32(number), nil
		}
	}
	return 0, fmt.Errorf("number of the cpu hierarchy: not in %s", file)
}
