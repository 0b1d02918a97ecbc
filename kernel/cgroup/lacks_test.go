package cgroup

import (
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel/knob"
)

func TestLacks(t *testing.T) {
	t.Parallel()
	old := fakekernel.V2()
	old.Version = "5.10"
	for name, tc := range map[string]struct {
		layout fakekernel.Layout
		group  bool
		knob   string
		why    string
		known  bool
	}{
		"v2":                 {fakekernel.V2(), true, "idle", "", true},
		"v2 without groups":  {fakekernel.V2(), false, "idle", "", false},
		"v2, old":            {old, true, "idle", "/a has no cpu.idle", true},
		"v2, weight":         {old, true, "weight", "", true},
		"v1 without groups":  {fakekernel.V1(), false, "idle", "", true},
		"v1, memory high":    {fakekernel.V1(), true, "memoryHigh", "cgroup v1 has no such setting", true},
		"v1, quota":          {fakekernel.V1(), true, "quota", "", true},
		"v1, I/O weight":     {fakekernel.V1(), false, "ioWeight", "", false},
		"hybrid, I/O weight": {fakekernel.Hybrid(), true, "ioWeight", "", true},
	} {
		s := fakeSite(t, tc.layout)
		k := knob.Find(tc.knob)
		if tc.group {
			plan, err := s.base.Child("a").Create()
			s.apply(t, plan, err)
		}
		tree, ok := s.host.Hierarchy(k.Controller)
		if !ok {
			t.Fatalf("%s: no %s", name, k.Controller)
		}
		why, known := tree.Lacks(s.root, k)
		if known != tc.known || (why == nil) != (tc.why == "") || why != nil && (!strings.Contains(why.Reason, tc.why) || why.Remedy != k.Needs) {
			t.Errorf("%s: %v, %v; want %q, %v", name, why, known, tc.why, tc.known)
		}
	}
}
