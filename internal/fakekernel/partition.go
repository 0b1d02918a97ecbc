package fakekernel

import (
	"path"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
)

// isPartition reports whether a group is a valid partition root.
func (k *Kernel) isPartition(dir string) bool {
	state := k.get(dir, "cpuset.cpus.partition")
	return state == "root" || state == "isolated"
}

// wants returns "root" or "isolated" for a group that is to be one, valid or
// not, and else "".
func (k *Kernel) wants(dir string) string {
	state, _, _ := strings.Cut(k.get(dir, "cpuset.cpus.partition"), " ")
	if state == "member" {
		return ""
	}
	return state
}

// partition is a write to cpuset.cpus.partition. What cannot be becomes invalid,
// which is no error.
func (k *Kernel) partition(m mount, dir, value string) error {
	if value != "member" && value != "root" && value != "isolated" {
		return syscall.EINVAL
	}
	if value != "member" {
		value += k.invalid(m, dir, true)
	}
	if err := k.put(dir+"/cpuset.cpus.partition", value); err != nil {
		return err
	}
	return k.repartitionBelow(m, dir)
}

// repartition follows a change of a group's cpuset.cpus.
func (k *Kernel) repartition(m mount, dir string) error {
	if err := k.overrun(m, dir); err != nil {
		return err
	}
	if value := k.wants(dir); value != "" {
		if err := k.put(dir+"/cpuset.cpus.partition", value+k.invalid(m, dir, true)); err != nil {
			return err
		}
	}
	return k.repartitionBelow(m, dir)
}

// overrun: before Linux 7, partitions are invalid once a sibling's set overlaps them.
func (k *Kernel) overrun(m mount, dir string) error {
	if dir == m.dir || k.atLeast(7, 0) {
		return nil
	}
	for _, sibling := range k.siblings(dir) {
		if !k.isPartition(sibling) || !k.set(sibling, "cpuset.cpus").Overlaps(k.set(dir, "cpuset.cpus")) {
			continue
		}
		state := k.wants(sibling) + " invalid"
		if !k.atLeast(6, 7) {
			state += notExclusive
		}
		if err := k.put(sibling+"/cpuset.cpus.partition", state); err != nil {
			return err
		}
	}
	return nil
}

// repartitionBelow follows a change of a group as a partition, which may make
// those in it invalid, or valid again.
func (k *Kernel) repartitionBelow(m mount, dir string) error {
	for _, child := range k.children(dir) {
		value := k.wants(child)
		if value == "" {
			continue
		}
		if err := k.put(child+"/cpuset.cpus.partition", value+k.invalid(m, child, false)); err != nil {
			return err
		}
		if err := k.repartitionBelow(m, child); err != nil {
			return err
		}
	}
	return k.effective(m)
}

const notExclusive = " (Cpu list in cpuset.cpus not exclusive)"

// invalid returns what the kernel adds to the state of a group that cannot be a
// partition, and "" for one that can. The wording differs where the group itself
// was written to.
func (k *Kernel) invalid(m mount, dir string, written bool) string {
	own, parent := k.set(dir, "cpuset.cpus"), path.Dir(dir)
	exclusive := k.atLeast(6, 7) // there is cpuset.cpus.exclusive
	switch {
	case own.IsEmpty() && exclusive:
		return " invalid (cpuset.cpus and cpuset.cpus.exclusive are empty)"
	case own.IsEmpty():
		return " invalid (cpuset.cpus is empty)"
	case parent != m.dir && !k.isPartition(parent) && exclusive && written:
		return " invalid (Invalid cpu list in cpuset.cpus.exclusive)"
	case parent != m.dir && !k.isPartition(parent):
		return " invalid (Parent is not a partition root)"
	}
	left := k.set(parent, "cpuset.cpus").Minus(own)
	for _, sibling := range k.siblings(dir) {
		others := k.set(sibling, "cpuset.cpus")
		if others.Overlaps(own) && !k.atLeast(7, 0) {
			return " invalid" + notExclusive
		}
		if k.isPartition(sibling) {
			left = left.Minus(others)
		}
	}
	if k.exclusive(dir).IsEmpty() {
		return " invalid" + notExclusive
	}
	if parent != m.dir && left == (cpuset.Set{}) && k.usesCPUs(parent, dir) {
		return " invalid (Parent unable to distribute cpu downstream)"
	}
	return ""
}

// exclusive returns what a partition takes: since Linux 7, what the others have left.
func (k *Kernel) exclusive(dir string) cpuset.Set {
	own := k.set(dir, "cpuset.cpus")
	for _, sibling := range k.siblings(dir) {
		if k.isPartition(sibling) && k.atLeast(7, 0) {
			own = own.Minus(k.set(sibling, "cpuset.cpus.effective"))
		}
	}
	return own
}

func (k *Kernel) siblings(dir string) []string {
	var others []string
	for _, sibling := range k.children(path.Dir(dir)) {
		if sibling != dir {
			others = append(others, sibling)
		}
	}
	return others
}

// usesCPUs reports whether processes use a group's CPUs: its own and those below,
// but in partitions and in except.
func (k *Kernel) usesCPUs(dir, except string) bool {
	if k.get(dir, "cgroup.procs") != "" {
		return true
	}
	for _, child := range k.children(dir) {
		if child != except && !k.isPartition(child) && k.usesCPUs(child, except) {
			return true
		}
	}
	return false
}

// populated reports whether a group or one below it holds processes.
func (k *Kernel) populated(dir string) bool {
	if k.get(dir, "cgroup.procs") != "" {
		return true
	}
	for _, child := range k.children(dir) {
		if k.populated(child) {
			return true
		}
	}
	return false
}
