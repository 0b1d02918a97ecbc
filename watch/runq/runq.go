// Package runq measures, by eBPF, how long the tasks of watched control groups
// wait for a CPU, and which groups have that CPU meanwhile: run-queue latency
// with the pre-empting group.
//
// It counts in the kernel, in memory of fixed size that Read looks at, and sends
// no events. While it is armed its programs run at every wake-up and context
// switch of the host, so it is to be armed only while its answer is needed; a
// guard disarms it when it costs more than it may. Judging the figures is left to others.
//
// Time that an interrupt or the hypervisor takes is charged to whoever it was
// taken from.
package runq

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch/cgroupstat"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// MaxGroups is how many groups a probe can watch, MaxBelow how many groups each of
// them may be, itself included.
const (
	MaxGroups = 32
	MaxBelow  = 512
)

// DefaultMaxShare is the guard's limit where Options sets none.
const DefaultMaxShare = 0.02

// Options say what to watch. Only Root must be set.
type Options struct {
	// Root is where the hierarchy of the groups is mounted: that of the v1 cpu
	// controller or v2.
	Root string
	// Room is how many groups can be watched at a time; 0 is 8, at most MaxGroups.
	// Each takes 3 KiB per possible CPU.
	Room int
	// MaxShare is the CPU time that the programs may take, of that of all online CPUs,
	// as each CPU has its own switches: 0.02 is four per cent of a core on a host with
	// two. They are too dear if they are above it in two seconds in a row. 0 is
	// DefaultMaxShare; a negative one is no guard.
	MaxShare float64
}

// Validate reports the first option that makes no sense.
func (o Options) Validate() error {
	switch {
	case o.Root == "":
		return errors.New("run-queue probe: no root of control groups")
	case o.Room < 0 || o.Room > MaxGroups:
		return fmt.Errorf("run-queue probe: room for %d groups, want 0 to %d", o.Room, MaxGroups)
	case o.MaxShare != o.MaxShare:
		return errors.New("run-queue probe: share of a core is not a number")
	}
	return nil
}

func (o Options) room() int {
	if o.Room == 0 {
		return 8
	}
	return o.Room
}

func (o Options) maxShare() float64 {
	if o.MaxShare == 0 {
		return DefaultMaxShare
	}
	return o.MaxShare
}

// CostError is why the guard has disarmed a probe.
type CostError struct {
	Share, Limit float64 // of one core
}

func (e *CostError) Error() string {
	return fmt.Sprintf("run-queue probe: takes %.2f %% of a core, may take %.2f %%: disarmed", 100*e.Share, 100*e.Limit)
}

// CrowdedError is why a group is not watched: there are too many groups below it.
// The probe goes on watching the others.
type CrowdedError struct {
	Path string
}

func (e *CrowdedError) Error() string {
	return fmt.Sprintf("group %s has %d groups or more below it, the run-queue probe watches %d at most: remove some, or watch one of those",
		e.Path, MaxBelow, MaxBelow-1)
}

// Probe is the programs in the kernel. It is not safe for use by several
// goroutines at a time.
type Probe struct {
	root    string
	names   *cgroupstat.Names
	objects runqObjects
	links   []link.Link
	layout  layout
	groups  *ebpf.Memory // of struct group by CPU and slot
	slots   []slot
	made    int // programs that were ever watched
	guard   guard
	buf     []byte
}

// slot is the place of one watched group or program; free ones have no path. That of a
// program is its name with programPath before it.
type slot struct {
	path  string
	id    uint64
	added time.Time
	ids   []uint64 // of the group and those below it
}

// Open loads the probe into the kernel; until Arm it costs memory only. Where
// this host cannot have it, the error is a *kernel.NotSupportedError.
func Open(o Options) (*Probe, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	byV2, err := hierarchy(o.Root)
	if err != nil {
		return nil, err
	}
	p := &Probe{root: o.Root, slots: make([]slot, o.room()), buf: make([]byte, groupBytes)}
	if p.names, err = cgroupstat.OpenNames(o.Root); err != nil {
		return nil, fmt.Errorf("open run-queue probe: %w", err)
	}
	if err := p.load(byV2); err != nil {
		p.Close()
		return nil, explain("load run-queue probe", err)
	}
	online, err := onlineCPUs()
	if err != nil {
		p.Close()
		return nil, err
	}
	p.guard = newGuard(o.maxShare()*float64(online), p.programs())
	return p, nil
}

