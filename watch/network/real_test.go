package network

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	bpflink "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// The first thread of the process stays the main goroutine's: it cannot end, as those of tests do that change a
// thread, and /proc/self tells of it.
func init() { runtime.LockOSThread() }

// role has the test's program be one end of a connection, or count until it is killed.
const role = "BERTH_TEST_NETWORK"

func TestMain(m *testing.M) {
	switch word, argument, _ := strings.Cut(os.Getenv(role), " "); word {
	case "serve":
		os.Exit(status(serve(argument)))
	case "send":
		os.Exit(status(send(argument)))
	case "count":
		os.Exit(status(countOn(argument)))
	}
	os.Exit(m.Run())
}

func status(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serve sends back, to each connection, every 64th of the blocks that it gets.
func serve(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			block := make([]byte, blockSize)
			for n := 1; ; n++ {
				if _, err := io.ReadFull(c, block); err != nil {
					return
				}
				if n%64 == 0 {
					_, _ = c.Write(block)
				}
			}
		}()
	}
}

const (
	blockSize = 16 << 10
	blocks    = 256 // 4 MiB
)

// send writes blocks of bytes for each line that it reads, reads what comes back, and keeps
// the connection until its standard input ends.
func send(address string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	if _, err := fmt.Println("ready"); err != nil {
		return err
	}
	go io.Copy(io.Discard, c)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		for range blocks {
			if _, err := c.Write(make([]byte, blockSize)); err != nil {
				return err
			}
		}
		fmt.Println("sent")
	}
	return nil
}

// countOn prints the numbers of the programs that it attached.
func countOn(tree string) error {
	traffic, err := OpenTraffic(tree, "/proc")
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for _, l := range traffic.links {
		info, err := l.Info()
		if err != nil {
			return err
		}
		fmt.Println(info.Program)
	}
	select {}
}

// world is a network namespace of this thread, and another one behind a veth.
type world struct {
	tree   string
	inside int // a process of the other namespace
	ours   int // the number of our end
}

func newWorld(t testing.TB) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root makes network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	w := &world{tree: "/sys/fs/cgroup"}
	if _, err := os.Stat(w.tree + "/unified/cgroup.procs"); err == nil {
		w.tree += "/unified"
	} else if _, err := os.Stat(w.tree + "/cgroup.procs"); err != nil {
		t.Skip("cgroup v2 is not mounted at its usual place")
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip("no network namespaces: ", err)
	}
	sleep := exec.Command("sleep", "1000")
	sleep.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	})
	w.inside = sleep.Process.Pid
	pid := strconv.Itoa(w.inside)
	for _, command := range []string{
		"ip link add bn0 type veth peer name bn1 netns " + pid,
		"ip addr add 10.250.0.1/24 dev bn0", "ip link set bn0 up",
		"nsenter -t " + pid + " -n ip addr add 10.250.0.2/24 dev bn1",
		"nsenter -t " + pid + " -n ip link set bn1 up",
	} {
		run(t, command)
	}
	bn0, err := net.InterfaceByName("bn0")
	if err != nil {
		t.Fatal(err)
	}
	w.ours = bn0.Index
	return w
}

func run(t testing.TB, command string) {
	t.Helper()
	words := strings.Fields(command)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Skipf("%s: %v: %s", command, err, out)
	}
}

// group makes one.
func (w *world) group(t testing.TB, name string) string {
	t.Helper()
	path := fmt.Sprintf("berth-network-%d-%s", os.Getpid(), name)
	dir := filepath.Join(w.tree, path)
	if err := os.MkdirAll(filepath.Join(dir, "below"), 0o755); err != nil {
		t.Skip("cannot make control groups: ", err)
	}
	t.Cleanup(func() { w.remove(t, path) })
	return path
}

// remove removes a group, once the kernel lets go of processes that have ended.
func (w *world) remove(t testing.TB, group string) {
	t.Helper()
	for _, dir := range []string{"below", ""} {
		var err error
		if !holds(func() bool {
			err = os.Remove(filepath.Join(w.tree, group, dir))
			return err == nil || errors.Is(err, os.ErrNotExist)
		}) {
			t.Error(err)
		}
	}
}

