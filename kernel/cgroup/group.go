package cgroup

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
)

// Group is one logical group: a directory of the same name below the base of
// every hierarchy that its controllers are in. It is a value and need not
// exist yet.
type Group struct {
	base *base
	rel  string
}

// Child returns the group of the given name below g; the name may have several
// elements.
func (g Group) Child(name string) Group { return Group{g.base, path.Join(g.rel, name)} }

// Name returns the name below the base, "" for the base itself.
func (g Group) Name() string { return g.rel }

// Has returns nil if the group can use a controller, and else the
// kernel.NotSupportedError that says why not.
func (g Group) Has(controller string) error {
	_, err := g.part(controller)
	return err
}

// Dirs returns the group's directories, relative to the kernel.Root.
func (g Group) Dirs() []string {
	var dirs []string
	for _, p := range g.base.parts {
		dirs = append(dirs, g.dir(p))
	}
	return dirs
}

// Trees returns the hierarchies that the group is in, as Host.Hierarchies does, but each
// with the group's directory.
func (g Group) Trees() []Hierarchy {
	var trees []Hierarchy
	for _, p := range g.base.parts {
		trees = append(trees, Hierarchy{Version: p.Version, Controllers: p.controllers, Dir: g.dir(p)})
	}
	return trees
}

func (g Group) dir(p part) string { return path.Join(p.dir, g.rel) }

func (g Group) part(controller string) (part, error) {
	for _, p := range g.base.parts {
		if slices.Contains(p.controllers, controller) {
			return p, nil
		}
	}
	if err := g.base.lacks[controller]; err != nil {
		return part{}, err
	}
	return part{}, &kernel.NotSupportedError{
		Feature: controller + " controller",
		Reason:  "Base was not asked for it",
	}
}

// Create plans g, its missing ancestors, and children below it. On v2, the
// controllers are enabled on the way down; on v1, a cpuset starts with its
// parent's CPUs and memory nodes, without which it could hold no process.
// Applying it fails where a group exists already.
func (g Group) Create(children ...string) (kernel.Plan, error) {
	groups := []Group{g}
	for _, c := range children {
		groups = append(groups, g.Child(c))
	}
	var plan kernel.Plan
	for _, p := range g.base.parts {
		c := creation{host: g.base.host, part: p, made: map[string]bool{}, enabled: map[string]bool{}}
		for _, group := range groups {
			if err := c.group(group); err != nil {
				return nil, err
			}
		}
		plan = append(plan, c.plan...)
	}
	return plan, nil
}

type creation struct {
	host    *Host
	part    part
	plan    kernel.Plan
	made    map[string]bool
	enabled map[string]bool
}

// group plans one group: its ancestors where missing, then itself.
func (c *creation) group(g Group) error {
	if g.rel == "" || g.rel == ".." || strings.HasPrefix(g.rel, "../") || path.IsAbs(g.rel) {
		return fmt.Errorf("create group %q: not a name below the base", g.rel)
	}
	parent := c.part.dir
	elements := strings.Split(g.rel, "/")
	for i, name := range elements {
		dir := path.Join(parent, name)
		last := i == len(elements)-1
		if !c.made[dir] && (last || !c.host.exists(dir)) {
			if err := c.mkdir(parent, dir); err != nil {
				return err
			}
		}
		parent = dir
	}
	return nil
}

func (c *creation) mkdir(parent, dir string) error {
	if c.part.Version == 2 {
		if err := c.enable(parent); err != nil {
			return err
		}
	}
	c.plan = append(c.plan, kernel.Step{Op: kernel.Mkdir, Path: dir})
	c.made[dir] = true
	if c.part.Version != 1 || !slices.Contains(c.part.Controllers, CPUSet) {
		return nil
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := c.inherited(parent, file)
		if err != nil {
			return err
		}
		c.plan = append(c.plan, kernel.Step{
			Path: dir + "/" + file, Value: value, Format: kernel.List, Keep: true, Why: "a new v1 cpuset is empty and refuses processes",
		})
	}
	return nil
}

