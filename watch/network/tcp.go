package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

const (
	// maxBelow is how many groups below one are looked at.
	maxBelow = 512
	// maxProcesses is of how many processes of a group the namespace is looked at, and
	// maxNamespaces how many there may be.
	maxProcesses  = 16
	maxNamespaces = 16
	// refresh is after how many readings groups and namespaces are looked at again.
	refresh = 5
)

const tcpFeature = "round trips of TCP"

// TCPConfig says what to read.
type TCPConfig struct {
	// Tree is the directory of the v2 tree, Group a group there.
	Tree, Group string
	// Proc is where processes are.
	Proc string
}

// TCP reads the connections of a group and of the groups below it, in the network
// namespaces of their processes. Those within one host are left out: no link carries them.
// It is for one goroutine at a time.
type TCP struct {
	config     TCPConfig
	ids        []uint64
	namespaces map[string]string // a process of each
	own        string
	readings   int
	seen       map[string]map[uint64]segments // by namespace and cookie
	total      segments
}

// segments are counts of segments with data.
type segments struct{ sent, again uint64 }

// OpenTCP begins to read a group. One that is not in the v2 tree is a
// kernel.NotSupportedError.
func OpenTCP(c TCPConfig) (*TCP, error) {
	t := &TCP{config: c, own: namespaceOf(c.Proc, thread), seen: map[string]map[uint64]segments{}}
	if err := t.look(); err != nil {
		return nil, err
	}
	if _, err := t.read(func(connection) {}); err != nil {
		return nil, err
	}
	return t, nil
}

// Close ends reading: nothing is held open meanwhile.
func (t *TCP) Close() error { return nil }

// look finds the groups at and below the group, and the namespaces of their processes.
func (t *TCP) look() error {
	group := t.config.Group
	ids, all, err := cgroupstat.IDsBelow(t.config.Tree, group, maxBelow)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return unsupported(tcpFeature, "the group is not in the v2 tree, "+t.config.Tree, "make it there, too, or use cgroup v2 without v1 controllers")
	case err != nil:
		return fmt.Errorf("connections of %s: %w", group, err)
	case !all:
		return unsupported(tcpFeature, fmt.Sprintf("there are more than %d groups below the group", maxBelow), "look at one of those")
	}
	t.ids, t.namespaces = ids, map[string]string{}
	return filepath.WalkDir(filepath.Join(t.config.Tree, group), func(dir string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // it has gone
		}
		for _, pid := range processes(dir, maxProcesses) {
			if ns := namespaceOf(t.config.Proc, pid); ns != "" && len(t.namespaces) < maxNamespaces {
				t.namespaces[ns] = pid
			}
		}
		return nil
	})
}

// Read appends Segments and Retransmits, from the opening on, and, of the connections that sent
// something since the reading before, RoundTrip and RoundTripLeast, stamped with now.
// The last segments of a connection that ended meanwhile are not among them. For a group
// that is gone the error is watch.ErrGone.
func (t *TCP) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	if t.readings++; t.readings%refresh == 0 {
		if err := t.look(); err != nil {
			return to, errors.Join(err, watch.ErrGone)
		}
	}
	var weight, sum float64
	least := time.Duration(0)
	any, err := t.read(func(c connection) {
		weight += float64(c.sent)
		sum += float64(c.sent) * c.rtt.Seconds()
		if c.least > 0 && (least == 0 || c.least < least) {
			least = c.least
		}
	})
	if err != nil {
		return to, err
	}
	if !any {
		return to, nil // no namespace could be looked at
	}
	of := watch.Subject{Scope: watch.Group, Name: t.config.Group}
	to = append(to, sample(now, of, watch.Segments, float64(t.total.sent)), sample(now, of, watch.Retransmits, float64(t.total.again)))
	if weight > 0 {
		to = append(to, sample(now, of, watch.RoundTrip, sum/weight))
	}
	if least > 0 {
		to = append(to, sample(now, of, watch.RoundTripLeast, least.Seconds()))
	}
	return to, nil
}

// read calls each with the connections that sent something since the reading before, and
// what they sent; any is false where no namespace could be looked at. That one cannot be is an
// error only if none can: a helper with a namespace of its own takes nothing from the others.
func (t *TCP) read(each func(connection)) (any bool, err error) {
	var errs []error
	for ns, pid := range t.namespaces {
		before, known := t.seen[ns]
		seen := map[uint64]segments{}
		err := t.in(ns, pid, func(nl *netlink.Conn) error {
			return connections(nl, t.ids, func(c connection) {
				if c.local || !slices.Contains(t.ids, c.group) {
					return
				}
				seen[c.cookie] = segments{c.sent, c.again}
				old := before[c.cookie]
				if !known {
					return // what was sent before the namespace was first looked at
				}
				// The kernel's counts are of 32 bits.
				c.sent, c.again = uint64(uint32(c.sent-old.sent)), uint64(uint32(c.again-old.again))
				t.total.sent += c.sent
				t.total.again += c.again
				if c.sent > 0 && c.rtt > 0 {
					each(c)
				}
			})
		})
		if err != nil {
			delete(t.seen, ns)
			if !errors.Is(err, errLeft) {
				errs = append(errs, fmt.Errorf("connections of %s: %w", t.config.Group, err))
			}
			continue
		}
		any, t.seen[ns] = true, seen
	}
	for ns := range t.seen {
		if t.namespaces[ns] == "" {
			delete(t.seen, ns)
		}
	}
	if any {
		return true, nil
	}
	return false, errors.Join(errs...)
}

