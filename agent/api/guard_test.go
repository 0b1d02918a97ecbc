package api

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
)

func (b *fake) Guard(context.Context) (Guard, error) {
	mode := config.GuardObserve
	if b.mode != "" {
		mode = b.mode
	}
	s := guardStatus()
	return Guard{Mode: mode, Configured: config.GuardObserve, Status: &s, Workloads: map[string]string{"batch/x": "batch"}}, nil
}

func (b *fake) SetMode(_ context.Context, mode config.GuardMode) error {
	if b.fail != nil {
		return b.fail
	}
	b.mode = mode
	return nil
}

var guardEvent = control.Event{
	Time: time.Unix(2, 0), Mode: control.Enforce, Outcome: control.Kept, Victim: "web", Suspect: "batch/x", Resource: detect.CPU, Confidence: 0.8,
	Action:  &control.Action{Remedy: detect.Weight, Group: "batch", Victim: "web", Suspect: "batch/x", Resource: detect.CPU, Limits: cgroup.Limits{Idle: cgroup.On}},
	Changes: []control.Change{{Path: "/batch/cpu.idle", From: "0", To: "1"}}, Effect: &control.Effect{Before: 3, After: 0.5, Better: 5, Windows: 5},
	Skipped: []control.Skip{{Remedy: detect.CacheWays, Reason: "no resctrl"}}, Text: "the victim got better",
}

func guardStatus() guard.Status {
	usual := 0.01
	return guard.Status{
		Mode: control.Enforce, Windows: 10, Sensitive: []string{"web"}, Focus: []string{"web"}, Others: 1, Probe: guard.Probe{Armed: true, Cost: 0.001, ArmedFor: time.Second},
		Findings: []detect.Finding{{
			Time: watch.Second, Victim: "web", Suspect: "batch/x", Resource: detect.CPU, Confidence: 0.8, Agreeing: 5, Windows: 5, Share: 0.9,
			Evidence: []detect.Evidence{{Subject: watch.Subject{Scope: watch.Group, Name: "web"}, Value: 0.5, Baseline: &usual, Threshold: 0.1, To: watch.Second}},
			Remedies: []detect.Remedy{detect.Weight},
		}},
		States: []control.State{{Victim: "web", Resource: detect.CPU, Phase: control.Holding, Since: time.Unix(1, 0), Actions: []control.Action{*guardEvent.Action}, Strength: 0.5}},
		Active: []control.Action{*guardEvent.Action},
	}
}

// Through the wire the guard is as without it.
func TestClientOfTheGuard(t *testing.T) {
	t.Parallel()
	b := newFake(t)
	c := dial(t, serve(t, b, NewHistory(8, 0)))
	want, _ := b.Guard(t.Context())
	got, err := c.Guard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := c.SetMode(t.Context(), config.GuardEnforce); err != nil || b.mode != config.GuardEnforce {
		t.Errorf("mode %q, %v", b.mode, err)
	}
	var wrong *Error
	if err := c.SetMode(t.Context(), "watch"); !errors.As(err, &wrong) || b.mode != config.GuardEnforce {
		t.Errorf("mode %q, %v", b.mode, err)
	}
	b.fail = &kernel.NotSupportedError{Feature: "guard", Reason: "r", Remedy: "r"}
	if err := c.SetMode(t.Context(), config.GuardOff); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a refusal comes as %v", err)
	}
}
