package observe

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// plantHardware gives the host of plant what its CPUs tell: group a.slice/api may
// use CPUs 0 and 1 and has the threads of the resctrl group "web".
func plantHardware(t *testing.T) (root string) {
	t.Helper()
	root = plant(t)
	files := map[string]string{
		"proc/schedstat": "version 15\ntimestamp 1\ncpu0 0 0 0 0 0 0 1 2000000000 3\ncpu1 0 0 0 0 0 0 1 3000000000 3\n",
		"sys/fs/cgroup/a.slice/api/cgroup.threads": "11\n12\n",
		"sys/devices/system/cpu/online":            "0-1\n",
		"sys/fs/resctrl/info/L3_MON/mon_features":  "llc_occupancy\nmbm_total_bytes\n",
		"sys/fs/resctrl/tasks":                     "1\n",
		"sys/fs/resctrl/web/tasks":                 "11\n12\n",
	}
	for _, group := range []string{"", "web/"} {
		files["sys/fs/resctrl/"+group+"mon_data/mon_L3_00/llc_occupancy"] = "4096\n"
		files["sys/fs/resctrl/"+group+"mon_data/mon_L3_00/mbm_total_bytes"] = "1000\n"
	}
	for _, cpu := range []string{"0", "1"} {
		files["sys/devices/system/cpu/cpu"+cpu+"/cpufreq/scaling_cur_freq"] = "2" + cpu + "00000\n"
		files["sys/devices/system/cpu/cpu"+cpu+"/cpuidle/state0/usage"] = "5\n"
		files["sys/devices/system/cpu/cpu"+cpu+"/cpuidle/state0/time"] = "7000000\n"
	}
	write(t, root, files)
	return root
}

