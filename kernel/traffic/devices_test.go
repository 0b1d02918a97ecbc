package traffic

import (
	"errors"
	"maps"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"berth.dev/berth/internal/netlink"
)

func TestDevices(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Devices{"eth0": "eth0", " eth1  eth0 eth1": "eth0/eth1", "wlp2s0.7@x": "wlp2s0.7@x"} {
		var d Devices
		if err := d.UnmarshalText([]byte(text)); err != nil || d != want {
			t.Errorf("%q: %q, %v", text, string(d), err)
		}
		var again Devices
		if back, err := d.MarshalText(); err != nil || again.UnmarshalText(back) != nil || again != d {
			t.Errorf("%q: written %q, %v", text, back, err)
		}
	}
	for _, text := range []string{"", " ", "eth0/eth1", "eth0:1", "..", "name-of-16-bytes", strings.Repeat("ü", 8), "a b c d e f g h i j k l m n o"} {
		var d Devices
		if err := d.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %q", text, string(d))
		}
	}
}

func FuzzDevices(f *testing.F) {
	f.Add("eth0 eth1")
	f.Add(" eth1/eth0 \x00")
	f.Fuzz(func(t *testing.T, text string) {
		var d, again Devices
		if d.UnmarshalText([]byte(text)) != nil {
			return
		}
		if l, err := parseLimit(Limit{Arrival: Arrival{d, leastRate}}.text()); err != nil || l.Arrival.Devices != d {
			t.Errorf("%q: in a file %+v, %v", text, l, err)
		}
		if err := again.UnmarshalText([]byte(d.String())); err != nil || again != d {
			t.Errorf("%q: again %q, %v", text, string(again), err)
		}
	})
}

// TestThroughDevices has what a group receives be counted where it comes through devices that are named.
func TestThroughDevices(t *testing.T) { inNamespace(t, testThroughDevices) }

const otherEnd, newDevice = "berth1", "berth2"

func testThroughDevices(t *testing.T) {
	b := newBed(t, true)
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if err := AddPair(otherEnd, "berth3", own); err != nil {
		t.Fatal(err)
	}
	b.counted()
	b.throughFiles(own)
	b.throughRates()
}

// index is that of a device.
func (b *bed) index(name string) uint32 {
	b.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		b.Fatal(err)
	}
	return uint32(i.Index)
}

// counted has programs see packets of devices that are counted, and of others.
func (b *bed) counted() {
	b.Helper()
	near, other := b.index(nearDevice), b.index(otherEnd)
	all := [3]int32{passed, passed, passed}
	held := [3]int32{passed, dropped, dropped}
	for _, tc := range []struct {
		what    string
		of      Devices
		device  uint32
		network uint64 // beside its own
		want    [3]int32
	}{
		{"its device", nearDevice, near, 0, held},
		{"one of two", DevicesOf(nearDevice, newDevice), near, 0, held},
		{"another one", nearDevice, other, 0, all},
		{"none is there", newDevice, other, 0, all},
		{"all are counted", "", other, 0, held},
		{"the number in another network namespace", nearDevice, near, 1, all},
	} {
		if tc.network != 0 && !tellsNetworks() {
			b.Log("the kernel does not tell in which network namespace a packet is")
			continue
		}
		for _, kind := range []*programs{arriving, together} {
			k, err := kind.through(tc.of)
			if err != nil {
				b.Fatal(err)
			}
			number := uint64(packetBytes) // a packet a second
			if kind == together {
				number = receivesTogether(Together{Class: firstMinor, Rate: rateOf(number)})
			}
			p, m := program(b, k, number)
			var a arrivals
			if err := m.Lookup(uint32(0), &a); err != nil {
				b.Fatal(err)
			}
			a.By.Network += tc.network
			if err := m.Put(uint32(0), a); err != nil {
				b.Fatal(err)
			}
			var says [3]int32
			for i := range says {
				says[i], _ = pass(b, p, packet{Device: tc.device})
			}
			if says != tc.want {
				b.Errorf("%s, %s: says %d, wants %d", k.prefix, tc.what, says, tc.want)
			}
		}
	}
}

