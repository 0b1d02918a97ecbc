package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/traffic"
)

// The link of the experiment about the network: slow enough that a few connections fill it with
// little of a CPU.
const (
	linkRate = traffic.Rate(200e6)
	// senders are the neighbour's threads, of a connection each: one alone is kept short by
	// the kernel, so that little of it waits (tcp_limit_output_bytes).
	senders = 4
)

// The two ends. Both are in namespaces of the run's own, where no other address is.
const (
	linkDevice = "berth-lab0"
	farDevice  = "berth-lab1"
	sinkPort   = 7400
)

var (
	nearAddress = netip.MustParsePrefix("10.99.0.1/24")
	farAddress  = netip.MustParsePrefix("10.99.0.2/24")
)

// link is a network link of a run's own, a veth: on its near side are tenant and neighbour, on
// its far side the generator, and a sink for what the neighbour sends. What is sent from the
// near side waits for HTB. The namespaces have no names: they go with the descriptors and
// processes of the run, however it ends.
type link struct {
	near, far *os.File // network namespaces
	root      *kernel.Root
	rate      traffic.Rate
	sink      net.Listener
	// groups are those of cgroup v2 by which the kernel tells the packets of roles apart; lacks
	// says why there are none.
	groups map[Role]string
	lacks  error
}

// openLink makes the link, of which nothing is limited yet.
func openLink(rate traffic.Rate) (_ *link, err error) {
	root, err := kernel.Open("/")
	if err != nil {
		return nil, err
	}
	k := &link{root: traffic.Over(root), rate: rate}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	for _, ns := range []**os.File{&k.near, &k.far} {
		if *ns, err = newNetwork(); err != nil {
			return nil, err
		}
	}
	err = netlink.In(k.near, func() error {
		if err := traffic.AddPair(linkDevice, farDevice, k.far); err != nil {
			return err
		}
		return traffic.Up(linkDevice, nearAddress)
	})
	if err == nil {
		err = netlink.In(k.far, func() (err error) {
			if err = traffic.Up(farDevice, farAddress); err == nil {
				k.sink, err = net.Listen("tcp4", netip.AddrPortFrom(farAddress.Addr(), sinkPort).String())
			}
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	go swallow(k.sink)
	return k, nil
}

// newNetwork makes a network namespace.
func newNetwork() (*os.File, error) {
	ns, err := netlink.New()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSPC) {
		err = &kernel.NotSupportedError{Feature: "a network namespace of the lab's own", Reason: err.Error(), Remedy: "run as root on a kernel with CONFIG_NET_NS"}
	}
	return ns, err
}

// startIn starts a process in a network namespace, from the calling thread, which is locked and
// stays where it is.
func startIn(ns *os.File, cmd *exec.Cmd) error {
	if ns == nil {
		return cmd.Start()
	}
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("setns", err)
	}
	err = cmd.Start()
	return errors.Join(err, os.NewSyscallError("setns", unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)))
}

// swallow reads all that comes to a listener until that is closed.
func swallow(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			b := make([]byte, 256<<10)
			for err := error(nil); err == nil; {
				_, err = c.Read(b)
			}
			_ = c.Close() // nothing was written
		}()
	}
}

// connectLink makes the link, and has it take no more than its rate.
func (b *Testbed) connectLink() (err error) {
	if b.link, err = openLink(b.spec.LinkRate); err != nil {
		return err
	}
	b.later = append(b.later, b.link.close)
	plan, err := b.link.plan(Isolation{})
	if err != nil {
		return err
	}
	b.Setup.Tenant.Listen = nearAddress.Addr().String()
	b.Setup.Neighbour.Address = netip.AddrPortFrom(farAddress.Addr(), sinkPort).String()
	b.link.findGroups(b.backend.group)
	undo, err := b.link.apply(plan, b.undoLog)
	if err == nil {
		b.later = append(b.later, undo)
	}
	return err
}

// findGroups finds the roles' groups of cgroup v2, if they have some.
func (k *link) findGroups(of func(Role) cgroup.Group) {
	k.groups = map[Role]string{}
	for _, r := range []Role{Tenant, Neighbour} {
		trees := of(r).Trees()
		i := slices.IndexFunc(trees, func(t cgroup.Hierarchy) bool { return t.Version == 2 })
		if i < 0 {
			k.lacks = &kernel.NotSupportedError{
				Feature: "network classes", Reason: "the run has no groups of cgroup v2, and on v1 no program sees the packets of a group",
				Remedy: "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or mount it beside v1",
			}
			return
		}
		k.groups[r] = trees[i].Dir
	}
}

// shares reports whether the strategy gives network classes.
func (iso Isolation) shares() bool {
	return iso.NetTenant != traffic.Share{} || iso.NetNeighbour != traffic.Share{}
}

// sharesText says what the neighbour may send, and what the tenant, as a NodeConfig would.
func (iso Isolation) sharesText() string {
	text := "where bulk is " + shareText(iso.NetNeighbour)
	if iso.NetTenant != (traffic.Share{}) {
		text += ", beside a service of class first: " + shareText(iso.NetTenant)
	}
	return text
}

