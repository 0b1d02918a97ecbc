package sysfs

import (
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// cpuFacts are the values of the files below cpuN.
type cpuFacts struct {
	cpu     machine.CPU
	domains map[machine.Kind]machine.Domain // as this CPU shows them, ID unset
}

// cpus reads the online CPUs, by rising number. Reading /sys costs some
// microseconds a file, and there are about 30 files a CPU, so the CPUs are
// shared out among a few goroutines.
func (r *reader) cpus(online cpuset.Set) ([]cpuFacts, error) {
	ids := online.Slice()
	facts := make([]cpuFacts, len(ids))
	errs := make([]error, len(ids))
	workers := min(runtime.GOMAXPROCS(0), 8)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(ids); i += workers {
				facts[i], errs[i] = r.cpu(ids[i], online)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return facts, nil
}

func (r *reader) cpu(id int, online cpuset.Set) (cpuFacts, error) {
	dir := cpuDir + "/cpu" + strconv.Itoa(id)
	f := cpuFacts{cpu: machine.CPU{ID: id}, domains: map[machine.Kind]machine.Domain{}}
	for _, t := range topologyFiles() {
		if err := r.topology(&f, dir+"/topology/", t, online); err != nil {
			return f, err
		}
	}
	indexes, err := r.numbered(dir+"/cache", "index")
	if err != nil {
		return f, err
	}
	for _, i := range indexes {
		if err := r.cache(&f, dir+"/cache/index"+strconv.Itoa(i)+"/", online); err != nil {
			return f, err
		}
	}
	return f, r.speed(&f.cpu, dir)
}

// topologyFile names the files of one kind below topology/: the list, its name
// in older kernels, the number.
type topologyFile struct {
	kind          machine.Kind
	list, old, id string
}

func topologyFiles() []topologyFile {
	return []topologyFile{
		{machine.Socket, "package_cpus", "core_siblings", "physical_package_id"},
		{machine.Die, "die_cpus", "", "die_id"}, // Linux 5.2
		{machine.Core, "core_cpus", "thread_siblings", "core_id"},
	}
}

func (r *reader) topology(f *cpuFacts, dir string, t topologyFile, online cpuset.Set) error {
	name := dir + t.list + "_list"
	set, ok, err := r.list(name)
	if err == nil && !ok && t.old != "" {
		name = dir + t.old + "_list"
		set, ok, err = r.list(name)
	}
	if err != nil || !ok {
		return err
	}
	d := machine.Domain{Kind: t.kind, CPUs: set.Intersect(online)}
	if err := f.holds(name, set); err != nil {
		return err
	}
	if d.KernelID, err = r.kernelID(dir + t.id); err != nil {
		return err
	}
	f.domains[t.kind] = d
	return nil
}

// holds checks that a list has the CPU that shows it.
func (f *cpuFacts) holds(name string, set cpuset.Set) error {
	if set.Has(f.cpu.ID) {
		return nil
	}
	return in(name, fmt.Errorf("list %q lacks CPU %d itself", set, f.cpu.ID))
}

func (r *reader) kernelID(name string) (int, error) {
	id, ok, err := r.number(name)
	if err != nil || !ok {
		return unknown, err
	}
	if id < unknown {
		return unknown, in(name, fmt.Errorf("%d is no id", id))
	}
	return int(id), nil
}

// cache reads one cache/indexN. Only L2 and L3 that hold data make a domain.
func (r *reader) cache(f *cpuFacts, dir string, online cpuset.Set) error {
	kind, ok, err := r.cacheKind(dir)
	if err != nil || !ok {
		return err
	}
	set, ok, err := r.list(dir + "shared_cpu_list")
	if err != nil {
		return err
	}
	if !ok {
		return in(dir+"shared_cpu_list", fs.ErrNotExist)
	}
	if err := f.holds(dir+"shared_cpu_list", set); err != nil {
		return err
	}
	d := machine.Domain{Kind: kind, CPUs: set.Intersect(online)}
	if d.Bytes, err = r.cacheSize(dir + "size"); err != nil {
		return err
	}
	if d.KernelID, err = r.kernelID(dir + "id"); err != nil {
		return err
	}
	if old, twice := f.domains[kind]; twice && old.CPUs != d.CPUs {
		return in(dir+"shared_cpu_list", fmt.Errorf("CPU %d has another %s too, shared by %s", f.cpu.ID, kind, old.CPUs))
	}
	f.domains[kind] = d
	return nil
}

func (r *reader) cacheKind(dir string) (kind machine.Kind, ok bool, err error) {
	level, ok, err := r.number(dir + "level")
	switch {
	case err != nil:
		return 0, false, err
	case !ok:
		return 0, false, in(dir+"level", fs.ErrNotExist)
	case level == 3:
		kind = machine.L3
	case level == 2:
		kind = machine.L2
	default:
		return 0, false, nil
	}
	class, _, err := r.text(dir + "type")
	return kind, class != "Instruction", err
}

// cacheSize reads a size such as "2048K"; 0 without the file.
func (r *reader) cacheSize(name string) (int64, error) {
	text, ok, err := r.text(name)
	if err != nil || !ok {
		return 0, err
	}
	digits, ok := strings.CutSuffix(text, "K")
	if !ok {
		return 0, in(name, fmt.Errorf("size %q is not in K", text))
	}
	return kib(name, digits)
}

// speed reads capacity and frequencies.
func (r *reader) speed(c *machine.CPU, dir string) error {
	for _, f := range []struct {
		name  string
		to    *int
		scale int64
	}{
		{"/cpu_capacity", &c.Capacity, 1},
		{"/acpi_cppc/nominal_freq", &c.BaseKHz, 1000}, // MHz; AMD has no base_frequency
		{"/cpufreq/base_frequency", &c.BaseKHz, 1},
		{"/cpufreq/cpuinfo_max_freq", &c.MaxKHz, 1},
	} {
		n, ok, err := r.number(dir + f.name)
		switch {
		case err != nil:
			return err
		case !ok:
		case n < 0 || n > 1<<40:
			return in(dir+f.name, fmt.Errorf("%d is out of range", n))
		default:
			*f.to = int(n * f.scale)
		}
	}
	return nil
}
