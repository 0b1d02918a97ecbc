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
	m, err := r.machine()
	if err != nil {
		return nil, fmt.Errorf("read machine: %w", err)
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

func (r *reader) machine() (*machine.Machine, error) {
	m := &machine.Machine{}
	if err := r.header(m); err != nil {
		return nil, err
	}
	facts, err := r.cpus(m.Online)
	if err != nil {
		return nil, err
	}
	if err := r.coreKinds(m.Online, facts); err != nil {
		return nil, err
	}
	for i := range facts {
		m.CPUs = append(m.CPUs, facts[i].cpu)
	}
	nodes, distances, err := r.nodes(m.Online)
	if err != nil {
		return nil, err
	}
	m.Distances = distances
	for _, k := range machine.Kinds() {
		if k == machine.Node {
			m.Domains = append(m.Domains, nodes...)
			continue
		}
		m.Domains = append(m.Domains, collect(k, facts)...)
	}
	return m, nil
}

// header reads the values of the machine as a whole.
func (r *reader) header(m *machine.Machine) error {
	online, ok, err := r.list(cpuDir + "/online")
	switch {
	case err != nil:
		return err
	case !ok:
		return in(cpuDir+"/online", fs.ErrNotExist)
	case online.IsEmpty():
		return in(cpuDir+"/online", errors.New("no CPU is online"))
	}
	m.Online = online
	present, ok, err := r.list(cpuDir + "/present")
	if err != nil {
		return err
	}
	if ok {
		m.Offline = present.Minus(online)
	}
	// isolated shows isolcpus= as booted, CPUs that were never there included.
	isolated, _, err := r.list(cpuDir + "/isolated")
	if err != nil {
		return err
	}
	m.Isolated = isolated.Intersect(online.Union(present))
	if m.SMT, _, err = r.text(cpuDir + "/smt/control"); err != nil {
		return err
	}
	if m.Name, _, err = r.text(hostname); err != nil {
		return err
	}
	m.Model, err = r.model()
	return err
}

// model returns the "model name" of proc/cpuinfo ("cpu" on POWER), "" where
// it has no such line (most arm64 kernels).
func (r *reader) model() (string, error) {
	data, ok, err := r.data(modelFile)
	if err != nil || !ok {
		return "", err
	}
	for line := range strings.Lines(data) {
		key, value, _ := strings.Cut(line, ":")
		if key = strings.TrimSpace(key); key == "model name" || key == "cpu" {
			return oneLine(modelFile, value)
		}
	}
	return "", nil
}

// coreKinds marks the CPUs of hybrid x86 machines by the list that each core
// kind's performance-monitoring unit shows.
func (r *reader) coreKinds(online cpuset.Set, facts []cpuFacts) error {
	var seen cpuset.Set
	for _, k := range hybridFiles() {
		set, _, err := r.list(k.file)
		if err != nil {
			return err
		}
		set = set.Intersect(online)
		if twice := set.Intersect(seen); !twice.IsEmpty() {
			return in(k.file, fmt.Errorf("CPUs %s are of another core kind too", twice))
		}
		seen = seen.Union(set)
		for i := range facts {
			if set.Has(facts[i].cpu.ID) {
				facts[i].cpu.Kind = k.kind
			}
		}
	}
	return nil
}

type hybridFile struct{ file, kind string }

func hybridFiles() []hybridFile {
	return []hybridFile{
		{"sys/devices/cpu_core/cpus", machine.KindP},
		{"sys/devices/cpu_atom/cpus", machine.KindE},
		{"sys/devices/cpu_lowpower/cpus", machine.KindLP},
	}
}

// nodes reads the NUMA nodes and their distances; none without NUMA.
func (r *reader) nodes(online cpuset.Set) ([]machine.Domain, [][]int, error) {
	ids, err := r.numbered(nodeDir, "node")
	if err != nil {
		return nil, nil, err
	}
	var nodes []machine.Domain
	var distances [][]int
	for _, id := range ids {
		dir := nodeDir + "/node" + strconv.Itoa(id)
		if id >= cpuset.Limit {
			return nil, nil, in(dir, cpuset.ErrRange)
		}
		cpus, ok, err := r.list(dir + "/cpulist")
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			return nil, nil, in(dir+"/cpulist", fs.ErrNotExist)
		}
		bytes, err := r.memTotal(dir+"/meminfo", id)
		if err != nil {
			return nil, nil, err
		}
		row, ok, err := r.distances(dir+"/distance", len(ids))
		if err != nil {
			return nil, nil, err
		}
		if ok {
			distances = append(distances, row)
		}
		nodes = append(nodes, machine.Domain{
			Kind: machine.Node, ID: id, CPUs: cpus.Intersect(online), Bytes: bytes, KernelID: id,
		})
	}
	if len(distances) > 0 && len(distances) != len(nodes) {
		return nil, nil, in(nodeDir, errors.New("some nodes have no distance file"))
	}
	return nodes, distances, nil
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
