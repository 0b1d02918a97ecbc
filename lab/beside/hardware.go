package beside

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
)

// SMT asks what a busy sibling thread costs, and what the second half of the CPUs is worth.
func SMT() *Experiment { return smt.make() }

// Cache asks what a neighbour costs that shares nothing but the cache and the memory.
func Cache() *Experiment { return cache.make() }

// The cells of smt.
const (
	siblingIdle = "sibling idle"
	siblingBusy = "sibling busy"
	otherCores  = "other cores"
	bothThreads = "both threads"
)

var smt = &design{
	name: "smt", schema: "berth.dev/lab-smt/v1",
	spec: func() Spec { e := usual(); e.Demand = 0.1; return e },
	cells: []cell{
		{name: siblingIdle, means: "the tenant on a thread of each of its cores, their siblings idle", stand: threads(false, func(t smtPlaces) (cpuset.Set, cpuset.Set) { return t.first, cpuset.Set{} })},
		{name: siblingBusy, means: "the neighbour on the siblings", neighbour: true, stand: threads(true, func(t smtPlaces) (cpuset.Set, cpuset.Set) { return t.first, t.siblings })},
		{name: otherCores, means: "the neighbour on as many threads of other cores", neighbour: true, stand: threads(true, func(t smtPlaces) (cpuset.Set, cpuset.Set) { return t.first, t.others })},
		{name: bothThreads, means: "the tenant on both threads of its cores: the second half of the CPUs", stand: threads(false, func(t smtPlaces) (cpuset.Set, cpuset.Set) { return t.first.Union(t.siblings), cpuset.Set{} })},
	},
	versus:  []stats.Versus{{Cell: siblingBusy, Against: otherCores}},
	figures: []stats.Figure{lab.P50, lab.P99, lab.CPUPerRequest, lab.Work},
	words:   smtWords,
	lacks: func(m *machine.Machine) error {
		_, err := smtPlacesOf(m, m.Online)
		return err
	},
}

// smtPlaces are the threads of half the cores, and as many of the others.
type smtPlaces struct{ first, siblings, others cpuset.Set }

// smtPlacesOf divides the cores within free of which at least two threads are free.
func smtPlacesOf(m *machine.Machine, free cpuset.Set) (t smtPlaces, err error) {
	var cores []cpuset.Set
	for _, d := range m.ByKind(machine.Core) {
		if core := d.CPUs.Intersect(free); core.Len() > 1 {
			cores = append(cores, core)
		}
	}
	if len(cores) == 0 {
		return t, &kernel.NotSupportedError{Feature: "threads of one core", Reason: "no core has two threads online", Remedy: "switch SMT on: /sys/devices/system/cpu/smt/control"}
	}
	own := max(1, len(cores)/2)
	for i, core := range cores {
		first, _ := core.First()
		if i < own {
			t.first = t.first.Union(cpuset.MustOf(first))
			t.siblings = t.siblings.Union(core.Minus(cpuset.MustOf(first)))
		} else if t.others.Len() < t.siblings.Len() {
			t.others = t.others.Union(cpuset.MustOf(first))
		}
	}
	return t, nil
}

// threads places the two on sets of threads, of which the neighbour's must be there if it
// needs one.
func threads(needs bool, pick func(smtPlaces) (tenant, neighbour cpuset.Set)) stand {
	return func(m *machine.Machine, free cpuset.Set) (lab.Settings, error) {
		t, err := smtPlacesOf(m, free)
		if err != nil {
			return nil, err
		}
		tenant, neighbour := pick(t)
		if needs && neighbour.IsEmpty() {
			return nil, &kernel.NotSupportedError{Feature: "other cores", Reason: "one core with two threads takes part", Remedy: "let more CPUs take part: --set cpus=LIST"}
		}
		return standing(tenant, neighbour), nil
	}
}

// standing are the settings of two sets; an empty one leaves the role where it is.
func standing(tenant, neighbour cpuset.Set) lab.Settings {
	s := lab.Settings{}
	if !tenant.IsEmpty() {
		s[lab.Tenant] = cgroup.Limits{CPUs: tenant}
	}
	if !neighbour.IsEmpty() {
		s[lab.Neighbour] = cgroup.Limits{CPUs: neighbour}
	}
	return s
}

