package network

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	bpflink "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

const trafficFeature = "network traffic of groups"

// maxEntries is how many pairs of a group and a link are counted at a time. At each reading
// those make room whose group has ended or is not the host's, or whose link is not there: whoever
// may make links of his own could fill the map with them. Until then, more are not counted.
const maxEntries = 4096

// Traffic counts what the groups of a v2 tree send and receive beside loopback, from its
// opening on. Its programs run at every packet of every socket and let all of them pass;
// they are attached beside those of others, and the kernel removes them when this process
// ends, however it does. It is for one goroutine at a time.
type Traffic struct {
	proc   string
	own    string // the namespace of the host
	names  *cgroupstat.Names
	counts *ebpf.Map
	links  []bpflink.Link
	seen   map[key]counts
	groups map[uint64]*group
	totals map[total]counts
	round  int
	keys   []key
	values []counts // by key and CPU
}

// key and counts are the map's; the programs write them.
type key struct {
	Group uint64
	Link  uint32
	_     uint32
}

type counts struct{ Sent, PacketsSent, Received, PacketsReceived uint64 }

func (c counts) plus(d counts) counts {
	return counts{c.Sent + d.Sent, c.PacketsSent + d.PacketsSent, c.Received + d.Received, c.PacketsReceived + d.PacketsReceived}
}

func (c counts) minus(d counts) counts {
	return counts{c.Sent - d.Sent, c.PacketsSent - d.PacketsSent, c.Received - d.Received, c.PacketsReceived - d.PacketsReceived}
}

// group is one that sent or received something.
type group struct {
	path  string // below the tree
	known bool   // in which namespace it is
	host  bool   // it is the host's, whose links those are that it counts by
}

// total is of which group and part counts are.
type total struct {
	path string
	part watch.Part
}

// OpenTraffic begins to count the groups of the v2 tree at a directory; processes are in
// proc. Where this host cannot, the error is a *kernel.NotSupportedError.
func OpenTraffic(tree, proc string) (*Traffic, error) {
	names, err := cgroupstat.OpenNames(tree)
	if err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", trafficFeature, err), names.Close())
	}
	t := &Traffic{
		proc: proc, own: namespaceOf(proc, thread), names: names,
		seen: map[key]counts{}, groups: map[uint64]*group{}, totals: map[total]counts{},
		keys: make([]key, 256), values: make([]counts, 256*cpus),
	}
	if err := t.attach(); err != nil {
		return nil, errors.Join(explain(err), t.Close())
	}
	return t, nil
}

func (t *Traffic) attach() error {
	const rootGroup = 1 // it may be outside of the tree
	if _, err := t.names.Of(rootGroup); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // no group could be named
	}
	var err error
	t.counts, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "berth_traffic", Type: ebpf.PerCPUHash, KeySize: 16, ValueSize: 32, MaxEntries: maxEntries, Flags: unix.BPF_F_NO_PREALLOC,
	})
	if err != nil {
		return err
	}
	for _, direction := range []struct {
		name   string
		attach ebpf.AttachType
		at     int16 // of its counts
	}{{"berth_egress", ebpf.AttachCGroupInetEgress, 0}, {"berth_ingress", ebpf.AttachCGroupInetIngress, 16}} {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: direction.name, Type: ebpf.CGroupSKB, AttachType: direction.attach, License: "Dual MIT/GPL",
			Instructions: count(t.counts, direction.at),
		})
		if err != nil {
			return err
		}
		attached, err := bpflink.AttachRawLink(bpflink.RawLinkOptions{
			Target: int(t.names.Tree().Fd()), Program: program, Attach: direction.attach,
		})
		if err = errors.Join(err, program.Close()); err != nil {
			return err
		}
		t.links = append(t.links, attached)
	}
	return nil
}

// The fields of struct __sk_buff (linux/bpf.h) that the programs read.
const (
	skbLength   = 0
	skbLink     = 40 // ifindex
	skbSegments = 164
)

