package load

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// poller waits for sockets and for an instant, with nanosecond timeouts:
// epoll_pwait2 (Linux 5.11), or a timerfd in the set where that is missing.
type poller struct {
	fd     int
	timer  int // timerfd, or none where the kernel has epoll_pwait2
	events [64]unix.EpollEvent
}

// timerToken marks the timer's event; sockets use their connection's number.
const timerToken = -1

// newPoller probes for epoll_pwait2 unless told to do without.
func newPoller(withoutPwait2 bool) (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	p := &poller{fd: fd, timer: none}
	if !withoutPwait2 {
		_, err := p.pwait2(0)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) { // EPERM: a seccomp filter
			p.close()
			return nil, fmt.Errorf("epoll_pwait2: %w", err)
		}
	}
	if p.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		p.close()
		return nil, fmt.Errorf("create timerfd: %w", err)
	}
	if err := p.control(unix.EPOLL_CTL_ADD, p.timer, timerToken, unix.EPOLLIN|unix.EPOLLET); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *poller) close() error {
	err := unix.Close(p.fd)
	if p.timer != none {
		err = errors.Join(err, unix.Close(p.timer))
	}
	return err
}

// control adds or changes a descriptor; token comes back in its events.
func (p *poller) control(op, fd, token int, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: int32(token)}
	if err := unix.EpollCtl(p.fd, op, fd, &event); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// wait returns the events there are, waiting at most ns nanoseconds for the
// first. None at all is not an error: time is up, or a signal came.
func (p *poller) wait(ns int64) ([]unix.EpollEvent, error) {
	var n int
	var err error
	if p.timer == none {
		n, err = p.pwait2(max(ns, 0))
	} else {
		n, err = p.timed(max(ns, 0))
	}
	if err == unix.EINTR {
		return nil, nil
	}
	return p.events[:n], err
}

func (p *poller) pwait2(ns int64) (int, error) {
	timeout := unix.NsecToTimespec(ns)
	// A raw system call: the Go scheduler neither hands this thread's place
	// away during the wait nor makes it queue for one afterwards.
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd),
		uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)),
		uintptr(unsafe.Pointer(&timeout)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func (p *poller) timed(ns int64) (int, error) {
	block := -1
	if ns == 0 {
		block = 0
	} else {
		set := unix.ItimerSpec{Value: unix.NsecToTimespec(ns)}
		if err := unix.TimerfdSettime(p.timer, 0, &set, nil); err != nil {
			return 0, err
		}
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd),
		uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), uintptr(block), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
