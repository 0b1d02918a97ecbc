package cgroupstat

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/proc"
)

// sink takes the samples of one reading; sample is what they have in common.
type sink struct {
	to     []watch.Sample
	sample watch.Sample
	buf    []byte // for the text
	// quotas are those above groups without the cpu controller, by the directory that is looked
	// at first, as read in a round: many groups are below the same.
	quotas map[string]quota
	round  int
}

func (s *sink) add(q watch.Quantity, value float64) {
	s.sample.Quantity, s.sample.Value = q, value
	s.to = append(s.to, s.sample)
}

// of makes the following samples about a part of the subject.
func (s *sink) of(kind watch.PartKind, id int) {
	s.sample.Subject.Part = watch.Part{Kind: kind, ID: id}
}

// parser reads the text of a file into samples. Keys that it does not know are
// left out: kernels add some.
type parser func(text []byte, to *sink) error

// parsers are those of files, by name. A file that v1 spells another way has its parser in the
// table of signals.
var parsers = map[string]parser{
	"cpu.stat": flat(
		key{"usage_usec", watch.CPUTime, us}, key{"user_usec", watch.CPUUser, us}, key{"system_usec", watch.CPUSystem, us},
		key{"nr_periods", watch.CPUPeriods, 1}, key{"nr_throttled", watch.CPUThrottledPeriods, 1},
		key{"throttled_usec", watch.CPUThrottled, us}, key{"nr_bursts", watch.CPUBursts, 1}, key{"burst_usec", watch.CPUBurstTime, us}),
	"cpu.stat.local": flat(key{"throttled_usec", watch.CPUThrottledAny, us}, key{"throttled_time", watch.CPUThrottledAny, ns}),
	"cpuacct.usage":  single(key{quantity: watch.CPUTime, scale: ns}),
	"cpuacct.stat":   flat(key{"user", watch.CPUUser, tick}, key{"system", watch.CPUSystem, tick}),

	"memory.current":        single(key{quantity: watch.Memory, scale: 1}),
	"memory.usage_in_bytes": single(key{quantity: watch.Memory, scale: 1}),
	"memory.events": flat(
		key{"low", watch.MemoryLow, 1}, key{"high", watch.MemoryHigh, 1}, key{"max", watch.MemoryMax, 1},
		key{"oom", watch.MemoryOOM, 1}, key{"oom_kill", watch.MemoryOOMKills, 1}),
	"memory.failcnt":     single(key{quantity: watch.MemoryMax, scale: 1}),
	"memory.oom_control": flat(key{"oom_kill", watch.MemoryOOMKills, 1}),
	"memory.stat": flat(
		key{"anon", watch.MemoryAnon, 1}, key{"file", watch.MemoryFile, 1},
		key{"workingset_refault", watch.Refaults, 1}, // before Linux 5.9
		key{"workingset_refault_anon", watch.Refaults, 1}, key{"workingset_refault_file", watch.Refaults, 1},
		key{"pgfault", watch.PageFaults, 1}, key{"pgmajfault", watch.MajorFaults, 1}),
	"memory.numa_stat": numa("anon", "file", 1),

	"pids.current":  single(key{quantity: watch.Tasks, scale: 1}),
	"cgroup.events": flat(key{"populated", watch.Populated, 1}, key{"frozen", watch.Frozen, 1}),
	"io.stat":       parseIO,
	"blkio.throttle.io_service_bytes_recursive": blkio(watch.IORead, watch.IOWritten),
	"blkio.throttle.io_serviced_recursive":      blkio(watch.IOReads, watch.IOWrites),

	"cpu.pressure":    pressure(watch.CPUSome, watch.CPUFull),
	"memory.pressure": pressure(watch.MemorySome, watch.MemoryFull),
	"io.pressure":     pressure(watch.IOSome, watch.IOFull),
	"irq.pressure":    pressure(watch.IRQFull, watch.IRQFull), // has no "some"
}

// limitV2 reads of a cpu.stat what is true of all groups that are under its limit: the time that
// the limit withholds is not each one's.
var limitV2 = flat(key{"nr_periods", watch.CPUPeriods, 1}, key{"nr_throttled", watch.CPUThrottledPeriods, 1})

// Those of v1. Figures that begin with total_ are with the children, as on v2.
var (
	throttlingV1 = flat(
		key{"nr_periods", watch.CPUPeriods, 1}, key{"nr_throttled", watch.CPUThrottledPeriods, 1},
		key{"throttled_time", watch.CPUThrottled, ns}, key{"nr_bursts", watch.CPUBursts, 1}, key{"burst_time", watch.CPUBurstTime, ns})
	memoryV1 = flat(
		key{"total_cache", watch.MemoryFile, 1}, key{"total_rss", watch.MemoryAnon, 1},
		key{"total_workingset_refault_anon", watch.Refaults, 1}, key{"total_workingset_refault_file", watch.Refaults, 1},
		key{"total_pgfault", watch.PageFaults, 1}, key{"total_pgmajfault", watch.MajorFaults, 1})
	numaV1 = numa("hierarchical_anon", "hierarchical_file", float64(os.Getpagesize()))
)

const us, ns, tick = 1e-6, 1e-9, 1.0 / kernel.UserHZ

// key says what a key of a flat keyed file is; scale turns its number into the
// unit of the quantity. Keys of the same quantity that follow each other are
// added up.
type key struct {
	name     string
	quantity watch.Quantity
	scale    float64
}

func flat(keys ...key) parser {
	return func(text []byte, to *sink) error { return parseFlat(text, keys, to) }
}

