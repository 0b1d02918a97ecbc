package hardware

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// CounterConfig says what to count.
type CounterConfig struct {
	// Dir is the group's directory in the tree of the perf_event controller: a v1
	// tree of that name, else v2. "" counts everything that runs on the host.
	Dir string
	// Name is the group's name in samples; the host has none.
	Name string
	// CPUs are those to count on. One that is not online is left out.
	CPUs cpuset.Set
	Set  EventSet
	// Only are the quantities to count, of those that the set has; nil is all.
	Only []watch.Quantity
}

// Counter counts a set of events. It is for one goroutine at a time.
type Counter struct {
	subject watch.Subject
	set     EventSet
	group   bool
	alive   kernel.File // one of the group's, which fails once it is gone
	events  []counted
	cpus    []onCPU
	buf     [maxRead]byte
}

// counted is an event and its sum over CPUs.
type counted struct {
	perfEvent
	sum     float64
	missing error // why it is not there
}

// maxRead is the size of a reading: how many events there are, two times and a
// value of each.
const maxRead = (3 + 4) * 8

// onCPU is the events on one CPU, the first leading.
type onCPU struct {
	fds    []int
	before perfReading
}

// perfReading is what the kernel tells of the events on a CPU. Times are nanoseconds
// in which a task of the group ran there and in which the events had counters.
type perfReading struct {
	enabled, running uint64
	values           [4]uint64
}

// OpenCounter starts counting. A group that does not exist is watch.ErrGone; events that
// the host does not have are a kernel.NotSupportedError.
func OpenCounter(c CounterConfig) (*Counter, error) {
	counter := &Counter{set: c.Set, group: c.Dir != ""}
	if counter.group {
		counter.subject = watch.Subject{Scope: watch.Group, Name: c.Name}
	}
	for _, e := range eventSets[c.Set].events {
		if c.Only == nil || slices.Contains(c.Only, e.quantity) {
			counter.events = append(counter.events, counted{perfEvent: e})
		}
	}
	if err := counter.open(c); err != nil {
		_ = counter.Close()
		return nil, fmt.Errorf("open %s of %s: %w", c.Set, counter.subject, err)
	}
	return counter, nil
}

func (c *Counter) open(config CounterConfig) error {
	pid, flags := -1, unix.PERF_FLAG_FD_CLOEXEC
	if c.group {
		var err error
		if c.alive, err = openGroup(config.Dir); err != nil {
			c.group = false // nothing to close
			return err
		}
		// The kernel wants a descriptor that can read.
		if pid, err = unix.Open(config.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return &os.PathError{Op: "open", Path: config.Dir, Err: err}
		}
		defer unix.Close(pid)
		flags |= unix.PERF_FLAG_PID_CGROUP
	}
	if len(c.events) == 0 {
		return errors.New("no events")
	}
	for cpu := range config.CPUs.All() {
		if err := c.openOn(cpu, pid, flags); err != nil {
			return c.explain(err, config.CPUs.Len())
		}
	}
	if len(c.cpus) == 0 {
		return fmt.Errorf("none of the CPUs %s is online", config.CPUs)
	}
	return nil
}

// openGroup opens a file that every group has and that is cheap to read: of v2,
// of v1.
func openGroup(path string) (kernel.File, error) {
	dir, err := kernel.OpenDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return kernel.File{}, watch.ErrGone
	}
	if err != nil {
		return kernel.File{}, err
	}
	defer dir.Close()
	file, err := dir.Open("cgroup.max.depth")
	if errors.Is(err, os.ErrNotExist) {
		file, err = dir.Open("notify_on_release")
	}
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%s is no control group", path)
	}
	return file, err
}

// openOn opens the events on one CPU. What the first CPU lacks beside the leading
// event is left out on all.
func (c *Counter) openOn(cpu, pid, flags int) error {
	c.cpus = append(c.cpus, onCPU{})
	on := &c.cpus[len(c.cpus)-1]
	leader := -1
	for i := range c.events {
		if c.events[i].missing != nil {
			continue
		}
		fd, err := c.events[i].open(c.set, cpu, pid, leader, flags)
		switch {
		case err == nil:
			on.fds = append(on.fds, fd)
			leader = on.fds[0]
		case leader < 0 && err == unix.ENODEV: // the CPU is not online
			c.cpus = c.cpus[:len(c.cpus)-1]
			return nil
		case leader >= 0 && len(c.cpus) == 1 && noSuchEvent(err):
			c.events[i].missing = err
		default:
			return err
		}
	}
	return nil
}

// noSuchEvent says whether an error means that the CPU has no such event, or no more
// counters for one with the others.
func noSuchEvent(err error) bool {
	return err == unix.ENOENT || err == unix.EINVAL || err == unix.EOPNOTSUPP || err == unix.ENODEV
}

