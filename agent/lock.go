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

func tryLock(dir, name string) (*os.File, error) {
	f, err := kernel.LockFile(filepath.Join(dir, name), false)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, &BusyError{dir}
	}
	if err != nil {
		return nil, fmt.Errorf("lock node: %w", err)
	}
	return f, nil
}

// waitLock takes the lock of a state directory, in turn with others, however long
// that takes. A wait that is given up keeps a thread and a descriptor until its turn
// comes: the kernel's queue cannot be left.
func waitLock(ctx context.Context, dir string) (*os.File, error) {
	f, err := tryLock(dir, lockFile)
	if _, busy := errors.AsType[*BusyError](err); !busy {
		return f, err
	}
	type result struct {
		file *os.File
		err  error
	}
	done := make(chan result, 1)
	go func() {
		f, err := kernel.LockFile(filepath.Join(dir, lockFile), true)
		done <- result{f, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			r.err = fmt.Errorf("lock node: %w", r.err)
		}
		return r.file, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				r.file.Close()
			}
		}()
		return nil, fmt.Errorf("lock node %s: %w", dir, ctx.Err())
	}
}

// BusyError is a state directory that another Node keeps.
type BusyError struct{ Dir string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("open node %s: another agent keeps it", e.Dir)
}

// keep takes both locks: the agent's, which only another agent can have, and that of the
// records, which is soon free.
func (n *Node) keep(ctx context.Context) (err error) {
	if n.agentLock, err = tryLock(n.opt.Dir, agentLock); err != nil {
		return err
	}
	if n.kept, err = waitLock(ctx, n.opt.Dir); err != nil {
		return errors.Join(err, n.Close())
	}
	return nil
}
