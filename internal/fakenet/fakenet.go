// Package fakenet simulates, for tests, the network devices of a host with their queueing
// disciplines, and the programs of control groups that mark packets.
package fakenet

import (
	"io/fs"
	"maps"
	"sync"
	"syscall"

	"berth.dev/berth/kernel/traffic"
)

// Network is a traffic.Calls. It refuses what the kernel refuses.
type Network struct {
	mu      sync.Mutex
	groups  fs.FS
	devices map[string]*device
	marks   map[string]kept[uint16] // by group
	limits  map[string]kept[traffic.Limit]
	shared  map[string]kept[traffic.Together]
	dropped map[string][2]uint64 // by group
	// Writes counts what was changed.
	Writes int
	// Reads counts the readings of all roots.
	Reads int
}

type device struct {
	index       int
	normal, now traffic.Qdisc
	classes     map[uint16]traffic.Class // of HTB
	paced       map[uint16]traffic.Class // of EDT; nil without its program
	dropped     map[uint16]uint64
}

func (d *device) of(by traffic.Mechanism) *map[uint16]traffic.Class {
	if by == traffic.EDT {
		return &d.paced
	}
	return &d.classes
}

// kept is what a group has: not one that is made anew under its name.
type kept[V any] struct {
	inode uint64
	value V
}

const (
	root   = 0x6be70000 // the handle of Berth's discipline
	parent = 1          // the minor of the class that the others are in
)

// New returns a network with devices that have the kernel's default discipline, and marks of
// the control groups of a tree.
func New(groups fs.FS, devices ...string) *Network {
	n := &Network{groups: groups, devices: map[string]*device{}, marks: map[string]kept[uint16]{}, limits: map[string]kept[traffic.Limit]{}, shared: map[string]kept[traffic.Together]{}, dropped: map[string][2]uint64{}}
	for _, name := range devices {
		n.Plug(name)
	}
	return n
}

// Plug makes a device be there, or anew.
func (n *Network) Plug(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	q := traffic.Qdisc{Kind: "pfifo_fast"}
	n.devices[name] = &device{index: len(n.devices) + 1, normal: q, now: q}
}

// Unplug removes a device.
func (n *Network) Unplug(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.devices, name)
}

// Rename gives a device another name.
func (n *Network) Rename(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.devices[to] = n.devices[from]
	delete(n.devices, from)
}

// Put has another program change the root of a device; the zero Qdisc removes what is there.
func (n *Network) Put(name string, q traffic.Qdisc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.devices[name]
	if q == (traffic.Qdisc{}) {
		q = d.normal
	}
	d.now, d.classes = q, nil
}

// PacedBy returns the classes that a device has by EDT; nil if that does not divide it.
func (n *Network) PacedBy(name string) map[uint16]traffic.Class {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.devices[name].paced
}

// Of returns the root of a device and its classes of HTB, as they are now.
func (n *Network) Of(name string) (root traffic.Qdisc, classes map[uint16]traffic.Class) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.devices[name]
	return d.now, d.classes
}

// Devices implements traffic.Calls.
func (n *Network) Devices() (map[string]int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]int{}
	for name, d := range n.devices {
		all[name] = d.index
	}
	return all, nil
}

func (n *Network) at(index int, do func(*device) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.devices {
		if d.index == index {
			return do(d)
		}
	}
	return syscall.ENODEV
}

func (n *Network) change(index int, do func(*device) error) error {
	return n.at(index, func(d *device) error {
		err := do(d)
		if err == nil {
			n.Writes++
		}
		return err
	})
}

// Roots implements traffic.Calls.
func (n *Network) Roots() (map[int]traffic.Qdisc, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Reads++
	all := map[int]traffic.Qdisc{}
	for _, d := range n.devices {
		all[d.index] = d.now
	}
	return all, nil
}

// Paced implements traffic.Calls.
func (n *Network) Paced(index int) (is bool, err error) {
	_ = n.at(index, func(d *device) error { is = d.paced != nil; return nil }) // one that has gone is not
	return is, nil
}

// Divide implements traffic.Calls.
func (n *Network) Divide(by traffic.Mechanism, index int) error {
	return n.change(index, func(d *device) error {
		switch {
		case by == traffic.EDT && d.paced == nil:
		case by == traffic.HTB && d.now.Handle == 0:
			d.now = traffic.Qdisc{Kind: "htb", Handle: root}
		default:
			return syscall.EEXIST
		}
		*d.of(by) = map[uint16]traffic.Class{}
		return nil
	})
}

