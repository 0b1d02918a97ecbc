package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"berth.dev/berth/kernel"
)

const (
	// lockName is the file in a user's directory of undo logs that one lab of this user locks.
	lockName = "lab.lock"
	// sharedName is the abstract socket (unix(7)) by which labs of several users see each
	// other. Every process of the host may bind it, so it refuses no one.
	sharedName = "@berth-lab"
)

// machineLock keeps labs of one user apart: two would measure each other.
type machineLock struct {
	file   *os.File
	shared io.Closer // nil where another process has the name
	// other says that there may be a lab of another user; "" is no.
	other string
}

// lockMachine refuses a second lab of this user, by a file in dir, which is made if
// need be ("" is the default) and which no other user may open. The kernel frees the
// lock however the process ends.
func lockMachine(dir string) (*machineLock, error) {
	dir = cmp.Or(dir, kernel.RunDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR")))
	if err := kernel.MakePrivateDir(dir); err != nil {
		return nil, fmt.Errorf("lock the machine: %w", err)
	}
	file, err := kernel.LockFile(filepath.Join(dir, lockName), false)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.New("another berth lab of this user runs on this machine: two would measure each other; wait for it")
	case err != nil:
		return nil, fmt.Errorf("lock the machine: %w", err)
	}
	l := &machineLock{file: file}
	shared, err := net.Listen("unix", sharedName)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		l.other = "another user's berth lab ran on this machine at the start: the two may have measured each other"
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock the machine: %w", err), l.Close())
	default:
		l.shared = shared
	}
	return l, nil
}

// Close lets the next lab of this user start.
func (l *machineLock) Close() error {
	var err error
	if l.shared != nil {
		err = l.shared.Close()
	}
	return errors.Join(err, kernel.Unlock(l.file))
}
