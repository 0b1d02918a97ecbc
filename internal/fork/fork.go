// Package fork starts processes that end with this one.
package fork

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Parent forks processes on one thread, which lives until Close. The kernel sends a process its
// parent death signal when the thread that forked it ends (PR_SET_PDEATHSIG, prctl(2)), not the
// process; and Go ends the thread of a goroutine that returns without unlocking it.
type Parent struct {
	calls chan func()
}

// NewParent makes one.
func NewParent() *Parent {
	p := &Parent{make(chan func())}
	go func() {
		runtime.LockOSThread()
		for call := range p.calls {
			call()
		}
	}()
	return p
}

// Close ends the thread, and with it every process that Start started and that still runs.
func (p *Parent) Close() { close(p.calls) }

// Do calls a function on the thread.
func (p *Parent) Do(call func() error) error {
	done := make(chan error, 1)
	p.calls <- func() { done <- call() }
	return <-done
}

// Start starts a command. The kernel kills it when the thread, or this process, ends.
func (p *Parent) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return p.Do(cmd.Start)
}

var forever = sync.OnceValue(NewParent)

// Start starts a command. The kernel kills it when this process ends.
func Start(cmd *exec.Cmd) error { return forever().Start(cmd) }
