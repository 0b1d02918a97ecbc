package runq

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"
)

// Culprit is who had the CPU while a watched group waited for it: the id of a
// control group, or one of the constants below.
type Culprit uint64

const special Culprit = 1 << 63

const (
	// Unknown ran since before the probe saw its CPU change hands.
	Unknown = special | 1
	// Idle is nobody: the CPU was idle and had yet to wake up.
	Idle = special | 2
	// Kernel is the kernel threads that are in the root group.
	Kernel = special | 3
	// Throttled is the group's own quota, or that of a group above it.
	Throttled = special | 4
)

// Group returns the id of the control group that it is; ok is false for the
// constants.
func (c Culprit) Group() (id uint64, ok bool) { return uint64(c), c != 0 && c < special }

func (c Culprit) String() string {
	switch c {
	case Unknown:
		return "unknown"
	case Idle:
		return "idle"
	case Kernel:
		return "kernel"
	case Throttled:
		return "throttled"
	}
	return fmt.Sprintf("cgroup %d", uint64(c))
}

// Share is what one culprit cost one group.
type Share struct {
	Culprit Culprit
	// Wait is the time that tasks of the group waited while the culprit had their
	// CPU, summed over tasks.
	Wait time.Duration
	// Preemptions counts the switches from a task of the group that could have
	// gone on to one of the culprit, as the kernel counts
	// nonvoluntary_ctxt_switches.
	Preemptions uint64
}

// Group is what a watched group and the groups below it have suffered.
type Group struct {
	Path string // as given to Add
	ID   uint64
	// Added is when it was added; all figures count from then.
	Added time.Time
	// Histogram has the waits that have ended, by their length; Waits and Wait
	// are their number and sum.
	Histogram Histogram
	Waits     uint64
	Wait      time.Duration
	// Shares says who ran meanwhile, the longest wait first. They also cover waits
	// that have not ended, up to the last switch on their CPU.
	Shares []Share
	// Dropped is wait and pre-emptions by culprits for which a CPU had no room.
	Dropped Share
}

// Share returns what a culprit cost the group.
func (g *Group) Share(c Culprit) Share {
	for _, s := range g.Shares {
		if s.Culprit == c {
			return s
		}
	}
	return Share{Culprit: c}
}

// Cost is what the probe's programs used while the guard had the kernel measure
// it (bpf_stats). The way into a program and the measuring are not in it.
type Cost struct {
	Runs uint64
	Time time.Duration // on all CPUs
	Over time.Duration // how long it was measured
}

// Share is the cost in cores; 0 where nothing was measured.
func (c Cost) Share() float64 {
	if c.Over <= 0 {
		return 0
	}
	return float64(c.Time) / float64(c.Over)
}

func (c Cost) since(d Cost) Cost { return Cost{c.Runs - d.Runs, c.Time - d.Time, c.Over - d.Over} }
func (c Cost) plus(d Cost) Cost  { return Cost{c.Runs + d.Runs, c.Time + d.Time, c.Over + d.Over} }

// Snapshot is what the probe has counted since each group was added.
type Snapshot struct {
	Groups []Group
	Cost   Cost
}

// Since sets s to what happened between two snapshots of a probe. A group that
// is not in the earlier one counts from when it was added. It reuses the memory
// of s, which must be neither of the two.
func (s *Snapshot) Since(before, after *Snapshot) {
	s.Cost = after.Cost.since(before.Cost)
	s.Groups = resize(s.Groups, len(after.Groups))
	for i := range after.Groups {
		now := &after.Groups[i]
		s.Groups[i].copy(now)
		for j := range before.Groups {
			if was := &before.Groups[j]; was.ID == now.ID && was.Added.Equal(now.Added) {
				s.Groups[i].subtract(was)
			}
		}
	}
}

func (g *Group) copy(from *Group) {
	shares := append(g.Shares[:0], from.Shares...)
	*g = *from
	g.Shares = shares
}

func (g *Group) subtract(before *Group) {
	for i := range g.Histogram {
		g.Histogram[i] -= before.Histogram[i]
	}
	g.Waits -= before.Waits
	g.Wait -= before.Wait
	g.Dropped.Wait -= before.Dropped.Wait
	g.Dropped.Preemptions -= before.Dropped.Preemptions
	for i := range g.Shares {
		was := before.Share(g.Shares[i].Culprit)
		g.Shares[i].Wait -= was.Wait
		g.Shares[i].Preemptions -= was.Preemptions
	}
	g.Shares = slices.DeleteFunc(g.Shares, func(s Share) bool { return s.Wait == 0 && s.Preemptions == 0 })
	sortShares(g.Shares)
}

func sortShares(shares []Share) {
	slices.SortFunc(shares, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Wait, a.Wait), cmp.Compare(b.Preemptions, a.Preemptions), cmp.Compare(a.Culprit, b.Culprit))
	})
}

// resize keeps the memory of the groups that it holds.
func resize(groups []Group, n int) []Group {
	return slices.Grow(groups[:0], n)[:n]
}

// Layout of struct group in bpf/runq.c: 64-bit words.
const (
	culpritsPerCPU = 64
	culpritWords   = 3
	headWords      = 1 + buckets + 4
	groupBytes     = 8 * (headWords + culpritsPerCPU*culpritWords)
)

// layout says where the kernel keeps what.
type layout struct{ cpus, groups int }

// read sets g's figures to those of the group's slot, summed over CPUs. buf has
// groupBytes bytes.
func (l layout) read(g *Group, memory io.ReaderAt, slot int, buf []byte) error {
	*g = Group{Path: g.Path, ID: g.ID, Added: g.Added, Shares: g.Shares[:0]}
	for cpu := range l.cpus {
		if _, err := memory.ReadAt(buf, int64(cpu*l.groups+slot)*groupBytes); err != nil {
			return fmt.Errorf("read group %d of cpu %d: %w", slot, cpu, err)
		}
		g.add(buf)
	}
	sortShares(g.Shares)
	return nil
}

// add adds the figures of one CPU.
func (g *Group) add(buf []byte) {
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(buf[8*i:]) }
	for i := range g.Histogram {
		g.Histogram[i] += word(1 + i)
	}
	const after = 1 + buckets
	g.Waits += word(after)
	g.Wait += time.Duration(word(after + 1))
	g.Dropped.Wait += time.Duration(word(after + 2))
	g.Dropped.Preemptions += word(after + 3)
	for i := headWords; i < headWords+culpritsPerCPU*culpritWords; i += culpritWords {
		if id := word(i); id != 0 {
			g.Shares = blame(g.Shares, Share{Culprit(id), time.Duration(word(i + 1)), word(i + 2)})
		}
	}
}

// blame adds a share to that of the same culprit.
func blame(shares []Share, s Share) []Share {
	for i := range shares {
		if shares[i].Culprit == s.Culprit {
			shares[i].Wait += s.Wait
			shares[i].Preemptions += s.Preemptions
			return shares
		}
	}
	return append(shares, s)
}
