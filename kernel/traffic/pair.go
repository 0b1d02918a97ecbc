package traffic

import (
	"errors"
	"fmt"
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

// Up gives a device of the network namespace of the calling thread an IPv4 address, and
// sets it up.
func Up(name string, address netip.Prefix) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	defer unix.Close(fd)
	mask := netip.PrefixFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), address.Bits()).Masked().Addr()
	for _, step := range []struct {
		request uint
		set     func(*unix.Ifreq) error
	}{
		{unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(address.Addr().AsSlice()) }},
		{unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask.AsSlice()) }},
		{unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }},
	} {
		r, err := unix.NewIfreq(name)
		if err == nil {
			err = step.set(r)
		}
		if err == nil {
			err = unix.IoctlIfreq(fd, step.request, r)
		}
		if err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	return nil
}
