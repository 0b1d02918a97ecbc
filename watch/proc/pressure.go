package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"syscall"
	"time"

	"berth.dev/berth/kernel"
)

// PressureLine is one line of a pressure file.
type PressureLine struct {
	// Avg10, Avg60 and Avg300 are the shares of time, 0 to 1, over the last 10,
	// 60 and 300 seconds; the kernel updates them every 2 s.
	Avg10, Avg60, Avg300 float64
	// Total is the stall time since the group was made, or since boot; the kernel
	// counts microseconds.
	Total time.Duration
}

// Pressure is one pressure file.
type Pressure struct {
	// Some is the time in which at least one task waited, Full that in which all
	// did.
	Some, Full PressureLine
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
		if err := to.parse(rest); err != nil {
			return Pressure{}, fmt.Errorf("line %q: %w", line, err)
		}
		*has = true
	}
	if !p.HasSome && !p.HasFull {
		return Pressure{}, errors.New("no lines")
	}
	return p, nil
}

func (l *PressureLine) parse(fields []byte) error {
	seen := 0
	for len(fields) > 0 {
		var field []byte
		field, fields = kernel.Cut(fields, ' ')
		key, value := kernel.Cut(field, '=')
		var err error
		seen++
		switch string(key) {
		case "avg10":
			l.Avg10, err = parseShare(value)
		case "avg60":
			l.Avg60, err = parseShare(value)
		case "avg300":
			l.Avg300, err = parseShare(value)
		case "total":
			l.Total, err = parseTotal(value)
		default:
			seen-- // kernels may add fields
		}
		if err != nil {
			return err
		}
	}
	if seen != 4 {
		return fmt.Errorf("%d of avg10, avg60, avg300 and total", seen)
	}
	return nil
}

func parseShare(percent []byte) (float64, error) {
	v, err := strconv.ParseFloat(string(percent), 64)
	if err == nil && !(v >= 0 && v <= 100) {
		err = fmt.Errorf("%q is not a percentage", percent)
	}
	if err != nil {
		return 0, err
	}
	return v / 100, nil
}

// maxMicroseconds is what a time.Duration holds: 292 years.
const maxMicroseconds = (1<<63 - 1) / uint64(time.Microsecond)

func parseTotal(text []byte) (time.Duration, error) {
	us, err := kernel.Uint(text)
	if err == nil && us > maxMicroseconds {
		err = fmt.Errorf("total %d is too large", us)
	}
	if err != nil {
		return 0, err
	}
	return time.Duration(us) * time.Microsecond, nil
}
