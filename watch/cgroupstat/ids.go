package cgroupstat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// IDsBelow returns the ids of a group of the tree at root and of all below it, its own
// first; all is false where there are more than most, which are not listed. The id of a group is the inode number
// of its directory, as it has 64 bits (kernfs, since Linux 5.5). Groups that go meanwhile
// are skipped.
func IDsBelow(root, group string, most int) (ids []uint64, all bool, err error) {
	top := filepath.Join(root, group)
	for queue := []string{top}; len(queue) > 0; {
		dir := queue[0]
		queue = queue[1:]
		info, err := os.Stat(dir)
		var names []string
		if err == nil {
			names, err = kernel.Subdirectories(dir, most)
		}
		switch {
		case err != nil && dir != top && kernel.Absent(err):
			continue
		case err != nil:
			return ids, true, err
		}
		ids = append(ids, info.Sys().(*syscall.Stat_t).Ino)
		if len(ids)+len(queue)+len(names) > most {
			return ids, false, nil
		}
		for _, name := range names {
			queue = append(queue, filepath.Join(dir, name))
		}
	}
	return ids, true, nil
}

// Names finds the groups of a tree by their ids. It takes CAP_DAC_READ_SEARCH.
type Names struct {
	tree *os.File
	at   string // its path as the kernel has it
}

// OpenNames opens the tree at a directory, a mount point of cgroups or one below it.
func OpenNames(root string) (*Names, error) {
	tree, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("open names of control groups: %w", err)
	}
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", tree.Fd()))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open names of control groups: %w", err), tree.Close())
	}
	return &Names{tree, at}, nil
}

// fileIDKernfs is FILEID_KERNFS of linux/exportfs.h: a handle that is the id.
const fileIDKernfs = 0xfe

// Of returns the group with an id, as a path below the root that begins with a slash. For
// one that has ended, or is not below the root, the error is fs.ErrNotExist.
func (n *Names) Of(id uint64) (string, error) {
	handle := unix.NewFileHandle(fileIDKernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(int(n.tree.Fd()), handle, unix.O_PATH|unix.O_CLOEXEC)
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
	below, ok := strings.CutPrefix(path, n.at)
	if ok = ok && (below == "" || below[0] == '/'); ok {
		_, err = os.Lstat(path) // it may have ended since, and the link says so
	}
	if !ok || err != nil {
		return "", fmt.Errorf("name of control group %d: %w", id, fs.ErrNotExist)
	}
	return filepath.Join("/", below), nil
}

// Tree is the directory that was opened.
func (n *Names) Tree() *os.File { return n.tree }

// Close closes it.
func (n *Names) Close() error { return n.tree.Close() }
