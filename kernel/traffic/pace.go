package traffic

import (
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// pacers are the programs of devices, tcx in net/core/dev.c: before all others, which run after
// it, so that all that is sent is counted.
var pacers = &programs{
	of: ebpf.SchedCLS, attach: ebpf.AttachTCXEgress, at: "device", does: "says when packets leave", prefix: "berth_edt", base: 10, digits: 1,
	code: func(_ uint64, state int) asm.Instructions { return pacerOf(state) }, state: classPaces, anchor: link.Head(),
}

// pacer is the number of the one program of a device.
const pacer = 1

// possible reports whether the kernel has programs of devices: Linux 6.6, with CONFIG_NET_XGRESS.
func (k *programs) possible(index int) bool {
	_, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: k.attach})
	return !errors.Is(err, syscall.EINVAL) && !errors.Is(err, ebpf.ErrNotSupported)
}

// pace is what a device's program has of a class: bytes per second that it may send, the time by
// which what it has sent would have been sent at that rate, what else the class says, and the packets
// that were dropped.
type pace struct{ Ceil, Clock, Rate, Prio, Dropped uint64 }

func paceOf(c Class) pace { return pace{Ceil: c.Ceil, Rate: c.Rate, Prio: uint64(c.Prio)} }

// setPace has a class be so from now on. Its clock goes on: what it has sent is in fq still, and what
// follows must not overtake that.
func setPace(m *ebpf.Map, minor uint16, c Class) error {
	key, p, was := uint32(minor), paceOf(c), pace{}
	if err := m.Lookup(key, &was); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	p.Clock, p.Dropped = was.Clock, was.Dropped
	return m.Put(key, p)
}

// sizeOfClassPace is that of a pace, atPaceDropped where its Dropped is.
const (
	sizeOfClassPace = 40
	atPaceDropped   = 32
)

// classPaces are those of a device, by minor.
func classPaces() (*ebpf.MapSpec, error) {
	const noPrealloc = 1 // BPF_F_NO_PREALLOC
	return &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: sizeOfClassPace, MaxEntries: 1 << 16, Flags: noPrealloc}, nil
}

// repace has a device have the program of this build of Berth's where it has that of another, with the
// same classes, unless that keeps them in another form: then they are to be set anew.
func repace(index int) error {
	outdated := false
	err := pacers.all(index, func(_ *ebpf.Program, _ uint64, older bool) error { outdated = outdated || older; return nil })
	if err != nil || !outdated {
		return err
	}
	classes, err := paces(index)
	if err != nil {
		return err
	}
	if err := pacers.set(index, pacer); err != nil {
		return err
	}
	return withPaces(index, func(m *ebpf.Map) error {
		for minor, c := range classes {
			if err := setPace(m, minor, c); err != nil {
				return err
			}
		}
		return nil
	})
}

// withPaces calls do with the classes of a device, unless its program is of another build of Berth's
// that keeps them in another form.
func withPaces(index int, do func(*ebpf.Map) error) error {
	found := false
	err := pacers.each(index, func(p *ebpf.Program, _ uint64) error {
		return mapsOf(p, func(m *ebpf.Map) error {
			found = true
			if m.ValueSize() != sizeOfClassPace {
				return nil
			}
			return do(m)
		})
	})
	if err == nil && !found {
		err = os.ErrNotExist
	}
	return err
}

// mapsOf calls do with the maps of a program.
func mapsOf(p *ebpf.Program, do func(*ebpf.Map) error) error {
	info, err := p.Info()
	if err != nil {
		return err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		if err := errors.Join(do(m), m.Close()); err != nil {
			return err
		}
	}
	return nil
}

// paces are the classes of a device. The kernel gives up where a class comes or goes meanwhile: then
// they are read once more.
func paces(index int) (classes map[uint16]Class, err error) {
	all, err := pacesOf(index)
	if all != nil {
		classes = map[uint16]Class{}
	}
	for minor, p := range all {
		classes[minor] = Class{Rate: p.Rate, Ceil: p.Ceil, Prio: uint32(p.Prio)}
	}
	return classes, err
}

