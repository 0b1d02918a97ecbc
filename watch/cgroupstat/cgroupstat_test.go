package cgroupstat

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

const psiText = "some avg10=1.00 avg60=0.00 avg300=0.00 total=2000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n"

// v2Files is a group of a v2 host.
func v2Files() map[string]string {
	return map[string]string{
		"cgroup.procs":  "",
		"cgroup.events": "populated 1\nfrozen 0\n",
		"cpu.max":       "max 100000\n",
		"cpu.stat": "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\nnice_usec 0\ncore_sched.force_idle_usec 7\n" +
			"nr_periods 10\nnr_throttled 4\nthrottled_usec 500000\nnr_bursts 2\nburst_usec 250000\n",
		"cpu.stat.local":   "throttled_usec 750000\n",
		"memory.current":   "8192\n",
		"memory.events":    "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\n",
		"memory.stat":      "anon 4096\nfile 1024\nslab 9\nworkingset_refault_anon 3\nworkingset_refault_file 4\npgfault 100\npgmajfault 2\n",
		"memory.numa_stat": "anon N0=1024 N1=3072\nfile N0=1024 N1=0\nslab N0=9 N1=0\n",
		"pids.current":     "12\n",
		"io.stat":          "8:0 rbytes=4096 wbytes=512 rios=2 wios=1 dbytes=9 dios=9\n259:1 \n",
		"cpu.pressure":     psiText,
		"memory.pressure":  psiText,
		"io.pressure":      psiText,
		"irq.pressure":     "full avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\n",
	}
}

// v1Files is a group of a v1 host, all trees in one.
func v1Files() map[string]string {
	return map[string]string{
		"cgroup.procs":          "",
		"cpuacct.usage":         "3000000000\n",
		"cpuacct.stat":          "user 200\nsystem 100\n",
		"cpu.cfs_quota_us":      "-1\n",
		"cpu.stat":              "nr_periods 10\nnr_throttled 4\nthrottled_time 500000000\nnr_bursts 2\nburst_time 250000000\n",
		"cpu.stat.local":        "throttled_time 750000000\n",
		"memory.usage_in_bytes": "8192\n",
		"memory.failcnt":        "3\n",
		"memory.oom_control":    "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
		"memory.stat":           "cache 7\nrss 7\ntotal_cache 1024\ntotal_rss 4096\ntotal_workingset_refault_anon 3\ntotal_workingset_refault_file 4\ntotal_pgfault 100\ntotal_pgmajfault 2\n",
		"memory.numa_stat":      "anon=9 N0=9 N1=0\nhierarchical_total=9 N0=9 N1=0\nhierarchical_file=1 N0=1 N1=0\nhierarchical_anon=4 N0=1 N1=3\n",
		"pids.current":          "12\n",
		"blkio.throttle.io_service_bytes_recursive": "8:0 Read 4096\n8:0 Write 512\n8:0 Sync 0\n8:0 Total 4608\nTotal 4608\n",
		"blkio.throttle.io_serviced_recursive":      "8:0 Read 2\n8:0 Write 1\n8:0 Total 3\nTotal 3\n",
	}
}

// tree writes a group "g" and returns the tree that it is in.
func tree(t testing.TB, version int, files map[string]string) Tree {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/g", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, "g", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	controllers := []string{"cpu", "cpuset", "io", "memory", "pids"}
	if version == 1 {
		controllers = append(controllers, "cpuacct")
	}
	return Tree{Version: version, Controllers: controllers, Dir: dir}
}

