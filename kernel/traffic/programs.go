package traffic

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// programs are those of a kind that control groups, or devices, have of Berth. Each has a number,
// in its name and its instructions.
type programs struct {
	of     ebpf.ProgramType
	attach ebpf.AttachType
	at     string // what has them
	does   string
	prefix string // of names
	base   int    // of the number in them
	digits int    // that it has at least
	code   func(number uint64, state int) asm.Instructions
	state  func() (*ebpf.MapSpec, error) // what it keeps, nil for nothing
	flags  uint32
	anchor link.Anchor // its place among others
	common bool        // all that have one of a number have the same
	// outdated reports whether one with the right instructions keeps something else than is to be kept.
	outdated func(*ebpf.Program) (bool, error)
}

// atGroups are programs of control groups.
func atGroups(attach ebpf.AttachType, does, prefix string, base, digits int, code func(uint64, int) asm.Instructions, state func() (*ebpf.MapSpec, error)) *programs {
	return &programs{
		of: ebpf.CGroupSKB, attach: attach, at: "control group", does: does, prefix: prefix, base: base, digits: digits,
		code: code, state: state, flags: unix.BPF_F_ALLOW_MULTI,
	}
}

var (
	marks     = atGroups(ebpf.AttachCGroupInetEgress, "marks packets", "berth_net_", 16, 4, marker, nil)
	sending   = atGroups(ebpf.AttachCGroupInetEgress, "limits what is sent", "berth_o", 36, 1, sendLimiter, clock)
	pacing    = atGroups(ebpf.AttachCGroupInetEgress, "says when packets leave", "berth_e", 36, 1, paceLimiter, clockAndDevices)
	receiving = atGroups(ebpf.AttachCGroupInetIngress, "limits what is received", "berth_i", 36, 1, receiveLimiter, clock)
	arriving  = atGroups(ebpf.AttachCGroupInetIngress, "limits what is received through some devices", "berth_d", 36, 1, arrivalLimiter, arrivalMap)
	// The name, of at most 15 bytes, has room for all numbers of receivesTogether.
	together = &programs{
		of: ebpf.CGroupSKB, attach: ebpf.AttachCGroupInetIngress, at: "control group", does: "limits what a class receives",
		prefix: "brt_", base: 36, digits: 1, code: togetherLimiter, state: arrivalMap, flags: unix.BPF_F_ALLOW_MULTI, common: true,
	}
)

// spec is the program of a number.
func (k *programs) spec(number uint64, state int) *ebpf.ProgramSpec {
	digits := strconv.FormatUint(number, k.base)
	name := k.prefix + strings.Repeat("0", max(k.digits-len(digits), 0)) + digits
	return &ebpf.ProgramSpec{Name: name, Type: k.of, AttachType: k.attach, License: "GPL", Instructions: numbered(k.code(number, state))}
}

// mapName is the name of the map of a program.
func (k *programs) mapName() string { return strings.TrimSuffix(k.prefix, "_") }

// marker gives packets the number of a class, by which HTB finds it without a filter
// (htb_classify in net/sched/sch_htb.c), unless the program of a group further in has done so:
// those of outer groups run after it. Programs of control groups may write the priority
// (cg_skb_is_valid_access in net/core/filter.c). By its instructions alone another build of Berth
// knows it (programs.older).
func marker(minor uint64, _ int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, skbPriority, asm.Word),
		asm.RSh.Imm(asm.R2, 16),
		asm.JEq.Imm(asm.R2, major, "end"),
		asm.Mov.Imm(asm.R2, major<<16|int32(minor)),
		asm.StoreMem(asm.R1, skbPriority, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
		asm.Return(),
	}
}

// set has a control group, by its descriptor, or a device, by its index, have the program of a
// number and no other of the kind, 0 for none. It attaches that before it detaches another. It
// stays beside those of other programs, and without its maker: no link holds it. One of another
// build of Berth's is replaced.
func (k *programs) set(target int, number uint64) error {
	is := false
	err := k.all(target, func(_ *ebpf.Program, of uint64, older bool) error {
		is = is || of == number && !older
		return nil
	})
	if err != nil {
		return err
	}
	if number != 0 && !is {
		if err := k.add(target, number); err != nil {
			return err
		}
	}
	return k.all(target, func(p *ebpf.Program, of uint64, older bool) error {
		if of == number && !older {
			return nil
		}
		return link.RawDetachProgram(link.RawDetachProgramOptions{Target: target, Program: p, Attach: k.attach})
	})
}

// instead is set for a kind of which another kind has done the work so far. That goes first, and comes
// back if this one cannot be had: whoever is killed in between leaves none of either, which is seen;
// both would look like the one that is wanted.
func (k *programs) instead(of *programs, target int, number uint64) error {
	was := uint64(0)
	err := of.each(target, func(_ *ebpf.Program, n uint64) error { was = n; return nil })
	if err == nil && was != 0 {
		err = of.set(target, 0)
	}
	if err != nil {
		return err
	}
	if err = k.set(target, number); err != nil && was != 0 {
		err = errors.Join(err, of.set(target, was))
	}
	return err
}

