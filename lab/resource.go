package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// Resource is what tenant and neighbour of the isolation experiment compete for.
type Resource string

// The resources. The zero value is CPU.
const (
	CPU    Resource = "cpu"
	Memory Resource = "memory" // page cache, below a limit that both share
	IO     Resource = "io"     // a slow disk of the lab's own
	Net    Resource = "net"    // a network link of the lab's own
)

// Resources lists them.
func Resources() []Resource { return []Resource{CPU, Memory, IO, Net} }

// The sizes of the experiment in memory: the tenant's articles lie in a mapped file, and
// both together may have as much as the tenant takes alone and room besides. Half of that
// is what a limit of its own leaves the neighbour.
const (
	articlesInFile = 32 << 20
	room           = 64 << 20
	cachedFile     = 256 << 20 // what the neighbour reads, round and round
	// keeps is what memory.low leaves the tenant: more than it takes.
	keeps = 256 << 20
)

// The disk of the experiments with I/O: slow enough that a few readers keep it busy with
// little of a CPU. Alone the tenant waits for it 0.2 ms in each of 50 reads per second;
// beside the readers it waits for theirs, of 4 ms each.
const (
	diskBytes = 256 << 20
	diskRate  = 32 << 20 // bytes per second
	diskSeek  = 100 * time.Microsecond
	// DiskReaders are the neighbour's threads that read it, DiskEvery is how many requests
	// of the tenant there are to each that reads.
	DiskReaders = 4
	DiskEvery   = 20
	// oftener is that of the isolation experiment: so often that p95 is of requests that read.
	oftener = 5
	// fair is what a reader of the disk may be left, in bytes per second.
	fair = diskRate / 4
)

// bfq is the I/O scheduler of the kernel that has weights on any disk.
const bfq = "bfq"

// IsolationOf is the built-in experiment about a resource: what does a neighbour do that
// presses on it, and what does each isolation strategy give back?
func IsolationOf(r Resource) (Spec, error) {
	e := IsolationSpec()
	e.Resource = r
	beside := func(name, means string, iso Isolation) Scenario {
		return Scenario{Name: name, Neighbour: true, Isolation: iso, Means: means}
	}
	idle := beside("idle", "neighbour in the idle class of the CPU, beside the tenant's group", Isolation{Idle: true})
	switch r {
	case CPU:
		e.Resource = ""
		return e, nil
	case Memory:
		e.Tenant.WorkingSetBytes, e.Tenant.Demand = articlesInFile, 0.2
		e.Neighbour, e.ThreadsPerCPU = noise.Config{Kernel: "cache", Intensity: 20, Threads: 1}, 0
		e.Scenarios = append(e.Scenarios[:2:2],
			beside(Unisolated, "neighbour beside it, which fills the page cache that both may have together; no tuning", Isolation{}), idle,
			beside("memory-max", "neighbour's memory limited: beyond, its own pages go", Isolation{MemoryMax: room / 2}),
			beside("memory-high", "neighbour slowed down, and its own pages taken, beyond as much", Isolation{MemoryHigh: room / 2}),
			beside("memory-low", "tenant's memory protected from the pressure of others", Isolation{MemoryLow: keeps}),
		)
	case IO:
		e.Tenant.Demand = 0.2 // it is the disk that they compete for
		e.Neighbour, e.ThreadsPerCPU = noise.Config{Kernel: "read", Intensity: 100, Threads: DiskReaders}, 0
		e.Scenarios = append(e.Scenarios[:2:2],
			beside(Unisolated, "neighbour beside it, which reads the disk that the tenant reads, too; no tuning", Isolation{}), idle,
			beside("bfq", "disk's I/O scheduler BFQ, which takes turns", Isolation{Scheduler: bfq}),
			beside("io-weight", "BFQ, and the neighbour at a hundredth of the tenant's share of the disk", Isolation{Scheduler: bfq, IOWeight: 1}),
			beside("io-max", "neighbour limited to a quarter of what the disk can do", Isolation{IOMax: fair}),
		)
	case Net:
		e.Tenant.Demand, e.LinkRate = 0.2, linkRate // it is the link that they compete for
		e.Neighbour, e.ThreadsPerCPU = noise.Config{Kernel: "send", Intensity: 100, Threads: senders}, 0
		part := func(percent float64) traffic.Amount { return traffic.Amount{Percent: percent} }
		e.Scenarios = append(e.Scenarios[:2:2],
			beside(Unisolated, "neighbour beside it, which fills the link that the tenant's answers take, too; no tuning", Isolation{}), idle,
			beside("net-ceiling", "neighbour in a network class with a ceiling: half of the link", Isolation{NetNeighbour: traffic.Share{Ceiling: part(50)}}),
			beside("net-first", "tenant in a network class of the first priority, neighbour of the last, and a floor for both: a fifth of the link",
				Isolation{NetTenant: traffic.Share{Floor: part(20), Priority: 1}, NetNeighbour: traffic.Share{Floor: part(20), Priority: 8}}),
			beside("guarded", "neighbour watched by berth guard, which acts once the tenant suffers; measured from 2.5 s on", Isolation{Guard: true}),
		)
	default:
		return e, fmt.Errorf("resource %q: not one of %s", r, resourceNames())
	}
	return e, nil
}

