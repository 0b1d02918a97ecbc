package traffic

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/internal/testbox"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// The roles of processes of this test binary.
const (
	roleEnv  = "BERTH_TEST_TRAFFIC"
	testRole = "test" // the test itself, in a network namespace of its own
	sinkRole = "sink" // takes what is sent to two ports, in another one
	sendRole = "send" // sends to a port from a control group, as much as it can
	gramRole = "gram" // sends datagrams from a control group, as many as it is told
)

func TestMain(m *testing.M) {
	switch role, arg, _ := strings.Cut(os.Getenv(roleEnv), " "); role {
	case sinkRole:
		sink(arg)
	case sendRole:
		group, text, _ := strings.Cut(arg, " ")
		to, err := strconv.Atoi(text)
		must(err)
		send(group, to)
	case gramRole:
		datagrams(arg)
	default:
		os.Exit(m.Run())
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const nearDevice, farDevice = "veth0", "veth1"

// familyEnv has the link of a bed have IPv6 addresses, where it is "6", and else those of IPv4.
const familyEnv = "BERTH_TEST_TRAFFIC_IP"

// ends is the link of a bed.
func ends() testbox.Link {
	near, far := "10.99.0.1/24", "10.99.0.2/24"
	if os.Getenv(familyEnv) == "6" {
		near, far = "fd99::1/64", "fd99::2/64"
	}
	return testbox.Link{
		Near: testbox.End{Device: nearDevice, Address: netip.MustParsePrefix(near)},
		Far:  testbox.End{Device: farDevice, Address: netip.MustParsePrefix(far)}, AddPair: AddPair, Up: Up,
	}
}

const port = 7400

// sink answers how many bytes came to each port, and between which two instants it looked. The
// kernel counts them, as the sink may be without a CPU while they come. It is in a control group,
// "" in that of its parent.
func sink(group string) {
	if group != "" {
		must(testbox.Join(group))
	}
	unread, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
	must(err)
	defer unread.Close()
	var conns [2]atomic.Pointer[net.TCPConn]
	ports := map[int]func(*net.TCPConn){}
	for i := range conns {
		ports[port+i] = func(c *net.TCPConn) {
			conns[i].Store(c)
			for b, err := make([]byte, 256<<10), error(nil); err == nil; {
				_, err = c.Read(b)
			}
		}
	}
	must(ends().Serve(ports, func() string {
		before := time.Now().UnixNano()
		return fmt.Sprint(received(conns[0].Load()), received(conns[1].Load()), before, time.Now().UnixNano())
	}))
}

// received is how many bytes came by a connection, 0 before there is one.
func received(c *net.TCPConn) uint64 {
	if c == nil {
		return 0
	}
	raw, err := c.SyscallConn()
	must(err)
	var info *unix.TCPInfo
	must(raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	must(err)
	return info.Bytes_received
}

func send(group string, to int) {
	must(testbox.Join(group))
	c, err := ends().Dial("tcp", to)
	must(err)
	fmt.Println("sends")
	b := make([]byte, 64<<10)
	for {
		_, err := c.Write(b)
		must(err)
	}
}

// TestReal has the kernel divide a link of a network namespace between processes of two
// control groups, which it makes and removes.
func TestReal(t *testing.T) { inNamespace(t, testReal) }

// TestLimits has programs of control groups hold a sender, and a receiver, to a rate.
func TestLimits(t *testing.T) { inNamespace(t, testLimits) }

// TestRealIPv6 and TestLimitsIPv6 are the same between addresses of IPv6.
func TestRealIPv6(t *testing.T)   { overIPv6(t, testReal) }
func TestLimitsIPv6(t *testing.T) { overIPv6(t, testLimits) }

func overIPv6(t *testing.T, test func(*testing.T)) {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Skip("the kernel has no IPv6")
	}
	inNamespace(t, func(t *testing.T) {
		t.Setenv(familyEnv, "6") // the role of a process of its own, which runs nothing else
		test(t)
	})
}

// ofOneClass is held by a test of limits: groups of one class receive by one program, and share its
// rate, whatever their network namespace.
var ofOneClass sync.Mutex

// inNamespace runs a test in a network namespace of its own.
func inNamespace(t *testing.T, test func(*testing.T)) {
	if os.Getenv(roleEnv) == testRole {
		test(t)
		return
	}
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("network namespaces need root, and this is not a short run")
	}
	t.Parallel()
	if strings.HasPrefix(t.Name(), "TestLimits") {
		ofOneClass.Lock()
		defer ofOneClass.Unlock()
	}
	fakekernel.LockHost(t, fakekernel.Shared)
	testbox.Again(t, roleEnv, testRole, syscall.CLONE_NEWNET)
}

// bed is a device, veth0, that leads to a sink.
type bed struct {
	*testing.T
	root   *kernel.Root
	far    *testbox.Far // the sink
	groups []string     // of cgroup v2
}

// newBed makes one, the sink in the second of its groups if sinkInGroup is true.
func newBed(t *testing.T, sinkInGroup bool) *bed {
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{T: t, root: Over(root)}
	tree := cgroup.Unified(root.FS())
	if tree == "" {
		t.Skip("no cgroup v2")
	}
	for i := range 2 {
		group := fmt.Sprintf("%s/berth-traffic-%d-%d", tree, os.Getpid(), i)
		testbox.Group(t, group)
		b.groups = append(b.groups, group)
	}
	role := sinkRole
	if sinkInGroup {
		role += " " + b.groups[1]
	}
	b.far = ends().Open(t, roleEnv, role)
	return b
}

// send starts a sender in a group.
func (b *bed) send(group string, port int) {
	b.Helper()
	testbox.Start(b, testbox.Self(b, roleEnv, fmt.Sprintf("%s %s %d", sendRole, group, port), 0))
}

// rates is what came to each port, in bits per second of payload, over a while or longer: at least that.
func (b *bed) rates(over time.Duration) (rates [2]float64) {
	b.Helper()
	var was, is [4]float64
	for i, at := range []*[4]float64{&was, &is} {
		if _, err := fmt.Sscan(b.far.Ask(), &at[0], &at[1], &at[2], &at[3]); err != nil {
			b.Fatal(err)
		}
		if i == 0 {
			time.Sleep(over)
		}
	}
	for i := range rates {
		rates[i] = 8e9 * (is[i] - was[i]) / (is[3] - was[2])
	}
	return rates
}

// comes waits until something holds, after a pause and again and again: others may have the CPU
// instead of a sender for a while.
func comes(pause time.Duration, what func() bool) bool {
	for until := time.Now().Add(time.Minute); ; {
		time.Sleep(pause)
		if what() {
			return true
		}
		if time.Now().After(until) {
			return false
		}
	}
}

func (b *bed) text(name string) string {
	b.Helper()
	text, err := fs.ReadFile(b.root.FS(), name)
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func testReal(t *testing.T) {
	b := newBed(t, false)
	if got := b.text("sys/net/veth0/root"); got != "noqueue 0:" {
		t.Fatalf("root %q", got)
	}
	if Over(b.root) != b.root {
		t.Error("a root that has the files gets them again")
	}
	c := &Config{
		Devices: map[string]LinkConfig{"veth0": {Rate: 100e6}},
		Classes: map[string]Share{"first": {Floor: Amount{Percent: 10}, Priority: 1}, "bulk": {Floor: Amount{Percent: 20}, Ceiling: Amount{Percent: 50}, Priority: 8}},
	}
	layout := b.layout(c)
	log, err := kernel.CreateUndoLog(b.root, t.TempDir()+"/log", "test")
	if err != nil {
		t.Fatal(err)
	}
	plan := layout.Plan()
	for i, class := range []string{"bulk", "first"} {
		plan = append(plan, kernel.Step{Path: MarkFile(b.groups[i]), Value: layout.MarkOf(class)})
	}
	undo, err := kernel.Apply(b.root, plan, log)
	if err != nil {
		t.Fatal(err)
	}
	if plan := b.layout(c).Plan(); len(plan) > 0 {
		t.Errorf("applied, and there is left to do:\n%s", plan)
	}
	for i, group := range b.groups {
		b.send(group, port+i)
		var part, low, high float64
		if !comes(200*time.Millisecond, func() bool { // the burst, and TCP finds its pace
			got := b.rates(500 * time.Millisecond)
			over := func() bool { return got[0] > 55e6 || got[0]+got[1] > 110e6 }
			if over() { // what came after a lost segment counts once that is there
				got = b.rates(2 * time.Second)
			}
			t.Logf("bulk %.1f Mbit/s, first %.1f Mbit/s", got[0]/1e6, got[1]/1e6)
			if over() {
				t.Errorf("bulk has %.1f Mbit/s of a ceiling of 50, both have %.1f of 100", got[0]/1e6, (got[0]+got[1])/1e6)
			}
			// A sender that does not get the CPU leaves more to the other one for a while.
			part, low, high = got[0]/50e6, 0.85, 1.1
			if i == 1 {
				part, low, high = got[0]/(got[0]+got[1]), 0.17, 0.24
			}
			return part > low && part < high
		}) {
			t.Fatalf("with %d senders bulk has %.2f, wants %.2f to %.2f", i+1, part, low, high)
		}
	}
	// Another program removes the discipline: there is all to do again.
	if err := b.root.Rmdir("sys/net/veth0/htb"); err != nil {
		t.Fatal(err)
	}
	if plan := b.layout(c).Plan(); len(plan) != 5 || plan[0].Op != kernel.Mkdir {
		t.Errorf("without the discipline:\n%s", plan)
	} else if _, err := kernel.Apply(b.root, plan, log); err != nil {
		t.Error(err)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	if _, err := log.Undo(func(kernel.Step) bool { return true }); err != nil {
		t.Error(err)
	}
	if got := b.text("sys/net/veth0/root"); got != "noqueue 0:" {
		t.Errorf("undone: root %q", got)
	}
	for _, group := range b.groups {
		if got := b.text(MarkFile(group)); got != none {
			t.Errorf("undone: %s", got)
		}
	}
	if log.Has(func(kernel.Step) bool { return true }) {
		t.Errorf("undone: the log has %v", log.Notes())
	}
	b.namesake()
	veth0, err := net.InterfaceByName(nearDevice)
	if err != nil {
		t.Fatal(err)
	}
	b.byProgram(veth0.Index)
	b.dropsByClass(veth0.Index)
	// What somebody else puts there is not replaced, by the kernel neither.
	if err := request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, netlink.Queue{Index: veth0.Index, Handle: 1 << 16, Parent: netlink.Root, Kind: "pfifo"}); err != nil {
		t.Fatal(err)
	}
	if err := (systemCalls{}).Divide(HTB, veth0.Index); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("beside a discipline of somebody else: %v", err)
	}
	if h, err := Read(b.root.FS(), c); err != nil {
		t.Error(err)
	} else if _, err := c.Layout(h); err == nil || !strings.Contains(err.Error(), `"pfifo 1:", which is not replaced`) {
		t.Errorf("beside a discipline of somebody else: %v", err)
	}
}

// dropsByClass has a device drop datagrams of a class that find its queue full, and says so of that class.
func (b *bed) dropsByClass(index int) {
	b.Helper()
	calls := systemCalls{}
	r, err := unix.NewIfreq(nearDevice)
	if err != nil {
		b.Fatal(err)
	}
	r.SetUint32(2) // packets in a queue
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	slow := Class{Rate: 1000, Ceil: 1000, Prio: 3} // a packet a second
	err = errors.Join(unix.IoctlIfreq(fd, unix.SIOCSIFTXQLEN, r), calls.Divide(HTB, index),
		calls.SetClass(HTB, index, linkMinor, Class{Rate: 1e6, Ceil: 1e6}), calls.SetClass(HTB, index, othersMinor, Class{Rate: 1e6, Ceil: 1e6}),
		calls.SetClass(HTB, index, firstMinor, slow), calls.SetMark(b.groups[0], firstMinor))
	if err != nil {
		b.Fatal(err)
	}
	sender := testbox.Self(b, roleEnv, gramRole+" "+b.groups[0], 0)
	in, err := sender.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	said := testbox.Start(b, sender)
	const sent = 50
	if _, err := fmt.Fprintln(in, sent); err != nil || !said.Scan() {
		b.Fatal("the sender ended: ", err)
	}
	lost := Dropped(b.root.FS())[nearDevice]
	b.Logf("of %d datagrams the class has lost %d", sent, lost[firstMinor])
	if _, ok := lost[othersMinor]; lost[firstMinor] < sent/2 || len(lost) != 2 || !ok { // the link's class has no queue
		b.Errorf("lost: %v", lost)
	}
	if err := errors.Join(calls.Join(HTB, index), calls.SetMark(b.groups[0], 0)); err != nil {
		b.Error(err)
	}
	if lost := Dropped(b.root.FS()); len(lost) > 0 {
		b.Errorf("not divided: %v", lost)
	}
}

func testLimits(t *testing.T) {
	b := newBed(t, true)
	log, err := kernel.CreateUndoLog(b.root, t.TempDir()+"/log", "test")
	if err != nil {
		t.Fatal(err)
	}
	b.killed()
	veth0, err := net.InterfaceByName(nearDevice)
	if err != nil {
		t.Fatal(err)
	}
	b.paced(uint32(veth0.Index))
	sender := func() { b.send(b.groups[0], port) }
	for _, c := range []struct {
		group int
		limit Limit
	}{
		{0, Limit{Send: 40e6}},
		{1, Limit{Receive: 40e6}},
	} {
		undo, err := kernel.Apply(b.root, kernel.Plan{SetLimit(b.groups[c.group], c.limit, "test")}, log)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseLimit(b.text(LimitFile(b.groups[c.group]))); got != c.limit || err != nil {
			t.Errorf("limit %+v, %v, wants %+v", got, err, c.limit)
		}
		if sender != nil {
			sender()
			sender = nil
		}
		var got float64
		if !comes(300*time.Millisecond, func() bool { // the burst
			got = b.rates(time.Second)[0]
			t.Logf("%+v: %.1f Mbit/s", c.limit, got/1e6)
			return got > 30e6 && got < 52e6 // a quarter of a second's may come at once
		}) {
			t.Fatalf("with %+v %.1f Mbit/s arrive", c.limit, got/1e6)
		}
		if own, shared, ok := DroppedOf(b.root.FS(), b.groups[c.group]); !ok || own == 0 || shared != 0 {
			t.Errorf("with %+v %d packets were dropped, and %d of the class; %v", c.limit, own, shared, ok)
		} else {
			t.Logf("with %+v %d packets were dropped", c.limit, own)
		}
		if err := undo(); err != nil {
			t.Error(err)
		}
		if own, shared, ok := DroppedOf(b.root.FS(), b.groups[c.group]); !ok || own+shared != 0 {
			t.Errorf("undone: %d packets dropped, and %d of the class; %v", own, shared, ok)
		}
		if got := b.text(LimitFile(b.groups[c.group])); got != none {
			t.Errorf("undone: %s", got)
		}
	}
	b.together()
	b.otherUser()
	var got float64
	if !comes(0, func() bool { got = b.rates(300 * time.Millisecond)[0]; return got >= 200e6 }) {
		t.Errorf("without a limit it stays slow, at %.1f Mbit/s", got/1e6)
	}
	b.otherKind(b.groups[0])
}

// together has two groups of a class share a limit, of which one is the sink's: what the other's
// program counts is the sink's, too.
func (b *bed) together() {
	b.Helper()
	calls := systemCalls{}
	with := Together{Class: firstMinor, Rate: 40e6}
	var at [2]ebpf.ProgramID
	for i, group := range b.groups {
		if err := b.root.WriteFile(group+"/"+togetherFile, with.text()); err != nil {
			b.Fatal(err)
		}
		if got := b.text(group + "/" + togetherFile); got != with.text() {
			b.Errorf("together %q", got)
		}
		err := withGroup(group, func(fd int) error {
			all, err := link.QueryPrograms(link.QueryOptions{Target: fd, Attach: together.attach})
			if err == nil && len(all.Programs) == 1 {
				at[i] = all.Programs[0].ID
			}
			return err
		})
		if err != nil {
			b.Error(err)
		}
	}
	if at[0] == 0 || at[0] != at[1] {
		b.Errorf("two groups of a class have programs %v", at)
	}
	var got float64
	if !comes(300*time.Millisecond, func() bool {
		got = b.rates(time.Second)[0]
		b.Logf("%+v: %.1f Mbit/s", with, got/1e6)
		return got > 30e6 && got < 52e6
	}) {
		b.Errorf("with %+v %.1f Mbit/s arrive", with, got/1e6)
	}
	for _, group := range b.groups {
		if own, shared, ok := DroppedOf(b.root.FS(), group); !ok || own != 0 || shared == 0 {
			b.Errorf("%+v: %d packets were dropped, and %d of the class; %v", with, own, shared, ok)
		}
		if err := calls.SetTogether(group, Together{}); err != nil {
			b.Error(err)
		}
		if got := b.text(group + "/" + togetherFile); got != none {
			b.Errorf("undone: %q", got)
		}
	}
}

// otherUser has a program of another user's, with a map of that user's, not become that of a class.
func (b *bed) otherUser() {
	b.Helper()
	with := Together{Class: firstMinor + 1, Rate: 40e6}
	k, err := together.through(with.Devices)
	if err != nil {
		b.Fatal(err)
	}
	made := make(chan *ebpf.Program)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its user
		defer close(made)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 0, 0); errno != 0 {
			b.Error(errno)
			return
		}
		p, err := k.load(receivesTogether(with))
		if err != nil {
			b.Error(err)
			return
		}
		made <- p
	}()
	theirs := <-made
	if theirs == nil {
		b.FailNow()
	}
	defer theirs.Close()
	if found, err := k.running(receivesTogether(with)); found != nil || err != nil {
		b.Errorf("the program of another user is taken: %v, %v", found, err)
	}
	own, err := k.load(receivesTogether(with))
	if err != nil {
		b.Fatal(err)
	}
	defer own.Close()
	found, err := k.running(receivesTogether(with))
	if err != nil || found == nil {
		b.Fatalf("that of this user is not found beside it: %v, %v", found, err)
	}
	defer found.Close()
	is, err := found.Info()
	want, err2 := own.Info()
	if err = errors.Join(err, err2); err != nil {
		b.Fatal(err)
	}
	got, _ := is.ID()
	if id, _ := want.ID(); got != id {
		b.Errorf("program %d is taken, want %d", got, id)
	}
}