func (e *perfEvent) open(set EventSet, cpu, pid, leader, flags int) (int, error) {
	attr := unix.PerfEventAttr{
		Type:        eventSets[set].kind,
		Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config:      e.config,
		Read_format: unix.PERF_FORMAT_GROUP | unix.PERF_FORMAT_TOTAL_TIME_ENABLED | unix.PERF_FORMAT_TOTAL_TIME_RUNNING,
	}
	for {
		fd, err := unix.PerfEventOpen(&attr, pid, cpu, leader, flags)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// explain says why the kernel refuses events, and what would help.
func (c *Counter) explain(err error, cpus int) error {
	no := &kernel.NotSupportedError{Feature: c.set.String()}
	switch err {
	case unix.EACCES, unix.EPERM:
		no.Reason = "this process may not count events of others (kernel.perf_event_paranoid is " + paranoid() + ")"
		no.Remedy = "run as root or with CAP_PERFMON"
		if err == unix.EPERM { // a filter's error, and rarely the kernel's
			no.Reason = "the system call perf_event_open is refused: " + err.Error()
			no.Remedy += ", and allow the call: SystemCallFilter=perf_event_open in a systemd unit, the seccomp profile of a container"
		}
	case unix.EMFILE, unix.ENFILE, unix.ENOSPC, unix.ENOMEM:
		no.Reason = fmt.Sprintf("%d CPUs and %d events take too many descriptors or counters: %v", cpus, len(c.events), err)
		no.Remedy = "raise the limit of open files, or look at fewer groups"
	case unix.ENOSYS:
		no.Reason, no.Remedy = "the kernel has no perf events", "boot a kernel with CONFIG_PERF_EVENTS"
	case unix.EBUSY:
		no.Reason, no.Remedy = "another program has the CPU's counters for itself", "end it"
	case unix.ENOENT, unix.EOPNOTSUPP:
		if c.set == HardwareEvents {
			no.Reason, no.Remedy = "the kernel sees no performance counters of the CPU", "run on hardware, or in a virtual machine that is given them (vPMU)"
			break
		}
		no.Reason, no.Remedy = "the group is not in the tree of the perf_event controller", "look at its directory in that tree"
	case unix.EINVAL:
		if !c.group {
			return err
		}
		no.Reason, no.Remedy = "the kernel does not count by group", "boot a kernel with CONFIG_CGROUP_PERF"
	default:
		return err
	}
	return no
}

func paranoid() string {
	text, err := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// Why says why this host does not count a quantity of the set; nil if it does.
func (c *Counter) Why(q watch.Quantity) error {
	for i := range c.events {
		if e := &c.events[i]; e.quantity == q && e.missing != nil {
			return &kernel.NotSupportedError{
				Feature: q.String(), Reason: "the CPU does not count it, or not together with the others: " + e.missing.Error(),
			}
		}
	}
	return nil
}

// Read appends a sample of each quantity that is counted, stamped with now: what
// was counted since Open. Where events took turns on the CPU's counters their
// values are scaled up. If they never had any, there are no samples. For a group
// that vanished the error is watch.ErrGone.
func (c *Counter) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	if c.group {
		if _, _, err := c.alive.Read(c.buf[:]); err != nil { // ENODEV
			return to, fmt.Errorf("read %s of %s: %w", c.set, c.subject, watch.ErrGone)
		}
	}
	var enabled, running uint64
	for i := range c.cpus {
		r, err := c.cpus[i].read(c.buf[:])
		if err != nil {
			return to, fmt.Errorf("read %s of %s: %w", c.set, c.subject, err)
		}
		c.add(&c.cpus[i], &r)
		enabled, running = enabled+r.enabled, running+r.running
	}
	if enabled > 0 && running == 0 {
		return to, nil
	}
	for i := range c.events {
		if e := &c.events[i]; e.missing == nil {
			to = append(to, watch.Sample{Time: now, Subject: c.subject, Quantity: e.quantity, Value: e.value()})
		}
	}
	return to, nil
}

// value is the sum in the unit of the quantity: the CPU clock counts nanoseconds.
func (e *counted) value() float64 {
	if e.quantity == watch.CPUTime {
		return e.sum / 1e9
	}
	return e.sum
}

// read reads the events of one CPU.
func (on *onCPU) read(buf []byte) (perfReading, error) {
	for {
		n, err := unix.Read(on.fds[0], buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return perfReading{}, err
		}
		return parseCounts(buf[:n], len(on.fds))
	}
}

// parseCounts reads what the kernel returns for PERF_FORMAT_GROUP with both times.
func parseCounts(data []byte, events int) (perfReading, error) {
	var r perfReading
	if len(data) != 8*(3+events) || events > len(r.values) {
		return r, fmt.Errorf("%d bytes for %d events", len(data), events)
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(data[8*i:]) }
	if word(0) != uint64(events) {
		return r, fmt.Errorf("%d events, want %d", word(0), events)
	}
	r.enabled, r.running = word(1), word(2)
	for i := range events {
		r.values[i] = word(3 + i)
	}
	return r, nil
}

// add adds what a CPU counted since its last reading. While the events had no
// counters, their values wait for the next time that they do.
func (c *Counter) add(on *onCPU, r *perfReading) {
	running := r.running - on.before.running
	if r.running <= on.before.running || r.enabled < on.before.enabled {
		return
	}
	scale := max(float64(r.enabled-on.before.enabled)/float64(running), 1)
	next := 0
	for i := range c.events {
		if c.events[i].missing != nil {
			continue
		}
		if r.values[next] > on.before.values[next] {
			c.events[i].sum += scale * float64(r.values[next]-on.before.values[next])
		}
		next++
	}
	on.before = *r
}

// Close ends counting.
func (c *Counter) Close() error {
	var errs []error
	for _, on := range c.cpus {
		for _, fd := range on.fds {
			errs = append(errs, unix.Close(fd))
		}
	}
	c.cpus = nil
	if c.group {
		errs = append(errs, c.alive.Close())
		c.group = false
	}
	return errors.Join(errs...)
}
