package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/internal/testbox"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

// The roles of processes of this test binary.
const (
	sendEnv  = "BERTH_TEST_GUARD_SEND"
	testRole = "test" // the test itself, with networks and mounts of its own
	farRole  = "far"  // the other end of the link: answers what is asked, takes what is sent
	askRole  = "ask"  // asks, again and again
	sendRole = "send" // sends so many bytes per second, 0 for all that it can

	serveRole = "serve" // works for a millisecond at a time, 40 % of all CPUs
	spinRole  = "spin"  // fills all CPUs from one line of its input to the next
)

const nearDevice, askPort, sendPort = "veth0", 7410, 7411

// ends is the link of the test.
var ends = testbox.Link{
	Near: testbox.End{Device: nearDevice, Address: netip.MustParsePrefix("10.98.0.1/24")},
	Far:  testbox.End{Device: "veth1", Address: netip.MustParsePrefix("10.98.0.2/24")}, AddPair: traffic.AddPair, Up: traffic.Up,
}

func TestMain(m *testing.M) {
	role, groups, _ := strings.Cut(os.Getenv(sendEnv), " ")
	words := strings.Fields(groups)
	var err error
	switch role {
	case farRole:
		err = ends.Serve(map[int]func(*net.TCPConn){
			askPort:  func(c *net.TCPConn) { _, _ = io.Copy(c, c) },
			sendPort: func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) },
		}, func() string { return "" })
	case askRole:
		err = ask(words)
	case sendRole:
		err = sendAt(words[0], words[1:])
	case serveRole:
		err = serve(words)
	case spinRole:
		err = spin(words)
	default:
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, role, err)
	os.Exit(1)
}

func ask(groups []string) error {
	err := testbox.Join(groups...)
	if err != nil {
		return err
	}
	c, err := ends.Dial("tcp4", askPort)
	if err != nil {
		return err
	}
	fmt.Println("asks")
	b := make([]byte, 1024)
	for ; err == nil; time.Sleep(5 * time.Millisecond) {
		if _, err = c.Write(b); err == nil {
			_, err = io.ReadFull(c, b)
		}
	}
	return err
}

func sendAt(rate string, groups []string) error {
	pace, err := strconv.Atoi(rate)
	if err == nil {
		err = testbox.Join(groups...)
	}
	if err != nil {
		return err
	}
	failed := make(chan error)
	for range 4 { // one connection alone is kept short by the kernel (tcp_limit_output_bytes)
		c, err := ends.Dial("tcp4", sendPort)
		if err != nil {
			return err
		}
		go func() {
			b := make([]byte, 16<<10)
			for err := error(nil); err == nil; {
				if _, err = c.Write(b); pace > 0 {
					time.Sleep(time.Duration(4 * len(b) * int(time.Second) / pace))
				}
			}
			failed <- err
		}()
	}
	fmt.Println("sends")
	return <-failed
}

// On a link of the test's own, and groups of the host that it makes: the sender that fills it is
// named and held to less, and the service's packets wait for it no more; beside it an innocent sender
// is not touched. In the end all is as before. All is judged by what the kernel counts at the link.
func TestSendReal(t *testing.T) {
	if os.Getenv(sendEnv) == testRole {
		testSendReal(t)
		return
	}
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("network namespaces need root, and this is not a short run")
	}
	t.Parallel()
	fakekernel.LockHost(t, fakekernel.Alone)
	testbox.Again(t, sendEnv, testRole, syscall.CLONE_NEWNET|syscall.CLONE_NEWNS)
}

// ownNetwork has /sys tell of this network namespace, in mounts of this process's own, and /run be empty.
func ownNetwork(t *testing.T) {
	t.Helper()
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = netlink.ShowDevices()
	}
	if err == nil {
		err = unix.Mount("tmpfs", "/run", "tmpfs", 0, "")
	}
	if err != nil {
		t.Skip("mount: ", err)
	}
}

