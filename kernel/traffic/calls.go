package traffic

import (
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel"
)

// Calls are what the files stand for. A device is known by its index.
type Calls interface {
	Devices() (map[string]int, error) // by name
	Roots() (map[int]Qdisc, error)    // by index
	Paced(index int) (bool, error)    // whether EDT divides a device
	// Divide has a mechanism divide a device, with no class yet; Join removes it.
	Divide(by Mechanism, index int) error
	Join(by Mechanism, index int) error
	Classes(by Mechanism, index int) (map[uint16]Class, error)
	SetClass(by Mechanism, index int, minor uint16, c Class) error
	RemoveClass(by Mechanism, index int, minor uint16) error
	// Mark returns of which class the packets of a control group are, 0 if of none of Berth's.
	Mark(group string) (minor uint16, err error)
	SetMark(group string, minor uint16) error
	// Limit returns what a control group may send and receive by programs of Berth's.
	Limit(group string) (Limit, error)
	SetLimit(group string, l Limit) error
	// Together returns with which others a control group receives, by a program of Berth's.
	Together(group string) (Together, error)
	SetTogether(group string, s Together) error
	// Dropped returns how many packets a device has dropped of each class, by minor, since the class
	// or its program came.
	Dropped(by Mechanism, index int) (map[uint16]uint64, error)
	// DroppedOf returns how many packets the programs that hold a control group have dropped since
	// they were attached: those of its limit, and that of its class, which is of all groups in that.
	DroppedOf(group string) (own, together uint64, err error)
}

// systemCalls are the kernel's: rtnetlink(7) and bpf(2).
type systemCalls struct{}

func (systemCalls) Devices() (map[string]int, error) {
	all, err := net.Interfaces()
	devices := map[string]int{}
	for _, i := range all {
		devices[i.Name] = i.Index
	}
	return devices, err
}

// Roots tells that a device paces only where the kernel lets EDT say when.
func (systemCalls) Roots() (map[int]Qdisc, error) {
	roots, err := disciplines()
	for index, q := range roots {
		q.Paces = q.Paces && pacers.possible(index)
		roots[index] = q
	}
	return roots, err
}

// disciplines are the roots of the devices, by index.
func disciplines() (map[int]Qdisc, error) {
	var all []netlink.Queue
	err := dump(unix.RTM_GETQDISC, netlink.Queue{}, func(m netlink.Queue) { all = append(all, m) })
	return rootsOf(all), err
}

// rootsOf are the roots among the disciplines of devices. mq keeps packets until they are due where
// the disciplines of all its queues do (fq in net/sched/sch_fq.c); those of what arrives (clsact,
// ingress) are no queues of it.
func rootsOf(all []netlink.Queue) map[int]Qdisc {
	const keeps, spreads = "fq", "mq"
	roots, below := map[int]Qdisc{}, map[int][]netlink.Queue{}
	for _, m := range all {
		if m.Parent == netlink.Root {
			roots[m.Index] = Qdisc{Kind: m.Kind, Handle: m.Handle, Paces: m.Kind == keeps}
		} else {
			below[m.Index] = append(below[m.Index], m)
		}
	}
	for index, q := range roots {
		if q.Kind != spreads {
			continue
		}
		queues := slices.DeleteFunc(below[index], func(m netlink.Queue) bool { return m.Parent>>16 != q.Handle>>16 })
		q.Paces = len(queues) > 0 && !slices.ContainsFunc(queues, func(m netlink.Queue) bool { return m.Kind != keeps })
		roots[index] = q
	}
	return roots
}

// Paced tells what this process may ask: one that may not list the programs of devices sees none.
func (systemCalls) Paced(index int) (is bool, err error) {
	err = pacers.each(index, func(*ebpf.Program, uint64) error { is = true; return nil })
	// EINVAL is a kernel that has none (possible).
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EPERM) {
		return false, nil
	}
	return is, err
}

func (systemCalls) Divide(by Mechanism, index int) error {
	if by == EDT {
		return pacers.set(index, pacer)
	}
	err := request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, netlink.Queue{
		Index: index, Handle: major << 16, Parent: netlink.Root, Kind: "htb", Options: htbOptions(),
	})
	if errors.Is(err, syscall.ENOENT) {
		return &kernel.NotSupportedError{Feature: "network classes", Reason: "the kernel has no HTB", Remedy: "modprobe sch_htb, or a kernel with CONFIG_NET_SCH_HTB"}
	}
	return err
}

func (systemCalls) Join(by Mechanism, index int) error {
	if by == EDT {
		return pacers.set(index, 0)
	}
	return request(unix.RTM_DELQDISC, 0, netlink.Queue{Index: index, Handle: major << 16, Parent: netlink.Root})
}

func (systemCalls) Classes(by Mechanism, index int) (map[uint16]Class, error) {
	if by == EDT {
		return paces(index)
	}
	classes := map[uint16]Class{}
	var bad error
	err := dump(unix.RTM_GETTCLASS, netlink.Queue{Index: index}, func(m netlink.Queue) {
		if m.Index != index || m.Handle>>16 != major {
			return
		}
		c, err := parseHTB(m.Options)
		bad = errors.Join(bad, err)
		classes[uint16(m.Handle)] = c
	})
	return classes, errors.Join(err, bad)
}