func smtWords(v *view) []string {
	if text := v.nothing(); text != "" {
		return []string{text}
	}
	var answer []string
	if v.Ran(siblingBusy) {
		answer = append(answer, costs(v, "A busy sibling thread", siblingBusy, siblingIdle))
	}
	if v.Ran(siblingBusy) && v.Ran(otherCores) {
		c := v.Of(siblingBusy, otherCores, lab.CPUPerRequest.Name)
		answer = append(answer, map[bool]string{
			true:  fmt.Sprintf("It is the sibling, and not only a busy machine: a request takes ×%s of the CPU time that it takes beside the same neighbour on other cores.", span(c)),
			false: "Whether that is the sibling's doing or that of a busy machine is not shown: against the same neighbour on other cores, CPU time per request is " + verdict(c) + ".",
		}[c.Verdict == stats.Worse])
	}
	if v.Ran(bothThreads) {
		c := v.Of(bothThreads, siblingIdle, lab.CPUPerRequest.Name)
		text := "Running on both threads of its cores, it takes " + verdict(c) + " of the CPU time per request"
		if c.Verdict == stats.Worse {
			text += ": so much less each thread is worth when both are used"
		}
		answer = append(answer, text+".")
	}
	if own := v.stood(siblingIdle, lab.Tenant).Len(); own > 0 && v.harms(siblingBusy, siblingIdle) {
		answer = append(answer, fmt.Sprintf("Do it: berth run --class LSR --cpus %d --bind SpreadByPCPUs --exclusive PCPULevel -- SERVICE", own))
	}
	return answer
}

// costs says what a cell costs against another, by p99 and by CPU time per request.
func costs(v *view, what, name, against string) string {
	p99, cpu := v.Of(name, against, lab.P99.Name), v.Of(name, against, lab.CPUPerRequest.Name)
	text := fmt.Sprintf("%s costs p99 ×%s: %s instead of %s", what, span(p99), v.P99(name), v.P99(against))
	switch p99.Verdict {
	case stats.Equivalent:
		text = fmt.Sprintf("%s costs p99 nothing here, within 10 %% (%s)", what, v.P99(name))
	case stats.Better:
		text = fmt.Sprintf("%s does no harm to p99 here (×%s)", what, span(p99))
	case stats.Inconclusive, stats.Invalid:
		text = fmt.Sprintf("Whether %s costs p99 anything, this run cannot tell (×%s)", strings.ToLower(what[:1])+what[1:], span(p99))
	}
	return text + "; CPU time per request: " + verdict(cpu) + "."
}

// The cells of cache.
const (
	quietBeside = "spinning beside"
	sameCache   = "same cache"
	otherCache  = "other cache"

	oneWay         = "1 way"
	twoWays        = "2 ways"
	halfTheWays    = "half the ways"
	mostWays       = "most ways"
	someBandwidth  = "some bandwidth"
	leastBandwidth = "least bandwidth"
)

var cache = newCache() // a function, as its words look at the design

func newCache() *design {
	beside := cached(func(c cachePlaces) (cpuset.Set, string) { return c.beside, "" })
	d := &design{
		name: "cache", schema: "berth.dev/lab-cache/v1",
		spec: func() Spec {
			e := usual()
			e.Demand, e.WorkingSetBytes, e.Neighbour.Kernel, e.For = 0.15, 16<<20, "scan", lab.Duration(4*time.Minute)
			return e
		},
		cells: []cell{
			{name: alone, means: "the tenant alone, on cores of its own", stand: beside},
			{name: quietBeside, means: "a neighbour that uses no memory, on other cores below the same cache", other: "spin", stand: beside},
			{name: sameCache, means: "the neighbour on those cores", neighbour: true, stand: beside},
			{name: otherCache, means: "the neighbour on as many cores below another cache", neighbour: true, stand: cached(func(c cachePlaces) (cpuset.Set, string) {
				return c.away, "the CPUs that take part have one last-level cache"
			})},
		},
		versus:  []stats.Versus{{Cell: sameCache, Against: quietBeside}, {Cell: sameCache, Against: otherCache}},
		figures: []stats.Figure{lab.P50, lab.P99, lab.CPUPerRequest},
		words:   cacheWords,
		lacks: func(m *machine.Machine) error {
			_, err := cachePlacesOf(m, m.Online)
			return err
		},
	}
	for _, c := range []cell{
		{name: oneWay, means: "same cache, of which the tenant has one way to itself, and the neighbour the others", division: &division{ways: fixed(1)}},
		{name: twoWays, means: "the same with two ways", division: &division{ways: fixed(2)}},
		{name: halfTheWays, means: "the same with half of the ways", division: &division{ways: func(all, _ int) int { return all / 2 }}},
		{name: mostWays, means: "the same with all ways but the fewest that the neighbour can have", division: &division{ways: func(all, least int) int { return all - least }}},
		{name: someBandwidth, means: "same cache, the neighbour's memory bandwidth limited to 50 %, or 8 GB/s", division: &division{percent: 50, bytes: 8e9}},
		{name: leastBandwidth, means: "the same with 1 %, or 1 GB/s, or the least that the CPU takes", division: &division{percent: 1, bytes: 1e9}},
	} {
		c.neighbour, c.stand = true, beside
		d.cells = append(d.cells, c)
	}
	return d
}

