package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/fork"
	"berth.dev/berth/lab/program"
)

// child is a process of this binary that speaks JSON lines on its standard
// input and output.
type child struct {
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan []byte
	stderr tail
	exited chan struct{}
	err    error // of Wait, once exited is closed
	// keeps: it has something to end when its input ends: the program that it keeps, or what it has changed.
	keeps bool
	// outside is the tenant that it stands for, which is none of the lab's; all else is empty.
	outside *outsider
}

// childConfig says what to start.
type childConfig struct {
	name  string // for messages: "tenant"
	exe   string
	args  []string
	files []*os.File // descriptors 3 and up
	keeps bool       // as of child
	// network is the network namespace that it is in; nil is that of this process.
	network *os.File
	mounts  bool // it has mounts of its own
}

// start starts a child. It dies with its parent, whatever happens to that, and
// a terminal's Ctrl-C reaches only this process.
func (cfg childConfig) start(parent *fork.Parent) (*child, error) {
	c := &child{name: cfg.name, lines: make(chan []byte, 8), exited: make(chan struct{}), keeps: cfg.keeps}
	c.cmd = exec.Command(cfg.exe, cfg.args...)
	c.cmd.ExtraFiles = cfg.files
	c.cmd.Stderr = &c.stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !c.keeps {
		c.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if cfg.mounts {
		c.cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	c.in = in
	if err := parent.Do(func() error { return startIn(cfg.network, c.cmd) }); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	go c.read(out)
	return c, nil
}

func (c *child) read(out io.Reader) {
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			c.lines <- line
		}
		if err != nil {
			break
		}
	}
	close(c.lines)
	c.err = c.cmd.Wait()
	close(c.exited)
}

func (c *child) pid() int {
	if c.outside != nil {
		return c.outside.processes[0]
	}
	return c.cmd.Process.Pid
}

// gone says how a child has ended; nil if it lives.
func (c *child) gone() error {
	if c.outside != nil {
		return c.outside.list()
	}
	select {
	case <-c.exited:
		return c.exitError()
	default:
		return nil
	}
}

// send writes v as one JSON line.
func (c *child) send(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("send to %s: %w", c.name, err)
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("send to %s: %w", c.name, errors.Join(err, c.exitError()))
	}
	return nil
}

// receive reads the next JSON line into v, for at most limit.
func (c *child) receive(ctx context.Context, limit time.Duration, v any) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case line, ok := <-c.lines:
		if !ok {
			return fmt.Errorf("%s ended: %w", c.name, c.exitError())
		}
		if err := json.Unmarshal(line, v); err != nil {
			return fmt.Errorf("answer of %s: %w", c.name, err)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("%s did not answer within %s", c.name, limit)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// exitError says how a child that has ended did so.
func (c *child) exitError() error {
	select {
	case <-c.exited:
	case <-time.After(time.Second):
		return errors.New("its output closed but it still runs")
	}
	said := strings.TrimSpace(c.stderr.String())
	switch {
	case said != "" && c.err != nil:
		return fmt.Errorf("%w: %s", c.err, said)
	case c.err != nil:
		return c.err
	}
	return errors.New("exit status 0 before its work was done")
}

// kill ends the child and waits until it is gone. It may be called twice.
func (c *child) kill() {
	if c.outside != nil {
		return
	}
	if c.keeps {
		_ = c.in.Close() // it may have ended already
		select {
		case <-c.exited:
		case <-time.After(program.StopLimit):
		}
	}
	_ = c.cmd.Process.Kill() // it may have ended already
	for range c.lines {      // let the reader go on to Wait
	}
	<-c.exited
	_ = c.in.Close()
}

// tail keeps the last kilobytes written to it. Only the child's copying
// goroutine writes; it is read after the child has ended.
type tail struct{ buf bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if over := t.buf.Len() - 4096; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string { return t.buf.String() }
