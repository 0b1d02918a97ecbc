package power

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

func of[T any](v T) *T { return &v }

// played is a host of a driver.
func played(t *testing.T, name string) (*fakekernel.Power, *kernel.Root) {
	t.Helper()
	l, ok := fakekernel.PowerHosts()[name]
	if !ok {
		t.Fatalf("no host %s", name)
	}
	dir := fakekernel.MemoryDir(t)
	k, err := fakekernel.NewPower(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	return k, kernel.NewRoot(dir, k)
}

func read(t *testing.T, root *kernel.Root) *Host {
	t.Helper()
	h, err := Read(root.FS())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func tree(t *testing.T, k *fakekernel.Power) map[string]string {
	t.Helper()
	tree, err := k.Tree()
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestRead(t *testing.T) {
	t.Parallel()
	_, root := played(t, "acpi-cpufreq")
	h := read(t, root)
	want := Policy{
		Name: "policy2", CPUs: cpuset.MustParse("2-3"), Driver: "acpi-cpufreq", Governor: "ondemand",
		Governors: strings.Fields("conservative ondemand userspace powersave performance schedutil"),
		Min:       1_200_000, Max: 2_600_000, Least: 1_200_000, Most: 2_600_000, Steps: []int{1_200_000, 1_800_000, 2_600_000}, Preferences: []string{},
	}
	if diff := cmp.Diff(want, h.Policies[1]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(IdleState{2, "C2", 18, false}, h.CPUs[3].States[2]); diff != "" || h.IdleDriver != "acpi_idle" || h.CPUs[3].Bias != nil {
		t.Error(diff, h.IdleDriver)
	}
	slept, err := Slept(root.FS(), cpuset.MustParse("0-1"))
	if err != nil || slept.Microseconds() != 2*(1000+2000) {
		t.Errorf("slept %s, %v: want all but POLL", slept, err)
	}
	if err := os.WriteFile(root.Name()+"/"+cpuDir+"/cpufreq/policy0/scaling_min_freq", []byte("fast\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(root.FS()); err == nil || !strings.Contains(err.Error(), `scaling_min_freq: "fast" is no number`) {
		t.Errorf("nonsense is read: %v", err)
	}
}

// plans are changes that each kind of host can make.
var plans = []struct {
	host, cpus string
	settings   Settings
	profile    string
	want       string // the plan, "" for what the host cannot do; the paths below the directory of CPUs
}{
	{"intel_pstate", "1", Settings{}, "performance", `
		cpufreq/policy1/energy_performance_preference performance
		cpufreq/policy1/scaling_governor performance
		cpu1/power/energy_perf_bias 0`},
	{"intel_pstate", "1", Settings{}, "balance-power", `
		cpufreq/policy1/energy_performance_preference balance_power
		cpu1/power/energy_perf_bias 8`},
	{"amd-pstate-epp", "0", Settings{}, "power", `
		cpufreq/policy0/energy_performance_preference power`},
	{"acpi-cpufreq", "0-1", Settings{}, "balance-performance", `
		cpufreq/policy0/scaling_governor schedutil`},
	{"acpi-cpufreq", "0-1", Settings{}, "balance-power", `
		cpufreq/policy0/scaling_governor conservative`},
	{"cppc_cpufreq", "0-1", Settings{}, "balance-power", "none"}, // schedutil as it is
	{"cppc_cpufreq", "0-1", Settings{}, "power", ""},             // no governor powersave
	{"acpi-cpufreq", "0", Settings{}, "power", ""},               // CPU 1 shares its clock
	{"virtual", "0", Settings{}, "power", ""},
	// clamped, and to the steps that there are: the upper limit down, the lower one up
	{"intel_pstate", "0", Settings{Min: 100_000, Max: 2_050_000}, "", "cpufreq/policy0/scaling_max_freq 2050000"},
	{"acpi-cpufreq", "2-3", Settings{Min: 1_500_000, Max: 2_000_000}, "", `
		cpufreq/policy2/scaling_min_freq 1800000
		cpufreq/policy2/scaling_max_freq 1800000`},
	{"intel_pstate", "0", Settings{Min: 9_000_000, Max: 9_000_000}, "", "cpufreq/policy0/scaling_min_freq 3700000"},
	{"intel_pstate", "2", Settings{IdleLatency: of(10)}, "", "cpu2/cpuidle/state3/disable 1"},
	{"intel_pstate", "2", Settings{IdleLatency: of(0)}, "", `
		cpu2/cpuidle/state1/disable 1
		cpu2/cpuidle/state2/disable 1
		cpu2/cpuidle/state3/disable 1`},
	{"virtual", "0-1", Settings{IdleLatency: of(10)}, "", "none"},
	{"virtual", "0-1", Settings{ResumeLatency: of(0)}, "", `
		cpu0/power/pm_qos_resume_latency_us n/a
		cpu1/power/pm_qos_resume_latency_us n/a`},
	{"virtual", "0", Settings{ResumeLatency: of(50)}, "", "cpu0/power/pm_qos_resume_latency_us 50"},
	{"cppc_cpufreq", "0", Settings{IdleLatency: of(0)}, "", ""},
	{"amd-pstate-epp", "0", Settings{Bias: of(3)}, "", ""},
	{"acpi-cpufreq", "0-1", Settings{Preference: "power"}, "", ""},
	{"intel_pstate", "0", Settings{Preference: "fastest"}, "", ""},
	{"intel_pstate", "0-3", Settings{Boost: of(false)}, "", "intel_pstate/no_turbo 1"},
	// without boost limits are those that the driver can show then, and are written before
	{"intel_pstate", "0-3", Settings{Boost: of(false), Max: 3_000_000}, "", `
		cpufreq/policy0/scaling_max_freq 2100000
		cpufreq/policy1/scaling_max_freq 2100000
		cpufreq/policy2/scaling_max_freq 2100000
		cpufreq/policy3/scaling_max_freq 2100000
		intel_pstate/no_turbo 1`},
	{"intel_cpufreq", "0-3", Settings{Boost: of(false), Min: 2_500_000}, "", `
		cpufreq/policy0/scaling_min_freq 2100000
		cpufreq/policy1/scaling_min_freq 2100000
		cpufreq/policy2/scaling_min_freq 2100000
		cpufreq/policy3/scaling_min_freq 2100000
		intel_pstate/no_turbo 1`},
	{"intel_cpufreq", "1", Settings{}, "performance", `
		cpufreq/policy1/energy_performance_preference performance
		cpufreq/policy1/scaling_governor performance
		cpu1/power/energy_perf_bias 0`},
	{"intel_cpufreq", "1", Settings{Governor: "performance", Preference: "power"}, "", `
		cpufreq/policy1/energy_performance_preference power
		cpufreq/policy1/scaling_governor performance`},
	{"amd-pstate-epp, boost by policy", "1", Settings{Boost: of(false)}, "", "cpufreq/policy1/boost 0"},
	{"amd-pstate-epp, boost by policy", "1", Settings{Boost: of(false), Max: 4_000_000}, "", `
		cpufreq/policy1/scaling_max_freq 3000000
		cpufreq/policy1/boost 0`},
	{"amd-pstate", "2-3", Settings{Boost: of(false), Min: 1_000_000}, "", `
		cpufreq/policy2/scaling_min_freq 1000000
		cpufreq/policy3/scaling_min_freq 1000000
		cpufreq/policy2/boost 0
		cpufreq/policy3/boost 0`},
	{"amd-pstate", "2-3", Settings{Boost: of(true)}, "", "none"},
	{"acpi-cpufreq", "0-3", Settings{Boost: of(false)}, "", "cpufreq/boost 0"},
	{"acpi-cpufreq", "0-3", Settings{Boost: of(true)}, "", "none"},
	{"acpi-cpufreq", "0-1", Settings{Boost: of(false)}, "", ""}, // of all CPUs
	{"cppc_cpufreq", "0-1", Settings{Boost: of(false)}, "", ""},
	{"intel_pstate", "0-3", Settings{UncoreMin: 2_450_000, UncoreMax: 9_000_000}, "", "intel_uncore_frequency/package_00_die_00/min_freq_khz 2400000"},
	{"intel_pstate", "0-2", Settings{UncoreMin: 2_000_000}, "", ""},
	{"intel_pstate, TPMI", "2-3", Settings{UncoreMax: 2_000_000}, "", `
		intel_uncore_frequency/uncore02/max_freq_khz 2000000
		intel_uncore_frequency/uncore03/max_freq_khz 2000000`},
	{"intel_pstate, TPMI", "1-2", Settings{UncoreMax: 2_000_000}, "", ""},
	{"acpi-cpufreq", "0-3", Settings{UncoreMin: 2_000_000}, "", ""},
	{"intel_pstate", "0-3", Settings{
		Governor: "performance", Preference: "performance", Bias: of(0), Min: 2_000_000, Max: 3_000_000, Boost: of(false), IdleLatency: of(2),
		ResumeLatency: of(20), UncoreMin: 1_500_000, UncoreMax: 2_000_000,
	}, "", "many"},
}

// Firmware whose _CPC contradicts itself makes reading nominal_freq fail: the host is read
// without it.
func TestReadUntold(t *testing.T) {
	t.Parallel()
	_, root := played(t, "amd-pstate")
	whole := read(t, root)
	h, err := Read(fakekernel.Refusing{FS: root.FS(), Name: cpuDir + "/cpu0/acpi_cppc/nominal_freq", Err: syscall.EFAULT})
	if err != nil {
		t.Fatal(err)
	}
	if whole.Policies[0].Base == 0 {
		t.Fatal("the host has no nominal_freq")
	}
	whole.Policies[0].Base = 0
	if diff := cmp.Diff(whole.Policies, h.Policies); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
}

func planOf(h *Host, cpus string, s Settings, profile string) (kernel.Plan, error) {
	if profile != "" {
		return h.Profile(cpuset.MustParse(cpus), profile)
	}
	return h.Plan(cpuset.MustParse(cpus), s)
}

// Each plan is as it should be, is applied as it is (drivers echo what was planned), leaves
// nothing to plan, and comes back.
func TestPlan(t *testing.T) {
	t.Parallel()
	for _, tc := range plans {
		k, root := played(t, tc.host)
		before := tree(t, k)
		plan, err := planOf(read(t, root), tc.cpus, tc.settings, tc.profile)
		if tc.want == "" {
			var no *kernel.NotSupportedError
			if !errors.As(err, &no) || no.Reason == "" || no.Remedy == "" {
				t.Errorf("%s %+v %s: %v, want that it is not supported, a reason and a remedy", tc.host, tc.settings, tc.profile, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %+v %s: %v", tc.host, tc.settings, tc.profile, err)
			continue
		}
		var got []string
		for _, s := range plan {
			got = append(got, strings.TrimPrefix(s.Path, cpuDir+"/")+" "+s.Value)
		}
		want := strings.ReplaceAll(strings.TrimSpace(tc.want), "\t", "")
		if text := strings.Join(got, "\n"); text != want && !(want == "none" && text == "") && !(want == "many" && len(got) > 20) {
			t.Errorf("%s %+v %s:\n%s\nwant\n%s", tc.host, tc.settings, tc.profile, text, want)
		}
		undo, err := kernel.Apply(root, plan, nil)
		if err != nil {
			t.Errorf("%s %+v %s: %v", tc.host, tc.settings, tc.profile, err)
			continue
		}
		if again, err := planOf(read(t, root), tc.cpus, tc.settings, tc.profile); err != nil || len(again) > 0 {
			t.Errorf("%s %+v %s: planned once more:\n%s%v", tc.host, tc.settings, tc.profile, again, err)
		}
		if err := undo(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(before, tree(t, k)); diff != "" {
			t.Errorf("%s %+v %s (-before +undone):\n%s", tc.host, tc.settings, tc.profile, diff)
		}
	}
}

// A limit that is set while boost is off has its original value from before that: what the driver
// shows meanwhile is not what was asked for. Whoever comes last goes first, or the other way round.
func TestLimitsWithoutBoost(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"intel_pstate", "amd-pstate-epp, boost by policy", "amd-pstate"} {
		for _, sequence := range [][][]string{
			{{"boost"}, {"boost", "limit"}, {"limit"}, {}},
			{{"limit"}, {"limit", "boost"}, {"boost"}, {}},
			{{"boost"}, {"half"}, {}}, // half of what there is with boost
		} {
			k, root := played(t, host)
			before := tree(t, k)
			log, err := kernel.CreateUndoLog(root, fakekernel.MemoryDir(t), "test")
			if err != nil {
				t.Fatal(err)
			}
			was := func(path string) (string, bool) { text, ok := log.Original(path); return strings.TrimSpace(text), ok }
			never := func(string) bool { return false }
			off := false
			wishes := map[string]Wish{
				"boost": {Who: "a", CPUs: cpuset.MustParse("0-3"), Name: "calm", Profile: Profile{Boost: &off}},
				"limit": {Who: "b", CPUs: cpuset.MustParse("0-3"), Name: "slow", Profile: Profile{Max: "1.5GHz"}},
				"half":  {Who: "c", CPUs: cpuset.MustParse("0-3"), Name: "half", Profile: Profile{Max: "50%"}},
			}
			for _, have := range sequence {
				var now []Wish
				for _, name := range have {
					now = append(now, wishes[name])
				}
				d, err := read(t, root).Divide(now, was, never)
				if err == nil {
					_, err = kernel.Apply(root, d.Plan, log)
				}
				if err == nil {
					_, err = log.Undo(func(s kernel.Step) bool { return !d.Keeps(s.Path, was) })
				}
				if err != nil {
					t.Fatalf("%s, %v: %v", host, have, err)
				}
				again, err := read(t, root).Divide(now, was, never)
				if err != nil || len(again.Plan) > 0 {
					t.Errorf("%s, %v: planned once more: %v\n%v", host, have, err, again.Plan)
				}
			}
			if diff := cmp.Diff(before, tree(t, k)); diff != "" || len(log.Notes()) > 0 {
				t.Errorf("%s, %v (-before +given back):\n%s%v", host, sequence, diff, log.Notes())
			}
		}
	}
}

// Boost of some CPUs cannot be switched on while it is off for all.
func TestBoostOffForAll(t *testing.T) {
	t.Parallel()
	k, root := played(t, "amd-pstate")
	if err := k.WriteFile(cpuDir+"/cpufreq/boost", "0"); err != nil {
		t.Fatal(err)
	}
	if err := k.WriteFile(cpuDir+"/cpufreq/policy1/boost", "1"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("the kernel takes it: %v", err)
	}
	_, err := read(t, root).Plan(cpuset.MustParse("1"), Settings{Boost: of(true)})
	if !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "boost is off for all") {
		t.Errorf("planned: %v", err)
	}
}

// What no host can be asked for is an error that says so.
func TestPlanRefuses(t *testing.T) {
	t.Parallel()
	_, root := played(t, "intel_pstate")
	h := read(t, root)
	for want, s := range map[string]Settings{
		"energy bias 16":               {Bias: of(16)},
		"is above the upper one":       {Min: 2, Max: 1},
		"want 0 µs or more":            {ResumeLatency: of(-1)},
		"admits no other than perform": {Governor: "performance", Preference: "power"},
	} {
		if _, err := h.Plan(cpuset.MustParse("0"), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
	if _, err := h.Plan(cpuset.MustParse("0"), Settings{Min: 1_000_000}); err != nil {
		t.Error(err)
	}
	if _, err := kernel.Apply(root, kernel.Plan{{Path: cpuDir + "/cpufreq/policy0/scaling_min_freq", Value: "2000000"}}, nil); err != nil {
		t.Fatal(err)
	}
	h = read(t, root)
	if _, err := h.Plan(cpuset.MustParse("0"), Settings{Max: 1_000_000}); err == nil || !strings.Contains(err.Error(), "set both") {
		t.Errorf("limits that cross: %v", err)
	}
	if _, err := h.Plan(cpuset.MustParse("3-4"), Settings{}); err == nil || !strings.Contains(err.Error(), "CPUs 4 are not online") {
		t.Errorf("CPU 4: %v", err)
	}
	if _, err := h.Profile(cpuset.MustParse("0"), "turbo"); err == nil || !strings.Contains(err.Error(), "balance-power") {
		t.Errorf("profile turbo: %v", err)
	}
}

// A value that a driver makes another one of is no success, and is taken back.
func TestClampedIsRefused(t *testing.T) {
	t.Parallel()
	for host, step := range map[string]kernel.Step{
		"acpi-cpufreq":   {Path: cpuDir + "/cpufreq/policy0/scaling_max_freq", Value: "2000000"},
		"intel_pstate":   {Path: cpuDir + "/cpufreq/policy0/scaling_min_freq", Value: "100"},
		"amd-pstate-epp": {Path: cpuDir + "/cpufreq/policy0/energy_performance_preference", Value: "fastest"},
	} {
		k, root := played(t, host)
		if host == "intel_pstate" { // so that what is made of it differs from what was
			if _, err := kernel.Apply(root, kernel.Plan{{Path: step.Path, Value: "1000000"}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		before := tree(t, k)
		_, err := kernel.Apply(root, kernel.Plan{step}, nil)
		var refused *kernel.StepError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v", host, err)
		}
		if diff := cmp.Diff(before, tree(t, k)); diff != "" {
			t.Errorf("%s (-before +after):\n%s", host, diff)
		}
	}
}

// Killed before and after each write, of applying and of undoing, each plan is restored
// exactly from the undo log.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, tc := range plans {
		if tc.want == "" || tc.want == "none" {
			continue
		}
		writes := 0
		for _, after := range []bool{false, true} {
			k, root := played(t, tc.host)
			before := tree(t, k)
			plan, err := planOf(read(t, root), tc.cpus, tc.settings, tc.profile)
			if err != nil {
				t.Fatal(err)
			}
			for at, alive := 1, false; !alive; at++ {
				dir := fakekernel.MemoryDir(t)
				log, err := kernel.CreateUndoLog(root, dir, "test")
				if err != nil {
					t.Fatal(err)
				}
				count := 0
				alive = fakekernel.Survives(func() {
					undo, err := kernel.Apply(kernel.NewRoot(root.Name(), fakekernel.Mortal{Files: k, At: at, After: after, Count: &count}), plan, log)
					if err != nil {
						t.Fatal(err)
					}
					if err := undo(); err != nil {
						t.Fatal(err)
					}
				})
				writes = max(writes, count)
				if err := log.Close(); err != nil {
					t.Fatal(err)
				}
				if _, err := kernel.Restore(root, dir); err != nil {
					t.Fatalf("%s %+v %s: killed at write %d: %v", tc.host, tc.settings, tc.profile, at, err)
				}
				if diff := cmp.Diff(before, tree(t, k)); diff != "" {
					t.Fatalf("%s %+v %s: killed at write %d, after it: %v (-before +restored):\n%s", tc.host, tc.settings, tc.profile, at, after, diff)
				}
			}
		}
		if writes < 2 {
			t.Errorf("%s %+v %s: %d writes", tc.host, tc.settings, tc.profile, writes)
		}
	}
}

// A CPU that goes offline leaves a policy that answers EBUSY, and a bias that is made anew: it
// is no policy meanwhile, the rest is restored, and its own once it is back.
func TestUndoOffline(t *testing.T) {
	t.Parallel()
	k, root := played(t, "intel_pstate")
	before := tree(t, k)
	log, err := kernel.CreateUndoLog(root, t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	plan, err := read(t, root).Plan(cpuset.MustParse("0-3"), Settings{ResumeLatency: of(10), Governor: "performance", Bias: of(0)})
	if err == nil {
		_, err = kernel.Apply(root, plan, log)
	}
	if err == nil {
		err = k.Offline(2)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.ReadFile(root.FS(), cpuDir+"/cpufreq/policy2/affected_cpus"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("an inactive policy is read: %v", err)
	}
	was := func(path string) (string, bool) { return log.Original(path) }
	none := func(string) bool { return false }
	giveBack := func() {
		t.Helper()
		h := read(t, root)
		d, err := h.Divide(nil, was, none)
		if err == nil {
			_, err = kernel.Apply(root, d.Plan, log)
		}
		if err == nil {
			_, err = log.Undo(func(s kernel.Step) bool { return !d.Keeps(s.Path, was) })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	giveBack()
	for _, p := range read(t, root).Policies {
		if p.Governor != "powersave" || p.Preference != "balance_performance" || p.CPUs.Has(2) {
			t.Errorf("left: %+v", p)
		}
	}
	for _, file := range []string{"/cpufreq/policy2/scaling_governor", "/cpu2" + biasFile} {
		if !log.Has(func(s kernel.Step) bool { return s.Path == cpuDir+file }) {
			t.Errorf("%s is noted no more", file)
		}
	}
	if err := k.SetOnline("0-3"); err != nil {
		t.Fatal(err)
	}
	giveBack()
	if diff := cmp.Diff(before, tree(t, k)); diff != "" || len(log.Notes()) > 0 {
		t.Errorf("back online (-before +restored):\n%s\n%v", diff, log.Notes())
	}
}

// Restored while a CPU is offline, boost is back, and so are the limits of the others; the error names
// those that could not be written, and they are once the CPU is there.
func TestRestoreBoostOffline(t *testing.T) {
	t.Parallel()
	k, root := played(t, "amd-pstate-epp")
	before := tree(t, k)
	log, err := kernel.CreateUndoLog(root, t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	h := read(t, root)
	plan, err := h.Plan(h.Online(), Settings{Boost: of(false)})
	if err == nil {
		_, err = kernel.Apply(root, plan, log)
	}
	if err == nil {
		err = k.Offline(1)
	}
	if err != nil {
		t.Fatal(err)
	}
	all := func(kernel.Step) bool { return true }
	const off = `it is back, but not what it had changed: /sys/devices/system/cpu/cpufreq/policy1/scaling_max_freq "4700000", /sys/devices/system/cpu/cpufreq/policy1/scaling_min_freq "`
	if _, err := log.Undo(all); err == nil || !strings.Contains(err.Error(), off) || !strings.Contains(err.Error(), "once it is online") || strings.Contains(err.Error(), "policy2") {
		t.Errorf("offline: %v", err)
	}
	for name, text := range tree(t, k) {
		if text != before[name] && !strings.Contains(name, "/policy1/") && !strings.Contains(name, "/cpu1/") && !strings.HasSuffix(name, "/online") {
			t.Errorf("offline: %s is %q, was %q", name, text, before[name])
		}
	}
	if err := k.SetOnline(h.Online().String()); err != nil {
		t.Fatal(err)
	}
	if _, err := log.Undo(all); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, tree(t, k)); diff != "" || len(log.Notes()) > 0 {
		t.Errorf("back online (-before +restored):\n%s\n%v", diff, log.Notes())
	}
}

// Limits are moved up and down past each other, and back, without crossing: the kernel would
// show the lower one at the upper one.
func TestLimitsDoNotCross(t *testing.T) {
	t.Parallel()
	k, root := played(t, "intel_pstate")
	var undos []func() error
	var trees []map[string]string
	for _, s := range []Settings{{Min: 900_000, Max: 1_000_000}, {Min: 2_000_000, Max: 3_000_000}, {Min: 800_000, Max: 900_000}} {
		trees = append(trees, tree(t, k))
		plan, err := read(t, root).Plan(cpuset.MustParse("0"), s)
		if err != nil {
			t.Fatal(err)
		}
		undo, err := kernel.Apply(root, plan, nil)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		undos = append(undos, undo)
	}
	for i := len(undos) - 1; i >= 0; i-- {
		if err := undos[i](); err != nil {
			t.Errorf("undo %d: %v", i, err)
		}
		if diff := cmp.Diff(trees[i], tree(t, k)); diff != "" {
			t.Errorf("undo %d (-before +undone):\n%s", i, diff)
		}
	}
}
