package hardware

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// CPUDir is where the CPUs are, below the root directory.
const CPUDir = "sys/devices/system/cpu"

// CPUSignal is what one part of the kernel tells.
type CPUSignal uint8

// The signals.
const (
	// Clock is watch.Frequency and watch.FrequencyLimit. On some kernels asking for
	// the clock rate interrupts the CPU.
	Clock CPUSignal = iota
	// Heat is watch.ThrottledCores and watch.ThrottledPackages.
	Heat
	// Idle is watch.IdleTime and watch.IdleEntries.
	Idle
)

// cpuSignals is the table of signals: name and sources, and what a host lacks without them.
var cpuSignals = [...]struct {
	name, lacks, remedy string
	sources             []cpuSource
}{
	Clock: {
		"clock rate", "no driver scales the clock of CPUs %s (there is no cpufreq)", "load the CPU's driver; a virtual machine has none",
		[]cpuSource{
			// The rate that the hardware reports, else the one that the driver knows or asked for.
			{watch.Frequency, []string{"cpufreq/cpuinfo_avg_freq", "cpufreq/scaling_cur_freq"}, nil, 1e3, mean},
			{watch.FrequencyLimit, []string{"cpufreq/scaling_max_freq"}, nil, 1e3, least},
		},
	},
	Heat: {
		"thermal throttling", "the kernel does not count it on CPUs %s (there is no thermal_throttle)",
		"an Intel CPU outside a virtual machine, and CONFIG_X86_THERMAL_VECTOR",
		[]cpuSource{
			{watch.ThrottledCores, []string{"thermal_throttle/core_throttle_count"}, []string{"physical_package_id", "core_id"}, 1, sum},
			{watch.ThrottledPackages, []string{"thermal_throttle/package_throttle_count"}, []string{"physical_package_id"}, 1, sum},
		},
	},
	Idle: {
		"idle states", "no driver handles idle states of CPUs %s (there is no cpuidle)",
		"boot without idle=poll and cpuidle.off=1; many virtual machines have none",
		[]cpuSource{
			{watch.IdleTime, []string{"cpuidle/state*/time"}, nil, 1e-6, sum},
			{watch.IdleEntries, []string{"cpuidle/state*/usage"}, nil, 1, sum},
		},
	},
}

// cpuSource is a quantity that files of a CPU tell.
type cpuSource struct {
	quantity watch.Quantity
	globs    []string // below the CPU's directory, in order of preference
	// shared are the files below topology whose texts say which CPUs have one count; nil is
	// that CPUs share what is the same file.
	shared []string
	scale  float64 // turns the number into the unit of the quantity
	join   join
}

// join says what the values of several files are together.
type join uint8

const (
	sum  join = iota
	mean      // by CPUs
	least
)

// CPUSignals returns all signals.
func CPUSignals() []CPUSignal { return []CPUSignal{Clock, Heat, Idle} }

// String returns the signal's name, "clock rate".
func (s CPUSignal) String() string { return cpuSignals[s].name }

// CPUConfig says what to read.
type CPUConfig struct {
	// Dir is the directory of the CPUs, CPUDir below the root directory.
	Dir string
	// CPUs are those to read. Those that are offline are left out.
	CPUs cpuset.Set
	// Subject is what the samples are about.
	Subject watch.Subject
	// Signal is what to read.
	Signal CPUSignal
}

// CPUReader reads a signal of some CPUs, as of them all. It is for one goroutine at a time.
type CPUReader struct {
	subject watch.Subject
	sources []cpuSource
	files   [][]cpuFile // by source
	buf     []byte
}

// cpuFile is a file of some of the CPUs that are read.
type cpuFile struct {
	kernel.File
	cpus float64 // how many have it
}

