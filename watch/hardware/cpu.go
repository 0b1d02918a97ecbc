package hardware

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// CPUSignals returns all signals.
func CPUSignals() []CPUSignal { return []CPUSignal{Clock, Heat, Idle} }

// String returns the signal's name, "clock rate".
func (s CPUSignal) String() string {
	return [...]string{"clock rate", "thermal throttling", "idle states"}[s]
}

// absent says why a host does not tell a signal.
func (s CPUSignal) absent(cpus cpuset.Set) error {
	no := &kernel.NotSupportedError{Feature: s.String()}
	switch s {
	case Clock:
		no.Reason = "no driver scales the clock of CPUs " + cpus.String() + " (there is no cpufreq)"
		no.Remedy = "load the CPU's driver; a virtual machine has none"
	case Heat:
		no.Reason = "the kernel does not count it on CPUs " + cpus.String() + " (there is no thermal_throttle)"
		no.Remedy = "an Intel CPU outside a virtual machine, and CONFIG_X86_THERMAL_VECTOR"
	case Idle:
		no.Reason = "no driver handles idle states of CPUs " + cpus.String() + " (there is no cpuidle)"
		no.Remedy = "boot without idle=poll and cpuidle.off=1; many virtual machines have none"
	}
	return no
}

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
	subject  watch.Subject
	policies []policy
	cores    []kernel.File
	packages []kernel.File
	states   []idleState
	buf      []byte
}

// policy is CPUs with one clock.
type policy struct {
	dir          string
	cpus         float64 // how many of those that are read
	clock, limit kernel.File
	hasLimit     bool
}

// idleState is an idle state of one CPU.
type idleState struct{ entries, time kernel.File }

// OpenCPUs opens the files of the CPUs. If the signal is not there, the error is a
// kernel.NotSupportedError.
func OpenCPUs(c CPUConfig) (*CPUReader, error) {
	r := &CPUReader{subject: c.Subject, buf: make([]byte, 64)}
	opened := 0
	seen := map[string]bool{}
	for cpu := range c.CPUs.All() {
		n, err := r.openOn(c.Signal, filepath.Join(c.Dir, "cpu"+strconv.Itoa(cpu)), seen)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open %s of CPUs %s: %w", c.Signal, c.CPUs, err), r.Close())
		}
		opened += n
	}
	if opened == 0 {
		return nil, fmt.Errorf("open %s of CPUs %s: %w", c.Signal, c.CPUs, c.Signal.absent(c.CPUs))
	}
	return r, nil
}

// openOn opens a signal of one CPU and returns the number of its sources. Seen has
// the policies, cores and packages that CPUs before it have.
func (r *CPUReader) openOn(s CPUSignal, cpu string, seen map[string]bool) (int, error) {
	switch s {
	case Clock:
		return r.openClock(cpu)
	case Heat:
		return r.openHeat(cpu, seen)
	default:
		return r.openIdle(cpu)
	}
}

// openClock opens the clock rate that the hardware reports, else the one that the
// driver knows or asked for.
func (r *CPUReader) openClock(cpu string) (int, error) {
	path, err := filepath.EvalSymlinks(filepath.Join(cpu, "cpufreq"))
	if err != nil {
		return 0, kernel.IgnoreAbsent(err)
	}
	for i := range r.policies {
		if r.policies[i].dir == path {
			r.policies[i].cpus++
			return 1, nil
		}
	}
	p := policy{dir: path, cpus: 1}
	for _, name := range []string{"cpuinfo_avg_freq", "scaling_cur_freq"} {
		if p.clock, err = openIn(path, name); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return 0, kernel.IgnoreAbsent(err)
	}
	p.limit, err = openIn(path, "scaling_max_freq")
	p.hasLimit = err == nil
	r.policies = append(r.policies, p)
	return 1, kernel.IgnoreAbsent(err)
}

// openHeat opens the counts of a core and a package, of the first CPU of each.
func (r *CPUReader) openHeat(cpu string, seen map[string]bool) (int, error) {
	topology := filepath.Join(cpu, "topology")
	socket, err := os.ReadFile(filepath.Join(topology, "physical_package_id"))
	if err != nil {
		return 0, kernel.IgnoreAbsent(err)
	}
	core, err := os.ReadFile(filepath.Join(topology, "core_id"))
	if err != nil {
		return 0, kernel.IgnoreAbsent(err)
	}
	opened := 0
	for _, count := range []struct {
		key, name string
		to        *[]kernel.File
	}{
		{string(socket) + "/" + string(core), "core_throttle_count", &r.cores},
		{string(socket), "package_throttle_count", &r.packages},
	} {
		if seen[count.key] {
			continue
		}
		file, err := openIn(cpu, "thermal_throttle/"+count.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return opened, err
		}
		seen[count.key] = true
		*count.to = append(*count.to, file)
		opened++
	}
	return opened, nil
}

