package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/runq"
	"github.com/google/go-cmp/cmp"
)

// plant makes a host on cgroup v2 with two leaves.
func plant(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range map[string]string{
		"proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"proc/self/cgroup":    "0::/\n",
		"proc/7/cgroup":       "0::/a.slice/api\n",
		"proc/8/cgroup":       "3:cpu:/x\n2:cpuacct:/y\n0::/z\n",
		"proc/9/cgroup":       "0::/\n",
		"proc/stat":           "cpu  100 0 0 50 0 0 0 3 0 0\ncpu0 100 0 0 50 0 0 0 3 0 0\n",
		"proc/pressure/cpu":   "some avg10=0 avg60=0 avg300=0 total=2000000\n",

		"sys/fs/cgroup/cgroup.controllers":             "cpu cpuset memory\n",
		"sys/fs/cgroup/cpuset.cpus.effective":          "0-3\n",
		"sys/fs/cgroup/a.slice/cpuset.cpus.effective":  "0-1\n",
		"sys/fs/cgroup/a.slice/cpu.stat":               "usage_usec 9000000\n",
		"sys/fs/cgroup/a.slice/api/cpu.stat":           "usage_usec 3000000\n",
		"sys/fs/cgroup/a.slice/api/cgroup.threads":     "",
		"sys/fs/cgroup/a.slice/api.d/cpu.stat":         "usage_usec 1000000\n",
		"sys/fs/cgroup/a.slice/api.d/deep/cpu.stat":    "usage_usec 1000000\n",
		"sys/fs/cgroup/b.slice/memory.current":         "4096\n",
		"sys/fs/cgroup/b.slice/cpuset.cpus.effective":  "garbage\n",
		"sys/fs/cgroup/b.slice/cpu.stat":               "usage_usec 500000\n",
		"sys/fs/cgroup/a.slice/api/memory.current":     "8192\n",
		"sys/fs/cgroup/a.slice/api.d/deep/memory.high": "max\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func open(t *testing.T, root string) *Observer {
	t.Helper()
	o, err := Open(Config{Root: root, Probe: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

func TestGroups(t *testing.T) {
	t.Parallel()
	o := open(t, plant(t))
	got, err := o.Groups()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a.slice/api", "a.slice/api.d/deep", "b.slice"}, got); diff != "" {
		t.Error(diff)
	}
	for pid, want := range map[int]string{7: "a.slice/api", 8: "y", 9: ""} {
		if got, err := o.GroupOf(pid); got != want || err != nil {
			t.Errorf("group of %d is %q, %v; want %q", pid, got, err, want)
		}
	}
	if _, err := o.GroupOf(10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("group of a process that is gone: %v", err)
	}
	for group, want := range map[string]cpuset.Set{"a.slice": cpuset.MustParse("0-1"), "a.slice/api": cpuset.MustParse("0-1"), "b.slice": cpuset.MustParse("0-3"), "gone": cpuset.MustParse("0-3")} {
		if got := o.CPUs(group); got != want {
			t.Errorf("CPUs of %s are %s, want %s", group, got, want)
		}
	}
	if group, ok := o.Path("sys/fs/cgroup/a.slice/api"); group != "a.slice/api" || !ok {
		t.Errorf("path is %q, %t", group, ok)
	}
	if group, ok := o.Path("sys/fs/other"); ok {
		t.Errorf("path of a directory elsewhere is %q", group)
	}
	for group, want := range map[string]bool{"a.slice": true, "a.slice/cpu.stat": false, "gone": false} {
		if got := o.Has(group); got != want {
			t.Errorf("there is a group %s: %v, want %v", group, got, want)
		}
	}
}

// The group of this process is the root group where it is not known.
func TestOwnGroup(t *testing.T) {
	t.Parallel()
	root := plant(t)
	o := open(t, root)
	if got := o.OwnGroup(); got != "" {
		t.Errorf("%q, and nothing tells", got)
	}
	write(t, root, map[string]string{fmt.Sprintf("proc/%d/cgroup", os.Getpid()): "0::/b.slice\n"})
	if got := o.OwnGroup(); got != "b.slice" {
		t.Errorf("%q, want b.slice", got)
	}
}

// What the host does not tell is no sample and no error: steal of an old kernel, pressure that is switched off.
func TestHostTellsLess(t *testing.T) {
	t.Parallel()
	root := plant(t)
	write(t, root, map[string]string{
		"proc/stat": "cpu  100 0 0 50\ncpu0 100 0 0 50\n", "proc/pressure/cpu": "garbage\n", "proc/pressure/memory/none": "", "proc/pressure/io": "full avg10=0 avg60=0 avg300=0 total=1\n",
	})
	o := open(t, root)
	for s := range tick(t, o, watch.Second) {
		if s.Quantity == watch.Steal || s.Quantity == watch.CPUSome || s.Quantity == watch.IOSome || s.Quantity == watch.MemorySome {
			t.Errorf("%+v", s)
		}
	}
	all, err := o.Signals()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Of == "host" && s.Name == "cpu time and steal" && (s.Available || s.Reason != "/proc/stat has no such column") {
			t.Errorf("%+v", s)
		}
	}
	write(t, root, map[string]string{"proc/stat": "garbage\n"})
	if _, err := o.Tick(2*watch.Second, nil); err == nil {
		t.Error("no CPU times, and no error")
	}
}

func TestTick(t *testing.T) {
	t.Parallel()
	root := plant(t)
	o := open(t, root)
	if err := o.Focus([]string{"a.slice"}); err != nil {
		t.Fatal(err)
	}
	now := watch.Second
	got := tick(t, o, now)
	group := func(name string) watch.Subject { return watch.Subject{Scope: watch.Group, Name: name} }
	for key, want := range map[watch.Sample]float64{
		{Quantity: watch.CPUTime}: 1,
		{Quantity: watch.Steal}:   0.03,
		{Quantity: watch.CPUTime, Subject: watch.Subject{Part: watch.Part{Kind: watch.CPU}}}: 1,
		{Quantity: watch.CPUSome}:                                2,
		{Quantity: watch.CPUTime, Subject: group("a.slice")}:     9,
		{Quantity: watch.CPUTime, Subject: group("a.slice/api")}: 3,
		{Quantity: watch.Memory, Subject: group("b.slice")}:      4096,
	} {
		key.Time = now
		if v, ok := got[key]; !ok || v != want {
			t.Errorf("%s of %s is %v, %t; want %v", key.Quantity, key.Subject, v, ok, want)
		}
	}
	for key := range got {
		if key.Subject.Name == "a.slice/api.d" || key.Quantity == watch.MemorySome || key.Quantity == watch.CPUWait {
			t.Errorf("a sample of what is not there: %+v", key)
		}
	}
	// Groups come and go.
	if err := os.RemoveAll(filepath.Join(root, "sys/fs/cgroup/b.slice")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "sys/fs/cgroup/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "sys/fs/cgroup/c/cpu.stat"), []byte("usage_usec 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	now += rescan
	got = tick(t, o, now)
	if _, there := got[watch.Sample{Time: now, Subject: group("c"), Quantity: watch.CPUTime}]; !there {
		t.Error("a new group is not seen")
	}
	if _, there := got[watch.Sample{Time: now, Subject: group("b.slice"), Quantity: watch.CPUTime}]; there {
		t.Error("a group that is gone is seen")
	}
}

// tick returns the values of a tick by sample without value.
func tick(t *testing.T, o *Observer, now watch.Time) map[watch.Sample]float64 {
	t.Helper()
	samples, err := o.Tick(now, nil)
	if err != nil {
		t.Fatal(err)
	}
	values := map[watch.Sample]float64{}
	for _, s := range samples {
		v := s.Value
		s.Value = 0
		if _, twice := values[s]; twice {
			t.Errorf("twice: %+v", s)
		}
		values[s] = v
	}
	return values
}

func TestSignals(t *testing.T) {
	t.Parallel()
	o := open(t, plant(t))
	if err := o.Focus([]string{"a.slice"}); err != nil {
		t.Fatal(err)
	}
	all, err := o.Signals()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, s := range all {
		there[s.Of+": "+s.Name] = s.Available
		if s.Available == (s.Reason != "") || s.Available != (s.CostSeconds > 0) {
			t.Errorf("%+v: a signal is there, with its cost, or there is a reason", s)
		}
	}
	want := map[string]bool{
		"host: cpu time and steal": true, "host: cpu pressure": true, "host: memory pressure": false, "host: io pressure": false,
		"group: usage": true, "group: throttling": true, "group: throttling by any limit": false, "group: memory": false,
		"group: memory events": false, "group: numa": false, "group: tasks": false, "group: io": false,
		"group: cpu pressure": false, "group: memory pressure": false, "group: io pressure": false,
		"group in focus: run delay": false, "group in focus: run queue": false,
		"host: run delay of CPUs": false, "host: cache and bandwidth": false, "host: cache and bandwidth of groups": false,
		"host: energy": false, "host: network links": false, "host: network traffic of groups": false, "group in focus: round trips of TCP": false,
		"group in focus: hardware counters": false, "group in focus: software events": false, "group in focus: cache and bandwidth": false,
		"group in focus: clock rate": false, "group in focus: thermal throttling": false, "group in focus: idle states": false,
	}
	if diff := cmp.Diff(want, there); diff != "" {
		t.Error(diff)
	}
}

// Without a group in focus signals are those of the group that has most of them.
func TestSignalsOfOneGroup(t *testing.T) {
	t.Parallel()
	root := plant(t)
	write(t, root, map[string]string{
		cgroupDir + "a.slice/api/cpu.pressure": "some avg10=0 avg60=0 avg300=0 total=1\n", cgroupDir + "a.slice/api/io.pressure": "some avg10=0 avg60=0 avg300=0 total=1\n",
	})
	all, err := open(t, root).Signals()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Of == "group" && s.Name == "cpu pressure" && !s.Available {
			t.Errorf("%+v", s)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if _, err := Open(Config{Root: filepath.Join(root, "none")}); err == nil {
		t.Error("a root that is not there opens")
	}
	for name, text := range map[string]string{"mountinfo": "", "cgroup": ""} {
		file := filepath.Join(root, "proc/self", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var no *kernel.NotSupportedError
	if _, err := Open(Config{Root: root}); !errors.As(err, &no) {
		t.Errorf("a host without groups: %v", err)
	}
	o := open(t, plant(t))
	if err := o.Focus(make([]string, MaxFocus+1)); err == nil {
		t.Error("too many groups in focus")
	}
}

// The parts of a wait become samples; a culprit that is new had cost nothing at
// the tick before, one below a group in focus is that group, one in a crowded subtree
// the subtree, and one that has ended the closest group above it that is there.
func TestQueueSamples(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, group := range []string{"api/sub", "batch", "crowd/old", "slice"} {
		if err := os.MkdirAll(filepath.Join(root, group), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	q := newQueue(&fakeProbe{}, root)
	q.names = map[uint64]string{1: "/api", 2: "/api/sub", 3: "/batch", 4: "/", 5: Ended, 6: "/crowd/old", 7: "/slice/ended/below", 8: "/ended"}
	q.crowded = []string{"crowd"}
	q.waits["/api"] = map[string]*wait{"api": {seconds: 0.5}}
	g := runq.Group{Path: "/api", Dropped: runq.Share{Wait: 7 * time.Second}}
	q.before.Groups = []runq.Group{g}
	for _, s := range []struct {
		who  runq.Culprit
		wait time.Duration
	}{
		{1, 1}, {2, 2}, {3, 4}, {4, 8}, {5, 16}, {runq.Kernel, 32}, {runq.Idle, 64}, {runq.Throttled, 128}, {runq.Unknown, 256},
		{6, 512}, {7, 1024}, {8, 2048}, {9, 4096},
	} {
		g.Shares = append(g.Shares, runq.Share{Culprit: s.who, Wait: s.wait * time.Second})
	}
	type row struct {
		At    watch.Time
		What  watch.Quantity
		By    string
		Value float64
	}
	var got []row
	for _, s := range q.samples(2, 1, &g, &g, nil) {
		if s.Subject != subject("/api") {
			t.Errorf("subject is %s", s.Subject)
		}
		got = append(got, row{s.Time, s.Quantity, s.By, s.Value})
	}
	want := []row{
		{1, watch.QueuedBy, "batch", 0}, {1, watch.QueuedBy, "/", 0}, {1, watch.QueuedBy, Ended, 0},
		{1, watch.QueuedBy, "crowd", 0}, {1, watch.QueuedBy, "slice", 0}, {1, watch.QueuedBy, Others, 0},
		{2, watch.QueuedBy, Ended, 16 + 2048}, {2, watch.QueuedBy, Others, 7 + 4096}, {2, watch.QueuedBy, "/", 8}, {2, watch.QueuedBy, "api", 3.5},
		{2, watch.QueuedBy, "batch", 4}, {2, watch.QueuedBy, "crowd", 512}, {2, watch.QueuedBy, "slice", 1024},
		{2, watch.QueuedKernel, "", 32}, {2, watch.QueuedIdle, "", 64}, {2, watch.QueuedThrottled, "", 128}, {2, watch.Queued, "", 8191 + 7},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Of groups that nobody looks after only what makes suspects is read.
func TestClosely(t *testing.T) {
	t.Parallel()
	root := plant(t)
	for _, group := range []string{"a.slice/api", "b.slice"} {
		file := filepath.Join(root, "sys/fs/cgroup", group, "memory.pressure")
		if err := os.WriteFile(file, []byte("some avg10=0 avg60=0 avg300=0 total=2000000\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o := open(t, root)
	now := watch.Time(0)
	pressed := func(groups ...string) {
		t.Helper()
		now += watch.Second
		got := tick(t, o, now)
		for _, name := range []string{"a.slice/api", "b.slice"} {
			key := watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Group, Name: name}, Quantity: watch.MemorySome}
			if _, there := got[key]; there != slices.Contains(groups, name) {
				t.Errorf("pressure of %s is read: %v, want of %v", name, there, groups)
			}
			if key.Quantity = watch.CPUTime; got[key] == 0 {
				t.Errorf("CPU time of %s is not read", name)
			}
		}
	}
	pressed("a.slice/api", "b.slice")
	for _, closely := range []string{"b.slice", "a.slice/api"} {
		if err := o.Closely([]string{closely, "gone"}); err != nil {
			t.Fatal(err)
		}
		pressed(closely)
	}
	now += rescan
	pressed("a.slice/api")
}

// What is no longer in focus is closed, and the probe tells of it no more.
func TestFocusMoves(t *testing.T) {
	t.Parallel()
	p := &fakeProbe{}
	t.Cleanup(func() { // after the observer is closed
		if !p.closed {
			t.Error("the probe is left open")
		}
	})
	o := open(t, plant(t))
	o.queue = newQueue(p, "")
	for _, group := range []string{"a.slice/api", "b.slice"} {
		if err := o.Focus([]string{group}); err != nil {
			t.Fatal(err)
		}
		_, focused := o.focus[group]
		if len(o.focus) != 1 || !focused {
			t.Errorf("in focus: %v, want %s", sortedKeys(o.focus), group)
		}
		if !slices.Equal(p.watched, []string{"/" + group}) {
			t.Errorf("the probe watches %q, want %s", p.watched, group)
		}
	}
}

// Counters are opened on CPUs that a group may use and that are online, as far as the host tells.
func TestUsable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ own, online, want string }{
		"both are told":           {"0-3", "1-5", "1-3"},
		"online is not told":      {"0-3", "", "0-3"},
		"the group's is not told": {"", "1-5", "1-5"},
		"neither is":              {"", "", ""},
	} {
		root := plant(t)
		files := map[string]string{}
		for _, dir := range []string{"", "a.slice/"} {
			files[cgroupDir+dir+"cpuset.cpus.effective"] = c.own + "\n"
			if c.own == "" {
				files[cgroupDir+dir+"cpuset.cpus.effective"] = "garbage\n"
			}
		}
		if c.online != "" {
			files["sys/devices/system/cpu/online"] = c.online + "\n"
		}
		write(t, root, files)
		if got := open(t, root).usable("a.slice/api"); got.String() != c.want {
			t.Errorf("%s: CPUs %s, want %s", name, got, c.want)
		}
	}
}

// When nobody is taken to have waited since the tick before, by the host's pressure and its CPUs.
func TestStill(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cpus  int
		total float64 // after 5; negative is not told
		want  bool
	}{
		"nothing is waited":         {1, 5, true},
		"next to nothing":           {1, 5.00009, true},
		"a little":                  {1, 5.00011, false},
		"as little, of four CPUs":   {4, 5.00009, false},
		"a quarter of that":         {4, 5.00002, true},
		"the CPUs are not told":     {0, 5.00009, true},
		"a little, and they aren't": {0, 5.00011, false},
		"it counts anew":            {1, 4.99, false},
		"it is not told":            {1, -1, false},
	} {
		s := stall{quantity: watch.IOSome, host: 5, at: watch.Second}
		host := []watch.Sample{{Time: 2 * watch.Second, Quantity: watch.CPUSome, Value: 5}}
		for cpu := range c.cpus {
			host = append(host, watch.Sample{Time: 2 * watch.Second, Subject: watch.Subject{Part: watch.Part{Kind: watch.CPU, ID: cpu}}, Quantity: watch.CPUTime})
		}
		if c.total >= 0 {
			host = append(host, watch.Sample{Time: 2 * watch.Second, Quantity: watch.IOSome, Value: c.total})
		}
		if got := s.still(2*watch.Second, host); got != c.want {
			t.Errorf("%s: still %v, want %v", name, got, c.want)
		}
	}
}

// Block I/O is read while somebody waits for it, and now and then; so are memory
// events.
func TestReadWhilePressed(t *testing.T) {
	t.Parallel()
	root := plant(t)
	pressure := func(of, total string) {
		write(t, root, map[string]string{of: "some avg10=0 avg60=0 avg300=0 total=" + total + "\n"})
	}
	const host, api = "proc/pressure/io", "sys/fs/cgroup/a.slice/api/io.pressure"
	pressure(host, "1000000")
	pressure(api, "1000000")
	pressure("sys/fs/cgroup/a.slice/api/memory.pressure", "1000000")
	write(t, root, map[string]string{
		"sys/fs/cgroup/cgroup.controllers":        "cpu cpuset memory io\n",
		"sys/fs/cgroup/b.slice/io.stat":           "8:0 rbytes=4096 wbytes=0 rios=1 wios=0\n",
		"sys/fs/cgroup/a.slice/api/io.stat":       "8:0 rbytes=512 wbytes=0 rios=1 wios=0\n",
		"sys/fs/cgroup/a.slice/api/memory.events": "low 0\nhigh 0\nmax 7\n",
	})
	o := open(t, root)
	if err := o.Closely([]string{"a.slice/api"}); err != nil {
		t.Fatal(err)
	}
	now := watch.Time(0)
	reads := func(when string, io, events bool) {
		t.Helper()
		now += watch.Second
		got := tick(t, o, now)
		key := watch.Sample{Time: now, Quantity: watch.IORead, Subject: subject("b.slice")}
		key.Subject.Part = watch.Part{Kind: watch.Device, ID: watch.DeviceID(8, 0)}
		other := got[key] == 4096
		key.Subject.Name = "a.slice/api"
		if own := got[key] == 512; own != io || other != io {
			t.Errorf("%s: I/O of the one is read: %t, of the other: %t; want %t", when, own, other, io)
		}
		key.Subject.Part, key.Quantity = watch.Part{}, watch.MemoryMax
		if read := got[key] == 7; read != events {
			t.Errorf("%s: memory events are read: %t, want %t", when, read, events)
		}
	}
	reads("at first", true, true)
	for range few - 1 {
		reads("nobody waits", false, false)
	}
	reads("after a few ticks", true, true)
	pressure(host, "1040000")
	reads("hardly anybody waits", false, false)
	pressure(host, "1100000")
	reads("the host waits", true, false)
	pressure(host, "10")
	reads("the host counts anew", true, false)
	pressure("sys/fs/cgroup/a.slice/api/memory.pressure", "1011000")
	reads("a group waits for memory", false, true)
	reads("after a few ticks more", true, true)
	pressure(host, "20010")
	pressure(api, "1100000")
	reads("it waits for I/O", true, false)
	if err := os.Remove(filepath.Join(root, host)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(root, api)); err != nil {
		t.Fatal(err)
	}
	o2 := open(t, root)
	if err := o2.Closely([]string{"a.slice/api"}); err != nil {
		t.Fatal(err)
	}
	o = o2
	reads("nobody tells of I/O, at first", true, true)
	reads("nobody tells of I/O", true, false)

	if err := o.Closely(nil); err != nil {
		t.Fatal(err)
	}
	now += watch.Second
	for key := range tick(t, o, now) {
		if key.Quantity == watch.IORead {
			t.Errorf("nobody is looked after, and %v is read", key)
		}
	}
}

// The file that tells a group's CPUs stays open as long as it is that of the group.
func TestCPUsOfGroupMadeAnew(t *testing.T) {
	t.Parallel()
	root := plant(t)
	o := open(t, root)
	tick(t, o, watch.Second)
	for _, cpus := range []string{"0-1", "1"} {
		write(t, root, map[string]string{"sys/fs/cgroup/b.slice/cpuset.cpus.effective": cpus + "\n"})
		if got := o.CPUs("b.slice"); got.String() != cpus {
			t.Errorf("CPUs %s, want %s", got, cpus)
		}
	}
	if o.sets.Len() != 1 {
		t.Errorf("%d files are open", o.sets.Len())
	}
	if err := os.RemoveAll(filepath.Join(root, "sys/fs/cgroup/b.slice")); err != nil {
		t.Fatal(err)
	}
	tick(t, o, watch.Second+rescan)
	if o.sets.Len() != 0 {
		t.Error("the file of a group that is gone is open")
	}
	write(t, root, map[string]string{"sys/fs/cgroup/b.slice/cpuset.cpus.effective": "2\n"})
	if got := o.CPUs("b.slice"); got.String() != "2" {
		t.Errorf("CPUs of the new group are %s", got)
	}
}

// What a tick has found is not looked for a second time, but once.
func TestGroupsAfterTick(t *testing.T) {
	t.Parallel()
	root := plant(t)
	o := open(t, root)
	tick(t, o, watch.Second)
	if err := os.Mkdir(filepath.Join(root, "sys/fs/cgroup/new"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{3, 4} {
		if got, err := o.Groups(); len(got) != want || err != nil {
			t.Errorf("groups %q, %v; want %d", got, err, want)
		}
	}
	tick(t, o, watch.Second+rescan)
	tick(t, o, 2*watch.Second+rescan)
	if o.leaves != nil {
		t.Error("what an earlier tick has found is kept")
	}
}