// count is a program that adds a packet to the counts of its socket's group and its link, of
// which those at an offset are meant, and lets it pass. What the device is to cut into
// segments, or has put together, counts as so many packets.
func count(counts *ebpf.Map, at int16) asm.Instructions {
	const (
		keyAt  = -16 // on the stack
		zeroAt = keyAt - 32
	)
	look := func() asm.Instructions {
		return asm.Instructions{
			asm.LoadMapPtr(asm.R1, counts.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt), asm.FnMapLookupElem.Call(),
		}
	}
	add := func(offset int16, amount asm.Register) asm.Instruction {
		ins := asm.StoreXAdd(asm.R0, amount, asm.DWord)
		ins.Offset = offset
		return ins
	}
	return slices.Concat(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbLink, asm.Word),
		asm.JEq.Imm(asm.R2, loopback, "pass"),
		asm.StoreMem(asm.RFP, keyAt+8, asm.R2, asm.Word),
		asm.StoreImm(asm.RFP, keyAt+12, 0, asm.Word),
		asm.FnSkbCgroupId.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"), // it has no socket
		asm.StoreMem(asm.RFP, keyAt, asm.R0, asm.DWord),
	}, look(), asm.Instructions{
		asm.JNE.Imm(asm.R0, 0, "count"),
		asm.StoreMem(asm.RFP, zeroAt, asm.R0, asm.DWord),
		asm.StoreMem(asm.RFP, zeroAt+8, asm.R0, asm.DWord),
		asm.StoreMem(asm.RFP, zeroAt+16, asm.R0, asm.DWord),
		asm.StoreMem(asm.RFP, zeroAt+24, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, zeroAt),
		asm.Mov.Imm(asm.R4, int32(ebpf.UpdateNoExist)),
		asm.FnMapUpdateElem.Call(),
	}, look(), asm.Instructions{
		asm.JEq.Imm(asm.R0, 0, "pass"), // there is no room
		asm.LoadMem(asm.R1, asm.R6, skbLength, asm.Word).WithSymbol("count"),
		add(at, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbSegments, asm.Word),
		asm.JNE.Imm(asm.R2, 0, "segments"),
		asm.Mov.Imm(asm.R2, 1),
		add(at+8, asm.R2).WithSymbol("segments"),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
		asm.Return(),
	})
}

// explain turns an error of the kernel into what this host lacks, where that is what it
// means.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return unsupported(trafficFeature, "not permitted to attach BPF programs to control groups",
			"run as root, or grant CAP_BPF, CAP_NET_ADMIN and CAP_DAC_READ_SEARCH, outside of user namespaces")
	case errors.Is(err, unix.ENOSYS), errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
		return unsupported(trafficFeature, err.Error(), "boot a kernel 5.9 or newer with CONFIG_CGROUP_BPF")
	}
	return fmt.Errorf("%s: %w", trafficFeature, err)
}

// Close ends counting.
func (t *Traffic) Close() error {
	var errs []error
	for _, l := range t.links {
		errs = append(errs, l.Close())
	}
	if t.counts != nil {
		errs = append(errs, t.counts.Close())
	}
	return errors.Join(append(errs, t.names.Close())...)
}

// lookAgain is after how many readings the namespaces of groups are looked at again.
const lookAgain = 16

// Read appends NetSent, NetReceived, NetPacketsSent and NetPacketsReceived of each group
// that sent or received something since the opening, and of the groups around it, stamped
// with now: by Link, or as the whole in another network namespace than this process's, whose
// links are not the host's. The headers of segments that the device makes are not among the
// bytes; nor is, in another namespace and before Linux 5.14, what is sent or received during
// a reading.
func (t *Traffic) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	current, err := t.read()
	if err != nil {
		return to, err
	}
	links, err := hostLinks()
	if err != nil {
		return to, fmt.Errorf("read %s: %w", trafficFeature, err)
	}
	t.round++
	there, active := map[string]bool{}, map[uint64]bool{}
	for k, c := range current {
		g, err := t.group(k.Group)
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := t.take(k, c); err != nil {
				return to, err
			}
			continue
		}
		if err != nil {
			return to, fmt.Errorf("read %s: %w", trafficFeature, err)
		}
		active[k.Group] = true
		part, before := watch.Part{}, t.seen[k]
		if g.host && links[int(k.Link)] {
			part = link(int(k.Link))
			t.seen[k] = c
		} else if c, err = t.take(k, c); err != nil {
			return to, err
		}
		grown := c.minus(before)
		for path := g.path; path != ""; path = path[:max(strings.LastIndexByte(path, '/'), 0)] {
			of := total{path, part}
			t.totals[of] = t.totals[of].plus(grown)
			there[path] = true
		}
	}
	maps.DeleteFunc(t.totals, func(of total, _ counts) bool {
		return of.part.Kind == watch.Link && !links[of.part.ID] || !there[of.path] && t.idOf(of.path) == 0
	})
	maps.DeleteFunc(t.groups, func(id uint64, g *group) bool { return !active[id] && t.idOf(g.path) != id })
	return t.samples(now, to), nil
}

