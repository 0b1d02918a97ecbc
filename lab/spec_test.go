package lab

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

func valid(t *testing.T) Spec {
	t.Helper()
	e := IsolationSpec()
	if err := e.Use("quick"); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestPresetsAreValid(t *testing.T) {
	t.Parallel()
	for _, p := range Presets() {
		e := IsolationSpec()
		if err := e.Use(p.Name); err != nil {
			t.Error(err)
		}
		if err := e.Validate(); err != nil {
			t.Errorf("preset %s: %v", p.Name, err)
		}
	}
	e := IsolationSpec()
	if err := e.Use("huge"); err == nil || !strings.Contains(err.Error(), "quick") {
		t.Errorf("unknown preset: %v, want an error that names the known ones", err)
	}
}

func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want   string
		spoils func(*Spec)
	}{
		{"name", func(e *Spec) { e.Name = "" }},
		{"rounds", func(e *Spec) { e.Blocks = 0 }},
		{"duration", func(e *Spec) { e.Window = Duration(time.Millisecond) }},
		{"settle", func(e *Spec) { e.Settle = -1 }},
		{"rate", func(e *Spec) { e.Rate = -1 }},
		{"demand", func(e *Spec) { e.Tenant.Demand = 1.5 }},
		{"service-time", func(e *Spec) { e.Tenant.ServiceTime = Duration(time.Hour) }},
		{"tenant service", func(e *Spec) { e.Tenant.Service = "mail" }},
		{"working-set", func(e *Spec) { e.Tenant.WorkingSetBytes = 1 }},
		{"cpus", func(e *Spec) { e.CPUs = "0-" }},
		{"kernel", func(e *Spec) { e.Neighbour.Kernel = "mine" }},
		{"intensity", func(e *Spec) { e.Neighbour.Intensity = 101 }},
		{"weight", func(e *Spec) { e.Scenarios[3].Isolation.Weight = 10_001 }},
		{"a name of its own", func(e *Spec) { e.Scenarios[3].Name = "idle" }},
		{"a name of its own", func(e *Spec) { e.Scenarios[3].Name = "a,b/c" }},
		{"name", func(e *Spec) { e.Name = "../up" }},
		{"rate", func(e *Spec) { e.Rate = math.NaN() }},
		{"demand", func(e *Spec) { e.Tenant.Demand = math.NaN() }},
		{"requests in a round", func(e *Spec) { e.Rate, e.Window = 20_000, Duration(20*time.Minute) }},
		{"no weight of its own", func(e *Spec) { e.Scenarios[4].Isolation.Weight = 5 }},
		{"alone", func(e *Spec) { e.Scenarios[0].Neighbour = true }},
		{"does not run", func(e *Spec) { e.Scenarios[0].Isolation.Idle = true }},
		{"baseline'", func(e *Spec) { e.Scenarios = e.Scenarios[:1] }},
	} {
		e := valid(t)
		tc.spoils(&e)
		if err := e.Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("error %v, want one that names %q", err, tc.want)
		}
	}
	if e := valid(t); e.Validate() != nil {
		t.Errorf("the experiment as it is: %v", e.Validate())
	}
}

func TestKeep(t *testing.T) {
	t.Parallel()
	e := valid(t)
	if err := e.Keep([]string{"pinned", "idle"}); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range e.Scenarios {
		names = append(names, s.Name)
	}
	if diff := cmp.Diff([]string{Baseline, BaselineAgain, "idle", "pinned"}, names); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if err := e.Keep([]string{"pined"}); err == nil || !strings.Contains(err.Error(), "pinned") {
		t.Errorf("unknown scenario: %v, want an error that names the known ones", err)
	}
}

func TestSpecIsData(t *testing.T) {
	t.Parallel()
	e := valid(t)
	text, err := yaml.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var back Spec
	if err := yaml.UnmarshalStrict(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(e, back); diff != "" {
		t.Errorf("through YAML (-want +got):\n%s", diff)
	}
}

func settingsOf(t *testing.T, iso Isolation, pl places, left float64) Settings {
	t.Helper()
	pl.generator = cpuset.MustOf(9)
	b := &Testbed{places: pl, Setup: &Setup{TenantCPUs: float64(pl.shared.Len()) - left}}
	s, err := b.settings(Scenario{Isolation: iso})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSettings(t *testing.T) {
	t.Parallel()
	pl := places{tenant: cpuset.MustOf(0), neighbour: cpuset.MustOf(1), neighbourMems: cpuset.MustOf(3)}
	for _, tc := range []struct {
		name string
		iso  Isolation
		left float64
		want Settings
	}{
		{"nothing", Isolation{}, 1, Settings{}},
		{"weight", Isolation{Weight: 10}, 1, Settings{Neighbour: {Weight: 10}}},
		{"idle", Isolation{Idle: true}, 1, Settings{Neighbour: {Idle: cgroup.On}}},
		{"cap", Isolation{Cap: true}, 0.625, Settings{Neighbour: {Quota: 62 * time.Millisecond, Period: quotaPeriod}}},
		{"cap with nothing left", Isolation{Cap: true}, -0.2, Settings{Neighbour: {Quota: minQuota, Period: quotaPeriod}}},
		{"split", Isolation{Split: true}, 1, Settings{
			Tenant: {CPUs: cpuset.MustOf(0)}, Neighbour: {CPUs: cpuset.MustOf(1), Mems: cpuset.MustOf(3)},
		}},
	} {
		if diff := cmp.Diff(tc.want, settingsOf(t, tc.iso, pl, tc.left)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	b := &Testbed{places: places{splitWhy: "one CPU"}, Setup: &Setup{}}
	lesser := &Testbed{Setup: &Setup{Backend: schedBackend}}
	if _, err := lesser.settings(Scenario{Name: grouped}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a group without groups: %v, want not supported", err)
	}
	if _, err := b.settings(Scenario{Isolation: Isolation{Split: true}}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("nothing to split: %v, want not supported", err)
	}
}

func TestArrivalsDifferByBlockAndSeed(t *testing.T) {
	t.Parallel()
	seen := map[uint64]bool{}
	for seed := range uint64(3) {
		for block := range 20 {
			seen[arrivals(seed, block)] = true
		}
	}
	if len(seen) != 60 {
		t.Errorf("%d different seeds of 60", len(seen))
	}
}

func TestNiceOf(t *testing.T) {
	t.Parallel()
	for weight, want := range map[int]int{100: 0, 10: 10, 1: 19, 10_000: -20, 125: -1} {
		if got := niceOf(weight); got != want {
			t.Errorf("weight %d: nice %d, want %d", weight, got, want)
		}
	}
}
