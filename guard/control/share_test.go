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
	other := intel
	other.Why = "resctrl group pod-a of another program has its threads"
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
		{"caches are another program's", detect.CacheWays, other, 0, nil, control.Share{}, "resctrl group pod-a of another program has its threads"},
		{"bandwidth is", detect.BandwidthCap, other, 0, nil, control.Share{}, "resctrl group pod-a of another program has its threads"},
		{"no bandwidth", detect.BandwidthCap, control.Cache{Ways: 4}, 0, nil, control.Share{}, "memory bandwidth is not limited here"},
	} {
		to, reason := remedy(t, c.remedy).Divide(&control.Case{Group: control.Workload{Cache: c.cache, Traffic: c.traffic}, HeldShare: c.held})
		if to != c.want || reason != c.reason {
			t.Errorf("%s: %+v %q, want %+v %q", c.name, to, reason, c.want, c.reason)
		}
	}
}

// Each rule about how much may be sent.
func TestSendCap(t *testing.T) {
	t.Parallel()
	free := control.Sending{Link: 2, Device: "eth0", Floor: 1000, Ceiling: 12.5e6, Sent: 10e6}
	floor, low, silent, undivided := free, free, free, free
	floor.Floor, low.Ceiling, silent.Sent, undivided.Why = 4e6, 6e6, 0, "eth0 is not divided"
	held := func(send int64, device string) *control.Share {
		return &control.Share{Send: send, Device: device, Used: 10e6}
	}
	for _, c := range []struct {
		name   string
		link   int
		of     control.Sending
		held   *control.Share
		send   int64
		reason string
	}{
		{"half of what it sends", 2, free, nil, 5e6, ""},
		{"half of that", 2, free, held(5e6, "eth0"), 2.5e6, ""},
		{"a tenth stays", 2, free, held(1.5e6, "eth0"), 1e6, ""},
		{"and is the end", 2, free, held(1e6, "eth0"), 0, "8 Mbit/s over eth0 is the least that it keeps"},
		{"the floor of its class", 2, floor, held(5e6, "eth0"), 4e6, ""},
		{"and is the end there", 2, floor, held(4e6, "eth0"), 0, "32 Mbit/s over eth0 is the least that it keeps"},
		{"half of the ceiling of its class, if that is lower", 2, low, nil, 3e6, ""},
		{"of a ceiling that was lowered meanwhile", 2, low, held(9e6, "eth0"), 3e6, ""},
		{"what it sends is not known", 2, silent, nil, 0, "how much it sends over the link is not known: its network may be one of its own"},
		{"nobody named the device", 2, undivided, nil, 0, "eth0 is not divided"},
		{"the victim's link is another one", 3, free, nil, 0, "what it may send over the victim's link is not known"},
		{"the victim has none", 0, control.Sending{Sent: 1e6, Ceiling: 2e6}, nil, 0, "what it may send over the victim's link is not known"},
		{"another link is full by now", 2, free, held(5e6, "eth1"), 0, "another link is full by now"},
	} {
		of := &control.Case{Victim: control.Workload{Link: c.link}, Group: control.Workload{Sending: []control.Sending{c.of}}, HeldShare: c.held}
		to, reason := remedy(t, detect.SendCap).Divide(of)
		if to.Send != c.send || reason != c.reason || c.send > 0 && (to.Device != "eth0" || to.Used == 0) {
			t.Errorf("%s: %+v %q, want %d %q", c.name, to, reason, c.send, c.reason)
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
		{detect.SendCap, control.Share{Send: 50, Device: "eth0", Used: 100}, nil, control.Share{Send: 60, Device: "eth0", Used: 100}, true},
		{detect.SendCap, control.Share{Send: 25, Device: "eth0", Used: 100}, &control.Share{Send: 50}, control.Share{Send: 35, Device: "eth0", Used: 100}, true},
		{detect.SendCap, control.Share{Send: 45, Device: "eth0", Used: 100}, &control.Share{Send: 50}, control.Share{}, false},
		{detect.SendCap, control.Share{Send: 90, Device: "eth0", Used: 100}, nil, control.Share{}, false}, // likewise
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
		{
			"a lower rate helps", detect.Network, map[detect.Remedy]float64{detect.SendCap: 0.2}, control.Cache{},
			"applied send_cap pods/batch: 40 Mbit/s over eth0\nkept send_cap pods/batch: 40 Mbit/s over eth0\n",
		},
		{
			"a lower rate helps in part", detect.Network, map[detect.Remedy]float64{detect.SendCap: 0.7}, control.Cache{},
			"applied send_cap pods/batch: 40 Mbit/s over eth0\nkept send_cap pods/batch: 40 Mbit/s over eth0\n" +
				"applied send_cap pods/batch: 20 Mbit/s over eth0\nreverted send_cap pods/batch: 20 Mbit/s over eth0\ngave_up\n",
		},
		{
			"it does not help", detect.Network, nil, control.Cache{},
			"applied send_cap pods/batch: 40 Mbit/s over eth0\nreverted send_cap pods/batch: 40 Mbit/s over eth0\ngave_up\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := onPaper(t, 16, complaint{victim, "pods/batch", c.resource, c.left})
				for i := range p.workloads {
					p.workloads[i].Cache = c.cache
					p.workloads[i].Link, p.workloads[i].Sending = 2, []control.Sending{{Link: 2, Device: "eth0", Ceiling: 12.5e6, Sent: 10e6}}
				}
				want(t, p.run(enforce(), 30), c.want)
			})
		})
	}
}
