package web

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
)

func TestGuardInWords(t *testing.T) {
	t.Parallel()
	yields := control.Action{Remedy: detect.Weight, Group: "batch", Victim: "g/web", Suspect: "batch/x", Limits: cgroup.Limits{Idle: cgroup.On}}
	g := api.Guard{
		Mode: config.GuardEnforce, Workloads: map[string]string{"g/web": "web", "batch/x": "x:" + hostile},
		Status: &guard.Status{
			Sensitive: []string{"g/web"}, Others: 3, Probe: guard.Probe{Armed: true},
			Findings: []detect.Finding{
				{Victim: "g/web", Suspect: "batch/x", Resource: detect.CPU, Confidence: 0.8},
				{Victim: "g/web", Suspect: "(ended)", Resource: detect.CPU, Confidence: 0.7},
			},
			States: []control.State{{Victim: "g/web", Phase: control.Holding, Strength: 0.5, Actions: []control.Action{yields}}},
			Active: []control.Action{yields, {Remedy: detect.HeadroomCap, Group: "all", Limits: cgroup.Limits{Quota: 5e6, Period: 10e6}}},
		},
	}
	for _, tc := range []struct {
		name   string
		change func(*api.Guard)
		want   Guard
	}{
		{"enforce", func(*api.Guard) {}, Guard{
			Mode: "enforce", About: "1 sensitive workload, 3 other groups known; the run-queue probe is armed",
			Suffers: []string{
				"web waits for CPUs that others use, because of a group that is gone or not to be seen from here (70 % sure)",
				"web waits for CPUs that others use, because of x:" + hostile + " (80 % sure)",
			},
			Done: []string{"batch runs only when nobody else wants to, for web: it helped; the symptom is at 50 % of its threshold", "all has at most 0.50 CPUs, for all others"},
		}},
		{"preview", func(g *api.Guard) {
			g.Mode, g.Status.Findings, g.Status.Active, g.Status.Probe.Reason = config.GuardPreview, nil, nil, "not root"
		}, Guard{
			Mode: "preview", About: "1 sensitive workload, 3 other groups known; without the run-queue probe: not root", Suffers: []string{},
			Done: []string{"would be done: batch runs only when nobody else wants to, for web: it helped; the symptom is at 50 % of its threshold"},
		}},
		{"at rest", func(g *api.Guard) {
			g.Status.Findings, g.Status.States, g.Status.Active, g.Status.Probe = nil, nil, nil, guard.Probe{NoAlarm: "no PSI"}
		}, Guard{
			Mode: "enforce", About: "1 sensitive workload, 3 other groups known; the run-queue probe is at rest, and the kernel gives no alarm: no PSI",
			Suffers: []string{}, Done: []string{},
		}},
		{"off", func(g *api.Guard) { *g = api.Guard{Mode: config.GuardOff, Reason: "no groups"} }, Guard{
			Mode: "off", About: "no groups", Suffers: []string{}, Done: []string{},
		}},
	} {
		status := *g.Status
		given := g
		given.Status = &status
		tc.change(&given)
		p := newFake(t, "1s2c", 1)
		p.guard = given
		answer := get(Handler(p.server(), nil), "GET", "/status.json")
		var got Status
		if err := json.NewDecoder(answer.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, got.Guard); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tc.name, diff)
		}
	}
}

func TestActionsInWords(t *testing.T) {
	t.Parallel()
	name := func(group string) string { return map[string]string{"g/hog": "hog"}[group] }
	for want, a := range map[string]control.Action{
		"hog has CPU weight 7":                    {Remedy: detect.Weight, Limits: cgroup.Limits{Weight: 7}},
		"hog runs only when nobody else wants to": {Remedy: detect.Weight, Limits: cgroup.Limits{Idle: cgroup.On}},
		"hog has at most 1.50 CPUs":               {Remedy: detect.HeadroomCap, Limits: cgroup.Limits{Quota: 15e6, Period: 10e6}},
		"hog runs on CPUs 2-3 only":               {Remedy: detect.ShrinkCPUs, Limits: cgroup.Limits{CPUs: cpuset.MustParse("2-3")}},
		"hog is to have at most 64 MiB":           {Remedy: detect.MemoryHigh, Limits: cgroup.Limits{MemoryHigh: 64 << 20}},
		"hog has I/O weight 10":                   {Remedy: detect.IOWeight, Limits: cgroup.Limits{IOWeight: 10}},
		"core_sched g/hog: on":                    {Remedy: detect.CoreSched},
	} {
		a.Group = "g/hog"
		if got := did(config.GuardEnforce, a, name); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for phase, want := range map[control.Phase]string{
		control.Verifying: "whether it helps is being measured", control.Relaxing: "whether less will do is being tried",
		control.Unresolved: "nothing more that may be done helps", control.Holding: "it helped", control.Clear: "clear",
	} {
		if got := stands(control.State{Phase: phase, Strength: 1.25}); got != want+"; the symptom is at 125 % of its threshold" {
			t.Errorf("%v: %q", phase, got)
		}
		if got := stands(control.State{Phase: phase, Strength: 8.391}); got != want+"; the symptom is 8.39 times its threshold" {
			t.Errorf("%v: %q", phase, got)
		}
	}
}