func opened(t testing.TB, trees []Tree, want ...Signal) *Reader {
	t.Helper()
	r, err := Open(trees, "g", want...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// show is the samples as text, "cpu_time 3" and "memory_anon node1 3072".
func show(samples []watch.Sample) string {
	var b strings.Builder
	for _, s := range samples {
		fmt.Fprintf(&b, "%s %s %g\n", s.Quantity, s.Subject.Part, s.Value)
	}
	return strings.ReplaceAll(b.String(), "  ", " ")
}

const usageText = "cpu_time 3\ncpu_user 2\ncpu_system 1\n"
const throttlingText = "cpu_periods 10\ncpu_throttled_periods 4\ncpu_throttled 0.5\ncpu_bursts 2\ncpu_burst_time 0.25\n"
const ioText = "io_read 8:0 4096\nio_written 8:0 512\nio_reads 8:0 2\nio_writes 8:0 1\n"

func TestReadV2(t *testing.T) {
	t.Parallel()
	r := opened(t, []Tree{tree(t, 2, v2Files())})
	got, err := r.Read(7, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := usageText + throttlingText + "cpu_throttled_any 0.75\nmemory 8192\n" +
		"memory_low 1\nmemory_high 2\nmemory_max 3\nmemory_oom 4\nmemory_oom_kills 5\n" +
		"memory_anon 4096\nmemory_file 1024\nrefaults 7\npage_faults 100\nmajor_faults 2\n" +
		"memory_anon node0 1024\nmemory_anon node1 3072\nmemory_file node0 1024\nmemory_file node1 0\n" +
		"tasks 12\n" + ioText +
		"cpu_some 2\ncpu_full 1\nmemory_some 2\nmemory_full 1\nio_some 2\nio_full 1\nirq_full 3\npopulated 1\nfrozen 0\n"
	if diff := cmp.Diff(want, show(got)); diff != "" {
		t.Error(diff)
	}
	for _, s := range got {
		if s.Time != 7 || s.Subject.Scope != watch.Group || s.Subject.Name != "g" {
			t.Errorf("sample %+v is not of group g at 7", s)
		}
	}
	for _, s := range r.Signals() {
		if s.Err != nil {
			t.Errorf("%v: %v", s.Signal, s.Err)
		}
	}
}

func TestReadV1(t *testing.T) {
	t.Parallel()
	r := opened(t, []Tree{tree(t, 1, v1Files())})
	got, err := r.Read(7, nil)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	want := usageText + throttlingText + "cpu_throttled_any 0.75\nmemory 8192\nmemory_max 3\nmemory_oom_kills 5\n" +
		"memory_file 1024\nmemory_anon 4096\nrefaults 7\npage_faults 100\nmajor_faults 2\n" +
		fmt.Sprintf("memory_file node0 %g\nmemory_file node1 0\nmemory_anon node0 %g\nmemory_anon node1 %g\n", float64(page), float64(page), float64(3*page)) +
		"tasks 12\nio_read 8:0 4096\nio_written 8:0 512\nio_reads 8:0 2\nio_writes 8:0 1\n"
	if diff := cmp.Diff(want, show(got)); diff != "" {
		t.Error(diff)
	}
	for _, s := range r.Signals() {
		if v2only := s.Signal >= CPUPressure; v2only != errors.Is(s.Err, kernel.ErrNotSupported) {
			t.Errorf("%v: %v", s.Signal, s.Err)
		}
	}
}

// On a hybrid host, the controllers are read on v1 and pressure on v2.
func TestReadHybrid(t *testing.T) {
	t.Parallel()
	v2 := tree(t, 2, map[string]string{
		"cgroup.procs": "", "cgroup.events": "populated 0\n", "cpu.stat": "usage_usec 999\n", "cpu.pressure": psiText,
	})
	v2.Controllers = nil
	r := opened(t, []Tree{v2, tree(t, 1, v1Files())}, Usage, Split, Throttling, ThrottlingAny, CPUPressure, IOPressure, State)
	got, err := r.Read(7, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := usageText + throttlingText + "cpu_throttled_any 0.75\ncpu_some 2\ncpu_full 1\npopulated 0\n"
	if diff := cmp.Diff(want, show(got)); diff != "" {
		t.Error(diff)
	}
}

func TestSignalsSayWhyNot(t *testing.T) {
	t.Parallel()
	bare := tree(t, 2, map[string]string{"cgroup.procs": "", "cpu.stat": "usage_usec 1\n"})
	old := tree(t, 2, map[string]string{"cgroup.procs": "", "cpu.stat": "usage_usec 1\n", "cpu.max": "max 100000\n"})
	elsewhere := tree(t, 1, v1Files())
	elsewhere.Dir = t.TempDir()
	for _, tc := range []struct {
		name   string
		trees  []Tree
		signal Signal
		want   string
	}{
		{"controller off for the group", []Tree{bare}, Memory, "there is no memory.current (enable the memory controller in the parent's cgroup.subtree_control)"},
		{"controller off, which another file shows", []Tree{bare}, ThrottlingAny, "there is no cpu.max (enable the cpu controller"},
		{"older than 6.6", []Tree{old}, ThrottlingAny, "there is no cpu.stat.local (boot a kernel 6.6 or newer)"},
		{"no time of interrupts", []Tree{old}, IRQPressure, "CONFIG_IRQ_TIME_ACCOUNTING"},
		{"no pressure", []Tree{bare}, CPUPressure, "cpu.pressure: not supported: there is no such file (boot a kernel 4.20"},
		{"no events", []Tree{bare}, State, "there is no cgroup.events"},
		{"no tree of that version", []Tree{tree(t, 1, v1Files())}, State, "no cgroup v2 tree is mounted"},
		{"controller in no tree", []Tree{{Version: 2, Dir: bare.Dir}}, Memory, "the memory controller is in no mounted tree"},
		{"group in another tree only", []Tree{bare, elsewhere}, Memory, "the group is not in the tree"},
		{"no such signal", []Tree{bare}, 99, "no such signal"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := opened(t, tc.trees, tc.signal)
			err := r.Signals()[0].Err
			if !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want not supported: %s", err, tc.want)
			}
			if got, err := r.Read(7, nil); len(got) != 0 || err != nil {
				t.Errorf("read what is not there: %v, %v", got, err)
			}
		})
	}
}

// A group without the cpu controller is under the limit of the closest group above that has a quota, at each
// reading anew; where none has, it is under none. What one group counted is no growth of another's count.
func TestLimitAbove(t *testing.T) {
	t.Parallel()
	const bare, limited = "usage_usec 3000000\n", "usage_usec 9000000\nnr_periods %d\nnr_throttled %d\nthrottled_usec 7000000\n"
	tr := Tree{Version: 2, Controllers: []string{"cpu"}, Dir: t.TempDir()}
	write := func(group, name, text string) {
		t.Helper()
		dir := filepath.Join(tr.Dir, group)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// set has a group's controller be off, where quota is empty, or on.
	set := func(group, quota, stat string) {
		t.Helper()
		if write(group, "cpu.stat", stat); quota != "" {
			write(group, "cpu.max", quota+" 100000\n")
		} else if err := os.Remove(filepath.Join(tr.Dir, group, "cpu.max")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	for _, group := range []string{"", "a", "a/b", "a/b/g"} {
		set(group, "", bare)
	}
	r, err := Open([]Tree{tr}, "a/b/g", Usage, Throttling)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Signals()[1].Err; err != nil {
		t.Errorf("throttling is not there: %v", err)
	}
	root, err := Open([]Tree{tr}, "", Throttling)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	told := func(periods, throttled int) string {
		return fmt.Sprintf("cpu_time 3\ncpu_periods %d\ncpu_throttled_periods %d\n", periods, throttled)
	}
	periods := func(periods, throttled int) string { return fmt.Sprintf(limited, periods, throttled) }
	for i, step := range []struct {
		group, quota, stat string
		want               string
	}{
		{"a/b", "", bare, told(0, 0)},
		{"", "5000", periods(20, 5), told(0, 0)}, // the root of a container
		{"", "5000", periods(23, 6), told(3, 1)},
		{"a", "6000", periods(30, 4), told(3, 1)},
		{"a/b", "max", periods(0, 0), told(3, 1)}, // which counts no periods
		{"a", "6000", periods(35, 6), told(8, 3)},
		{"a", "max", periods(35, 6), told(8, 3)},
		{"", "5000", periods(24, 6), told(9, 3)},
		{"a/b", "7000", periods(40, 3), told(9, 3)},
		{"a/b/g", "max", "usage_usec 3000000\nnr_periods 1\nnr_throttled 0\n", told(9, 3)},
		{"a/b/g", "max", "usage_usec 3000000\nnr_periods 3\nnr_throttled 1\n", told(11, 4)},
		{"a/b/g", "", bare, told(11, 4)},
		{"a/b", "7000", periods(41, 4), told(12, 5)},
		{"a/b", "", bare, told(12, 5)},
		{"", "", bare, told(12, 5)},
	} {
		set(step.group, step.quota, step.stat)
		got, err := r.Read(watch.Time(i+1), nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, show(got)); diff != "" {
			t.Errorf("step %d, %s changed: (-want +got)\n%s", i, step.group, diff)
		}
	}
	if got, err := root.Read(1, nil); err != nil || show(got) != told(0, 0) {
		t.Errorf("the root of a host: %s, %v", show(got), err)
	}
	write("", "cgroup.events", "populated 1\nfrozen 0\n")
	for name, r := range map[string]*Reader{"a group": r, "the root": root} {
		if got, err := r.Read(98, nil); err != nil || show(got) != "cpu_time 3\n" {
			t.Errorf("%s of a container, whose groups above cannot be seen: %s, %v", name, show(got), err)
		}
	}
	set("a", "6000", periods(50, 9))
	if got, err := r.Read(99, nil); err != nil || show(got) != told(12, 5) {
		t.Errorf("known again: %s, %v", show(got), err)
	}
	set("a", "6000", "nr_periods x\n")
	if got, err := r.Read(100, nil); err == nil || len(got) > 0 {
		t.Errorf("a malformed limit: %v, %v", got, err)
	}
}

// services are groups of a slice, without the cpu controller.
func services(t testing.TB, count int) (tree Tree, names []string) {
	t.Helper()
	tree = Tree{Version: 2, Controllers: []string{"cpu"}, Dir: t.TempDir()}
	for i := range count {
		name := fmt.Sprintf("system.slice/s%03d.service", i)
		dir := filepath.Join(tree.Dir, name)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/cpu.stat", []byte("usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return tree, names
}

// The quota above many groups is read once in a round, and anew in the next.
func TestLimitAboveMany(t *testing.T) {
	t.Parallel()
	tr, names := services(t, 2)
	s := NewSampler([]Tree{tr}, []Signal{Usage, Throttling})
	defer s.Close()
	for _, name := range names {
		if err := s.Add(name, 0); err != nil {
			t.Fatal(err)
		}
	}
	slice := func(quota string, periods int) {
		t.Helper()
		stat := fmt.Sprintf("usage_usec 9000000\nnr_periods %d\nnr_throttled 1\n", periods)
		for file, text := range map[string]string{"cpu.max": quota + " 100000\n", "cpu.stat": stat} {
			if err := os.WriteFile(filepath.Join(tr.Dir, "system.slice", file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func(now watch.Time, name string) (periods float64) {
		t.Helper()
		samples, err := s.SampleGroup(now, name, Request{Read: SetOf(Throttling), Fresh: SetOf(Throttling)}, nil)
		i := slices.IndexFunc(samples, func(one watch.Sample) bool { return one.Quantity == watch.CPUPeriods })
		if err != nil || i < 0 {
			t.Fatalf("%s: %v, %v", name, samples, err)
		}
		return samples[i].Value
	}
	slice("50000", 10)
	first := read(1, names[0])
	slice("50000", 13)
	if second := read(1, names[1]); first != 10 || second != 10 {
		t.Errorf("in one round %v and %v periods, want 10", first, second)
	}
	if first, second := read(2, names[0]), read(2, names[1]); first != 13 || second != 13 {
		t.Errorf("in the next round %v and %v periods, want 13", first, second)
	}
	slice("max", 20)
	if first := read(3, names[0]); first != 13 {
		t.Errorf("without a quota %v periods, want the 13 of before", first)
	}
}

func TestOpenGone(t *testing.T) {
	t.Parallel()
	if _, err := Open([]Tree{tree(t, 2, v2Files())}, "other"); !errors.Is(err, watch.ErrGone) {
		t.Errorf("%v, want ErrGone", err)
	}
	if _, err := Open(nil, "g"); !errors.Is(err, watch.ErrGone) {
		t.Errorf("no trees: %v, want ErrGone", err)
	}
	if _, err := Open([]Tree{tree(t, 2, v2Files())}, "g/cpu.stat"); err == nil || errors.Is(err, watch.ErrGone) {
		t.Errorf("a file as group: %v, want another error than ErrGone", err)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		version    int
		file, text string
		want       string
	}{
		{2, "cpu.stat", "usage_usec x\n", "invalid syntax"},
		{2, "cpu.stat", "usage_usec -1\n", "invalid syntax"},
		{2, "cpu.stat", "usage_usec\n", "invalid syntax"},
		{2, "cpu.stat", "usage_usec 99999999999999999999\n", "out of range"},
		{2, "cpu.stat.local", "throttled_usec 1 2\n", "invalid syntax"},
		{2, "memory.current", "", "invalid syntax"},
		{2, "memory.current", "max\n", "invalid syntax"},
		{2, "pids.current", "1 2\n", "more than one number"},
		{2, "memory.numa_stat", "anon 12\n", "not a node"},
		{2, "memory.numa_stat", "anon =1\n", "not a node"},
		{2, "memory.numa_stat", "anon N=1\n", "invalid syntax"},
		{2, "memory.numa_stat", "anon N0\n", "invalid syntax"},
		{2, "memory.numa_stat", "file N99999999999=1\n", "out of range"},
		{2, "io.stat", "sda rbytes=1\n", "invalid syntax"},
		{2, "io.stat", "8 rbytes=1\n", "invalid syntax"},
		{2, "io.stat", "8:0 rbytes=-1\n", "invalid syntax"},
		{2, "io.stat", "4096:0 rbytes=1\n", "too large"},
		{2, "cpu.pressure", "", "no lines"},
		{2, "cpu.pressure", "some avg10=0.00\n", "no total"},
		{1, "cpuacct.usage", "1s\n", "invalid syntax"},
		{1, "memory.numa_stat", "hierarchical_anon=1 N0=x\n", "invalid syntax"},
		{1, "blkio.throttle.io_serviced_recursive", "8:x Read 1\n", "invalid syntax"},
		{1, "blkio.throttle.io_serviced_recursive", "8:0 Read\n", "invalid syntax"},
	} {
		t.Run(tc.file+" "+strings.TrimSpace(tc.text), func(t *testing.T) {
			t.Parallel()
			files := v2Files()
			if tc.version == 1 {
				files = v1Files()
			}
			files[tc.file] = tc.text
			got, err := opened(t, []Tree{tree(t, tc.version, files)}).Read(7, nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "g/"+tc.file) || len(got) != 0 {
				t.Errorf("%d samples, %v; want none and %q", len(got), err, tc.want)
			}
		})
	}
}

// Not parallel: AllocsPerRun counts for the whole program.
func TestReadAllocatesNothing(t *testing.T) {
	for version, files := range map[int]map[string]string{1: v1Files(), 2: v2Files()} {
		r := opened(t, []Tree{tree(t, version, files)})
		samples, err := r.Read(0, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(20, func() { samples, err = r.Read(1, samples[:0]) }); n != 0 || err != nil {
			t.Errorf("v%d: %v allocations, %v", version, n, err)
		}
	}
}

func TestSampler(t *testing.T) {
	t.Parallel()
	tr := tree(t, 2, v2Files())
	for name, current := range map[string]string{"b": "2", "a": "1", "bad": "x"} {
		if err := errors.Join(os.Mkdir(tr.Dir+"/"+name, 0o755), os.WriteFile(tr.Dir+"/"+name+"/pids.current", []byte(current), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	s := NewSampler([]Tree{tr}, []Signal{Tasks})
	defer s.Close()
	for _, group := range []string{"g", "b", "bad", "a", "b"} {
		if err := s.Add(group, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Add("none", 0); !errors.Is(err, watch.ErrGone) {
		t.Errorf("add none: %v", err)
	}
	if err := errors.Join(s.Remove("g"), s.Remove("none")); err != nil {
		t.Error(err)
	}
	got, failed := s.Sample(5, nil, Request{Read: SetOf(Tasks)})
	want := []watch.Sample{
		{Time: 5, Subject: watch.Subject{Scope: watch.Group, Name: "a"}, Quantity: watch.Tasks, Value: 1},
		{Time: 5, Subject: watch.Subject{Scope: watch.Group, Name: "b"}, Quantity: watch.Tasks, Value: 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(failed) != 1 || failed[0].Group != "bad" {
		t.Errorf("failed: %v, want bad", failed)
	}
}

func FuzzParsers(f *testing.F) {
	for version, files := range map[int]map[string]string{1: v1Files(), 2: v2Files()} {
		for name, text := range files {
			f.Add(version, name, []byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, version int, name string, text []byte) {
		sources := func(s signalInfo) []source { return []source{{}, s.v1, s.v2} }
		i := slices.IndexFunc(signalInfos, func(s signalInfo) bool {
			return version > 0 && version < 3 && slices.Contains(sources(s)[version].files, name)
		})
		if i < 0 {
			return
		}
		of := sources(signalInfos[i])[version]
		parse := of.parserOf(name)
		var s sink
		if err := parse(text, &s); err != nil {
			return
		}
		for _, sample := range s.to {
			if !(sample.Value >= 0) || sample.Subject.Part.ID < 0 || sample.Quantity.String() == "" {
				t.Errorf("%+v", sample)
			}
		}
		if s.sample.Subject.Part != (watch.Part{}) {
			t.Errorf("a part is left over: %v", s.sample.Subject)
		}
	})
}

// Of several devices on one line, as Linux 5.15 has them, the figures are the last one's.
func TestIODevicesOnOneLine(t *testing.T) {
	t.Parallel()
	var to sink
	text := "8:0 rbytes=512 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n7:7 7:6 7:4 rbytes=4096 wbytes=0 rios=2 wios=0 dbytes=0 dios=0\n7:3 \n"
	if err := parseIO([]byte(text), &to); err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, s := range to.to {
		if s.Quantity == watch.IORead {
			got[s.Subject.Part.String()] += s.Value
		}
	}
	if diff := cmp.Diff(map[string]float64{"8:0": 512, "7:4": 4096}, got); diff != "" {
		t.Errorf("bytes read (-want +got):\n%s", diff)
	}
}
