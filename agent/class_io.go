package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
	"berth.dev/berth/kernel/sched"
)

// An I/O class is settings of the workload's own control group, and so limits, that are
// planned and undone with all others (groups.settings). What is beside the group is the
// classifier's: io.cost, which the root group has, and the I/O priority of threads.

// ioClass is what a workload has by its I/O class, as the devices are now.
type ioClass struct {
	name   string
	limits cgroup.Limits
	notes  []string // what of it is not there
	// weighs says that there are I/O classes: a weight that none gives is none of Berth's group.
	weighs bool
}

func (n *Node) ioClass(s *Spec) (c ioClass, err error) {
	c.weighs = n.opt.Classes.IO != nil
	name := n.opt.Classes.ClassOf(IOClass, s)
	if name == "" {
		return c, nil
	}
	if err := n.opt.Classes.defined(IOClass, &Workload{Spec: *s}); err != nil {
		return c, err
	}
	c.name = name
	devices, err := n.blockDevices()
	if err != nil {
		return c, err
	}
	c.limits, c.notes = n.opt.Classes.IO.Limits(c.name, devices)
	return c, nil
}

// blockDevices are those of the host when the node was last turned to.
func (n *Node) blockDevices() (_ *blockio.Devices, err error) {
	if n.disks == nil {
		dir, version := ioTree(n.root.FS())
		n.disks, err = blockio.Read(n.root.FS(), costFile(dir, version))
	}
	return n.disks, err
}

// costFile is io.cost.qos of the root group, "" where v1 has the controller, or nobody.
func costFile(dir string, version int) string {
	if version != 2 {
		return ""
	}
	return path.Join(dir, blockio.CostQoS)
}

// ioTree is where the controller of block I/O is mounted, "" if it is not.
func ioTree(fsys fs.FS) (dir string, version int) {
	mounts, _ := kernel.ReadMounts(fsys) // an error is cgroup.Detect's to tell
	for i := range mounts {
		m := &mounts[i]
		if m.Type == "cgroup" && slices.Contains(m.Options, "blkio") {
			return m.Dir, 1
		}
		offered, _ := fs.ReadFile(fsys, path.Join(m.Dir, "cgroup.controllers"))
		if m.Type == "cgroup2" && slices.Contains(strings.Fields(string(offered)), cgroup.IO) {
			return m.Dir, 2
		}
	}
	return "", 0
}

// withIO adds to limits those of an I/O class, where they say nothing.
func withIO(l, class cgroup.Limits) cgroup.Limits {
	if l.IOWeight == 0 {
		l.IOWeight = class.IOWeight
	}
	own := l.IOMax
	l.IOMax = slices.Clone(own)
	for _, m := range class.IOMax {
		i := slices.IndexFunc(own, func(o cgroup.IOMax) bool { return o.Device == m.Device })
		if i < 0 {
			l.IOMax = append(l.IOMax, m)
			continue
		}
		l.IOMax[i] = own[i].Over(m)
	}
	return l
}

// isIOStep reports whether a step is of the classifier of I/O classes.
func isIOStep(s kernel.Step) bool {
	_, isPriority := sched.IOPriorityOf(s.Path)
	file := path.Base(s.Path)
	return isPriority || file == blockio.CostQoS || file == blockio.CostModel
}

type ioClasses struct{ n *Node }

func (k *ioClasses) plan(c *Transition) (plan kernel.Plan, err error) {
	some := false
	for w := range c.Workloads() {
		name, err := k.n.opt.Classes.classIn(c, IOClass, w)
		if err != nil {
			return nil, err
		}
		some = some || name != ""
	}
	config := k.n.opt.Classes.IO
	if !some || len(config.Cost) == 0 {
		return nil, nil
	}
	all, _, err := k.cost()
	if errors.Is(err, kernel.ErrNotSupported) {
		return nil, nil // a note says so
	}
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		_, same, err := k.n.root.Shows(s)
		if err != nil {
			return nil, err
		}
		if !same && !c.Yielded(s.Path) {
			plan = append(plan, s)
		}
	}
	return plan, nil
}

// cost are the settings of io.cost.
func (k *ioClasses) cost() (kernel.Plan, []string, error) {
	devices, err := k.n.blockDevices()
	if err != nil {
		return nil, nil, err
	}
	dir, err := costDir(k.n.root.FS())
	if err != nil {
		return nil, nil, err
	}
	plan, notes := k.n.opt.Classes.IO.PlanCost(dir, devices)
	return plan, notes, nil
}

// LacksIOCost returns why a host has no io.cost; nil if it has.
func LacksIOCost(root *kernel.Root) error {
	_, err := costDir(root.FS())
	return err
}

// costDir is the group with the files of io.cost, the root group of cgroup v2.
func costDir(fsys fs.FS) (string, error) {
	dir, version := ioTree(fsys)
	if version != 2 {
		return "", &kernel.NotSupportedError{Feature: blockio.CostQoS, Reason: "the io controller is not on cgroup v2", Remedy: "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or leave cost out"}
	}
	file := costFile(dir, version)
	_, err := fs.Stat(fsys, file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &kernel.NotSupportedError{Feature: blockio.CostQoS, Reason: fmt.Sprintf("/%s is not there", file), Remedy: "use a kernel with CONFIG_BLK_CGROUP_IOCOST, outside of a container, or leave cost out"}
	}
	return dir, err
}

