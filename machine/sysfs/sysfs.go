// Package sysfs turns descriptions of hardware into a machine.Machine.
//
// Read reads /sys (and the model name from /proc) through any fs.FS that is
// rooted at a host's "/": the live host, a directory, an archive. Lscpu reads
// the table of lscpu -p, Load any of these and the short form by its look.
//
// Domains come from the kernel's own sibling lists: CPUs that show the same
// list share a domain. A malformed file is an error that names it; well-formed
// lists that contradict each other are handed on as they are, for
// Machine.Validate to report.
package sysfs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

const (
	cpuDir    = "sys/devices/system/cpu"
	nodeDir   = "sys/devices/system/node"
	hostname  = "proc/sys/kernel/hostname"
	modelFile = "proc/cpuinfo"
)

// unknown is a domain's KernelID if the kernel shows none.
const unknown = -1

// Live reads the machine under root, a directory that stands for "/".
func Live(root string) (*machine.Machine, error) { return Read(os.DirFS(root)) }

// Read reads the machine under fsys, which is rooted at "/". Only
// sys/devices/system/cpu/online must be there; the values of other files are
// unknown without them.
func Read(fsys fs.FS) (*machine.Machine, error) {
	r := &reader{fsys: fsys}
	m := r.machine()
	if r.err != nil {
		return nil, fmt.Errorf("read machine: %w", r.err)
	}
	return m, nil
}

// Allowed returns the CPUs that the calling process may run on
// (Cpus_allowed_list in proc/self/status).
func Allowed(fsys fs.FS) (cpuset.Set, error) {
	const name = "proc/self/status"
	data, err := fs.ReadFile(fsys, name)
	if err != nil {
		return cpuset.Set{}, err
	}
	for line := range strings.Lines(string(data)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			set, err := cpuset.Parse(list)
			return set, in(name, err)
		}
	}
	return cpuset.Set{}, in(name, errors.New("no Cpus_allowed_list"))
}

// in names the file that err is about.
func in(file string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", file, err)
}

func (r *reader) machine() *machine.Machine {
	m := &machine.Machine{}
	r.header(m)
	facts := r.cpus(m.Online)
	r.coreKinds(m.Online, facts)
	for i := range facts {
		m.CPUs = append(m.CPUs, facts[i].cpu)
	}
	var nodes []machine.Domain
	nodes, m.Distances = r.nodes(m.Online)
	for _, k := range machine.Kinds() {
		if k == machine.Node {
			m.Domains = append(m.Domains, nodes...)
			continue
		}
		m.Domains = append(m.Domains, collect(k, facts)...)
	}
	return m
}

// header reads the values of the machine as a whole.
func (r *reader) header(m *machine.Machine) {
	m.Online = r.mustList(cpuDir + "/online")
	if m.Online.IsEmpty() {
		r.fail(cpuDir+"/online", errors.New("no CPU is online"))
	}
	present, _ := r.list(cpuDir + "/present")
	m.Offline = present.Minus(m.Online)
	// isolated shows isolcpus= as booted, CPUs that were never there included.
	isolated, _ := r.list(cpuDir + "/isolated")
	m.Isolated = isolated.Intersect(m.Online.Union(present))
	m.SMT, _ = r.text(cpuDir + "/smt/control")
	m.Name, _ = r.text(hostname)
	m.Model = r.model()
}

// model returns the "model name" of proc/cpuinfo ("cpu" on POWER), "" where
// it has no such line (most arm64 kernels).
func (r *reader) model() string {
	data, _ := r.data(modelFile)
	for line := range strings.Lines(data) {
		key, value, _ := strings.Cut(line, ":")
		if key = strings.TrimSpace(key); key == "model name" || key == "cpu" {
			return r.oneLine(modelFile, value)
		}
	}
	return ""
}

// coreKinds marks the CPUs of hybrid x86 machines by the list that each core
// kind's performance-monitoring unit shows.
func (r *reader) coreKinds(online cpuset.Set, facts []cpuFacts) {
	var seen cpuset.Set
	for _, k := range []struct{ file, kind string }{
		{"sys/devices/cpu_core/cpus", machine.KindP},
		{"sys/devices/cpu_atom/cpus", machine.KindE},
		{"sys/devices/cpu_lowpower/cpus", machine.KindLP},
	} {
		set, _ := r.list(k.file)
		set = set.Intersect(online)
		if twice := set.Intersect(seen); !twice.IsEmpty() {
			r.fail(k.file, fmt.Errorf("CPUs %s are of another core kind too", twice))
		}
		seen = seen.Union(set)
		for i := range facts {
			if set.Has(facts[i].cpu.ID) {
				facts[i].cpu.Kind = k.kind
			}
		}
	}
}

// nodes reads the NUMA nodes and their distances; none without NUMA.
func (r *reader) nodes(online cpuset.Set) (nodes []machine.Domain, distances [][]int) {
	ids := r.numbered(nodeDir, "node")
	for _, id := range ids {
		dir := nodeDir + "/node" + strconv.Itoa(id)
		if id >= cpuset.Limit {
			r.fail(dir, cpuset.ErrRange)
		}
		nodes = append(nodes, machine.Domain{
			Kind: machine.Node, ID: id, CPUs: r.mustList(dir + "/cpulist").Intersect(online),
			Bytes: r.memTotal(dir+"/meminfo", id), KernelID: id,
		})
		if row := r.distances(dir+"/distance", len(ids)); row != nil {
			distances = append(distances, row)
		}
	}
	if len(distances) > 0 && len(distances) != len(nodes) {
		r.fail(nodeDir, errors.New("some nodes have no distance file"))
	}
	return nodes, distances
}

// collect groups CPUs that show the same list into domains of kind k.
func collect(k machine.Kind, facts []cpuFacts) []machine.Domain {
	var domains []machine.Domain
	known := map[cpuset.Set]bool{}
	for i := range facts {
		d, ok := facts[i].domains[k]
		if !ok || known[d.CPUs] {
			continue
		}
		known[d.CPUs] = true
		domains = append(domains, d)
	}
	number(domains)
	return domains
}

// number orders domains by their lowest CPU (contradicting ones by size, then
// list) and numbers them; NUMA nodes are ordered by the number they have.
func number(domains []machine.Domain) {
	slices.SortFunc(domains, func(a, b machine.Domain) int {
		if a.Kind == machine.Node {
			return cmp.Compare(a.ID, b.ID)
		}
		firstA, _ := a.CPUs.First()
		firstB, _ := b.CPUs.First()
		return cmp.Or(cmp.Compare(firstA, firstB), cmp.Compare(a.CPUs.Len(), b.CPUs.Len()),
			cmp.Compare(a.CPUs.String(), b.CPUs.String()))
	})
	for i := range domains {
		if domains[i].Kind != machine.Node {
			domains[i].ID = i
		}
	}
}
