package runq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// idsBelow returns the ids of a group and of all below it, its own first. The id of
// a group is the inode number of its directory, as it has 64 bits (kernfs, since
// Linux 5.5). Groups that go meanwhile are skipped.
func idsBelow(root, path string) ([]uint64, error) {
	var ids []uint64
	top := filepath.Join(root, path)
	err := filepath.WalkDir(top, func(dir string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			return nil
		}
		var info fs.FileInfo
		if err == nil {
			info, err = os.Stat(dir)
		}
		switch {
		case err != nil && dir != top && errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case len(ids) == MaxBelow:
			return &CrowdedError{path}
		}
		ids = append(ids, info.Sys().(*syscall.Stat_t).Ino)
		return nil
	})
	return ids, err
}

// Name returns the group of a culprit, as a path below the root that begins with a
// slash. For one that has ended and was made while the probe was armed that is the
// closest group above it that is still there. It is fs.ErrNotExist without one. Of a
// program it is what stands for its path (Program).
// It takes a few system calls however many groups there are.
func (p *Probe) Name(id uint64) (string, error) {
	if id >= firstProgram {
		if i := slices.IndexFunc(p.slots, func(s slot) bool { return s.id == id }); i >= 0 {
			return p.slots[i].path, nil
		}
		return "", fmt.Errorf("name of program %d: %w", id, fs.ErrNotExist)
	}
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