func (k *ioClasses) used(c *Transition) func(kernel.Step) bool {
	config := k.n.opt.Classes.IO
	leaving, all := k.n.leaving(c, IOClass)
	all = all || c.All
	some, of, err := false, map[int]bool{}, error(nil) // of are the threads that have a priority or, unless all, had one
	note := func(w *Workload) {
		if config.Priority(k.n.opt.Classes.ClassOf(IOClass, &w.Spec)) == "" || err != nil {
			return
		}
		var tids []int
		tids, err = k.threads(w)
		for _, tid := range tids {
			of[tid] = true
		}
	}
	for w := range c.Workloads() {
		some = some || config.Has(k.n.opt.Classes.ClassOf(IOClass, &w.Spec))
		if all {
			note(w)
		}
	}
	if !all {
		for _, w := range leaving {
			note(w)
		}
	}
	var cost kernel.Plan
	if some && len(config.Cost) > 0 {
		cost, _, _ = k.cost() // an error is plan's to tell
	}
	return func(s kernel.Step) bool {
		if tid, ok := sched.IOPriorityOf(s.Path); ok {
			return err != nil || of[tid] == all
		}
		return slices.ContainsFunc(cost, func(o kernel.Step) bool { return o.Path == s.Path && o.Unset == s.Unset })
	}
}

func (*ioClasses) about(*Transition, kernel.Step) (name, id string) { return "", "" }

func (k *ioClasses) threads(w *Workload) ([]int, error) {
	if w.State == Reserved {
		return nil, nil
	}
	tids, err := k.n.threadsOf(w)
	if err != nil {
		return nil, fmt.Errorf("threads of workload %q: %w", w.ID(), err)
	}
	return tids, nil
}

// prioritizing gives threads priorities.
type prioritizing struct {
	*ioClasses
	c     *Transition
	noted map[int]string // files of which there are notes, by thread
	undos []func() error
	moved int
}

// follow gives the threads of workloads the priority of their class. Those that have none any
// more get back what they had by the log; here those lose theirs that have inherited it.
func (k *ioClasses) follow(c *Transition) (moved int, undo func() error, err error) {
	p := &prioritizing{ioClasses: k, c: c, noted: map[int]string{}}
	for s := range c.Log.Steps() {
		if tid, ok := sched.IOPriorityOf(s.Path); ok {
			p.noted[tid] = s.Path
		}
	}
	err = p.all()
	return p.moved, join(p.undos...), err
}

// all gives the threads of all workloads theirs.
func (p *prioritizing) all() error {
	for w := range p.c.Former() {
		if p.c.After(w.ID()) == nil {
			if err := p.each(w, "", ""); err != nil {
				return refusal(IOClass, "", w.ID(), err)
			}
		}
	}
	config := p.n.opt.Classes
	for w := range p.c.Workloads() {
		if !p.c.looksAt(w) {
			continue
		}
		name := config.ClassOf(IOClass, &w.Spec)
		err := p.each(w, config.IO.Priority(name), "I/O class "+name)
		if err == nil {
			continue
		}
		if p.c.asks(w.ID()) {
			return refusal(IOClass, name, w.ID(), err)
		}
		p.n.without(IOClass, name, w.ID(), err)
	}
	return nil
}

// each gives the threads of a workload a priority; "" is none.
func (p *prioritizing) each(w *Workload, priority, why string) error {
	tids, err := p.threads(w)
	if err != nil {
		return err
	}
	if priority == "" && !slices.ContainsFunc(tids, func(tid int) bool { return p.noted[tid] != "" }) {
		return nil
	}
	for _, tid := range tids {
		if err := p.one(tid, priority, why); err != nil {
			return err
		}
	}
	return nil
}

func (p *prioritizing) one(tid int, priority, why string) error {
	if p.noted[tid] == "" && p.inherited(p.c.Log, p.noted, tid, priority) {
		back, err := p.prioritize(p.priorityFile(tid), "none", "", nil)
		if err != nil {
			return err
		}
		if back != nil {
			p.undos = append(p.undos, back)
		}
	}
	if priority == "" {
		return nil
	}
	file := p.priorityFile(tid)
	if p.left(p.c, file, priority, why) {
		return nil
	}
	back, err := p.prioritize(file, priority, why, p.c.Log)
	if err != nil {
		return err
	}
	if back != nil {
		p.undos, p.moved = append(p.undos, back), p.moved+1
	}
	return nil
}

// priorityFile is that of a thread; "" if it has ended.
func (k *ioClasses) priorityFile(tid int) string {
	p, err := kernel.ReadProcess(k.n.root.FS(), strconv.Itoa(tid))
	if err != nil {
		return ""
	}
	return sched.IOPriorityFile(tid, p.Start)
}