func (p *Probe) load(byV2 bool) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	p.layout = layout{cpus: cpus, groups: len(p.slots)}
	spec, err := loadRunq()
	if err != nil {
		return err
	}
	spec.Maps[runqMapCpus].MaxEntries = uint32(cpus)
	spec.Maps[runqMapGroups].MaxEntries = uint32(cpus * len(p.slots))
	spec.Maps[runqMapWatch].MaxEntries = uint32(MaxBelow * len(p.slots))
	if !byV2 {
		number, err := hierarchyNumber()
		if err != nil {
			return err
		}
		if err := spec.Variables[runqVarHierarchy].Set(number); err != nil {
			return err
		}
	}
	if err := spec.Variables[runqVarByV2].Set(byV2); err != nil {
		return err
	}
	if err := spec.Variables[runqVarMaxGroups].Set(uint32(len(p.slots))); err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
		return err
	}
	p.groups, err = p.objects.Groups.Memory()
	return err
}

func onlineCPUs() (int, error) {
	const file = "/sys/devices/system/cpu/online"
	list, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("count online CPUs: %w", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(list)))
	if err != nil {
		return 0, fmt.Errorf("count online CPUs: %s: %w", file, err)
	}
	return online.Len(), nil
}

// programs are in the order in which to attach them: a wait must not begin
// where its end, or its move to another CPU, would not be seen.
func (p *Probe) programs() []*ebpf.Program {
	return []*ebpf.Program{p.objects.CgroupMkdir, p.objects.SchedMigrateTask, p.objects.SchedSwitch, p.objects.SchedWakeup, p.objects.SchedWakeupNew}
}

// Arm attaches the probe: it counts from now on. Waits that have begun are not
// seen. Arming an armed probe does nothing.
func (p *Probe) Arm() error {
	if p.links != nil {
		return nil
	}
	if err := p.forgetWaits(); err != nil {
		return fmt.Errorf("arm run-queue probe: %w", err)
	}
	if err := p.guard.arm(time.Now()); err != nil {
		return err
	}
	for _, program := range p.programs() {
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return errors.Join(explain("arm run-queue probe", err), p.Disarm())
		}
		p.links = append(p.links, l)
	}
	return nil
}

// Disarm detaches the probe. What it has counted can still be read, and goes on
// when it is armed again.
func (p *Probe) Disarm() error {
	var errs []error
	for _, l := range slices.Backward(p.links) {
		errs = append(errs, l.Close())
	}
	p.links = nil
	errs = append(errs, p.guard.stop(time.Now()))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("disarm run-queue probe: %w", err)
	}
	return nil
}

// forgetWaits clears the waits whose end was not seen.
func (p *Probe) forgetWaits() error {
	for cpu := range p.layout.cpus {
		if err := p.objects.Cpus.Put(uint32(cpu), runqCpu{}); err != nil {
			return err
		}
	}
	if err := p.objects.Migrated.Set(uint64(0)); err != nil {
		return err
	}
	var times uint32
	if err := p.objects.Armed.Get(&times); err != nil {
		return err
	}
	return p.objects.Armed.Set(times + 1)
}

// Close detaches the probe and frees its memory in the kernel.
func (p *Probe) Close() error {
	err := errors.Join(p.Disarm(), p.objects.Close(), p.names.Close())
	if err != nil {
		return fmt.Errorf("close run-queue probe: %w", err)
	}
	return nil
}

// Add watches a group and those that are below it now; adding it again takes in
// those made since. Groups above or below a watched one are refused, and so is one
// with too many groups below it, with a *CrowdedError. A group that is refused when
// it is added again is watched no more. A program of the root group is watched by its
// ProgramPath.
func (p *Probe) Add(path string) error {
	if name, ok := Program(path); ok {
		return p.addProgram(name)
	}
	path = filepath.Clean("/" + path)
	i := slices.IndexFunc(p.slots, func(s slot) bool { return s.path == path })
	isNew := i < 0
	if isNew {
		var err error
		if i, err = p.claim(path); err != nil {
			return fmt.Errorf("watch group %s: %w", path, err)
		}
	}
	if err := p.refresh(&p.slots[i], uint64(i)); err != nil {
		return fmt.Errorf("watch group %s: %w", path, errors.Join(err, p.Remove(path)))
	}
	return nil
}

