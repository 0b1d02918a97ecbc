package kernel

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// ReadPeer returns the process that connected, or listens, at the other end of a Unix socket, and
// the user and group that it had then (SO_PEERCRED, unix(7)). Of another connection it is an error.
func ReadPeer(conn net.Conn) (peer unix.Ucred, err error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return peer, fmt.Errorf("read the peer of a %T: not a Unix socket", conn)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return peer, err
	}
	var cred *unix.Ucred
	if controlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); controlErr != nil || err != nil {
		return peer, fmt.Errorf("read the peer of a Unix socket: %w", errors.Join(controlErr, err))
	}
	return *cred, nil
}
