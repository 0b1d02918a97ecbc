package guard

import (
	"bufio"
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
	"sync"
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
	askRole  = "ask"  // asks, and tells every 250 ms how long an answer took, in microseconds
	sendRole = "send" // sends so many bytes per second, 0 for all that it can

	serveRole = "serve" // works for a millisecond at a time, 40 % of all CPUs
	spinRole  = "spin"  // fills all CPUs from one line of its input to the next
)

const (
	nearDevice, farDevice = "veth0", "veth1"
	askPort, sendPort     = 7410, 7411
)

var (
	nearAddress = netip.MustParsePrefix("10.98.0.1/24")
	farAddress  = netip.MustParsePrefix("10.98.0.2/24")
)

func TestMain(m *testing.M) {
	role, groups, _ := strings.Cut(os.Getenv(sendEnv), " ")
	words := strings.Fields(groups)
	var err error
	switch role {
	case farRole:
		err = far()
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

// far serves until its standard input ends.
func far() error {
	fmt.Println("made")
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		return in.Err()
	}
	if err := traffic.Up(farDevice, farAddress); err != nil {
		return err
	}
	for port, serve := range map[int]func(net.Conn){
		askPort:  func(c net.Conn) { _, _ = io.Copy(c, c) },
		sendPort: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
	} {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go serve(c)
			}
		}()
	}
	fmt.Println("ready")
	in.Scan()
	return in.Err()
}

// join moves this process into some groups.
func join(groups []string) error {
	for _, dir := range groups {
		if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return err
		}
	}
	return nil
}

// dial connects from some groups: a socket is of the group in which it is made.
func dial(port int, groups []string) (net.Conn, error) {
	if err := join(groups); err != nil {
		return nil, err
	}
	return net.Dial("tcp", netip.AddrPortFrom(farAddress.Addr(), uint16(port)).String())
}

func ask(groups []string) error {
	c, err := dial(askPort, groups)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	b := make([]byte, 1024)
	var took []time.Duration
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		at := time.Now()
		if _, err := c.Write(b); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		if took = append(took, time.Since(at)); time.Since(began) >= 250*time.Millisecond {
			slices.Sort(took)
			fmt.Println(took[len(took)/2].Microseconds())
			took, began = took[:0], time.Now()
		}
	}
}

func sendAt(rate string, groups []string) error {
	pace, err := strconv.Atoi(rate)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for range 4 { // one connection alone is kept short by the kernel (tcp_limit_output_bytes)
		c, err := dial(sendPort, groups)
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
	fmt.Println("ready")
	return <-failed
}

// On a link of the test's own, and groups of the host that it makes: the sender that fills it is
// named, sends half or less from then on, and the service's answers are quick again; beside it an innocent
// sender is not touched. In the end all is as before.
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
			dirs[name] = append(dirs[name], "/"+dir)
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

	other := testbox.Self(t, sendEnv, farRole, syscall.CLONE_NEWNET)
	tell, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said := testbox.Start(t, other)
	in, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", other.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := traffic.AddPair(nearDevice, farDevice, in); errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := traffic.Up(nearDevice, nearAddress); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(tell); err != nil || !said.Scan() {
		t.Fatal("the other end ended: ", err)
	}

	config := &traffic.Config{
		Devices: map[string]traffic.LinkConfig{nearDevice: {Rate: 100e6}}, Classes: map[string]traffic.Share{"first": {Floor: traffic.Amount{Percent: 10}, Priority: 1}},
	}
	net, err := traffic.Read(root.FS(), config)
	if err != nil {
		t.Fatal(err)
	}
	layout, err := config.Layout(net)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Apply(root, layout.Plan(), nil); errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	var answers []float64 // medians of 250 ms, in ms
	asks := testbox.Start(t, testbox.Self(t, sendEnv, askRole+" "+strings.Join(dirs[web], " "), 0))
	go func() {
		for asks.Scan() {
			us, _ := strconv.Atoi(asks.Text())
			mu.Lock()
			answers = append(answers, float64(us)/1000)
			mu.Unlock()
		}
	}()
	// now is the median of the last answers, and what the link sends, in Mbit/s.
	now := func() (answer, rate float64) {
		text := func() float64 {
			text, _ := os.ReadFile("/sys/class/net/" + nearDevice + "/statistics/tx_bytes")
			n, _ := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
			return n
		}
		was, at := text(), time.Now()
		time.Sleep(1500 * time.Millisecond)
		rate = 8 * (text() - was) / 1e6 / time.Since(at).Seconds()
		mu.Lock()
		defer mu.Unlock()
		last := slices.Clone(answers[max(0, len(answers)-5):])
		if len(last) == 0 {
			t.Fatal("the service had no answer")
		}
		slices.Sort(last)
		return last[len(last)/2], rate
	}
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
		late := time.After(40 * time.Second)
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
	time.Sleep(8 * time.Second) // what is usual
	quiet, _ := now()
	testbox.Start(t, testbox.Self(t, sendEnv, sendRole+" 0 "+strings.Join(dirs[hog], " "), 0))
	if e := next(control.Applied); e.Action.Share.Device != nearDevice || e.Action.Share.Send > 7e6 || len(e.Changes) != 2 {
		t.Errorf("applied %+v", e.Action)
	}
	e := next(control.Kept)
	// within reads until it is as wanted: the host may be busy for one reading.
	within := func(wanted func(answer, rate float64) bool) (answer, rate float64, ok bool) {
		for range 6 {
			if answer, rate = now(); wanted(answer, rate) {
				return answer, rate, true
			}
		}
		return answer, rate, false
	}
	helped, rate, ok := within(func(answer, rate float64) bool { return answer <= 5+2*quiet && rate >= 5 && rate <= 80 }) // it is lowered again if once was too little
	t.Logf("answers took %.2f ms alone and %.2f ms beside a sender whose rate was lowered; the link sends %.1f Mbit/s then", quiet, helped, rate)
	if got := marks(); got[0] != "none" || got[1] != "6be7:fff0" || got[2] != "none" {
		t.Errorf("marks of web, hog and mail: %v", got)
	}
	if e.Effect == nil || e.Effect.After >= e.Effect.Before/4 || !ok {
		t.Errorf("effect %+v, answers take %.2f ms, %.1f Mbit/s", e.Effect, helped, rate)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	net, err = traffic.Read(root.FS(), config)
	if err != nil {
		t.Fatal(err)
	}
	if got := marks(); got != [3]string{"none", "none", "none"} || len(net.Devices[nearDevice].Has) != 3 || len(host.Notes()) > 0 {
		t.Errorf("in the end marks %v, classes %v, noted %v", got, net.Devices[nearDevice].Has, host.Notes())
	}
	harmed, rate, ok := within(func(answer, rate float64) bool { return rate >= 85 && answer >= 2*helped })
	t.Logf("given back: %.2f ms, %.1f Mbit/s", harmed, rate)
	if !ok {
		t.Errorf("given back, the sender has %.1f Mbit/s, and answers take %.2f ms", rate, harmed)
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
}
