package fakekernel

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing/fstest"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// The directories that tell a machine's CPUs and NUMA nodes.
const (
	cpuDir  = "sys/devices/system/cpu"
	nodeDir = "sys/devices/system/node"
)

// Sysfs returns the files below sys/ and proc/ that tell m, with lists and
// hexadecimal masks as current kernels show them. Reading them gives m again.
// os.CopyFS puts them on disk. A machine that Validate finds fault with is an
// error: one list per CPU and kind cannot tell it.
func Sysfs(m *machine.Machine) (fstest.MapFS, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("write machine %q: %w", m.Name, err)
	}
	w := &sysfs{m: m, files: fstest.MapFS{}}
	w.header()
	for _, c := range m.CPUs {
		w.cpu(c)
	}
	w.nodes()
	return w.files, nil
}

type sysfs struct {
	m     *machine.Machine
	files fstest.MapFS
}

func (w *sysfs) put(name string, value any) {
	w.files[name] = &fstest.MapFile{Data: []byte(fmt.Sprintln(value)), Mode: 0o444}
}

// lists writes a set in both forms: name_list and name.
func (w *sysfs) lists(name string, s cpuset.Set) {
	w.put(name+"_list", s)
	w.put(name, w.mask(s))
}

// mask writes groups of 32 bits, highest first, as wide as the machine.
func (w *sysfs) mask(s cpuset.Set) string {
	last, _ := w.m.Online.Union(w.m.Offline).Last()
	groups := make([]uint32, last/32+1)
	for id := range s.All() {
		groups[id/32] |= 1 << (id % 32)
	}
	var b strings.Builder
	for i, g := range slices.Backward(groups) {
		fmt.Fprintf(&b, "%08x", g)
		if i > 0 {
			b.WriteByte(',')
		}
	}
	return b.String()
}

func (w *sysfs) header() {
	m := w.m
	present := m.Online.Union(m.Offline)
	last, _ := present.Last()
	w.put(cpuDir+"/online", m.Online)
	w.put(cpuDir+"/offline", m.Offline)
	w.put(cpuDir+"/present", present)
	w.put(cpuDir+"/possible", present)
	w.put(cpuDir+"/isolated", m.Isolated)
	w.put(cpuDir+"/kernel_max", last)
	if m.SMT != "" {
		w.put(cpuDir+"/smt/control", m.SMT)
	}
	if m.Name != "" {
		w.put("proc/sys/kernel/hostname", m.Name)
	}
	if m.Model != "" {
		var b strings.Builder
		for _, c := range m.CPUs {
			fmt.Fprintf(&b, "processor\t: %d\nmodel name\t: %s\n\n", c.ID, m.Model)
		}
		w.put("proc/cpuinfo", b.String())
	}
	for _, k := range []struct{ pmu, kind string }{{"core", machine.KindP}, {"atom", machine.KindE}, {"lowpower", machine.KindLP}} {
		var set cpuset.Set
		for _, c := range m.CPUs {
			if c.Kind == k.kind {
				set, _ = set.With(c.ID)
			}
		}
		if !set.IsEmpty() {
			w.put("sys/devices/cpu_"+k.pmu+"/cpus", set)
		}
	}
}

func (w *sysfs) cpu(c machine.CPU) {
	dir := cpuDir + "/cpu" + strconv.Itoa(c.ID)
	for _, t := range []struct {
		kind          machine.Kind
		list, old, id string // old is the list's name in kernels before 5.2
	}{
		{machine.Socket, "package_cpus", "core_siblings", "physical_package_id"},
		{machine.Die, "die_cpus", "", "die_id"},
		{machine.Core, "core_cpus", "thread_siblings", "core_id"},
	} {
		d, ok := w.m.Of(t.kind, c.ID)
		if !ok {
			continue
		}
		w.lists(dir+"/topology/"+t.list, d.CPUs)
		if t.old != "" {
			w.lists(dir+"/topology/"+t.old, d.CPUs)
		}
		w.put(dir+"/topology/"+t.id, d.KernelID)
	}
	for _, cache := range []struct {
		kind  machine.Kind
		level int
	}{{machine.L2, 2}, {machine.L3, 3}} {
		if d, ok := w.m.Of(cache.kind, c.ID); ok {
			w.cache(fmt.Sprintf("%s/cache/index%d", dir, cache.level), cache.level, d)
		}
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"/cpu_capacity", c.Capacity},
		{"/cpufreq/base_frequency", c.BaseKHz},
		{"/cpufreq/cpuinfo_max_freq", c.MaxKHz},
	} {
		if f.value != 0 {
			w.put(dir+f.name, f.value)
		}
	}
}

func (w *sysfs) cache(dir string, level int, d machine.Domain) {
	w.put(dir+"/level", level)
	w.put(dir+"/type", "Unified")
	w.put(dir+"/shared_cpu_list", d.CPUs)
	w.put(dir+"/shared_cpu_map", w.mask(d.CPUs))
	if d.Bytes != 0 {
		w.put(dir+"/size", fmt.Sprintf("%dK", d.Bytes/1024))
	}
	if d.KernelID >= 0 {
		w.put(dir+"/id", d.KernelID)
	}
}

func (w *sysfs) nodes() {
	var all, withCPU, withMemory cpuset.Set
	for i, d := range w.m.ByKind(machine.Node) {
		all, _ = all.With(d.ID)
		dir := nodeDir + "/node" + strconv.Itoa(d.ID)
		w.put(dir+"/cpulist", d.CPUs)
		w.put(dir+"/cpumap", w.mask(d.CPUs))
		if !d.CPUs.IsEmpty() {
			withCPU, _ = withCPU.With(d.ID)
		}
		if d.Bytes != 0 {
			withMemory, _ = withMemory.With(d.ID)
			w.put(dir+"/meminfo", fmt.Sprintf("Node %d MemTotal:       %d kB", d.ID, d.Bytes/1024))
		}
		if w.m.Distances != nil {
			row := fmt.Sprint(w.m.Distances[i])
			w.put(dir+"/distance", strings.Trim(row, "[]"))
		}
	}
	if all.IsEmpty() {
		return
	}
	w.put(nodeDir+"/online", all)
	w.put(nodeDir+"/possible", all)
	w.put(nodeDir+"/has_cpu", withCPU)
	w.put(nodeDir+"/has_memory", withMemory)
}
