package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// statistics is a host of v1 groups that tells everything but perf events. Group
// "own" has threads 11 and 12 and a resctrl group.
type statistics struct {
	t    *testing.T
	root string
}

func newStatistics(t *testing.T, groups ...string) statistics {
	t.Helper()
	h := statistics{t, t.TempDir()}
	for _, g := range groups {
		h.write("sys/fs/cgroup/cpuset/"+g+"/cgroup.procs", "")
		h.write("sys/fs/cgroup/cpuset/"+g+"/tasks", "")
		h.write("sys/fs/cgroup/cpu/"+g+"/cgroup.procs", "")
		h.write("sys/fs/cgroup/cpu/"+g+"/cpuacct.usage", "5000000000\n")
		h.write("sys/fs/cgroup/memory/"+g+"/cgroup.procs", "")
		h.write("sys/fs/cgroup/memory/"+g+"/memory.usage_in_bytes", "4096\n")
		h.write("sys/fs/cgroup/memory/"+g+"/memory.numa_stat", "total=3 N0=2 N1=1\nhierarchical_total=3 N0=2 N1=1\nhierarchical_file=0 N0=0 N1=0\nhierarchical_anon=3 N0=2 N1=1\n")
		h.write("sys/fs/cgroup/blkio/"+g+"/cgroup.procs", "")
		h.write("sys/fs/cgroup/blkio/"+g+"/blkio.throttle.io_service_bytes_recursive", "8:0 Read 1000\n8:0 Write 2000\nTotal 3000\n")
		h.write("sys/fs/cgroup/blkio/"+g+"/blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\nTotal 3\n")
	}
	h.write("proc/self/schedstat", "1 2 3\n")
	return h
}

func (h statistics) write(name, text string) {
	h.t.Helper()
	fakekernel.Plant(h.t, filepath.Join(h.root, name), text)
}

// plantOwn gives group "own" threads that waited and were switched, and a resctrl
// group that has them.
func (h statistics) plantOwn(waited, switches, traffic string) {
	h.t.Helper()
	h.write("sys/fs/cgroup/cpuset/own/tasks", "11\n12\n")
	for _, tid := range []string{"11", "12"} {
		h.write("proc/"+tid+"/schedstat", "100 "+waited+" 7\n")
		h.write("proc/"+tid+"/status", "Name:\tx\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t"+switches+"\n")
	}
	h.write("sys/fs/resctrl/info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\n")
	h.write("sys/fs/resctrl/tasks", "1\n")
	h.write("sys/fs/resctrl/web/tasks", "11\n12\n")
	h.write("sys/fs/resctrl/web/mon_data/mon_L3_00/llc_occupancy", "4096\n")
	h.write("sys/fs/resctrl/web/mon_data/mon_L3_00/mbm_total_bytes", traffic+"\n")
}

func (h statistics) meter() *meter {
	dir := func(name string) string { return filepath.Join(h.root, "sys/fs/cgroup", name) }
	m := newMeter(h.root, []cgroupstat.Tree{
		{Version: 1, Controllers: []string{"cpuset"}, Dir: dir("cpuset")},
		{Version: 1, Controllers: []string{"cpu", "cpuacct"}, Dir: dir("cpu")},
		{Version: 1, Controllers: []string{"memory"}, Dir: dir("memory")},
		{Version: 1, Controllers: []string{"io"}, Dir: dir("blkio")},
	}, nil, time.Second)
	h.t.Cleanup(func() {
		if err := m.close(); err != nil {
			h.t.Error(err)
		}
	})
	return m
}

// told are the figures of a workload, by quantity and part, and those of its rates.
func told(t *testing.T, m *meter, id string) (values, rates map[string]float64) {
	t.Helper()
	stats, err := m.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	values, rates = map[string]float64{}, map[string]float64{}
	for _, w := range stats.Workloads {
		for _, f := range w.Figures {
			name := strings.TrimSuffix(f.Quantity.String()+" "+f.Part.String(), " ")
			if w.ID == id {
				values[name] = f.Value
			}
			if w.ID == id && f.Rate != nil {
				rates[name] = *f.Rate
			}
		}
	}
	return values, rates
}

