package sysfs

import (
	"cmp"
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
func (r *reader) cpus(online cpuset.Set) []cpuFacts {
	ids := online.Slice()
	facts := make([]cpuFacts, len(ids))
	errs := make([]error, len(ids))
	workers := min(runtime.GOMAXPROCS(0), 8)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(ids); i += workers {
				one := reader{fsys: r.fsys, err: r.err}
				facts[i] = one.cpu(ids[i], online)
				errs[i] = one.err
			}
		})
	}
	wg.Wait()
	r.err = cmp.Or(r.err, cmp.Or(errs...))
	return facts
}

func (r *reader) cpu(id int, online cpuset.Set) cpuFacts {
	dir := cpuDir + "/cpu" + strconv.Itoa(id)
	f := cpuFacts{cpu: machine.CPU{ID: id}, domains: map[machine.Kind]machine.Domain{}}
	for _, t := range []topologyFile{
		{machine.Socket, "package_cpus", "core_siblings", "physical_package_id"},
		{machine.Die, "die_cpus", "", "die_id"}, // Linux 5.2
		{machine.Core, "core_cpus", "thread_siblings", "core_id"},
	} {
		r.topology(&f, dir+"/topology/", t, online)
	}
	for _, i := range r.numbered(dir+"/cache", "index") {
		r.cache(&f, dir+"/cache/index"+strconv.Itoa(i)+"/", online)
	}
	r.speed(&f.cpu, dir)
	return f
}

// topologyFile names the files of one kind below topology/: the list, its name
// in older kernels, the number.
type topologyFile struct {
	kind          machine.Kind
	list, old, id string
}

func (r *reader) topology(f *cpuFacts, dir string, t topologyFile, online cpuset.Set) {
	name := dir + t.list + "_list"
	set, ok := r.list(name)
	if !ok && t.old != "" {
		name = dir + t.old + "_list"
		set, ok = r.list(name)
	}
	if ok {
		r.mustHold(name, set, f.cpu.ID)
		f.domains[t.kind] = machine.Domain{Kind: t.kind, CPUs: set.Intersect(online), KernelID: r.kernelID(dir + t.id)}
	}
}

// mustHold checks that a list has the CPU that shows it.
func (r *reader) mustHold(name string, set cpuset.Set, cpu int) {
	if !set.Has(cpu) {
		r.fail(name, fmt.Errorf("list %q lacks CPU %d itself", set, cpu))
	}
}

func (r *reader) kernelID(name string) int {
	id, ok := r.number(name)
	if !ok {
		return unknown
	}
	if id < unknown {
		r.fail(name, fmt.Errorf("%d is no id", id))
	}
	return int(id)
}

// cache reads one cache/indexN. Only L2 and L3 that hold data make a domain.
func (r *reader) cache(f *cpuFacts, dir string, online cpuset.Set) {
	kind, ok := r.cacheKind(dir)
	if !ok {
		return
	}
	name := dir + "shared_cpu_list"
	set := r.mustList(name)
	r.mustHold(name, set, f.cpu.ID)
	d := machine.Domain{Kind: kind, CPUs: set.Intersect(online), Bytes: r.cacheSize(dir + "size"), KernelID: r.kernelID(dir + "id")}
	if old, twice := f.domains[kind]; twice && old.CPUs != d.CPUs {
		r.fail(name, fmt.Errorf("CPU %d has another %s too, shared by %s", f.cpu.ID, kind, old.CPUs))
	}
	f.domains[kind] = d
}

func (r *reader) cacheKind(dir string) (kind machine.Kind, ok bool) {
	level, ok := r.number(dir + "level")
	switch {
	case !ok:
		r.fail(dir+"level", fs.ErrNotExist)
		return 0, false
	case level == 3:
		kind = machine.L3
	case level == 2:
		kind = machine.L2
	default:
		return 0, false
	}
	class, _ := r.text(dir + "type")
	return kind, class != "Instruction"
}

// cacheSize reads a size such as "2048K"; 0 without the file.
func (r *reader) cacheSize(name string) int64 {
	text, ok := r.text(name)
	if !ok {
		return 0
	}
	digits, ok := strings.CutSuffix(text, "K")
	if !ok {
		r.fail(name, fmt.Errorf("size %q is not in K", text))
	}
	return r.kib(name, digits)
}

// speed reads capacity and frequencies.
func (r *reader) speed(c *machine.CPU, dir string) {
	for _, f := range []struct {
		name  string
		to    *int
		scale int64
		read  func(name string) (int64, bool)
	}{
		{"/cpu_capacity", &c.Capacity, 1, r.number},
		{"/cpufreq/base_frequency", &c.BaseKHz, 1, r.number},
		{"/acpi_cppc/nominal_freq", &c.BaseKHz, 1000, r.told}, // MHz; AMD has no base_frequency
		{"/cpufreq/cpuinfo_max_freq", &c.MaxKHz, 1, r.number},
	} {
		if *f.to != 0 {
			continue // base_frequency says it
		}
		n, ok := f.read(dir + f.name)
		if n < 0 || n > 1<<40 {
			r.fail(dir+f.name, fmt.Errorf("%d is out of range", n))
		}
		if ok {
			*f.to = int(n * f.scale)
		}
	}
}
