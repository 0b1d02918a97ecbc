package guest

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/network"
)

// end is one of a link: a device with an address, in a network namespace.
type end struct {
	device  string
	address netip.Prefix
	in      *os.File
}

// space makes a network namespace; what is in it goes with the test.
func space(t *testing.T) *os.File {
	t.Helper()
	made, err := netlink.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.Close() })
	return made
}

// ownSpace is the network namespace that this process, and a node in it, is in.
func ownSpace(t *testing.T) *os.File {
	t.Helper()
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	return own
}

// nearName is the name of a link's near end.
func nearName(number byte) string { return fmt.Sprintf("berth%d", number) }

// openLink makes a link. Each test has numbers of its own: devices go a while after their namespace.
func openLink(t *testing.T, number byte, here, there *os.File) (near, far end) {
	t.Helper()
	of := func(last byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, number, last}), 24)
	}
	near, far = end{nearName(number), of(1), here}, end{fmt.Sprintf("far%d", number), of(2), there}
	err := netlink.In(here, func() error { return traffic.AddPair(near.device, far.device, there) })
	for _, e := range []end{near, far} {
		if err == nil {
			err = netlink.In(e.in, func() error { return traffic.Up(e.device, e.address) })
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

// also is the end with another address.
func (e end) also(t *testing.T, address string) end {
	t.Helper()
	e.address = netip.MustParsePrefix(address)
	if err := netlink.In(e.in, func() error { return traffic.Up(e.device, e.address) }); err != nil {
		t.Fatal(err)
	}
	return e
}

// index is the number of the end's device in its namespace.
func (e *end) index(t *testing.T) (index int) {
	t.Helper()
	if err := netlink.In(e.in, func() error {
		i, err := net.InterfaceByName(e.device)
		if err == nil {
			index = i.Index
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return index
}

// listen has a socket wait at this end. It, and those that it accepts, are of the group that this
// process is in now.
func (e *end) listen(t *testing.T) (l net.Listener) {
	t.Helper()
	if err := netlink.In(e.in, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(e.address.Addr(), 0).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// connect connects a socket at this end, of the group that this process is in now, with one of a
// listener.
func (e *end) connect(t *testing.T, l net.Listener) (here, there net.Conn) {
	t.Helper()
	err := netlink.In(e.in, func() (err error) {
		here, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	if err == nil {
		t.Cleanup(func() { here.Close() })
		there, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { there.Close() })
	return here, there
}

// passed is how long it takes until so many bytes have come from one socket to another.
func passed(t *testing.T, from, to net.Conn, bytes int) time.Duration {
	t.Helper()
	arrived := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := io.CopyN(io.Discard, to, int64(bytes))
		arrived <- err
	}()
	if _, err := from.Write(make([]byte, bytes)); err != nil {
		t.Fatal(err)
	}
	if err := <-arrived; err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// sent is how long it takes until so many bytes have come from one end to the other, through sockets
// that are of the group that this process is in now.
func sent(t *testing.T, near, far end, bytes int) time.Duration {
	t.Helper()
	from, to := near.connect(t, far.listen(t))
	return passed(t, from, to, bytes)
}

// TestNetClass has a node hold this process to the ceiling of a network class, and to limits of
// its own: bytes take as long as those say. Released, the device and the groups are as they were.
func TestNetClass(t *testing.T) {
	onlyOn(t, "flat8")
	h := newHost(t)
	near, far := openLink(t, 0, ownSpace(t), space(t))
	h.opt.Classes.Net = &traffic.Config{
		Devices: map[string]traffic.LinkConfig{near.device: {Rate: 100e6}},
		Classes: map[string]traffic.Share{"bulk": {Floor: traffic.Amount{Rate: 1e6}, Ceiling: traffic.Amount{Rate: 4e6}, Priority: 8}},
	}
	root := func() string {
		text, err := fs.ReadFile(traffic.Over(h.Root).FS(), "sys/net/"+near.device+"/root")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	held(t, h, near, far, root, []trial{
		{"class", "bulk", traffic.Limit{}, "htb 6be7:"}, {"send limit", "", traffic.Limit{Send: 4e6}, root()}, {"receive limit", "", traffic.Limit{Receive: 4e6}, root()},
	})

	var near6, far6 end
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Log("the kernel has no IPv6")
	} else {
		near6, far6 = near.also(t, "fd99::1/64"), far.also(t, "fd99::2/64")
		held(t, h, near6, far6, root, []trial{
			{"class by IPv6", "bulk", traffic.Limit{}, "htb 6be7:"}, {"send limit by IPv6", "", traffic.Limit{Send: 4e6}, root()},
			{"receive limit by IPv6", "", traffic.Limit{Receive: 4e6}, root()},
		})
	}

	// With an fq that is there, the device keeps it.
	near.addFq(t)
	n := h.open()
	defer n.Close()
	s := agent.Spec{Request: place.Request{ID: "sender", Class: place.LS}, PID: os.Getpid()}
	s.SetClass(agent.NetClass, "bulk")
	if _, err := n.Place(context.Background(), s); err == nil || !strings.Contains(err.Error(), "fq 1:") {
		t.Errorf("a floor beside fq: %v", err)
	}
	h.opt.Classes.Net.Classes = map[string]traffic.Share{"bulk": {Ceiling: traffic.Amount{Rate: 4e6}}}
	if kernelName() == "6.1" { // it has no tcx
		n = h.open()
		defer n.Close()
		if _, err := n.Place(context.Background(), s); err == nil || !strings.Contains(err.Error(), "which is not replaced") {
			t.Errorf("beside fq: %v", err)
		}
		held(t, h, near, far, root, []trial{{"send limit by fq", "", traffic.Limit{Send: 4e6}, "fq 1:"}})
		if near6.device != "" {
			held(t, h, near6, far6, root, []trial{{"send limit by fq and IPv6", "", traffic.Limit{Send: 4e6}, "fq 1:"}})
		}
		return
	}
	held(t, h, near, far, root, []trial{{"class by fq", "bulk", traffic.Limit{}, "fq 1:"}, {"send limit by fq", "", traffic.Limit{Send: 4e6}, "fq 1:"}})
	if near6.device != "" {
		held(t, h, near6, far6, root, []trial{{"class by fq and IPv6", "bulk", traffic.Limit{}, "fq 1:"}, {"send limit by fq and IPv6", "", traffic.Limit{Send: 4e6}, "fq 1:"}})
	}
}

// addFq has somebody else put fq at the root of the device, which is in this process's namespace.
func (e *end) addFq(t *testing.T) {
	t.Helper()
	c, err := netlink.Open(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, netlink.Queue{Index: e.index(t), Handle: 1 << 16, Parent: netlink.Root, Kind: "fq"}.Bytes()); err != nil {
		t.Fatal(err)
	}
}

// trial is a class or a limit of this process, and what the device has meanwhile.
type trial struct {
	name, class string
	limit       traffic.Limit
	root        string
}

// held has a node hold this process to classes and limits of 4 Mbit/s, one after the other.
func held(t *testing.T, h *host, near, far end, root func() string, trials []trial) {
	t.Helper()
	before := root()
	ctx := context.Background()
	n := h.open()
	defer n.Close()
	// A quarter of a second's bytes of a limit come at once, and a bit more of the class's.
	const bytes, atLeast = 1 << 20, 1500 * time.Millisecond
	limited := time.Duration(math.MaxInt64) // the shortest
	for _, c := range trials {
		name := c.name
		s := agent.Spec{Request: place.Request{ID: "sender", Class: place.LS}, PID: os.Getpid(), Bandwidth: agent.Bandwidth{Limit: c.limit}}
		s.SetClass(agent.NetClass, c.class)
		w, err := n.Place(ctx, s)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := root(); got != c.root {
			t.Errorf("%s: root %q, want %q", name, got, c.root)
		}
		if c.class != "" {
			r, err := n.ClassReport(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range r.Kinds {
				if k.Kind == agent.NetClass && (len(k.Classes) == 0 || !k.Classes[0].InForce || k.Classes[0].Links[0].Ceiling != 4e6) {
					t.Errorf("classes %+v", k.Classes)
				}
			}
		}
		if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
			t.Errorf("%s: again: %v, %v", name, repairs, err)
		}
		took := sent(t, near, far, bytes)
		if limited = min(limited, took); took < atLeast {
			t.Errorf("%s: %d bytes at 4 Mbit/s took %v", name, bytes, took)
		}
		dir := w.Dirs[0]
		if err := n.Release(ctx, "sender", agent.Keep); err != nil {
			t.Fatal(err)
		}
		if got := root(); got != before {
			t.Errorf("%s: released: root %q, was %q", name, got, before)
		}
		if _, err := fs.Stat(h.FS(), dir); err == nil {
			t.Errorf("%s: released, and %s is there", name, dir)
		}
	}
	if took := sent(t, near, far, bytes); took > limited/2 {
		t.Errorf("without a limit %d bytes took %v, with one %v", bytes, took, limited)
	}
}

// inlet is an end at which this process receives, and a socket at the other one that sends. That is
// of the group that this process was in when the link was made.
type inlet struct {
	end
	from net.Listener
}

func openInlet(t *testing.T, number byte, here, there *os.File) inlet {
	t.Helper()
	near, far := openLink(t, number, here, there)
	return inlet{near, far.listen(t)}
}

// twin is an inlet in another network namespace, whose device has the number of one in this.
func twin(t *testing.T, of inlet) inlet {
	t.Helper()
	here, there, want := space(t), space(t), of.index(t)
	for number := byte(100); number < 200; number++ { // devices of a namespace are numbered one after the other
		if l := openInlet(t, number, here, there); l.index(t) == want {
			return l
		}
	}
	t.Fatalf("no device of another namespace has the number %d", want)
	return inlet{}
}

// receiveRate is what classes of TestNetReceive allow, in bits per second.
const receiveRate = 4e6

// receives measures at which rate 1 MiB comes in. Held, that is 0.5 to 1.3 times the limit: a quarter
// of a second's bytes come at once, and a large packet beyond those. Free, it is more than twice the
// limit. On a busy host a guest is slow for a while: what comes too slowly is measured again.
func (l *inlet) receives(t *testing.T, when string, held bool) {
	t.Helper()
	const bytes, least, most, free, tries = 1 << 20, 0.5, 1.3, 2, 10
	for try := 1; ; try++ {
		to, from := l.connect(t, l.from)
		part := 8 * bytes / passed(t, from, to, bytes).Seconds() / receiveRate
		t.Logf("%s, through %s: %.2f times the limit, held %v", when, l.device, part, held)
		switch {
		case held && part > most:
			t.Errorf("%s, through %s: %.2f times the limit", when, l.device, part)
			return
		case held && part >= least || !held && part > free:
			return
		case try == tries:
			t.Errorf("%s, through %s: %.2f times the limit; is it held? %v", when, l.device, part, held)
			return
		}
	}
}

// TestNetReceive has a node hold what this process receives by classes: through all devices, or
// through those that a class names, while others are free.
func TestNetReceive(t *testing.T) {
	onlyOn(t, "flat8")
	h := newHost(t)
	own := ownSpace(t)
	a, b := openInlet(t, 1, own, space(t)), openInlet(t, 2, own, space(t))
	inlets := []inlet{a, b, twin(t, a)}
	// Before Linux 6.15 a program does not know in which network namespace a packet is.
	alike := !atLeast(6, 15)
	const later = 3
	rows := []struct {
		class string
		share traffic.Share
		held  []bool // by inlet
	}{
		{"all", traffic.Share{Receive: receiveRate}, []bool{true, true, true}},
		{"first", traffic.Share{Receive: receiveRate, ReceiveFrom: traffic.DevicesOf(a.device)}, []bool{true, false, alike}},
		{"second", traffic.Share{Receive: receiveRate, ReceiveFrom: traffic.DevicesOf(b.device)}, []bool{false, true, false}},
		{"both", traffic.Share{Receive: receiveRate, ReceiveFrom: traffic.DevicesOf(a.device, b.device)}, []bool{true, true, alike}},
		{"together", traffic.Share{ReceiveTogether: receiveRate, ReceiveFrom: traffic.DevicesOf(b.device)}, []bool{false, true, false}},
		{"later", traffic.Share{Receive: receiveRate, ReceiveFrom: traffic.DevicesOf(nearName(later))}, []bool{false, false, false}},
	}
	h.opt.Classes.Net = &traffic.Config{Classes: map[string]traffic.Share{}}
	for _, r := range rows {
		h.opt.Classes.Net.Classes[r.class] = r.share
	}
	ctx := context.Background()
	n := h.open()
	defer n.Close()
	for _, r := range rows {
		s := agent.Spec{Request: place.Request{ID: "receiver", Class: place.LS}, PID: os.Getpid()}
		s.SetClass(agent.NetClass, r.class)
		w, err := n.Place(ctx, s)
		if err != nil {
			t.Fatalf("%s: %v", r.class, err)
		}
		if absent := strings.Contains(strings.Join(w.Notes, "; "), "there is no network device"); absent != (r.class == "later") {
			t.Errorf("%s: notes %q", r.class, w.Notes)
		}
		for i, held := range r.held {
			inlets[i].receives(t, r.class, held)
		}
		if r.class == "later" { // it comes, and is counted from the next comparison on
			c := openInlet(t, later, own, space(t))
			if _, err := n.Reconcile(ctx); err != nil {
				t.Fatal(err)
			}
			c.receives(t, "later, compared", true)
		}
		if err := n.Release(ctx, "receiver", agent.Keep); err != nil {
			t.Fatal(err)
		}
		if _, err := fs.Stat(h.FS(), w.Dirs[0]); err == nil {
			t.Errorf("%s: released, and %s is there", r.class, w.Dirs[0])
		}
	}
	for i := range inlets {
		inlets[i].receives(t, "released", false)
	}
}

// TestNetCounted has this kernel count what a group sends and receives by a link, and tell how its
// connections fare.
func TestNetCounted(t *testing.T) {
	onlyOn(t, "flat8")
	tr := openTree(t)
	g := tr.group(t, "counted")
	name := strings.TrimPrefix(g.Dirs()[0], v2+"/")
	near, far := openLink(t, 4, ownSpace(t), space(t))
	l := far.listen(t) // of another group
	traffic, err := network.OpenTraffic("/"+v2, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer traffic.Close()
	tr.attach(t, g, os.Getpid())
	tcp, err := network.OpenTCP(network.TCPConfig{Tree: "/" + v2, Group: name, Proc: "/proc"})
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	const bytes = 1 << 20
	here, there := near.connect(t, l)
	passed(t, here, there, bytes)
	passed(t, there, here, bytes/2)
	samples, err := traffic.Read(1, nil)
	if err == nil {
		samples, err = tcp.Read(1, samples)
	}
	if err != nil {
		t.Fatal(err)
	}
	of := watch.Subject{Scope: watch.Group, Name: name}
	by := of
	by.Part = watch.Part{Kind: watch.Link, ID: near.index(t)}
	for _, want := range []struct {
		of          watch.Subject
		q           watch.Quantity
		least, most float64
	}{
		// With acknowledgements, and what TCP sends again.
		{by, watch.NetSent, bytes, 1.5 * bytes}, {by, watch.NetReceived, bytes / 2, bytes},
		{by, watch.NetPacketsSent, bytes / 1500, bytes / 500}, {by, watch.NetPacketsReceived, bytes / 2 / 1500, bytes / 500},
		{of, watch.Segments, bytes / (64 << 10), bytes / 500}, {of, watch.RoundTrip, 1e-6, 60},
	} {
		i := slices.IndexFunc(samples, func(s watch.Sample) bool { return s.Subject == want.of && s.Quantity == want.q })
		if i < 0 {
			t.Errorf("no %v of %v in %v", want.q, want.of, samples)
		} else if got := samples[i].Value; got < want.least || got > want.most {
			t.Errorf("%v of %v: %v, want %v to %v", want.q, want.of, got, want.least, want.most)
		}
	}
}
