package cgroup

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/kernel"
)

type base struct {
	host  *Host
	parts []part
	lacks map[string]*kernel.NotSupportedError // by controller
}

// part is the base in one hierarchy.
type part struct {
	*Hierarchy
	dir         string   // of the base, relative to the kernel.Root
	controllers []string // to be used in groups below
}

// Base returns the group below which this process may make groups of its own
// that use the given controllers (all of Controllers() if none are given):
//
//   - v1: the process's own group;
//   - v2: for root, the root of the tree as it is mounted; for others, the
//     nearest ancestor of the own group that is delegated to them and holds no
//     processes, preferring one that offers more of the controllers. The own
//     group holds this process, and a group with processes may not hand
//     controllers on to children; only the root of the whole tree may.
//
// Controllers that cannot be had are left out, and planning a limit of theirs
// is a kernel.NotSupportedError. Base itself fails with one if none can be had.
func (h *Host) Base(controllers ...string) (Group, error) {
	if len(controllers) == 0 {
		controllers = Controllers()
	}
	b := &base{host: h, lacks: map[string]*kernel.NotSupportedError{}}
	for _, c := range controllers {
		t, ok := h.Hierarchy(c)
		if !ok {
			b.lacks[c] = &kernel.NotSupportedError{
				Feature: c + " controller",
				Reason:  "it is mounted in no cgroup hierarchy",
				Remedy:  "mount cgroup2 with this controller; a kernel command line with cgroup_disable= hides it",
			}
			continue
		}
		i := slices.IndexFunc(b.parts, func(p part) bool { return p.Hierarchy == t })
		if i < 0 {
			i = len(b.parts)
			b.parts = append(b.parts, part{Hierarchy: t})
		}
		b.parts[i].controllers = append(b.parts[i].controllers, c)
	}
	settled := b.parts[:0]
	for _, p := range b.parts {
		if b.settle(&p) {
			settled = append(settled, p)
		}
	}
	b.parts = settled
	if len(b.parts) == 0 {
		return Group{}, b.lacks[controllers[0]]
	}
	return Group{base: b}, nil
}

// settle chooses the directory of p and drops the controllers that it does not
// offer; false if nothing is left.
func (b *base) settle(p *part) bool {
	dir, reason := b.host.place(p.Hierarchy, p.controllers)
	var have []string
	for _, c := range p.controllers {
		why := reason
		if why == "" && p.Version == 2 && !slices.Contains(core[:], c) && !slices.Contains(b.host.offered(dir), c) {
			why = "/" + dir + " does not offer it"
		}
		if why == "" {
			have = append(have, c)
			continue
		}
		b.lacks[c] = &kernel.NotSupportedError{Feature: c + " controller", Reason: why, Remedy: b.host.remedy(p.Hierarchy)}
	}
	p.dir, p.controllers = dir, have
	return len(have) > 0
}

func (h *Host) remedy(t *Hierarchy) string {
	switch {
	case t.ReadOnly:
		return "start the container with writable cgroups"
	case t.Version == 1 && h.UID != 0:
		return "run as root"
	case h.UID != 0:
		return "systemd-run --user --scope -p Delegate=yes, with the controllers delegated to the user ('berth doctor delegation'), or run as root"
	}
	return "run outside of the container, or give it a cgroup tree of its own with its processes in a child group"
}

// place chooses the directory in which to make groups, or says why not.
func (h *Host) place(t *Hierarchy, controllers []string) (dir, reason string) {
	if t.ReadOnly {
		return "", "/" + t.Dir + " is mounted read-only"
	}
	own := t.Own
	if own == "" {
		own = t.Dir // outside of what is mounted: the mounted group is all there is
	}
	if t.Version == 1 {
		if !h.writable(own) {
			return "", fmt.Sprintf("/%s is not writable for user %d", own, h.UID)
		}
		return own, ""
	}
	best := -1
	for _, c := range h.candidates(t) {
		if !h.mayHost(c) {
			continue
		}
		score := 0
		for _, name := range h.offered(c) {
			if slices.Contains(controllers, name) {
				score++
			}
		}
		if score > best {
			best, dir = score, c
		}
	}
	if best < 0 {
		return "", fmt.Sprintf("no group from /%s up to /%s is both writable for user %d and free of processes", own, t.Dir, h.UID)
	}
	return dir, ""
}

// candidates are the v2 groups to look at, best first.
func (h *Host) candidates(t *Hierarchy) []string {
	if h.UID == 0 || t.Own == "" || t.Own == t.Dir {
		return []string{t.Dir}
	}
	var dirs []string
	for dir := t.Own; dir != t.Dir && dir != "."; {
		dir = path.Dir(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

// mayHost reports whether a v2 group can have children with controllers: this
// user may write to it, and it is the root or holds no processes.
func (h *Host) mayHost(dir string) bool {
	for _, file := range []string{"", "/cgroup.subtree_control", "/cgroup.procs"} {
		if !h.writable(dir + file) {
			return false
		}
	}
	return h.isTop(dir) || !h.populated(dir)
}

// isTop reports whether a v2 directory is the root of the whole tree, which
// alone may hold processes beside children: it alone has no cgroup.type.
func (h *Host) isTop(dir string) bool { return !h.exists(dir + "/cgroup.type") }

func (h *Host) populated(dir string) bool {
	has, err := kernel.HasProcs(h.root.FS(), dir)
	return err == nil && has
}

func (h *Host) offered(dir string) []string {
	text, err := fs.ReadFile(h.root.FS(), dir+"/cgroup.controllers")
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

func (h *Host) exists(name string) bool {
	_, err := fs.Stat(h.root.FS(), name)
	return err == nil
}

// writable looks at owner and mode only; the kernel has the last word.
func (h *Host) writable(name string) bool {
	info, err := fs.Stat(h.root.FS(), name)
	if err != nil {
		return false
	}
	if h.UID == 0 {
		return true
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(stat.Uid) == h.UID {
		return info.Mode().Perm()&0o200 != 0
	}
	return info.Mode().Perm()&0o002 != 0
}