// realGroups makes groups of one name in the tree of each hierarchy that the guard reads.
func realGroups(t *testing.T, root *kernel.Root, names ...string) (dirs map[string][]string, v2 string) {
	t.Helper()
	if v2 = cgroup.Unified(root.FS()); v2 == "" {
		t.Skip("no cgroup v2")
	}
	host, err := cgroup.Detect(root)
	if err != nil {
		t.Fatal(err)
	}
	trees := []string{v2}
	for _, c := range []string{cgroup.CPU, cgroup.CPUAcct, cgroup.CPUSet, cgroup.Memory} {
		if h, ok := host.Hierarchy(c); ok && !slices.Contains(trees, h.Dir) && c != cgroup.CPUSet {
			trees = append(trees, h.Dir)
		}
	}
	dirs = map[string][]string{}
	for _, name := range names {
		for _, tree := range trees {
			dir := filepath.Join(tree, name)
			testbox.Group(t, dir)
			dirs[name] = append(dirs[name], dir)
		}
	}
	return dirs, v2
}

func testSendReal(t *testing.T) {
	ownNetwork(t)
	live, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	root := traffic.Over(live)
	web, hog, mail := fmt.Sprintf("berth-send-%d-web", os.Getpid()), fmt.Sprintf("berth-send-%d-hog", os.Getpid()), fmt.Sprintf("berth-send-%d-mail", os.Getpid())
	dirs, v2 := realGroups(t, live, web, hog, mail)

	ends.Open(t, sendEnv, farRole)

	config := &traffic.Config{
		Devices: map[string]traffic.LinkConfig{nearDevice: {Rate: realRate}}, Classes: map[string]traffic.Share{"first": {Floor: traffic.Amount{Percent: 10}, Priority: 1}},
	}
	links, err := traffic.Read(root.FS(), config)
	if err != nil {
		t.Fatal(err)
	}
	layout, err := config.Layout(links)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Apply(root, layout.Plan(), nil); errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}

	q := openQueues(t)
	testbox.Start(t, testbox.Self(t, sendEnv, askRole+" "+strings.Join(dirs[web], " "), 0))
	testbox.Start(t, testbox.Self(t, sendEnv, sendRole+" 1000000 "+strings.Join(dirs[mail], " "), 0))

	host, err := actuate.Open(actuate.Options{Root: live, Dir: filepath.Join(t.TempDir(), "guard")})
	if err != nil {
		t.Fatal(err)
	}
	sensors, err := OpenHost("")
	if err != nil {
		t.Fatal(err)
	}
	defer sensors.Close()
	acted := make(chan control.Event, 100)
	r, err := New(Options{
		Sensors: sensors, Actuator: host, Window: 250 * time.Millisecond, Probe: ProbeNever, Control: control.Config{Mode: control.Enforce, Hold: time.Hour},
		Workloads: func(context.Context) ([]Workload, error) {
			return []Workload{{Group: web, Class: place.LS, Sensitive: true}, {Group: hog, Class: place.BE}, {Group: mail, Class: place.BE}}, nil
		},
		Acted: func(e control.Event) {
			if e.Resource == detect.Network && (e.Victim == web || e.Victim == "") {
				acted <- e
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	next := func(what control.Outcome) control.Event {
		t.Helper()
		late := time.After(patience)
		for {
			select {
			case e := <-acted:
				t.Log(e)
				switch {
				case e.Action != nil && e.Action.Group != hog:
					t.Fatalf("want %v against %s", what, hog)
				case e.Outcome == what && e.Suspect == hog && e.Action != nil:
					return e
				}
			case err := <-done:
				t.Fatal("the guard ended: ", err)
			case <-late:
				t.Fatalf("not %v: findings %v", what, r.Status().Findings)
			}
		}
	}
	marks := func() (all [3]string) {
		for i, group := range []string{web, hog, mail} {
			text, err := fs.ReadFile(root.FS(), traffic.MarkFile(filepath.Join(v2, group)))
			if err != nil {
				t.Fatal(err)
			}
			all[i] = strings.TrimSpace(string(text))
		}
		return all
	}
	comes(t, "the guard knows what is usual", func() bool { return r.Status().Windows >= 32 })
	quiet := q.look(t)
	testbox.Start(t, testbox.Self(t, sendEnv, sendRole+" 0 "+strings.Join(dirs[hog], " "), 0))
	if e := next(control.Applied); e.Action.Share.Device != nearDevice || e.Action.Share.Send > 7e6 || len(e.Changes) != 2 {
		t.Errorf("applied %+v", e.Action)
	}
	e := next(control.Kept)
	var helped queues
	// The rate is lowered again if once was too little.
	comes(t, "the sender is held to less", func() bool {
		helped = q.look(t)
		return helped.others <= quiet.others+packet && helped.lowered >= packet && helped.sent < 0.8*realRate
	})
	t.Logf("alone %v; beside a sender whose rate was lowered %v", quiet, helped)
	if got := marks(); got[0] != "none" || got[1] != "6be7:fff0" || got[2] != "none" {
		t.Errorf("marks of web, hog and mail: %v", got)
	}
	if e.Effect == nil || e.Effect.After >= e.Effect.Before {
		t.Errorf("effect %+v", e.Effect)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	links, err = traffic.Read(root.FS(), config)
	if err != nil {
		t.Fatal(err)
	}
	if got := marks(); got != [3]string{"none", "none", "none"} || len(links.Devices[nearDevice].Has) != 3 || len(host.Notes()) > 0 {
		t.Errorf("in the end marks %v, classes %v, noted %v", got, links.Devices[nearDevice].Has, host.Notes())
	}
	var harmed queues
	comes(t, "given back, the sender fills the link again", func() bool {
		harmed = q.look(t)
		return harmed.others >= 4*(helped.others+packet) && harmed.sent > helped.sent
	})
	t.Logf("given back %v", harmed)
	if err := host.Close(); err != nil {
		t.Error(err)
	}
}

const (
	realRate = 100e6 // bit/s
	packet   = 1514  // bytes of a full one
	patience = 3 * time.Minute
)

// comes waits until something holds: others may have the CPU instead for a while.
func comes(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it does not come: ", what)
		}
	}
}

// queues is what the kernel says of the link over a second: the bytes that wait in the class that
// the service is in, with all others, and in that of the lowered sender, as medians; and what is
// sent, in bit/s.
type queues struct{ others, lowered, sent float64 }

func (q queues) String() string {
	return fmt.Sprintf("%.0f bytes of others wait, %.0f of the lowered, %.1f Mbit/s are sent", q.others, q.lowered, q.sent/1e6)
}

// queueReader asks the kernel for the classes of the link.
type queueReader struct {
	nl    *netlink.Conn
	index int
}

func openQueues(t *testing.T) queueReader {
	t.Helper()
	device, err := net.InterfaceByName(nearDevice)
	if err != nil {
		t.Fatal(err)
	}
	nl, err := netlink.Open(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nl.Close() })
	return queueReader{nl, device.Index}
}

func (q queueReader) look(t *testing.T) (of queues) {
	t.Helper()
	const others, lowered = 0x6be70002, 0x6be7fff0 // handles of classes of HTB
	sent := func() float64 {
		text, err := os.ReadFile("/sys/class/net/" + nearDevice + "/statistics/tx_bytes")
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	waits := map[uint32][]float64{}
	was, at := sent(), time.Now()
	for time.Since(at) < time.Second {
		err := q.nl.Dump(unix.RTM_GETTCLASS, netlink.Queue{Index: q.index}.Bytes(), func(message []byte) error {
			c, err := netlink.ParseQueue(message)
			waits[c.Handle] = append(waits[c.Handle], float64(c.Waiting))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	of.sent = 8 * (sent() - was) / time.Since(at).Seconds()
	median := func(of []float64) float64 {
		if len(of) == 0 {
			return 0
		}
		slices.Sort(of)
		return of[len(of)/2]
	}
	of.others, of.lowered = median(waits[others]), median(waits[lowered])
	return of
}
