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
		return nil, &BusyError{dir, keeperOf(dir)}
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
				_ = kernel.Unlock(r.file)
			}
		}()
		return nil, fmt.Errorf("lock node %s: %w", dir, ctx.Err())
	}
}

// BusyError is a state directory that another Node keeps.
type BusyError struct {
	Dir string `json:"dir"`
	// PID is its process, 0 if that is not known.
	PID int `json:"pid,omitempty"`
}

// Busy is the error of a state directory that another agent keeps by now.
func Busy(dir string) error { return &BusyError{dir, keeperOf(dir)} }

func (e *BusyError) Error() string {
	who := ""
	if e.PID != 0 {
		who = fmt.Sprintf(": process %d", e.PID)
	}
	return fmt.Sprintf("open node %s: another agent keeps it%s; end it first, or name another state directory", e.Dir, who)
}

// keeperOf is the process of the agent that keeps a directory, as it has written into its
// lock; 0 if it has not, or has ended.
func keeperOf(dir string) int {
	text, err := kernel.ReadPrivateFile(filepath.Join(dir, agentLock))
	if err != nil {
		return 0
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil || syscall.Kill(pid, 0) == syscall.ESRCH {
		return 0
	}
	return pid
}

// writePID says in a lock's file who has it. On a full disk nobody is told.
func writePID(f *os.File) {
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
}

// keep takes both locks: the agent's, which only another agent can have, and that of the
// records, which is soon free.
func (n *Node) keep(ctx context.Context) (err error) {
	if n.agentLock, err = tryLock(n.opt.Dir, agentLock); err != nil {
		return err
	}
	writePID(n.agentLock)
	if n.kept, err = waitLock(ctx, n.opt.Dir); err != nil {
		return errors.Join(err, n.Close())
	}
	return nil
}