// parseFlat reads a flat keyed file, "nr_periods 12" a line.
func parseFlat(text []byte, keys []key, to *sink) error {
	for len(text) > 0 {
		var line []byte
		line, text = kernel.Cut(text, '\n')
		name, value := kernel.Cut(line, ' ')
		for _, k := range keys {
			if k.name != string(name) {
				continue
			}
			n, err := kernel.Uint(value)
			if err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			to.sum(k.quantity, float64(n)*k.scale)
			break
		}
	}
	return nil
}

// sum adds to the last sample if it is of the same quantity.
func (s *sink) sum(q watch.Quantity, value float64) {
	if n := len(s.to); n > 0 {
		last := &s.to[n-1]
		if last.Quantity == q && last.Subject == s.sample.Subject && last.Time == s.sample.Time {
			last.Value += value
			return
		}
	}
	s.add(q, value)
}

// single reads a file of one number.
func single(k key) parser {
	return func(text []byte, to *sink) error {
		word, rest := kernel.Word(text)
		n, err := kernel.Uint(word)
		if err != nil {
			return err
		}
		if word, _ := kernel.Word(rest); len(word) > 0 {
			return fmt.Errorf("%q: more than one number", text)
		}
		to.add(k.quantity, float64(n)*k.scale)
		return nil
	}
}

// numa reads memory.numa_stat, a number by node, in bytes on v2 and in pages on v1, where
// the sum comes first: "anon N0=4096 N1=0", "hierarchical_anon=12 N0=8 N1=4".
func numa(anon, file string, scale float64) parser {
	return func(text []byte, to *sink) error {
		for len(text) > 0 {
			var line []byte
			line, text = kernel.Cut(text, '\n')
			first, nodes := kernel.Word(line)
			name, _ := kernel.Cut(first, '=')
			quantity := watch.MemoryAnon
			switch string(name) {
			case anon:
			case file:
				quantity = watch.MemoryFile
			default:
				continue
			}
			if err := parseNodes(nodes, quantity, scale, to); err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
		}
		return nil
	}
}

// parseNodes reads "N0=8 N1=4".
func parseNodes(text []byte, q watch.Quantity, scale float64, to *sink) error {
	defer to.of(watch.Whole, 0)
	for {
		var word []byte
		word, text = kernel.Word(text)
		if len(word) == 0 {
			return nil
		}
		name, value := kernel.Cut(word, '=')
		if len(name) == 0 || name[0] != 'N' {
			return fmt.Errorf("%q is not a node", word)
		}
		node, err := parseID(name[1:])
		if err != nil {
			return err
		}
		n, err := kernel.Uint(value)
		if err != nil {
			return err
		}
		to.of(watch.Node, node)
		to.add(q, float64(n)*scale)
	}
}

// parseIO reads io.stat: "8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0". Since Linux 5.15, and until
// "blk-cgroup: always terminate io.stat lines" of January 2022, a device without figures has no line's end: figures
// are those of the last device before them, as in "7:1 7:0 rbytes=4096".
func parseIO(text []byte, to *sink) error {
	defer to.of(watch.Whole, 0)
	for len(text) > 0 {
		var line []byte
		line, text = kernel.Cut(text, '\n')
		device, fields := kernel.Word(line)
		if err := to.ofDevice(device); err != nil {
			return fmt.Errorf("line %q: %w", line, err)
		}
		for {
			var field []byte
			if field, fields = kernel.Word(fields); len(field) == 0 {
				break
			}
			name, value := kernel.Cut(field, '=')
			if value == nil && bytes.IndexByte(name, ':') >= 0 {
				if err := to.ofDevice(name); err != nil {
					return fmt.Errorf("line %q: %w", line, err)
				}
				continue
			}
			var q watch.Quantity
			switch string(name) {
			case "rbytes":
				q = watch.IORead
			case "wbytes":
				q = watch.IOWritten
			case "rios":
				q = watch.IOReads
			case "wios":
				q = watch.IOWrites
			default:
				continue
			}
			n, err := kernel.Uint(value)
			if err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			to.add(q, float64(n))
		}
	}
	return nil
}

// blkio reads a blkio.throttle file of v1: "8:0 Read 4096" and "8:0 Write 0" a
// device, and a total.
func blkio(read, write watch.Quantity) parser {
	return func(text []byte, to *sink) error {
		defer to.of(watch.Whole, 0)
		for len(text) > 0 {
			var line []byte
			line, text = kernel.Cut(text, '\n')
			device, rest := kernel.Word(line)
			name, rest := kernel.Word(rest)
			q := read
			switch string(name) {
			case "Read":
			case "Write":
				q = write
			default:
				continue
			}
			if err := to.ofDevice(device); err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			value, _ := kernel.Word(rest)
			n, err := kernel.Uint(value)
			if err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			to.add(q, float64(n))
		}
		return nil
	}
}

// ofDevice makes the following samples about a device, "8:0".
func (s *sink) ofDevice(text []byte) error {
	majorText, minorText := kernel.Cut(text, ':')
	major, err := parseID(majorText)
	if err != nil {
		return err
	}
	minor, err := parseID(minorText)
	if err != nil {
		return err
	}
	if major >= 1<<12 || minor >= 1<<20 {
		return fmt.Errorf("device %q: number too large", text)
	}
	s.of(watch.Device, watch.DeviceID(major, minor))
	return nil
}

// parseID reads the number of a node or device.
func parseID(text []byte) (int, error) {
	n, err := strconv.ParseUint(string(text), 10, 31)
	return int(n), err
}

// pressure reads a pressure file; only the totals are sampled.
func pressure(some, full watch.Quantity) parser {
	return func(text []byte, to *sink) error {
		p, err := proc.ParsePressure(text)
		if err != nil {
			return err
		}
		if p.HasSome {
			to.add(some, p.Some.Seconds())
		}
		if p.HasFull {
			to.add(full, p.Full.Seconds())
		}
		return nil
	}
}
