package beside

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch/proc"
)

// NUMA asks what memory on another node costs.
func NUMA() *Experiment { return numa.make() }

const (
	local  = "local"
	split  = "split"
	remote = "remote"
)

var numa = newNUMA()

func newNUMA() *design {
	return &design{
		name: "numa", schema: "berth.dev/lab-numa/v1",
		spec: func() Spec {
			e := usual()
			e.Blocks, e.For, e.Demand, e.WorkingSetBytes = 30, lab.Duration(4*time.Minute), 0.2, 256<<20
			return e
		},
		cells: []cell{
			{name: local, means: "CPUs and memory of one node", fresh: true, stand: onNodes(func(n numaPlaces) (cpuset.Set, cpuset.Set) { return n.cpus, n.own })},
			{name: split, means: "as many CPUs, of two nodes, with the memory of both", fresh: true, stand: onNodes(func(n numaPlaces) (cpuset.Set, cpuset.Set) { return n.split, n.own.Union(n.other) })},
			{name: remote, means: "CPUs of one node, memory of the other", fresh: true, stand: onNodes(func(n numaPlaces) (cpuset.Set, cpuset.Set) { return n.cpus, n.other })},
		},
		versus:  []stats.Versus{{Cell: remote, Against: split}},
		figures: []stats.Figure{lab.P50, lab.P99, lab.CPUPerRequest},
		words:   numaWords,
		tables:  func(v *view) []report.Block { return []report.Block{v.residency()} },
		lacks: func(m *machine.Machine) error {
			_, err := numaPlacesOf(m, m.Online)
			return err
		},
	}
}

// numaPlaces are CPUs of one node, as many of two, and the two nodes.
type numaPlaces struct{ cpus, split, own, other cpuset.Set }

// numaPlacesOf takes the two first nodes with memory of which one, at least, has CPUs that
// are free. split is empty where the other has none, or there is one CPU.
func numaPlacesOf(m *machine.Machine, free cpuset.Set) (n numaPlaces, err error) {
	var nodes []machine.Domain
	for _, d := range m.ByKind(machine.Node) {
		if d.Bytes > 0 {
			nodes = append(nodes, d)
		}
	}
	slices.SortStableFunc(nodes, func(a, b machine.Domain) int {
		return min(1, b.CPUs.Intersect(free).Len()) - min(1, a.CPUs.Intersect(free).Len())
	})
	if len(nodes) < 2 || !nodes[0].CPUs.Overlaps(free) {
		return n, &kernel.NotSupportedError{Feature: "memory of two nodes", Reason: fmt.Sprintf("this machine has %d NUMA node with memory", len(nodes)), Remedy: "run on one with two sockets, or switch on sub-NUMA clusters in its firmware"}
	}
	own, other := nodes[0], nodes[1]
	n.own, n.other, n.cpus = cpuset.MustOf(own.ID), cpuset.MustOf(other.ID), own.CPUs.Intersect(free)
	a, b := n.cpus.Slice(), other.CPUs.Intersect(free).Slice()
	if half := min(len(a)/2, len(b)); half > 0 {
		n.split = cpuset.MustOf(append(slices.Clone(a[:half]), b[:half]...)...)
		n.cpus = cpuset.MustOf(a[:2*half]...)
	}
	return n, nil
}

func onNodes(pick func(numaPlaces) (cpus, mems cpuset.Set)) stand {
	return func(m *machine.Machine, free cpuset.Set) (lab.Settings, error) {
		n, err := numaPlacesOf(m, free)
		if err != nil {
			return nil, err
		}
		cpus, mems := pick(n)
		if cpus.IsEmpty() {
			return nil, &kernel.NotSupportedError{Feature: "CPUs of two nodes", Reason: "one node has CPUs that take part, or one CPU does", Remedy: "let CPUs of two nodes take part: --set cpus=LIST"}
		}
		return lab.Settings{lab.Tenant: cgroup.Limits{CPUs: cpus, Mems: mems}}, nil
	}
}

