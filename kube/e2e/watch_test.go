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
	seen    map[string][]cpuset.Set  // by control group: each change
	pairs   map[[2]string]cpuset.Set // two groups that had the same one CPU
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
