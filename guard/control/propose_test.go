package control_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
)

// Each rule about the settings that a remedy proposes next, on a node of 16 CPUs that are all in use, for a
// victim on four of them.
func TestProposals(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	cores, err := machine.Short("1s8c2t") // the threads of core 0 are CPUs 0 and 8
	if err != nil {
		t.Fatal(err)
	}
	cpus := func(list string) cgroup.Limits { return cgroup.Limits{CPUs: cpuset.MustParse(list)} }
	quota := func(share float64) cgroup.Limits {
		return cgroup.Limits{Quota: time.Duration(share * float64(100*time.Millisecond)), Period: 100 * time.Millisecond}
	}
	idle := cgroup.Limits{Idle: cgroup.On}
	memory := func(high int64) cgroup.Limits { return cgroup.Limits{MemoryHigh: high} }
	none := cgroup.Limits{}
	for name, tc := range map[string]struct {
		remedy detect.Remedy
		own    cgroup.Limits // the group's
		held   *cgroup.Limits
		alter  func(c *control.Case)
		want   string // how much it is, or a part of why not
	}{
		"best effort is idle":              {detect.Weight, none, nil, nil, "idle"},
		"where the host has no idle":       {detect.Weight, none, nil, func(c *control.Case) { c.Host.NoIdle = "old" }, "weight 1"},
		"where the group may not":          {detect.Weight, none, nil, func(c *control.Case) { c.Group.NoIdle = "somebody's" }, "weight 1"},
		"that, and it has the least":       {detect.Weight, cgroup.Limits{Weight: 1}, nil, func(c *control.Case) { c.Group.NoIdle = "somebody's" }, "has weight 1 already, and must not be idle: somebody's"},
		"it is idle":                       {detect.Weight, idle, nil, nil, "is idle already"},
		"once":                             {detect.Weight, none, &idle, nil, "it goes no further"},
		"others have a quarter":            {detect.Weight, none, nil, func(c *control.Case) { c.BestEffort = false }, "weight 25"},
		"of what they have":                {detect.Weight, cgroup.Limits{Weight: 400}, nil, func(c *control.Case) { c.BestEffort = false }, "weight 100"},
		"and one at least":                 {detect.Weight, cgroup.Limits{Weight: 3}, nil, func(c *control.Case) { c.BestEffort = false }, "weight 1"},
		"a fifth of the node is left idle": {detect.HeadroomCap, none, nil, nil, "4.80 CPUs"},
		"a cap that would not bind":        {detect.HeadroomCap, none, nil, func(c *control.Case) { c.Host.Use = 12.7 }, "would not bind"},
		"one that does":                    {detect.HeadroomCap, none, nil, func(c *control.Case) { c.Host.Use = 13 }, "7.80 CPUs"},
		"a twentieth at least":             {detect.HeadroomCap, none, nil, func(c *control.Case) { c.Group.Use = 2 }, "0.80 CPUs"},
		"the group's use is not known":     {detect.HeadroomCap, none, nil, func(c *control.Case) { c.Group.Use = math.NaN() }, "is not known"},
		"it used nothing":                  {detect.HeadroomCap, none, nil, func(c *control.Case) { c.Group.Use = 0 }, "is not known"},
		"the host's use is not known":      {detect.HeadroomCap, none, nil, func(c *control.Case) { c.Host.Use = math.NaN() }, "is not known"},
		"its own quota is lower":           {detect.HeadroomCap, quota(4.7), nil, nil, "its own quota is below that"},
		"its own quota is higher":          {detect.HeadroomCap, quota(4.9), nil, nil, "4.80 CPUs"},
		"half of a cap":                    {detect.HeadroomCap, none, ptr(quota(4)), nil, "2.00 CPUs"},
		"or less, where less is idle":      {detect.HeadroomCap, none, ptr(quota(4)), func(c *control.Case) { c.Group.Use = 4 }, "0.80 CPUs"},
		"no less than the floor":           {detect.HeadroomCap, none, ptr(quota(0.9)), nil, "it goes no further"},
		"where the victim isn't":           {detect.ShrinkCPUs, none, nil, nil, "CPUs 4-15"},
		"half, where that is everywhere":   {detect.ShrinkCPUs, none, nil, func(c *control.Case) { c.Victim.CPUs = cpuset.Set{} }, "CPUs 8-15"},
		"half, where no CPU is left":       {detect.ShrinkCPUs, none, nil, func(c *control.Case) { c.Victim.CPUs = cpuset.MustParse("1-15") }, "CPUs 0,9-15"},
		"half, by whole cores":             {detect.ShrinkCPUs, none, nil, func(c *control.Case) { c.Machine, c.Victim.CPUs = cores, cpuset.Set{} }, "CPUs 4-7,12-15"},
		"of its own":                       {detect.ShrinkCPUs, none, nil, func(c *control.Case) { c.Group.CPUs = cpuset.MustParse("2-9") }, "CPUs 4-9"},
		"of those that are online":         {detect.ShrinkCPUs, none, nil, func(c *control.Case) { c.Group.CPUs = cpuset.MustParse("2-31") }, "CPUs 4-15"},
		"half of a set":                    {detect.ShrinkCPUs, none, ptr(cpus("4-15")), nil, "CPUs 10-15"},
		"two at least":                     {detect.ShrinkCPUs, none, ptr(cpus("13-15")), nil, "CPUs 14-15"},
		"and that is the end":              {detect.ShrinkCPUs, none, ptr(cpus("14-15")), nil, "2 CPUs is the least that best-effort work keeps"},
		"the host's CPUs are not known":    {detect.ShrinkCPUs, none, nil, func(c *control.Case) { c.Host.CPUs = cpuset.Set{} }, "not known"},
		"a tenth of its memory":            {detect.MemoryHigh, none, nil, nil, "high 900 MiB"},
		"of what is left":                  {detect.MemoryHigh, none, ptr(memory(900 * mib)), nil, "high 810 MiB"},
		"half of what it had stays":        {detect.MemoryHigh, none, ptr(memory(556 * mib)), nil, "high 500 MiB"},
		"and no less":                      {detect.MemoryHigh, none, ptr(memory(555 * mib)), nil, "500 MiB is the least"},
		"64 MiB stay":                      {detect.MemoryHigh, none, nil, func(c *control.Case) { c.Group.Memory = 72 * mib }, "high 64 MiB"},
		"of which nothing is taken":        {detect.MemoryHigh, none, nil, func(c *control.Case) { c.Group.Memory = 71 * mib }, "64 MiB is the least"},
		"its memory is not known":          {detect.MemoryHigh, none, nil, func(c *control.Case) { c.Group.Memory = 0 }, "is not known"},
		"a tenth of the disk's time":       {detect.IOWeight, none, nil, nil, "weight 10"},
		"of what it has":                   {detect.IOWeight, cgroup.Limits{IOWeight: 500}, nil, nil, "weight 50"},
		"again":                            {detect.IOWeight, none, &cgroup.Limits{IOWeight: 5}, nil, "weight 1"},
		"until there is no less":           {detect.IOWeight, none, &cgroup.Limits{IOWeight: 1}, nil, "it goes no further"},
		"a whole quota is saved up":        {detect.Burst, quota(2), nil, nil, "burst 200ms"},
		"which is all":                     {detect.Burst, quota(2), &cgroup.Limits{Burst: time.Second}, nil, "it goes no further"},
		"a quota of somebody else":         {detect.Burst, none, nil, nil, "the quota is not its own"},
		"processes more, the same":         {detect.ProcessWeight, none, &cgroup.Limits{Weight: 7}, func(c *control.Case) { c.More = true }, "weight 7 by nice"},
		"no more, no further":              {detect.ProcessWeight, none, &cgroup.Limits{Weight: 7}, nil, "it goes no further"},
		"CPUs of more processes":           {detect.ProcessCPUs, none, ptr(cpus("4-15")), func(c *control.Case) { c.More = true }, "CPUs 4-15"},
		"CPUs of no more, fewer":           {detect.ProcessCPUs, none, ptr(cpus("4-15")), nil, "CPUs 10-15"},
	} {
		c := control.Case{
			Host:   control.Host{CPUs: cpuset.MustParse("0-15"), Use: 16},
			Victim: control.Workload{Group: victim, CPUs: cpuset.MustParse("0-3")},
			Group:  control.Workload{Group: "pods/batch", Use: 8, Memory: 1000 * mib, Limits: tc.own},
			Held:   tc.held, MemoryBefore: 1000 * mib, BestEffort: true,
		}
		if tc.alter != nil {
			tc.alter(&c)
		}
		r := remedy(t, tc.remedy)
		to, reason := r.Propose(&c)
		if reason == "" {
			reason = "set: " + r.Amount(to)
			tc.want = "set: " + tc.want
		}
		if !strings.Contains(reason, tc.want) {
			t.Errorf("%s: %v %q, want %q", name, tc.remedy, reason, tc.want)
		}
	}
}

