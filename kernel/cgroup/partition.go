package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// partitionable refuses a partition below an ordinary group, which the kernel
// would make and show as invalid. One with cpuset.cpus.exclusive (6.7) of its
// own can be remote from its parent.
func (h *Host) partitionable(dir string) error {
	parent := path.Dir(dir)
	state, ok, err := h.read(parent + "/cpuset.cpus.partition")
	own, _, err2 := h.read(dir + "/cpuset.cpus.exclusive")
	state = strings.TrimSpace(state)
	if err := errors.Join(err, err2); err != nil || !ok || state == "root" || state == "isolated" || strings.TrimSpace(own) != "" {
		return err
	}
	return &kernel.NotSupportedError{
		Feature: "cpuset.cpus.partition",
		Reason:  fmt.Sprintf("/%s, which holds the group, is not a partition root: %s", parent, state),
		Remedy:  "make the parent a partition root first, or the partition a child of the tree's root",
	}
}

// unpartitioned refuses CPUs of a group that a sibling's partition holds. Before
// Linux 7, writing them ends that partition, and undoing does not bring it back;
// since then, the group does not get them.
func (h *Host) unpartitioned(dir string, cpus cpuset.Set) error {
	parent := path.Dir(dir)
	siblings, err := fs.ReadDir(h.root.FS(), parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("partitions beside /%s: %w", dir, err)
	}
	for _, entry := range siblings {
		sibling := path.Join(parent, entry.Name())
		if !entry.IsDir() || sibling == dir {
			continue
		}
		held, err := h.partition(sibling)
		if err != nil {
			return fmt.Errorf("partition /%s: %w", sibling, err)
		}
		if held.Overlaps(cpus) {
			return &kernel.NotSupportedError{
				Feature: fmt.Sprintf("CPUs %v for /%s", cpus, dir),
				Reason:  fmt.Sprintf("/%s is a partition and holds %v", sibling, held.Intersect(cpus)),
				Remedy:  "leave them out, or make that group a member first",
			}
		}
	}
	return nil
}

// partition returns the CPUs that a group holds as a partition, none if it is no
// valid one.
func (h *Host) partition(dir string) (cpuset.Set, error) {
	state, _, err := h.read(dir + "/cpuset.cpus.partition")
	state = strings.TrimSpace(state)
	if err != nil || state != "root" && state != "isolated" {
		return cpuset.Set{}, err
	}
	cpus, ok, err := h.read(dir + "/cpuset.cpus.exclusive.effective") // 6.7
	if err == nil && !ok {
		cpus, _, err = h.read(dir + "/cpuset.cpus")
	}
	if err != nil {
		return cpuset.Set{}, err
	}
	return cpuset.Parse(cpus)
}
