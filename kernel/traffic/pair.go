package traffic

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel"
)

// Attributes of a device (include/uapi/linux/if_link.h).
const (
	iflaName     = 3
	iflaLinkInfo = 18
	iflaNetNSFD  = 28
	infoKind     = 1
	infoData     = 2
	vethPeer     = 1
	sizeOfIfInfo = 16 // struct ifinfomsg
)

// pairMessage is that which makes two ends of a veth, the other one in the network namespace
// of a descriptor.
func pairMessage(name, other string, in uint32) []byte {
	text := func(s string) []byte { return append([]byte(s), 0) }
	peer := netlink.Attribute(make([]byte, sizeOfIfInfo), iflaName, text(other))
	peer = netlink.Attribute(peer, iflaNetNSFD, order.AppendUint32(nil, in))
	info := netlink.Attribute(nil, infoKind, text("veth"))
	info = netlink.Attribute(info, infoData|nested, netlink.Attribute(nil, vethPeer, peer))
	b := netlink.Attribute(make([]byte, sizeOfIfInfo), iflaName, text(name))
	return netlink.Attribute(b, iflaLinkInfo|nested, info)
}

// AddPair makes a veth: one end in the network namespace of the calling thread, the other one
// in another. Both go with their namespaces. Where the kernel has no veth, or this process may
// not, it is a *kernel.NotSupportedError.
func AddPair(name, other string, in *os.File) error {
	err := ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, pairMessage(name, other, uint32(in.Fd())))
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP):
		return &kernel.NotSupportedError{Feature: "a link of its own", Reason: "the kernel has no veth", Remedy: "modprobe veth, or a kernel with CONFIG_VETH"}
	case errors.Is(err, syscall.EPERM):
		return &kernel.NotSupportedError{Feature: "a link of its own", Reason: "this process may make no network devices", Remedy: "run as root"}
	case err != nil:
		return fmt.Errorf("make veth %s: %w", name, err)
	}
	return nil
}

// Up gives a device of the network namespace of the calling thread an address, IPv4 or IPv6, and
// sets it up. An IPv6 address is of use at once: nobody is asked whether he has it (IFA_F_NODAD).
func Up(name string, address netip.Prefix) error {
	if err := up(name, address); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

func up(name string, address netip.Prefix) error {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	if err := ask(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, addressMessage(device.Index, address)); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// addressMessage is struct ifaddrmsg with its attributes (include/uapi/linux/if_addr.h).
func addressMessage(index int, address netip.Prefix) []byte {
	b := make([]byte, unix.SizeofIfAddrmsg)
	b[0], b[1] = unix.AF_INET, byte(address.Bits())
	if address.Addr().Is6() {
		b[0], b[2] = unix.AF_INET6, unix.IFA_F_NODAD
	}
	order.PutUint32(b[4:], uint32(index))
	b = netlink.Attribute(b, unix.IFA_LOCAL, address.Addr().AsSlice())
	return netlink.Attribute(b, unix.IFA_ADDRESS, address.Addr().AsSlice())
}
