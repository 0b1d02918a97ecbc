package detect_test

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// queueHost is CPUs with a queue each, simulated task by task in steps of a quarter of a
// millisecond: what short windows see is single requests and slices, not levels with noise.
// A CPU goes round by group, as in the kernel, and within a group by task. A group that has tasks on
// both has a part of its weight on each, by their number; a task in no group has a whole one.
type queueHost struct {
	r      *rand.Rand
	groups []*queueGroup
	cpus   []queueCPU
	now    time.Duration
	waited []time.Duration // by tasks of the victim that got the CPU in this window
	by     map[string]time.Duration
	queued time.Duration
	slice  time.Duration            // for which a task has the CPU while others wait
	before map[string]time.Duration // by, at the window before
	read   map[string]time.Duration // until when the CPU time of a group is read with each window
}

const (
	tickStep = 250 * time.Microsecond
	// longSlice is that of a kernel that looks every 4 ms, shortSlice about that of one with a timer for it.
	longSlice, shortSlice = 4 * time.Millisecond, 1500 * time.Microsecond
	// balanceEvery is about how often two busy CPUs of a kernel compare their loads.
	balanceEvery = 32 * time.Millisecond
	// idleLooks is how long a CPU is idle before it takes over tasks that stay where they are: a tick of the kernel.
	idleLooks = 4 * time.Millisecond
)

type queueGroup struct {
	name    string
	work    func(now time.Duration) float64 // of all CPUs, offered
	request time.Duration                   // per task; 0 never ends
	tasks   int                             // of those that never end, from start on
	start   time.Duration
	used    time.Duration
	begun   bool
	fills   bool    // from start on it runs wherever nobody else does, in the idle class: nobody waits for it
	queued  int     // tasks on all CPUs
	workers int     // tasks that serve its requests, one each at a time; 0 has a task for each request
	backlog int     // requests that wait for a worker
	beside  float64 // how often a worker goes on beside the thread that woke it up, where no CPU is idle
	idle    []int   // the CPUs that idle workers ran on last, who became idle last at the end; nil where each goes to the shortest queue
	clumps  float64 // how often a task wakes up where another one of its runs, though a CPU is idle
	stays   bool    // a CPU that is idle for a short time only takes none of its tasks over
	// Tasks that never end run in the first part of their periods alone, and lose one for which they come too
	// late, as those of the lab do; wakes is when those wake up that sleep, 0 is awake.
	every, each time.Duration
	wakes       []time.Duration
}

type queueTask struct {
	group *queueGroup
	left  time.Duration
	since time.Duration // waits from then on
	paced int           // of a group with periods, which of its tasks it is
}

// queueCPU is one CPU: first of all of on runs.
type queueCPU struct {
	on     *queueShare // nil while nothing runs
	shares []*queueShare
	tasks  int
	ran    time.Duration // without a pause
	busy   time.Duration
	idle   time.Duration // without a pause
	floor  float64       // of what shares have run
}

// queueShare is what the CPU goes round by: a group's tasks on it, or one in no group.
type queueShare struct {
	group *queueGroup
	tasks []*queueTask
	ran   float64 // over its weight
}

// ask has a group serve one more request.
func (h *queueHost) ask(g *queueGroup) {
	if g.workers > 0 && g.queued >= g.workers {
		g.backlog++
		return
	}
	h.add(&queueTask{group: g, left: h.length(g)})
}

// wake says on which CPU a worker goes on: on one that is idle, as is the one that it ran on last first of
// all; else on that, or beside the thread of its group that woke it up.
func (h *queueHost) wake(g *queueGroup) int {
	last := g.idle[len(g.idle)-1]
	g.idle = g.idle[:len(g.idle)-1]
	if h.cpus[last].tasks == 0 {
		return last
	}
	var idle, beside []int
	for i := range h.cpus {
		switch c := &h.cpus[i]; {
		case c.tasks == 0:
			idle = append(idle, i)
		case c.on != nil && c.on.group == g:
			beside = append(beside, i)
		}
	}
	if len(idle) > 0 {
		return idle[h.r.IntN(len(idle))]
	}
	if n := len(beside); n > 0 && h.r.Float64() < g.beside {
		return beside[h.r.IntN(n)]
	}
	return last
}

