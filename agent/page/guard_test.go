package page

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
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
			Findings: []detect.Finding{{Victim: "g/web", Suspect: "batch/x", Resource: detect.CPU, Confidence: 0.8}},
			States:   []control.State{{Victim: "g/web", Phase: control.Holding, Strength: 0.5, Actions: []control.Action{yields}}},
			InForce:  []control.Action{yields, {Remedy: detect.HeadroomCap, Group: "all", Limits: cgroup.Limits{Quota: 5e6, Period: 10e6}}},
		},
	}
	for _, tc := range []struct {
		name   string
		change func(*api.Guard)
		want   Guard
	}{
		{"enforce", func(*api.Guard) {}, Guard{
			Mode: "enforce", About: "1 looked after, 3 more groups known; the run-queue probe is armed",
			Suffers: []string{"web waits for CPUs that others use, because of x:" + hostile + " (80 % sure)"},
			Done:    []string{"weight batch: idle, for web: holding, symptom at 0.5 of what counts", "headroom_cap all: 0.50 CPUs, for all others"},
		}},
		{"preview", func(g *api.Guard) {
			g.Mode, g.Status.Findings, g.Status.InForce, g.Status.Probe.Reason = config.GuardPreview, nil, nil, "not root"
		}, Guard{
			Mode: "preview", About: "1 looked after, 3 more groups known; without the run-queue probe: not root", Suffers: []string{},
			Done: []string{"would: weight batch: idle, for web: holding, symptom at 0.5 of what counts"},
		}},
		{"off", func(g *api.Guard) { *g = api.Guard{Mode: config.GuardOff, Reason: "no groups"} }, Guard{
			Mode: "off", About: "no groups", Suffers: []string{}, Done: []string{},
		}},
	} {
		status := *g.Status
		given := g
		given.Status = &status
		tc.change(&given)
		p := play(t, "1s2c", 1)
		p.guard = given
		answer := get(Handler(p.server()), "GET", "/status.json")
		var got Status
		if err := json.NewDecoder(answer.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, got.Guard); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tc.name, diff)
		}
	}
}
