package observe

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"berth.dev/berth/watch"
)

// plantBusy makes a host with groups that have everything the kernel tells of them, on
// cgroup v2 or with v1 controllers.
func plantBusy(t testing.TB, version, groups int) (root string) {
	t.Helper()
	root = t.TempDir()
	files := map[string]string{
		"proc/self/cgroup": "0::/\n", "proc/stat": "cpu  100 0 0 50 0 0 0 3 0 0\ncpu0 100 0 0 50 0 0 0 3 0 0\n",
		"proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"proc/pressure/cpu":   psiText, "proc/pressure/memory": psiText, "proc/pressure/io": psiText,
		"sys/fs/cgroup/cgroup.controllers": "cpu cpuset io memory pids\n",
	}
	trees := map[string]map[string]string{"": {
		"cgroup.events": "populated 1\n", "cgroup.procs": "1\n", "cpu.max": "max 100000\n", "cpuset.cpus.effective": "0\n",
		"cpu.stat": "usage_usec 3000000\nnr_periods 0\n", "cpu.stat.local": "throttled_usec 0\n", "cpu.pressure": psiText, "memory.pressure": psiText,
		"io.pressure": psiText, "memory.current": "8192\n", "memory.events": "max 0\n", "memory.numa_stat": "anon N0=1\n", "io.stat": "8:0 rbytes=1\n", "pids.current": "1\n",
	}}
	if version == 1 {
		files["proc/self/mountinfo"] = ""
		delete(files, "sys/fs/cgroup/cgroup.controllers")
		trees = map[string]map[string]string{
			"cpu":     {"cgroup.procs": "1\n", "cpu.stat": "nr_periods 0\n", "cpu.stat.local": "throttled_time 0\n"},
			"cpuacct": {"cgroup.procs": "1\n", "cpuacct.usage": "3000000000\n"},
			"cpuset":  {"cgroup.procs": "1\n", "cpuset.effective_cpus": "0\n"},
			"memory":  {"cgroup.procs": "1\n", "memory.usage_in_bytes": "8192\n", "memory.failcnt": "0\n", "memory.oom_control": "oom_kill 0\n", "memory.numa_stat": "hierarchical_anon=1 N0=1\n"},
			"blkio":   {"cgroup.procs": "1\n", "blkio.throttle.io_service_bytes_recursive": "8:0 Read 1\n", "blkio.throttle.io_serviced_recursive": "8:0 Read 1\n"},
			"pids":    {"cgroup.procs": "1\n", "pids.current": "1\n"},
		}
		for i, tree := range sortedKeys(trees) {
			files["proc/self/cgroup"] += fmt.Sprintf("%d:%s:/\n", i+1, tree)
			files["proc/self/mountinfo"] += fmt.Sprintf("3%d 1 0:26 / /sys/fs/cgroup/%s rw - cgroup cgroup rw,%s\n", i, tree, tree)
		}
	}
	for name, text := range files {
		plantFile(t, filepath.Join(root, name), text)
	}
	for tree, all := range trees {
		for i := range groups {
			for name, text := range all {
				plantFile(t, filepath.Join(root, cgroupDir, tree, fmt.Sprintf("g%03d", i), name), text)
			}
		}
	}
	return root
}

const psiText = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n"

func plantFile(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// In the steady state a tick reads little more than one file of a group that uses no CPU
// time, and at most four of it are open, on both versions of cgroups.
func TestTickReadsLittle(t *testing.T) {
	const groups, ticks = 40, 80
	for version, most := range map[int]float64{1: 1.25, 2: 1.25} {
		o, err := Open(Config{Root: plantBusy(t, version, groups)})
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Closely(nil); err != nil {
			t.Fatal(err)
		}
		now := watch.Second
		read := func() { // counts, as each file of the host and of a group is read once
			if _, err := o.Tick(now, nil); err != nil {
				t.Fatal(err)
			}
			now += watch.Second
		}
		read()
		for i := range groups {
			o.CPUs(fmt.Sprintf("g%03d", i))
		}
		before := o.stats.Reads()
		for range ticks {
			read()
		}
		if got := float64(o.stats.Reads()-before) / groups / ticks; got > most || got < 1 {
			t.Errorf("v%d: %.2f files of a group are read in a tick, want %v at most", version, got, most)
		}
		if open := o.stats.Open() + o.sets.Len(); open > 4*groups {
			t.Errorf("v%d: %d files of %d groups are open", version, open, groups)
		}
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
}
