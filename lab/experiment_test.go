package lab

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/cpuset"
)

func valid(t *testing.T) Experiment {
	t.Helper()
	e := IsolationExperiment()
	if err := e.Use("quick"); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestPresetsAreValid(t *testing.T) {
	t.Parallel()
	for _, p := range Presets() {
		e := IsolationExperiment()
		if err := e.Use(p.Name); err != nil {
			t.Error(err)
		}
		if err := e.Validate(); err != nil {
			t.Errorf("preset %s: %v", p.Name, err)
		}
	}
	e := IsolationExperiment()
	if err := e.Use("huge"); err == nil || !strings.Contains(err.Error(), "quick") {
		t.Errorf("unknown preset: %v, want an error that names the known ones", err)
	}
}

func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want   string
		spoils func(*Experiment)
	}{
		{"name", func(e *Experiment) { e.Name = "" }},
		{"rounds", func(e *Experiment) { e.Blocks = 0 }},
		{"duration", func(e *Experiment) { e.Window = Duration(time.Millisecond) }},
		{"settle", func(e *Experiment) { e.Settle = -1 }},
		{"rate", func(e *Experiment) { e.Rate = -1 }},
		{"demand", func(e *Experiment) { e.Tenant.Demand = 1.5 }},
		{"service-time", func(e *Experiment) { e.Tenant.ServiceTime = Duration(time.Hour) }},
		{"tenant service", func(e *Experiment) { e.Tenant.Service = "mail" }},
		{"working-set", func(e *Experiment) { e.Tenant.WorkingSetBytes = 1 }},
		{"cpus", func(e *Experiment) { e.CPUs = "0-" }},
		{"kernel", func(e *Experiment) { e.Neighbour.Kernel = "mine" }},
		{"intensity", func(e *Experiment) { e.Neighbour.Intensity = 101 }},
		{"weight", func(e *Experiment) { e.Scenarios[3].Isolation.Weight = 10_001 }},
		{"a name of its own", func(e *Experiment) { e.Scenarios[3].Name = "idle" }},
		{"a name of its own", func(e *Experiment) { e.Scenarios[3].Name = "a,b/c" }},
		{"name", func(e *Experiment) { e.Name = "../up" }},
		{"rate", func(e *Experiment) { e.Rate = math.NaN() }},
		{"demand", func(e *Experiment) { e.Tenant.Demand = math.NaN() }},
		{"requests in a round", func(e *Experiment) { e.Rate, e.Window = 20_000, Duration(20*time.Minute) }},
		{"no weight of its own", func(e *Experiment) { e.Scenarios[4].Isolation.Weight = 5 }},
		{"alone", func(e *Experiment) { e.Scenarios[0].Neighbour = true }},
		{"does not run", func(e *Experiment) { e.Scenarios[0].Isolation.Idle = true }},
		{"baseline'", func(e *Experiment) { e.Scenarios = e.Scenarios[:1] }},
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

func TestExperimentIsData(t *testing.T) {
	t.Parallel()
	e := valid(t)
	text, err := yaml.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var back Experiment
	if err := yaml.UnmarshalStrict(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(e, back); diff != "" {
		t.Errorf("through YAML (-want +got):\n%s", diff)
	}
}

func TestOrders(t *testing.T) {
	t.Parallel()
	pl := places{tenant: cpuset.MustOf(0), neighbour: cpuset.MustOf(1), neighbourMems: cpuset.MustOf(3)}
	for _, tc := range []struct {
		name string
		iso  Isolation
		left float64
		want map[party]order
	}{
		{"nothing", Isolation{}, 1, map[party]order{}},
		{"weight", Isolation{Weight: 10}, 1, map[party]order{neighbourParty: {weight: 10}}},
		{"idle", Isolation{Idle: true}, 1, map[party]order{neighbourParty: {idle: true}}},
		{"cap", Isolation{Cap: true}, 0.625, map[party]order{neighbourParty: {quota: 62 * time.Millisecond}}},
		{"cap with nothing left", Isolation{Cap: true}, -0.2, map[party]order{neighbourParty: {quota: minQuota}}},
		{"split", Isolation{Split: true}, 1, map[party]order{
			tenantParty: {cpus: cpuset.MustOf(0)}, neighbourParty: {cpus: cpuset.MustOf(1), mems: cpuset.MustOf(3)},
		}},
	} {
		got := orders(tc.iso, pl, tc.left)
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(order{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
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

func TestOneLabAtATime(t *testing.T) {
	first, err := lockMachine()
	if err != nil {
		t.Skipf("a lab runs on this machine: %v", err)
	}
	if _, err := lockMachine(); err == nil || !strings.Contains(err.Error(), "another berth lab") {
		t.Errorf("second lock: %v, want it refused", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lockMachine()
	if err != nil {
		t.Fatalf("after the first ended: %v", err)
	}
	again.Close()
}

func TestNiceOf(t *testing.T) {
	t.Parallel()
	for weight, want := range map[uint64]int{100: 0, 10: 10, 1: 19, 10_000: -20, 125: -1} {
		if got := niceOf(weight); got != want {
			t.Errorf("weight %d: nice %d, want %d", weight, got, want)
		}
	}
}
