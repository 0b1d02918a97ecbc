// Package netlink asks the running kernel over netlink(7): what there is of a kind, and to
// change something. What the messages are about is left to others.
package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Conn is a socket in the network namespace of the thread that opened it. It is for one
// goroutine at a time.
type Conn struct {
	fd  int
	seq uint32
	buf []byte
}

// patience is for how long an answer of the kernel is waited for, in seconds.
const patience = 1

// Open opens a socket of a protocol, as NETLINK_ROUTE.
func Open(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &Conn{fd: fd, buf: make([]byte, 64<<10)}
	err = errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience})),
		os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})),
	)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	// It says why it refuses, if it can.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return c, nil
}

// Close closes it.
func (c *Conn) Close() error { return os.NewSyscallError("close", unix.Close(c.fd)) }

// Dump asks for all that there is of a kind and calls each with what comes. The error is a
// unix.Errno where the kernel refuses.
func (c *Conn) Dump(kind uint16, body []byte, each func(payload []byte) error) error {
	return c.talk(kind, unix.NLM_F_DUMP, body, each)
}

// Request asks for something to be done, with further flags, as NLM_F_CREATE. The error is
// a unix.Errno, with the kernel's reason if it has one, where the kernel refuses.
func (c *Conn) Request(kind, flags uint16, body []byte) error {
	return c.talk(kind, flags|unix.NLM_F_ACK, body, func([]byte) error { return nil })
}

// talk sends a request and takes the answers. Other processes cannot answer in the kernel's place.
func (c *Conn) talk(kind, flags uint16, body []byte, each func([]byte) error) error {
	c.seq++
	request := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(body))
	binary.NativeEndian.PutUint32(request, uint32(unix.NLMSG_HDRLEN+len(body)))
	binary.NativeEndian.PutUint16(request[4:], kind)
	binary.NativeEndian.PutUint16(request[6:], flags|unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(request[8:], c.seq)
	if err := unix.Sendto(c.fd, append(request, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	for {
		size, from, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		done, err := messages(c.buf[:size], c.seq, each)
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
		kind, flags, answers := binary.NativeEndian.Uint16(data[4:]), binary.NativeEndian.Uint16(data[6:]), binary.NativeEndian.Uint32(data[8:])
		payload := data[unix.NLMSG_HDRLEN:size]
		data = data[min(align(size), len(data)):]
		if answers != seq {
			continue // what is left of a request that failed
		}
		switch kind {
		case unix.NLMSG_DONE:
			return true, failure(payload)
		case unix.NLMSG_ERROR:
			return true, refusal(flags, payload)
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

// refusal is the error of a struct nlmsgerr, nil for an acknowledgement.
func refusal(flags uint16, payload []byte) error {
	const (
		begins = 4 + unix.NLMSG_HDRLEN // with the code and the header of the request
		text   = 1                     // NLMSGERR_ATTR_MSG
	)
	if len(payload) < begins {
		return errors.New("half an answer of netlink")
	}
	err := failure(payload)
	if err == nil || flags&unix.NLM_F_ACK_TLVS == 0 {
		return err
	}
	rest := payload[begins:]
	if flags&unix.NLM_F_CAPPED == 0 { // the request is repeated
		size := align(int(binary.NativeEndian.Uint32(payload[4:]))) - unix.NLMSG_HDRLEN
		rest = rest[min(max(size, 0), len(rest)):]
	}
	why := ""
	_ = Attributes(rest, func(kind uint16, value []byte) {
		if kind == text {
			why = unix.ByteSliceToString(value)
		}
	})
	if why != "" {
		err = fmt.Errorf("%w: %s", err, why)
	}
	return err
}

// Attributes calls each with the attributes of a message; the error says that one is not
// whole, and comes after those before it.
func Attributes(data []byte, each func(kind uint16, value []byte)) error {
	for len(data) > 0 {
		if len(data) < unix.SizeofRtAttr {
			return errors.New("half an attribute")
		}
		size := int(binary.NativeEndian.Uint16(data))
		if size < unix.SizeofRtAttr || size > len(data) {
			return fmt.Errorf("an attribute of %d bytes in %d", size, len(data))
		}
		each(binary.NativeEndian.Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), data[unix.SizeofRtAttr:size])
		data = data[min(align(size), len(data)):]
	}
	return nil
}

// Attribute appends one, padded.
func Attribute(to []byte, kind uint16, value []byte) []byte {
	to = binary.NativeEndian.AppendUint16(to, uint16(unix.SizeofRtAttr+len(value)))
	to = binary.NativeEndian.AppendUint16(to, kind)
	to = append(to, value...)
	return append(to, make([]byte, align(len(value))-len(value))...)
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
