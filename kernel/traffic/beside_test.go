package traffic

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// TestBesideOthers has the program of a device run before one of somebody else's that is there, which
// sees all that it did, and is there still when it is gone.
func TestBesideOthers(t *testing.T) { inNamespace(t, testBesideOthers) }

func testBesideOthers(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if !pacers.possible(lo.Index) {
		t.Skip("the kernel has no programs of devices")
	}
	to := netip.MustParseAddr("127.9.9.9")
	if err := Up("lo", netip.PrefixFrom(to, 32)); err != nil {
		t.Fatal(err)
	}
	seen, theirs := counter(t)
	attached, err := link.AttachTCX(link.TCXOptions{Interface: lo.Index, Program: theirs, Attach: ebpf.AttachTCXEgress})
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	info, err := theirs.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	order := func() (ids []ebpf.ProgramID) {
		t.Helper()
		r, err := link.QueryPrograms(link.QueryOptions{Target: lo.Index, Attach: ebpf.AttachTCXEgress})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Programs {
			ids = append(ids, p.ID)
		}
		return ids
	}
	socket, err := net.ListenPacket("udp", netip.AddrPortFrom(to, 0).String()) // to itself
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	send := func() {
		t.Helper()
		before := seen()
		if _, err := socket.WriteTo(make([]byte, packetBytes/2), socket.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if !comes(time.Millisecond, func() bool { return seen() > before }) {
			t.Fatal("the program of somebody else's sees nothing")
		}
	}
	send()
	calls := systemCalls{}
	if err := errors.Join(calls.Divide(EDT, lo.Index), calls.SetClass(EDT, lo.Index, othersMinor, Class{Rate: noFloor, Ceil: 1e9, Prio: 3})); err != nil {
		t.Fatal(err)
	}
	if ids := order(); len(ids) != 2 || ids[1] != id {
		t.Errorf("programs %v, want that of somebody else's, %d, last of two", ids, id)
	}
	send()
	if all, err := pacesOf(lo.Index); err != nil || all[othersMinor].Clock == 0 {
		t.Errorf("nothing was counted before: %+v, %v", all, err)
	}
	if err := calls.Join(EDT, lo.Index); err != nil {
		t.Error(err)
	}
	if ids := order(); !slices.Equal(ids, []ebpf.ProgramID{id}) {
		t.Errorf("programs %v are left, want %d", ids, id)
	}
	send()
}

// counter is a program that counts packets, and passes them on to the next one.
func counter(t *testing.T) (seen func() uint64, p *ebpf.Program) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	p, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TCX_NEXT
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return func() (n uint64) {
		if err := m.Lookup(uint32(0), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}, p
}
