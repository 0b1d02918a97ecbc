package noise

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// sendBytes is what one step sends.
	sendBytes = 16 * kib
	// sendBuffer bounds what a connection has sent and the link has not: what is counted and
	// never left, and what still leaves when the neighbour was stopped.
	sendBuffer = 128 * kib
)

// sender sends over a connection as much as that takes.
type sender struct {
	fd  int
	buf [sendBytes]byte
}

func newSender(c Config, _ int64, _ uint64) (worker, error) {
	to, err := netip.ParseAddrPort(c.Address)
	if err == nil && !to.Addr().Is4() {
		err = errors.New("want an IPv4 address")
	}
	if err != nil {
		return nil, fmt.Errorf("send: address: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("send: socket: %w", err)
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer/2); err == nil { // the kernel doubles it
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("send: connect to %s: %w", to, err), unix.Close(fd))
	}
	return &sender{fd: fd}, nil
}

func (s *sender) step() (uint64, error) {
	n, err := unix.Write(s.fd, s.buf[:])
	if err == unix.EINTR {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("send: %w", err)
	}
	return uint64(n), nil
}

func (s *sender) close() error { return unix.Close(s.fd) }
