package cgroup

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

func TestDetect(t *testing.T) {
	t.Parallel()
	v1 := func(dir string, controllers ...string) Hierarchy {
		return Hierarchy{Version: 1, Controllers: controllers, Dir: "sys/fs/cgroup/" + dir, Root: "/", Own: "sys/fs/cgroup/" + dir}
	}
	tests := map[string]struct {
		layout fakekernel.Layout
		mode   string
		want   []Hierarchy
	}{
		"v1": {fakekernel.V1(), "cgroup v1", []Hierarchy{
			v1("cpu,cpuacct", CPU, CPUAcct), v1("cpuset", CPUSet), v1("memory", Memory), v1("blkio", IO), v1("pids", PIDs), v1("freezer", Freezer),
		}},
		"v2": {fakekernel.V2(), "cgroup v2", []Hierarchy{{
			Version: 2, Controllers: []string{CPU, CPUSet, IO, Memory, PIDs}, Dir: "sys/fs/cgroup", Root: "/",
			Own: "sys/fs/cgroup/user.slice/session-1.scope",
		}}},
		"hybrid": {fakekernel.Hybrid(), "hybrid", []Hierarchy{
			v1("cpu", CPU), v1("cpuacct", CPUAcct), v1("cpuset", CPUSet), v1("memory", Memory), v1("freezer", Freezer),
			{Version: 2, Controllers: []string{IO, PIDs}, Dir: "sys/fs/cgroup/unified", Root: "/", Own: "sys/fs/cgroup/unified"},
		}},
		"none": {fakekernel.Layout{Own: "/"}, "", nil},
	}
	for name, tt := range tests {
		dir := fakekernel.MemoryDir(t)
		k, err := fakekernel.New(dir, tt.layout)
		if err != nil {
			t.Fatal(err)
		}
		host, err := Detect(kernel.NewRoot(dir, k))
		if err != nil {
			t.Fatal(err)
		}
		diff(t, name, tt.want, host.Hierarchies)
		if host.Mode() != tt.mode {
			t.Errorf("%s: mode %q, want %q", name, host.Mode(), tt.mode)
		}
		if tt.mode != "" {
			continue
		}
		var unsupported *kernel.NotSupportedError
		if _, err := host.Base(); !errors.As(err, &unsupported) || unsupported.Remedy == "" {
			t.Errorf("%s: Base: %v, want NotSupported with a remedy", name, err)
		}
	}
}

// TestChoosesMount has a hierarchy mounted several times.
func TestChoosesMount(t *testing.T) {
	t.Parallel()
	const cgroup2 = " - cgroup2 cgroup2 rw\n"
	tests := map[string]struct {
		mounts, group string
		dir, own      string
		readOnly      bool
	}{
		"bind mount of own":    {"1 0 0:1 /docker/a /cg rw" + cgroup2, "/docker/a/b", "cg", "cg/b", false},
		"own is not shown":     {"1 0 0:1 /docker/a /cg rw" + cgroup2, "/docker/b", "cg", "", false},
		"shown before hidden":  {"1 0 0:1 /docker/a /one rw" + cgroup2 + "2 0 0:1 / /two rw" + cgroup2, "/docker/b", "two", "two/docker/b", false},
		"writable before not":  {"1 0 0:1 / /one ro" + cgroup2 + "2 0 0:1 /docker /two rw" + cgroup2, "/docker/b", "two", "two/b", false},
		"whole before part":    {"1 0 0:1 / /one rw" + cgroup2 + "2 0 0:1 /docker /two rw" + cgroup2, "/docker/b", "one", "one/docker/b", false},
		"last of equals":       {"1 0 0:1 / /one rw" + cgroup2 + "2 0 0:1 / /two rw" + cgroup2, "/b", "two", "two/b", false},
		"only a read-only one": {"1 0 0:1 / /one ro" + cgroup2, "/b", "one", "one/b", true},
		"of a namespace":       {"1 0 0:1 /../.. /one rw" + cgroup2, "/", "one", "", false},
	}
	for name, tt := range tests {
		mounts, err := mountsIn(tt.mounts)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		k, err := fakekernel.New(dir, fakekernel.Layout{V2: tt.dir, Own: "/"})
		if err != nil {
			t.Fatal(err)
		}
		h, ok, err := hierarchy(kernel.NewRoot(dir, k), Membership{Path: tt.group}, mounts)
		if err != nil || !ok || h.Dir != tt.dir || h.Own != tt.own || h.ReadOnly != tt.readOnly {
			t.Errorf("%s: %+v, %v, %v", name, h, ok, err)
		}
	}
}

