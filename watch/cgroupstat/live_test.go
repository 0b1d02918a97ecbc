package cgroupstat

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/watch"
)

// liveTrees returns the trees of this host in which it may make groups.
func liveTrees(t testing.TB) []Tree {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Skipf("no mounts to read: %v", err)
	}
	var trees []Tree
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		tree := Tree{Dir: f[1]}
		switch f[2] {
		case "cgroup":
			tree.Version = 1
			for _, option := range strings.Split(f[3], ",") {
				tree.Controllers = append(tree.Controllers, strings.ReplaceAll(option, "blkio", "io"))
			}
			if slices.Contains(tree.Controllers, "cpuset") {
				continue
			}
		case "cgroup2":
			tree.Version = 2
			text, err := os.ReadFile(tree.Dir + "/cgroup.subtree_control")
			if err != nil {
				continue
			}
			tree.Controllers = strings.Fields(string(text))
		default:
			continue
		}
		trees = append(trees, tree)
	}
	return trees
}

// liveGroups makes groups below one of a unique name in each tree of this host
// and returns the trees and the names.
func liveGroups(t testing.TB, count int) ([]Tree, []string) {
	t.Helper()
	trees := slices.DeleteFunc(liveTrees(t), func(tree Tree) bool {
		top, err := os.MkdirTemp(tree.Dir, "berth-probe-")
		if err != nil {
			t.Logf("cannot make groups in %s: %v", tree.Dir, err)
			return true
		}
		os.Remove(top)
		return false
	})
	if len(trees) == 0 {
		t.Skip("no cgroup tree in which groups can be made")
	}
	top := fmt.Sprintf("berth-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	var names []string
	for i := range count {
		names = append(names, fmt.Sprintf("%s/g%03d", top, i))
	}
	for _, tree := range trees {
		for _, name := range append([]string{top}, names...) {
			dir := filepath.Join(tree.Dir, name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(dir) })
		}
	}
	return trees, names
}

// A group that was removed is watch.ErrGone, and a new one of its name is another.
func TestLiveGone(t *testing.T) {
	t.Parallel()
	trees, names := liveGroups(t, 1)
	s := NewSampler(trees, Signals())
	all := Request{Read: SetOf(Signals()...), Fresh: SetOf(Signals()...)}
	defer s.Close()
	if err := s.Add(names[0], 0); err != nil {
		t.Fatal(err)
	}
	got, failed := s.Sample(1, nil, all)
	if len(got) == 0 || len(failed) != 0 {
		t.Fatalf("a new group: %d samples, %v", len(got), failed)
	}
	for _, sample := range got {
		if sample.Quantity == watch.CPUTime && sample.Value != 0 {
			t.Errorf("a new group has used %v s of CPU", sample.Value)
		}
	}
	for _, tree := range trees {
		if err := errors.Join(os.Remove(tree.Dir+"/"+names[0]), os.Mkdir(tree.Dir+"/"+names[0], 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	got, failed = s.Sample(2, got[:0], all)
	if len(got) != 0 || len(failed) != 1 || !errors.Is(failed[0].Err, watch.ErrGone) {
		t.Errorf("made anew: %d samples, %v; want none and ErrGone", len(got), failed)
	}
	if got, failed = s.Sample(3, got[:0], all); len(got) != 0 || len(failed) != 0 {
		t.Errorf("after it was gone: %d samples, %v", len(got), failed)
	}
	if err := s.Add(names[0], 0); err != nil {
		t.Errorf("add the new group: %v", err)
	}
}

func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkSampler250 reads 250 groups of this host, or plain files where it may
// not make groups: what Berth always watches, everything, and one signal at a
// time; and 250 services without the cpu controller, in plain files. It reports the CPU time of a round; at one round per second, 5,000 µs are
// 0.5 % of a core.
func BenchmarkSampler250(b *testing.B) {
	sets := []struct {
		name string
		want []Signal
	}{{"always", Always()}, {"all", Signals()}}
	for _, signal := range Signals() {
		sets = append(sets, struct {
			name string
			want []Signal
		}{strings.ReplaceAll(signal.String(), " ", "-"), []Signal{signal}})
	}
	for _, set := range sets {
		b.Run("kernel/"+set.name, func(b *testing.B) {
			trees, names := liveGroups(b, 250)
			benchmarkSampler(b, trees, names, set.want)
		})
	}
	b.Run("files/no-controller", func(b *testing.B) {
		tree, names := services(b, 250)
		benchmarkSampler(b, []Tree{tree}, names, []Signal{Usage, Throttling})
	})
	b.Run("files/always", func(b *testing.B) {
		trees := []Tree{tree(b, 2, v2Files())}
		var names []string
		for range 250 {
			names = append(names, "g"+strings.Repeat("/.", len(names)))
		}
		benchmarkSampler(b, trees, names, Always())
	})
}

// BenchmarkSampler250AtOneHertz is what the always-on signals cost in use, when
// everything else has had the caches for a second. Run it with -benchtime 10x.
func BenchmarkSampler250AtOneHertz(b *testing.B) {
	trees, names := liveGroups(b, 250)
	s := NewSampler(trees, Always())
	defer s.Close()
	for _, name := range names {
		if err := s.Add(name, 0); err != nil {
			b.Fatal(err)
		}
	}
	always := Request{Read: SetOf(Always()...)}
	samples, _ := s.Sample(0, nil, always)
	now := watch.Time(0)
	var used time.Duration
	for b.Loop() {
		time.Sleep(time.Second)
		start := cpuTime(b)
		now++
		samples, _ = s.Sample(now, samples[:0], always)
		used += cpuTime(b) - start
	}
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/round")
	b.ReportMetric(float64(len(samples)), "samples/round")
}

func benchmarkSampler(b *testing.B, trees []Tree, names []string, want []Signal) {
	s := NewSampler(trees, want)
	defer s.Close()
	for _, name := range names {
		if err := s.Add(name, 0); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.readers[0].signals[0].Err; err != nil && len(want) == 1 {
		b.Skip(err)
	}
	fresh := Request{Read: SetOf(want...), Fresh: SetOf(want...)}
	samples, failed := s.Sample(0, nil, fresh)
	if len(failed) > 0 {
		b.Fatal(failed)
	}
	b.ReportAllocs()
	start := cpuTime(b)
	now := watch.Time(0)
	for b.Loop() {
		now++
		samples, _ = s.Sample(now, samples[:0], fresh)
	}
	b.ReportMetric(float64((cpuTime(b)-start).Microseconds())/float64(b.N), "cpu-µs/round")
	b.ReportMetric(float64(len(samples)), "samples/round")
}