// take has a pair be counted from zero on when it comes again. It returns what was counted
// until then; before Linux 5.14, which cannot read and delete at once, what was read before.
func (t *Traffic) take(k key, before counts) (counts, error) {
	delete(t.seen, k)
	last := t.values[:len(t.values)/len(t.keys)]
	err := t.counts.LookupAndDelete(k, last)
	switch {
	case err == nil:
		return sum(last), nil
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
		err = t.counts.Delete(k)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return before, fmt.Errorf("read %s: %w", trafficFeature, err)
	}
	return before, nil
}

// sum is of the counts by CPU.
func sum(byCPU []counts) counts {
	var all counts
	for _, c := range byCPU {
		all = all.plus(c)
	}
	return all
}

// hostLinks are the numbers of the links of this namespace.
func hostLinks() (map[int]bool, error) {
	all, err := net.Interfaces()
	links := map[int]bool{}
	for _, l := range all {
		links[l.Index] = true
	}
	return links, err
}

// idOf is the id of the group that has a path now, 0 without one.
func (t *Traffic) idOf(path string) uint64 {
	var stat unix.Stat_t
	if unix.Fstatat(int(t.names.Tree().Fd()), path, &stat, 0) != nil {
		return 0
	}
	return stat.Ino
}

func (t *Traffic) samples(now watch.Time, to []watch.Sample) []watch.Sample {
	order := slices.SortedFunc(maps.Keys(t.totals), func(a, b total) int {
		if a.path != b.path {
			return strings.Compare(a.path, b.path)
		}
		return a.part.ID - b.part.ID
	})
	for _, of := range order {
		c, subject := t.totals[of], watch.Subject{Scope: watch.Group, Name: of.path, Part: of.part}
		to = append(to,
			sample(now, subject, watch.NetSent, float64(c.Sent)), sample(now, subject, watch.NetReceived, float64(c.Received)),
			sample(now, subject, watch.NetPacketsSent, float64(c.PacketsSent)), sample(now, subject, watch.NetPacketsReceived, float64(c.PacketsReceived)))
	}
	return to
}

// read returns what the programs have counted, summed over the CPUs.
func (t *Traffic) read() (map[key]counts, error) {
	all := map[key]counts{}
	var cursor ebpf.MapBatchCursor
	cpus := len(t.values) / len(t.keys)
	for {
		n, err := t.counts.BatchLookup(&cursor, t.keys, t.values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("read %s: %w", trafficFeature, err)
		}
		for i, k := range t.keys[:n] {
			all[k] = sum(t.values[i*cpus : (i+1)*cpus])
		}
		if err != nil {
			return all, nil // those were the last
		}
	}
}

// group finds the group with an id; fs.ErrNotExist for one that has ended.
func (t *Traffic) group(id uint64) (*group, error) {
	g := t.groups[id]
	if g == nil || g.path != "" && t.idOf(g.path) != id {
		path, err := t.names.Of(id)
		if err != nil {
			return nil, err
		}
		g = &group{path: strings.TrimPrefix(path, "/")}
		t.groups[id] = g
	}
	if !g.known || (uint64(t.round)+id)%lookAgain == 0 {
		for _, pid := range processes(filepath.Join(t.names.Tree().Name(), g.path), 1) {
			if ns := namespaceOf(t.proc, pid); ns != "" {
				g.known, g.host = true, ns == t.own
			}
		}
	}
	return g, nil
}