// cachePlaces are the tenant's cores, others below the same last-level cache, and as many
// below another; away is empty where there is none.
type cachePlaces struct{ tenant, beside, away cpuset.Set }

func cachePlacesOf(m *machine.Machine, free cpuset.Set) (c cachePlaces, err error) {
	caches := m.ByKind(machine.L3)
	for _, d := range caches {
		cores := coresWithin(m, d.CPUs.Intersect(free))
		if len(cores) < 2 {
			continue
		}
		own := max(1, len(cores)/2)
		for i, core := range cores {
			if i < own {
				c.tenant = c.tenant.Union(core)
			} else {
				c.beside = c.beside.Union(core)
			}
		}
		for _, other := range caches {
			if away := other.CPUs.Intersect(free); other.ID != d.ID && c.away.Len() < c.beside.Len() {
				for _, core := range coresWithin(m, away) {
					if c.away.Len() < c.beside.Len() {
						c.away = c.away.Union(core)
					}
				}
			}
		}
		return c, nil
	}
	return c, &kernel.NotSupportedError{Feature: "a shared last-level cache", Reason: "no two cores that take part share an L3 cache"}
}

// coresWithin are the cores of a set, those partly in it as their part.
func coresWithin(m *machine.Machine, set cpuset.Set) []cpuset.Set {
	var cores []cpuset.Set
	for _, d := range m.ByKind(machine.Core) {
		if core := d.CPUs.Intersect(set); !core.IsEmpty() {
			cores = append(cores, core)
		}
	}
	return cores
}

func cached(of func(cachePlaces) (neighbour cpuset.Set, without string)) stand {
	return func(m *machine.Machine, free cpuset.Set) (lab.Settings, error) {
		c, err := cachePlacesOf(m, free)
		if err != nil {
			return nil, err
		}
		neighbour, without := of(c)
		if neighbour.IsEmpty() {
			return nil, &kernel.NotSupportedError{Feature: "another cache", Reason: without, Remedy: "let CPUs below another take part: --set cpus=LIST"}
		}
		return standing(c.tenant, neighbour), nil
	}
}

func cacheWords(v *view) []string {
	if text := v.nothing(); text != "" {
		return []string{text}
	}
	var answer []string
	if v.Ran(sameCache) {
		answer = append(answer, costs(v, "A neighbour on other cores, below the same cache,", sameCache, alone))
	}
	if v.Ran(sameCache) && v.Ran(quietBeside) {
		c := v.Of(sameCache, quietBeside, lab.CPUPerRequest.Name)
		text := "Whether it is cache and memory that it takes is not shown: against a neighbour that only spins there, CPU time per request is " + verdict(c) + "."
		switch c.Verdict {
		case stats.Worse:
			text = fmt.Sprintf("It takes cache or memory bandwidth: a request needs ×%s of the CPU time that it needs beside a neighbour that only spins there.", span(c))
		case stats.Equivalent:
			text = "Its use of cache and memory costs nothing here: CPU time per request is as beside a neighbour that only spins there, within 10 %."
		}
		answer = append(answer, text)
	}
	if v.Ran(otherCache) {
		answer = append(answer, costs(v, "The same neighbour below another cache", otherCache, alone))
	}
	if slices.ContainsFunc(v.Skipped, func(s lab.Skipped) bool { return s.Scenario == otherCache }) {
		answer = append(answer, "This machine, or the part of it that took part, has one last-level cache: what moving the neighbour below another brings cannot be measured here.")
	}
	return append(append(answer, v.divisions()...), v.keepsCache()...)
}

// keepsCache is how to keep the neighbour from the service's cache, where it harms and something is
// shown to help.
func (v *view) keepsCache() []string {
	if !v.harms(sameCache, alone) {
		return nil
	}
	var help []string
	if away := v.stood(otherCache, lab.Neighbour); !away.IsEmpty() && !v.harms(otherCache, alone) {
		help = append(help, fmt.Sprintf("berth run --cpuset %s -- COMMAND, below another cache", away))
	}
	best := stats.Compared{}
	for _, c := range v.design.cells {
		if c.division == nil || !v.Ran(c.name) {
			continue
		}
		for _, f := range []stats.Figure{lab.CPUPerRequest, lab.P99} {
			if d := v.Of(c.name, sameCache, f.Name); d.Verdict == stats.Better && (best.Cell == "" || d.Estimate < best.Estimate) {
				best = d
			}
		}
	}
	if best.Cell != "" {
		help = append(help, fmt.Sprintf("berth run --cache-classes FILE --cache CLASS -- SERVICE, divided as in %q", best.Cell))
	}
	if help == nil {
		return nil
	}
	return []string{"Do it: " + strings.Join(help, ", or ")}
}