// inherited reports whether a thread without a note has a priority, another than it is to have,
// that Berth wrote for a thread of its process, or of one that this one descends from; noted are
// the files of which there are notes.
func (k *ioClasses) inherited(log *kernel.UndoLog, noted map[int]string, tid int, priority string) bool {
	if len(noted) == 0 {
		return false
	}
	text, err := kernel.ReadText(k.n.root.FS(), k.priorityFile(tid))
	if err != nil || text == priority || text == "none" {
		return false
	}
	const most = 64 // generations
	of := tid
	for range most {
		for _, sibling := range k.n.threadsOfProcess(of) {
			if log.Wrote(noted[sibling], text) {
				return true
			}
		}
		p, err := kernel.ReadProcess(k.n.root.FS(), strconv.Itoa(of))
		if of = p.Parent; err != nil || of <= 1 {
			return false
		}
	}
	return false
}

// left reports whether the priority that a thread had of its class was changed by somebody else
// so often that it is theirs (Options.Rewrites). Each change counts.
func (k *ioClasses) left(c *Transition, name, priority, why string) bool {
	if !c.Log.Wrote(name, priority) {
		return false
	}
	text, err := kernel.ReadText(k.n.root.FS(), name)
	if err != nil || c.Log.Wrote(name, text) {
		return false
	}
	if c.Yielded(name) {
		return true
	}
	count, yielded := k.n.foundChanged(name)
	k.n.changedPriorities = append(k.n.changedPriorities, Repair{Path: name, Found: text, Wanted: priority, Count: count, Why: why, Yielded: yielded})
	return yielded
}

// prioritize gives the thread of a file a priority; undo is nil if it has it, or has ended.
func (k *ioClasses) prioritize(file, priority, why string, log *kernel.UndoLog) (undo func() error, err error) {
	if file == "" {
		return nil, nil
	}
	step := kernel.Step{Path: file, Value: priority, Why: why}
	if _, same, err := k.n.root.Shows(step); same || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	undo, err = kernel.Apply(k.n.root, kernel.Plan{step}, log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return undo, err
}

// notes say what of a class is not in force, and why.
func (k *ioClasses) notes(w *Workload) []string {
	class, err := k.n.ioClass(&w.Spec)
	if err != nil {
		return []string{err.Error()}
	}
	return k.n.notesOnce(IOClass, class.name, func() []string { return k.notesOf(&class) })
}

func (k *ioClasses) notesOf(class *ioClass) (notes []string) {
	notes = slices.Clone(class.notes)
	_, ok := k.n.enforcer.(*groups)
	switch {
	case ok || limitless(class.limits):
	case k.n.site.Around == nil:
		notes = append(notes, fmt.Sprintf("its limits and weights are not in force: by %s Berth sets none", k.n.site.Backend))
	default:
		if err := k.lacks(&class.limits); err != nil {
			notes = append(notes, fmt.Sprintf("its limits and weights are not in force: %v", err))
		}
	}
	if len(k.n.opt.Classes.IO.Cost) > 0 {
		_, absent, err := k.cost()
		if notes = append(notes, absent...); err != nil {
			notes = append(notes, err.Error())
		}
	}
	for i := range notes {
		notes[i] = fmt.Sprintf("I/O class %q: %s", class.name, notes[i])
	}
	return notes
}

// lacks says why groups of this host cannot have some limits; nil if they can.
func (k *ioClasses) lacks(l *cgroup.Limits) error {
	lacks, err := Lacks(k.n.root)
	if err != nil {
		return err
	}
	settings := l.Settings()
	for _, id := range settings.IDs() {
		if err := lacks(id.Knob); err != nil {
			return err
		}
	}
	return nil
}

// reportIO is the section of the kind io: what each class comes to with the disks that there
// are.
func reportIO(r *classReading) (s ClassSection, err error) {
	dir, version := ioTree(r.fsys)
	if dir == "" {
		return s, &kernel.NotSupportedError{Feature: "I/O classes", Reason: "no tree of control groups has the io controller", Remedy: "see 'berth doctor', io"}
	}
	config := r.config.IO
	if config == nil {
		return s, nil
	}
	devices, err := blockio.Read(r.fsys, costFile(dir, version))
	if err != nil {
		return s, err
	}
	_, absent := config.PlanCost(dir, devices)
	for _, note := range absent {
		s.Notes = append(s.Notes, "io.cost: "+note)
	}
	for _, name := range config.Names() {
		c := ClassUse{Name: name, Workloads: r.members(IOClass, name)}
		c.InForce = len(c.Workloads) > 0
		var l cgroup.Limits
		l, c.Notes = config.Limits(name, devices)
		settings := l.Settings()
		for _, id := range settings.IDs() {
			if settings[id] == id.Default {
				continue
			}
			value := settings[id]
			if id.Type == knob.Time {
				value += " us"
			}
			if id.Key != "" {
				value = strings.TrimSpace(value + " on " + devices.Name(id.Key))
			}
			c.Settings = append(c.Settings, ClassSetting{id.Words, value})
		}
		if priority := config.Priority(name); priority != "" {
			c.Settings = append(c.Settings, ClassSetting{"priority", priority})
		}
		s.Classes = append(s.Classes, c)
	}
	return s, nil
}