// pacesOf is what a device's program has of its classes.
func pacesOf(index int) (classes map[uint16]pace, err error) {
	read := func(m *ebpf.Map) error {
		var minor uint32
		var p pace
		classes = map[uint16]pace{}
		all := m.Iterate()
		for all.Next(&minor, &p) {
			classes[uint16(minor)] = p
		}
		return all.Err()
	}
	err = withPaces(index, func(m *ebpf.Map) error {
		err := read(m)
		if errors.Is(err, ebpf.ErrIterationAborted) {
			err = read(m)
		}
		return err
	})
	return classes, err
}

// What is due later than the horizon is dropped, and most packets sooner (tooLate); fq itself drops
// what is due in 10 s. What a class may send at once after it was idle is what HTB gives it, 4 ms of
// its rate. In nanoseconds.
const (
	horizon   = 2e9
	paceBurst = 4e6
)

// tooLate goes to a label with a packet that is due later than excess from now and than fewPackets
// of its length take, or than the horizon, and else to "soon". R1 is when it is due, from now, and R7
// what it takes; R3 is changed.
//
// The bound is short because fq drops what a flow has beyond 100 packets (flow_limit in
// net/sched/sch_fq.c), for which the class has been charged: flows that nothing holds back, as those
// of forwarded packets and of small datagrams, get 100 packets in that time. It is the same for all
// packets of a class: one with a shorter bound would starve behind the others.
func tooLate(to string) asm.Instructions {
	const fewPackets = 4
	return asm.Instructions{
		asm.JSLE.Imm(asm.R1, excess, "soon"),
		asm.JSGT.Imm(asm.R1, horizon, to),
		asm.Mov.Reg(asm.R3, asm.R7),
		asm.Mul.Imm(asm.R3, fewPackets),
		asm.JSGT.Reg(asm.R1, asm.R3, to),
	}
}

// Offsets in struct __sk_buff.
const (
	skbLength   = 0
	skbPriority = 32
	skbDevice   = 40
	skbDue      = 152 // tstamp
	skbSegments = 164 // gso_segs
	skbWire     = 160 // wire_len, with the headers of each packet that a large one comes to
)

// pacerOf is the program that has packets of a class leave no faster than its ceiling: what is sent
// too early is due when what was sent before it is through at that rate. fq keeps it until then,
// and so does TCP, which has no more than a few packets of a connection below itself at a time
// (tcp_small_queue_check).
func pacerOf(state int) asm.Instructions {
	const next, drop = -1, 2 // TCX_NEXT, TCX_DROP
	insns := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R8, asm.R6, skbPriority, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R8),
		asm.RSh.Imm(asm.R2, 16),
		asm.And.Imm(asm.R8, 0xffff),
		asm.JNE.Imm(asm.R2, major, "others"),
		asm.Mov.Imm(asm.R3, 0), // fq takes the mark's last digit for a band (fq_prio2band)
		asm.StoreMem(asm.R6, skbPriority, asm.R3, asm.Word),
		asm.Ja.Label("find"),
		asm.Mov.Imm(asm.R8, othersMinor).WithSymbol("others"),
		asm.StoreMem(asm.RFP, -4, asm.R8, asm.Word).WithSymbol("find"),
		asm.LoadMapPtr(asm.R1, state),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "found"),
		asm.JNE.Imm(asm.R8, othersMinor, "others"), // as HTB has it: a class that is not there is others'
		asm.Ja.Label("next"),

		asm.Mov.Reg(asm.R9, asm.R0).WithSymbol("found"),
		asm.LoadMem(asm.R7, asm.R6, skbWire, asm.Word),
		asm.Mul.Imm(asm.R7, 1e9),
		asm.LoadMem(asm.R2, asm.R9, 0, asm.DWord),
		asm.Div.Reg(asm.R7, asm.R2), // what the packet takes at the ceiling
		asm.FnKtimeGetNs.Call(),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMem(asm.R1, asm.R9, 8, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R8),
		asm.Sub.Imm(asm.R2, paceBurst),
		asm.JSGE.Reg(asm.R1, asm.R2, "recent"),
		asm.StoreMem(asm.R9, 8, asm.R2, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R7).WithSymbol("recent"),
		fetchAdd(asm.R9, asm.R2, 8), // R2 is when it is due
		asm.Mov.Reg(asm.R1, asm.R2),
		asm.Sub.Reg(asm.R1, asm.R8),
	}
	insns = append(insns, tooLate("late")...)
	insns = append(insns,
		asm.JSLE.Imm(asm.R1, 0, "next").WithSymbol("soon"),
		asm.LoadMem(asm.R3, asm.R6, skbDue, asm.DWord),
		asm.JGE.Reg(asm.R3, asm.R2, "next"), // its socket has it leave later
		asm.StoreMem(asm.R6, skbDue, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, next).WithSymbol("next"),
		asm.Return(),

		asm.Mul.Imm(asm.R7, -1).WithSymbol("late"),
		asm.AddAtomic.Mem(asm.R9, asm.R7, asm.DWord, 8),
	)
	insns = append(insns, countDropped(asm.R9, atPaceDropped)...)
	return append(insns, asm.Mov.Imm(asm.R0, drop), asm.Return())
}