// countedBy are the devices, by index, that the programs of a kind at a group count, by program.
func (b *bed) countedBy(k *programs, group string) map[ebpf.ProgramID][mostDevices]uint32 {
	b.Helper()
	all := map[ebpf.ProgramID][mostDevices]uint32{}
	err := withGroup(group, func(fd int) error {
		return k.each(fd, func(p *ebpf.Program, _ uint64) error {
			info, err := p.Info()
			if err != nil {
				return err
			}
			id, _ := info.ID()
			a, err := arrivalsIn(p)
			all[id] = a.By.Devices
			return err
		})
	})
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// throughFiles has the files of groups tell what they were told, and devices that come be counted.
func (b *bed) throughFiles(own *os.File) {
	b.Helper()
	group, rate := b.groups[0], Rate(40e6)
	file, togetherly := LimitFile(group), group+"/"+togetherFile
	write := func(name, text string) {
		b.Helper()
		if err := b.root.WriteFile(name, text); err != nil {
			b.Fatal(err)
		}
		if got := b.text(name); got != text {
			b.Errorf("%s: %q, written %q", name, got, text)
		}
	}
	devices, both := DevicesOf(nearDevice, newDevice), []*programs{arriving, together}
	is := func(when string, kinds []*programs, want ...uint32) {
		b.Helper()
		var list [mostDevices]uint32
		copy(list[:], want)
		for _, k := range kinds {
			got := b.countedBy(k, group)
			for _, of := range got {
				if of != list {
					b.Errorf("%s, %s: counts %v, want %v", when, k.prefix, of, want)
				}
			}
			if len(got) != 1 {
				b.Errorf("%s, %s: %d programs", when, k.prefix, len(got))
			}
		}
	}
	write(file, Limit{Receive: 2 * rate, Arrival: Arrival{nearDevice, rate}}.text())
	write(togetherly, Together{firstMinor, rate, nearDevice}.text())
	is("one", both, b.index(nearDevice))
	write(file, Limit{Receive: 2 * rate, Arrival: Arrival{devices, rate}}.text())
	write(togetherly, Together{firstMinor, rate, devices}.text())
	if nearDevice < newDevice {
		b.Fatalf("%s is before %s", nearDevice, newDevice)
	}
	is("one that is to come", both, nowhere, b.index(nearDevice))
	was := []map[ebpf.ProgramID][mostDevices]uint32{b.countedBy(arriving, group), b.countedBy(together, group)}
	renew := func() {
		b.Helper()
		if err := RenewLimits(b.root, group); err != nil {
			b.Error(err)
		}
	}
	renew()
	for i, k := range both {
		if got := b.countedBy(k, group); !maps.Equal(got, was[i]) {
			b.Errorf("%s: renewed, as nothing has come: %v, was %v", k.prefix, got, was[i])
		}
	}
	if err := AddPair(newDevice, "berth4", own); err != nil {
		b.Fatal(err)
	}
	renew()
	is("come", both, b.index(newDevice), b.index(nearDevice))
	// Two groups of a class have one program, which those of other devices do not have.
	if err := b.root.WriteFile(b.groups[1]+"/"+togetherFile, Together{firstMinor, rate, devices}.text()); err != nil {
		b.Fatal(err)
	}
	if got, want := b.countedBy(together, b.groups[1]), b.countedBy(together, group); !maps.Equal(got, want) {
		b.Errorf("another of the class has %v, not %v", got, want)
	}
	write(b.groups[1]+"/"+togetherFile, Together{firstMinor, rate, nearDevice}.text())
	if got, other := b.countedBy(together, b.groups[1]), b.countedBy(together, group); maps.Equal(got, other) {
		b.Errorf("one with other devices has %v, too", got)
	}
	// Of two, as a kill leaves them, the smaller is told, and what is wished comes to be.
	write(file, Limit{Arrival: Arrival{nearDevice, rate}}.text())
	half := Limit{Arrival: Arrival{newDevice, rate / 2}}
	err := withGroup(group, func(fd int) error {
		k, err := arriving.through(half.Arrival.Devices)
		if err != nil {
			return err
		}
		return k.add(fd, half.Arrival.Rate.bytes())
	})
	if got := b.text(file); got != half.text() || err != nil {
		b.Errorf("two: %q, %v", got, err)
	}
	renew()
	is("two, renewed", both[:1], b.index(newDevice))
	for _, name := range []string{file, togetherly, b.groups[1] + "/" + togetherFile} {
		write(name, none)
	}
	if left := len(b.countedBy(arriving, group)) + len(b.countedBy(together, group)); left != 0 {
		b.Errorf("%d programs are left", left)
	}
	if _, err := arriving.through("eth1/eth0"); err == nil {
		b.Error("devices that are not sorted are taken")
	}
}

// throughRates has the sink's group be held to a rate through its device, and through no other.
func (b *bed) throughRates() {
	b.Helper()
	// One thread is there from now on to the end: processes die with the thread that started them.
	calls, errs := make(chan func() error), make(chan error, 1)
	go func() {
		errs <- netlink.In(b.far.Namespace, func() error {
			errs <- nil
			for call := range calls {
				errs <- call()
			}
			return nil
		})
	}()
	b.Cleanup(func() { close(calls) })
	there := func(call func() error) error { calls <- call; return <-errs }
	if err := <-errs; err != nil {
		b.Fatal(err)
	}
	b.send(b.groups[0], port)
	const rate = 40e6
	group := b.groups[1]
	for _, tc := range []struct {
		what string
		from Devices
		at   func(call func() error) error
		held bool
	}{
		{"its device", farDevice, there, true},
		{"another one", otherEnd, there, false},
		{"one of another network namespace", nearDevice, func(call func() error) error { return call() }, false},
	} {
		if tc.from == nearDevice && !tellsNetworks() {
			continue // counted said so
		}
		set := func(l Limit) {
			b.Helper()
			if err := tc.at(func() error { return systemCalls{}.SetLimit(group, l) }); err != nil {
				b.Fatal(err)
			}
		}
		set(Limit{Arrival: Arrival{tc.from, rate}})
		for try := 1; ; try++ {
			time.Sleep(300 * time.Millisecond) // the burst
			got := b.rates(time.Second)[0]
			b.Logf("through %s: %.1f Mbit/s", tc.what, got/1e6)
			if held := got > 0.75*rate && got < 1.3*rate; held == tc.held && (held || got > 5*rate) {
				break
			}
			if try == 10 {
				b.Errorf("with a limit of %.0f Mbit/s through %s %.1f arrive", rate/1e6, tc.what, got/1e6)
				break
			}
		}
		set(Limit{})
	}
	if err := (systemCalls{}).SetLimit(group, Limit{Arrival: Arrival{"..", rate}}); err == nil || errors.Is(err, os.ErrNotExist) {
		b.Errorf("a device that cannot be: %v", err)
	}
}
