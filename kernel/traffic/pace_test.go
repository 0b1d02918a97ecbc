package traffic

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// packet is struct __sk_buff (linux/bpf.h), as programs are given it.
type packet struct {
	_        [8]uint32
	Priority uint32
	_        uint32
	Device   uint32
	_        [27]uint32
	Due      uint64
	Wire     uint32
	_        [7]uint32
}

const packetBytes = 1000

// program loads one of a kind, with its map if it has one.
func program(t testing.TB, k *programs, number uint64) (*ebpf.Program, *ebpf.Map) {
	t.Helper()
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("programs need root, and this is not a short run")
	}
	var m *ebpf.Map
	state := 0
	if k.state != nil {
		spec, err := k.state()
		if err == nil {
			m, err = ebpf.NewMap(spec)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		state = m.FD()
	}
	p, err := ebpf.NewProgram(k.spec(number, state))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, m
}

// pass has a program see a packet, and returns what it says and what came of the packet.
func pass(t testing.TB, p *ebpf.Program, in packet) (says int32, out packet) {
	t.Helper()
	got, err := p.Run(&ebpf.RunOptions{Data: make([]byte, packetBytes), Context: &in, ContextOut: &out})
	if err != nil {
		t.Fatal(err)
	}
	return int32(got), out
}

// now is the clock by which packets are due.
func now(t testing.TB) uint64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return uint64(ts.Nano())
}

// Packets of a class are due one after the other, at its ceiling; what is too early by far is
// dropped, and takes nothing from those that come. Others are free.
func TestPacer(t *testing.T) {
	t.Parallel()
	const next, drop, second = -1, 2, 1_000_000_000
	p, m := program(t, pacers, pacer)
	put := func(minor uint16, c Class) {
		t.Helper()
		if err := setPace(m, minor, c); err != nil {
			t.Fatal(err)
		}
	}
	of := func(minor uint32) packet { return packet{Priority: major<<16 | minor, Wire: packetBytes} }
	put(firstMinor, Class{Rate: noFloor, Ceil: packetBytes, Prio: 3}) // a packet a second
	began := now(t)
	var due [6]uint64
	for i := range due {
		says, out := pass(t, p, of(firstMinor))
		due[i] = out.Due
		if want := map[bool]int32{true: next, false: drop}[i < 3]; says != want {
			t.Errorf("packet %d: %d, wants %d", i, says, want)
		}
	}
	for _, ceil := range []uint64{packetBytes, 2 * packetBytes} { // another ceiling takes nothing back
		put(firstMinor, Class{Rate: noFloor, Ceil: ceil, Prio: 3})
		var has pace
		if err := m.Lookup(uint32(firstMinor), &has); err != nil || has.Dropped != 3 || has.Ceil != ceil {
			t.Errorf("3 packets were dropped, and %+v says so; %v", has, err)
		}
	}
	if due[0] != 0 || due[1] < began+second-paceBurst || due[1] > now(t)+second || due[2] != due[1]+second {
		t.Errorf("due at %d, from %d on", due, began)
	}
	// With another ceiling, what follows is not due before what was sent.
	put(firstMinor+5, Class{Rate: noFloor, Ceil: packetBytes, Prio: 3})
	pass(t, p, of(firstMinor+5))
	_, before := pass(t, p, of(firstMinor+5))
	put(firstMinor+5, Class{Rate: noFloor, Ceil: packetBytes / 2, Prio: 3})
	if says, out := pass(t, p, of(firstMinor+5)); says != next || before.Due == 0 || out.Due != before.Due+second {
		t.Errorf("with another ceiling: %d, due at %d after %d", says, out.Due, before.Due)
	}
	for other, priority := range map[packet]uint32{{Wire: packetBytes}: 0, {Priority: 7, Wire: packetBytes}: 7, of(firstMinor + 1): 0} {
		for range 4 {
			if says, out := pass(t, p, other); says != next || out.Due != 0 || out.Priority != priority {
				t.Errorf("%+v: %d, %+v", other, says, out)
			}
		}
	}
	// With a ceiling, they are one class.
	put(othersMinor, Class{Rate: noFloor, Ceil: packetBytes, Prio: 3})
	pass(t, p, packet{Wire: packetBytes})
	if says, out := pass(t, p, of(firstMinor+1)); says != next || out.Due == 0 {
		t.Errorf("others: %d, %+v", says, out)
	}
	// The time that a socket wants is kept where it is later.
	put(firstMinor+2, Class{Rate: noFloor, Ceil: packetBytes, Prio: 3})
	pass(t, p, of(firstMinor+2))
	later := of(firstMinor + 2)
	later.Due = now(t) + 100*second
	if says, out := pass(t, p, later); says != next || out.Due != later.Due {
		t.Errorf("due later: %d, %+v", says, out)
	}
	// Where packets are quick, no more than 50 ms of them wait, and what is dropped takes nothing: a
	// packet that comes later is not due later for it.
	const rate = 1e6 // a packet a millisecond
	put(firstMinor+4, Class{Rate: noFloor, Ceil: rate, Prio: 3})
	start := now(t)
	passes, last := 0, uint64(0)
	for range 1000 {
		if says, out := pass(t, p, of(firstMinor+4)); says == next {
			passes, last = passes+1, max(last, out.Due)
		}
	}
	end := now(t)
	took := int(end-start) / 1e6
	if passes < 50 || passes > 50+paceBurst/1e6+took+2 || last > end+excess {
		t.Errorf("%d packets in %d ms, the last due in %d ns", passes, took, int64(last-end))
	}
	// A large packet counts by what it is on the link.
	put(firstMinor+3, Class{Rate: noFloor, Ceil: packetBytes, Prio: 3})
	large := of(firstMinor + 3)
	large.Wire = packetBytes * 3 / 2
	pass(t, p, large)
	if _, out := pass(t, p, of(firstMinor+3)); out.Due < began+second*3/2-paceBurst {
		t.Errorf("behind a large packet: due at %d, from %d on", out.Due, began)
	}
}

