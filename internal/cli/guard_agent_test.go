package cli

import (
	"bytes"
	"strings"
	"testing"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel/cgroup"
)

// berth guard status and off speak to the guard of an agent that runs.
func TestGuardOfTheAgent(t *testing.T) {
	t.Parallel()
	fakekernel.LockHost(t, fakekernel.Alone) // no agent starts beside a guard of another test that may act
	_, file, socket := agentHome(t, "guard: {mode: preview}\n")
	agentProcess(t, socket, "--config", file, "--socket", socket)
	ask := func(args ...string) string {
		var out, errs bytes.Buffer
		run(t.Context(), strings.NewReader(""), &out, &errs, append(args, "--socket", socket))
		return out.String() + errs.String()
	}
	for _, tc := range []struct{ args, says string }{
		{"guard status", "the agent's guard"}, {"guard status", "preview"}, {"status", "an agent runs: process "}, {"status", "the agent's guard"},
		{"guard off", "it has restored everything"}, {"guard status", "the agent's guard is off"}, {"status", "no workloads"},
	} {
		if got := ask(strings.Fields(tc.args)...); !strings.Contains(got, tc.says) {
			t.Errorf("%s: %q, want %q", tc.args, got, tc.says)
		}
	}
}

func TestAgentGuardText(t *testing.T) {
	t.Parallel()
	s := &guard.Status{
		Sensitive: []string{"web"}, Findings: []detect.Finding{{Victim: "web", Suspect: "x", Resource: detect.CPU, Confidence: 0.8}},
		Active: []control.Action{{Remedy: detect.Weight, Group: "batch", Victim: "web", Limits: cgroup.Limits{Idle: cgroup.On}}},
	}
	found := "helps 1 group\n  found: w:web waits for CPUs that others use, because of x (80 % sure)\n"
	for name, tc := range map[string]struct {
		g    api.Guard
		want string
	}{
		"enforce": {api.Guard{Mode: config.GuardEnforce, Status: s}, "the agent's guard runs (enforce), " + found + "  active: batch runs only when nobody else wants to, for w:web\n"},
		"preview": {api.Guard{Mode: config.GuardPreview, Status: s}, "the agent's guard runs (preview), " + found + "  it reports and changes nothing (guard.mode)\n"},
		"calm":    {api.Guard{Mode: config.GuardEnforce, Status: &guard.Status{}}, "the agent's guard runs (enforce), helps 0 groups\n  no remedy is active\n"},
		"ended":   {api.Guard{Mode: config.GuardEnforce, Reason: "a bug"}, "the agent's guard (enforce) does not run: a bug\n"},
		"off":     {api.Guard{Mode: config.GuardOff}, "the agent's guard is off\n"},
	} {
		tc.g.Workloads = map[string]string{"web": "w:web"}
		if got := agentGuardText(&tc.g); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