// add attaches the program of a number.
func (k *programs) add(target int, number uint64) error {
	p, err := k.load(number)
	if err != nil {
		return err
	}
	defer p.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: target, Program: p, Attach: k.attach, Flags: k.flags, Anchor: k.anchor})
	if errors.Is(err, syscall.EPERM) && k.of == ebpf.CGroupSKB {
		err = fmt.Errorf("%w: it takes CAP_NET_ADMIN and CAP_BPF, and no program in a group around it that allows no others ('bpftool cgroup tree' lists them)", err)
	}
	return err
}

// load returns the program of a number, with a map of its own; one that others have already where
// it is common to them.
func (k *programs) load(number uint64) (p *ebpf.Program, err error) {
	if k.common {
		if p, err = k.running(number); p != nil || err != nil {
			return p, err
		}
	}
	state := 0
	if k.state != nil {
		spec, err := k.state()
		if err != nil {
			return nil, err
		}
		spec.Name = k.mapName()
		m, err := ebpf.NewMap(spec)
		if err != nil {
			return nil, fmt.Errorf("make the map of the program that %s: %w", k.does, err)
		}
		defer m.Close() // the program holds it
		state = m.FD()
	}
	if p, err = ebpf.NewProgram(k.spec(number, state)); err != nil {
		return nil, k.unloaded(err)
	}
	return p, nil
}

// unloaded is the error of a program that the kernel did not load. Before Linux 5.1 its verifier refuses
// those that count dropped packets: it knows no gso_segs of a packet.
func (k *programs) unloaded(err error) error {
	if _, verified := errors.AsType[*ebpf.VerifierError](err); verified && errors.Is(err, syscall.EACCES) {
		return &kernel.NotSupportedError{Feature: "a program that " + k.does, Reason: fmt.Sprintf("the kernel refuses it: %v", err), Remedy: "Linux 5.1 or newer"}
	}
	return fmt.Errorf("load the program that %s: %w", k.does, err)
}

// running returns the program of a number that is in the kernel, nil if none is. Its instructions tell
// it from that of another Berth, in a container. One that another user has loaded is not taken: whoever
// made its map writes to it, and the kernel may let anybody (kernel.unprivileged_bpf_disabled is 0).
func (k *programs) running(number uint64) (found *ebpf.Program, err error) {
	for id := ebpf.ProgramID(0); found == nil; {
		if id, err = ebpf.ProgramGetNextID(id); errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		if err == nil {
			err = k.with(id, func(p *ebpf.Program, of uint64, older bool) error {
				info, err := p.Info()
				if err != nil || of != number || older {
					return err
				}
				if uid, known := info.CreatedByUID(); known && int(uid) == os.Getuid() {
					found, err = p.Clone()
				}
				return err
			})
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, permitted("look for the program that "+k.does, err)
		}
	}
	return found, nil
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

// each calls do for each program of the kind at a control group or a device, with its number.
func (k *programs) each(target int, do func(p *ebpf.Program, number uint64) error) error {
	return k.all(target, func(p *ebpf.Program, number uint64, _ bool) error { return do(p, number) })
}

// all is each that tells which programs are of another build of Berth's, or outdated.
func (k *programs) all(target int, do func(p *ebpf.Program, number uint64, older bool) error) error {
	query := link.QueryOptions{Target: target, Attach: k.attach}
	all, err := link.QueryPrograms(query)
	if errors.Is(err, syscall.ENOSPC) { // one came after they were counted
		all, err = link.QueryPrograms(query)
	}
	if err != nil {
		return permitted("list the programs of the "+k.at, err)
	}
	for _, a := range all.Programs {
		if err := k.with(a.ID, do); err != nil && !errors.Is(err, os.ErrNotExist) {
			return permitted(fmt.Sprintf("program %d of the %s", a.ID, k.at), err)
		}
	}
	return nil
}

// permitted is the error of something done to programs, and what it takes.
func permitted(what string, err error) error {
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%s: %w: it takes CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// with calls do if a program is Berth's: it has the name, which anybody may choose, and the
// instructions, or is older. Outdated ones count as older.
func (k *programs) with(id ebpf.ProgramID, do func(p *ebpf.Program, number uint64, older bool) error) error {
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
	number, err := strconv.ParseUint(digits, k.base, 64)
	if !ours || err != nil || number == 0 {
		return nil
	}
	older := false
	switch {
	case k.spec(number, 0).Compatible(info) != nil:
		if older, err = k.older(info); !older || err != nil {
			return err
		}
	case k.outdated != nil:
		if older, err = k.outdated(p); err != nil {
			return err
		}
	}
	return do(p, number, older)
}

// older reports whether a program that has the name of the kind, and other instructions, is of another
// build of Berth's: its one map has the name, too. It takes CAP_NET_ADMIN to attach one.
func (k *programs) older(info *ebpf.ProgramInfo) (bool, error) {
	ids, _ := info.MapIDs()
	if len(ids) != 1 {
		return false, nil
	}
	m, err := ebpf.NewMapFromID(ids[0])
	if err != nil {
		return false, err
	}
	defer m.Close()
	has, err := m.Info()
	return err == nil && has.Name == k.mapName(), err
}
