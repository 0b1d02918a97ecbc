package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The messages are those of include/uapi/linux/rtnetlink.h and pkt_sched.h.

const handleRoot = 0xffffffff // TC_H_ROOT, as a parent

// Attributes.
const (
	tcaKind      = 1
	tcaOptions   = 2
	htbParms     = 1
	htbInit      = 2
	htbRate64    = 6
	htbCeil64    = 7
	nested       = 1 << 15 // NLA_F_NESTED
	extAckText   = 1       // NLMSGERR_ATTR_MSG
	sizeOfTC     = 20      // struct tcmsg
	sizeOfHTBOpt = 44      // struct tc_htb_opt
)

var order = binary.NativeEndian

// message is a struct tcmsg with its attributes.
type message struct {
	index          int
	handle, parent uint32
	kind           string
	options        []byte // attributes
}

func (m message) bytes() []byte {
	b := make([]byte, sizeOfTC)
	order.PutUint32(b[4:], uint32(m.index))
	order.PutUint32(b[8:], m.handle)
	order.PutUint32(b[12:], m.parent)
	if m.kind != "" {
		b = attribute(b, tcaKind, append([]byte(m.kind), 0))
	}
	if m.options != nil {
		b = attribute(b, tcaOptions|nested, m.options)
	}
	return b
}

// parseMessage reads what the kernel answers.
func parseMessage(b []byte) (m message, err error) {
	if len(b) < sizeOfTC {
		return m, fmt.Errorf("a message of %d bytes", len(b))
	}
	m = message{index: int(int32(order.Uint32(b[4:]))), handle: order.Uint32(b[8:]), parent: order.Uint32(b[12:])}
	return m, attributes(b[sizeOfTC:], func(kind uint16, value []byte) {
		switch kind {
		case tcaKind:
			m.kind = strings.TrimRight(string(value), "\x00")
		case tcaOptions:
			m.options = value
		}
	})
}

