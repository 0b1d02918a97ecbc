package guard

import (
	"cmp"
	"slices"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/proc"
)

const (
	// muchInterrupted is the part of a CPU's time from which on interrupts are named.
	muchInterrupted = 0.1
	mostLines       = 3
)

// interruptReader are Sensors that can tell what interrupts take. It costs two files with a line
// or column per CPU, so it is asked only while it is not known which group has the CPUs.
type interruptReader interface {
	Interrupts() (seconds map[int]float64, lines []proc.Interrupt, err error)
}

// interrupts has what interrupts take.
type interrupts struct {
	at      watch.Time
	seconds map[int]float64
	lines   []proc.Interrupt
	now     *detect.Interrupts // between the last two readings; nil is that it is not much
}

// take takes in a reading.
func (i *interrupts) take(now watch.Time, seconds map[int]float64, lines []proc.Interrupt) {
	before := *i
	*i = interrupts{at: now, seconds: seconds, lines: lines}
	passed := (now - before.at).Seconds()
	if before.seconds == nil || passed <= 0 {
		return
	}
	most := detect.Interrupts{CPU: -1}
	for cpu, s := range seconds {
		was, known := before.seconds[cpu]
		if share := (s - was) / passed; known && (share > most.Share || share == most.Share && cpu < most.CPU) {
			most.CPU, most.Share = cpu, share
		}
	}
	if most.Share < muchInterrupted {
		return
	}
	for _, line := range lines {
		at := slices.IndexFunc(before.lines, func(o proc.Interrupt) bool { return o.Number == line.Number && o.Device == line.Device })
		if at < 0 || line.Counts[most.CPU] <= before.lines[at].Counts[most.CPU] {
			continue
		}
		came := line.Counts[most.CPU] - before.lines[at].Counts[most.CPU]
		most.Lines = append(most.Lines, detect.InterruptLine{Number: line.Number, Device: line.Device, PerSecond: float64(came) / passed})
	}
	slices.SortFunc(most.Lines, func(a, b detect.InterruptLine) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(a.Number, b.Number))
	})
	most.Lines = most.Lines[:min(len(most.Lines), mostLines)]
	i.now = &most
}

// readInterrupts reads them in a slow window while they are asked for.
func (r *Runner) readInterrupts(now watch.Time) {
	s, ok := r.o.Sensors.(interruptReader)
	if !ok || now >= r.outside.until {
		r.interrupts = interrupts{}
		return
	}
	seconds, lines, err := s.Interrupts()
	r.failed(err)
	if err == nil {
		r.interrupts.take(now, seconds, lines)
	}
}
