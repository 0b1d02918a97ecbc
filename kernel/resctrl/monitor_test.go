package resctrl_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/kernel/resctrl"
)

func TestMonName(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"svc/web", "kubepods.slice/kubepods-pod1%2F.slice/cri-containerd-a.scope", "a b\n/ü"} {
		name, ok := resctrl.MonName(group)
		back, ok2 := resctrl.MonOf("berth-bulk/mon_groups/" + name)
		if !ok || !ok2 || back != group || strings.ContainsAny(name, "/\n") {
			t.Errorf("%q: %q, %q", group, name, back)
		}
	}
	for _, bad := range []string{"", strings.Repeat("a/", 200)} {
		if name, ok := resctrl.MonName(bad); ok {
			t.Errorf("%q has a name, %q", bad, name)
		}
	}
	for _, bad := range []string{"mon_groups/pod-a", "berth-mon.", "berth-mon.%zz"} {
		if of, ok := resctrl.MonOf(bad); ok {
			t.Errorf("%q is of %q", bad, of)
		}
	}
}

// Classes keep their numbers, and counters bound what can be counted.
func TestSlots(t *testing.T) {
	t.Parallel()
	l3 := resctrl.Resource{Name: "L3", CLOSIDs: 8, Mask: 0xff}
	events := []string{"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"}
	for _, c := range []struct {
		name string
		t    resctrl.Tree
		want int
	}{
		{"nothing is monitored", resctrl.Tree{}, 0},
		{"classes keep theirs", resctrl.Tree{Resources: []resctrl.Resource{l3}, Monitoring: &resctrl.Monitoring{RMIDs: 32}}, 24},
		{"others have theirs, own ones are to be had", resctrl.Tree{Resources: []resctrl.Resource{l3}, Monitoring: &resctrl.Monitoring{RMIDs: 32}, Mon: []string{"mon_groups/x", "mon_groups/berth-mon.a"}}, 23},
		{"fewer than classes", resctrl.Tree{Resources: []resctrl.Resource{l3}, Monitoring: &resctrl.Monitoring{RMIDs: 4}}, 0},
		{"counters", resctrl.Tree{Resources: []resctrl.Resource{l3}, Monitoring: &resctrl.Monitoring{RMIDs: 256, Events: events, Assigned: true, Counters: map[int]int{0: 32, 1: 12}}}, 6},
	} {
		if got := c.t.Slots(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// Whoever is to be monitored always is, and everybody else has a turn.
func TestTurn(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "c", "d", "e", "f", "g"}
	if got := resctrl.Turn(all, nil, 20, 3); !slices.Equal(got, all) {
		t.Errorf("with room for all: %v", got)
	}
	if got := resctrl.Turn(all, []string{"c", "f"}, 1, 5); !slices.Equal(got, []string{"c"}) {
		t.Errorf("with room for one: %v", got)
	}
	if got := resctrl.Turn(all, nil, 0, 1); len(got) > 0 {
		t.Errorf("without room: %v", got)
	}
	seen := map[string]int{}
	for turn := range 6 {
		got := resctrl.Turn(all, []string{"c"}, 3, turn)
		if len(got) != 3 || !slices.Contains(got, "c") || len(slices.Compact(slices.Clone(got))) != 3 {
			t.Errorf("turn %d: %v", turn, got)
		}
		for _, group := range got {
			seen[group]++
		}
	}
	if want := map[string]int{"a": 2, "b": 2, "c": 6, "d": 2, "e": 2, "f": 2, "g": 2}; !reflect.DeepEqual(seen, want) {
		t.Error(fmt.Sprint(seen), "want", want)
	}
}