// Join implements traffic.Calls.
func (n *Network) Join(by traffic.Mechanism, index int) error {
	return n.change(index, func(d *device) error {
		switch {
		case by == traffic.EDT && d.paced != nil:
		case by == traffic.HTB && d.now.Handle == root:
			d.now = d.normal
		default:
			return syscall.EINVAL
		}
		*d.of(by) = nil
		return nil
	})
}

// Classes implements traffic.Calls.
func (n *Network) Classes(by traffic.Mechanism, index int) (all map[uint16]traffic.Class, err error) {
	all = map[uint16]traffic.Class{}
	err = n.at(index, func(d *device) error {
		maps.Copy(all, *d.of(by))
		return nil
	})
	return all, err
}

// SetClass implements traffic.Calls.
func (n *Network) SetClass(by traffic.Mechanism, index int, minor uint16, c traffic.Class) error {
	return n.change(index, func(d *device) error {
		classes := *d.of(by)
		if _, ok := classes[parent]; c.Rate == 0 || minor == 0 || classes == nil || by == traffic.HTB && !ok && minor != parent {
			return syscall.EINVAL
		}
		classes[minor] = c
		return nil
	})
}

// RemoveClass implements traffic.Calls.
func (n *Network) RemoveClass(by traffic.Mechanism, index int, minor uint16) error {
	return n.change(index, func(d *device) error {
		if by == traffic.HTB && minor == parent {
			return syscall.EBUSY
		}
		delete(*d.of(by), minor)
		return nil
	})
}

// inode tells a group from another one of its name.
func (n *Network) inode(group string) (uint64, error) {
	info, err := fs.Stat(n.groups, group)
	if err != nil {
		return 0, err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino, nil
	}
	return 0, nil
}

// get returns what a group has, the zero value if nothing was set.
func get[V any](n *Network, all map[string]kept[V], group string) (v V, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	inode, err := n.inode(group)
	if has := all[group]; err == nil && has.inode == inode {
		v = has.value
	}
	return v, err
}

func set[V any](n *Network, all map[string]kept[V], group string, v V) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	inode, err := n.inode(group)
	if err == nil {
		all[group] = kept[V]{inode, v}
		n.Writes++
	}
	return err
}

// Mark implements traffic.Calls.
func (n *Network) Mark(group string) (uint16, error) { return get(n, n.marks, group) }

// SetMark implements traffic.Calls.
func (n *Network) SetMark(group string, minor uint16) error { return set(n, n.marks, group, minor) }

// Limit implements traffic.Calls.
func (n *Network) Limit(group string) (traffic.Limit, error) { return get(n, n.limits, group) }

// SetLimit implements traffic.Calls.
func (n *Network) SetLimit(group string, l traffic.Limit) error { return set(n, n.limits, group, l) }

// Together implements traffic.Calls.
func (n *Network) Together(group string) (traffic.Together, error) { return get(n, n.shared, group) }

// SetTogether implements traffic.Calls.
func (n *Network) SetTogether(group string, with traffic.Together) error {
	return set(n, n.shared, group, with)
}

// Drop has a device drop packets of a class.
func (n *Network) Drop(name string, minor uint16, packets uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.devices[name]
	if d.dropped == nil {
		d.dropped = map[uint16]uint64{}
	}
	d.dropped[minor] += packets
}

// DropOf has the programs of a control group drop packets: those of its limit, and that of its class.
func (n *Network) DropOf(group string, own, together uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.dropped[group]
	n.dropped[group] = [2]uint64{of[0] + own, of[1] + together}
}

// Dropped implements traffic.Calls.
func (n *Network) Dropped(by traffic.Mechanism, index int) (all map[uint16]uint64, err error) {
	all = map[uint16]uint64{}
	err = n.at(index, func(d *device) error {
		for minor := range *d.of(by) {
			if by != traffic.HTB || minor != parent {
				all[minor] = d.dropped[minor]
			}
		}
		return nil
	})
	return all, err
}

// DroppedOf implements traffic.Calls.
func (n *Network) DroppedOf(group string) (own, together uint64, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, err = n.inode(group)
	of := n.dropped[group]
	return of[0], of[1], err
}