// Residency is where the tenant's memory was in the middle of a round.
type Residency struct {
	Cell string `json:"cell"`
	// Bytes are those of each NUMA node, by its number; Wanted are the nodes asked for.
	Bytes  map[int]int64 `json:"bytes"`
	Wanted cpuset.Set    `json:"wanted"`
}

// readBack reads where the tenant's memory is, in the middle of the round's window.
func (x *Experiment) readBack(cell string, wanted cpuset.Set) func(context.Context, *lab.Running) error {
	return func(ctx context.Context, r *lab.Running) error {
		if err := r.Until(ctx, time.Duration(x.Experiment.Settle+x.Experiment.Window/2)); err != nil {
			return err
		}
		bytes, err := proc.ProcessMemory(os.DirFS("/"), r.Tenant())
		if err == nil {
			x.Residency = append(x.Residency, Residency{cell, bytes, wanted})
		}
		return err
	}
}

// there is the share of a cell's memory that was on the nodes asked for; ok is false where
// nothing was read.
func (x *Experiment) there(cell string) (share float64, ok bool) {
	var there, all int64
	for _, r := range x.Residency {
		if r.Cell != cell {
			continue
		}
		for id, n := range r.Bytes {
			all += n
			if r.Wanted.Has(id) {
				there += n
			}
		}
	}
	if all == 0 {
		return 0, false
	}
	return float64(there) / float64(all), true
}

func numaWords(v *view) []string {
	if text := v.nothing(); text != "" {
		return []string{text}
	}
	var answer []string
	harm := false
	for _, c := range []struct{ name, what string }{{remote, "Memory on another node"}, {split, "Running on two nodes"}} {
		if !v.Ran(c.name) {
			continue
		}
		text := costs(v, c.what, c.name, local)
		if share, ok := v.there(c.name); ok && share >= 0.9 {
			harm = harm || v.harms(c.name, local)
		} else {
			text = fmt.Sprintf("What %s costs was not measured: %.0f %% of the memory was where it was asked for.", strings.ToLower(c.what[:1])+c.what[1:], 100*share)
		}
		answer = append(answer, text)
	}
	if len(answer) == 0 {
		answer = []string{"Nothing was compared: neither remote nor split could be run."}
	}
	if cpus := v.stood(local, lab.Tenant); harm && !cpus.IsEmpty() {
		answer = append(answer, fmt.Sprintf("Do it: berth run --cpuset %s --mems %s -- SERVICE, or another node's CPUs with its memory", cpus, v.own()))
	}
	return answer
}

// own is the node whose memory the tenant was given in local.
func (v *view) own() cpuset.Set {
	for _, r := range v.Experiment.Residency {
		if r.Cell == local {
			return r.Wanted
		}
	}
	return cpuset.Set{}
}

// residency is the table of where memory was.
func (v *view) residency() report.Block {
	var rows [][]string
	for _, c := range v.Cells {
		sums, n := map[int]int64{}, int64(0)
		for _, r := range v.Experiment.Residency {
			if r.Cell == c.Name {
				n++
				for id, b := range r.Bytes {
					sums[id] += b
				}
			}
		}
		if n == 0 {
			continue
		}
		var parts []string
		for _, id := range slices.Sorted(maps.Keys(sums)) {
			parts = append(parts, fmt.Sprintf("node %d: %d MiB", id, sums[id]/n>>20))
		}
		share, _ := v.there(c.Name)
		rows = append(rows, []string{c.Name, strings.Join(parts, ", "), fmt.Sprintf("%.0f", 100*share)})
	}
	if rows == nil {
		return report.Block{}
	}
	t := report.NewTable([]string{"cell", "memory, as read back", "% where asked for"}, rows...)
	t.Legend = "Mean of the rounds, of all that the process has mapped: files, too."
	return report.Block{Heading: "Where the memory was", Table: t}
}
