package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	old := parse(t, `
policy: {options: {strategy: MostAllocated}}
reserved: "0"
confine: [/a, /b]
guard: {mode: preview, allowed: [/a, /b]}
classes: {BE: {idle: true}}
workloads:
- {name: api.v1, match: {unit: api.service}, class: LSE, cpus: 4}
- {name: gone, match: {cgroup: /gone}, limits: {weight: 5}}
- {name: last, match: {cgroup: /x}}
`)
	changed := parse(t, `
policy: {name: balloons, options: {balloonTypes: [{name: b}, {name: a}]}}
reserved: 0-1
floor: "0"
confine: [/b, /c]
guard: {mode: enforce, allowed: [/b], suppression: {by: quota, threshold: 50}}
classes: {BE: {weight: 10}}
workloads:
- {name: last, match: {cgroup: /x}}
- {name: api.v1, match: {unit: api.service}, class: LS, cpus: 500m, limits: {quota: 2, memoryMax: max}}
- {name: new, match: {container: {runtime: docker}}}
agent: {restoreOnExit: true, yieldAfter: 2000000, admins: [alice]}
`)
	want := `agent.admins: added: alice
agent.restoreOnExit: added: true
agent.yieldAfter: 3 -> 2000000
classes.BE.idle: removed: true
classes.BE.weight: added: 10
confine: removed: /a
confine: added: /c
floor: added: 0
guard.allowed: removed: /a
guard.mode: preview -> enforce
guard.suppression: added: by quota, threshold 50
policy.name: berth -> balloons
policy.options.balloonTypes: added: name b, name a
policy.options.strategy: removed: MostAllocated
reserved: 0 -> 0-1
workloads: api.v1, last -> last, api.v1
workload api.v1 class: LSE -> LS
workload api.v1 cpus: 4 -> 500m
workload api.v1 limits: added: memoryMax max, quota 2
workload gone: removed: class LS, limits (weight 5), match (cgroup /gone)
workload new: added: class LS, match (container (runtime docker))`
	changes, err := Diff(old, changed)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, c.String())
	}
	if diff := cmp.Diff(want, strings.Join(got, "\n")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	back, err := Diff(changed, old)
	if err != nil || len(back) != len(changes) {
		t.Errorf("%d changes there, %d back, %v", len(changes), len(back), err)
	}
}

// A workload that comes to none, or is the last to go, is one change.
func TestDiffOfOneWorkload(t *testing.T) {
	t.Parallel()
	one := parse(t, "workloads: [{name: a, match: {unit: a.service}}]\n")
	for _, pair := range [][2]*NodeConfig{{Default(), one}, {one, Default()}} {
		if changes, err := Diff(pair[0], pair[1]); err != nil || len(changes) != 1 || changes[0].Field != "workloads[a]" {
			t.Errorf("got %v, %v", changes, err)
		}
	}
}

// The order of a list that is no set is a change.
func TestDiffSeesOrder(t *testing.T) {
	t.Parallel()
	const form = "policy: {name: balloons, options: {balloonTypes: [{name: %}, {name: &}]}}\n"
	one := parse(t, strings.NewReplacer("%", "a", "&", "b").Replace(form))
	two := parse(t, strings.NewReplacer("%", "b", "&", "a").Replace(form))
	changes, err := Diff(one, two)
	if err != nil || len(changes) != 1 || changes[0].Field != "policy.options.balloonTypes" {
		t.Errorf("got %v, %v", changes, err)
	}
}

func TestChangeAsJSON(t *testing.T) {
	t.Parallel()
	old, changed := Default(), Default()
	changed.Agent.YieldAfter = 4
	changed.NoFloor = true
	changes, err := Diff(old, changed)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(changes)
	want := `[{"field":"agent.yieldAfter","old":3,"new":4},{"field":"noFloor","new":true}]`
	if string(text) != want {
		t.Errorf("got %s, %v; want %s", text, err, want)
	}
}