// All workloads tell memory by node and block I/O; those with CPUs of their own tell
// what their threads waited and what lies in caches, too. What is not there says why.
func TestMeterReadsAll(t *testing.T) {
	t.Parallel()
	h := newStatistics(t, "own", "shared")
	h.plantOwn("1000000000", "10", "5000")
	m := h.meter()
	own := map[string]cpuset.Set{"o": cpuset.MustOf(1)}
	if err := m.follow(map[string]string{"o": "own", "s": "shared"}, own); err != nil {
		t.Fatal(err)
	}
	if s := m.Signals(); s["hardware counters"] != nil && !strings.Contains(s["hardware counters"].Error(), "there are none") {
		t.Errorf("before the first reading: %v", s)
	}
	origin := time.Now()
	tick := func(n int) { m.read(origin.Add(time.Duration(n)*time.Second), origin) }
	tick(0)
	tick(1)
	h.plantOwn("3000000000", "16", "9000")
	tick(2)
	tick(3)

	shared := map[string]float64{
		"cpu_time": 5, "memory": 4096,
		"memory_anon node0": 8192, "memory_anon node1": 4096, "memory_file node0": 0, "memory_file node1": 0,
		"io_read 8:0": 1000, "io_written 8:0": 2000, "io_reads 8:0": 1, "io_writes 8:0": 2,
	}
	got, _ := told(t, m, "s")
	if diff := cmp.Diff(shared, got); diff != "" {
		t.Errorf("shared (-want +got):\n%s", diff)
	}
	want := map[string]float64{"cpu_wait": 4, "switches_involuntary": 12, "llc_occupancy cache0": 4096, "bandwidth cache0": 4000}
	for name, value := range shared {
		want[name] = value
	}
	got, rates := told(t, m, "o")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("own (-want +got):\n%s", diff)
	}
	if rates["cpu_wait"] != 2 || rates["bandwidth cache0"] != 2000 { // read every two seconds
		t.Errorf("rates %v", rates)
	}

	signals := m.Signals()
	for name, want := range map[string]string{
		"usage": "", "numa": "", "io": "", "run delay of threads": "", "cache and bandwidth": "",
		"hardware counters": "running kernel", "context switches": "running kernel", "tasks": "pids controller is in no mounted tree",
	} {
		err, there := signals[name]
		if !there || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("signal %s: %v, want %q", name, err, want)
		}
	}

	// Its CPUs become those of all: it tells no more than the others.
	if err := m.follow(map[string]string{"o": "own", "s": "shared"}, nil); err != nil {
		t.Fatal(err)
	}
	tick(4)
	tick(5)
	if got, _ := told(t, m, "o"); len(got) != len(shared) {
		t.Errorf("without CPUs of its own it tells %v", got)
	}
	if err := m.Signals()["cache and bandwidth"]; err == nil || !strings.Contains(err.Error(), "CPUs of their own") {
		t.Errorf("no workload has CPUs of its own: %v", err)
	}
}

// The threads of a workload leave its resctrl group: what that counts now is of others.
func TestMeterLeavesCaches(t *testing.T) {
	t.Parallel()
	h := newStatistics(t, "own")
	h.plantOwn("1", "1", "5000")
	m := h.meter()
	if err := m.follow(map[string]string{"o": "own"}, map[string]cpuset.Set{"o": cpuset.MustOf(1)}); err != nil {
		t.Fatal(err)
	}
	origin := time.Now()
	m.read(origin, origin)
	if got, _ := told(t, m, "o"); got["llc_occupancy cache0"] != 4096 {
		t.Errorf("it tells %v", got)
	}
	h.write("sys/fs/resctrl/web/tasks", "13\n")
	m.read(origin.Add(time.Second), origin)
	if got, _ := told(t, m, "o"); got["llc_occupancy cache0"] != 0 || got["cpu_wait"] != 0 {
		t.Errorf("it tells %v", got)
	}
	if err := m.Signals()["cache and bandwidth"]; err == nil || !strings.Contains(err.Error(), "other threads") {
		t.Errorf("why: %v", err)
	}
	// It is looked for again, if not at once.
	h.write("sys/fs/resctrl/web/tasks", "11\n12\n")
	for i := range observe.Patience {
		m.read(origin.Add(time.Duration(2+i)*time.Second), origin)
	}
	if got, _ := told(t, m, "o"); got["llc_occupancy cache0"] != 4096 {
		t.Errorf("its threads are back, and it tells %v", got)
	}
}