func shareText(s traffic.Share) string {
	var words []string
	if s.Floor != (traffic.Amount{}) {
		words = append(words, "floor: "+s.Floor.String())
	}
	if s.Ceiling != (traffic.Amount{}) {
		words = append(words, "ceiling: "+s.Ceiling.String())
	}
	if s.Priority > 0 {
		words = append(words, fmt.Sprintf("priority: %d", s.Priority))
	}
	return "{" + strings.Join(words, ", ") + "}"
}

// config are the network classes of a strategy, each named as its role. What has none is of the class of all others.
func (iso Isolation) config(rate traffic.Rate) *traffic.Config {
	c := &traffic.Config{Devices: map[string]traffic.LinkConfig{linkDevice: {Rate: rate}}, Classes: map[string]traffic.Share{}}
	for role, share := range map[Role]traffic.Share{Tenant: iso.NetTenant, Neighbour: iso.NetNeighbour} {
		if share != (traffic.Share{}) {
			c.Classes[string(role)] = share
		}
	}
	return c
}

// validateShares checks the network classes of a scenario.
func (e Spec) validateShares(s Scenario) error {
	switch {
	case !s.Isolation.shares():
		return nil
	case e.Resource != Net:
		return fmt.Errorf("experiment: scenario %s: netTenant, netNeighbour: only where the resource is net, not %s", s.Name, orCPU(e.Resource))
	}
	for _, share := range []traffic.Share{s.Isolation.NetTenant, s.Isolation.NetNeighbour} {
		if share.Receive != 0 || share.ReceiveTogether != 0 || share.ReceiveFrom != "" {
			return fmt.Errorf("experiment: scenario %s: netTenant, netNeighbour: the link is divided by what is sent: leave receive, receiveTogether and receiveFrom out", s.Name)
		}
	}
	c := s.Isolation.config(e.LinkRate)
	err := c.Validate()
	if err == nil {
		_, err = c.Layout(&traffic.Host{Devices: map[string]*traffic.Device{linkDevice: {Name: linkDevice, Root: "noqueue 0:", Virtual: true}}})
	}
	if err != nil {
		return fmt.Errorf("experiment: scenario %s: %w", s.Name, err)
	}
	return nil
}

// plan leads from what the link has to what a strategy gives it.
func (k *link) plan(iso Isolation) (plan kernel.Plan, err error) {
	if iso.shares() && k.lacks != nil {
		return nil, k.lacks
	}
	err = netlink.In(k.near, func() error {
		c := iso.config(k.rate)
		h, err := traffic.Read(k.root.FS(), c)
		if err != nil {
			return err
		}
		layout, err := c.Layout(h)
		if err != nil {
			return err
		}
		plan = layout.Plan()
		for _, r := range []Role{Tenant, Neighbour} {
			if class := string(r); c.Has(class) {
				plan = append(plan, kernel.Step{Path: traffic.MarkFile(k.groups[r]), Value: layout.MarkOf(class), Why: "network class " + class})
			}
		}
		return nil
	})
	return plan, err
}

// apply carries out a plan, and returns what undoes it, both on the near side.
func (k *link) apply(plan kernel.Plan, undoLog *kernel.UndoLog) (undo func() error, err error) {
	var revert func() error
	err = netlink.In(k.near, func() (err error) {
		revert, err = kernel.Apply(k.root, plan, undoLog)
		return err
	})
	return func() error { return netlink.In(k.near, revert) }, err
}

// namespace is the network namespace that a role is in; nil is that of this process.
func (k *link) namespace(r Role) *os.File {
	switch {
	case k == nil:
		return nil
	case r == generator:
		return k.far
	}
	return k.near
}

// sent is how many bytes went from the near side so far, as a process there is told.
func (k *link) sent(pid int) (uint64, error) {
	text, err := fs.ReadFile(k.root.FS(), fmt.Sprintf("proc/%d/net/dev", pid))
	if err != nil {
		return 0, err
	}
	return parseSent(string(text), linkDevice)
}

// parseSent reads how many bytes a device has sent from net/dev of a process (proc_pid_net(5)).
func parseSent(text, device string) (uint64, error) {
	for line := range strings.Lines(text) {
		name, counts, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(name) != device {
			continue
		}
		const sentBytes = 8
		words := strings.Fields(counts)
		if len(words) <= sentBytes {
			return 0, fmt.Errorf("net/dev: %d counts of %s, want 16", len(words), device)
		}
		n, err := strconv.ParseUint(words[sentBytes], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("net/dev: %s: %w", device, err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("net/dev: no %s", device)
}

// close removes the link: with the last process and descriptor in them, the namespaces go.
func (k *link) close() error {
	var errs []error
	if k.sink != nil {
		errs = append(errs, k.sink.Close())
	}
	for _, ns := range []*os.File{k.near, k.far} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}