func (r *CPUReader) openIdle(cpu string) (opened int, err error) {
	entries, err := os.ReadDir(filepath.Join(cpu, "cpuidle"))
	if err != nil {
		return 0, kernel.IgnoreAbsent(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "state") {
			continue
		}
		dir := filepath.Join(cpu, "cpuidle", e.Name())
		var s idleState
		if s.entries, err = openIn(dir, "usage"); err != nil {
			return opened, err
		}
		if s.time, err = openIn(dir, "time"); err != nil {
			return opened, errors.Join(err, s.entries.Close())
		}
		r.states = append(r.states, s)
		opened++
	}
	return opened, nil
}

func openIn(path, name string) (kernel.File, error) {
	dir, err := kernel.OpenDir(path)
	if err != nil {
		return kernel.File{}, err
	}
	defer dir.Close()
	return dir.Open(name)
}

// Read appends the samples of the signal, stamped with now. A CPU
// that went offline is left out, one that came online is not seen.
func (r *CPUReader) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	start := len(to)
	add := func(q watch.Quantity, v float64, ok bool) {
		if ok {
			to = append(to, watch.Sample{Time: now, Subject: r.subject, Quantity: q, Value: v})
		}
	}
	clock, limit, err := r.clock()
	add(watch.Frequency, clock, clock > 0)
	add(watch.FrequencyLimit, limit, !math.IsInf(limit, 1))
	for _, heat := range []struct {
		quantity watch.Quantity
		files    []kernel.File
	}{{watch.ThrottledCores, r.cores}, {watch.ThrottledPackages, r.packages}} {
		n, told, e := r.sum(heat.files)
		add(heat.quantity, n, told)
		err = errors.Join(err, e)
	}
	entries, idle, told, e := r.idle()
	add(watch.IdleTime, idle, told)
	add(watch.IdleEntries, entries, told)
	if err = errors.Join(err, e); err != nil {
		return to[:start], fmt.Errorf("read signals of CPUs: %w", err)
	}
	return to, nil
}

// clock returns the mean clock rate of CPUs, 0 if none tells it, and the lowest
// limit, in hertz.
func (r *CPUReader) clock() (mean, limit float64, err error) {
	sum, cpus := 0.0, 0.0
	limit = math.Inf(1)
	for i := range r.policies {
		p := &r.policies[i]
		khz, told, e := r.number(p.clock)
		err = errors.Join(err, e)
		if told {
			sum += khz * 1e3 * p.cpus
			cpus += p.cpus
		}
		if !p.hasLimit {
			continue
		}
		khz, told, e = r.number(p.limit)
		err = errors.Join(err, e)
		if told {
			limit = min(limit, khz*1e3)
		}
	}
	if cpus == 0 {
		return 0, limit, err
	}
	return sum / cpus, limit, err
}

// sum adds up counts; told is false without one.
func (r *CPUReader) sum(files []kernel.File) (sum float64, told bool, err error) {
	for _, f := range files {
		n, ok, e := r.number(f)
		sum, told, err = sum+n, told || ok, errors.Join(err, e)
	}
	return sum, told, err
}

func (r *CPUReader) idle() (entries, seconds float64, told bool, err error) {
	for i := range r.states {
		n, ok, e := r.number(r.states[i].entries)
		us, also, e2 := r.number(r.states[i].time)
		entries, seconds, told, err = entries+n, seconds+us/1e6, told || ok && also, errors.Join(err, e, e2)
	}
	return entries, seconds, told, err
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
	for i := range r.policies {
		errs = append(errs, r.policies[i].clock.Close())
		if r.policies[i].hasLimit {
			errs = append(errs, r.policies[i].limit.Close())
		}
	}
	for _, f := range r.cores {
		errs = append(errs, f.Close())
	}
	for _, f := range r.packages {
		errs = append(errs, f.Close())
	}
	for i := range r.states {
		errs = append(errs, r.states[i].entries.Close(), r.states[i].time.Close())
	}
	return errors.Join(errs...)
}
