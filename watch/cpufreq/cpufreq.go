// Package cpufreq reads how fast CPUs run, how often they became too hot, and how
// long they were idle: cpufreq, thermal_throttle and cpuidle of each CPU's sysfs
// directory (Documentation/admin-guide/pm/cpufreq.rst, cpuidle.rst;
// Documentation/ABI/testing/sysfs-devices-system-cpu).
//
// A Reader adds up over a set of CPUs, those that a workload may use.
package cpufreq

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
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// Dir is where the CPUs are, below the root directory.
const Dir = "sys/devices/system/cpu"

// Signal is what one part of the kernel tells.
type Signal uint8

// The signals.
const (
	// Clock is watch.Frequency and watch.FrequencyLimit. On some kernels asking for
	// the clock rate interrupts the CPU.
	Clock Signal = iota
	// Heat is watch.ThrottledCores and watch.ThrottledPackages.
	Heat
	// Idle is watch.IdleTime and watch.IdleEntries.
	Idle
)

// Signals returns all signals.
func Signals() []Signal { return []Signal{Clock, Heat, Idle} }

// String returns the signal's name, "clock rate".
func (s Signal) String() string {
	return [...]string{"clock rate", "thermal throttling", "idle states"}[s]
}

// absent says why a host does not tell a signal.
func (s Signal) absent(cpus cpuset.Set) error {
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

// Config says what to read.
type Config struct {
	// Dir is the directory of the CPUs, Dir below the root directory.
	Dir string
	// CPUs are those to read. Those that are offline are left out.
	CPUs cpuset.Set
	// Subject is what the samples are about.
	Subject watch.Subject
	// Signals are those to read; nil is all.
	Signals []Signal
}

// Reader reads the signals of some CPUs. It is for one goroutine at a time.
type Reader struct {
	subject  watch.Subject
	policies []policy
	cores    []kernel.File
	packages []kernel.File
	states   []state
	missing  map[Signal]error
	buf      []byte
}

// policy is CPUs with one clock.
type policy struct {
	dir          string
	cpus         float64 // how many of those that are read
	clock, limit kernel.File
	hasLimit     bool
}

// state is an idle state, of one CPU.
type state struct {
	name          string
	latency       time.Duration
	entries, time kernel.File
}

// Open opens the files of the CPUs. If none of the signals is there, the error is
// a kernel.NotSupportedError.
func Open(c Config) (*Reader, error) {
	if c.Signals == nil {
		c.Signals = Signals()
	}
	r := &Reader{subject: c.Subject, missing: map[Signal]error{}, buf: make([]byte, 64)}
	if err := r.open(c); err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("open signals of CPUs %s: %w", c.CPUs, err)
	}
	return r, nil
}

func (r *Reader) open(c Config) error {
	for _, s := range c.Signals {
		opened := 0
		seen := map[string]bool{}
		for cpu := range c.CPUs.All() {
			n, err := r.openOn(s, filepath.Join(c.Dir, "cpu"+strconv.Itoa(cpu)), seen)
			if err != nil {
				return err
			}
			opened += n
		}
		if opened == 0 {
			r.missing[s] = s.absent(c.CPUs)
		}
	}
	for _, s := range c.Signals {
		if r.missing[s] == nil {
			return nil
		}
	}
	if len(c.Signals) > 0 {
		return r.missing[c.Signals[0]]
	}
	return errors.New("no signals")
}

// openOn opens a signal of one CPU and returns the number of its sources. Seen has
// the policies, cores and packages that CPUs before it have.
func (r *Reader) openOn(s Signal, cpu string, seen map[string]bool) (int, error) {
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
func (r *Reader) openClock(cpu string) (int, error) {
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
		if p.clock, err = open(path, name); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return 0, kernel.IgnoreAbsent(err)
	}
	p.limit, err = open(path, "scaling_max_freq")
	p.hasLimit = err == nil
	r.policies = append(r.policies, p)
	return 1, kernel.IgnoreAbsent(err)
}