func ptr(l cgroup.Limits) *cgroup.Limits { return &l }

// The way back is by a tenth of the node, up to what the group had before.
func TestWeaker(t *testing.T) {
	t.Parallel()
	quota := func(cpus float64) cgroup.Limits {
		return cgroup.Limits{Quota: time.Duration(cpus * float64(10*time.Millisecond)), Period: 10 * time.Millisecond}
	}
	cpus := func(list string) cgroup.Limits { return cgroup.Limits{CPUs: cpuset.MustParse(list)} }
	for name, tc := range map[string]struct {
		remedy detect.Remedy
		from   cgroup.Limits
		before *cgroup.Limits
		want   string // "" is to go back at once
	}{
		"a tenth more":              {detect.HeadroomCap, quota(2.4), nil, "4.00 CPUs"},
		"as before":                 {detect.HeadroomCap, quota(2.4), ptr(quota(4)), ""},
		"towards before":            {detect.HeadroomCap, quota(2.4), ptr(quota(4.1)), "4.00 CPUs"},
		"all":                       {detect.HeadroomCap, quota(14.4), nil, ""},
		"two CPUs more":             {detect.ShrinkCPUs, cpus("10-15"), nil, "CPUs 8-15"},
		"the two that were missing": {detect.ShrinkCPUs, cpus("10-15"), ptr(cpus("8-15")), ""},
		"of those before":           {detect.ShrinkCPUs, cpus("10-15"), ptr(cpus("0-2,10-15")), "CPUs 1-2,10-15"},
	} {
		c := control.Case{Host: control.Host{CPUs: cpuset.MustParse("0-15"), Use: 16}, Group: control.Workload{Group: "pods/batch"}}
		r := remedy(t, tc.remedy)
		got := ""
		if to, ok := r.Weaker(&c, tc.from, tc.before); ok {
			got = r.Amount(to)
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
