package guard

import (
	"testing"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch/pods"
)

// A report names victim and antagonist, and the group that was acted on.
func TestReport(t *testing.T) {
	t.Parallel()
	who := func(group string) Party {
		if group == "a" {
			return Party{"a", "shop/db-0/postgres", &pods.Name{Namespace: "shop", Pod: "db-0", Container: "postgres"}}
		}
		return Party{Group: group, Name: group}
	}
	f := ReportFinding(time.Now(), detect.Finding{Victim: "a", Suspect: "b/c", Resource: detect.CPU}, who)
	if f.Victim.Pod == nil || f.Antagonist.Group != "b/c" || f.Acted != (Party{}) || f.Resource() != detect.CPU {
		t.Errorf("%+v", f)
	}
	if got, want := f.Text(), "shop/db-0/postgres waits for CPUs that others use, because of b/c"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	action := control.Action{Remedy: detect.Weight, Group: "b", Victim: "a", Suspect: "b/c", Resource: detect.CPU, Limits: cgroup.Limits{Idle: cgroup.On}}
	e := ReportEvent(control.Event{Outcome: control.Applied, Victim: "a", Suspect: "b/c", Action: &action}, who)
	if e.Acted.Group != "b" || e.Antagonist.Group != "b/c" {
		t.Errorf("%+v", e)
	}
	if got, want := e.Text(), "b runs only when nobody else wants to, for shop/db-0/postgres"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if s := ReportEvent(control.Event{Action: &control.Action{Group: "be"}}, who); s.Victim != (Party{}) || s.Acted.Group != "be" {
		t.Errorf("suppression: %+v", s)
	}
}
