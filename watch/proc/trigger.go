package proc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// Trigger is what the kernel is to tell of a pressure file: that some task has waited for a time
// Stall within a Window.
type Trigger struct {
	// Path is the file, as for the operating system: /proc/pressure/cpu, or cpu.pressure of a
	// group.
	Path string
	// Stall is at most Window, Window at most 10 s. Kernels before 6.4 take no Window below 500 ms.
	Stall, Window time.Duration
}

// open has the kernel watch. It does so until the descriptor is closed.
func (t Trigger) open() (fd int, err error) {
	for {
		if fd, err = unix.Open(t.Path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return -1, t.notSupported(&fs.PathError{Op: "open", Path: t.Path, Err: err})
	}
	// The kernel cuts off the last byte.
	text := fmt.Sprintf("some %d %d\n", t.Stall.Microseconds(), t.Window.Microseconds())
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return -1, errors.Join(t.notSupported(&fs.PathError{Op: "write", Path: t.Path, Err: err}), unix.Close(fd))
	}
	return fd, nil
}

// notSupported turns a refusal into a kernel.NotSupportedError.
func (t Trigger) notSupported(err error) error {
	no := &kernel.NotSupportedError{Feature: "a PSI trigger on " + t.Path}
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP):
		return PressureNotSupported(t.Path, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		no.Reason, no.Remedy = "this process may not set one", "run as root with CAP_SYS_RESOURCE"
	case errors.Is(err, syscall.EINVAL):
		no.Reason = fmt.Sprintf("the kernel takes no window of %v", t.Window)
		no.Remedy = "run with CAP_SYS_RESOURCE; windows of less than 500ms take kernel 6.4"
	default:
		return err
	}
	return no
}

// Triggers are PSI triggers (Documentation/accounting/psi.rst). While a task waits, a thread
// of the kernel for each file (psimon) looks ten times a window; else nothing is done at all.
// A trigger is no setting: it ends with its descriptor, however the process ends.
//
// Set and Keep may be called while another goroutine is in Wait.
type Triggers struct {
	epoll, poke int

	mu      sync.Mutex
	all     map[string]*trigger
	last    int32 // id that was given
	retired []int // descriptors that Wait is to close
	closed  bool
}

type trigger struct {
	Trigger
	fd int
	id int32 // not reused, as a descriptor is: what was told of one that is gone is known
}

// NewTriggers returns none.
func NewTriggers() (*Triggers, error) {
	t := &Triggers{all: map[string]*trigger{}}
	var err error
	if t.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if t.poke, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(os.NewSyscallError("eventfd", err), unix.Close(t.epoll))
	}
	if err = t.control(unix.EPOLL_CTL_ADD, t.poke, unix.EPOLLIN, 0); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// once is what is waited for: one firing, as what is under pressure stays so for long.
const once = unix.EPOLLPRI | unix.EPOLLONESHOT

func (t *Triggers) control(op, fd int, events uint32, id int32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(t.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: id}))
}

// Set has Wait tell once, under a name, that a trigger has fired. What is set under this name
// already is replaced. What the kernel or the rights of this process do not allow is a
// kernel.NotSupportedError.
func (t *Triggers) Set(name string, trig Trigger) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return fmt.Errorf("set trigger of %s: %w", trig.Path, os.ErrClosed)
	}
	if have := t.all[name]; have != nil && have.Trigger == trig {
		return t.control(unix.EPOLL_CTL_MOD, have.fd, once, have.id)
	}
	fd, err := trig.open()
	if err != nil {
		return fmt.Errorf("set trigger: %w", err)
	}
	t.last++
	if err := t.control(unix.EPOLL_CTL_ADD, fd, once, t.last); err != nil {
		return errors.Join(fmt.Errorf("set trigger of %s: %w", trig.Path, err), unix.Close(fd))
	}
	t.retire(name)
	t.all[name] = &trigger{trig, fd, t.last}
	return nil
}

// Keep removes the triggers under other names than these.
func (t *Triggers) Keep(names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.all {
		if !slices.Contains(names, name) {
			t.retire(name)
		}
	}
}

// retire has nothing be told any more under a name. Closing is left to Wait, as the kernel
// waits for all its CPUs meanwhile (a grace period of RCU), for tens of milliseconds.
func (t *Triggers) retire(name string) {
	if have := t.all[name]; have != nil {
		_ = t.control(unix.EPOLL_CTL_DEL, have.fd, 0, 0)
		t.retired = append(t.retired, have.fd)
		delete(t.all, name)
		t.wake()
	}
}

// wake has Wait look up.
func (t *Triggers) wake() {
	if !t.closed {
		_, _ = unix.Write(t.poke, binary.NativeEndian.AppendUint64(nil, 1)) // if it is full, Wait looks up anyway
	}
}

// Wait returns the name of a trigger that has fired, or whose file is gone, in which case the
// trigger is gone too. When the context ends, all triggers are removed, and it returns the
// context's error.
func (t *Triggers) Wait(ctx context.Context) (name string, gone bool, err error) {
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.wake()
	})
	defer stop()
	for events := make([]unix.EpollEvent, 1); ; {
		if ctx.Err() != nil {
			t.Keep(nil)
		}
		if err := errors.Join(ctx.Err(), t.closeRetired()); err != nil {
			return "", false, err
		}
		n, err := unix.EpollWait(t.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			return "", false, os.NewSyscallError("epoll_wait", err)
		}
		if n < 1 {
			continue
		}
		if name, gone, ok := t.told(events[0]); ok {
			return name, gone, nil
		}
	}
}

// told says what an event means, if anything.
func (t *Triggers) told(e unix.EpollEvent) (name string, gone, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Fd == 0 {
		_, _ = unix.Read(t.poke, make([]byte, 8))
		return "", false, false
	}
	for name, have := range t.all {
		if have.id != e.Fd {
			continue
		}
		if gone = e.Events&(unix.EPOLLERR|unix.EPOLLHUP) != 0; gone {
			t.retire(name)
		}
		return name, gone, true
	}
	return "", false, false
}

func (t *Triggers) closeRetired() error {
	t.mu.Lock()
	retired := t.retired
	t.retired = nil
	t.mu.Unlock()
	var errs []error
	for _, fd := range retired {
		errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
	}
	return errors.Join(errs...)
}

// Close removes all triggers. Nobody may be in Wait.
func (t *Triggers) Close() error {
	t.Keep(nil)
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	return errors.Join(t.closeRetired(), unix.Close(t.epoll), unix.Close(t.poke))
}
