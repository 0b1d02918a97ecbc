package cgroup

import (
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
)

func TestPlace(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ fromTop, fromKid, toTop, toKid string }{
		"apart":      {"0-1", "0", "2-3", "3"},
		"narrower":   {"0-3", "0-3", "1", "1"},
		"wider":      {"1", "1", "0-3", "0-3"},
		"only below": {"0-3", "0", "", "1-2"},
		"same":       {"0-1", "1", "0-1", "1"},
	}
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
		for name2, tt := range tests {
			s := fakeSite(t, layout)
			kid := s.group(t)
			top := s.base.Child(s.name)
			place := func(topCPUs, kidCPUs string) func() error {
				plan, err := Place(Placement{Group: kid, CPUs: cpuset.MustParse(kidCPUs)}, Placement{Group: top, CPUs: cpuset.MustParse(topCPUs)})
				return s.apply(t, plan, err)
			}
			check := func(when, topCPUs, kidCPUs string) {
				t.Helper()
				if topCPUs == "" {
					topCPUs = tt.fromTop
				}
				gotTop, _ := s.text(top, CPUSet, "cpuset.cpus")
				gotKid, _ := s.text(kid, CPUSet, "cpuset.cpus")
				if gotTop != topCPUs || gotKid != kidCPUs {
					t.Errorf("%s, %s, %s: %s and %s, want %s and %s", name, name2, when, gotTop, gotKid, topCPUs, kidCPUs)
				}
			}
			place(tt.fromTop, tt.fromKid)
			check("at first", tt.fromTop, tt.fromKid)
			undo := place(tt.toTop, tt.toKid)
			check("placed", tt.toTop, tt.toKid)
			if err := undo(); err != nil {
				t.Error(err)
			}
			check("undone", tt.fromTop, tt.fromKid)
		}
	}
	s := fakeSite(t, fakekernel.V1())
	if _, err := Place(Placement{Group: s.base.Child("absent"), CPUs: cpuset.MustOf(0)}); err == nil {
		t.Error("placed a group that is not there")
	}
	layout := fakekernel.V2()
	layout.V2Controllers = []string{"cpu"}
	if _, err := Place(Placement{Group: fakeSite(t, layout).base.Child("x"), CPUs: cpuset.MustOf(0)}); err == nil {
		t.Error("placed without a cpuset controller")
	}
}