// inherited is the value that a v1 cpuset group has: that of the nearest
// ancestor that exists, since planned ones copy theirs.
func (c *creation) inherited(dir, file string) (string, error) {
	for c.made[dir] {
		dir = path.Dir(dir)
	}
	text, err := fs.ReadFile(c.host.root.FS(), dir+"/"+file)
	if err != nil {
		return "", fmt.Errorf("create group: %w", err)
	}
	value := strings.TrimSpace(string(text))
	if value == "" {
		return "", &kernel.NotSupportedError{
			Feature: "cpuset controller",
			Reason:  fmt.Sprintf("/%s/%s is empty, so that no group below can hold processes", dir, file),
			Remedy:  "give the parent group CPUs and memory nodes",
		}
	}
	return value, nil
}

func (c *creation) enable(parent string) error {
	if c.enabled[parent] {
		return nil
	}
	c.enabled[parent] = true
	file := parent + "/cgroup.subtree_control"
	var have []string
	if !c.made[parent] {
		text, err := fs.ReadFile(c.host.root.FS(), file)
		if err != nil {
			return fmt.Errorf("create group: %w", err)
		}
		have = strings.Fields(string(text))
	}
	var words []string
	for _, name := range c.part.controllers {
		if !slices.Contains(core[:], name) && !slices.Contains(have, name) {
			words = append(words, "+"+name)
		}
	}
	if len(words) == 0 {
		return nil
	}
	if !c.made[parent] && !c.host.isTop(parent) && c.host.populated(parent) {
		return &kernel.NotSupportedError{
			Feature: "groups below /" + parent,
			Reason:  "it holds processes itself, and a v2 group has either processes or children with controllers",
			Remedy:  "move its processes to a child group",
		}
	}
	c.plan = append(c.plan, kernel.Step{Op: kernel.Enable, Path: file, Value: strings.Join(words, " ")})
	return nil
}

// Attach plans to move a process, with all its threads, into the group; undo
// moves it back to where it was. If it ends before the plan is
// applied, applying fails with ESRCH, also if another process has its number by then.
func (g Group) Attach(pid int) (kernel.Plan, error) {
	root := g.base.host.root
	// Read first: if the membership is of another process by then, the start is wrong.
	p, err := kernel.ReadProcess(root.FS(), strconv.Itoa(pid))
	if err != nil {
		return nil, fmt.Errorf("attach process %d: %w", pid, err)
	}
	start := p.Start
	members, err := ReadMembership(root.FS(), strconv.Itoa(pid))
	if err != nil {
		return nil, fmt.Errorf("attach process %d: %w", pid, err)
	}
	var plan kernel.Plan
	for _, p := range g.base.parts {
		i := slices.IndexFunc(members, func(m Membership) bool {
			if p.Version == 2 {
				return m.ID == 0
			}
			return len(m.Controllers) > 0 && slices.Contains(p.Controllers, v2Name(m.Controllers[0]))
		})
		if i < 0 {
			return nil, fmt.Errorf("attach process %d: not in the hierarchy of /%s", pid, p.Dir)
		}
		back, ok := p.dirOf(members[i].Path)
		if !ok {
			return nil, fmt.Errorf("attach process %d: its group %s is not visible in /%s", pid, members[i].Path, p.Dir)
		}
		plan = append(plan, kernel.Step{
			Op:    kernel.Attach,
			Path:  g.dir(p) + "/cgroup.procs",
			Value: strconv.Itoa(pid),
			Back:  back + "/cgroup.procs",
			Start: start,
		})
	}
	return plan, nil
}

// Procs returns the processes in the group itself, not in its children, in
// rising order: those of any hierarchy. ok is false if the group does not exist. For a
// threaded group the error is a *kernel.NotSupportedError (see kernel.ReadProcs).
func (g Group) Procs() (pids []int, ok bool, err error) {
	for _, p := range g.base.parts {
		some, err := kernel.ReadProcs(g.base.host.root.FS(), g.dir(p))
		if kernel.IgnoreAbsent(err) != nil {
			return nil, false, fmt.Errorf("processes of group %q: %w", g.rel, err)
		}
		ok = ok || err == nil
		pids = append(pids, some...)
	}
	slices.Sort(pids)
	return slices.Compact(pids), ok, nil
}

// read returns a file's text; ok is false if it does not exist.
func (h *Host) read(name string) (text string, ok bool, err error) {
	data, err := fs.ReadFile(h.root.FS(), name)
	if kernel.Absent(err) {
		return "", false, nil
	}
	return string(data), err == nil, err
}