// killed has what a kill leaves between the attachment of a program and the detachment of another:
// what is in force is told, and what is wished comes to be.
func (b *bed) killed() {
	b.Helper()
	for _, old := range []uint64{1e6, 4e6} { // bytes per second
		const wish = 2e6
		err := withGroup(b.groups[0], func(fd int) error {
			return errors.Join(sending.add(fd, old), sending.add(fd, wish), marks.add(fd, firstMinor), marks.add(fd, firstMinor+1))
		})
		if err != nil {
			b.Fatal(err)
		}
		l, err := (systemCalls{}).Limit(b.groups[0])
		if l.Send != rateOf(min(old, wish)) || err != nil {
			b.Errorf("two limits: %+v, %v", l, err)
		}
		if minor, err := (systemCalls{}).Mark(b.groups[0]); minor != firstMinor || err != nil {
			b.Errorf("two marks: %x, %v", minor, err)
		}
		err = errors.Join((systemCalls{}).SetLimit(b.groups[0], Limit{Send: rateOf(wish)}), (systemCalls{}).SetMark(b.groups[0], 0))
		if l, again := (systemCalls{}).Limit(b.groups[0]); l.Send != rateOf(wish) || errors.Join(err, again) != nil {
			b.Errorf("written: %+v, %v", l, errors.Join(err, again))
		}
		if err := (systemCalls{}).SetLimit(b.groups[0], Limit{}); err != nil {
			b.Error(err)
		}
	}
}