// TestLife makes groups, moves a process, reads everything, and undoes.
func TestLife(t *testing.T) {
	t.Parallel()
	onEverySite(t, func(t *testing.T, s site) {
		pid := s.process(t)
		var before map[string]string
		if s.fake != nil {
			before = mustTree(t, s.fake)
		}
		lab := s.base.Child(s.name)
		plan, err := lab.Create("tenant", "neighbour")
		undoCreate := s.apply(t, plan, err)
		if _, ok, err := lab.Procs(); !ok || err != nil {
			t.Errorf("Procs of a new group: %v, %v", ok, err)
		}
		tenant := lab.Child("tenant")
		plan, err = tenant.Attach(pid)
		undoAttach := s.apply(t, plan, err)
		pids, ok, err := tenant.Procs()
		if err != nil || !ok || !slices.Equal(pids, []int{pid}) {
			t.Errorf("Procs: %v, %v, %v, want %d", pids, ok, err, pid)
		}
		var dirs []string
		for _, tree := range tenant.Trees() {
			dirs = append(dirs, tree.Dir)
			if tree.Version == 0 || !slices.ContainsFunc(s.host.Hierarchies, func(h Hierarchy) bool { return strings.HasPrefix(tree.Dir, h.Dir+"/") }) {
				t.Errorf("Trees: %+v", tree)
			}
		}
		diff(t, "directories", tenant.Dirs(), dirs)
		if err := errors.Join(undoAttach(), undoCreate()); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := lab.Procs(); ok || err != nil {
			t.Errorf("the group is still there: %v, %v", ok, err)
		}
		if s.fake != nil {
			diff(t, "tree", before, mustTree(t, s.fake))
		}
	})
}

func TestCreateTwice(t *testing.T) {
	t.Parallel()
	onEverySite(t, func(t *testing.T, s site) {
		g := s.group(t)
		plan, err := g.Create()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kernel.Apply(s.root, plan, nil); !errors.Is(err, syscall.EEXIST) {
			t.Errorf("making a group that exists: %v, want EEXIST", err)
		}
		if _, ok, err := g.Procs(); !ok || err != nil {
			t.Errorf("the existing group is gone: %v, %v", ok, err)
		}
		plan, err = g.Create("deeper/still")
		if err != nil {
			t.Fatal(err)
		}
		plan = slices.DeleteFunc(plan, func(s kernel.Step) bool { return s.Op == kernel.Mkdir && path.Base(s.Path) == "a" })
		s.apply(t, plan, nil)
	})
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, fakekernel.V2())
	for _, name := range []string{"", "..", "../x", "a/../.."} {
		if plan, err := s.base.Child(name).Create(); err == nil {
			t.Errorf("Create(%q):\n%s", name, plan)
		}
	}
	// A group with processes in it cannot have children with controllers.
	g := s.group(t)
	plan, err := g.Attach(s.pid)
	s.apply(t, plan, err)
	var unsupported *kernel.NotSupportedError
	if _, err := g.Create("kid"); err != nil && !errors.As(err, &unsupported) {
		t.Error(err)
	}
	if _, err := g.Child("kid").Create(); !errors.As(err, &unsupported) || !strings.Contains(unsupported.Remedy, "child group") {
		t.Errorf("Create below processes: %v", err)
	}
	if _, err := g.Attach(31337); err == nil {
		t.Error("attached a process that is not there")
	}

	v1 := fakeSite(t, fakekernel.V1())
	if err := v1.fake.Mkdir("sys/fs/cgroup/cpuset/empty"); err != nil {
		t.Fatal(err)
	}
	if _, err := v1.base.Child("empty/kid").Create(); !errors.As(err, &unsupported) || !strings.Contains(unsupported.Reason, "empty") {
		t.Errorf("Create below an empty cpuset: %v", err)
	}
}

