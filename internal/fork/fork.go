// Package fork starts processes that end with this one.
package fork

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Parent forks processes on one thread, which lives until Close. The kernel sends a process its
// parent death signal when the thread that forked it ends (PR_SET_PDEATHSIG, prctl(2)), not the
// process. Go ends the thread of a goroutine that returns without unlocking it, but never the first
// thread of the process.
type Parent struct {
	calls chan func()
}

// NewParent makes one.
func NewParent() *Parent {
	p := &Parent{make(chan func())}
	go p.serve(make(chan struct{}))
	return p
}

// serve makes the calls on a thread that is not the first of the process, and closes begun once it has one.
func (p *Parent) serve(begun chan struct{}) {
	runtime.LockOSThread()
	if syscall.Gettid() == os.Getpid() {
		go p.serve(begun) // on another thread, as this one is taken
		<-begun
		runtime.UnlockOSThread()
		return
	}
	close(begun)
	for call := range p.calls {
		call()
	}
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

// Start starts a command. The kernel kills it when this process ends. What the calling thread has of its own, as
// namespaces, the command does not get.
func Start(cmd *exec.Cmd) error { return forever().Start(cmd) }
