package testbox

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"berth.dev/berth/kernel"
)

// End is one end of a link: a network device, and its address.
type End struct {
	Device  string
	Address netip.Prefix
}

// Link is a network link of a test's own, a veth: the near end is in the network namespace of the
// test, the far end in that of a process of the test binary (Self), which calls Serve.
type Link struct {
	Near, Far End
	// AddPair and Up are those of kernel/traffic, whose own tests have links, too: this package
	// cannot import it.
	AddPair func(near, far string, in *os.File) error
	Up      func(device string, address netip.Prefix) error
}

// Far is the process at the far end of a link, which ends with the test.
type Far struct {
	Namespace *os.File // its network
	t         T
	in        io.Writer
	out       *bufio.Scanner
}

// Open makes the link, and starts the process at its far end in a role. Where the kernel has no
// such links the test is skipped.
func (l Link) Open(t T, variable, role string) *Far {
	t.Helper()
	cmd := Self(t, variable, role, syscall.CLONE_NEWNET)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	f := &Far{t: t, in: in, out: Start(t, cmd)}
	if f.Namespace, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Namespace.Close() })
	err = l.AddPair(l.Near.Device, l.Far.Device, f.Namespace)
	if errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	if err == nil {
		err = l.Up(l.Near.Device, l.Near.Address)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Ask() // it serves
	return f
}

// Ask has the process say what it answers.
func (f *Far) Ask() string {
	f.t.Helper()
	if _, err := fmt.Fprintln(f.in); err != nil || !f.out.Scan() {
		f.t.Fatal("the far end ended: ", err)
	}
	return f.out.Text()
}

// Serve is what the process at the far end does until its standard input ends: each connection to
// a port is given to the port's function, and each Ask is answered.
func (l Link) Serve(ports map[int]func(*net.TCPConn), answer func() string) error {
	fmt.Println("made")
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() { // there is no link yet
		return in.Err()
	}
	if err := l.Up(l.Far.Device, l.Far.Address); err != nil {
		return err
	}
	for port, serve := range ports {
		listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: l.Far.Address.Addr().AsSlice(), Port: port})
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := listener.AcceptTCP()
				if err != nil {
					return
				}
				go serve(c)
			}
		}()
	}
	for fmt.Println("serves"); in.Scan(); {
		fmt.Println(answer())
	}
	return in.Err()
}

// Dial connects this process to a port of the far end, by "tcp" or "udp".
func (l Link) Dial(network string, port int) (net.Conn, error) {
	return net.Dial(network, net.JoinHostPort(l.Far.Address.Addr().String(), strconv.Itoa(port)))
}

// Join moves this process into control groups, as Group names them. A socket is of the group in
// which it is made.
func Join(groups ...string) error {
	for _, dir := range groups {
		if err := os.WriteFile("/"+dir+"/cgroup.procs", []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}
