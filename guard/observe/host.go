package observe

import (
	"errors"
	"fmt"
	"path/filepath"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/proc"
)

// hostFiles are what tells of the whole host, /proc/stat and /proc/pressure. They stay
// open: they are read ten times a second while the run-queue probe is armed.
type hostFiles struct {
	stat      kernel.File
	times     proc.Stat
	pressures []openPressure // those that there are
	buf       []byte
}

type openPressure struct {
	kernel.File
	quantity watch.Quantity
}

// pressures are the resources that have a file of their pressure.
var pressures = []struct {
	resource string
	quantity watch.Quantity
}{{"cpu", watch.CPUSome}, {"memory", watch.MemorySome}, {"io", watch.IOSome}}

func openHost(root string) (hostFiles, error) {
	var h hostFiles
	var err error
	if h.stat, err = kernel.OpenFile(filepath.Join(root, "proc/stat")); err != nil {
		return h, fmt.Errorf("cpu times: %w", err)
	}
	for _, p := range pressures {
		if f, err := kernel.OpenFile(filepath.Join(root, "proc/pressure", p.resource)); err == nil {
			h.pressures = append(h.pressures, openPressure{f, p.quantity})
		}
	}
	return h, nil
}

// read appends the samples of now. A pressure file that cannot be read, as where
// accounting is switched off, has none.
func (h *hostFiles) read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	add := func(q watch.Quantity, part watch.Part, v float64) {
		to = append(to, watch.Sample{Time: now, Subject: watch.Subject{Part: part}, Quantity: q, Value: v})
	}
	if err := h.readTimes(); err != nil {
		return to, err
	}
	add(watch.CPUTime, watch.Part{}, h.times.Total.Busy().Seconds())
	if h.times.Total.HasSteal() {
		add(watch.Steal, watch.Part{}, h.times.Total.Steal.Seconds())
	}
	for _, cpu := range h.times.CPUs {
		add(watch.CPUTime, watch.Part{Kind: watch.CPU, ID: cpu.ID}, cpu.Busy().Seconds())
	}
	for _, f := range h.pressures {
		text, buf, err := f.Read(h.buf)
		h.buf = buf
		if err != nil {
			continue
		}
		if p, err := proc.ParsePressure(text); err == nil && p.HasSome {
			add(f.quantity, watch.Part{}, p.Some.Seconds())
		}
	}
	return to, nil
}

// readTimes reads /proc/stat.
func (h *hostFiles) readTimes() error {
	text, buf, err := h.stat.Read(h.buf)
	h.buf = buf
	if err == nil {
		err = h.times.Parse(text)
	}
	if err != nil {
		return fmt.Errorf("cpu times: %s: %w", h.stat.Path(), err)
	}
	return nil
}

func (h *hostFiles) close() error {
	errs := []error{h.stat.Close()}
	for _, f := range h.pressures {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
