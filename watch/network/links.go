package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/watch"
)

// LinksDir is where the kernel tells of network interfaces, below the root.
const LinksDir = "sys/class/net"

// loopback is the number of the loopback interface, in every namespace.
const loopback = 1

// Links reads the network interfaces of the host, loopback left out.
type Links struct {
	dir string
	nl  *netlink.Conn // nil where the queues are not those of the running kernel
}

// OpenLinks opens the directory; live says that it is the running kernel's, which then
// tells of its queues, too.
func OpenLinks(dir string, live bool) (*Links, error) {
	if _, err := os.ReadDir(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, unsupported("network links", "there is no "+dir, "mount sysfs")
		}
		return nil, fmt.Errorf("network links: %w", err)
	}
	l := &Links{dir: dir}
	if !live {
		return l, nil
	}
	nl, err := netlink.Open(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("network links: %w", err)
	}
	l.nl = nl
	return l, nil
}

// Close ends reading.
func (l *Links) Close() error {
	if l.nl == nil {
		return nil
	}
	return l.nl.Close()
}

// linkFiles are counters of an interface that samples are of as they are.
var linkFiles = []struct {
	file string
	of   watch.Quantity
}{
	{"statistics/tx_bytes", watch.NetSent}, {"statistics/rx_bytes", watch.NetReceived},
	{"statistics/tx_packets", watch.NetPacketsSent}, {"statistics/rx_packets", watch.NetPacketsReceived},
}

// Read appends NetSent, NetReceived, NetPacketsSent, NetPacketsReceived, LinkDropped,
// LinkQueued and LinkRate of each link that is up, stamped with now. The rate is that of
// its queue, or of the classes of an HTB, if they have a limit, else that of the device.
// LinkRate is left out where neither tells one, as with most virtual devices.
func (l *Links) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	queues := map[int]queue{}
	if l.nl != nil {
		err := l.nl.Dump(unix.RTM_GETQDISC, netlink.Queue{}.Bytes(), func(message []byte) error {
			if index, q, ok := parseQueue(message); ok {
				queues[index] = q
			}
			return nil
		})
		if err != nil {
			return to, fmt.Errorf("read queues of network links: %w", err)
		}
		for index, q := range queues {
			if q.kind != "htb" {
				continue
			}
			if q.rate, err = l.ceiling(index); err != nil {
				return to, fmt.Errorf("read classes of network links: %w", err)
			}
			queues[index] = q
		}
	}
	names, err := os.ReadDir(l.dir)
	if err != nil {
		return to, fmt.Errorf("read network links: %w", err)
	}
	for _, name := range names {
		index, ok := l.number(name.Name(), "ifindex")
		if ok && index != loopback && l.text(name.Name(), "operstate") != "down" {
			to = l.read(now, name.Name(), int(index), queues, to)
		}
	}
	return to, nil
}

// ceiling is what the classes of an HTB let pass that are in no other.
func (l *Links) ceiling(index int) (sum uint64, err error) {
	err = l.nl.Dump(unix.RTM_GETTCLASS, netlink.Queue{Index: index}.Bytes(), func(message []byte) error {
		if of, class, ok := parseQueue(message); ok && of == index {
			sum += class.rate
		}
		return nil
	})
	return sum, err
}

func (l *Links) read(now watch.Time, name string, index int, queues map[int]queue, to []watch.Sample) []watch.Sample {
	of := watch.Subject{Part: link(index)}
	for _, f := range linkFiles {
		if v, ok := l.number(name, f.file); ok {
			to = append(to, sample(now, of, f.of, v))
		}
	}
	q, queued := queues[index]
	if dropped, ok := l.number(name, "statistics/tx_dropped"); ok {
		to = append(to, sample(now, of, watch.LinkDropped, dropped+float64(q.dropped)))
	}
	if queued {
		to = append(to, sample(now, of, watch.LinkQueued, float64(q.bytes)))
	}
	rate := math.Inf(1)
	if speed, ok := l.number(name, "speed"); ok && speed > 0 {
		rate = speed * 1e6 / 8 // megabits per second, -1 where it is not known
	}
	if q.rate > 0 {
		rate = min(rate, float64(q.rate))
	}
	if !math.IsInf(rate, 1) {
		to = append(to, sample(now, of, watch.LinkRate, rate))
	}
	return to
}

func (l *Links) text(name, file string) string {
	text, err := os.ReadFile(filepath.Join(l.dir, name, file))
	if err != nil {
		return "" // the interface has gone, or its driver does not tell
	}
	return strings.TrimSpace(string(text))
}

func (l *Links) number(name, file string) (float64, bool) {
	n, err := strconv.ParseInt(l.text(name, file), 10, 64)
	return float64(n), err == nil
}

// queue is what the queueing discipline at the root of an interface tells.
type queue struct {
	kind    string
	bytes   uint32 // that wait
	dropped uint32 // packets, ever
	rate    uint64 // bytes per second that it, or a class, lets pass; 0 if it has no such limit
}

// The layout of the options of queues (linux/pkt_sched.h).
const (
	tbfParameters = 1  // TCA_TBF_PARMS
	tbfRate64     = 4  // TCA_TBF_RATE64
	rateAt        = 8  // of rate in struct tc_ratespec, with which the parameters begin
	htbParameters = 1  // TCA_HTB_PARMS
	htbCeil64     = 7  // TCA_HTB_CEIL64
	ceilAt        = 20 // of the second rate in struct tc_htb_opt
)

// parseQueue reads a message of RTM_GETQDISC, or of RTM_GETTCLASS, which is of the same form;
// false if it is of no queue at a root, or of a class within another.
func parseQueue(message []byte) (index int, q queue, ok bool) {
	m, err := netlink.ParseQueue(message)
	if err != nil || m.Parent != netlink.Root {
		return m.Index, q, false
	}
	q = queue{kind: m.Kind, bytes: m.Waiting, dropped: m.Dropped}
	switch q.kind {
	case "tbf":
		q.rate = rateIn(m.Options, tbfParameters, rateAt, tbfRate64)
	case "htb": // only classes have it
		q.rate = rateIn(m.Options, htbParameters, ceilAt, htbCeil64)
	}
	return m.Index, q, true
}

// rateIn is the rate among options: that of 64 bits if it is there, else the one at an offset
// of the parameters.
func rateIn(options []byte, parameters uint16, at int, wide uint16) (rate uint64) {
	whole := false
	_ = netlink.Attributes(options, func(attribute uint16, value []byte) {
		switch {
		case attribute == parameters && len(value) >= at+4 && !whole:
			rate = uint64(binary.NativeEndian.Uint32(value[at:]))
		case attribute == wide && len(value) >= 8:
			rate, whole = binary.NativeEndian.Uint64(value), true
		}
	})
	return rate
}