// attribute appends one, padded to 4 bytes.
func attribute(b []byte, kind uint16, value []byte) []byte {
	b = order.AppendUint16(b, uint16(4+len(value)))
	b = order.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// attributes calls do for each.
func attributes(b []byte, do func(kind uint16, value []byte)) error {
	for len(b) > 0 {
		if len(b) < 4 {
			return errors.New("half an attribute")
		}
		size := int(order.Uint16(b))
		if size < 4 || size > len(b) {
			return fmt.Errorf("an attribute of %d bytes in %d", size, len(b))
		}
		do(order.Uint16(b[2:])&^nested, b[4:size])
		b = b[min(size+(-size&3), len(b)):]
	}
	return nil
}

// htbOptions are those of Berth's discipline: struct tc_htb_glob.
func htbOptions() []byte {
	const version, rateToQuantum = 3, 10
	b := make([]byte, 20)
	order.PutUint32(b, version)
	order.PutUint32(b[4:], rateToQuantum)
	order.PutUint32(b[8:], othersMinor) // where unmarked packets go
	return attribute(nil, htbInit, b)
}

// options are those of a class. What it may send at once is what its rate comes to in 4 ms, so
// that a late timer costs nothing, and what it sends in its turn is by its rate, too.
func (c Class) options() []byte {
	const frame, burstsPerSecond, turnsPerSecond, longestTurn = 2000, 250, 1000, 60_000
	b := make([]byte, sizeOfHTBOpt)
	for at, rate := range map[int]uint64{0: c.Rate, 12: c.Ceil} {
		b[at+1] = 1 // TC_LINKLAYER_ETHERNET
		order.PutUint32(b[at+8:], uint32(min(rate, 1<<32-1)))
		// In ticks of 64 ns (PSCHED_SHIFT in include/net/pkt_sched.h).
		burst := rate/burstsPerSecond + frame
		order.PutUint32(b[24+at/3:], uint32(min(float64(burst)/float64(rate)*1e9/64, 1<<32-1)))
	}
	order.PutUint32(b[32:], uint32(min(max(c.Rate/turnsPerSecond, frame), longestTurn)))
	order.PutUint32(b[40:], c.Prio)
	all := attribute(nil, htbParms, b)
	for kind, rate := range map[uint16]uint64{htbRate64: c.Rate, htbCeil64: c.Ceil} {
		if rate >= 1<<32 {
			all = attribute(all, kind, order.AppendUint64(nil, rate))
		}
	}
	return all
}

// parseHTB reads the options of a class.
func parseHTB(options []byte) (c Class, err error) {
	var rate, ceil uint64 // where they do not fit
	found := false
	err = attributes(options, func(kind uint16, b []byte) {
		switch {
		case kind == htbParms && len(b) >= sizeOfHTBOpt:
			found = true
			c = Class{uint64(order.Uint32(b[8:])), uint64(order.Uint32(b[20:])), order.Uint32(b[40:])}
		case kind == htbRate64 && len(b) >= 8:
			rate = order.Uint64(b)
		case kind == htbCeil64 && len(b) >= 8:
			ceil = order.Uint64(b)
		}
	})
	if err == nil && !found {
		err = errors.New("a class of HTB without parameters")
	}
	c.Rate, c.Ceil = max(c.Rate, rate), max(c.Ceil, ceil)
	return c, err
}

// request has the kernel do something.
func request(kind uint16, flags uint16, m message) error { return ask(kind, flags, m.bytes()) }

// ask is request with a message of any type.
func ask(kind, flags uint16, body []byte) error {
	return talk(kind, flags|unix.NLM_F_ACK, body, func(message) {})
}

// dump has the kernel tell something.
func dump(kind uint16, m message, each func(message)) error {
	return talk(kind, unix.NLM_F_DUMP, m.bytes(), each)
}

func talk(kind, flags uint16, body []byte, each func(message)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	defer unix.Close(fd)
	// It says why it refuses, if it can.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	b := make([]byte, 0, unix.SizeofNlMsghdr+len(body))
	b = order.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	b = order.AppendUint16(b, kind)
	b = order.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = order.AppendUint32(b, 1) // sequence
	b = order.AppendUint32(b, 0) // the kernel names the sender
	if err := unix.Sendto(fd, append(b, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	answer := make([]byte, 64<<10)
	for {
		n, from, err := unix.Recvfrom(fd, answer, 0)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // not the kernel
		}
		done, err := receive(answer[:n], each)
		if done || err != nil {
			return err
		}
	}
}

// receive reads a part of an answer; done is true of the last one.
func receive(answer []byte, each func(message)) (done bool, err error) {
	all, err := syscall.ParseNetlinkMessage(answer)
	if err != nil {
		return true, fmt.Errorf("netlink: %w", err)
	}
	for _, m := range all {
		switch m.Header.Type {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			return true, refusal(m.Header.Flags, m.Data)
		}
		of, err := parseMessage(m.Data)
		if err != nil {
			return true, fmt.Errorf("netlink: %w", err)
		}
		each(of)
	}
	return false, nil
}

// refusal is the error of a struct nlmsgerr, nil for an acknowledgement.
func refusal(flags uint16, b []byte) error {
	if len(b) < 4+unix.SizeofNlMsghdr {
		return errors.New("netlink: half an answer")
	}
	code := int32(order.Uint32(b))
	if code == 0 {
		return nil
	}
	why := ""
	rest := b[4+unix.SizeofNlMsghdr:]
	if flags&unix.NLM_F_CAPPED == 0 { // the request is repeated
		size := int(order.Uint32(b[4:])) - unix.SizeofNlMsghdr
		size += -size & 3
		rest = rest[min(max(size, 0), len(rest)):]
	}
	if flags&unix.NLM_F_ACK_TLVS != 0 {
		_ = attributes(rest, func(kind uint16, value []byte) {
			if kind == extAckText {
				why = strings.TrimRight(string(value), "\x00")
			}
		})
	}
	err := os.NewSyscallError("rtnetlink", syscall.Errno(-code))
	if why != "" {
		err = fmt.Errorf("%w: %s", err, why)
	}
	return err
}