// The costly figures of many workloads are read in turns: a new one at once, and none
// twice before all were read.
func TestMeterTakesTurns(t *testing.T) {
	t.Parallel()
	const many = 90
	names := make([]string, many)
	groups := map[string]string{}
	for i := range names {
		names[i] = "g" + string(rune('A'+i/26)) + string(rune('a'+i%26))
		groups[names[i]] = names[i]
	}
	h := newStatistics(t, append(slices.Clone(names), "new")...)
	m := h.meter()
	if err := m.follow(groups, nil); err != nil {
		t.Fatal(err)
	}
	origin := time.Now()
	at := 0
	tick := func() {
		m.read(origin.Add(time.Duration(at)*time.Second), origin)
		at++
	}
	readings := func() (least, most int) {
		least = many
		for _, w := range m.metered {
			least, most = min(least, w.rounds), max(most, w.rounds)
		}
		return least, most
	}
	for range 10 {
		tick()
	}
	if least, most := readings(); least != 0 || most != 1 {
		t.Errorf("after 10 s, groups were read %d to %d times", least, most)
	}
	groups["new"] = "new"
	if err := m.follow(groups, nil); err != nil {
		t.Fatal(err)
	}
	tick()
	if n := m.metered["new"].rounds; n != 1 {
		t.Errorf("a new group was read %d times", n)
	}
	for at < int(rotation/time.Second) {
		tick()
	}
	if least, most := readings(); least != 1 || most > 2 {
		t.Errorf("after a minute, groups were read %d to %d times", least, most)
	}
	// One that ends is read no more, and the rest go on.
	delete(groups, "new")
	if err := m.follow(groups, nil); err != nil {
		t.Fatal(err)
	}
	for range 120 {
		tick()
	}
	if least, _ := readings(); least < 3 || len(m.queue) != many || m.metered["new"] != nil {
		t.Errorf("after another two minutes, %d groups were read at least %d times", len(m.queue), least)
	}
}

// A workload that ends has no figures, and one that comes back in its group has them
// again.
func TestMeterWorkloadEnds(t *testing.T) {
	t.Parallel()
	h := newStatistics(t, "g")
	m := h.meter()
	all := map[string]string{"w": "g"}
	if err := m.follow(all, nil); err != nil {
		t.Fatal(err)
	}
	origin := time.Now()
	m.read(origin, origin)
	if err := m.follow(nil, nil); err != nil {
		t.Fatal(err)
	}
	if got, _ := told(t, m, "w"); len(got) != 0 || m.sampler.Signals("g") != nil || len(m.Signals()) != 0 {
		t.Errorf("it tells %v", got)
	}
	if err := m.follow(all, nil); err != nil {
		t.Fatal(err)
	}
	m.read(origin.Add(time.Second), origin)
	if got, _ := told(t, m, "w"); got["io_reads 8:0"] != 1 {
		t.Errorf("it tells %v", got)
	}
}

// guardsReader reads groups below base for a guard.
type guardsReader struct{ *cgroupstat.Sampler }

func (r guardsReader) ReadGroup(now watch.Time, group string, q cgroupstat.Request, to []watch.Sample) ([]watch.Sample, error) {
	return r.SampleGroup(now, strings.TrimPrefix(group, "base/"), q, to)
}

func (r guardsReader) StatusOf(group string) []cgroupstat.Status {
	return r.Signals(strings.TrimPrefix(group, "base/"))
}