// claim finds a free slot and clears what it counted for another group.
func (p *Probe) claim(path string) (int, error) {
	free := -1
	for i, s := range p.slots {
		switch {
		case s.path == "" && free < 0:
			free = i
		case s.path != "" && (kernel.Within(s.path, path) || kernel.Within(path, s.path)):
			return 0, fmt.Errorf("overlaps %s, which is watched", s.path)
		}
	}
	if free < 0 {
		return 0, fmt.Errorf("already watching %d, which is all there is room for", len(p.slots))
	}
	ids, err := idsBelow(p.root, path)
	if err != nil {
		return 0, err
	}
	if err := p.clear(free, ids[0]); err != nil {
		return 0, err
	}
	p.slots[free] = slot{path: path, id: ids[0], added: time.Now()}
	return free, nil
}

// clear makes room for the figures of a group or program in a slot.
func (p *Probe) clear(slot int, id uint64) error {
	for cpu := range p.layout.cpus {
		if err := p.objects.Groups.Put(uint32(cpu*p.layout.groups+slot), runqGroup{Id: id}); err != nil {
			return err
		}
	}
	return nil
}

// refresh makes the kernel watch the groups that are at and below the slot's.
func (p *Probe) refresh(s *slot, index uint64) error {
	ids, err := idsBelow(p.root, s.path)
	if err != nil {
		return err
	}
	if ids[0] != s.id {
		return errors.New("another group has taken its place: remove it first")
	}
	// Those that are gone make room for the new ones.
	gone := slices.DeleteFunc(slices.Clone(s.ids), func(id uint64) bool { return slices.Contains(ids, id) })
	if err := p.forget(gone); err != nil {
		return err
	}
	s.ids = ids
	for _, id := range ids {
		if err := p.objects.Watch.Put(id, runqWatched{Id: s.id, Group: index}); err != nil {
			return err
		}
	}
	return nil
}

func (p *Probe) forget(ids []uint64) error {
	for _, id := range ids {
		if err := p.objects.Watch.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// Remove ends watching a group; its figures are gone. The group itself need not
// exist any more.
func (p *Probe) Remove(path string) error {
	_, isProgram := Program(path)
	if !isProgram {
		path = filepath.Clean("/" + path)
	}
	i := slices.IndexFunc(p.slots, func(s slot) bool { return s.path == path })
	if i < 0 {
		return fmt.Errorf("stop watching group %s: not watched", path)
	}
	if err := p.forget(p.slots[i].ids); err != nil {
		return fmt.Errorf("stop watching group %s: %w", path, err)
	}
	p.slots[i] = slot{}
	if isProgram {
		return p.removeProgram(path)
	}
	return nil
}

// Read sets s to what has been counted, reusing its memory. When the guard finds
// the probe too costly it disarms it, s is set all the same, and the error is a
// *CostError.
func (p *Probe) Read(s *Snapshot) error {
	n := 0
	s.Groups = resize(s.Groups, len(p.slots))
	for i, slot := range p.slots {
		if slot.path == "" {
			continue
		}
		g := &s.Groups[n]
		g.Path, g.ID, g.Added = slot.path, slot.id, slot.added
		if err := p.layout.read(g, p.groups, i, p.buf); err != nil {
			return err
		}
		n++
	}
	s.Groups = s.Groups[:n]
	var err error
	s.Cost, err = p.guard.check(time.Now())
	if err == nil {
		return nil
	}
	if over := (*CostError)(nil); errors.As(err, &over) {
		return errors.Join(err, p.Disarm())
	}
	return err
}

// hierarchy tells v2 from the v1 cpu controller by what is mounted at root.
func hierarchy(root string) (v2 bool, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return false, fmt.Errorf("stat control groups at %s: %w", root, err)
	}
	switch fs.Type {
	case unix.CGROUP2_SUPER_MAGIC:
		return true, nil
	case unix.CGROUP_SUPER_MAGIC:
		if err := unix.Access(filepath.Join(root, "cpu.shares"), unix.F_OK); err != nil {
			return false, fmt.Errorf("%s: not the hierarchy of the v1 cpu controller", root)
		}
		return false, nil
	}
	return false, fmt.Errorf("%s: no control groups are mounted there", root)
}
