package psi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// Trigger is a threshold: that much stall within any window of that length.
type Trigger struct {
	// Full counts the time in which all tasks waited; by default that in which
	// at least one did.
	Full bool
	// Stall and Window are rounded down to microseconds. Window is at most 10 s;
	// without CAP_SYS_RESOURCE it is a multiple of 2 s.
	Stall, Window time.Duration
}

// Validate says what no kernel would accept.
func (t Trigger) Validate() error {
	switch {
	case t.Window < time.Microsecond || t.Window > 10*time.Second:
		return fmt.Errorf("pressure window %v: not above 0 and at most 10s", t.Window)
	case t.Stall < time.Microsecond || t.Stall > t.Window:
		return fmt.Errorf("pressure stall %v: not above 0 and at most the window of %v", t.Stall, t.Window)
	}
	return nil
}

// String returns the trigger as the kernel reads it, "some 150000 1000000".
func (t Trigger) String() string {
	kind := "some"
	if t.Full {
		kind = "full"
	}
	return fmt.Sprintf("%s %d %d", kind, t.Stall.Microseconds(), t.Window.Microseconds())
}

// Event says that the pressure in a file reached its trigger, or that the group
// of the file is gone; the latter has been removed from the Monitor.
type Event struct {
	Path string
	Gone bool
}

// Monitor waits for triggers of any number of files. It is for one goroutine at a
// time, whose thread sleeps in Wait. The runtime's poller cannot do it: asking
// whether an epoll descriptor is ready takes the events that it holds.
type Monitor struct {
	epoll int
	wake  int            // an eventfd: a context ended
	files map[string]int // descriptors by path
	paths map[int]string
	ready []Event
}

// NewMonitor returns a Monitor that waits for nothing yet.
func NewMonitor() (*Monitor, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("monitor pressure: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("monitor pressure: %w", err)
	}
	m := &Monitor{epoll: epoll, wake: wake, files: map[string]int{}, paths: map[int]string{}}
	if err := m.register(wake, unix.EPOLLIN); err != nil {
		m.Close()
		return nil, fmt.Errorf("monitor pressure: %w", err)
	}
	return m, nil
}

func (m *Monitor) register(fd int, events uint32) error {
	return unix.EpollCtl(m.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// Add arms a trigger on a pressure file, named as for the operating system. A
// file has one trigger per Monitor. Where the kernel keeps no pressure, or
// refuses the window or the right to arm, it is a kernel.NotSupportedError; where
// the group is gone, fs.ErrNotExist.
func (m *Monitor) Add(path string, t Trigger) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if _, ok := m.files[path]; ok {
		return fmt.Errorf("arm pressure trigger of %s: %w", path, fs.ErrExist)
	}
	fd, err := arm(path, t)
	if err == nil {
		if err = m.register(fd, unix.EPOLLPRI); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return fmt.Errorf("arm pressure trigger of %s: %w", path, refusal(path, t, err))
	}
	m.files[path], m.paths[fd] = fd, path
	return nil
}

// arm opens the file, whose trigger lives as long as the descriptor.
func arm(path string, t Trigger) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	// The kernel takes the last byte for a terminator.
	if _, err := unix.Write(fd, []byte(t.String()+"\x00")); err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

func refusal(path string, t Trigger, err error) error {
	switch {
	case errors.Is(err, syscall.EINVAL) && t.Window%(2*time.Second) != 0:
		return &kernel.NotSupportedError{
			Feature: "pressure window of " + t.Window.String(),
			Reason:  "the kernel refused it",
			Remedy:  "use a multiple of 2s, or CAP_SYS_RESOURCE and from 500ms up",
		}
	case errors.Is(err, fs.ErrPermission):
		return &kernel.NotSupportedError{
			Feature: "pressure trigger",
			Reason:  err.Error(),
			Remedy:  "run with CAP_SYS_RESOURCE and the right to write the file; a kernel 6.5 or newer needs only the latter",
		}
	}
	if _, gone := os.Stat(filepath.Dir(path)); gone != nil {
		return err
	}
	return NotSupported(path, err)
}

// Remove disarms the trigger of a file; it is no error if there is none.
func (m *Monitor) Remove(path string) {
	if fd, ok := m.files[path]; ok {
		delete(m.files, path)
		delete(m.paths, fd)
		unix.Close(fd) // leaves the epoll set by itself
	}
}

// Wait returns the next event, or the context's error.
func (m *Monitor) Wait(ctx context.Context) (Event, error) {
	for len(m.ready) == 0 {
		if err := m.wait(ctx); err != nil {
			return Event{}, fmt.Errorf("wait for pressure: %w", err)
		}
	}
	event := m.ready[0]
	m.ready = m.ready[1:]
	return event, nil
}

func (m *Monitor) wait(ctx context.Context) error {
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		unix.Write(m.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		close(woken)
	})
	defer func() {
		if !stop() {
			<-woken // so that nothing is written after Close
		}
	}()
	var events [16]unix.EpollEvent
	n, err := unix.EpollWait(m.epoll, events[:], -1)
	if err != nil && err != unix.EINTR {
		return err
	}
	for _, e := range events[:max(n, 0)] {
		if int(e.Fd) == m.wake {
			var count [8]byte
			unix.Read(m.wake, count[:])
			continue
		}
		m.note(int(e.Fd), e.Events)
	}
	return ctx.Err()
}

func (m *Monitor) note(fd int, events uint32) {
	path, ok := m.paths[fd]
	if !ok {
		return
	}
	gone := events&unix.EPOLLERR != 0
	if gone {
		m.Remove(path)
	}
	m.ready = append(m.ready, Event{path, gone})
}

// Close disarms all triggers.
func (m *Monitor) Close() error {
	for path := range m.files {
		m.Remove(path)
	}
	return errors.Join(unix.Close(m.wake), unix.Close(m.epoll))
}