// length is how long the next request of a group takes.
func (h *queueHost) length(g *queueGroup) time.Duration {
	return time.Duration(float64(g.request) * h.r.ExpFloat64())
}

func (h *queueHost) add(t *queueTask) {
	at := 0
	if beside := h.clump(t.group); beside >= 0 {
		at = beside
	} else if len(t.group.idle) > 0 {
		at = h.wake(t.group)
	} else {
		at = h.shortest()
	}
	t.group.queued++
	t.since = h.now
	h.cpus[at].add(t, h.slice)
}

// clump is the CPU on which a task goes beside another of its group whatever is idle; -1 for none.
func (h *queueHost) clump(g *queueGroup) int {
	if g.clumps == 0 || h.r.Float64() >= g.clumps {
		return -1
	}
	at := slices.IndexFunc(h.cpus, func(c queueCPU) bool { return c.on != nil && c.on.group == g })
	if n := len(g.idle); at >= 0 && n > 0 {
		g.idle = g.idle[:n-1]
	}
	return at
}

// shortest is the CPU with the fewest tasks, one of those by chance.
func (h *queueHost) shortest() int {
	var all []int
	for i := range h.cpus {
		if len(all) > 0 && h.cpus[i].tasks < h.cpus[all[0]].tasks {
			all = all[:0]
		}
		if len(all) == 0 || h.cpus[i].tasks == h.cpus[all[0]].tasks {
			all = append(all, i)
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return all[len(all)-1-h.r.IntN(len(all))]
}

func (c *queueCPU) add(t *queueTask, slice time.Duration) {
	c.tasks++
	if !detect.InNoGroup(t.group.name) {
		for _, s := range c.shares {
			if s.group != t.group {
				continue
			}
			if len(s.tasks) == 0 {
				s.ran = min(max(s.ran, c.least()), c.least()+2*float64(slice))
			}
			s.tasks = append(s.tasks, t)
			return
		}
	}
	c.shares = append(c.shares, &queueShare{t.group, []*queueTask{t}, c.least()})
}

// least is what the share has run that has run least of those with tasks. It never falls: who slept has
// nothing saved up.
func (c *queueCPU) least() float64 {
	least := math.Inf(1)
	for _, s := range c.shares {
		if len(s.tasks) > 0 {
			least = min(least, s.ran)
		}
	}
	if !math.IsInf(least, 1) {
		c.floor = max(c.floor, least)
	}
	return c.floor
}

// weight is that of each of its tasks.
func (g *queueGroup) weight() float64 {
	if detect.InNoGroup(g.name) {
		return 1
	}
	return 1 / float64(g.queued)
}

// take removes the task that has waited longest, of a group or of all (nil), those that stay where they are or
// not; nil where none waits.
func (c *queueCPU) take(g *queueGroup, staying bool) (t *queueTask) {
	var of *queueShare
	for _, s := range c.shares {
		first := 0
		if s == c.on {
			first = 1
		}
		if len(s.tasks) > first && (g == nil && (staying || !s.group.stays) || s.group == g) && (t == nil || s.tasks[first].since < t.since) {
			t, of = s.tasks[first], s
		}
	}
	if t != nil {
		at := slices.Index(of.tasks, t)
		of.tasks = slices.Delete(of.tasks, at, at+1)
		c.removed(of)
	}
	return t
}

// removed forgets the share of a task in no group.
func (c *queueCPU) removed(s *queueShare) {
	c.tasks--
	if len(s.tasks) == 0 && detect.InNoGroup(s.group.name) {
		c.shares = slices.DeleteFunc(c.shares, func(o *queueShare) bool { return o == s })
	}
}

// pick gives the CPU to whom has run least for its weight.
func (h *queueHost) pick(c *queueCPU) {
	c.on, c.ran = nil, 0
	c.least()
	for _, s := range c.shares {
		if len(s.tasks) > 0 && (c.on == nil || s.ran < c.on.ran) {
			c.on = s
		}
	}
	if c.on != nil && c.on.group.name == simVictim {
		h.waited = append(h.waited, h.now-c.on.tasks[0].since)
	}
}

// step goes on by a tickStep.
func (h *queueHost) step() {
	h.now += tickStep
	for _, g := range h.groups {
		if g.request == 0 {
			if !g.begun && g.tasks > 0 && h.now >= g.start {
				g.begun = true
				g.wakes = make([]time.Duration, g.tasks)
				for i := range g.tasks {
					h.add(&queueTask{group: g, left: math.MaxInt64, paced: i})
				}
			}
			for i, at := range g.wakes {
				if at > 0 && h.now >= at {
					g.wakes[i] = 0
					h.add(&queueTask{group: g, left: math.MaxInt64, paced: i})
				}
			}
			continue
		}
		if h.r.Float64() < float64(len(h.cpus))*g.work(h.now)*float64(tickStep)/float64(g.request) {
			h.ask(g)
		}
	}
	if h.now%balanceEvery == 0 {
		h.balance()
	}
	for i := range h.cpus {
		c := &h.cpus[i]
		if c.on == nil && c.tasks == 0 { // an idle CPU takes what waits beside the longest queue
			c.idle += tickStep
			if t := h.longest(i).take(nil, c.idle >= idleLooks); t != nil {
				c.add(t, h.slice)
			}
		} else {
			c.idle = 0
		}
		if c.on == nil {
			h.pick(c)
		}
		if c.on != nil {
			h.run(c)
			continue
		}
		for _, g := range h.groups {
			if g.fills && h.now >= g.start {
				c.busy += tickStep
				g.used += tickStep
			}
		}
	}
}

// longest is the CPU with the most tasks, but for one.
func (h *queueHost) longest(but int) *queueCPU {
	var longest *queueCPU
	for i := range h.cpus {
		if c := &h.cpus[i]; i != but && (longest == nil || c.tasks > longest.tasks) {
			longest = c
		}
	}
	return longest
}

// balance spreads the tasks of a group that never end: in the kernel, by the load of some time.
func (h *queueHost) balance() {
	for _, g := range h.groups {
		for i := range h.cpus {
			if g.request > 0 {
				continue
			}
			c := &h.cpus[i]
			for j := range h.cpus {
				if o := &h.cpus[j]; len(c.of(g)) > len(o.of(g))+1 {
					o.add(c.take(g, true), h.slice)
				}
			}
		}
	}
}

// of are the tasks of a group on the CPU.
func (c *queueCPU) of(g *queueGroup) (all []*queueTask) {
	for _, s := range c.shares {
		if s.group == g {
			all = append(all, s.tasks...)
		}
	}
	return all
}

// run lets the one who has the CPU run for a tickStep.
func (h *queueHost) run(c *queueCPU) {
	s, on := c.on, c.on.tasks[0]
	if g := s.group; g.every > 0 {
		period := h.now - g.start - g.every*time.Duration(on.paced)/time.Duration(g.tasks)
		if over := (period%g.every + g.every) % g.every; over+tickStep >= g.each {
			g.wakes[on.paced] = h.now - over + g.every
			on.left = 0
		}
	}
	s.ran += float64(tickStep) / (float64(len(s.tasks)) * s.group.weight())
	s.group.used += tickStep
	on.left -= tickStep
	c.ran += tickStep
	c.busy += tickStep
	for _, o := range c.shares {
		if o.group.name == simVictim {
			n := len(o.tasks)
			if o == s {
				n--
			}
			h.queued += time.Duration(n) * tickStep
			h.by[s.group.name] += time.Duration(n) * tickStep
		}
	}
	if on.left <= 0 && s.group.backlog > 0 { // a worker goes on with the next one
		s.group.backlog--
		on.left = h.length(s.group)
	}
	switch {
	case on.left <= 0:
		s.tasks = s.tasks[1:]
		s.group.queued--
		if s.group.idle != nil {
			s.group.idle = append(s.group.idle, slices.IndexFunc(h.cpus, func(o queueCPU) bool { return o.on == s }))
		}
		c.removed(s)
		h.pick(c)
	case c.ran >= h.slice && c.tasks > 1:
		on.since = h.now
		s.tasks = append(s.tasks[1:], on)
		h.pick(c)
	}
}

func (h *queueHost) samples() []watch.Sample {
	var all []watch.Sample
	at := watch.Time(h.now)
	add := func(s watch.Subject, q watch.Quantity, v time.Duration, by string) {
		all = append(all, watch.Sample{Time: at, Subject: s, Quantity: q, Value: v.Seconds(), By: by})
	}
	busy := time.Duration(0)
	for _, g := range h.groups {
		busy += g.used
	}
	add(watch.Subject{}, watch.Steal, 0, "")
	add(watch.Subject{}, watch.CPUTime, busy, "")
	for i := range h.cpus { // in ticks of the kernel's statistics
		add(watch.Subject{Part: watch.Part{Kind: watch.CPU, ID: i}}, watch.CPUTime, h.cpus[i].busy.Truncate(10*time.Millisecond), "")
	}
	v := watch.Subject{Scope: watch.Group, Name: simVictim}
	add(v, watch.CPUTime, h.groups[0].used, "")
	add(v, watch.CPUPeriods, 0, "")
	add(v, watch.CPUThrottledPeriods, 0, "")
	add(v, watch.CPUThrottled, 0, "")
	add(v, watch.CPUWait, h.queued, "")
	for _, g := range h.groups {
		add(v, watch.QueuedBy, h.by[g.name], g.name)
	}
	for _, q := range []watch.Quantity{watch.QueuedKernel, watch.QueuedIdle, watch.QueuedThrottled} {
		add(v, q, 0, "")
	}
	add(v, watch.Queued, h.queued, "")
	if slices.Sort(h.waited); len(h.waited) > 0 {
		add(v, watch.QueueP99, h.waited[len(h.waited)*99/100], "")
	}
	h.waited = h.waited[:0]
	for _, g := range h.suspects() {
		add(watch.Subject{Scope: watch.Group, Name: g.name}, watch.CPUTime, g.used, "")
	}
	return all
}

// suspects are the groups whose CPU time is read with a short window: the two for which the victim waited longest in
// it, and those of the last 0.4 s.
func (h *queueHost) suspects() (all []*queueGroup) {
	waited := func(g *queueGroup) time.Duration { return h.by[g.name] - h.before[g.name] }
	longest := slices.Clone(h.groups[1:])
	slices.SortStableFunc(longest, func(a, b *queueGroup) int { return cmp.Compare(waited(b), waited(a)) })
	for i, g := range longest {
		if i < 2 && waited(g) > 0 && !detect.InNoGroup(g.name) {
			h.read[g.name] = h.now + 400*time.Millisecond
		}
	}
	h.before = maps.Clone(h.by)
	for _, g := range h.groups {
		if h.now <= h.read[g.name] {
			all = append(all, g)
		}
	}
	return all
}

// uses are what the slow windows see of groups: their CPU time.
func (h *queueHost) uses() (all []watch.Sample) {
	for _, g := range h.groups {
		all = append(all, watch.Sample{Time: watch.Time(h.now), Subject: watch.Subject{Scope: watch.Group, Name: g.name}, Quantity: watch.CPUTime, Value: g.used.Seconds()})
	}
	return all
}