// namesake has a program of somebody else's with the name of Berth's stay where it is.
func (b *bed) namesake() {
	b.Helper()
	spec := marks.spec(firstMinor, 0)
	spec.Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	err = withGroup(b.groups[0], func(fd int) error {
		at := link.RawAttachProgramOptions{Target: fd, Program: p, Attach: ebpf.AttachCGroupInetEgress, Flags: unix.BPF_F_ALLOW_MULTI}
		if err := link.RawAttachProgram(at); err != nil {
			return err
		}
		if minor, err := (systemCalls{}).Mark(b.groups[0]); minor != 0 || err != nil {
			b.Errorf("a program of the same name is taken for the mark %x, %v", minor, err)
		}
		if err := (systemCalls{}).SetMark(b.groups[0], 0); err != nil {
			b.Error(err)
		}
		return link.RawDetachProgram(link.RawDetachProgramOptions{Target: fd, Program: p, Attach: ebpf.AttachCGroupInetEgress})
	})
	if err != nil {
		b.Errorf("a program of the same name is detached: %v", err)
	}
}

func (b *bed) layout(c *Config) *Layout {
	b.Helper()
	h, err := Read(b.root.FS(), c)
	if err != nil {
		b.Fatal(err)
	}
	l, err := c.Layout(h)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// otherKind has one kind of program take the place of another, as where a device has got fq or lost it,
// and come back where that cannot be loaded.
func (b *bed) otherKind(group string) {
	b.Helper()
	err := withGroup(group, func(fd int) error {
		want := func(when string, paces, sends int) {
			b.Helper()
			for k, want := range map[*programs]int{pacing: paces, sending: sends} {
				n := 0
				if err := k.each(fd, func(*ebpf.Program, uint64) error { n++; return nil }); err != nil || n != want {
					b.Errorf("%s: %d programs that %s, want %d; %v", when, n, k.does, want, err)
				}
			}
		}
		if err := pacing.instead(sending, fd, 1e6); err != nil {
			return err
		}
		want("first", 1, 0)
		broken := *sending
		broken.code = func(uint64, int) asm.Instructions { return asm.Instructions{asm.Return()} }
		if err := broken.instead(pacing, fd, 2e6); err == nil {
			b.Error("the kernel loads a program that returns nothing")
		}
		want("refused", 1, 0)
		if err := sending.instead(pacing, fd, 2e6); err != nil {
			return err
		}
		want("changed", 0, 1)
		return sending.set(fd, 0)
	})
	if err != nil {
		b.Error(err)
	}
}