// limitCases are limits with what the files then show (one of a|b), by the version of the
// hierarchy that the controller is in.
var limitCases = map[string]struct {
	controller string
	limits     Limits
	v1, v2     map[string]string // nil: not supported
	hardware   bool              // needs more than the real host may have
}{
	"weight":       {CPU, Limits{Weight: 10}, map[string]string{"cpu.shares": "102"}, map[string]string{"cpu.weight": "10"}, false},
	"least weight": {CPU, Limits{Weight: 1}, map[string]string{"cpu.shares": "10"}, map[string]string{"cpu.weight": "1"}, false},
	"most weight":  {CPU, Limits{Weight: 10000}, map[string]string{"cpu.shares": "102400"}, map[string]string{"cpu.weight": "10000"}, false},
	"idle": {CPU, Limits{Idle: On}, map[string]string{"cpu.idle": "1", "cpu.shares": "3"},
		map[string]string{"cpu.idle": "1", "cpu.weight": "0|1"}, false}, // 0 on 6.1, 1 on 6.12
	"not idle": {CPU, Limits{Idle: Off, Weight: 50}, map[string]string{"cpu.idle": "0", "cpu.shares": "512"},
		map[string]string{"cpu.idle": "0", "cpu.weight": "50"}, false},
	"quota": {CPU, Limits{Quota: 50 * time.Millisecond}, map[string]string{"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"},
		map[string]string{"cpu.max": "50000 100000"}, false},
	"quota, period and burst": {CPU, Limits{Quota: 5 * time.Millisecond, Period: 10 * time.Millisecond, Burst: 5 * time.Millisecond},
		map[string]string{"cpu.cfs_quota_us": "5000", "cpu.cfs_period_us": "10000", "cpu.cfs_burst_us": "5000"},
		map[string]string{"cpu.max": "5000 10000", "cpu.max.burst": "5000"}, false},
	"no quota": {CPU, Limits{Quota: Unlimited, Burst: Unlimited}, map[string]string{"cpu.cfs_quota_us": "-1", "cpu.cfs_burst_us": "0"},
		map[string]string{"cpu.max": "max 100000", "cpu.max.burst": "0"}, false},
	"cpus and mems": {CPUSet, Limits{CPUs: cpuset.MustOf(0), Mems: cpuset.MustOf(0)},
		map[string]string{"cpuset.cpus": "0", "cpuset.mems": "0"}, map[string]string{"cpuset.cpus": "0", "cpuset.mems": "0"}, false},
	"more cpus": {CPUSet, Limits{CPUs: cpuset.MustParse("1,3")},
		map[string]string{"cpuset.cpus": "1,3"}, map[string]string{"cpuset.cpus": "1,3", "cpuset.cpus.effective": "1,3"}, true},
	"partition member": {CPUSet, Limits{Partition: "member"}, nil, map[string]string{"cpuset.cpus.partition": "member"}, false},
	"memory":           {Memory, Limits{MemoryMax: 1<<20 + 5}, map[string]string{"memory.limit_in_bytes": "1048576"}, map[string]string{"memory.max": "1048576"}, false},
	"no memory limit":  {Memory, Limits{MemoryMax: Unlimited}, map[string]string{"memory.limit_in_bytes": "9223372036854771712"}, map[string]string{"memory.max": "max"}, false},
	"memory high":      {Memory, Limits{MemoryHigh: 1 << 20}, nil, map[string]string{"memory.high": "1048576"}, false},
	"memory low":       {Memory, Limits{MemoryLow: 1 << 20}, nil, map[string]string{"memory.low": "1048576"}, false},
	"io weight":        {IO, Limits{IOWeight: 200}, map[string]string{"blkio.bfq.weight": "200"}, map[string]string{"io.weight": "default 200"}, true},
	"io max": {IO, Limits{IOMax: []IOMax{{Device: "254:0", ReadBPS: 1000000, WriteIOPS: 50}}},
		map[string]string{"blkio.throttle.read_bps_device": "254:0 1000000", "blkio.throttle.write_iops_device": "254:0 50"},
		map[string]string{"io.max": "254:0 rbps=1000000 wbps=max riops=max wiops=50"}, true},
	"no io max": {IO, Limits{IOMax: []IOMax{{Device: "254:0", ReadBPS: Unlimited}, {Device: "254:1"}}},
		map[string]string{"blkio.throttle.read_bps_device": ""}, map[string]string{"io.max": ""}, true},
	"pids":     {PIDs, Limits{PIDsMax: 7}, map[string]string{"pids.max": "7"}, map[string]string{"pids.max": "7"}, false},
	"any pids": {PIDs, Limits{PIDsMax: Unlimited}, map[string]string{"pids.max": "max"}, map[string]string{"pids.max": "max"}, false},
	"frozen":   {Freezer, Limits{Frozen: On}, map[string]string{"freezer.state": "FROZEN"}, map[string]string{"cgroup.freeze": "1"}, false},
	"thawed":   {Freezer, Limits{Frozen: Off}, map[string]string{"freezer.state": "THAWED"}, map[string]string{"cgroup.freeze": "0"}, false},
}