// id is the kernel's number of the group in a group whose processes are counted.
func (w *world) id(t testing.TB, group string) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(w.tree, group, "below"), &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}

// holds waits until something holds, and says whether it did: on a busy host that takes long.
func holds(what func() bool) bool {
	for until := time.Now().Add(time.Minute); !what(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			return false
		}
	}
	return true
}

// peer is a process of a group that plays a role.
type peer struct {
	in   io.Writer
	out  io.Reader
	kill func()
}

// start starts one, in the group below a group, in the other namespace or in ours.
func (w *world) start(t testing.TB, group, as string, inside bool) *peer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	if inside {
		cmd = exec.Command("nsenter", "-t", strconv.Itoa(w.inside), "-n", self)
	}
	cmd.Env = append(os.Environ(), role+"="+as)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if group != "" {
		dir, err := os.Open(filepath.Join(w.tree, group, "below"))
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &peer{in, out, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }}
	t.Cleanup(p.kill)
	p.says(t, "ready")
	return p
}

func (p *peer) says(t testing.TB, word string) {
	t.Helper()
	text := make([]byte, len(word)+1)
	if _, err := io.ReadFull(p.out, text); err != nil || string(text) != word+"\n" {
		t.Fatalf("%q, %v, want %s", text, err, word)
	}
}

// traffic opens it, or skips with the reason.
func (w *world) traffic(t testing.TB) *Traffic {
	t.Helper()
	traffic, err := OpenTraffic(w.tree, "/proc")
	if errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := traffic.Close(); err != nil {
			t.Error(err)
		}
	})
	return traffic
}

// reader is any of the readers.
type reader interface {
	Read(watch.Time, []watch.Sample) ([]watch.Sample, error)
}

