package proc

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Interrupt is the line of a device's interrupt in /proc/interrupts. Those of the kernel itself,
// as of timers, have no number and are left out.
type Interrupt struct {
	Number int
	// Device is who asked for it, "virtio2-input.0"; several where they share it.
	Device string
	// Counts are how often it came since boot, by CPU.
	Counts map[int]uint64
}

// ReadInterrupts reads proc/interrupts.
func ReadInterrupts(fsys fs.FS) ([]Interrupt, error) {
	text, err := fs.ReadFile(fsys, "proc/interrupts")
	if err != nil {
		return nil, fmt.Errorf("read interrupts: %w", err)
	}
	all, err := parseInterrupts(string(text))
	if err != nil {
		return nil, fmt.Errorf("parse proc/interrupts: %w", err)
	}
	return all, nil
}

// parseInterrupts takes the text of /proc/interrupts (show_interrupts in kernel/irq/proc.c): a
// line of CPUs, then a line for each interrupt with a count per CPU, the chip, the number in it,
// on arm64 and others how it is triggered (CONFIG_GENERIC_IRQ_SHOW_LEVEL), and the device.
func parseInterrupts(text string) (all []Interrupt, err error) {
	header, rest, _ := strings.Cut(text, "\n")
	var cpus []int
	for _, word := range strings.Fields(header) {
		id, err := strconv.ParseUint(strings.TrimPrefix(word, "CPU"), 10, 31)
		if err != nil || !strings.HasPrefix(word, "CPU") {
			return nil, fmt.Errorf("%q: not a CPU", word)
		}
		cpus = append(cpus, int(id))
	}
	for line := range strings.Lines(rest) {
		name, counts, _ := strings.Cut(strings.TrimSpace(line), ":")
		number, err := strconv.ParseUint(name, 10, 31)
		if err != nil {
			continue // one of the kernel's own
		}
		words := strings.Fields(counts)
		if len(words) < len(cpus) {
			return nil, fmt.Errorf("interrupt %d: %d counts for %d CPUs", number, len(words), len(cpus))
		}
		i := Interrupt{Number: int(number), Counts: make(map[int]uint64, len(cpus))}
		for at, cpu := range cpus {
			if i.Counts[cpu], err = strconv.ParseUint(words[at], 10, 64); err != nil {
				return nil, fmt.Errorf("interrupt %d: %w", number, err)
			}
		}
		// The chip and its number come first; a chip may have several words, a device, too.
		if left := words[len(cpus):]; len(left) > 2 {
			left = left[2:]
			if left[0] == "Level" || left[0] == "Edge" {
				left = left[1:]
			}
			i.Device = strings.Join(left, " ")
		}
		all = append(all, i)
	}
	return all, nil
}
