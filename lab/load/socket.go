package load

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// connectTimeoutSeconds bounds each connect before the start.
const connectTimeoutSeconds = 5

// network is what an address is of, for net.Dial: "tcp", or "unix" (Target.Addr).
func network(addr string) string {
	if strings.HasPrefix(addr, "@") {
		return "unix"
	}
	return "tcp"
}

// resolve turns an address into that of a socket, and its family.
func resolve(addr string) (unix.Sockaddr, int, error) {
	if network(addr) == "unix" {
		return &unix.SockaddrUnix{Name: addr}, unix.AF_UNIX, nil
	}
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, 0, fmt.Errorf("resolve %s: %w", addr, err)
	}
	if ip := tcp.IP.To4(); ip != nil {
		return &unix.SockaddrInet4{Port: tcp.Port, Addr: [4]byte(ip)}, unix.AF_INET, nil
	}
	if ip := tcp.IP.To16(); ip != nil {
		return &unix.SockaddrInet6{Port: tcp.Port, Addr: [16]byte(ip)}, unix.AF_INET6, nil
	}
	return nil, 0, fmt.Errorf("resolve %s: no host", addr)
}

// dial opens a connection and waits for it.
func dial(to address) (fd int, err error) {
	fd, err = unix.Socket(to.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return none, fmt.Errorf("socket: %w", err)
	}
	limit := unix.Timeval{Sec: connectTimeoutSeconds} // SO_SNDTIMEO also bounds connect(2)
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	for err == nil {
		if err = unix.Connect(fd, to.socket); err != unix.EINTR {
			break
		}
		err = nil
	}
	if err == unix.EISCONN { // an interrupted connect that went on by itself
		err = nil
	}
	if err == unix.EINPROGRESS {
		err = unix.ETIMEDOUT
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err == nil {
		err = noDelay(fd, to)
	}
	if err != nil {
		unix.Close(fd)
		return none, err
	}
	return fd, nil
}

// noDelay has what is written sent at once.
func noDelay(fd int, to address) error {
	if to.family == unix.AF_UNIX {
		return nil // it always is
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
}

// dialLater begins to open a connection: it is writable when open or refused.
func dialLater(to address) (fd int, err error) {
	fd, err = unix.Socket(to.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return none, err
	}
	if err = noDelay(fd, to); err == nil {
		err = unix.Connect(fd, to.socket)
	}
	if err != nil && err != unix.EINPROGRESS && err != unix.EINTR {
		unix.Close(fd)
		return none, err
	}
	return fd, nil
}

// greet opens a session on a connection and waits for it.
func greet(fd int, g greeting) error {
	if g == nil {
		return nil
	}
	buffer := make([]byte, 4<<10)
	send, done, err := g.next(nil)
	for !done && err == nil {
		for len(send) > 0 && err == nil {
			var n int
			if n, err = unix.Write(fd, send); err == unix.EAGAIN {
				err = await(fd, unix.POLLOUT)
			} else if err == nil {
				send = send[n:]
			}
		}
		if err == nil {
			err = await(fd, unix.POLLIN)
		}
		if err != nil {
			break
		}
		n, wrong := unix.Read(fd, buffer)
		switch {
		case wrong != nil:
			err = wrong
		case n == 0:
			err = errors.New("the server closed the connection before the session was open")
		default:
			send, done, err = g.next(buffer[:n])
		}
	}
	return err
}

// await waits until a socket is ready, at most connectTimeoutSeconds.
func await(fd int, events int16) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		n, err := unix.Poll(fds, connectTimeoutSeconds*1000)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("the server said nothing for %d s: does it speak this protocol?", connectTimeoutSeconds)
		default:
			return nil
		}
	}
}

// send and receive are raw system calls on non-blocking sockets: they do not
// tell the Go scheduler, so the thread keeps its place. p must not be empty.

func send(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
		uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

func receive(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}