func resourceNames() string {
	var names []string
	for _, r := range Resources() {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}

// kernels are the neighbours that press on a resource, of which there may be one only.
func (r Resource) kernels() []string {
	switch r {
	case Memory:
		return []string{"cache"}
	case IO:
		return []string{"read"}
	case Net:
		return []string{"send"}
	}
	var names []string
	for _, k := range noise.Kernels() {
		if !k.File && !k.Link {
			names = append(names, k.Name)
		}
	}
	return names
}

// validateResource checks neighbour and scenarios against what they compete for.
func (e Spec) validateResource() error {
	if e.Resource != "" && !slices.Contains(Resources(), e.Resource) {
		return fmt.Errorf("experiment: resource %q: not one of %s", e.Resource, resourceNames())
	}
	if kernels := e.Resource.kernels(); len(e.Neighbour.Command) == 0 && !slices.Contains(kernels, e.Neighbour.Kernel) {
		return fmt.Errorf("experiment: neighbour: kernel %q does not press on %s: want %s", e.Neighbour.Kernel, orCPU(e.Resource), strings.Join(kernels, ", "))
	}
	if orCPU(e.Resource) != CPU && (!e.Tenant.builtIn() || len(e.Neighbour.Command) > 0) {
		return fmt.Errorf("experiment: resource %s: want the built-in tenant and neighbour, which compete for it", e.Resource)
	}
	if (e.Resource == Net) != (e.LinkRate > 0) {
		return fmt.Errorf("experiment: linkRate %s: resource %s has one, and no other does", e.LinkRate, Net)
	}
	for _, s := range e.Scenarios {
		iso := s.Isolation
		if err := e.validateShares(s); err != nil {
			return err
		}
		if iso.Guard && (e.Resource != Net || iso != (Isolation{Guard: true})) {
			return fmt.Errorf("experiment: scenario %s: guard: only where the resource is %s, and without settings of its own", s.Name, Net)
		}
		for _, rule := range []struct {
			name        string
			value, most int64
			of          Resource
		}{
			{"memoryMax", iso.MemoryMax, 1 << 50, Memory}, {"memoryHigh", iso.MemoryHigh, 1 << 50, Memory}, {"memoryLow", iso.MemoryLow, 1 << 50, Memory},
			{"ioWeight", int64(iso.IOWeight), 10_000, IO}, {"ioMax", iso.IOMax, 1 << 50, IO},
		} {
			switch {
			case iso.Scheduler != "" && (e.Resource != IO || iso.Scheduler != bfq):
				return fmt.Errorf("experiment: scenario %s: scheduler %q: want %s, and only where the resource is io", s.Name, iso.Scheduler, bfq)
			case rule.value < 0 || rule.value > rule.most:
				return fmt.Errorf("experiment: scenario %s: %s %d: want 1 to %d", s.Name, rule.name, rule.value, rule.most)
			case rule.value > 0 && e.Resource != rule.of:
				return fmt.Errorf("experiment: scenario %s: %s: only where the resource is %s, not %s", s.Name, rule.name, rule.of, orCPU(e.Resource))
			}
		}
	}
	return nil
}

func orCPU(r Resource) Resource {
	if r == "" {
		return CPU
	}
	return r
}

// equip makes what tenant and neighbour need to compete for the resource: a file to be
// cached, or a disk. Names and numbers differ from those of a run that is resumed.
func (b *Testbed) equip() error {
	tenant, neighbour := &b.Setup.Tenant, &b.Setup.Neighbour
	switch b.spec.Resource {
	case Memory:
		if err := b.backend.group(Around).Has(cgroup.Memory); err != nil || b.opt.Dir == "" {
			return err
		}
		if err := OnDisk(b.opt.Dir); err != nil {
			return err
		}
		tenant.File, neighbour.File = filepath.Join(b.opt.Dir, "articles"), filepath.Join(b.opt.Dir, "cached")
		b.later = append(b.later, func() error { return os.Remove(neighbour.File) })
		return holes(neighbour.File)
	case IO:
		path, err := b.Disk()
		if err != nil {
			return err
		}
		tenant.Disk, tenant.DiskEvery, neighbour.File = path, oftener, path
	case Net:
		return b.connectLink()
	}
	return nil
}

// holes makes a file that takes no room on the disk, and as much of the page cache as any
// other. It goes with the testbed. What has the name by now is a killed run's, or another user's and
// maybe a link: it is not written to.
func holes(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(cachedFile), file.Close())
}

