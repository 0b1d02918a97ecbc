// Package fakespeed simulates, for tests, Intel Speed Select of a host: priorities of cores
// (SST-CP) and turbo by priority (SST-TF), as
// Documentation/admin-guide/pm/intel-speed-select.rst and the drivers below
// drivers/platform/x86/intel/speed_select_if have them.
package fakespeed

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/power"
)

// Device is a power.SpeedCalls. It refuses what the driver and the document refuse.
type Device struct {
	mu       sync.Mutex
	tree     fs.FS
	threads  int
	packages []power.SpeedPackage
	lag      map[*string]*lagging

	// Mailbox has the rules of the older interface: what is off has no kind of priorities.
	Mailbox bool
	// Locked refuses every change, as the firmware has it (write_blocked in isst_tpmi_core.c).
	Locked bool
	// Err is the error of everything; nil if there is a device that answers.
	Err error
	// Lag is how many readings show the state before a switch was changed: the firmware takes its time
	// (isst_if_set_perf_level in isst_tpmi_core.c).
	Lag int
	// Writes counts what was changed.
	Writes int
}

type lagging struct {
	was  string
	left int
}

// New returns a device of packages of CPUs, as many each, in cores of so many threads with
// neighbouring numbers. tree has the file of the CPUs that are online. Turbo has a clock for up to
// two cores of each package.
func New(tree fs.FS, cpus, packages, threads int) *Device {
	d := &Device{tree: tree, threads: threads, lag: map[*string]*lagging{}}
	for id := range packages {
		p := power.SpeedPackage{ID: id, CorePower: "0", Order: "proportional", Turbo: "0", Priority: map[int]int{}}
		for cpu := id * cpus / packages; cpu < (id+1)*cpus/packages; cpu++ {
			p.Priority[cpu] = 0
		}
		for i := range p.Most {
			p.Most[i] = 25_500_000 // the default, which is no limit
		}
		p.Domains = []power.SpeedDomain{{HighCores: 2}}
		d.packages = append(d.packages, p)
	}
	return d
}

// Package returns a package to look at, or to change as another program does.
func (d *Device) Package(id int) *power.SpeedPackage { return &d.packages[id] }

// State is all that can be set, by name.
func (d *Device) State() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	state := map[string]string{}
	for _, p := range d.packages {
		state[fmt.Sprint("package ", p.ID)] = p.CorePower + " " + p.Order + " " + p.Turbo
		for cpu, priority := range p.Priority {
			state[fmt.Sprint("CPU ", cpu)] = fmt.Sprint(priority)
		}
	}
	return state
}

func (d *Device) online() cpuset.Set {
	text, err := fs.ReadFile(d.tree, "sys/devices/system/cpu/online")
	if err != nil {
		panic(err)
	}
	return cpuset.MustParse(string(text))
}

// Packages implements power.SpeedCalls.
func (d *Device) Packages() (all []power.SpeedPackage, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Err != nil {
		return nil, d.Err
	}
	online := d.online()
	for i := range d.packages {
		now := &d.packages[i]
		p := *now
		for to, of := range map[*string]*string{&p.CorePower: &now.CorePower, &p.Order: &now.Order, &p.Turbo: &now.Turbo} {
			if l := d.lag[of]; l != nil && l.left > 0 {
				l.left--
				*to = l.was
			}
		}
		p.Priority = maps.Clone(p.Priority)
		maps.DeleteFunc(p.Priority, func(cpu, _ int) bool { return !online.Has(cpu) })
		var cpus cpuset.Set
		for cpu := range p.Priority {
			cpus = cpus.Union(cpuset.MustOf(cpu))
		}
		if cpus.IsEmpty() {
			continue // the library finds packages by their online CPUs
		}
		p.Domains = append([]power.SpeedDomain(nil), p.Domains...)
		for j := range p.Domains {
			p.Domains[j].CPUs = cpus
		}
		all = append(all, p)
	}
	return all, nil
}