// errLeft says that a process is no longer in a namespace.
var errLeft = errors.New("the process has left the namespace")

// in calls with a socket in the network namespace of a process. It is not kept open, as it
// would keep the namespace alive.
func (t *TCP) in(ns, pid string, do func(*netlink.Conn) error) error {
	if ns == t.own {
		return withSocket(do)
	}
	file, err := os.Open(filepath.Join(t.config.Proc, pid, namespaceFile))
	if err != nil {
		return errLeft
	}
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil || fmt.Sprintf("net:[%d]", stat.Ino) != ns {
		return errLeft
	}
	err = netlink.In(file, func() error { return withSocket(do) })
	if e, ok := errors.AsType[*os.SyscallError](err); ok && e.Syscall == "setns" && errors.Is(err, unix.EPERM) {
		return unsupported(tcpFeature, "not permitted to look into another network namespace", "run as root, or grant CAP_SYS_ADMIN, and in a systemd unit RestrictNamespaces=net")
	}
	return err
}

func withSocket(do func(*netlink.Conn) error) error {
	nl, err := netlink.Open(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	return errors.Join(do(nl), nl.Close())
}

// connection is what inet_diag tells of a socket.
type connection struct {
	cookie, group uint64
	local         bool // both ends are on one host
	rtt, least    time.Duration
	sent, again   uint64
}

// The layout of inet_diag (linux/inet_diag.h) and of struct tcp_info (linux/tcp.h).
const (
	sizeofDiag   = 72 // struct inet_diag_msg
	diagBytecode = 1  // INET_DIAG_REQ_BYTECODE
	diagInfo     = 2  // INET_DIAG_INFO
	diagGroup    = 21 // INET_DIAG_CGROUP_ID, since Linux 5.9 by its history; tried on 6.18 only
	// The states of TCP in which data is on its way: established, fin-wait-1, close-wait,
	// last-ack, closing.
	diagStates = 1<<1 | 1<<4 | 1<<8 | 1<<9 | 1<<11

	infoRTT    = 68
	infoAgain  = 100
	infoMinRTT = 148
	infoSent   = 156
	sizeofInfo = 160
)

// connections calls each with the connections of some groups.
func connections(nl *netlink.Conn, groups []uint64, each func(connection)) error {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, 56) // struct inet_diag_req_v2
		request[0], request[1], request[2] = family, unix.IPPROTO_TCP, 1<<(diagInfo-1)
		binary.NativeEndian.PutUint32(request[4:], diagStates)
		request = netlink.Attribute(request, diagBytecode, filter(groups))
		err := nl.Dump(unix.SOCK_DIAG_BY_FAMILY, request, func(message []byte) error {
			if c, ok := parseConnection(message); ok {
				each(c)
			}
			return nil
		})
		switch {
		case errors.Is(err, unix.ENOENT) && family == unix.AF_INET6: // there is no IPv6
		case errors.Is(err, unix.ENOENT):
			return unsupported(tcpFeature, "the kernel has no inet_diag", "boot a kernel with CONFIG_INET_DIAG, or load tcp_diag")
		case errors.Is(err, unix.EINVAL):
			return unsupported(tcpFeature, "the kernel's inet_diag knows no control groups", "boot a kernel 5.9 or newer with CONFIG_CGROUP_BPF")
		case err != nil:
			return err
		}
	}
	return nil
}

// filter is bytecode by which the kernel leaves out sockets of other groups: for each group
// a comparison that goes on to the next one if it fails, and else to a jump to the end.
func filter(groups []uint64) []byte {
	const (
		jump, inGroup = 1, 13 // INET_DIAG_BC_JMP, INET_DIAG_BC_CGROUP_COND
		op, compare   = 4, 12 // sizes: struct inet_diag_bc_op, with a group
	)
	left := len(groups)*(compare+op) - op // the last comparison needs no jump
	var code []byte
	for i, group := range groups {
		last := i == len(groups)-1
		code = append(code, inGroup, compare)
		no := compare + op // past the jump, and past the end after the last: refused
		code = binary.NativeEndian.AppendUint16(code, uint16(no))
		code = binary.NativeEndian.AppendUint64(code, group)
		if left -= compare; !last {
			code = append(code, jump, op)
			code = binary.NativeEndian.AppendUint16(code, uint16(left))
			left -= op
		}
	}
	return code
}

// parseConnection reads a struct inet_diag_msg and its attributes; false if it lacks some.
func parseConnection(message []byte) (c connection, ok bool) {
	if len(message) < sizeofDiag {
		return c, false
	}
	c.cookie = binary.NativeEndian.Uint64(message[44:])
	from, to := address(message[0], message[8:24]), address(message[0], message[24:40])
	c.local = from == to || to.IsLoopback()
	var info, group bool
	_ = netlink.Attributes(message[sizeofDiag:], func(kind uint16, value []byte) {
		switch {
		case kind == diagInfo && len(value) >= sizeofInfo:
			number := func(at int) uint32 { return binary.NativeEndian.Uint32(value[at:]) }
			info, c.rtt, c.sent, c.again = true, time.Duration(number(infoRTT))*time.Microsecond, uint64(number(infoSent)), uint64(number(infoAgain))
			if least := number(infoMinRTT); least != ^uint32(0) { // not measured yet
				c.least = time.Duration(least) * time.Microsecond
			}
		case kind == diagGroup && len(value) >= 8:
			group, c.group = true, binary.NativeEndian.Uint64(value)
		}
	})
	return c, info && group
}

func address(family byte, raw []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(raw[:4]))
	}
	return netip.AddrFrom16([16]byte(raw)).Unmap()
}