func (systemCalls) SetClass(by Mechanism, index int, minor uint16, c Class) error {
	if by == EDT {
		if err := repace(index); err != nil {
			return err
		}
		return withPaces(index, func(m *ebpf.Map) error { return setPace(m, minor, c) })
	}
	parent := uint32(major<<16 | linkMinor)
	if minor == linkMinor {
		parent = major << 16
	}
	return request(unix.RTM_NEWTCLASS, unix.NLM_F_CREATE, netlink.Queue{
		Index: index, Handle: major<<16 | uint32(minor), Parent: parent, Kind: "htb", Options: c.options(),
	})
}

func (systemCalls) RemoveClass(by Mechanism, index int, minor uint16) error {
	var err error
	if by == EDT {
		err = withPaces(index, func(m *ebpf.Map) error { return m.Delete(uint32(minor)) })
	} else {
		err = request(unix.RTM_DELTCLASS, 0, netlink.Queue{Index: index, Handle: major<<16 | uint32(minor)})
	}
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

func (systemCalls) Mark(group string) (minor uint16, err error) {
	err = withGroup(group, func(fd int) error {
		return marks.each(fd, func(_ *ebpf.Program, of uint64) error {
			if minor == 0 { // of two, left by a kill, the first to run marks
				minor = uint16(of)
			}
			return nil
		})
	})
	return minor, err
}

func (systemCalls) SetMark(group string, minor uint16) error {
	return withGroup(group, func(fd int) error { return marks.set(fd, uint64(minor)) })
}

func (systemCalls) Limit(group string) (l Limit, err error) {
	// Of two, left by a kill, the smaller holds.
	sends := func(_ *ebpf.Program, rate uint64) error { l = l.Min(Limit{Send: rateOf(rate)}); return nil }
	err = withGroup(group, func(fd int) error {
		return errors.Join(
			sending.each(fd, sends), pacing.each(fd, sends),
			receiving.each(fd, func(_ *ebpf.Program, rate uint64) error { l = l.Min(Limit{Receive: rateOf(rate)}); return nil }),
			arriving.each(fd, func(p *ebpf.Program, rate uint64) error {
				a, err := arrivalsIn(p)
				if of := rateOf(rate); l.Arrival == (Arrival{}) || of < l.Arrival.Rate {
					l.Arrival = Arrival{a.devices(), of}
				}
				return err
			}))
	})
	return l, err
}

func (systemCalls) SetLimit(group string, l Limit) error {
	roots, err := disciplines()
	if err != nil {
		return err
	}
	is, other := sending, pacing
	if slices.ContainsFunc(slices.Collect(maps.Values(roots)), func(q Qdisc) bool { return q.Paces }) {
		is, other = pacing, sending
	}
	return withGroup(group, func(fd int) error {
		return errors.Join(
			is.instead(other, fd, l.Send.bytes()), receiving.set(fd, l.Receive.bytes()),
			arriving.setThrough(fd, l.Arrival.Rate.bytes(), l.Arrival.Devices))
	})
}

func (systemCalls) Together(group string) (s Together, err error) {
	err = withGroup(group, func(fd int) error {
		return together.each(fd, func(p *ebpf.Program, number uint64) error {
			a, err := arrivalsIn(p)
			// Of two, left by a kill, the smaller holds.
			if of := togetherOf(number); s == (Together{}) || of.Rate < s.Rate {
				s, s.Devices = of, a.devices()
			}
			return err
		})
	})
	return s, err
}

func (systemCalls) SetTogether(group string, s Together) error {
	return withGroup(group, func(fd int) error { return together.setThrough(fd, receivesTogether(s), s.Devices) })
}

// Dropped tells of HTB what the kernel counts in 32 bits.
func (systemCalls) Dropped(by Mechanism, index int) (map[uint16]uint64, error) {
	all := map[uint16]uint64{}
	if by == EDT {
		classes, err := pacesOf(index)
		for minor, p := range classes {
			all[minor] = p.Dropped
		}
		return all, err
	}
	err := dump(unix.RTM_GETTCLASS, netlink.Queue{Index: index}, func(m netlink.Queue) {
		if minor := uint16(m.Handle); m.Index == index && m.Handle>>16 == major && minor != linkMinor {
			all[minor] = uint64(m.Dropped)
		}
	})
	return all, err
}

func (systemCalls) DroppedOf(group string) (own, shared uint64, err error) {
	err = withGroup(group, func(fd int) (err error) {
		for _, k := range []*programs{sending, pacing, receiving, arriving} {
			packets, err := k.droppedBy(fd)
			if err != nil {
				return err
			}
			own += packets
		}
		shared, err = together.droppedBy(fd)
		return err
	})
	return own, shared, err
}

// withGroup opens a control group.
func withGroup(group string, do func(fd int) error) error {
	f, err := os.Open("/" + group)
	if err != nil {
		return bare(err)
	}
	defer f.Close()
	return do(int(f.Fd()))
}

func bare(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}