// openHeat opens the counts of a core and a package, of the first CPU of each.
func (r *Reader) openHeat(cpu string, seen map[string]bool) (int, error) {
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
		file, err := open(cpu, "thermal_throttle/"+count.name)
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

func (r *Reader) openIdle(cpu string) (int, error) {
	entries, err := os.ReadDir(filepath.Join(cpu, "cpuidle"))
	if err != nil {
		return 0, kernel.IgnoreAbsent(err)
	}
	opened := 0
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "state") {
			continue
		}
		dir := filepath.Join(cpu, "cpuidle", e.Name())
		s := state{name: e.Name()}
		if name, err := os.ReadFile(filepath.Join(dir, "name")); err == nil {
			s.name = strings.TrimSpace(string(name))
		}
		if text, err := os.ReadFile(filepath.Join(dir, "latency")); err == nil {
			usec, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
			if err != nil {
				return opened, fmt.Errorf("parse %s/latency: %w", dir, err)
			}
			s.latency = time.Duration(usec) * time.Microsecond
		}
		if s.entries, err = open(dir, "usage"); err != nil {
			return opened, err
		}
		if s.time, err = open(dir, "time"); err != nil {
			return opened, errors.Join(err, s.entries.Close())
		}
		r.states = append(r.states, s)
		opened++
	}
	return opened, nil
}

func open(path, name string) (kernel.File, error) {
	dir, err := kernel.OpenDir(path)
	if err != nil {
		return kernel.File{}, err
	}
	defer dir.Close()
	return dir.Open(name)
}

// Missing returns why a signal is not there; nil if it is.
func (r *Reader) Missing(s Signal) error { return r.missing[s] }

// Read appends the samples of the signals that are there, stamped with now. A CPU
// that went offline is left out, one that came online is not seen.
func (r *Reader) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
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
func (r *Reader) clock() (mean, limit float64, err error) {
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

// sum adds up counts; told is false if there is none.
func (r *Reader) sum(files []kernel.File) (sum float64, told bool, err error) {
	for _, f := range files {
		n, ok, e := r.number(f)
		sum, told, err = sum+n, told || ok, errors.Join(err, e)
	}
	return sum, told, err
}

func (r *Reader) idle() (entries, seconds float64, told bool, err error) {
	for i := range r.states {
		n, us, ok, e := r.idleIn(&r.states[i])
		entries, seconds, told, err = entries+n, seconds+us/1e6, told || ok, errors.Join(err, e)
	}
	return entries, seconds, told, err
}

// idleIn returns how often a CPU was in a state, and for how many microseconds.
func (r *Reader) idleIn(s *state) (entries, usec float64, told bool, err error) {
	entries, told, err = r.number(s.entries)
	usec, ok, e := r.number(s.time)
	return entries, usec, told && ok, errors.Join(err, e)
}

// State is what CPUs did in an idle state, all of them together.
type State struct {
	Name string
	// Latency is how long it takes to leave the state.
	Latency time.Duration
	Entries float64
	Seconds float64
}

// States reads the idle states, in the order in which CPUs have them.
func (r *Reader) States() ([]State, error) {
	var all []State
	place := map[string]int{}
	for i := range r.states {
		s := &r.states[i]
		entries, usec, told, err := r.idleIn(s)
		if err != nil {
			return nil, fmt.Errorf("read idle states: %w", err)
		}
		if !told {
			continue
		}
		at, known := place[s.name]
		if !known {
			at = len(all)
			place[s.name] = at
			all = append(all, State{Name: s.name, Latency: s.latency})
		}
		all[at].Entries += entries
		all[at].Seconds += usec / 1e6
	}
	return all, nil
}

// number reads a file with one number; told is false where the CPU is offline,
// idle, or does not know.
func (r *Reader) number(f kernel.File) (n float64, told bool, err error) {
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
	return parseNumber(text)
}

// parseNumber reads a number, or "<unknown>".
func parseNumber(text []byte) (n float64, told bool, err error) {
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
func (r *Reader) Close() error {
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
