package control_test

import (
	"testing"
	"testing/synctest"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
)

func remedy(t *testing.T, name detect.Remedy) *control.Remedy {
	t.Helper()
	for _, r := range control.Remedies() {
		if r.Name == name {
			return &r
		}
	}
	t.Fatalf("no remedy %v", name)
	return nil
}

// Each rule about how much is taken, and what is left.
func TestDivide(t *testing.T) {
	t.Parallel()
	intel := control.Cache{Ways: 11, Of: 11, LeastWays: 1, Bandwidth: 100, LeastBandwidth: 10, Step: 10, Unit: "%"}
	amd := control.Cache{Ways: 16, Of: 16, LeastWays: 1, Bandwidth: 2048, LeastBandwidth: 1, Step: 1, Unit: "1/8 GB/s", Bytes: 125e6}
	two, arm := intel, intel
	two.LeastWays, arm.LeastBandwidth, arm.Step = 3, 1, 1
	for _, c := range []struct {
		name    string
		remedy  detect.Remedy
		cache   control.Cache
		traffic float64
		held    *control.Share
		want    control.Share
		reason  string
	}{
		{"half of the ways", detect.CacheWays, intel, 0, nil, control.Share{Ways: 6}, ""},
		{"half of what was left", detect.CacheWays, intel, 0, &control.Share{Ways: 6}, control.Share{Ways: 3}, ""},
		{"a tenth stays", detect.CacheWays, intel, 0, &control.Share{Ways: 3}, control.Share{Ways: 2}, ""},
		{"and is the end", detect.CacheWays, intel, 0, &control.Share{Ways: 2}, control.Share{}, "2 ways of a cache are the least that best-effort work keeps"},
		{"what the CPU has at least", detect.CacheWays, two, 0, &control.Share{Ways: 4}, control.Share{Ways: 3}, ""},
		{"no caches", detect.CacheWays, control.Cache{Bandwidth: 100}, 0, nil, control.Share{}, "caches are not divided here"},
		{"half of the bandwidth, up to a step", detect.BandwidthCap, intel, 0, nil, control.Share{Bandwidth: 50, Unit: "%"}, ""},
		{"half of what was left, up to a step", detect.BandwidthCap, intel, 0, &control.Share{Bandwidth: 50}, control.Share{Bandwidth: 30, Unit: "%"}, ""},
		{"the least of the CPU", detect.BandwidthCap, intel, 0, &control.Share{Bandwidth: 10}, control.Share{}, "10 % of memory bandwidth is the least that best-effort work keeps"},
		{"a tenth, where the CPU has less", detect.BandwidthCap, arm, 0, &control.Share{Bandwidth: 12}, control.Share{Bandwidth: 10, Unit: "%"}, ""},
		{"half of what it has, in units", detect.BandwidthCap, amd, 40e9, nil, control.Share{Bandwidth: 160, Unit: "1/8 GB/s", Used: 320}, ""},
		{"half of that", detect.BandwidthCap, amd, 20e9, &control.Share{Bandwidth: 160, Used: 320}, control.Share{Bandwidth: 80, Unit: "1/8 GB/s", Used: 320}, ""},
		{"a tenth of what it had stays", detect.BandwidthCap, amd, 5e9, &control.Share{Bandwidth: 40, Used: 320}, control.Share{Bandwidth: 32, Unit: "1/8 GB/s", Used: 320}, ""},
		{"and is the end there", detect.BandwidthCap, amd, 4e9, &control.Share{Bandwidth: 32, Used: 320}, control.Share{}, "32 1/8 GB/s of memory bandwidth is the least that best-effort work keeps"},
		{"how much it has is not known", detect.BandwidthCap, amd, 0, nil, control.Share{}, "how much memory bandwidth the suspect has is not known"},
		{"no bandwidth", detect.BandwidthCap, control.Cache{Ways: 4}, 0, nil, control.Share{}, "memory bandwidth is not limited here"},
	} {
		to, reason := remedy(t, c.remedy).Divide(&control.Case{Group: control.Workload{Cache: c.cache, Traffic: c.traffic}, HeldShare: c.held})
		if to != c.want || reason != c.reason {
			t.Errorf("%s: %+v %q, want %+v %q", c.name, to, reason, c.want, c.reason)
		}
	}
}

