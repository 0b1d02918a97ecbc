package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"syscall"
	"time"

	"berth.dev/berth/kernel"
)

// Pressure is the totals of one pressure file.
type Pressure struct {
	// Some is the time in which at least one task waited, Full that in which all
	// did, since the group was made or since boot; the kernel counts microseconds.
	Some, Full time.Duration
	// HasSome and HasFull say which lines there are: irq.pressure has no "some",
	// cpu.pressure before Linux 5.13 no "full".
	HasSome, HasFull bool
}

// ReadPressure reads a pressure file: "proc/pressure/cpu", or "cpu.pressure" in the
// directory of a group. Where the kernel keeps none it is a
// kernel.NotSupportedError; where the directory is gone, fs.ErrNotExist.
func ReadPressure(fsys fs.FS, name string) (Pressure, error) {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		if _, gone := fs.Stat(fsys, path.Dir(name)); gone == nil {
			err = PressureNotSupported(name, err)
		}
		return Pressure{}, fmt.Errorf("read pressure: %w", err)
	}
	p, err := ParsePressure(text)
	if err != nil {
		return Pressure{}, fmt.Errorf("parse %s: %w", name, err)
	}
	return p, nil
}

// PressureNotSupported turns what the kernel answers where it keeps no pressure into a
// kernel.NotSupportedError about the named file, and returns other errors as
// they are.
func PressureNotSupported(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		remedy := "boot a kernel 4.20 or newer with CONFIG_PSI"
		if base := path.Base(name); base == "irq.pressure" || base == "irq" {
			remedy = "boot a kernel 6.1 or newer with CONFIG_PSI and CONFIG_IRQ_TIME_ACCOUNTING"
		}
		return &kernel.NotSupportedError{
			Feature: name,
			Reason:  "there is no such file",
			Remedy:  remedy + "; groups have pressure on cgroup v2 only",
		}
	case errors.Is(err, syscall.EOPNOTSUPP):
		return &kernel.NotSupportedError{
			Feature: name,
			Reason:  "pressure accounting is switched off",
			Remedy:  "boot with psi=1; for one group write 1 to its cgroup.pressure",
		}
	}
	return err
}

// ParsePressure reads the text of a pressure file. It allocates nothing unless it fails.
//
//	some avg10=0.12 avg60=0.05 avg300=0.01 total=123456
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=78
func ParsePressure(text []byte) (Pressure, error) {
	var p Pressure
	for len(text) > 0 {
		var line []byte
		line, text = kernel.Cut(text, '\n')
		kind, rest := kernel.Cut(line, ' ')
		to, has := &p.Some, &p.HasSome
		switch string(kind) {
		case "some":
		case "full":
			to, has = &p.Full, &p.HasFull
		default:
			return Pressure{}, fmt.Errorf("line %q: not some or full", line)
		}
		if *has {
			return Pressure{}, fmt.Errorf("line %q: a second one", line)
		}
		var err error
		if *to, err = parseTotal(rest); err != nil {
			return Pressure{}, fmt.Errorf("line %q: %w", line, err)
		}
		*has = true
	}
	if !p.HasSome && !p.HasFull {
		return Pressure{}, errors.New("no lines")
	}
	return p, nil
}

// maxMicroseconds is what a time.Duration holds: 292 years.
const maxMicroseconds = (1<<63 - 1) / uint64(time.Microsecond)

// parseTotal takes the total from the fields of a line.
func parseTotal(fields []byte) (time.Duration, error) {
	_, value, ok := bytes.Cut(fields, []byte(" total="))
	if !ok {
		return 0, errors.New("no total")
	}
	number, _ := kernel.Word(value)
	us, err := kernel.Uint(number)
	if err == nil && us > maxMicroseconds {
		err = fmt.Errorf("total %d is too large", us)
	}
	return time.Duration(us) * time.Microsecond, err
}
