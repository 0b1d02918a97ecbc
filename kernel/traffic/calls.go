package traffic

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel"
)

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

func (systemCalls) Roots() (map[int]Qdisc, error) {
	roots := map[int]Qdisc{}
	err := dump(unix.RTM_GETQDISC, netlink.Queue{}, func(m netlink.Queue) {
		if m.Parent == netlink.Root {
			roots[m.Index] = Qdisc{m.Kind, m.Handle}
		}
	})
	return roots, err
}

func (systemCalls) AddRoot(index int) error {
	err := request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, netlink.Queue{
		Index: index, Handle: major << 16, Parent: netlink.Root, Kind: "htb", Options: htbOptions(),
	})
	if errors.Is(err, syscall.ENOENT) {
		return &kernel.NotSupportedError{Feature: "network classes", Reason: "the kernel has no HTB", Remedy: "modprobe sch_htb, or a kernel with CONFIG_NET_SCH_HTB"}
	}
	return err
}

func (systemCalls) RemoveRoot(index int) error {
	return request(unix.RTM_DELQDISC, 0, netlink.Queue{Index: index, Handle: major << 16, Parent: netlink.Root})
}

func (systemCalls) Classes(index int) (map[uint16]Class, error) {
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

func (systemCalls) SetClass(index int, minor uint16, c Class) error {
	parent := uint32(major<<16 | linkMinor)
	if minor == linkMinor {
		parent = major << 16
	}
	return request(unix.RTM_NEWTCLASS, unix.NLM_F_CREATE, netlink.Queue{
		Index: index, Handle: major<<16 | uint32(minor), Parent: parent, Kind: "htb", Options: c.options(),
	})
}

func (systemCalls) RemoveClass(index int, minor uint16) error {
	err := request(unix.RTM_DELTCLASS, 0, netlink.Queue{Index: index, Handle: major<<16 | uint32(minor)})
	if errors.Is(err, syscall.ENOENT) {
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
	err = withGroup(group, func(fd int) error {
		return errors.Join(
			sending.each(fd, func(_ *ebpf.Program, rate uint64) error { l = l.Min(Limit{Send: rateOf(rate)}); return nil }),
			receiving.each(fd, func(_ *ebpf.Program, rate uint64) error { l = l.Min(Limit{Receive: rateOf(rate)}); return nil }))
	})
	return l, err
}

func (systemCalls) SetLimit(group string, l Limit) error {
	return withGroup(group, func(fd int) error {
		return errors.Join(sending.set(fd, l.Send.bytes()), receiving.set(fd, l.Receive.bytes()))
	})
}

// programs are those of a kind that control groups have of Berth. Each has a number, in its name
// and its instructions.
type programs struct {
	attach ebpf.AttachType
	does   string
	prefix string // of names
	base   int    // of the number in them
	digits int    // that it has at least
	make   func(number uint64, state int) asm.Instructions
	state  bool // it has one: a map of a number
}

var (
	marks     = &programs{ebpf.AttachCGroupInetEgress, "marks packets", "berth_net_", 16, 4, marker, false}
	sending   = &programs{ebpf.AttachCGroupInetEgress, "limits what is sent", "berth_o", 36, 1, sendLimiter, true}
	receiving = &programs{ebpf.AttachCGroupInetIngress, "limits what is received", "berth_i", 36, 1, receiveLimiter, true}
)

// spec is the program of a number.
func (k *programs) spec(number uint64, state int) *ebpf.ProgramSpec {
	digits := strconv.FormatUint(number, k.base)
	name := k.prefix + strings.Repeat("0", max(k.digits-len(digits), 0)) + digits
	return &ebpf.ProgramSpec{Name: name, Type: ebpf.CGroupSKB, AttachType: k.attach, License: "GPL", Instructions: numbered(k.make(number, state))}
}

// marker gives packets the number of a class, by which HTB finds it without a filter
// (htb_classify in net/sched/sch_htb.c), unless the program of a group further in has done so:
// those of outer groups run after it. Programs of control groups may write the priority
// (cg_skb_is_valid_access in net/core/filter.c).
func marker(minor uint64, _ int) asm.Instructions {
	const priority = 32 // offset in struct __sk_buff
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, priority, asm.Word),
		asm.RSh.Imm(asm.R2, 16),
		asm.JEq.Imm(asm.R2, major, "end"),
		asm.Mov.Imm(asm.R2, major<<16|int32(minor)),
		asm.StoreMem(asm.R1, priority, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
		asm.Return(),
	}
}

// set has a control group have the program of a number and no other of the kind, 0 for none. It
// attaches that before it detaches another. It stays beside those of other programs, and without
// its maker: no link holds it.
func (k *programs) set(group int, number uint64) error {
	is := false
	err := k.each(group, func(_ *ebpf.Program, of uint64) error { is = is || of == number; return nil })
	if err != nil {
		return err
	}
	if number != 0 && !is {
		if err := k.add(group, number); err != nil {
			return err
		}
	}
	return k.each(group, func(p *ebpf.Program, of uint64) error {
		if of == number {
			return nil
		}
		return link.RawDetachProgram(link.RawDetachProgramOptions{Target: group, Program: p, Attach: k.attach})
	})
}

func (k *programs) add(group int, number uint64) error {
	state := 0
	if k.state {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: strings.TrimSuffix(k.prefix, "_"), Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
		if err != nil {
			return fmt.Errorf("make the map of the program that %s: %w", k.does, err)
		}
		defer m.Close() // the program holds it
		state = m.FD()
	}
	p, err := ebpf.NewProgram(k.spec(number, state))
	if err != nil {
		return fmt.Errorf("load the program that %s: %w", k.does, err)
	}
	defer p.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: group, Program: p, Attach: k.attach, Flags: unix.BPF_F_ALLOW_MULTI})
	if errors.Is(err, syscall.EPERM) {
		err = fmt.Errorf("%w: it takes CAP_NET_ADMIN and CAP_BPF, and no program in a group around it that allows no others ('bpftool cgroup tree' lists them)", err)
	}
	return err
}

