package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"berth.dev/berth/kernel"
)

// SchedTimes is what the scheduler has counted for a thread or a CPU.
type SchedTimes struct {
	// Ran is the time on a CPU, or that a CPU was busy with tasks; Waited is the
	// time that threads were ready to run and waited for a CPU. The kernel counts
	// nanoseconds.
	Ran, Waited time.Duration
}

// ParseTask reads the text of /proc/TID/schedstat: "5000 300 9".
func ParseTask(text []byte) (SchedTimes, error) {
	times, rest, err := parseSched(text)
	if err != nil {
		return SchedTimes{}, err
	}
	if word, _ := kernel.Word(rest); len(word) > 0 {
		return SchedTimes{}, errors.New("more than 3 numbers")
	}
	return times, nil
}

// parseSched reads the three numbers that tasks and CPUs have in common.
func parseSched(text []byte) (SchedTimes, []byte, error) {
	var n [3]uint64
	for i := range n {
		word, rest := kernel.Word(text)
		var err error
		if n[i], err = kernel.Uint(word); err != nil {
			return SchedTimes{}, nil, err
		}
		text = rest
	}
	if n[0] > maxNanoseconds || n[1] > maxNanoseconds {
		return SchedTimes{}, nil, fmt.Errorf("%d or %d ns is too large", n[0], n[1])
	}
	return SchedTimes{time.Duration(n[0]), time.Duration(n[1])}, text, nil
}

const maxNanoseconds = 1<<63 - 1 // 292 years

func explainSched(err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return &kernel.NotSupportedError{
		Feature: "run delay of CPUs",
		Reason:  "there is no /proc/schedstat",
		Remedy:  "boot a kernel with CONFIG_SCHEDSTATS",
	}
}

// waitOfCPUs adds up the seconds that threads waited for CPUs: the second of the last three
// of the nine numbers of each "cpu" line, which are the same in versions 15 to 17 of the
// file, and counted whatever the sysctl kernel.sched_schedstats says. An older file is
// refused, a later one read as long as it has them.
func waitOfCPUs(text []byte) (seconds float64, err error) {
	line, text := kernel.Cut(text, '\n')
	word, rest := kernel.Word(line)
	number, _ := kernel.Word(rest)
	version, err := kernel.Uint(number)
	if string(word) != "version" || err != nil || version < 15 {
		return 0, fmt.Errorf("line %q: not version 15 or later", line)
	}
	for len(text) > 0 {
		line, text = kernel.Cut(text, '\n')
		word, numbers := kernel.Word(line)
		if len(word) < 4 || string(word[:3]) != "cpu" {
			continue // timestamp, domain
		}
		if _, err := kernel.Uint(word[3:]); err != nil {
			return 0, fmt.Errorf("line %q: %w", line, err)
		}
		for range 6 {
			_, numbers = kernel.Word(numbers)
		}
		times, _, err := parseSched(numbers)
		if err != nil {
			return 0, fmt.Errorf("line %q: %w", line, err)
		}
		seconds += times.Waited.Seconds()
	}
	return seconds, nil
}

// parseStatus takes the involuntary context switches from the text of
// /proc/TID/status; ok is false where it has none.
func parseStatus(text []byte) (involuntary uint64, ok bool, err error) {
	for len(text) > 0 {
		var line []byte
		line, text = kernel.Cut(text, '\n')
		key, value := kernel.Cut(line, ':')
		if string(key) != "nonvoluntary_ctxt_switches" {
			continue
		}
		number, _ := kernel.Word(value)
		if involuntary, err = kernel.Uint(number); err != nil {
			return 0, false, fmt.Errorf("line %q: %w", line, err)
		}
		return involuntary, true, nil
	}
	return 0, false, nil
}
