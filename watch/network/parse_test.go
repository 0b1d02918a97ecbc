package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// diagnosed is a message about a connection as the kernel lays it out.
func diagnosed(family byte, from, to []byte, info []byte, group uint64) []byte {
	m := make([]byte, sizeofDiag)
	m[0] = family
	copy(m[8:], from)
	copy(m[24:], to)
	binary.NativeEndian.PutUint64(m[44:], 4711)
	if info != nil {
		m = netlink.Attribute(m, diagInfo, info)
	}
	if group != 0 {
		m = netlink.Attribute(m, diagGroup, binary.NativeEndian.AppendUint64(nil, group))
	}
	return m
}

func tcpInfo(rtt, least, sent, again uint32) []byte {
	info := make([]byte, sizeofInfo)
	binary.NativeEndian.PutUint32(info[infoRTT:], rtt)
	binary.NativeEndian.PutUint32(info[infoMinRTT:], least)
	binary.NativeEndian.PutUint32(info[infoSent:], sent)
	binary.NativeEndian.PutUint32(info[infoAgain:], again)
	return info
}

func TestParseConnection(t *testing.T) {
	t.Parallel()
	here, there := []byte{10, 0, 0, 1}, []byte{10, 0, 0, 2}
	info := tcpInfo(1500, 200, 12, 3)
	full := connection{cookie: 4711, group: 7, rtt: 1500 * time.Microsecond, least: 200 * time.Microsecond, sent: 12, again: 3}
	local, unmeasured := full, full
	local.local, unmeasured.least = true, 0
	mapped := append(make([]byte, 10), 0xff, 0xff, 127, 0, 0, 1)
	for name, c := range map[string]struct {
		message []byte
		want    connection
		ok      bool
	}{
		"all there":        {diagnosed(unix.AF_INET, here, there, info, 7), full, true},
		"to itself":        {diagnosed(unix.AF_INET, here, here, info, 7), local, true},
		"loopback":         {diagnosed(unix.AF_INET, here, []byte{127, 0, 0, 9}, info, 7), local, true},
		"mapped loopback":  {diagnosed(unix.AF_INET6, make([]byte, 16), mapped, info, 7), local, true},
		"IPv6":             {diagnosed(unix.AF_INET6, append(make([]byte, 15), 2), append(make([]byte, 15), 3), info, 7), full, true},
		"no least yet":     {diagnosed(unix.AF_INET, here, there, tcpInfo(1500, ^uint32(0), 12, 3), 7), unmeasured, true},
		"no group":         {diagnosed(unix.AF_INET, here, there, info, 0), connection{}, false},
		"no information":   {diagnosed(unix.AF_INET, here, there, nil, 7), connection{}, false},
		"old information":  {diagnosed(unix.AF_INET, here, there, info[:sizeofInfo-4], 7), connection{}, false},
		"cut off":          {diagnosed(unix.AF_INET, here, there, info, 7)[:sizeofDiag-1], connection{}, false},
		"attribute cut":    {diagnosed(unix.AF_INET, here, there, info, 7)[:sizeofDiag+10], connection{}, false},
		"nothing":          {nil, connection{}, false},
		"attribute of two": {append(diagnosed(unix.AF_INET, here, there, info, 0), 2, 0, 21, 0), connection{}, false},
	} {
		got, ok := parseConnection(c.message)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v, want %+v, %v", name, got, ok, c.want, c.ok)
		}
	}
}

func FuzzParseConnection(f *testing.F) {
	f.Add(diagnosed(unix.AF_INET, []byte{10, 0, 0, 1}, []byte{10, 0, 0, 2}, tcpInfo(1, 2, 3, 4), 7))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, message []byte) {
		c, ok := parseConnection(message)
		if c.rtt < 0 || c.least < 0 {
			t.Errorf("%+v", c)
		}
		if ok && len(message) < sizeofDiag+sizeofInfo {
			t.Errorf("%d bytes are enough for %+v", len(message), c)
		}
	})
}

// The layout of messages about queues, in which netlink reads them.
const sizeofTcmsg, statsQueue = 20, 3

// queued is a message about a queue.
func queued(parent uint32, kind string, options, stats []byte) []byte {
	m := make([]byte, sizeofTcmsg)
	binary.NativeEndian.PutUint32(m[4:], 3)
	binary.NativeEndian.PutUint32(m[12:], parent)
	m = netlink.Attribute(m, unix.TCA_KIND, append([]byte(kind), 0))
	m = netlink.Attribute(m, unix.TCA_OPTIONS, options)
	return netlink.Attribute(m, unix.TCA_STATS2, netlink.Attribute(nil, statsQueue, stats))
}

func words(n ...uint32) (all []byte) {
	for _, w := range n {
		all = binary.NativeEndian.AppendUint32(all, w)
	}
	return all
}