// fetchAdd adds what a register has to a number in memory, and has it have what that was. The library
// (v0.22.0) writes no constant of its own for it, which says that it fetches (BPF_FETCH).
func fetchAdd(to, by asm.Register, at int16) asm.Instruction {
	insn := asm.FetchAdd.Mem(to, by, asm.DWord, at)
	insn.Constant = 1
	return insn
}

// tellsNetworks reports whether programs of control groups can ask which network namespace a packet
// is in, as Linux 6.15 has it.
var tellsNetworks = sync.OnceValue(func() bool {
	return features.HaveProgramHelper(ebpf.CGroupSKB, asm.FnGetNetnsCookie) == nil
})

// ownNetwork is the cookie of the network namespace of this thread, 0 before Linux 5.14.
func ownNetwork() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, syscall.ENOPROTOOPT) {
		return 0, nil
	}
	return cookie, err
}

// clockAndDevices is the map of paceLimiter: the clock, and the devices that have fq now. On one
// that has it no more what is sent is held to the rate all the same, but for what tooLate lets pass.
// On those beyond mostDevices it is held as on a device without fq: told to slow down, then dropped.
func clockAndDevices() (*ebpf.MapSpec, error) {
	roots, err := disciplines()
	if err != nil {
		return nil, err
	}
	value := byDevice{}
	if value.Network, err = ownNetwork(); err != nil {
		return nil, err
	}
	var with []int
	for index, q := range roots {
		if q.Paces {
			with = append(with, index)
		}
	}
	slices.Sort(with)
	for i, index := range with[:min(len(with), mostDevices)] {
		value.Devices[i] = uint32(index)
	}
	return &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: sizeOfByDevice, MaxEntries: 1, Contents: []ebpf.MapKV{{Key: uint32(0), Value: value}}}, nil
}

// paceLimiter is the sendLimiter of a host where a device has fq: through that, packets beyond the
// rate leave when they are due. Programs of control groups may write when (cg_skb_is_valid_access).
// A device of another network namespace, which may have the number of one with fq, is none of those
// where the kernel tells which namespace a packet is in.
func paceLimiter(rate uint64, state int) asm.Instructions {
	insns := append(inNetwork("elsewhere"), among("paced")...)
	beyond := slowly()
	beyond[0] = beyond[0].WithSymbol("elsewhere")
	insns = append(insns, beyond...)
	insns = append(insns,
		asm.Ja.Label("count"),
		asm.Mov.Imm(asm.R0, droppedSlow).WithSymbol("paced"),
	)
	insns = append(insns, tooLate("drop")...)
	return limiter(rate, state, nil, append(insns,
		asm.Mov.Imm(asm.R0, passed).WithSymbol("soon"),
		asm.Add.Reg(asm.R1, asm.R8),
		asm.LoadMem(asm.R3, asm.R6, skbDue, asm.DWord),
		asm.JGE.Reg(asm.R3, asm.R1, "count"),
		asm.StoreMem(asm.R6, skbDue, asm.R1, asm.DWord),
	))
}
