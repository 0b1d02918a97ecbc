package lab

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/kernel/cgroup"
)

// A control group is measured by what runs in it: here, this test among others.
func TestOutsideGroup(t *testing.T) {
	t.Parallel()
	its, err := cgroup.ReadMembership(os.DirFS("/"), "self")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(its, func(m cgroup.Membership) bool { return strings.Trim(m.Path, "/.") != "" })
	if i < 0 {
		t.Skip("this process is in the root group of every hierarchy")
	}
	o, err := findOutside(TenantSpec{Service: Outside, Group: its[i].Path})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(o.processes, os.Getpid()) {
		t.Errorf("processes %v of %s, want %d among them", o.processes, its[i].Path, os.Getpid())
	}
	o.processes = []int{os.Getpid()} // others take their CPU time along when they end
	before, err := o.usage()
	if err != nil {
		t.Fatal(err)
	}
	for used := before; used.CPUSeconds < before.CPUSeconds+0.02; { // CPU time is told in ticks of 10 ms
		for began := time.Now(); time.Since(began) < 10*time.Millisecond; {
		}
		if used, err = o.usage(); err != nil {
			t.Fatal(err)
		}
	}
	for group, want := range map[string]string{"/no-such-group": "there is no such control group", "/": "there is no such control group"} {
		if _, err := findOutside(TenantSpec{Service: Outside, Group: group}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", group, err, want)
		}
	}
}
