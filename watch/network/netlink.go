package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// netlink is a socket for dumps (netlink(7)).
type netlink struct {
	fd  int
	seq uint32
	buf []byte
}

// patience is for how long an answer of the kernel is waited for, in seconds.
const patience = 1

func openNetlink(protocol int) (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	n := &netlink{fd: fd, buf: make([]byte, 64<<10)}
	err = errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience})),
		os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})),
	)
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *netlink) Close() error { return os.NewSyscallError("close", unix.Close(n.fd)) }

// dump asks for all that there is of a kind and calls each with what comes. Other processes
// cannot answer in the kernel's place.
func (n *netlink) dump(kind uint16, request []byte, each func(payload []byte) error) error {
	n.seq++
	head := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(request))
	binary.NativeEndian.PutUint32(head, uint32(unix.NLMSG_HDRLEN+len(request)))
	binary.NativeEndian.PutUint16(head[4:], kind)
	binary.NativeEndian.PutUint16(head[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	binary.NativeEndian.PutUint32(head[8:], n.seq)
	if err := unix.Sendto(n.fd, append(head, request...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	for {
		size, from, err := unix.Recvfrom(n.fd, n.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		done, err := messages(n.buf[:size], n.seq, each)
		if done || err != nil {
			return err
		}
	}
}

// messages calls each with the payload of every message of a datagram that answers a
// request; done is true after the last.
func messages(data []byte, seq uint32, each func([]byte) error) (done bool, err error) {
	for len(data) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(data))
		if size < unix.NLMSG_HDRLEN || size > len(data) {
			return false, fmt.Errorf("netlink message of %d bytes in %d", size, len(data))
		}
		kind, answers, payload := binary.NativeEndian.Uint16(data[4:]), binary.NativeEndian.Uint32(data[8:]), data[unix.NLMSG_HDRLEN:size]
		data = data[min(align(size), len(data)):]
		if answers != seq {
			continue // what is left of a request that failed
		}
		switch kind {
		case unix.NLMSG_DONE:
			return true, failure(payload)
		case unix.NLMSG_ERROR:
			return true, failure(payload)
		case unix.NLMSG_NOOP:
		default:
			if err := each(payload); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// failure is the error that a message begins with, if it is one.
func failure(payload []byte) error {
	if len(payload) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(payload)); code < 0 {
		return unix.Errno(-code)
	}
	return nil
}

// attributes calls each with the attributes of a message, as far as they are whole.
func attributes(data []byte, each func(kind uint16, value []byte)) {
	for len(data) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(data))
		if size < unix.SizeofRtAttr || size > len(data) {
			return
		}
		each(binary.NativeEndian.Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), data[unix.SizeofRtAttr:size])
		data = data[min(align(size), len(data)):]
	}
}

func align(n int) int { return (n + 3) &^ 3 }

// attribute appends one.
func attribute(to []byte, kind uint16, value []byte) []byte {
	to = binary.NativeEndian.AppendUint16(to, uint16(unix.SizeofRtAttr+len(value)))
	to = binary.NativeEndian.AppendUint16(to, kind)
	to = append(to, value...)
	return append(to, make([]byte, align(len(value))-len(value))...)
}
