package guest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

// The two ends of a link, the second one in a network namespace of its own.
const (
	nearDevice = "berth0"
	farDevice  = "berth1"
	nearEnd    = "10.99.1.1/24"
	farEnd     = "10.99.1.2/24"
)

// openLink makes the link, and returns the namespace of its far end.
func openLink(t *testing.T) (far *os.File) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			far, err = os.Open("/proc/thread-self/ns/net")
		}
		done <- err
	}()
	err := <-done
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() }) // and the link goes with it
	err = traffic.AddPair(nearDevice, farDevice, far)
	if err == nil {
		err = traffic.Up(nearDevice, netip.MustParsePrefix(nearEnd))
	}
	if err == nil {
		err = netlink.In(far, func() error { return traffic.Up(farDevice, netip.MustParsePrefix(farEnd)) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return far
}

// sent is how long it takes until so many bytes have arrived at the far end. Both sockets are
// made for this, and are of the group that this process is in now.
func sent(t *testing.T, far *os.File, bytes int) time.Duration {
	t.Helper()
	var l net.Listener
	err := netlink.In(far, func() (err error) {
		l, err = net.Listen("tcp4", netip.MustParsePrefix(farEnd).Addr().String()+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	arrived := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.CopyN(io.Discard, c, int64(bytes))
			err = errors.Join(err, c.Close())
		}
		arrived <- err
	}()
	start := time.Now()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, bytes)); err != nil {
		t.Fatal(err)
	}
	if err := <-arrived; err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// TestNetClass has a node hold this process to the ceiling of a network class, and to limits of
// its own: bytes take as long as those say. Released, the device and the groups are as they were.
func TestNetClass(t *testing.T) {
	onlyOn(t, "flat8")
	h := newHost(t)
	far := openLink(t)
	h.opt.Classes.Net = &traffic.Config{
		Devices: map[string]traffic.LinkConfig{nearDevice: {Rate: 100e6}},
		Classes: map[string]traffic.Share{"bulk": {Floor: traffic.Amount{Rate: 1e6}, Ceiling: traffic.Amount{Rate: 4e6}, Priority: 8}},
	}
	root := func() string {
		text, err := fs.ReadFile(traffic.Over(h.Root).FS(), "sys/net/"+nearDevice+"/root")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	held(t, h, far, root, []trial{
		{"class", "bulk", traffic.Limit{}, "htb 6be7:"}, {"send limit", "", traffic.Limit{Send: 4e6}, root()}, {"receive limit", "", traffic.Limit{Receive: 4e6}, root()},
	})

	// With an fq that is there, the device keeps it.
	addFq(t)
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
		held(t, h, far, root, []trial{{"send limit by fq", "", traffic.Limit{Send: 4e6}, "fq 1:"}})
		return
	}
	held(t, h, far, root, []trial{{"class by fq", "bulk", traffic.Limit{}, "fq 1:"}, {"send limit by fq", "", traffic.Limit{Send: 4e6}, "fq 1:"}})
}

// addFq has somebody else put fq at the root of the near device.
func addFq(t *testing.T) {
	t.Helper()
	near, err := net.InterfaceByName(nearDevice)
	if err != nil {
		t.Fatal(err)
	}
	c, err := netlink.Open(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, netlink.Queue{Index: near.Index, Handle: 1 << 16, Parent: netlink.Root, Kind: "fq"}.Bytes()); err != nil {
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
func held(t *testing.T, h *host, far *os.File, root func() string, trials []trial) {
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
		took := sent(t, far, bytes)
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
	if took := sent(t, far, bytes); took > limited/2 {
		t.Errorf("without a limit %d bytes took %v, with one %v", bytes, took, limited)
	}
}