// value is what a reader tells, now, NaN-free: ok is false without a sample.
func value(t testing.TB, r reader, of watch.Subject, q watch.Quantity) (float64, bool) {
	t.Helper()
	samples, err := r.Read(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(samples, func(s watch.Sample) bool { return s.Subject == of && s.Quantity == q })
	if i < 0 {
		return 0, false
	}
	return samples[i].Value, true
}

// TestReal has a process send through a link of this namespace, which lets 80 Mbit/s
// pass, to one in another namespace.
func TestReal(t *testing.T) {
	for family, address := range map[string]string{"IPv4": "10.250.0.2:4000", "IPv6": "[fd25::2]:4000"} {
		t.Run(family, func(t *testing.T) { testReal(t, address) })
	}
}

func testReal(t *testing.T, address string) {
	w := newWorld(t)
	if address[0] == '[' {
		run(t, "ip addr add fd25::1/64 dev bn0 nodad")
		run(t, fmt.Sprintf("nsenter -t %d -n ip addr add fd25::2/64 dev bn1 nodad", w.inside))
	}
	run(t, "tc qdisc add dev bn0 root tbf rate 80mbit burst 32kb latency 100ms")
	here, there := w.group(t, "here"), w.group(t, "there")
	traffic := w.traffic(t)
	links, err := OpenLinks("/sys/class/net", true)
	if err != nil {
		t.Fatal(err)
	}
	defer links.Close()
	w.start(t, there, "serve "+address, true)
	sender := w.start(t, here, "send "+address, false)
	var tcps [2]*TCP
	for i, group := range []string{here, there} {
		if tcps[i], err = OpenTCP(TCPConfig{Tree: w.tree, Group: group, Proc: "/proc"}); err != nil {
			t.Fatal(err)
		}
	}
	most, bytes := uint32(0), 0.0
	// It takes 0.4 s, which may be over before this process has looked: then once more.
	for rounds := 0; rounds < 20 && most < 10_000; rounds++ {
		fmt.Fprintln(sender.in)
		bytes += blocks * blockSize
		for began := time.Now(); most < 10_000 && time.Since(began) < 400*time.Millisecond; time.Sleep(5 * time.Millisecond) {
			err := links.nl.Dump(unix.RTM_GETQDISC, netlink.Queue{}.Bytes(), func(m []byte) error {
				if index, q, ok := parseQueue(m); ok && index == w.ours {
					if q.rate != 10e6 {
						t.Fatalf("the queue lets pass %d bytes per second", q.rate)
					}
					most = max(most, q.bytes)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		sender.says(t, "sent")
	}
	if most < 10_000 {
		t.Errorf("%d bytes waited in the queue of a full link", most)
	}
	ours := link(w.ours)
	for _, c := range []struct {
		group       string
		part        watch.Part
		q           watch.Quantity
		least, most float64 // the least is waited for
	}{
		{here, ours, watch.NetSent, bytes, 1.1 * bytes},
		{here, ours, watch.NetReceived, bytes / 64, bytes / 4},
		{here, ours, watch.NetPacketsSent, bytes / 1500, bytes / 1000},
		{here + "/below", ours, watch.NetSent, bytes, 1.1 * bytes},
		{there, watch.Part{}, watch.NetReceived, bytes, 1.1 * bytes},
		{there, watch.Part{}, watch.NetPacketsReceived, 50, bytes / 1000},
	} {
		var got float64
		var ok bool
		holds(func() bool {
			got, ok = value(t, traffic, watch.Subject{Scope: watch.Group, Name: c.group, Part: c.part}, c.q)
			return ok && got >= c.least
		})
		if !ok || got < c.least || got > c.most {
			t.Errorf("%s: %v %v: %v, %v, want %v to %v", c.group, c.part, c.q, got, ok, c.least, c.most)
		}
	}
	if _, ok := value(t, traffic, watch.Subject{Scope: watch.Group, Name: there, Part: ours}, watch.NetReceived); ok {
		t.Error("what a group of another namespace receives is told by link")
	}
	for i, group := range []string{here, there} {
		of := watch.Subject{Scope: watch.Group, Name: group}
		samples, err := tcps[i].Read(1, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := map[watch.Quantity]float64{}
		for _, s := range samples {
			if s.Subject != of {
				t.Errorf("of %v", s.Subject)
			}
			got[s.Quantity] = s.Value
		}
		if got[watch.Segments] < 4 || got[watch.RoundTrip] <= 0 || got[watch.RoundTrip] > 5 || got[watch.RoundTripLeast] > got[watch.RoundTrip]*1.01 {
			t.Errorf("%s: %v", group, got)
		}
	}
	for i, group := range []string{here, there} {
		of := watch.Subject{Scope: watch.Group, Name: group}
		var again float64
		if !holds(func() bool { // after the last acknowledgements
			var ok bool
			again, ok = value(t, tcps[i], of, watch.RoundTrip)
			return !ok
		}) {
			t.Errorf("%s sends nothing, and has a round trip of %v s", group, again)
		}
	}
	if _, err := OpenTCP(TCPConfig{Tree: w.tree, Group: here + "/none", Proc: "/proc"}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("of a group that is not there: %v", err)
	}
}

// TestGone has a group that ends stop being told of.
func TestGone(t *testing.T) {
	w := newWorld(t)
	group := w.group(t, "gone")
	traffic := w.traffic(t)
	w.start(t, "", "serve 10.250.0.2:4000", true)
	sender := w.start(t, group, "send 10.250.0.2:4000", false)
	of := watch.Subject{Scope: watch.Group, Name: group, Part: link(w.ours)}
	if _, ok := value(t, traffic, of, watch.NetSent); !ok {
		t.Fatal("the packets of a connection that was made are not told of")
	}
	id := w.id(t, group)
	kept := func() bool {
		for k := range traffic.seen {
			if k.Group == id {
				return true
			}
		}
		return false
	}
	if !kept() {
		t.Fatal("no counts are kept of it")
	}
	sender.kill()
	w.remove(t, group)
	if v, ok := value(t, traffic, of, watch.NetSent); ok {
		t.Errorf("a group that is gone: %v", v)
	}
	if kept() {
		t.Error("counts are kept of a group that is gone")
	}
}

// TestCeiling has HTB shape a link.
func TestCeiling(t *testing.T) {
	w := newWorld(t)
	run(t, "tc qdisc add dev bn0 root handle 6be7: htb default 2")
	run(t, "tc class add dev bn0 parent 6be7: classid 6be7:1 htb rate 80mbit ceil 80mbit")
	run(t, "tc class add dev bn0 parent 6be7:1 classid 6be7:2 htb rate 8mbit ceil 40mbit")
	dir := t.TempDir() // sysfs may be that of another namespace
	for file, text := range map[string]string{"ifindex": strconv.Itoa(w.ours), "speed": "1000"} {
		at := filepath.Join(dir, "bn0", file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	links, err := OpenLinks(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	defer links.Close()
	if rate, _ := value(t, links, watch.Subject{Part: link(w.ours)}, watch.LinkRate); rate != 10e6 {
		t.Errorf("the link lets pass %v bytes per second", rate)
	}
}

// TestRoom has a group of another namespace send by links of its own, as anybody may, and a
// link of the host go: neither takes room.
func TestRoom(t *testing.T) {
	w := newWorld(t)
	here, there := w.group(t, "here"), w.group(t, "there")
	traffic := w.traffic(t)
	w.start(t, "", "serve 10.250.0.2:4000", true)
	w.start(t, here, "send 10.250.0.2:4000", false)
	run(t, fmt.Sprintf("nsenter -t %d -n ip addr add 10.251.0.1/24 dev bn1", w.inside))
	w.start(t, there, "serve 10.251.0.1:4000", true)
	run(t, "ip addr add 10.251.0.2/24 dev bn0")
	w.start(t, "", "send 10.251.0.1:4000", false)
	of := watch.Subject{Scope: watch.Group, Name: there}
	before, ok := value(t, traffic, of, watch.NetSent)
	if !ok {
		t.Fatal("nothing is told of a group of another namespace")
	}
	ids := map[uint64]string{w.id(t, here): here, w.id(t, there): there}
	counted := func() (links map[string][]int) {
		links = map[string][]int{}
		all, err := traffic.read()
		if err != nil {
			t.Fatal(err)
		}
		for k := range all { // of all groups of the host
			if group, ok := ids[k.Group]; ok {
				links[group] = append(links[group], int(k.Link))
			}
		}
		return links
	}
	if got := counted(); len(got[there]) > 0 || !slices.Equal(got[here], []int{w.ours}) {
		t.Errorf("read, and there is no room of %v", got)
	}
	w.start(t, "", "send 10.251.0.1:4000", false)
	if now, ok := value(t, traffic, of, watch.NetSent); !ok || now <= before || now > 3*before {
		t.Errorf("%v bytes sent, %v before", now, before)
	}
	run(t, "ip link del bn0")
	ours := watch.Subject{Scope: watch.Group, Name: here, Part: link(w.ours)}
	if v, ok := value(t, traffic, ours, watch.NetSent); ok {
		t.Errorf("%v bytes by a link that is gone", v)
	}
	if got := counted(); len(got[here]) > 0 {
		t.Errorf("a link is gone, and there is no room of %v", got)
	}
}

// TestKilled has the kernel remove what a reader attached that is killed.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	w.traffic(t) // or it is skipped
	tree, err := os.Open(w.tree)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	attached := func() (all []ebpf.ProgramID) {
		for _, at := range []ebpf.AttachType{ebpf.AttachCGroupInetEgress, ebpf.AttachCGroupInetIngress} {
			programs, err := bpflink.QueryPrograms(bpflink.QueryOptions{Target: int(tree.Fd()), Attach: at})
			if err != nil {
				t.Skip(err)
			}
			for _, p := range programs.Programs {
				all = append(all, p.ID)
			}
		}
		return all
	}
	counting := w.start(t, "", "count "+w.tree, false)
	var added [2]ebpf.ProgramID // of others, too, there may be new ones
	if _, err := fmt.Fscan(counting.out, &added[0], &added[1]); err != nil {
		t.Fatal(err)
	}
	if all := attached(); !slices.Contains(all, added[0]) || !slices.Contains(all, added[1]) {
		t.Fatalf("programs %v, want %v among them", all, added)
	}
	counting.kill()
	if !holds(func() bool {
		return !slices.ContainsFunc(attached(), func(id ebpf.ProgramID) bool { return slices.Contains(added[:], id) })
	}) {
		t.Fatal("programs stay attached")
	}
}