// of returns the package of a CPU that is online.
func (d *Device) of(cpu int) (*power.SpeedPackage, error) {
	if d.Err != nil {
		return nil, d.Err
	}
	for i := range d.packages {
		p := &d.packages[i]
		switch _, ok := p.Priority[cpu]; {
		case ok && !d.online().Has(cpu):
			return nil, fmt.Errorf("CPU %d is offline: %w", cpu, syscall.EBUSY)
		case ok && p.CorePower == "":
			return nil, fs.ErrNotExist
		case ok:
			return p, nil
		}
	}
	return nil, syscall.EINVAL
}

// Priority implements power.SpeedCalls.
func (d *Device) Priority(cpu int) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.of(cpu)
	if err != nil {
		return 0, err
	}
	return p.Priority[cpu], nil
}

// SetPriority implements power.SpeedCalls: the granularity is the core (intel-speed-select.rst,
// Associating a CPU with a CLOS group).
func (d *Device) SetPriority(cpu, priority int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.of(cpu)
	switch {
	case err != nil:
		return err
	case priority < 0 || priority > 3:
		return syscall.EINVAL
	case d.Locked:
		return syscall.EPERM
	}
	for other := cpu / d.threads * d.threads; other < (cpu/d.threads+1)*d.threads; other++ {
		p.Priority[other] = priority
	}
	d.Writes++
	return nil
}

// change sets a switch of a package.
func (d *Device) change(id int, set func(p *power.SpeedPackage) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.Err != nil:
		return d.Err
	case id < 0 || id >= len(d.packages):
		return fs.ErrNotExist
	case d.Locked:
		return syscall.EPERM
	}
	online := d.online()
	if !slices.ContainsFunc(slices.Collect(maps.Keys(d.packages[id].Priority)), online.Has) {
		return syscall.EBUSY
	}
	d.Writes++
	return set(&d.packages[id])
}

func (d *Device) to(s *string, text string) {
	if *s != text {
		d.lag[s] = &lagging{*s, d.Lag}
	}
	*s = text
}

// SetCorePower implements power.SpeedCalls: priorities cannot be switched off below turbo
// (intel-speed-select.rst, Disable CLOS based prioritization).
func (d *Device) SetCorePower(pkg int, on bool) error {
	return d.change(pkg, func(p *power.SpeedPackage) error {
		switch {
		case p.CorePower == "":
			return fs.ErrNotExist
		case !on && p.Turbo == "1":
			return fmt.Errorf("turbo of package %d is on: %w", pkg, syscall.EBUSY)
		case on:
			d.to(&p.CorePower, "1")
			return nil
		}
		d.to(&p.CorePower, "0")
		if d.Mailbox {
			p.Order = "proportional"
		}
		return nil
	})
}

// SetOrder implements power.SpeedCalls. By the mailbox it is one command with the switch, which takes it
// only if that is on.
func (d *Device) SetOrder(pkg int, ordered bool) error {
	return d.change(pkg, func(p *power.SpeedPackage) error {
		switch {
		case p.CorePower == "":
			return fs.ErrNotExist
		case d.Mailbox && p.CorePower == "0":
		case ordered:
			d.to(&p.Order, "ordered")
		default:
			d.to(&p.Order, "proportional")
		}
		return nil
	})
}

// SetTurbo implements power.SpeedCalls: it takes priorities that count (intel-speed-select.rst). Where
// the performance level has none the command changes nothing.
func (d *Device) SetTurbo(pkg int, on bool) error {
	return d.change(pkg, func(p *power.SpeedPackage) error {
		switch {
		case p.Turbo == "":
		case on && p.CorePower != "1":
			return fmt.Errorf("priorities of package %d do not count: %w", pkg, syscall.EINVAL)
		case on:
			d.to(&p.Turbo, "1")
		default:
			d.to(&p.Turbo, "0")
		}
		return nil
	})
}

var _ power.SpeedCalls = (*Device)(nil)
