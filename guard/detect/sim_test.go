package detect_test

import (
	"math"
	"math/rand/v2"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

// The simulated host: one socket with two nodes of four cores with two threads
// each. The victim "api" has the first threads of node 0, its neighbours share
// all CPUs with it.
const (
	simVictim  = "api"
	simPeak    = 50e9
	simCPUs    = 16
	simQuiet   = 60 // windows before something happens
	simTrouble = 20 // windows for which it lasts
)

func simMachine() *machine.Machine {
	m, err := machine.Short("1s2n4c2t")
	if err != nil {
		panic(err)
	}
	return m
}

func simWorkloads() []detect.Workload {
	return []detect.Workload{
		{Group: simVictim, CPUs: cpuset.MustParse("0-3"), Sensitive: true},
		{Group: "batch"}, {Group: "mail"}, {Group: "web"},
	}
}

// trouble is a labelled disturbance.
type trouble struct {
	name     string
	resource detect.Resource
	suspect  string // the guilty
	none     bool   // nothing is to be found
	probe    bool   // the run-queue probe is armed
	apply    func(h *simHost, r *rand.Rand)
	// lead is what happens before, so many windows before the onset; nil is nothing.
	lead func(h *simHost, r *rand.Rand, before int)
}

// simGroup is what a group does in one window, per second.
type simGroup struct {
	name                      string
	use, wait                 float64
	cpuSome, memSome, ioSome  float64
	periods, throttled, held  float64
	cpi, mpki, clock          float64
	occupancy, memory, remote float64
	limits, traffic, io       float64
	p99                       float64
	sent, rtt, again          float64            // over the network
	away                      bool               // in another network namespace
	by                        map[string]float64 // wait by antagonist; "kernel", "idle", "throttled" are special
	counters                  map[simKey]float64
}

type simKey struct {
	q    watch.Quantity
	part watch.Part
	by   string
}

type simHost struct {
	groups   map[string]*simGroup
	order    []string
	steal    float64
	counters map[simKey]float64
	probe    bool
	now      watch.Time
	r        *rand.Rand
	noise    float64 // factor of all standard deviations
	net      *rand.Rand
	sent     float64 // by the link, beside what groups send
	waiting  float64 // in its queue
}

// simRate is what the host's only link can send.
const simRate = 125e6

var simLink = watch.Part{Kind: watch.Link, ID: 2}

// netNoisy is noisy for the network, which has random numbers of its own.
func (h *simHost) netNoisy(v, sd float64) float64 {
	return v * math.Exp(sd*h.noise*h.net.NormFloat64())
}

// full has the link send what it can, and the victim's round trips be long: a group sends a
// part of it, the rest is not of this host's groups.
func (h *simHost) full(r *rand.Rand, name string, share float64) {
	h.groups[name].sent = h.netNoisy(simRate*share, 0.02)
	others := 0.0
	for _, g := range h.order {
		if !h.groups[g].away {
			others += h.groups[g].sent
		}
	}
	h.sent = max(simRate-others, 0)
	h.waiting = h.netNoisy(between(r, 1e6, 3e6), 0.3)
	h.groups[simVictim].rtt = h.netNoisy(between(r, 5e-3, 30e-3), 0.2)
	h.groups[simVictim].again = between(r, 0, 0.05)
}

// noisy multiplies by a log-normal factor with that standard deviation.
func (h *simHost) noisy(v, sd float64) float64 { return v * math.Exp(sd*h.noise*h.r.NormFloat64()) }

// simulate returns the batches of samples of one run, one per second, and the
// ends of the windows that they make. Something happens in the last simTrouble.
func simulate(t trouble, seed uint64, noise float64) (batches [][]watch.Sample, ends []watch.Time) {
	h := newSimHost(t, seed, noise)
	r := h.r
	load, mail := 1.2+r.Float64(), 0.5+r.Float64()
	for i := range simQuiet + simTrouble {
		load = min(max(load+0.05*r.NormFloat64(), 0.6), 2.6)
		if r.Float64() < 0.05 {
			mail = 0.2 + 2*r.Float64() // an innocent neighbour comes and goes
		}
		h.quiet(load, mail)
		if i < simQuiet && t.lead != nil {
			t.lead(h, rand.New(rand.NewPCG(seed, 99)), simQuiet-i)
		}
		if i >= simQuiet {
			t.apply(h, rand.New(rand.NewPCG(seed, 99))) // the same intensity in every window
		}
		h.step()
		batches = append(batches, h.samples())
		ends = append(ends, h.now)
	}
	return batches, ends
}

func newSimHost(t trouble, seed uint64, noise float64) *simHost {
	h := &simHost{
		groups: map[string]*simGroup{}, order: []string{simVictim, "batch", "mail", "web"}, counters: map[simKey]float64{},
		r: rand.New(rand.NewPCG(seed, uint64(len(t.name))<<8+uint64(t.name[0]))), probe: t.probe, noise: noise,
		net: rand.New(rand.NewPCG(seed, 7)),
	}
	for _, name := range h.order {
		h.groups[name] = &simGroup{name: name, counters: map[simKey]float64{}}
	}
	return h
}

// step goes on by about a second.
func (h *simHost) step() { h.now += watch.Time(float64(watch.Second) * (1 + 0.02*h.r.Float64())) }

// quiet sets what all do while nothing is wrong.
func (h *simHost) quiet(load, mail float64) {
	h.steal = 0.002 * h.r.Float64()
	h.sent, h.waiting = h.netNoisy(1e6, 0.3), 0
	for _, name := range h.order {
		g := h.groups[name]
		use := map[string]float64{simVictim: load, "batch": 0.3, "mail": mail, "web": 0.8}[name]
		*g = simGroup{
			name: name, counters: g.counters,
			use: h.noisy(use, 0.05), cpuSome: h.noisy(0.04, 0.3), memSome: h.noisy(0.001, 0.5), ioSome: h.noisy(0.01, 0.5),
			wait: h.noisy(0.01*use, 0.3), p99: h.noisy(80e-6, 0.2), periods: 10,
			cpi: h.noisy(0.9+0.1*use, 0.03), mpki: h.noisy(2, 0.06), clock: h.noisy(3e9, 0.01),
			occupancy: h.noisy(4e6, 0.05), memory: h.noisy(1e9, 0.005), remote: 0.05,
			traffic: h.noisy(2e9, 0.1), io: h.noisy(5e6, 0.3),
			sent: h.netNoisy(4e6, 0.3), rtt: h.netNoisy(300e-6, 0.1), again: h.netNoisy(0.001, 0.5),
			by: map[string]float64{name: h.noisy(0.004, 0.3), "web": h.noisy(0.004, 0.3), "mail": h.noisy(0.004, 0.3), "kernel": h.noisy(0.001, 0.3)},
		}
	}
}

func (h *simHost) samples() []watch.Sample {
	var all []watch.Sample
	all = h.count(all, watch.Subject{}, h.counters, watch.Steal, h.steal, "")
	busy, traffic := 0.0, 0.0
	for _, name := range h.order {
		busy += h.groups[name].use
		traffic += h.groups[name].traffic
	}
	all = h.count(all, watch.Subject{}, h.counters, watch.CPUTime, busy, "")
	for cpu := range simCPUs {
		all = h.count(all, watch.Subject{Part: watch.Part{Kind: watch.CPU, ID: cpu}}, h.counters, watch.CPUTime, h.busy(cpu), "")
	}
	all = h.count(all, watch.Subject{Part: watch.Part{Kind: watch.Cache}}, h.counters, watch.Bandwidth, traffic, "")
	out := h.sent
	for _, name := range h.order {
		if g := h.groups[name]; !g.away {
			out += g.sent
		}
	}
	link := watch.Subject{Part: simLink}
	all = h.count(all, link, h.counters, watch.NetSent, min(out, simRate), "")
	all = append(all, watch.Sample{Time: h.now, Subject: link, Quantity: watch.LinkRate, Value: simRate},
		watch.Sample{Time: h.now, Subject: link, Quantity: watch.LinkQueued, Value: h.waiting})
	for _, name := range h.order {
		all = h.group(all, h.groups[name])
	}
	return all
}

// busy spreads the victim over its CPUs and the others over all that is left.
func (h *simHost) busy(cpu int) float64 {
	own, others := h.groups[simVictim].use, 0.0
	for _, name := range h.order[1:] {
		others += h.groups[name].use
	}
	free := simCPUs - own
	if cpu < 4 {
		return min(own/4+(1-own/4)*min(others/free, 1), 1)
	}
	return min(others/free, 1)
}

// count advances a counter by a second's worth and appends its sample.
func (h *simHost) count(to []watch.Sample, s watch.Subject, counters map[simKey]float64, q watch.Quantity, perSecond float64, by string) []watch.Sample {
	key := simKey{q, s.Part, by}
	counters[key] += perSecond * 1.01
	return append(to, watch.Sample{Time: h.now, Subject: s, Quantity: q, Value: counters[key], By: by})
}

func (h *simHost) group(to []watch.Sample, g *simGroup) []watch.Sample {
	s := watch.Subject{Scope: watch.Group, Name: g.name}
	count := func(q watch.Quantity, v float64) { to = h.count(to, s, g.counters, q, v, "") }
	gauge := func(q watch.Quantity, part watch.Part, v float64) {
		of := s
		of.Part = part
		to = append(to, watch.Sample{Time: h.now, Subject: of, Quantity: q, Value: v})
	}
	count(watch.CPUTime, g.use)
	count(watch.CPUPeriods, g.periods)
	count(watch.CPUThrottledPeriods, g.throttled)
	count(watch.CPUThrottled, g.held)
	count(watch.CPUWait, g.wait)
	count(watch.CPUSome, g.cpuSome)
	count(watch.MemorySome, g.memSome)
	count(watch.IOSome, g.ioSome)
	count(watch.MemoryLow, 0)
	count(watch.MemoryHigh, g.limits)
	count(watch.MemoryMax, 0)
	gauge(watch.Memory, watch.Part{}, g.memory)
	gauge(watch.MemoryAnon, watch.Part{Kind: watch.Node, ID: 0}, 0.7*g.memory*(1-g.remote))
	gauge(watch.MemoryAnon, watch.Part{Kind: watch.Node, ID: 1}, 0.7*g.memory*g.remote)
	gauge(watch.MemoryFile, watch.Part{Kind: watch.Node, ID: 0}, 0.3*g.memory*(1-g.remote))
	gauge(watch.MemoryFile, watch.Part{Kind: watch.Node, ID: 1}, 0.3*g.memory*g.remote)
	device := s
	device.Part = watch.Part{Kind: watch.Device, ID: watch.DeviceID(8, 0)}
	to = h.count(to, device, g.counters, watch.IOWritten, g.io, "")
	count(watch.Cycles, g.use*g.clock)
	count(watch.Instructions, g.use*g.clock/g.cpi)
	count(watch.LLCMisses, g.use*g.clock/g.cpi*g.mpki/1000)
	cache := s
	cache.Part = watch.Part{Kind: watch.Cache}
	gauge(watch.LLCOccupancy, cache.Part, g.occupancy)
	to = h.count(to, cache, g.counters, watch.Bandwidth, g.traffic, "")
	by := s
	if !g.away {
		by.Part = simLink
	}
	to = h.count(to, by, g.counters, watch.NetSent, g.sent, "")
	if g.name == simVictim {
		count(watch.Segments, 3000)
		count(watch.Retransmits, 3000*g.again)
		gauge(watch.RoundTrip, watch.Part{}, g.rtt)
	}
	if h.probe && g.name == simVictim {
		to = h.queue(to, s, g)
	}
	return to
}

// queue is what the run-queue probe tells.
func (h *simHost) queue(to []watch.Sample, s watch.Subject, g *simGroup) []watch.Sample {
	to = append(to, watch.Sample{Time: h.now, Subject: s, Quantity: watch.QueueP99, Value: g.p99})
	sum := 0.0
	for _, name := range append(slices.Clone(h.order), detect.Outside) {
		sum += g.by[name]
		to = h.count(to, s, g.counters, watch.QueuedBy, g.by[name], name)
	}
	for i, name := range []string{"kernel", "idle", "throttled"} {
		q := []watch.Quantity{watch.QueuedKernel, watch.QueuedIdle, watch.QueuedThrottled}[i]
		sum += g.by[name]
		to = h.count(to, s, g.counters, q, g.by[name], "")
	}
	return h.count(to, s, g.counters, watch.Queued, sum, "")
}

// between draws evenly.
func between(r *rand.Rand, low, high float64) float64 { return low + (high-low)*r.Float64() }

// blame makes the victim wait, mostly for one.
func (h *simHost) blame(who string, share, wait float64) {
	v := h.groups[simVictim]
	rest := wait * (1 - share)
	v.by = map[string]float64{who: h.noisy(wait*share, 0.1)}
	for _, other := range []string{simVictim, "mail", "web"} {
		v.by[other] += h.noisy(rest/3, 0.2)
	}
	v.wait = wait
	v.p99 = h.noisy(3e-3, 0.2)
	v.cpuSome = min(h.noisy(wait/2+0.1, 0.1), 1)
}

func cpuHog(h *simHost, r *rand.Rand) {
	h.groups["batch"].use = h.noisy(13, 0.02)
	h.blame("batch", between(r, 0.5, 0.95), between(r, 0.5, 2))
}

// troubles are all labels, decoys included.
func troubles() []trouble {
	slow := func(r *rand.Rand) float64 { return between(r, 1.25, 2) }
	return []trouble{
		{name: "nothing", none: true, apply: func(*simHost, *rand.Rand) {}},
		{name: "nothing, probed", none: true, probe: true, apply: func(*simHost, *rand.Rand) {}},
		{name: "own load changes", none: true, probe: true, apply: func(h *simHost, r *rand.Rand) {
			v, factor := h.groups[simVictim], between(r, 0.3, 1.4)
			v.cpi += 0.1 * v.use * (factor - 1)
			v.use = min(v.use*factor, 3.5)
			v.traffic *= factor
		}},
		{name: "harmless neighbour", none: true, probe: true, apply: func(h *simHost, r *rand.Rand) {
			h.groups["batch"].use = h.noisy(between(r, 2, 6), 0.05)
			h.groups["batch"].traffic = 10e9
			h.groups["batch"].io = 50e6
		}},
		{name: "quota", resource: detect.OwnLimit, apply: quota},
		{name: "quota, probed", resource: detect.OwnLimit, probe: true, apply: quota},
		{name: "quota and hog", resource: detect.OwnLimit, probe: true, apply: func(h *simHost, r *rand.Rand) {
			cpuHog(h, r)
			quota(h, r)
		}},
		{name: "steal", resource: detect.Hypervisor, apply: steal},
		{name: "steal, probed", resource: detect.Hypervisor, probe: true, apply: steal},
		{
			name: "steal before a long queue", resource: detect.Hypervisor, probe: true, lead: longQueue,
			apply: func(h *simHost, r *rand.Rand) {
				longQueue(h, r, 0)
				h.steal = h.noisy(between(r, 0.7, 1.2), 0.1)
				h.groups[simVictim].use = 1.5
			},
		},
		{name: "saturated", resource: detect.OwnLoad, apply: saturated},
		{name: "saturated, probed", resource: detect.OwnLoad, probe: true, apply: saturated},
		{name: "saturated beside outsiders", resource: detect.OwnLoad, probe: true, apply: func(h *simHost, r *rand.Rand) {
			h.groups[simVictim].use = 3.8
			h.blame(detect.Outside, between(r, 0.4, 0.5), between(r, 1, 4))
			v := h.groups[simVictim]
			v.by[simVictim] += v.by["mail"] + v.by["web"]
			delete(v.by, "mail")
			delete(v.by, "web")
		}},
		{name: "outsiders", resource: detect.CPU, suspect: detect.Outside, probe: true, apply: func(h *simHost, r *rand.Rand) {
			h.blame(detect.Outside, between(r, 0.5, 0.95), between(r, 0.5, 2))
		}},
		{name: "hog", resource: detect.CPU, suspect: "batch", apply: cpuHog},
		{name: "hog, probed", resource: detect.CPU, suspect: "batch", probe: true, apply: cpuHog},
		{name: "hog and some steal", resource: detect.CPU, suspect: "batch", probe: true, apply: func(h *simHost, r *rand.Rand) {
			cpuHog(h, r)
			h.blame("batch", between(r, 0.7, 0.95), between(r, 2, 4))
			h.steal = between(r, 0.45, 0.6)
		}},
		{
			// Outsiders have most of the wait before, and not much less than the hog after.
			name: "hog beside usual outsiders", resource: detect.CPU, suspect: "batch", probe: true, lead: usualOutsiders,
			apply: func(h *simHost, r *rand.Rand) {
				cpuHog(h, r)
				h.blame("batch", between(r, 0.6, 0.7), between(r, 0.07, 0.09)*h.groups[simVictim].use)
				usualOutsiders(h, r, 0)
			},
		},
		{name: "bursty", none: true, probe: true, lead: bursty, apply: func(h *simHost, r *rand.Rand) { bursty(h, r, 0) }},
		{
			// Nor is its usual waiting taken for harm once the neighbour is there.
			name: "hog beside bursty", resource: detect.CPU, suspect: "batch", probe: true, lead: bursty,
			apply: func(h *simHost, r *rand.Rand) {
				cpuHog(h, r)
				h.blame("batch", between(r, 0.8, 0.95), between(r, 0.2, 0.3)*h.groups[simVictim].use)
				bursty(h, r, 0)
			},
		},
		{
			name: "saturated beside usual outsiders", resource: detect.OwnLoad, probe: true, lead: usualOutsiders,
			apply: func(h *simHost, r *rand.Rand) {
				v := h.groups[simVictim]
				v.use = 3.8
				v.p99 = h.noisy(1.2e-3, 0.1)
				usualOutsiders(h, r, 0)
			},
		},
		{name: "reclaim", resource: detect.Memory, suspect: "batch", apply: reclaim},
		{
			name: "slow reclaim", resource: detect.Memory, suspect: "batch", apply: reclaim,
			// The neighbour grows over three windows, and more pass until the victim feels it.
			lead: func(h *simHost, r *rand.Rand, before int) {
				_, to := between(r, 0.2, 0.6), between(r, 2e9, 8e9)
				if since := 7 + r.IntN(3) - before; since >= 0 {
					h.groups["batch"].memory += (to - 1e9) * min(float64(since+1)/3, 1)
				}
			},
		},
		{name: "own memory limit", resource: detect.Memory, apply: func(h *simHost, r *rand.Rand) {
			h.groups[simVictim].memSome = min(h.noisy(between(r, 0.2, 0.6), 0.1), 1)
			h.groups[simVictim].limits = h.noisy(50, 0.3)
			h.groups["batch"].memory = between(r, 2e9, 8e9)
		}},
		{name: "disk", resource: detect.IO, suspect: "batch", apply: func(h *simHost, r *rand.Rand) {
			h.groups[simVictim].ioSome = min(h.noisy(between(r, 0.2, 0.7), 0.1), 1)
			h.groups["batch"].io = h.noisy(between(r, 50e6, 300e6), 0.1)
		}},
		{name: "own disk", resource: detect.IO, apply: func(h *simHost, r *rand.Rand) {
			h.groups[simVictim].ioSome = min(h.noisy(between(r, 0.2, 0.7), 0.1), 1)
			h.groups[simVictim].io = h.noisy(between(r, 100e6, 300e6), 0.1)
		}},
		{name: "full link", resource: detect.Network, suspect: "batch", apply: func(h *simHost, r *rand.Rand) {
			h.full(r, "batch", between(r, 0.6, 0.95))
		}},
		{
			name: "full link, from another namespace", resource: detect.Network, suspect: "batch", lead: away,
			apply: func(h *simHost, r *rand.Rand) {
				away(h, r, 0)
				h.full(r, "batch", between(r, 0.6, 0.9))
			},
		},
		{name: "full link of others", resource: detect.Network, apply: func(h *simHost, r *rand.Rand) {
			h.full(r, "batch", between(r, 0.05, 0.2))
		}},
		{
			name: "talk within the host beside a full link", resource: detect.Network, lead: away,
			apply: func(h *simHost, r *rand.Rand) {
				away(h, r, 0)
				h.full(r, "batch", between(r, 2, 8))
			},
		},
		{name: "own full link", resource: detect.Network, apply: func(h *simHost, r *rand.Rand) {
			h.full(r, simVictim, between(r, 0.75, 0.95))
		}},
		{name: "full link, unharmed", none: true, apply: func(h *simHost, r *rand.Rand) {
			v := h.groups[simVictim]
			rtt, again := v.rtt, v.again
			h.full(r, "batch", between(r, 0.6, 0.95))
			v.rtt, v.again = rtt, again
		}},
		{name: "slow far away", none: true, apply: func(h *simHost, r *rand.Rand) {
			v := h.groups[simVictim]
			v.rtt, v.again = h.netNoisy(between(r, 5e-3, 100e-3), 0.2), between(r, 0.02, 0.2)
			h.groups["batch"].sent = h.netNoisy(simRate*between(r, 0.3, 0.6), 0.05)
		}},
		{name: "bandwidth", resource: detect.MemoryBandwidth, suspect: "batch", apply: func(h *simHost, r *rand.Rand) {
			v, b := h.groups[simVictim], h.groups["batch"]
			v.cpi *= slow(r)
			v.mpki *= between(r, 1, 1.5)
			b.use, b.traffic = h.noisy(4, 0.05), h.noisy(40e9, 0.02)
			b.occupancy = 20e6
		}},
		{name: "cache", resource: detect.LLC, suspect: "batch", apply: func(h *simHost, r *rand.Rand) {
			v, b := h.groups[simVictim], h.groups["batch"]
			v.cpi *= slow(r)
			v.mpki *= between(r, 1.5, 4)
			v.occupancy *= between(r, 0.3, 0.6)
			b.use, b.traffic, b.occupancy = h.noisy(3, 0.05), 10e9, h.noisy(20e6, 0.05)
		}},
		{name: "sibling", resource: detect.SMT, suspect: "batch", apply: func(h *simHost, r *rand.Rand) {
			h.groups[simVictim].cpi *= slow(r)
			h.groups["batch"].use = h.noisy(11, 0.02)
		}},
		{name: "remote memory", resource: detect.NUMA, apply: func(h *simHost, r *rand.Rand) {
			h.groups[simVictim].remote = between(r, 0.35, 1)
			h.groups[simVictim].cpi *= slow(r)
		}},
		{name: "slow clock", resource: detect.Frequency, apply: func(h *simHost, r *rand.Rand) {
			h.groups[simVictim].clock *= between(r, 0.5, 0.8)
		}},
		{name: "slow wake-up", resource: detect.Frequency, probe: true, apply: func(h *simHost, r *rand.Rand) {
			v := h.groups[simVictim]
			v.by["idle"] = between(r, 0.05, 0.2)
			v.p99 = h.noisy(2e-3, 0.1)
		}},
	}
}

// away has the neighbour be in another network namespace, ever since.
func away(h *simHost, _ *rand.Rand, _ int) { h.groups["batch"].away = true }

// usualOutsiders has processes in no group make the victim wait a little, ever since.
func usualOutsiders(h *simHost, _ *rand.Rand, _ int) {
	v := h.groups[simVictim]
	more := h.noisy(0.06*v.use, 0.1)
	v.by[detect.Outside] += more
	v.wait += more
}

// longQueue has the victim's many threads wait all the time, a quarter of it behind a
// neighbour that has its fair share, ever since.
func longQueue(h *simHost, _ *rand.Rand, _ int) {
	v := h.groups[simVictim]
	v.use, v.wait, v.p99, v.cpuSome = h.noisy(2, 0.02), h.noisy(30, 0.02), h.noisy(50e-3, 0.1), 1
	v.by = map[string]float64{simVictim: h.noisy(22, 0.03), "mail": h.noisy(8, 0.03)}
}

// bursty has the victim's threads wake up together, ever since, and wait for each
// other beyond all fixed thresholds.
func bursty(h *simHost, _ *rand.Rand, _ int) {
	v := h.groups[simVictim]
	v.use = min(v.use, 2) // of four CPUs: it does not fill them
	more := h.noisy(0.3*v.use, 0.1)
	v.by[simVictim] += more
	v.wait += more
	v.p99 = max(v.p99, h.noisy(2e-3, 0.1))
	v.cpuSome = min(h.noisy(0.3, 0.1), 1)
}

func reclaim(h *simHost, r *rand.Rand) {
	h.groups[simVictim].memSome = min(h.noisy(between(r, 0.2, 0.6), 0.1), 1)
	h.groups["batch"].memory = between(r, 2e9, 8e9)
}

func quota(h *simHost, r *rand.Rand) {
	v := h.groups[simVictim]
	v.throttled = between(r, 3, 9)
	v.held = between(r, 0.5, 2)
	v.cpuSome, v.wait = 0.5, v.use
	v.by["throttled"] = v.held
	h.groups["batch"].use = 5
}

func steal(h *simHost, r *rand.Rand) {
	h.steal = h.noisy(between(r, 0.5, 4), 0.1)
	v := h.groups[simVictim]
	v.cpi *= 1.5
	v.p99, v.wait, v.cpuSome = 3e-3, 0.5*v.use, 0.3
	h.groups["batch"].use = 6
	h.blame("batch", 0.6, 0.4)
}

func saturated(h *simHost, r *rand.Rand) {
	v := h.groups[simVictim]
	v.use = 3.8
	h.blame(simVictim, between(r, 0.65, 0.95), between(r, 1, 4))
	h.groups["batch"].use = between(r, 0.3, 3)
}