// numbered has jumps to labels be to where those are: before a program is loaded a label has no
// number, and it no tag (with).
func numbered(insns asm.Instructions) asm.Instructions {
	at := map[string]int{}
	for i := insns.Iterate(); i.Next(); {
		at[i.Ins.Symbol()] = int(i.Offset)
	}
	for i := insns.Iterate(); i.Next(); {
		if to := i.Ins.Reference(); to != "" {
			i.Ins.Offset = int16(at[to] - int(i.Offset) - 1)
		}
		i.Ins.Metadata = asm.Metadata{}
	}
	return insns
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

// each calls do for each program of the kind at a control group, with its number.
func (k *programs) each(group int, do func(p *ebpf.Program, number uint64) error) error {
	all, err := link.QueryPrograms(link.QueryOptions{Target: group, Attach: k.attach})
	if err != nil {
		return permitted("list the programs of the control group", err)
	}
	for _, a := range all.Programs {
		if err := k.with(a.ID, do); err != nil && !errors.Is(err, os.ErrNotExist) {
			return permitted(fmt.Sprintf("program %d of the control group", a.ID), err)
		}
	}
	return nil
}

// permitted is the error of something done to programs of a control group, and what it takes.
func permitted(what string, err error) error {
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%s: %w: it takes CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// with calls do if a program is Berth's: it has the name, which anybody may choose, and the
// instructions.
func (k *programs) with(id ebpf.ProgramID, do func(p *ebpf.Program, number uint64) error) error {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return err
	}
	digits, ours := strings.CutPrefix(info.Name, k.prefix)
	number, err := strconv.ParseUint(digits, k.base, 48)
	if !ours || err != nil || number == 0 || k.spec(number, 0).Compatible(info) != nil {
		return nil
	}
	return do(p, number)
}
