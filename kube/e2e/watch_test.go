package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"berth.dev/berth/cpuset"
)

// sampler reads the CPUs of all containers again and again.
type sampler struct {
	end  chan struct{}
	done sync.WaitGroup

	samples int
	seen    map[string][]cpuset.Set // by control group: each change
	pairs   map[[2]string]cpuset.Set
	owners  func(group string) bool
}

// watch starts a sampler.
func (c *cluster) watch(t *testing.T) *sampler {
	t.Helper()
	s := &sampler{end: make(chan struct{}), seen: map[string][]cpuset.Set{}, pairs: map[[2]string]cpuset.Set{}}
	s.done.Go(func() {
		for {
			select {
			case <-s.end:
				return
			default:
				s.sample()
			}
		}
	})
	t.Cleanup(func() { s.stop() })
	return s
}

// sample reads all groups that have processes. Two whose CPUs overlap are noted: who of
// them owns CPUs is known later. As a group is read after the other, an overlap counts only
// if the first one still has its CPUs, and its processes, then.
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
	for i, h := range all {
		if seen := s.seen[h.group]; len(seen) == 0 || seen[len(seen)-1] != h.cpus {
			s.seen[h.group] = append(seen, h.cpus)
		}
		for _, other := range all[:i] {
			both := h.cpus.Intersect(other.cpus)
			if both.IsEmpty() {
				continue
			}
			key := [2]string{other.group, h.group}
			if _, known := s.pairs[key]; known {
				continue
			}
			if is, ok := busy(other.group); ok && is == other.cpus {
				if is, ok := busy(h.group); ok && is == h.cpus {
					s.pairs[key] = both
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

// both returns the overlaps of two groups of which owns says that they own CPUs.
func (s *sampler) both(owns func(group string) bool) (all []string) {
	for pair, cpus := range s.pairs {
		if owns(pair[0]) && owns(pair[1]) {
			all = append(all, pair[0]+" and "+pair[1]+" both had CPUs "+cpus.String())
		}
	}
	slices.Sort(all)
	return all
}