// OpenCPUs opens the files of the CPUs. If the signal is not there, the error is a
// kernel.NotSupportedError.
func OpenCPUs(c CPUConfig) (*CPUReader, error) {
	signal := cpuSignals[c.Signal]
	r := &CPUReader{subject: c.Subject, sources: signal.sources, files: make([][]cpuFile, len(signal.sources)), buf: make([]byte, 64)}
	opened := 0
	for i := range r.sources {
		seen := map[string]int{}
		for cpu := range c.CPUs.All() {
			if err := r.open(i, filepath.Join(c.Dir, "cpu"+strconv.Itoa(cpu)), seen); err != nil {
				return nil, errors.Join(fmt.Errorf("open %s of CPUs %s: %w", c.Signal, c.CPUs, err), r.Close())
			}
		}
		opened += len(seen)
	}
	if opened == 0 {
		no := &kernel.NotSupportedError{Feature: signal.name, Reason: fmt.Sprintf(signal.lacks, c.CPUs), Remedy: signal.remedy}
		return nil, fmt.Errorf("open %s of CPUs %s: %w", c.Signal, c.CPUs, no)
	}
	return r, nil
}

// open opens the files of a source of one CPU, but for those that are open: seen has their
// places.
func (r *CPUReader) open(source int, cpu string, seen map[string]int) error {
	s := &r.sources[source]
	for _, glob := range s.globs {
		names, err := fs.Glob(os.DirFS(cpu), glob)
		if err != nil {
			return err
		}
		for _, name := range names {
			name = filepath.Join(cpu, name)
			key, err := s.key(cpu, name)
			if err != nil {
				return kernel.IgnoreAbsent(err)
			}
			if i, ok := seen[key]; ok {
				r.files[source][i].cpus++
				continue
			}
			file, err := kernel.OpenFile(name)
			if err != nil {
				return kernel.IgnoreAbsent(err)
			}
			seen[key] = len(r.files[source])
			r.files[source] = append(r.files[source], cpuFile{file, 1})
		}
		if len(names) > 0 {
			break
		}
	}
	return nil
}

// key is the same for all CPUs that share a file.
func (s *cpuSource) key(cpu, name string) (string, error) {
	if s.shared == nil {
		return filepath.EvalSymlinks(name)
	}
	key := ""
	for _, id := range s.shared {
		text, err := os.ReadFile(filepath.Join(cpu, "topology", id))
		if err != nil {
			return "", err
		}
		key += string(text)
	}
	return key, nil
}

// Read appends the samples of the signal, stamped with now. A CPU
// that went offline is left out, one that came online is not seen.
func (r *CPUReader) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	start := len(to)
	for i := range r.sources {
		value, told, err := r.read(i)
		if err != nil {
			return to[:start], fmt.Errorf("read signals of CPUs: %w", err)
		}
		if told {
			to = append(to, watch.Sample{Time: now, Subject: r.subject, Quantity: r.sources[i].quantity, Value: value})
		}
	}
	return to, nil
}

// read joins the values of a source's files; told is false if none tells one.
func (r *CPUReader) read(source int) (value float64, told bool, err error) {
	s := &r.sources[source]
	cpus := 0.0
	for i := range r.files[source] {
		f := &r.files[source][i]
		n, ok, err := r.number(f.File)
		if err != nil {
			return 0, false, err
		}
		if !ok {
			continue
		}
		switch n *= s.scale; {
		case s.join == mean:
			value += n * f.cpus
		case s.join == sum:
			value += n
		case !told || n < value:
			value = n
		}
		cpus += f.cpus
		told = true
	}
	if s.join == mean && told {
		value /= cpus
	}
	return value, told, nil
}

// number reads a file with one number; told is false where the CPU is offline,
// idle, or does not know.
func (r *CPUReader) number(f kernel.File) (n float64, told bool, err error) {
	text, buf, err := f.Read(r.buf)
	r.buf = buf
	for _, quiet := range []error{syscall.ENODEV, syscall.ENOENT, syscall.EAGAIN, syscall.EBUSY, syscall.EINVAL} {
		if errors.Is(err, quiet) {
			return 0, false, nil
		}
	}
	if err != nil {
		return 0, false, err
	}
	return parseFrequency(text)
}

// parseFrequency reads a number, or "<unknown>".
func parseFrequency(text []byte) (n float64, told bool, err error) {
	word, _ := kernel.Word(text)
	if string(word) == "<unknown>" {
		return 0, false, nil
	}
	v, err := kernel.Uint(word)
	if err != nil {
		return 0, false, err
	}
	return float64(v), true, nil
}

// Close closes what is open.
func (r *CPUReader) Close() error {
	var errs []error
	for _, files := range r.files {
		for i := range files {
			errs = append(errs, files[i].Close())
		}
	}
	return errors.Join(errs...)
}