// BenchmarkPrograms is what a program takes for a packet, beside one that does nothing.
func BenchmarkPrograms(b *testing.B) {
	nothing := *marks
	nothing.code = func(uint64, int) asm.Instructions { return asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()} }
	const unreached, reached = 1 << 40, 1000 // bytes per second
	for _, c := range []struct {
		name   string
		kind   *programs
		number uint64
		packet packet
	}{
		{"nothing", &nothing, firstMinor, packet{}},
		{"mark", marks, firstMinor, packet{}},
		{"send-below", sending, unreached, packet{}}, {"send-beyond", sending, reached, packet{}},
		{"pace-below", pacing, unreached, packet{}}, {"pace-beyond", pacing, reached, packet{}},
		{"receive-below", receiving, unreached, packet{}}, {"receive-beyond", receiving, reached, packet{}},
		{"through-below", arriving, unreached, packet{}}, {"through-beyond", arriving, reached, packet{}},
		{"device-free", pacers, pacer, packet{Wire: packetBytes}},
		{"device-below", pacers, unreached, packet{Wire: packetBytes}}, {"device-beyond", pacers, reached, packet{Wire: packetBytes}},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, m := program(b, c.kind, c.number)
			if c.kind == pacers && c.number != pacer { // of others: a packet that passes again has no mark any more
				if err := m.Put(uint32(othersMinor), paceOf(Class{Rate: noFloor, Ceil: c.number})); err != nil {
					b.Fatal(err)
				}
			}
			in := c.packet
			if in.Device = otherDevice(); in.Device == 0 {
				b.Skip("no network device but lo, which is not limited")
			}
			if c.kind == pacing || c.kind == arriving {
				network, err := ownNetwork()
				if err != nil {
					b.Fatal(err)
				}
				by := byDevice{Devices: [mostDevices]uint32{in.Device}, Network: network}
				var value any = by
				if c.kind == arriving {
					value = arrivals{By: by}
				}
				if err := m.Put(uint32(0), value); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			if _, err := p.Run(&ebpf.RunOptions{Data: make([]byte, packetBytes), Context: &in, Repeat: uint32(b.N)}); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// otherDevice is the index of a device that is not lo, 0 if there is none.
func otherDevice() uint32 {
	devices, _ := systemCalls{}.Devices()
	for _, index := range devices {
		if index > 1 {
			return uint32(index)
		}
	}
	return 0
}

// paced has a group's program hold packets of a device until they are due if it is known to have
// fq, and else drop them, as it does those of a device of the same number in another network namespace.
func (b *bed) paced(device uint32) {
	b.Helper()
	const second = 1_000_000_000
	own, err := ownNetwork()
	if err != nil {
		b.Fatal(err)
	}
	for _, tc := range []struct {
		with    uint32
		network uint64
	}{{device, own}, {device + 1, own}, {device, own + 1}} {
		with, network, waits := tc.with, tc.network, tc.with == device && tc.network == own
		if network != own && !tellsNetworks() {
			b.Log("the kernel does not tell in which network namespace a packet is")
			continue
		}
		p, m := program(b, pacing, packetBytes) // a packet a second
		if err := m.Put(uint32(0), byDevice{Devices: [mostDevices]uint32{3: with}, Network: network}); err != nil {
			b.Fatal(err)
		}
		began := now(b)
		var says [5]int32
		var due [5]uint64
		for i := range says {
			var out packet
			says[i], out = pass(b, p, packet{Device: device})
			due[i] = out.Due
		}
		want := [5]int32{passed, passed, passed, droppedSlow, droppedSlow}
		if !waits {
			want = [5]int32{passed, droppedSlow, droppedSlow, droppedSlow, droppedSlow}
		}
		var has byDevice
		lost := map[bool]uint64{true: 2, false: 4}[waits]
		if err := m.Lookup(uint32(0), &has); err != nil || has.Dropped != lost {
			b.Errorf("%d packets were dropped, and %+v says so; %v", lost, has, err)
		}
		if says != want {
			b.Errorf("on device %d of network %d, where %d of %d has fq: %d, wants %d", device, own, with, network, says, want)
		}
		if waits && (due[0] != 0 || due[1] < began+second/2 || due[1] > now(b)+second || due[2]-due[1] < second*9/10 || due[2]-due[1] > second) {
			b.Errorf("due at %d, from %d on", due, began)
		}
	}
}

// byProgram has a program of Berth's say when packets of a device leave, beside one of somebody
// else's, and be gone again.
func (b *bed) byProgram(index int) {
	b.Helper()
	calls := systemCalls{}
	if !pacers.possible(index) {
		b.Log("the kernel has no programs of devices")
		return
	}
	theirs := *pacers
	theirs.code = func(uint64, int) asm.Instructions { return asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()} }
	theirs.state = nil
	if err := theirs.add(index, pacer); err != nil { // of the name of Berth's
		b.Fatal(err)
	}
	if paced, err := calls.Paced(index); err != nil || paced {
		b.Errorf("with somebody else's: %v, %v", paced, err)
	}
	if err := calls.Divide(EDT, index); err != nil {
		b.Fatal(err)
	}
	want := Class{Rate: noFloor, Ceil: 5e6, Prio: 3}
	for minor := range uint16(3) {
		if err := calls.SetClass(EDT, index, firstMinor+minor, want); err != nil {
			b.Fatal(err)
		}
	}
	for range 2 {
		if err := calls.RemoveClass(EDT, index, firstMinor+2); err != nil {
			b.Error(err)
		}
	}
	paced, err := calls.Paced(index)
	classes, again := calls.Classes(EDT, index)
	if err != nil || again != nil || !paced || len(classes) != 2 || classes[firstMinor] != want {
		b.Errorf("divided: %v, %v; %v, %v", paced, err, classes, again)
	}
	if got := b.text("sys/net/" + nearDevice + "/edt/0010"); got != want.String() {
		b.Errorf("class %q", got)
	}
	if err := b.root.Rmdir("sys/net/" + nearDevice + "/edt"); err != nil {
		b.Error(err)
	}
	left, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXEgress})
	if paced, again := calls.Paced(index); err != nil || again != nil || paced || len(left.Programs) != 1 {
		b.Errorf("not divided any more: %v, %v; %+v, %v", paced, again, left, err)
	}
	if err := b.root.Mkdir("sys/net/" + nearDevice + "/edt"); err == nil {
		b.Error("a device without fq is divided by departure times")
	}
	theirs.detach(b, index)
}

// detach removes all programs of the kind.
func (k *programs) detach(t testing.TB, target int) {
	t.Helper()
	err := k.each(target, func(p *ebpf.Program, _ uint64) error {
		return link.RawDetachProgram(link.RawDetachProgramOptions{Target: target, Program: p, Attach: k.attach})
	})
	if err != nil {
		t.Error(err)
	}
}