// OnDisk refuses a folder in memory for files whose pages are to be reclaimed: without
// swap they cannot be, and something would be killed instead.
func OnDisk(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("file system of %s: %w", dir, err)
	}
	if t := int64(fs.Type); t == unix.TMPFS_MAGIC || t == unix.RAMFS_MAGIC {
		return &kernel.NotSupportedError{Feature: "memory to be reclaimed", Reason: dir + " is in memory, and its pages cannot be", Remedy: "--results on a disk"}
	}
	return nil
}

// disk is a *noise.Disk, or what stands for it in a test.
type disk interface {
	Path() string
	Number() string
	Schedule(with string) error
}

// Disk is the path of a slow disk of the lab's own, made when it is first asked for and gone
// with the testbed. Where the kernel cannot have one it is a kernel.NotSupportedError.
func (b *Testbed) Disk() (path string, err error) {
	if b.disk != nil {
		return b.disk.Path(), nil
	}
	d, err := noise.OpenDisk(diskBytes, noise.DiskSpeed{Seek: diskSeek, BytesPerSecond: diskRate})
	if err != nil {
		return "", err
	}
	// A v1 kernel counts bytes by group only on devices on which some group has a limit
	// (since Linux 6.10, block/blk-throttle.h): this one is a tebibyte per second.
	undo, err := b.Set(Settings{Around: {IOMax: []cgroup.IOMax{{Device: d.Number(), ReadBPS: 1 << 40}}}})
	if errors.Is(err, kernel.ErrNotSupported) {
		undo, err = func() error { return nil }, nil // nobody asked for the groups' bytes
	}
	if err != nil {
		return "", errors.Join(err, d.Close())
	}
	b.disk = d
	b.later = append(b.later, func() error { return errors.Join(undo(), d.Close()) })
	return d.Path(), nil
}

// share limits the memory that all roles may have together to what the tenant, who has
// all of its own by now, and the room come to.
func (b *Testbed) share() error {
	if b.spec.Resource != Memory {
		return nil
	}
	told, err := b.Statistics(Tenant, cgroupstat.Memory)
	used, ok := told[watch.Memory]
	if err == nil && !ok {
		err = errors.New("the kernel does not say how much memory the tenant has")
	}
	if err != nil {
		return err
	}
	if b.Setup.MemoryMax == 0 {
		b.Setup.MemoryMax = int64(used) + room
	}
	undo, err := b.Set(Settings{Around: {MemoryMax: b.Setup.MemoryMax}})
	if err == nil {
		b.later = append(b.later, undo)
	}
	return err
}

// schedule has the disk's scheduler, the network classes or the guard of a strategy at work for the
// length of a round.
func (b *Testbed) schedule(iso Isolation) Hooks {
	if iso.Guard {
		return Hooks{Settle: b.guarded}
	}
	if iso.shares() {
		return Hooks{Settle: func(_ context.Context, r *Running) error {
			plan, err := b.link.plan(iso)
			if err != nil {
				return err
			}
			undo, err := b.link.apply(plan, b.undoLog)
			if err == nil {
				r.Finish(undo)
			}
			return err
		}}
	}
	if iso.Scheduler == "" {
		return Hooks{}
	}
	return Hooks{Settle: func(_ context.Context, r *Running) error {
		r.Finish(func() error { return b.disk.Schedule("none") })
		return b.disk.Schedule(iso.Scheduler)
	}}
}

// press adds a strategy's limits of memory and I/O to those of the roles.
func (b *Testbed) press(iso Isolation, tenant, neighbour *cgroup.Limits) error {
	neighbour.MemoryMax, neighbour.MemoryHigh, tenant.MemoryLow = iso.MemoryMax, iso.MemoryHigh, iso.MemoryLow
	neighbour.IOWeight = int(iso.IOWeight)
	if iso.Guard {
		return b.link.lacks
	}
	if iso.shares() {
		_, err := b.link.plan(iso)
		return err
	}
	if iso.IOMax == 0 {
		return nil
	}
	_, err := b.Disk()
	if err == nil {
		neighbour.IOMax = []cgroup.IOMax{{Device: b.disk.Number(), ReadBPS: iso.IOMax}}
	}
	return err
}
