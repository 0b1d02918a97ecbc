package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killTime bounds Kill. A process that has been sent SIGKILL ends as soon as it leaves
// the kernel, which takes longer only if the kernel itself is stuck or slow.
const killTime = 10 * time.Second

// AliveError says which processes have been sent SIGKILL and have not ended.
type AliveError struct {
	Left []Alive `json:"left"`
}

// Alive is a process that has been sent SIGKILL and has not ended.
type Alive struct {
	PID int `json:"pid"`
	// State is the state in proc_pid_stat(5): "D" is an uninterruptible wait, usually for
	// a disk or a network file system. It is empty if it could not be read.
	State string `json:"state,omitempty"`
	// Frozen is the directory, relative to the Root, of the v1 freezer group that holds
	// the process frozen; empty if there is none. A frozen process is shown in state D, too.
	Frozen string `json:"frozen,omitempty"`
}

func (a Alive) String() string {
	switch {
	case a.Frozen != "":
		return fmt.Sprintf("%d (frozen by /%s: thaw that group)", a.PID, a.Frozen)
	case a.State == "D":
		return fmt.Sprintf("%d (state D: it waits in the kernel and cannot be interrupted)", a.PID)
	case a.State != "":
		return fmt.Sprintf("%d (state %s)", a.PID, a.State)
	}
	return strconv.Itoa(a.PID)
}

// maxNamed is how many processes an AliveError names in its text.
const maxNamed = 8

func (e *AliveError) Error() string {
	var names []string
	for _, a := range e.Left[:min(len(e.Left), maxNamed)] {
		names = append(names, a.String())
	}
	text := "SIGKILL was sent, but these processes have not ended: " + strings.Join(names, ", ")
	if more := len(e.Left) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Kill sends SIGKILL to the processes that list returns, again and again, until it
// returns none. It gives up after 10 s, or when ctx ends, with an *AliveError that lists
// the processes left, joined with the context's error if that was the reason. With a context that has ended
// it sends the signal once and does not wait. A call of list that has begun is waited for.
//
// A process is signalled only if list returns its number while a pidfd holds on to it
// (pidfd_open(2), Linux 5.3), so that another process that has got the number meanwhile
// gets no signal.
func (r *Root) Kill(ctx context.Context, list func() ([]int, error)) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		pids, err := list()
		if err != nil || len(pids) == 0 {
			return err
		}
		for some := range slices.Chunk(pids, pinned) {
			if err := r.killListed(some, list); err != nil {
				return err
			}
			if bounded.Err() != nil {
				break
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), r.alive(pids))
		case <-bounded.Done():
			if pids, err = list(); err != nil || len(pids) == 0 {
				return err
			}
			return r.alive(pids)
		case <-time.After(wait):
		}
	}
}

// pinned is how many processes are held on to at once.
const pinned = 64

func (r *Root) killListed(pids []int, list func() ([]int, error)) error {
	var pins []*pin
	defer func() {
		for _, p := range pins {
			p.close()
		}
	}()
	for _, pid := range pids {
		p, err := r.pin(pid)
		if errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		pins = append(pins, p)
	}
	still, err := list()
	if err != nil {
		return err
	}
	for _, p := range pins {
		if !slices.Contains(still, p.pid) {
			continue
		}
		if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("process %d: %w", p.pid, err)
		}
	}
	return nil
}

func (r *Root) alive(pids []int) *AliveError {
	e := &AliveError{}
	for _, pid := range pids {
		a := Alive{PID: pid}
		if p, err := ReadProcess(r.FS(), strconv.Itoa(pid)); err == nil {
			a.State = string(p.State)
		}
		e.Left = append(e.Left, a)
	}
	return e
}

// pin holds on to a process: signals reach it, or no process at all.
type pin struct {
	root  *Root
	pid   int
	fd    int    // a pidfd, -1 without one
	start string // when the process started, without a pidfd
}

// pin holds on to the process that has a number now. Where the kernel has no pidfd, or
// the tree is a test's, the start time takes its place. The error is ESRCH if there is no
// such process.
func (r *Root) pin(pid int) (*pin, error) {
	if r.isLive {
		fd, err := unix.PidfdOpen(pid, 0)
		if !errors.Is(err, syscall.ENOSYS) {
			return &pin{r, pid, fd, ""}, err
		}
	}
	start := r.startTime(strconv.Itoa(pid))
	if start == "" {
		return nil, syscall.ESRCH
	}
	return &pin{r, pid, -1, start}, nil
}

func (p *pin) signal(sig syscall.Signal) error {
	if p.fd >= 0 {
		return unix.PidfdSendSignal(p.fd, sig, nil, 0)
	}
	if p.root.startTime(strconv.Itoa(p.pid)) != p.start {
		return syscall.ESRCH
	}
	return p.root.Signal(p.pid, sig)
}

func (p *pin) close() {
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
	}
}
