package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
)

// sampler reads the CPUs of all containers again and again.
type sampler struct {
	end  chan struct{}
	done sync.WaitGroup

	samples int
	slowest time.Duration             // the longest time between two samples
	seen    map[string][]cpuset.Set   // by control group: each change
	pairs   map[[2]string]cpuset.Set  // two groups that had the same one CPU
	over    map[[2]string][]time.Time // one CPU of the first was among those of the second, at these samples
	overs   []overlap                 // those that are over
}

// span is a time.
type span struct{ from, to time.Time }

// overlap is that a group had one CPU, and another that and more.
type overlap struct {
	one, other string
	seen       []time.Time // by samples in a row
}

// watch starts a sampler.
func (c *cluster) watch(t *testing.T) *sampler {
	t.Helper()
	s := &sampler{end: make(chan struct{}), seen: map[string][]cpuset.Set{}, pairs: map[[2]string]cpuset.Set{}, over: map[[2]string][]time.Time{}}
	s.done.Go(func() {
		for began := time.Now(); ; {
			select {
			case <-s.end:
				return
			default:
				s.sample()
				now := time.Now()
				began, s.slowest = now, max(s.slowest, now.Sub(began))
			}
		}
	})
	t.Cleanup(func() { s.stop() })
	return s
}

// sample reads all groups that have processes. Two with the same one CPU are noted: who of
// them owns it is known later. (Whoever owns a CPU in these tests owns one. A container whose
// creation the plugin did not outlive has all CPUs, and owns none.) As a group is read after
// the other, it counts only if both still have that CPU, and processes, then.
func (s *sampler) sample() {
	type has struct {
		group string
		cpus  cpuset.Set
	}
	var all []has
	for _, pattern := range []string{"/pod*/*", "/*/pod*/*"} {
		groups, _ := filepath.Glob(pods() + pattern)
		for _, group := range groups {
			if fi, err := os.Stat(group); err != nil || !fi.IsDir() {
				continue
			}
			if cpus, ok := busy(group); ok {
				all = append(all, has{group, cpus})
			}
		}
	}
	s.samples++
	now, over := time.Now(), map[[2]string][]time.Time{}
	for _, h := range all {
		for _, other := range all {
			if key := [2]string{h.group, other.group}; h.cpus.Len() == 1 && other.cpus.Len() > 1 && other.cpus.Contains(h.cpus) {
				over[key] = append(s.over[key], now)
			}
		}
	}
	for key, was := range s.over {
		if _, still := over[key]; !still {
			s.overs = append(s.overs, overlap{key[0], key[1], was})
		}
	}
	s.over = over
	for i, h := range all {
		if seen := s.seen[h.group]; len(seen) == 0 || seen[len(seen)-1] != h.cpus {
			s.seen[h.group] = append(seen, h.cpus)
		}
		for _, other := range all[:i] {
			if h.cpus.Len() != 1 || h.cpus != other.cpus {
				continue
			}
			key := [2]string{other.group, h.group}
			if _, known := s.pairs[key]; known {
				continue
			}
			if is, ok := busy(other.group); ok && is == other.cpus {
				if is, ok := busy(h.group); ok && is == h.cpus {
					s.pairs[key] = h.cpus
				}
			}
		}
	}
}

// busy reads the CPUs of a group with processes.
func busy(group string) (cpuset.Set, bool) {
	cpus, err := readSet(group + "/cpuset.cpus")
	if err != nil {
		return cpus, false
	}
	procs, err := os.ReadFile(group + "/cgroup.procs")
	return cpus, err == nil && strings.TrimSpace(string(procs)) != ""
}

// stop ends it, and returns how often it read all, and which CPUs each group has had.
func (s *sampler) stop() (int, map[string][]cpuset.Set) {
	select {
	case <-s.end:
	default:
		close(s.end)
	}
	s.done.Wait()
	return s.samples, s.seen
}

// stall is what a time between two samples counts at most: on a host that is too busy for samples
// nobody gets to end an overlap, either.
const stall = 50 * time.Millisecond

