package vmtest

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// acpiDir is where a kernel looks in its initramfs for tables that replace or
// extend those of the firmware: Documentation/admin-guide/acpi/initrd_table_override.rst.
const acpiDir = "kernel/firmware/acpi/"

// tables returns the ACPI tables that m needs, by file name.
func (m Machine) tables() map[string][]byte {
	m = m.normal()
	files := map[string][]byte{}
	if m.Order != ByPosition {
		files[acpiDir+"apic.aml"] = m.madt()
	}
	if len(m.MaxKHz) > 0 {
		files[acpiDir+"ssdt.aml"] = m.ssdt()
	}
	return files
}

// madt returns the table that numbers the CPUs (ACPI 6.5, 5.2.12): QEMU's own,
// with the CPUs in another order.
func (m Machine) madt() []byte {
	body := binary.LittleEndian.AppendUint32(nil, 0xfee00000) // local APIC
	body = binary.LittleEndian.AppendUint32(body, 1)          // there are 8259s too
	for _, c := range m.CPUs() {
		body = append(body, 0, 8, byte(c.Position), byte(m.apicID(c)), 1, 0, 0, 0)
	}
	body = append(body, 1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0) // I/O APIC
	body = append(body, 2, 10, 0, 0, 2, 0, 0, 0, 0, 0)             // the timer is on input 2
	for _, irq := range []byte{5, 9, 10, 11} {                     // PCI: level, active high
		body = append(body, 2, 10, 0, irq, irq, 0, 0, 0, 0x0d, 0)
	}
	body = append(body, 4, 6, 0xff, 0, 0, 1) // NMI of all CPUs
	// A table replaces another of the same names and a lower revision.
	return table("APIC", 3, "BOCHS ", "BXPC    ", 2, body)
}

// apicID composes the number of each level, in as few bits as hold it.
func (m Machine) apicID(c CPU) int {
	width := func(n int) int { return bits.Len(uint(n - 1)) }
	id := c.Socket
	id = id<<width(m.Dies) | c.Die%m.Dies
	id = id<<width(m.Modules) | c.Module%m.Modules
	id = id<<width(m.Cores) | c.Core%m.Cores
	return id<<width(m.Threads) | c.Thread
}

// ssdt returns a table of frequencies for acpi-cpufreq (ACPI 6.5, 8.4.5): two
// per CPU, whose registers are those of QEMU's pc-testdev.
func (m Machine) ssdt() []byte {
	var body []byte
	for _, c := range m.CPUs() {
		mhz := m.MaxKHz[c.Core] / 1000
		register := []byte{
			0x82, 12, 0, // generic register
			1, 8, 0, 0, // system I/O, 8 bits
			0xe0, 0, 0, 0, 0, 0, 0, 0,
			0x79, 0, // end of resources
		}
		state := func(mhz, control int) []byte {
			const milliwatt, latency = 1000, 10
			return amlPackage(amlInt(mhz), amlInt(milliwatt), amlInt(latency), amlInt(latency), amlInt(control), amlInt(control))
		}
		scope := fmt.Appendf([]byte{'\\', 0x2f, 3}, "_SB_CPUSC%03X", c.Position)
		scope = append(scope, amlName("_PCT", amlPackage(amlBuffer(register), amlBuffer(register)))...)
		scope = append(scope, amlName("_PSS", amlPackage(state(mhz, 1), state(mhz/2, 2)))...)
		scope = append(scope, amlName("_PPC", amlInt(0))...)
		body = append(body, 0x10)
		body = append(body, amlLength(scope)...)
	}
	return table("SSDT", 2, "BERTH ", "CPUFREQ ", 1, body)
}

// table adds the header that all ACPI tables have.
func table(signature string, revision byte, oem, name string, oemRevision uint32, body []byte) []byte {
	const headerLen, checksum = 36, 9
	t := []byte(signature)
	t = binary.LittleEndian.AppendUint32(t, uint32(headerLen+len(body)))
	t = append(t, revision, 0)
	t = append(t, oem+name...)
	t = binary.LittleEndian.AppendUint32(t, oemRevision)
	t = append(t, "BRTH\x01\x00\x00\x00"...)
	t = append(t, body...)
	var sum byte
	for _, b := range t {
		sum += b
	}
	t[checksum] = -sum // all bytes add up to 0
	return t
}

// The parts of AML, ACPI's byte code (ACPI 6.5, 20.2), that ssdt needs.

func amlName(name string, value []byte) []byte {
	return append(append([]byte{0x08}, name...), value...)
}

func amlInt(n int) []byte { return binary.LittleEndian.AppendUint32([]byte{0x0c}, uint32(n)) }

func amlBuffer(data []byte) []byte {
	return append([]byte{0x11}, amlLength(append(amlInt(len(data)), data...))...)
}

func amlPackage(elements ...[]byte) []byte {
	body := []byte{byte(len(elements))}
	for _, e := range elements {
		body = append(body, e...)
	}
	return append([]byte{0x12}, amlLength(body)...)
}

// amlLength puts the length before body, which counts its own bytes.
func amlLength(body []byte) []byte {
	n := len(body) + 1
	if n < 1<<6 {
		return append([]byte{byte(n)}, body...)
	}
	n++ // a package here is never longer than 4,095 bytes
	return append([]byte{0x40 | byte(n&0xf), byte(n >> 4)}, body...)
}
