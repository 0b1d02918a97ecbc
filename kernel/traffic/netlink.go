package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/netlink"
)

// The messages are those of include/uapi/linux/rtnetlink.h and pkt_sched.h.

// Attributes.
const (
	htbParms     = 1
	htbInit      = 2
	htbRate64    = 6
	htbCeil64    = 7
	nested       = 1 << 15 // NLA_F_NESTED
	sizeOfHTBOpt = 44      // struct tc_htb_opt
)

var order = binary.NativeEndian

// htbOptions are those of Berth's discipline: struct tc_htb_glob.
func htbOptions() []byte {
	const version, rateToQuantum = 3, 10
	b := make([]byte, 20)
	order.PutUint32(b, version)
	order.PutUint32(b[4:], rateToQuantum)
	order.PutUint32(b[8:], othersMinor) // where unmarked packets go
	return netlink.Attribute(nil, htbInit, b)
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
	all := netlink.Attribute(nil, htbParms, b)
	for kind, rate := range map[uint16]uint64{htbRate64: c.Rate, htbCeil64: c.Ceil} {
		if rate >= 1<<32 {
			all = netlink.Attribute(all, kind, order.AppendUint64(nil, rate))
		}
	}
	return all
}

// parseHTB reads the options of a class.
func parseHTB(options []byte) (c Class, err error) {
	var rate, ceil uint64 // where they do not fit
	found := false
	err = netlink.Attributes(options, func(kind uint16, b []byte) {
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
func request(kind uint16, flags uint16, q netlink.Queue) error { return ask(kind, flags, q.Bytes()) }

// ask is request with a message of any type.
func ask(kind, flags uint16, body []byte) error {
	return talk(func(c *netlink.Conn) error { return c.Request(kind, flags, body) })
}

// dump has the kernel tell something.
func dump(kind uint16, q netlink.Queue, each func(netlink.Queue)) error {
	return talk(func(c *netlink.Conn) error {
		return c.Dump(kind, q.Bytes(), func(b []byte) error {
			of, err := netlink.ParseQueue(b)
			if err == nil {
				each(of)
			}
			return err
		})
	})
}

// talk calls with a socket in the namespace that this thread is in now.
func talk(do func(*netlink.Conn) error) error {
	c, err := netlink.Open(unix.NETLINK_ROUTE)
	if err == nil {
		err = errors.Join(do(c), c.Close())
	}
	if err != nil {
		return fmt.Errorf("rtnetlink: %w", err)
	}
	return nil
}