// longest returns the overlap of a container that owns a CPU and one that owns none that lasted
// longest without a break, not counting the times in which nobody could end it.
func (s *sampler) longest(owns, shares func(group string) bool, away []span) (worst overlap, lasted time.Duration) {
	for key, is := range s.over {
		s.overs = append(s.overs, overlap{key[0], key[1], is})
	}
	for _, o := range s.overs {
		if !owns(o.one) || !shares(o.other) {
			continue
		}
		var d time.Duration
		for i, at := range o.seen[1:] {
			between := span{o.seen[i], at}
			if left := between.without(away); len(left) != 1 || left[0] != between {
				d = 0
				continue
			}
			if d += min(at.Sub(o.seen[i]), stall); d > lasted {
				worst, lasted = o, d
			}
		}
	}
	return worst, lasted
}

// without is what is left of a time.
func (s span) without(away []span) []span {
	left := []span{s}
	for _, a := range away {
		var next []span
		for _, l := range left {
			if !a.from.Before(l.to) || !a.to.After(l.from) {
				next = append(next, l)
				continue
			}
			if a.from.After(l.from) {
				next = append(next, span{l.from, a.from})
			}
			if a.to.Before(l.to) {
				next = append(next, span{a.to, l.to})
			}
		}
		left = next
	}
	return left
}

func TestWithout(t *testing.T) {
	t.Parallel()
	at := func(i int) time.Time { return time.Unix(int64(i), 0) }
	between := func(i, j int) span { return span{at(i), at(j)} }
	whole := between(10, 20)
	for _, c := range []struct{ away, left []span }{
		{nil, []span{whole}},
		{[]span{between(0, 10), between(20, 30)}, []span{whole}},
		{[]span{between(5, 12), between(14, 15), between(18, 25)}, []span{between(12, 14), between(15, 18)}},
		{[]span{between(0, 30)}, nil},
	} {
		if got := whole.without(c.away); !slices.Equal(got, c.left) {
			t.Errorf("without %v: %v, want %v", c.away, got, c.left)
		}
	}
}

func TestLongest(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	every := func(ms, from, to int) (seen []time.Time) {
		for ; from <= to; from += ms {
			seen = append(seen, at(from))
		}
		return seen
	}
	all := func(string) bool { return true }
	for name, c := range map[string]struct {
		seen []time.Time
		away []span
		want int
	}{
		"one sample":         {every(10, 0, 0), nil, 0},
		"2 s":                {every(10, 0, 2000), nil, 2000},
		"a stall alone":      {every(5000, 0, 5000), nil, 50},
		"a stall within 2 s": {append(every(10, 0, 1000), every(10, 6000, 7000)...), nil, 2050},
		"slow samples":       {every(500, 0, 20_000), nil, 2000},
		"a kill":             {every(10, 0, 2000), []span{{at(1000), at(1500)}}, 1000},
		"all while away":     {every(10, 0, 2000), []span{{at(0), at(2000)}}, 0},
	} {
		s := &sampler{over: map[[2]string][]time.Time{{"a", "b"}: c.seen}, slowest: 5 * time.Second}
		worst, lasted := s.longest(all, all, c.away)
		if lasted != time.Duration(c.want)*time.Millisecond || (c.want > 0) != (worst.one == "a" && worst.other == "b") {
			t.Errorf("%s: %s of %s and %s, want %d ms", name, lasted, worst.one, worst.other, c.want)
		}
		none := func(string) bool { return false }
		if _, lasted := s.longest(all, none, c.away); lasted != 0 {
			t.Errorf("%s: %s of who shares nothing", name, lasted)
		}
	}
}

// both returns the pairs of groups of which owns says that they own CPUs.
func (s *sampler) both(owns func(group string) bool) (all []string) {
	for pair, cpus := range s.pairs {
		if owns(pair[0]) && owns(pair[1]) {
			all = append(all, pair[0]+" and "+pair[1]+" both had CPUs "+cpus.String())
		}
	}
	slices.Sort(all)
	return all
}