// It comes back a way, or a tenth, at a time.
func TestWiden(t *testing.T) {
	t.Parallel()
	c := &control.Case{Group: control.Workload{Cache: control.Cache{Ways: 11, Of: 11, LeastWays: 1, Bandwidth: 100, LeastBandwidth: 10, Step: 10, Unit: "%"}}}
	for _, tc := range []struct {
		remedy       detect.Remedy
		from         control.Share
		before       *control.Share
		want         control.Share
		intermediate bool
	}{
		{detect.CacheWays, control.Share{Ways: 3}, &control.Share{Ways: 6}, control.Share{Ways: 4}, true},
		{detect.CacheWays, control.Share{Ways: 5}, &control.Share{Ways: 6}, control.Share{}, false},
		{detect.CacheWays, control.Share{Ways: 10}, nil, control.Share{}, false},
		{detect.BandwidthCap, control.Share{Bandwidth: 30, Unit: "%"}, &control.Share{Bandwidth: 50}, control.Share{Bandwidth: 40, Unit: "%"}, true},
		{detect.BandwidthCap, control.Share{Bandwidth: 90, Unit: "%"}, nil, control.Share{}, false},
		{detect.BandwidthCap, control.Share{Bandwidth: 20, Unit: "u", Used: 40}, nil, control.Share{Bandwidth: 30, Unit: "u", Used: 40}, true},
		{detect.BandwidthCap, control.Share{Bandwidth: 30, Unit: "u", Used: 40}, nil, control.Share{}, false}, // it had no more
	} {
		to, ok := remedy(t, tc.remedy).Widen(c, tc.from, tc.before)
		if ok != tc.intermediate || ok && to != tc.want {
			t.Errorf("%v from %v before %v: %v %v, want %v %v", tc.remedy, tc.from, tc.before, to, ok, tc.want, tc.intermediate)
		}
	}
}

// Ways and bandwidth are tried, verified by the victim's symptom, made less, and given up.
func TestSharesAreVerified(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		resource detect.Resource
		left     map[detect.Remedy]float64
		cache    control.Cache
		want     string
	}{
		{
			"ways help in part", detect.LLC, map[detect.Remedy]float64{detect.CacheWays: 0.7}, control.Cache{Ways: 11, Of: 11, LeastWays: 1},
			"applied cache_ways pods/batch: 6 ways\nkept cache_ways pods/batch: 6 ways\n" +
				"applied cache_ways pods/batch: 3 ways\nreverted cache_ways pods/batch: 3 ways\n" +
				"applied shrink_cpus pods/batch: CPUs 4-15\nreverted shrink_cpus pods/batch: CPUs 4-15\ngave_up\n",
		},
		{
			"bandwidth helps", detect.MemoryBandwidth, map[detect.Remedy]float64{detect.BandwidthCap: 0.2}, control.Cache{Bandwidth: 100, LeastBandwidth: 10, Step: 10, Unit: "%"},
			"applied bandwidth_cap pods/batch: 50 %\nkept bandwidth_cap pods/batch: 50 %\n",
		},
		{
			"another program has it", detect.MemoryBandwidth, map[detect.Remedy]float64{detect.BandwidthCap: 0.2, detect.ShrinkCPUs: 0.2}, control.Cache{Why: "resctrl group pod-a of another program has its threads"},
			"applied shrink_cpus pods/batch: CPUs 4-15\nkept shrink_cpus pods/batch: CPUs 4-15\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := onPaper(t, 16, complaint{victim, "pods/batch", c.resource, c.left})
				for i := range p.workloads {
					p.workloads[i].Cache = c.cache
				}
				want(t, p.run(enforce(), 30), c.want)
			})
		})
	}
}
