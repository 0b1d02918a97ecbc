package nodekit

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// Process is a program that is started, ended and started again. What it writes is added
// to the file Log.
type Process struct {
	Args []string // the program first
	Env  []string // beside that of this process
	Log  string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
}

// Start starts it.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Args[0], err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() { _ = cmd.Wait(); close(done) }()
	return nil
}

// End sends a signal and waits until the program has ended. Its children live on.
func (p *Process) End(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(sig)
		<-p.done
	}
}

// Again ends it by a signal and starts it again.
func (p *Process) Again(sig syscall.Signal) error {
	p.End(sig)
	return p.Start()
}

// PID is that of the last start.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Ended reports whether it has ended.
func (p *Process) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Output is all that it has written.
func (p *Process) Output() string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Tail is the end of its output.
func (p *Process) Tail(lines int) string {
	all := strings.Split(strings.TrimSpace(p.Output()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
