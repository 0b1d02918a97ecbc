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

// A program has the number of its class in its name.
const programPrefix = "berth_net_"

// program gives packets the number of a class, by which HTB finds it without a filter
// (htb_classify in net/sched/sch_htb.c), unless the program of a group further in has done so:
// those of outer groups run after it. Programs of control groups may write the priority
// (cg_skb_is_valid_access in net/core/filter.c).
func program(minor uint16) *ebpf.ProgramSpec {
	const priority = 32 // offset in struct __sk_buff
	// To the end. A label has no number before the program is loaded, and it no tag (withProgram).
	pass := asm.JEq.Imm(asm.R2, major, "")
	pass.Offset = 2
	return &ebpf.ProgramSpec{
		Name: fmt.Sprintf("%s%04x", programPrefix, minor), Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetEgress, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, priority, asm.Word),
			asm.RSh.Imm(asm.R2, 16),
			pass,
			asm.Mov.Imm(asm.R2, major<<16|int32(minor)),
			asm.StoreMem(asm.R1, priority, asm.R2, asm.Word),
			asm.Mov.Imm(asm.R0, 1),
			asm.Return(),
		},
	}
}

func (systemCalls) Mark(group string) (minor uint16, err error) {
	err = withGroup(group, func(fd int) error {
		return eachProgram(fd, func(_ *ebpf.Program, of uint16) error { minor = of; return nil })
	})
	return minor, err
}

// SetMark attaches the program of a class before it detaches that of another. It stays beside
// those of other programs, and without its maker: no link holds it.
func (systemCalls) SetMark(group string, minor uint16) error {
	return withGroup(group, func(fd int) error {
		is := false
		err := eachProgram(fd, func(_ *ebpf.Program, of uint16) error { is = is || of == minor; return nil })
		if err != nil {
			return err
		}
		if minor != 0 && !is {
			if err := attach(fd, minor); err != nil {
				return err
			}
		}
		return eachProgram(fd, func(p *ebpf.Program, of uint16) error {
			if of == minor {
				return nil
			}
			return link.RawDetachProgram(link.RawDetachProgramOptions{Target: fd, Program: p, Attach: ebpf.AttachCGroupInetEgress})
		})
	})
}

func attach(fd int, minor uint16) error {
	p, err := ebpf.NewProgram(program(minor))
	if err != nil {
		return fmt.Errorf("load the program that marks packets: %w", err)
	}
	defer p.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: fd, Program: p, Attach: ebpf.AttachCGroupInetEgress, Flags: unix.BPF_F_ALLOW_MULTI})
	if errors.Is(err, syscall.EPERM) {
		err = fmt.Errorf("%w: it takes CAP_NET_ADMIN and CAP_BPF, and no program in a group around it that allows no others ('bpftool cgroup tree' lists them)", err)
	}
	return err
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

// eachProgram calls do for each program of Berth's at a control group, with its class.
func eachProgram(fd int, do func(p *ebpf.Program, minor uint16) error) error {
	all, err := link.QueryPrograms(link.QueryOptions{Target: fd, Attach: ebpf.AttachCGroupInetEgress})
	if err != nil {
		return permitted("list the programs of the control group", err)
	}
	for _, a := range all.Programs {
		if err := withProgram(a.ID, do); err != nil && !errors.Is(err, os.ErrNotExist) {
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

// withProgram calls do if a program is Berth's: it has the name, which anybody may choose, and the
// instructions.
func withProgram(id ebpf.ProgramID, do func(p *ebpf.Program, minor uint16) error) error {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return err
	}
	hex, ours := strings.CutPrefix(info.Name, programPrefix)
	minor, err := strconv.ParseUint(hex, 16, 16)
	if !ours || err != nil || program(uint16(minor)).Compatible(info) != nil {
		return nil
	}
	return do(p, uint16(minor))
}
