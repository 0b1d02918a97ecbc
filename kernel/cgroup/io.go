package cgroup

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"berth.dev/berth/kernel/knob"
)

// promises reports whether the root of the tree, which has no weights, shows that groups
// below it have a certain one. Each scheduler and policy that has weights brings other
// files with it, as of block/blk-iocost.c, block/bfq-cgroup.c and, before Linux 5.0,
// block/cfq-iosched.c. On v2 BFQ has no other file, but is listed once it is loaded.
func (h *Host) promises(top, weight string) bool {
	if h.exists(top + "/" + weight) {
		return true // in a container: the mounted root is an ordinary group
	}
	switch weight {
	case "io.weight":
		return h.exists(top + "/io.cost.qos")
	case "blkio.weight":
		return h.exists(top + "/blkio.leaf_weight")
	case "blkio.bfq.weight":
		return h.exists(top + "/blkio.bfq.io_serviced")
	}
	schedulers, _ := fs.Glob(h.root.FS(), "sys/block/*/queue/scheduler")
	return slices.ContainsFunc(schedulers, func(name string) bool {
		text, _, err := h.read(name)
		return err == nil && slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" []\n", r) }), "bfq")
	})
}

// Knob is one setting of a group as the kernel shows it.
type Knob struct {
	File  string `json:"file"`
	Value string `json:"value"`
}

// Knobs reads the settings in force, those that this host has. A value of
// several lines is joined with "; ".
func (g Group) Knobs() ([]Knob, error) {
	var knobs []Knob
	shown := map[string]bool{}
	for _, k := range knob.All() {
		p, err := g.part(k.Controller)
		if err != nil || k.ReadOnly {
			continue
		}
		for _, file := range append(k.Files(), k.Follows...) {
			if shown[file] {
				continue // as the file of another knob
			}
			shown[file] = true
			text, ok, err := g.base.host.read(g.dir(p) + "/" + file)
			if err != nil {
				return nil, fmt.Errorf("settings of group %q: %w", g.rel, err)
			}
			if ok {
				value := strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
				knobs = append(knobs, Knob{File: file, Value: value})
			}
		}
	}
	return knobs, nil
}
