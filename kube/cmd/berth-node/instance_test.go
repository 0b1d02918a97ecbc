package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kube/api"
	"berth.dev/berth/watch/pods"
)

// What was found, done and taken back is told of both pods; trials and refusals are not.
func TestFindingOf(t *testing.T) {
	t.Parallel()
	victim := guard.Party{Group: "v", Name: "shop/db-0/db", Pod: &pods.Name{Namespace: "shop", Pod: "db-0", UID: "1", Container: "db"}}
	hog := guard.Party{Group: "h", Name: "h"} // outside of pods
	base := api.Finding{Victim: api.About{Namespace: "shop", Pod: "db-0", UID: "1", Container: "db"}, Resource: "cpu"}
	action := &control.Action{Remedy: detect.Weight, Group: "h", Resource: detect.CPU, Limits: cgroup.Limits{Idle: cgroup.On}}
	done, undone := base, base
	done.Action, undone.Action, undone.Undone = action.Sentence("h"), action.Sentence("h"), true
	step := func(o control.Outcome, a *control.Action) guard.Report {
		return guard.Report{Victim: victim, Antagonist: hog, Acted: hog, Event: &control.Event{Outcome: o, Resource: detect.CPU, Action: a}}
	}
	for name, tc := range map[string]struct {
		report guard.Report
		want   *api.Finding // nil: nothing
	}{
		"found":           {guard.Report{Victim: victim, Antagonist: hog, Finding: &detect.Finding{Resource: detect.CPU}}, &base},
		"applied":         {step(control.Applied, action), &done},
		"restored":        {step(control.Restored, action), &done},
		"reverted":        {step(control.Reverted, action), &undone},
		"yielded":         {step(control.Yielded, action), &undone},
		"kept":            {step(control.Kept, action), nil},
		"refused":         {step(control.Refused, nil), nil},
		"all is reverted": {step(control.Reverted, nil), nil},
	} {
		got, ok := findingOf(tc.report)
		if ok != (tc.want != nil) {
			t.Errorf("%s: told %v", name, ok)
		} else if ok {
			if diff := cmp.Diff(*tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}
