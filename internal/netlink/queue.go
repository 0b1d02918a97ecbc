package netlink

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Root is the Parent of what is at the root of a device (TC_H_ROOT).
const Root = 0xffffffff

const (
	sizeofTcmsg = 20
	statsQueue  = 3 // TCA_STATS_QUEUE of gen_stats.h: qlen, backlog, drops, ...
)

// Queue is a message of rtnetlink about a queueing discipline, or a class of one: struct tcmsg
// with its attributes (linux/rtnetlink.h).
type Queue struct {
	Index          int // of the device
	Handle, Parent uint32
	Kind           string
	Options        []byte // attributes
	// Waiting are bytes, Dropped packets ever. The kernel tells them, and is not told.
	Waiting, Dropped uint32
}

// Bytes is the message; that of the zero Queue asks for those of all devices.
func (q Queue) Bytes() []byte {
	b := make([]byte, sizeofTcmsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(q.Index))
	binary.NativeEndian.PutUint32(b[8:], q.Handle)
	binary.NativeEndian.PutUint32(b[12:], q.Parent)
	if q.Kind != "" {
		b = Attribute(b, unix.TCA_KIND, append([]byte(q.Kind), 0))
	}
	if q.Options != nil {
		b = Attribute(b, unix.TCA_OPTIONS|unix.NLA_F_NESTED, q.Options)
	}
	return b
}

// ParseQueue reads what the kernel tells.
func ParseQueue(message []byte) (q Queue, err error) {
	if len(message) < sizeofTcmsg {
		return q, fmt.Errorf("a message of %d bytes about a queue", len(message))
	}
	q = Queue{
		Index:  int(int32(binary.NativeEndian.Uint32(message[4:]))),
		Handle: binary.NativeEndian.Uint32(message[8:]), Parent: binary.NativeEndian.Uint32(message[12:]),
	}
	return q, Attributes(message[sizeofTcmsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.TCA_KIND:
			q.Kind = unix.ByteSliceToString(value)
		case unix.TCA_OPTIONS:
			q.Options = value
		case unix.TCA_STATS2:
			_ = Attributes(value, func(kind uint16, value []byte) { // what is whole of them
				if kind == statsQueue && len(value) >= 12 {
					q.Waiting, q.Dropped = binary.NativeEndian.Uint32(value[4:]), binary.NativeEndian.Uint32(value[8:])
				}
			})
		}
	})
}