func TestParseQueue(t *testing.T) {
	t.Parallel()
	const root = 0xffffffff
	rate := netlink.Attribute(nil, tbfParameters, words(0, 0, 1000, 0))
	fast := netlink.Attribute(slices.Clone(rate), tbfRate64, binary.NativeEndian.AppendUint64(nil, 5e9))
	parms := make([]byte, 44) // struct tc_htb_opt
	binary.NativeEndian.PutUint32(parms[ceilAt:], 2000)
	class := netlink.Attribute(nil, htbParameters, parms)
	for name, c := range map[string]struct {
		message []byte
		want    queue
		ok      bool
	}{
		"token bucket": {queued(root, "tbf", rate, words(2, 3000, 5, 0)), queue{"tbf", 3000, 5, 1000}, true},
		"a fast one":   {queued(root, "tbf", fast, words(2, 3000, 5, 0)), queue{"tbf", 3000, 5, 5e9}, true},
		"others":       {queued(root, "fq", rate, words(2, 3000, 5, 0)), queue{"fq", 3000, 5, 0}, true},
		"class":        {queued(root, "htb", class, nil), queue{"htb", 0, 0, 2000}, true},
		"fast class": {
			queued(root, "htb", netlink.Attribute(slices.Clone(class), htbCeil64, binary.NativeEndian.AppendUint64(nil, 5e9)), nil),
			queue{"htb", 0, 0, 5e9}, true,
		},
		"inner class":  {queued(0x10001, "htb", class, nil), queue{}, false},
		"short":        {queued(root, "tbf", rate[:8], words(2)), queue{kind: "tbf"}, true},
		"below a root": {queued(0x10000, "tbf", rate, words(2, 3000, 5, 0)), queue{}, false},
		"cut off":      {queued(root, "tbf", rate, nil)[:sizeofTcmsg-1], queue{}, false},
	} {
		index, got, ok := parseQueue(c.message)
		if ok != c.ok || ok && (got != c.want || index != 3) {
			t.Errorf("%s: link %d, %+v, %v, want %+v, %v", name, index, got, ok, c.want, c.ok)
		}
	}
}

func FuzzParseQueue(f *testing.F) {
	f.Add(queued(0xffffffff, "tbf", netlink.Attribute(nil, tbfParameters, words(0, 0, 1000, 0)), words(2, 3000, 5, 0)))
	f.Fuzz(func(t *testing.T, message []byte) {
		if _, q, ok := parseQueue(message); !ok && q != (queue{}) {
			t.Errorf("no queue, and %+v", q)
		}
	})
}

// passes runs a filter as the kernel does (net/ipv4/inet_diag.c).
func passes(t *testing.T, code []byte, group uint64) bool {
	left := len(code)
	for at := 0; left > 0; {
		op := code[at:]
		yes, no := int(op[1]), int(binary.NativeEndian.Uint16(op[2:]))
		step := no
		if op[0] == 13 && binary.NativeEndian.Uint64(op[4:]) == group {
			step = yes
		}
		if step < 4 {
			t.Fatalf("a step of %d bytes at %d", step, at)
		}
		at, left = at+step, left-step
	}
	return left == 0
}

func TestFilter(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, maxBelow} {
		var groups []uint64
		for i := range n {
			groups = append(groups, uint64(100+i))
		}
		code := filter(groups)
		for _, g := range []uint64{groups[0], groups[n/2], groups[n-1]} {
			if !passes(t, code, g) {
				t.Errorf("%d groups: %d is left out", n, g)
			}
		}
		if passes(t, code, 99) {
			t.Errorf("%d groups: another one passes", n)
		}
	}
}

// TestLinks reads a tree of files: without a running kernel there are no queues.
func TestLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, text := range map[string]string{
		"lo/ifindex": "1\n", "lo/statistics/tx_bytes": "99\n", "lo/operstate": "unknown",
		"eth0/ifindex": "2\n", "eth0/speed": "1000\n", "eth0/operstate": "up", "eth0/statistics/tx_bytes": "10\n",
		"eth0/statistics/rx_bytes": "20\n", "eth0/statistics/tx_dropped": "3\n",
		"veth1/ifindex": "3\n", "veth1/speed": "-1\n", "veth1/operstate": "up", "veth1/statistics/tx_bytes": "much\n",
		"down/ifindex": "4\n", "down/operstate": "down", "down/statistics/tx_bytes": "1\n",
		"bonding_masters": "",
	} {
		at := filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := OpenLinks(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got, err := l.Read(5, nil)
	if err != nil {
		t.Fatal(err)
	}
	eth0 := watch.Subject{Part: watch.Part{Kind: watch.Link, ID: 2}}
	want := []watch.Sample{
		sample(5, eth0, watch.NetSent, 10), sample(5, eth0, watch.NetReceived, 20),
		sample(5, eth0, watch.LinkDropped, 3), sample(5, eth0, watch.LinkRate, 125e6),
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, err := OpenLinks(filepath.Join(dir, "none"), false); !errors.Is(err, kernel.ErrNotSupported) {
		t.Error(err)
	}
}

// TestUnreadable has a namespace that cannot be entered: what stands for it is no namespace.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	file := filepath.Join(proc, "2", namespaceFile)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		t.Fatal(err)
	}
	const own = "net:[7]"
	other := fmt.Sprintf("net:[%d]", stat.Ino)
	read := func(namespaces map[string]string) (bool, error) {
		tcp := &TCP{config: TCPConfig{Group: "web", Proc: proc}, ids: []uint64{1}, own: own, namespaces: namespaces, seen: map[string]map[uint64]segments{}}
		any, err := tcp.read(func(connection) {})
		if errors.Is(err, kernel.ErrNotSupported) && tcp.namespaces[other] == "" {
			t.Skip(err)
		}
		return any, err
	}
	if any, err := read(map[string]string{own: "1"}); !any || err != nil {
		t.Fatalf("the namespace of this process: %v, %v", any, err)
	}
	if any, err := read(map[string]string{own: "1", other: "2"}); !any || err != nil {
		t.Errorf("beside one that cannot be read: %v, %v", any, err)
	}
	if any, err := read(map[string]string{other: "2"}); any || err == nil {
		t.Errorf("one that cannot be read: %v, %v", any, err)
	}
}
