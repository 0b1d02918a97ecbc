// Package cgroup plans changes to control groups, on cgroup v2, v1 and hybrid hosts.
// Their statistics are left to watch/cgroupstat.
//
// Detect finds where each controller is mounted; Host.Base says where new
// groups may be made; a Group is one logical group, a directory of the same
// name in every hierarchy that its controllers live in. Planners (Create, Set,
// Attach) return a kernel.Plan and change nothing; kernel.Apply does.
//
// Weights and limits are on the v2 scale; on v1 the same ratio or amount is
// planned. What a host cannot do is a kernel.NotSupportedError. Files are
// written directly: a group that systemd or a container runtime owns is not
// this package's to change.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
)

// The controllers that Berth knows, by their v2 names. On v1, IO is "blkio";
// CPUAcct (usage) and Freezer are controllers only there, and part of every
// v2 group. Pressure stands for what every v2 group counts and no v1 group does:
// asked for it, Base makes groups in the v2 tree of a hybrid host, too.
const (
	CPU     = "cpu"
	CPUAcct = "cpuacct"
	CPUSet  = "cpuset"
	Memory  = "memory"
	IO      = "io"
	PIDs    = "pids"
	Freezer = "freezer"
	HugeTLB = "hugetlb"

	Pressure = "pressure"
)

// Controllers returns every controller that this package can use, but for HugeTLB, which only
// workloads with huge pages use.
func Controllers() []string {
	return []string{CPU, CPUAcct, CPUSet, Memory, IO, PIDs, Freezer}
}

// Hierarchy is one mounted tree of groups.
type Hierarchy struct {
	// Version is 1 or 2.
	Version int `json:"version"`
	// Controllers are those of the tree, by v2 names and sorted; on v2 those that the
	// mounted directory offers in cgroup.controllers.
	Controllers []string `json:"controllers"`
	// Dir is the mount point, relative to the kernel.Root.
	Dir string `json:"dir"`
	// Root is the group that is mounted there, "/" unless it is a bind mount.
	Root string `json:"root"`
	// Own is this process's group, relative to the kernel.Root; "" if it lies
	// outside what is mounted.
	Own string `json:"own,omitempty"`
	// ReadOnly is true for a read-only mount.
	ReadOnly bool `json:"readOnly,omitempty"`
}

// core are what every v2 group has without enabling a controller.
var core = [...]string{CPUAcct, Freezer, Pressure}

func (h *Hierarchy) has(controller string) bool {
	return slices.Contains(h.Controllers, controller) || h.Version == 2 && slices.Contains(core[:], controller)
}

// dirOf returns the directory of a group given as in /proc/PID/cgroup.
func (h *Hierarchy) dirOf(group string) (string, bool) {
	rest := group
	if h.Root != "/" {
		var ok bool
		if rest, ok = strings.CutPrefix(group, h.Root); !ok || rest != "" && rest[0] != '/' {
			return "", false
		}
	}
	if slices.Contains(strings.Split(rest, "/"), "..") {
		return "", false // beyond the reader's cgroup namespace
	}
	return path.Join(h.Dir, rest), true
}

// Host is what Detect found.
type Host struct {
	// Hierarchies are the mounted trees with controllers, and the v2 tree.
	Hierarchies []Hierarchy
	// UID is the user whose permissions Base looks at.
	UID int

	root *kernel.Root
}

// Unified returns where cgroup v2 is mounted, beside v1 or alone, below the root; "" if it is not.
func Unified(fsys fs.FS) string {
	mounts, _ := kernel.ReadMounts(fsys) // an error is Detect's to tell
	for _, m := range mounts {
		if m.Type == "cgroup2" && !m.ReadOnly {
			return m.Dir
		}
	}
	return ""
}

// Detect reads /proc/self/mountinfo, /proc/self/cgroup and, on v2,
// cgroup.controllers. A host without cgroups has no hierarchies and is no error.
func Detect(root *kernel.Root) (*Host, error) {
	mounts, err := ReadMounts(root.FS())
	if err != nil {
		return nil, fmt.Errorf("detect cgroups: %w", err)
	}
	members, err := ReadMembership(root.FS(), "self")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("detect cgroups: %w", err)
	}
	host := &Host{UID: os.Geteuid(), root: root}
	for _, m := range members {
		if m.ID != 0 && len(m.Controllers) == 0 {
			continue // a named hierarchy only tracks processes
		}
		h, ok, err := hierarchy(root, m, mounts)
		if err != nil {
			return nil, fmt.Errorf("detect cgroups: %w", err)
		}
		if ok {
			host.Hierarchies = append(host.Hierarchies, h)
		}
	}
	return host, nil
}

// hierarchy chooses the mount of the hierarchy that m is about: one that shows
// the process's own group, writable, and as much as possible of the tree; of
// equals the first. Of several at one place, the last hides the others; a v2
// mount without cgroup.controllers is hidden by something else.
func hierarchy(root *kernel.Root, m Membership, mounts []kernel.Mount) (h Hierarchy, ok bool, err error) {
	best := -1
	for i, mount := range mounts {
		if isV2 := mount.Type == "cgroup2"; isV2 != (m.ID == 0) || m.ID != 0 && !slices.Contains(mount.Options, m.Controllers[0]) {
			continue
		}
		if slices.ContainsFunc(mounts[i+1:], func(later kernel.Mount) bool { return later.Dir == mount.Dir }) {
			continue
		}
		c, score := candidate(m, mount)
		if score <= best {
			continue
		}
		if c.Version == 2 {
			text, err := fs.ReadFile(root.FS(), c.Dir+"/cgroup.controllers")
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return h, false, err
			}
			c.Controllers = strings.Fields(string(text))
		}
		best, h, ok = score, c, true
	}
	for _, c := range m.Controllers {
		h.Controllers = append(h.Controllers, v2Name(c))
	}
	slices.Sort(h.Controllers)
	return h, ok, nil
}

// candidate is the hierarchy of m as a mount shows it, and how good that is.
func candidate(m Membership, mount kernel.Mount) (c Hierarchy, score int) {
	c = Hierarchy{Version: 1, Dir: mount.Dir, Root: mount.Root, ReadOnly: mount.ReadOnly}
	if mount.Type == "cgroup2" {
		c.Version = 2
	}
	if own, ok := c.dirOf(m.Path); ok {
		c.Own = own
		score += 4
	}
	if !c.ReadOnly {
		score += 2
	}
	if c.Root == "/" {
		score++
	}
	return c, score
}

func v2Name(controller string) string {
	if controller == "blkio" {
		return IO
	}
	return controller
}

// Hierarchy returns the tree that a controller is in. A controller that is in
// a v1 tree is in no other; CPUAcct, Freezer and Pressure are in the v2 tree otherwise.
func (h *Host) Hierarchy(controller string) (*Hierarchy, bool) {
	for _, version := range []int{1, 2} {
		for i := range h.Hierarchies {
			if t := &h.Hierarchies[i]; t.Version == version && t.has(controller) {
				return t, true
			}
		}
	}
	return nil, false
}

// Mode names the layout of the host: "cgroup v2", "cgroup v1", "hybrid" (v1
// controllers beside a v2 tree), or "" without cgroups.
func (h *Host) Mode() string {
	var v1, v2 bool
	for _, t := range h.Hierarchies {
		v1 = v1 || t.Version == 1
		v2 = v2 || t.Version == 2
	}
	switch {
	case v1 && v2:
		return "hybrid"
	case v1:
		return "cgroup v1"
	case v2:
		return "cgroup v2"
	}
	return ""
}
