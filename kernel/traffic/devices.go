package traffic

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Devices are names of network devices, sorted, with a slash in between, which no name has. "" are
// all but the loopback device.
type Devices string

// DevicesOf are the devices of some names.
func DevicesOf(names ...string) Devices {
	return Devices(strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), "/"))
}

// Names are the devices by name, sorted.
func (d Devices) Names() []string {
	if d == "" {
		return nil
	}
	return strings.Split(string(d), "/")
}

// and are the devices of both.
func (d Devices) and(other Devices) Devices { return DevicesOf(append(d.Names(), other.Names()...)...) }

// String is for people: the names with a space in between.
func (d Devices) String() string { return strings.Join(d.Names(), " ") }

// MarshalText writes what UnmarshalText reads.
func (d Devices) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads names with spaces in between.
func (d *Devices) UnmarshalText(text []byte) error {
	if strings.Contains(string(text), "/") {
		return fmt.Errorf("%q are not names of network devices with spaces in between", text)
	}
	*d = DevicesOf(strings.Fields(string(text))...)
	return d.validate()
}

func (d Devices) validate() error {
	names := d.Names()
	for _, name := range names {
		if !isDeviceName(name) {
			return fmt.Errorf("%q is not the name of a network device", name)
		}
	}
	switch {
	case len(names) == 0:
		return errors.New("no network device is named")
	case len(names) > mostDevices:
		return fmt.Errorf("%d network devices are more than %d", len(names), mostDevices)
	case DevicesOf(names...) != d:
		return fmt.Errorf("%q is not sorted", string(d))
	}
	return nil
}

// text is what follows a rate in the file of a control group.
func (d Devices) text() string {
	if d == "" {
		return ""
	}
	return " from " + string(d)
}

// Arrival is what may be received through some devices together.
type Arrival struct {
	Devices Devices
	Rate    Rate
}

// mostDevices is how many devices the program of a group knows.
const mostDevices = 14

// byDevice is what a program keeps that tells devices apart.
type byDevice struct {
	Clock   uint64
	Dropped uint64              // packets
	Devices [mostDevices]uint32 // by index, 0 for none
	Network uint64              // the cookie of the network namespace that they are in
}

// Offsets in byDevice, and its size.
const (
	atDevices      = sizeOfClock
	atNetwork      = atDevices + 4*mostDevices
	sizeOfByDevice = atNetwork + 8
)

// arrivals is what a program keeps that counts what arrives through some devices, and the names by
// which those were found.
type arrivals struct {
	By    byDevice
	Names [mostDevices][nameSize]byte
}

const (
	nameSize       = 16 // IFNAMSIZ
	sizeOfArrivals = sizeOfByDevice + mostDevices*nameSize
	nowhere        = ^uint32(0) // the index of a device that is not there
)

// arrivalsOf is what a program keeps that begins to count what arrives through some devices.
func arrivalsOf(d Devices) (a arrivals, err error) {
	if d == "" {
		return a, nil
	}
	if err := d.validate(); err != nil {
		return a, err
	}
	all, err := systemCalls{}.Devices()
	if err != nil {
		return a, err
	}
	if a.By.Network, err = ownNetwork(); err != nil {
		return a, err
	}
	for i, name := range d.Names() {
		copy(a.Names[i][:], name)
		a.By.Devices[i] = nowhere
		if index, is := all[name]; is {
			a.By.Devices[i] = uint32(index)
		}
	}
	return a, nil
}

// arrivalsIn is what a program keeps; the zero value of one of another build of Berth's, which keeps
// it in another form.
func arrivalsIn(p *ebpf.Program) (a arrivals, err error) {
	err = mapsOf(p, func(m *ebpf.Map) error {
		if m.ValueSize() != sizeOfArrivals {
			return nil
		}
		return m.Lookup(uint32(0), &a)
	})
	return a, err
}

func (a *arrivals) devices() Devices {
	var names []string
	for _, name := range a.Names {
		if text := strings.TrimRight(string(name[:]), "\x00"); text != "" {
			names = append(names, text)
		}
	}
	return DevicesOf(names...)
}

// arrivalMap is the map of a program that counts what arrives through all devices.
func arrivalMap() (*ebpf.MapSpec, error) { return (&arrivals{}).spec(), nil }

func (a *arrivals) spec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: sizeOfArrivals, MaxEntries: 1, Contents: []ebpf.MapKV{{Key: uint32(0), Value: *a}}}
}

// through is a kind of program that counts what arrives through some devices. One is outdated that
// counts other devices, or those of the same names that were there before.
func (k *programs) through(d Devices) (*programs, error) {
	want, err := arrivalsOf(d)
	if err != nil {
		return nil, err
	}
	of := *k
	of.state = func() (*ebpf.MapSpec, error) { return want.spec(), nil }
	of.outdated = func(p *ebpf.Program) (bool, error) {
		has, err := arrivalsIn(p)
		has.By.Clock, has.By.Dropped = 0, 0
		return has != want, err
	}
	return &of, nil
}

// setThrough is set of a program that counts what arrives through some devices.
func (k *programs) setThrough(target int, number uint64, d Devices) error {
	of, err := k.through(d)
	if err != nil {
		return err
	}
	return of.set(target, number)
}

// inNetwork goes to a label with a packet of another network namespace than that of the devices in a
// map, which may have devices of the same numbers, where the kernel tells which it is in. It changes
// R0 and R2 to R5.
func inNetwork(elsewhere string) asm.Instructions {
	if !tellsNetworks() {
		return nil
	}
	return asm.Instructions{
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.FnGetNetnsCookie.Call(),
		asm.LoadMem(asm.R1, asm.RFP, -8, asm.DWord),
		asm.LoadMem(asm.R3, asm.R9, atNetwork, asm.DWord),
		asm.JNE.Reg(asm.R3, asm.R0, elsewhere),
	}
}

// among goes to a label with a packet of one of the devices in a map. It changes R2 and R3.
func among(to string) asm.Instructions {
	insns := asm.Instructions{asm.LoadMem(asm.R2, asm.R6, skbDevice, asm.Word)}
	for i := range int16(mostDevices) {
		insns = append(insns, asm.LoadMem(asm.R3, asm.R9, atDevices+4*i, asm.Word), asm.JEq.Reg(asm.R3, asm.R2, to))
	}
	return insns
}

// throughDevices lets a packet pass that came through none of the devices in a map that has some.
func throughDevices() asm.Instructions {
	insns := asm.Instructions{
		asm.LoadMem(asm.R3, asm.R9, atDevices, asm.Word),
		asm.JEq.Imm(asm.R3, 0, "counted"),
	}
	insns = append(insns, inNetwork("free")...)
	insns = append(insns, among("counted")...)
	return append(insns, asm.Ja.Label("free"))
}

// arrivalLimiter is a receiveLimiter of what comes through the devices in its map.
func arrivalLimiter(rate uint64, state int) asm.Instructions {
	return limiter(rate, state, throughDevices(), beyondDropped())
}