// What the guard reads of a workload is not read a second time; what it does not read,
// and all once it ends, is.
func TestMeterTakesFromGuard(t *testing.T) {
	t.Parallel()
	h := newStatistics(t, "g", "h")
	m := h.meter()
	m.prefix = "base/"
	guard := guardsReader{h.meter().sampler}
	if err := guard.Add("g", 0); err != nil {
		t.Fatal(err)
	}
	if err := m.follow(map[string]string{"w": "g", "x": "h"}, nil); err != nil {
		t.Fatal(err)
	}
	origin := time.Now()
	sample := func(at int, group string, q watch.Quantity, v float64) watch.Sample {
		return watch.Sample{Time: watch.Time(at) * watch.Second, Subject: watch.Subject{Scope: watch.Group, Name: group}, Quantity: q, Value: v}
	}
	second := func(n int, given ...watch.Sample) {
		now := origin.Add(time.Duration(n) * time.Second)
		if given == nil {
			m.read(now, origin)
			return
		}
		m.take(now, origin, given, guard)
	}
	second(0)
	signals := m.Signals()
	for n := 1; n <= 2; n++ {
		second(n,
			sample(n, "g", watch.CPUTime, 999), sample(n, "base/other", watch.CPUTime, 999),
			sample(n, "base/g", watch.CPUTime, float64(10*n)), sample(n, "base/g", watch.MemorySome, 3))
	}
	values, rates := told(t, m, "w")
	if _, newer := values["memory_some"]; newer || values["cpu_time"] != 20 || rates["cpu_time"] != 10 || values["io_reads 8:0"] != 1 {
		t.Errorf("w tells %v, rates %v", values, rates)
	}
	if values, _ := told(t, m, "x"); values["cpu_time"] != 5 {
		t.Errorf("x tells %v", values)
	}
	if m.sampler.Signals("g") != nil || m.sampler.Signals("h") == nil {
		t.Error("what the guard reads is read a second time, or the rest is not")
	}
	if diff := cmp.Diff(len(signals), len(m.Signals())); diff != "" || m.Signals()["usage"] != nil {
		t.Errorf("signals were %v, are %v", signals, m.Signals())
	}
	// The guard ends.
	second(3)
	second(4)
	values, rates = told(t, m, "w")
	if _, rated := rates["cpu_time"]; values["cpu_time"] != 5 || !rated {
		t.Errorf("without the guard w tells %v, rates %v", values, rates)
	}
}

// A window of the guard that is late does not have the meter open all groups. Once the guard
// has ended, it does.
func TestMeterWaitsForGuard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newStatistics(t, "g")
		m := h.meter()
		guard := guardsReader{h.meter().sampler}
		if err := errors.Join(guard.Add("g", 0), m.follow(map[string]string{"w": "g"}, nil)); err != nil {
			t.Fatal(err)
		}
		d := &daemon{opt: Options{Interval: time.Second}, meter: m, tick: time.NewTimer(time.Second), started: time.Now()}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go d.measure(ctx)
		time.Sleep(1500 * time.Millisecond) // the first reading is the meter's own
		for _, after := range []time.Duration{time.Second, 2800 * time.Millisecond, 4 * time.Second} {
			d.take([]watch.Sample{{Subject: watch.Subject{Scope: watch.Group, Name: "g"}, Quantity: watch.CPUTime, Value: 1}}, guard)
			time.Sleep(after)
			synctest.Wait()
			if reads, late := m.sampler.Signals("g") != nil, after > 3*time.Second; reads != late {
				t.Errorf("%v after a window of the guard: the meter reads for itself: %v, want %v", after, reads, late)
			}
		}
	})
}

// A Meter reads some groups in rotation, and all of them when it is asked, at most once in an
// interval. What a group without CPU time has is read again then, too.
func TestMeterReadsWhenAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newStatistics(t, "a", "b")
		m := &Meter{h.meter(), time.Now(), time.Second}
		if err := m.Follow(map[string]string{"a": "a", "b": "b"}, nil); err != nil {
			t.Fatal(err)
		}
		m.m.rotate(m.began)
		if values, _ := told(t, m.m, "a"); len(values) > 0 {
			t.Errorf("not asked, and not its turn: %v", values)
		}
		if values, _ := told(t, m.m, "b"); values["io_reads 8:0"] != 1 {
			t.Errorf("in its turn: %v", values)
		}
		asked := func(wantTime, wantMemory float64) {
			t.Helper()
			stats, err := m.Stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			values, _ := told(t, m.m, "a")
			if values["cpu_time"] != wantTime || values["memory"] != wantMemory {
				t.Errorf("asked after %v, told of %v: %v", time.Since(m.began), stats.Time.Sub(m.began), values)
			}
		}
		asked(5, 4096)
		h.write("sys/fs/cgroup/cpu/a/cpuacct.usage", "6000000000\n")
		time.Sleep(time.Second - 1)
		asked(5, 4096) // so soon
		time.Sleep(time.Nanosecond)
		asked(6, 4096)
		h.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "8192\n")
		time.Sleep(time.Second)
		asked(6, 8192)
	})
}