func TestLimits(t *testing.T) {
	t.Parallel()
	onEverySite(t, func(t *testing.T, s site) {
		g := s.group(t)
		for name, tt := range limitCases {
			if s.fake == nil && tt.hardware {
				continue
			}
			p, err := g.part(tt.controller)
			if err != nil {
				t.Logf("%s: %v", name, err)
				continue
			}
			want := tt.v2
			if p.Version == 1 {
				want = tt.v1
			}
			before := knobs(t, g)
			plan, err := g.Set(tt.limits)
			if want == nil {
				var unsupported *kernel.NotSupportedError
				if !errors.As(err, &unsupported) || unsupported.Feature == "" || unsupported.Reason == "" || unsupported.Remedy == "" {
					t.Errorf("%s: %v, want NotSupported with all its fields", name, err)
				}
				continue
			}
			if s.fake == nil && errors.Is(err, kernel.ErrNotSupported) {
				t.Logf("%s: %v", name, err)
				continue
			}
			undo := s.apply(t, plan, err)
			for file, value := range want {
				if got, ok := s.text(g, tt.controller, file); !ok || !slices.Contains(strings.Split(value, "|"), got) {
					t.Errorf("%s: %s is %q (%v), want %q; plan:\n%s", name, file, got, ok, value, plan)
				}
			}
			if err := undo(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			diff(t, name+": settings after undo", before, knobs(t, g))
		}
	})
}

// TestLimitChanges goes from every setting of quota, period and burst to every
// other, below a parent that itself has a limit, and back.
func TestLimitChanges(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	settings := []Limits{
		{Quota: Unlimited, Burst: Unlimited},
		{Quota: 50 * ms, Burst: Unlimited},
		{Quota: 5 * ms, Period: 10 * ms, Burst: 5 * ms},
		{Quota: 500 * ms, Period: time.Second, Burst: 400 * ms},
		{Quota: 1 * ms, Period: 2 * ms, Burst: Unlimited},
	}
	onEverySite(t, func(t *testing.T, s site) {
		g := s.group(t)
		if err := g.Has(CPU); err != nil {
			t.Skip(err)
		}
		plan, err := s.base.Child(s.name).Set(Limits{Quota: 50 * ms})
		s.apply(t, plan, err)
		for i, from := range settings {
			plan, err := g.Set(from)
			undoFrom := s.apply(t, plan, err)
			before := knobs(t, g)
			for j, to := range settings {
				plan, err := g.Set(to)
				undo := s.apply(t, plan, err)
				if err := undo(); err != nil {
					t.Errorf("%d to %d: %v", i, j, err)
				}
				diff(t, "after undo", before, knobs(t, g))
			}
			if err := undoFrom(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestBurstBeyondQuota(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, fakekernel.V1())
	g := s.group(t)
	plan, err := g.Set(Limits{Quota: 50 * time.Millisecond, Burst: 50 * time.Millisecond})
	s.apply(t, plan, err)
	if plan, err := g.Set(Limits{Quota: 40 * time.Millisecond}); err == nil || !strings.Contains(err.Error(), "set Burst too") {
		t.Errorf("%v, %v", plan, err)
	}
}

func TestPartition(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, fakekernel.V2())
	top := s.base.Child(s.name)
	plan, err := top.Create("a", "b")
	s.apply(t, plan, err)
	a, b := top.Child("a"), top.Child("b")
	var unsupported *kernel.NotSupportedError
	if plan, err := a.Set(Limits{CPUs: cpuset.MustOf(1), Partition: "root"}); !errors.As(err, &unsupported) || !strings.Contains(unsupported.Remedy, "make the parent a partition root first") {
		t.Errorf("partition below an ordinary group: %v\n%s", err, plan)
	}
	for _, set := range []struct {
		g Group
		l Limits
	}{
		{top, Limits{CPUs: cpuset.MustParse("0-3"), Partition: "root"}},
		{a, Limits{CPUs: cpuset.MustParse("0-1"), Partition: "isolated"}},
	} {
		plan, err := set.g.Set(set.l)
		s.apply(t, plan, err)
	}
	// Before Linux 7, the writes that are refused here would end the partition for good.
	for name, f := range map[string]func() (kernel.Plan, error){
		"set":   func() (kernel.Plan, error) { return b.Set(Limits{CPUs: cpuset.MustParse("1-2")}) },
		"place": func() (kernel.Plan, error) { return Place(Placement{Group: b, CPUs: cpuset.MustParse("1-2")}) },
	} {
		if plan, err := f(); !errors.As(err, &unsupported) || !strings.Contains(unsupported.Reason, "/a is a partition and holds 1") {
			t.Errorf("%s over a sibling's partition: %v\n%s", name, err, plan)
		}
	}
	for _, f := range []func() (kernel.Plan, error){
		func() (kernel.Plan, error) { return b.Set(Limits{CPUs: cpuset.MustParse("2-3")}) },
		func() (kernel.Plan, error) { return a.Set(Limits{CPUs: cpuset.MustParse("0-1")}) },
		func() (kernel.Plan, error) { return a.Child("x").Set(Limits{CPUs: cpuset.MustOf(0)}) },
	} {
		if _, err := f(); err != nil {
			t.Errorf("beside, as, and in a partition: %v", err)
		}
	}
	plan, err = b.Set(Limits{CPUs: cpuset.MustOf(2)})
	s.apply(t, plan, err)
	plan, err = a.Set(Limits{CPUs: cpuset.MustParse("1-2"), Partition: "root"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Apply(s.root, plan, nil); err == nil || !strings.Contains(err.Error(), "Cpu list in cpuset.cpus not exclusive") {
		t.Errorf("a partition over a sibling's set: %v", err)
	}
	plan, err = a.Set(Limits{CPUs: cpuset.MustOf(3), Partition: "member"})
	if err != nil || len(plan) != 2 || path.Base(plan[0].Path) != "cpuset.cpus.partition" {
		t.Errorf("leaving a partition: %v\n%s", err, plan)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, l := range []Limits{
		{Weight: -1}, {Weight: 10001}, {IOWeight: -1}, {IOWeight: 10001},
		{Quota: 999 * time.Microsecond}, {Quota: -2}, {Quota: time.Second, Period: time.Microsecond},
		{Quota: time.Second, Period: 2 * time.Second}, {Period: time.Second}, {Burst: -2},
		{Quota: time.Millisecond, Burst: 2 * time.Millisecond}, {Idle: On, Weight: 5}, {Partition: "mine"},
		{MemoryMax: 1}, {MemoryHigh: -2}, {MemoryLow: 4095}, {PIDsMax: -2},
		{IOMax: []IOMax{{Device: "sda"}}}, {IOMax: []IOMax{{Device: "8:"}}}, {IOMax: []IOMax{{Device: "8:0", ReadBPS: -2}}},
		{IOMax: []IOMax{{Device: "8:0", ReadBPS: 1}, {Device: "8:16", ReadBPS: 1}, {Device: "8:0", WriteBPS: 1}}},
	} {
		if err := l.Validate(); err == nil {
			t.Errorf("%+v: accepted", l)
		}
	}
	if err := (Limits{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	if err := (Limits{IOMax: []IOMax{{Device: "8:0", ReadBPS: 1}, {Device: "8:16", ReadBPS: 1}}}).Validate(); err != nil {
		t.Errorf("two devices: %v", err)
	}
}

func TestSetNothing(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, fakekernel.V1())
	if plan, err := s.base.Child("x").Set(Limits{}); err != nil || len(plan) > 0 {
		t.Errorf("%v, %v", plan, err)
	}
	if _, err := s.base.Child("x").Set(Limits{Weight: -1}); err == nil {
		t.Error("a bad weight was planned")
	}
}

// TestSetBeforeCreate plans a group and its limits together.
func TestSetBeforeCreate(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
		s := fakeSite(t, layout)
		before := mustTree(t, s.fake)
		g := s.base.Child("new")
		plan, err := g.Create()
		if err != nil {
			t.Fatal(err)
		}
		limits, err := g.Set(Limits{Weight: 20, Quota: 5 * time.Millisecond, Period: 10 * time.Millisecond, CPUs: cpuset.MustOf(2), MemoryMax: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		undo := s.apply(t, append(plan, limits...), nil)
		if err := undo(); err != nil {
			t.Error(err)
		}
		diff(t, name+": tree", before, mustTree(t, s.fake))
	}
}

func TestMissingController(t *testing.T) {
	t.Parallel()
	layout := fakekernel.V2()
	layout.V2Controllers = []string{"cpu"}
	s := fakeSite(t, layout)
	g := s.base.Child("x")
	if err := g.Has(CPU); err != nil {
		t.Error(err)
	}
	for controller, l := range map[string]Limits{
		Memory: {MemoryMax: 1 << 20}, IO: {IOWeight: 5}, PIDs: {PIDsMax: 5}, CPUSet: {CPUs: cpuset.MustOf(0)},
	} {
		var unsupported *kernel.NotSupportedError
		if _, err := g.Set(l); !errors.As(err, &unsupported) || unsupported.Feature != controller+" controller" || unsupported.Reason == "" || unsupported.Remedy == "" {
			t.Errorf("%s: %v", controller, err)
		}
	}
	only, err := s.host.Base(CPU)
	if err != nil {
		t.Fatal(err)
	}
	if err := only.Has(Freezer); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "was not asked for") {
		t.Errorf("Has: %v", err)
	}
}

// TestKill kills a group, and a group by way of its parent.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"itself", "parent"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			onEverySite(t, func(t *testing.T, s site) { killGroup(t, s, of == "parent") })
		})
	}
	s := fakeSite(t, fakekernel.V1())
	if err := s.base.Kill(context.Background()); err == nil {
		t.Error("killed the base")
	}
}

func killGroup(t *testing.T, s site, byParent bool) {
	g := s.group(t)
	pid := s.process(t)
	plan, err := g.Attach(pid)
	s.apply(t, plan, err)
	plan, err = g.Set(Limits{Frozen: On})
	s.apply(t, plan, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	victim := g
	if byParent {
		victim = s.base.Child(s.name)
	}
	if err := victim.Kill(ctx); err != nil {
		t.Error(err)
	}
	if pids, _, err := g.Procs(); err != nil || len(pids) > 0 {
		t.Errorf("still there: %v, %v", pids, err)
	}
}

// A threaded group keeps nobody from killing the group around it, which lists its processes.
func TestKillAroundThreaded(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, fakekernel.V2())
	g := s.group(t)
	plan, err := g.Attach(s.process(t))
	s.apply(t, plan, err)
	threads := g.Child("threads").Dirs()
	if err := s.fake.Mkdir(threads[0]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.fake.Rmdir(threads[0]); err != nil {
			t.Error(err)
		}
	})
	s.root.Files = &fakekernel.Threaded{Kernel: s.fake, Dirs: threads}
	if pids, err := Processes(s.root.FS(), g.Dirs()[0]); err != nil || len(pids) != 1 {
		t.Errorf("processes: %v, %v", pids, err)
	}
	if _, err := Processes(s.root.FS(), threads[0]); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("processes of the threaded group: %v", err)
	}
	if err := g.Child("threads").Kill(t.Context()); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("the threaded group killed: %v", err)
	}
	if err := g.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if pids, _, err := g.Procs(); err != nil || len(pids) > 0 {
		t.Errorf("still there: %v, %v", pids, err)
	}
}

// vanishing is a kernel in which groups are removed as soon as a file in them is opened for writing.
type vanishing struct{ *fakekernel.Kernel }

func (vanishing) WriteFile(name, _ string) error {
	return &fs.PathError{Op: "write", Path: name, Err: syscall.ENODEV}
}

// A group that is removed while it is about to be killed has no processes.
func TestKillWhatVanishes(t *testing.T) {
	t.Parallel()
	for _, layout := range []fakekernel.Layout{fakekernel.V1(), fakekernel.V2()} {
		s := fakeSite(t, layout)
		g := s.group(t)
		plan, err := g.Set(Limits{Frozen: On})
		s.apply(t, plan, err)
		files := s.root.Files
		s.root.Files = vanishing{s.fake}
		if err := g.Kill(t.Context()); err != nil {
			t.Error(err)
		}
		s.root.Files = files
	}
}

// undead is a kernel whose processes do not die.
type undead struct {
	*fakekernel.Kernel
	err error
}

func (u undead) Signal(int, syscall.Signal) error { return u.err }

func TestKillGivesUp(t *testing.T) {
	t.Parallel()
	s := fakeSite(t, fakekernel.V1())
	g := s.group(t)
	plan, err := g.Attach(s.pid)
	s.apply(t, plan, err)
	s.root.Files = undead{s.fake, nil}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Kill(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "100") {
		t.Errorf("Kill: %v", err)
	}
	s.root.Files = undead{s.fake, syscall.EPERM}
	if err := g.Kill(context.Background()); !errors.Is(err, syscall.EPERM) {
		t.Errorf("Kill: %v", err)
	}
}

// A process that another v1 group holds frozen cannot be killed; Kill says which group
// that is, and leaves it as it is.
func TestKillNamesFreezer(t *testing.T) {
	t.Parallel()
	for _, fake := range []bool{true, false} {
		t.Run(map[bool]string{true: "fake", false: "real"}[fake], func(t *testing.T) {
			t.Parallel()
			var s site
			if fake {
				s = fakeSite(t, fakekernel.V1())
			} else {
				s = realSite(t, 1)
			}
			tree, ok := s.host.Hierarchy(Freezer)
			if !ok || tree.Version != 1 {
				t.Skip("no v1 freezer here")
			}
			var err error
			if s.base, err = s.host.Base(CPUSet); err != nil {
				t.Skip(err)
			}
			g := s.group(t)
			pid := s.process(t)
			plan, err := g.Attach(pid)
			s.apply(t, plan, err)
			other, err := s.host.Base(Freezer)
			if err != nil {
				t.Skip(err)
			}
			frozen := other.Child(s.name + "-frozen")
			plan, err = frozen.Create()
			s.apply(t, plan, err)
			plan, err = frozen.Attach(pid)
			s.apply(t, plan, err)
			plan, err = frozen.Set(Limits{Frozen: On})
			s.apply(t, plan, err) // undone first: the process ends then
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			err = g.Kill(ctx)
			var alive *kernel.AliveError
			if !errors.As(err, &alive) || len(alive.Left) != 1 || alive.Left[0].PID != pid || alive.Left[0].Frozen != frozen.Dirs()[0] {
				t.Errorf("Kill: %v, left %+v", err, alive)
			}
		})
	}
}
