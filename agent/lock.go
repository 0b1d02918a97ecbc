package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"berth.dev/berth/kernel"
)

// openLock opens the file of a lock of a state directory.
func openLock(dir, name string) (*os.File, error) {
	f, err := kernel.OpenPrivateFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("lock node: %w", err)
	}
	return f, nil
}

// tryLock takes a lock of a state directory, or returns a BusyError.
func tryLock(dir, name string) (*os.File, error) {
	f, err := openLock(dir, name)
	if err != nil {
		return nil, err
	}
	err = kernel.Lock(f, false)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(&BusyError{dir}, f.Close())
	}
	return locked(f, err)
}

// waitLock takes the lock of a state directory, in turn with others, however long
// that takes. A wait that is given up keeps a thread and a descriptor until its turn
// comes: the kernel's queue cannot be left.
func waitLock(ctx context.Context, dir string) (*os.File, error) {
	f, err := tryLock(dir, lockFile)
	var busy *BusyError
	if !errors.As(err, &busy) {
		return f, err
	}
	if f, err = openLock(dir, lockFile); err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- kernel.Lock(f, true) }()
	select {
	case err := <-done:
		return locked(f, err)
	case <-ctx.Done():
		go func() { <-done; f.Close() }()
		return nil, fmt.Errorf("lock node %s: %w", dir, ctx.Err())
	}
}

// locked returns a file that was locked, or closes it after an error.
func locked(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock node: %w", err), f.Close())
	}
	return f, nil
}

// BusyError is a state directory that another Node keeps.
type BusyError struct{ Dir string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("open node %s: another agent keeps it", e.Dir)
}

// keep takes both locks: the keeper's, which only another agent can have, and
// that of the records, which is soon free.
func (n *Node) keep(ctx context.Context) (err error) {
	if n.keeper, err = tryLock(n.opt.Dir, keeperFile); err != nil {
		return err
	}
	if n.kept, err = waitLock(ctx, n.opt.Dir); err != nil {
		return errors.Join(err, n.Close())
	}
	return nil
}