func TestCounters(t *testing.T) {
	t.Parallel()
	root := plantHardware(t)
	o := open(t, root)
	api := subject("a.slice/api")
	part := watch.Part{Kind: watch.Cache, ID: 0}
	cached, host := api, watch.Subject{Part: part}
	cached.Part = part
	hardware := func(now watch.Time) map[watch.Sample]float64 {
		all := tick(t, o, now)
		for s := range all {
			if !slices.Contains([]watch.Quantity{
				watch.CPUWait, watch.LLCOccupancy, watch.Bandwidth, watch.Frequency, watch.IdleTime, watch.IdleEntries,
				watch.ThrottledCores, watch.Switches, watch.Cycles,
			}, s.Quantity) || s.Subject == api && s.Quantity == watch.CPUWait {
				delete(all, s)
			}
		}
		return all
	}
	if got := hardware(watch.Second); len(got) > 0 {
		t.Errorf("read without a group in focus: %v", got)
	}
	if err := o.Focus([]string{"a.slice/api"}); err != nil {
		t.Fatal(err)
	}
	now := 2 * watch.Second
	want := map[watch.Sample]float64{
		{Time: now, Quantity: watch.CPUWait}:                       5,
		{Time: now, Subject: host, Quantity: watch.LLCOccupancy}:   8192,
		{Time: now, Subject: host, Quantity: watch.Bandwidth}:      0,
		{Time: now, Subject: cached, Quantity: watch.LLCOccupancy}: 4096,
		{Time: now, Subject: cached, Quantity: watch.Bandwidth}:    0,
		{Time: now, Subject: api, Quantity: watch.Frequency}:       2.05e9,
		{Time: now, Subject: api, Quantity: watch.IdleTime}:        14,
		{Time: now, Subject: api, Quantity: watch.IdleEntries}:     10,
	}
	if diff := cmp.Diff(want, hardware(now)); diff != "" {
		t.Error(diff)
	}

	// Its CPUs become others, and its threads leave the resctrl group.
	write(t, root, map[string]string{
		"sys/fs/cgroup/a.slice/cpuset.cpus.effective": "1\n",
		"sys/fs/resctrl/web/tasks":                    "11\n12\n13\n14\n",
	})
	now += rescan
	got := hardware(now)
	if f := got[watch.Sample{Time: now, Subject: api, Quantity: watch.Frequency}]; f != 2.1e9 {
		t.Errorf("CPU 1 runs at %v Hz", f)
	}
	if _, there := got[watch.Sample{Time: now, Subject: cached, Quantity: watch.Bandwidth}]; there {
		t.Error("a group has the traffic of others")
	}
	// They come back. They are looked for again, if not at once.
	write(t, root, map[string]string{"sys/fs/resctrl/web/tasks": "11\n12\n"})
	for range Patience - 1 {
		now += rescan
		hardware(now)
	}
	now += rescan
	if v, there := hardware(now)[watch.Sample{Time: now, Subject: cached, Quantity: watch.Bandwidth}]; !there || v != 0 {
		t.Errorf("traffic of a resctrl group that is found again: %v, %t", v, there)
	}
	// A source that breaks ends; the others go on.
	write(t, root, map[string]string{"sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "fast\n"})
	now += watch.Second
	got = hardware(now)
	if _, there := got[watch.Sample{Time: now, Subject: api, Quantity: watch.Frequency}]; there || len(got) != 7 {
		t.Errorf("a source is broken: %v", got)
	}
}

func TestCounterSignals(t *testing.T) {
	t.Parallel()
	root := plantHardware(t)
	o := open(t, root)
	if err := o.Focus([]string{"a.slice/api"}); err != nil {
		t.Fatal(err)
	}
	there := func() map[string]Signal {
		all, err := o.Signals()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]Signal{}
		for _, s := range all {
			found[s.Of+": "+s.Name] = s
			if s.Available == (s.Reason != "") || s.Available != (s.CostSeconds > 0) {
				t.Errorf("%+v: a signal is there, with its cost, or there is a reason", s)
			}
		}
		return found
	}
	got := there()
	for name, want := range map[string]string{
		"host: run delay of CPUs": "", "host: cache and bandwidth": "", "group in focus: cache and bandwidth": "",
		"group in focus: clock rate": "", "group in focus: idle states": "",
		"group in focus: thermal throttling": "thermal_throttle", "group in focus: hardware counters": "running kernel",
		"group in focus: software events": "running kernel",
	} {
		if s, ok := got[name]; !ok || s.Available != (want == "") || !strings.Contains(s.Reason, want) {
			t.Errorf("%s: %+v", name, s)
		}
	}
	// All words, no numbers.
	for _, group := range []string{"", "web/"} {
		write(t, root, map[string]string{
			"sys/fs/resctrl/" + group + "mon_data/mon_L3_00/llc_occupancy":   "Unavailable\n",
			"sys/fs/resctrl/" + group + "mon_data/mon_L3_00/mbm_total_bytes": "Unassigned\n",
		})
	}
	got = there()
	for _, name := range []string{"host: cache and bandwidth", "group in focus: cache and bandwidth"} {
		if s := got[name]; s.Available || !strings.Contains(s.Reason, "no counter of the CPU is assigned") {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// What the guard has monitored is told once, of groups that are read; and a group's threads are those of the groups
// below it, too, on v1 as well.
func TestMonitoredGroups(t *testing.T) {
	t.Parallel()
	for _, threads := range []string{"cgroup.threads", "tasks"} {
		root := plantHardware(t)
		cached := func(group, tasks string) {
			write(t, root, map[string]string{
				"sys/fs/resctrl/" + group + "/tasks": tasks, "sys/fs/resctrl/" + group + "/mon_data/mon_L3_00/llc_occupancy": "512\n",
				"sys/fs/resctrl/" + group + "/mon_data/mon_L3_00/mbm_total_bytes": "7\n",
			})
		}
		for _, group := range []string{"b.slice", "gone"} {
			name, _ := resctrl.MonName(group)
			cached("mon_groups/"+name, "21\n22\n")
		}
		cached("web", "11\n12\n13\n")
		files := map[string]string{cgroupDir + "b.slice/" + threads: "21\n22\n", cgroupDir + "a.slice/api/deep/" + threads: "13\n"}
		if err := os.Remove(filepath.Join(root, cgroupDir, "a.slice/api/cgroup.threads")); err != nil {
			t.Fatal(err)
		}
		files[cgroupDir+"a.slice/api/"+threads] = "11\n12\n"
		write(t, root, files)
		o := open(t, root)
		if err := o.Focus([]string{"a.slice/api", "b.slice"}); err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for s, v := range tick(t, o, watch.Second) { // which finds what is told twice
			if s.Quantity == watch.LLCOccupancy && s.Subject.Scope == watch.Group {
				got[s.Subject.Name] = v
			}
		}
		if diff := cmp.Diff(map[string]float64{"a.slice/api": 512, "b.slice": 512}, got); diff != "" {
			t.Errorf("by %s: -want +got:\n%s", threads, diff)
		}
		o.focus["b.slice"].Each(func(name string, err error) {
			if name == "cache and bandwidth" && !errors.Is(err, errTold) {
				t.Errorf("by %s: what one source tells is open a second time: %v", threads, err)
			}
		})
	}
}

func TestPerfTree(t *testing.T) {
	t.Parallel()
	v1 := cgroupstat.Tree{Version: 1, Controllers: []string{"cpu"}, Dir: "/cpu"}
	events := cgroupstat.Tree{Version: 1, Controllers: []string{"perf_event"}, Dir: "/perf"}
	v2 := cgroupstat.Tree{Version: 2, Dir: "/unified"}
	for want, all := range map[string][]cgroupstat.Tree{
		"": {v1}, "/unified": {v1, v2}, "/perf": {v2, events},
	} {
		s := Site{Trees: all}
		if got := s.tree("perf_event"); got != want {
			t.Errorf("%v: %q, want %q", all, got, want)
		}
	}
}

func TestHardware(t *testing.T) {
	t.Parallel()
	h := OpenHardware(plantHardware(t))
	samples := h.Sample(nil)
	if len(samples) != 2 || samples[0].Quantity != watch.LLCOccupancy || samples[0].Value != 8192 {
		t.Errorf("read %v", samples)
	}
	for q, want := range map[watch.Quantity]string{
		watch.LLCOccupancy: "", watch.BandwidthLocal: "does not monitor", watch.Cycles: "running kernel", watch.Memory: "",
	} {
		if err := h.Why(q); (err == nil) != (want == "") || err != nil && (!errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: %v, want %q", q, err, want)
		}
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	bare := OpenHardware(t.TempDir())
	if samples := bare.Sample(nil); len(samples) > 0 {
		t.Errorf("a host without: %v", samples)
	}
	if err := bare.Why(watch.LLCOccupancy); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a host without: %v", err)
	}
	if err := bare.Close(); err != nil {
		t.Error(err)
	}
}

// On this host, the kernel's own events of a group in focus come as samples.
func TestLiveCounters(t *testing.T) {
	t.Parallel()
	fakekernel.LockHost(t, fakekernel.Shared)
	o, err := Open(Config{})
	if err != nil {
		t.Skipf("this host cannot be observed: %v", err)
	}
	defer o.Close()
	perfTree := o.site.tree("perf_event")
	if perfTree == "" {
		t.Skip("no tree of the perf_event controller")
	}
	dir, err := os.MkdirTemp(perfTree, "berth-observe-")
	if err != nil {
		t.Skipf("cannot make a group: %v", err)
	}
	group := filepath.Base(dir)
	dirs := []string{dir}
	if o.site.Tree != perfTree {
		dirs = append(dirs, filepath.Join(o.site.Tree, group))
		if err := os.Mkdir(dirs[1], 0o755); err != nil {
			t.Skipf("cannot make a group: %v", err)
		}
	}
	defer func() {
		for _, dir := range dirs {
			_ = os.Remove(dir)
		}
	}()
	if err := o.Focus([]string{group}); err != nil {
		t.Fatal(err)
	}
	o.focus[group].Each(func(name string, err error) {
		if name == "software events" && errors.Is(err, kernel.ErrNotSupported) {
			t.Skip(err)
		}
	})
	fd, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	if err := cmd.Run(); err != nil {
		t.Skipf("cannot start a process in a group: %v", err)
	}
	found := map[watch.Quantity]float64{}
	until := time.Now().Add(time.Minute)
	// It gives up the CPU, which is counted, a little after it was waited for.
	for now := watch.Second; found[watch.Switches] < 1 && time.Now().Before(until); now += watch.Second {
		samples, err := o.Tick(now, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range samples {
			if s.Subject == subject(group) {
				found[s.Quantity] = s.Value
			}
		}
		time.Sleep(time.Millisecond)
	}
	if found[watch.PageFaults] < 1 || found[watch.Switches] < 1 {
		t.Errorf("a process ran: %v", found)
	}
}
