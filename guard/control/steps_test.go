package control_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// paper is a host on paper: a symptom per victim, which remedies active lower by
// a factor each, and a finding as long as it is strong.
type paper struct {
	world
	cases []complaint
	base  float64 // the strength of symptoms while nothing is active; 0 is 4
}

type complaint struct {
	victim, suspect string
	resource        detect.Resource
	left            map[detect.Remedy]float64
}

func (p *paper) Symptom(group string, r detect.Resource) (detect.Symptom, bool) {
	i := slices.IndexFunc(p.cases, func(c complaint) bool { return c.victim == group && c.resource == r })
	if i < 0 {
		return detect.Symptom{}, false
	}
	c := p.cases[i]
	strength := p.base
	if strength == 0 {
		strength = 4
	}
	for remedy, left := range c.left {
		for k := range p.force {
			if strings.HasSuffix(k, " "+remedy.String()) {
				strength *= left
			}
		}
	}
	return detect.Symptom{Strength: strength}, true
}

// RunDelay is not known on paper.
func (p *paper) RunDelay(string, string, int) (detect.RunDelay, bool) {
	return detect.RunDelay{}, false
}

func (p *paper) findings() []detect.Finding {
	var all []detect.Finding
	for _, c := range p.cases {
		if s, _ := p.Symptom(c.victim, c.resource); s.Strength >= 1 {
			remedies := detect.RemediesFor(c.resource, c.suspect == "")
			if c.suspect == detect.Outside {
				remedies = append(remedies, detect.RemediesOutside(c.resource)...) // the others must not be taken
			}
			all = append(all, detect.Finding{
				Victim: c.victim, Suspect: c.suspect, Resource: c.resource, Confidence: 0.8, Remedies: remedies,
			})
		}
	}
	return all
}

func (p *paper) run(c control.Config, windows int) []control.Event {
	p.t.Helper()
	c.Mode = max(c.Mode, control.Preview)
	loop, err := control.New(c, p)
	if err != nil {
		p.t.Fatal(err)
	}
	var events []control.Event
	for range windows {
		time.Sleep(time.Second)
		h := p.host()
		h.Use = float64(p.cpus)
		events = append(events, loop.Step(context.Background(), control.Input{Findings: p.findings(), Symptoms: p, Workloads: p.workloads, Host: h})...)
	}
	return events
}

func onPaper(t *testing.T, cpus int, cases ...complaint) *paper {
	p := &paper{world: *newWorld(t, cpus, time.Second), cases: cases}
	p.workloads = []control.Workload{
		{Group: victim, Class: place.LS, CPUs: cpuset.MustParse("0-3")},
		{Group: "pods/batch", Class: place.BE, Use: 8, Memory: 1 << 30},
	}
	return p
}

// Why the guard does not carry out what is advice, or what the host does not have.
const (
	noExclusive = "it takes CPUs away from every other group: place the victim with class LSE"
	noWays      = "caches are not divided here"
	noBandwidth = "memory bandwidth is not limited here"
)

// Each resource has its remedies in order, further steps of one before the next,
// and what the host lacks is named.
func TestRungs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		resource detect.Resource
		left     map[detect.Remedy]float64
		missing  map[detect.Remedy]string
		want     string
		skipped  []control.Skip // of the last event that tries something, or says that nothing may be done
	}{
		{
			detect.CPU,
			map[detect.Remedy]float64{detect.Weight: 0.7, detect.HeadroomCap: 0.7, detect.ShrinkCPUs: 0.7}, nil,
			`applied weight pods/batch: idle
kept weight pods/batch: idle
applied headroom_cap pods/batch: 4.80 CPUs
kept headroom_cap pods/batch: 4.80 CPUs
applied headroom_cap pods/batch: 2.40 CPUs
reverted headroom_cap pods/batch: 2.40 CPUs
applied shrink_cpus pods/batch: CPUs 4-15
kept shrink_cpus pods/batch: CPUs 4-15
applied shrink_cpus pods/batch: CPUs 10-15
reverted shrink_cpus pods/batch: CPUs 10-15
gave_up
`,
			[]control.Skip{
				{detect.Weight, "it goes no further"}, {detect.HeadroomCap, "it was tried and did not help"},
				{detect.ShrinkCPUs, "it was tried and did not help"}, {detect.ExclusiveCPUs, noExclusive},
			},
		},
		{
			detect.LLC, map[detect.Remedy]float64{detect.ShrinkCPUs: 0.2}, nil,
			"applied shrink_cpus pods/batch: CPUs 4-15\nkept shrink_cpus pods/batch: CPUs 4-15\n",
			[]control.Skip{{detect.CacheWays, noWays}},
		},
		{
			detect.MemoryBandwidth, map[detect.Remedy]float64{detect.ShrinkCPUs: 0.3}, map[detect.Remedy]string{detect.ShrinkCPUs: "no cpuset"},
			"refused\n", []control.Skip{{detect.BandwidthCap, noBandwidth}, {detect.ShrinkCPUs, "no cpuset"}},
		},
		{detect.SMT, nil, nil, "", nil},
		{
			detect.Memory, map[detect.Remedy]float64{detect.MemoryHigh: 0.2}, nil,
			"applied memory_high pods/batch: high 921 MiB\nkept memory_high pods/batch: high 921 MiB\n", nil,
		},
		{
			detect.IO, map[detect.Remedy]float64{detect.IOWeight: 0.2}, nil,
			"applied io_weight pods/batch: weight 10\nkept io_weight pods/batch: weight 10\n", nil,
		},
		{detect.NUMA, nil, nil, "", nil},
		{detect.Frequency, nil, nil, "", nil},
		{detect.Hypervisor, nil, nil, "", nil},
		{detect.OwnLoad, nil, nil, "", nil},
	} {
		t.Run(c.resource.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := onPaper(t, 16, complaint{victim, "pods/batch", c.resource, c.left})
				p.missing = c.missing
				events := p.run(enforce(), 30)
				want(t, events, c.want)
				var skipped []control.Skip
				for _, e := range events {
					switch e.Outcome {
					case control.Applied, control.GaveUp, control.Refused:
						skipped = e.Skipped
					}
				}
				if diff := cmp.Diff(c.skipped, skipped); diff != "" {
					t.Errorf("skipped (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// What has been made stronger step by step is restored a tenth of the node at a
// time.
func TestGrowsSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 32, complaint{victim, "pods/batch", detect.MemoryBandwidth, map[detect.Remedy]float64{detect.ShrinkCPUs: 0.2}})
		p.workloads[0].CPUs = cpuset.Set{}
		last, events := 0, p.run(enforce(), 200)
		for _, a := range p.applied {
			n := a.Limits.CPUs.Len()
			if last > 0 && n > last+4 {
				t.Errorf("grows from %d to %d CPUs of 32 at once", last, n)
			}
			last = n
		}
		if len(p.applied) < 4 {
			t.Errorf("only %v", told(events))
		}
	})
}

// Who may not be acted on is reported, with the reason.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		suspect string
		change  func(p *paper, c *control.Config)
		outcome control.Outcome
		reason  string // of the first step
	}{
		{"LS", "pods/batch", func(p *paper, _ *control.Config) { p.workloads[1].Class = place.LS }, control.Refused, "is LS, not BE"},
		{"LS, weighed", "pods/batch", func(p *paper, c *control.Config) { p.workloads[1].Class, c.Weigh = place.LS, true }, control.Applied, ""},
		{"LSR, weighed", "pods/batch", func(p *paper, c *control.Config) { p.workloads[1].Class, c.Weigh = place.LSR, true }, control.Refused, "is LSR, not BE"},
		{"LS, allowed", "pods/batch", func(p *paper, c *control.Config) { p.workloads[1].Class, c.Allowed = place.LS, []string{"pods/b*"} }, control.Applied, ""},
		{"protected by the caller", "pods/batch", func(p *paper, _ *control.Config) { p.workloads[1].Protected = true }, control.Refused, "is protected"},
		{"protected by a glob", "pods/batch", func(_ *paper, c *control.Config) { c.Protected = []string{"pods/b*"} }, control.Refused, `protected by "pods/b*"`},
		{"protected around", "pods/batch", func(_ *paper, c *control.Config) { c.Protected = []string{"pods"} }, control.Refused, `protected by "pods"`},
		{"protected below", "pods/batch", func(_ *paper, c *control.Config) { c.Protected = []string{"pods/batch/db"} }, control.Refused, "protected by"},
		{"allowed and protected", "pods/batch", func(_ *paper, c *control.Config) {
			c.Allowed, c.Protected = []string{"*"}, []string{"pods/batch"}
		}, control.Refused, "protected by"},
		{"our own", "pods/batch", func(_ *paper, c *control.Config) { c.Own = "pods/batch/berth" }, control.Refused, "never acted on"},
		{"init.scope", "init.scope", func(p *paper, _ *control.Config) { p.workloads[1].Group = "init.scope" }, control.Refused, "never acted on"},
		{"the root group", "/", func(*paper, *control.Config) {}, control.Refused, "the root group /"},
		{"unknown", "pods/other", func(*paper, *control.Config) {}, control.Refused, "not a known workload"},
		{"the suspect around the victim", "pods", func(p *paper, _ *control.Config) { p.workloads[1].Group = "pods" }, control.Refused, "within each other"},
		{"a roof that is not known to be BE", "other/batch", func(p *paper, _ *control.Config) { p.workloads[1].Group = "other/batch" }, control.Applied, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := onPaper(t, 16, complaint{victim, c.suspect, detect.CPU, nil})
				config := enforce()
				config.Mode = control.Preview // what it would do is enough, and nothing else follows
				c.change(p, &config)
				p.lenient = true
				events := p.run(config, 200)
				outcome := c.outcome
				if outcome == control.Applied {
					outcome = control.WouldApply
				}
				if len(events) != 1 || events[0].Outcome != outcome {
					t.Fatalf("events %v, want one: %v", events, outcome)
				}
				if c.reason != "" && (len(events[0].Skipped) == 0 || !strings.Contains(events[0].Skipped[0].Reason, c.reason)) {
					t.Errorf("skipped %v, want the first because it %q", events[0].Skipped, c.reason)
				}
				if a := events[0].Action; c.name == "LS, weighed" && (a.Limits.Weight != 25 || a.Limits.Idle == cgroup.On) {
					t.Errorf("%v, want weight 25", a)
				}
			})
		})
	}
}

// Where nobody is named nobody is acted on, though something would help.
func TestNobodyNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16, complaint{victim, "", detect.CPU, nil})
		want(t, p.run(enforce(), 10), "")
	})
}

// In mode preview, what would be active is over once nothing is found for the time of the hold.
func TestPreviewForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16, complaint{victim, "pods/batch", detect.CPU, nil})
		loop, err := control.New(control.Config{Mode: control.Preview}, p)
		if err != nil {
			t.Fatal(err)
		}
		var events []control.Event
		for i := range 60 {
			if i == 5 {
				p.base = 0.1
			}
			time.Sleep(time.Second)
			in := control.Input{Findings: p.findings(), Symptoms: p, Workloads: p.workloads, Host: p.host()}
			events = append(events, loop.Step(t.Context(), in)...)
		}
		want(t, events, "would_apply weight pods/batch: idle\nrelaxed weight pods/batch: idle\n")
		if held := events[len(events)-1].Time.Sub(events[0].Time); held < 33*time.Second || held > 36*time.Second {
			t.Errorf("over after %v, want 30 s after the last finding", held)
		}
	})
}

// A remedy is kept only if the victim is better off.
func TestNoRelief(t *testing.T) {
	t.Parallel()
	for _, left := range []float64{1, 1.02, 1.8} {
		synctest.Test(t, func(t *testing.T) {
			p := onPaper(t, 16, complaint{victim, "pods/batch", detect.CPU, map[detect.Remedy]float64{detect.Weight: left}})
			events := p.run(enforce(), 10)
			then := control.Undecided // the group keeps what nobody else wants
			if left > 1.5 {
				then = control.Reverted
			}
			if len(events) < 2 || events[0].Outcome != control.Applied || events[1].Outcome != then || events[1].Effect == nil {
				t.Fatalf("symptom ×%v: %s, want applied, %v", left, told(events), then)
			}
			if e := events[1].Effect; e.Better != 0 || e.After != 4*left {
				t.Errorf("symptom ×%v: effect %+v, want no better window and a strength of %v", left, *e, 4*left)
			}
		})
	}
}

// Idle acts between the groups that diverge, if those above the suspect hold
// nothing but best-effort work.
func TestActsWhereTheyDiverge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		roof []control.Workload
		want string
	}{
		{[]control.Workload{{Group: "be", Class: place.BE}}, "would_apply weight be: idle\n"},
		{[]control.Workload{{Group: "be", Class: place.BE, Limits: cgroup.Limits{Idle: cgroup.On}}}, "would_apply headroom_cap be/jobs/batch: 4.80 CPUs\n"},
		{[]control.Workload{{Group: "be", Class: place.BE}, {Group: "be/api", Class: place.LS}}, "would_apply headroom_cap be/jobs/batch: 4.80 CPUs\n"},
		{[]control.Workload{{Group: "be", Class: place.BE}, {Group: "be/db", Class: place.BE, Protected: true}}, "would_apply headroom_cap be/jobs/batch: 4.80 CPUs\n"},
		{nil, "would_apply headroom_cap be/jobs/batch: 4.80 CPUs\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := onPaper(t, 16, complaint{victim, "be/jobs/batch", detect.CPU, nil})
			p.workloads[1].Group = "be/jobs/batch"
			p.workloads = append(p.workloads, c.roof...)
			want(t, p.run(control.Config{}, 10), c.want)
		})
	}
}

// So does the weight of I/O: among groups within the suspect's side it would change
// nothing for the victim.
func TestIOWeightActsWhereTheyDiverge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16, complaint{victim, "be/jobs/batch", detect.IO, nil})
		p.workloads[1].Group = "be/jobs/batch"
		p.workloads = append(p.workloads, control.Workload{Group: "be", Class: place.BE})
		want(t, p.run(control.Config{}, 10), "would_apply io_weight be: weight 10\n")
	})
}

// Where a weight does not help, the bytes of the suspect are halved on the disks that both
// use, and halved again; once it goes no further, nothing is left to try.
func TestIOThrottle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16, complaint{victim, "pods/batch", detect.IO, map[detect.Remedy]float64{detect.IOThrottle: 0.2}})
		for i := range p.workloads {
			p.workloads[i].Devices = []detect.DeviceUse{{Device: "8:0", Read: 64 << 20, Written: 8 << 20}, {Device: fmt.Sprintf("9:%d", i), Read: 1 << 30}}
			p.workloads[i].Limits.IOMax = []cgroup.IOMax{{Device: "8:0", WriteBPS: 2 << 20}}
		}
		events := p.run(enforce(), 20)
		want(t, events, `applied io_weight pods/batch: weight 10
reverted io_weight pods/batch: weight 10
applied io_throttle pods/batch: reads 32.0 MiB/s on 8:0
kept io_throttle pods/batch: reads 32.0 MiB/s on 8:0
`)
	})
}

func TestIOThrottleProposes(t *testing.T) {
	t.Parallel()
	use := func(device string, read, written float64) []detect.DeviceUse {
		return []detect.DeviceUse{{Device: device, Read: read, Written: written}}
	}
	limit := func(read, write int64) []cgroup.IOMax {
		return []cgroup.IOMax{{Device: "8:0", ReadBPS: read, WriteBPS: write}}
	}
	const mib = 1 << 20
	for what, c := range map[string]struct {
		victim, suspect []detect.DeviceUse
		own, held, to   []cgroup.IOMax // to nil is none
	}{
		"half":              {use("8:0", 1, 0), use("8:0", 10*mib, 20*mib), nil, nil, limit(5*mib, 10*mib)},
		"least":             {use("8:0", 1, 0), use("8:0", 1.5*mib, 0), nil, nil, limit(mib, 0)},
		"little":            {use("8:0", 1, 0), use("8:0", mib, 5), nil, nil, nil},
		"another disk":      {use("8:16", 1, 0), use("8:0", 10*mib, 0), nil, nil, nil},
		"unknown":           {nil, nil, nil, nil, nil},
		"own limit lower":   {use("8:0", 1, 0), use("8:0", 10*mib, 20*mib), limit(5*mib, 0), nil, limit(0, 10*mib)},
		"further":           {nil, nil, nil, limit(5*mib, 0), limit(2.5*mib, 0)},
		"down to the least": {nil, nil, nil, limit(1.5*mib, mib), limit(mib, mib)},
		"furthest":          {nil, nil, nil, limit(mib, 0), nil},
	} {
		in := control.Case{Victim: control.Workload{Devices: c.victim}, Group: control.Workload{Devices: c.suspect, Limits: cgroup.Limits{IOMax: c.own}}}
		if c.held != nil {
			in.Held = &cgroup.Limits{IOMax: c.held}
		}
		for _, r := range control.Remedies() {
			if r.Name != detect.IOThrottle {
				continue
			}
			to, reason := r.Propose(&in)
			if (reason == "") != (c.to != nil) || reason == "" && !slices.Equal(to.IOMax, c.to) {
				t.Errorf("%s: %+v, %q; want %+v", what, to.IOMax, reason, c.to)
			}
		}
	}
}

// Two victims of one suspect: one change at a time, and what the first has is not
// done again.
func TestTwoVictims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		left := map[detect.Remedy]float64{detect.Weight: 0.1}
		p := onPaper(t, 16, complaint{victim, "pods/batch", detect.CPU, left},
			complaint{"pods/db", "pods/batch", detect.CPU, map[detect.Remedy]float64{detect.HeadroomCap: 0.1}})
		p.workloads = append(p.workloads, control.Workload{Group: "pods/db", Class: place.LS})
		events := p.run(enforce(), 12)
		want(t, events, `applied weight pods/batch: idle
kept weight pods/batch: idle
applied headroom_cap pods/batch: 4.80 CPUs
kept headroom_cap pods/batch: 4.80 CPUs
`)
		if s := events[2].Skipped; events[2].Victim != "pods/db" || len(s) != 1 || !strings.Contains(s[0].Reason, "active already") {
			t.Errorf("%v, want it for pods/db, and idle skipped", events[2])
		}
	})
}

// In one cache domain there is one change at a time; in two there may be two.
func TestOneChangePerCacheDomain(t *testing.T) {
	t.Parallel()
	m := fakekernel.Short(t, "2s1n8c1t")
	for _, c := range []struct {
		second string
		atOnce int
	}{{"4-7", 1}, {"8-11", 2}} {
		synctest.Test(t, func(t *testing.T) {
			p := onPaper(t, 16, complaint{victim, "pods/batch", detect.LLC, nil}, complaint{"pods/db", "pods/other", detect.MemoryBandwidth, nil})
			p.workloads = append(p.workloads, control.Workload{Group: "pods/db", Class: place.LS, CPUs: cpuset.MustParse(c.second)},
				control.Workload{Group: "pods/other", Class: place.BE})
			config := enforce()
			config.Machine = m
			if events := p.run(config, 1); len(events) != c.atOnce {
				t.Errorf("victims on 0-3 and %s: %v at once, want %d", c.second, told(events), c.atOnce)
			}
		})
	}
}

func TestSuppressionFormula(t *testing.T) {
	t.Parallel()
	s := control.Suppression{Threshold: 0.65, Reserve: 1}
	for _, c := range []struct {
		cpus           int
		others, system float64
		limit          float64
	}{
		{100, 30, 0.5, 34}, // 65 - 30 - the reserve
		{100, 30, 5, 30},   // the system uses more than that
		{16, 0, 0, 9.4},
		{16, 20, 0, -10.6},
	} {
		if got := s.Limit(c.cpus, c.others, c.system); math.Abs(got-c.limit) > 1e-9 {
			t.Errorf("Limit(%d, %v, %v) = %v, want %v", c.cpus, c.others, c.system, got, c.limit)
		}
	}
	for _, c := range []struct{ limit, present, want float64 }{
		{34, 0, 34},      // at first at once
		{34, 50, 34},     // down at once
		{34, 10, 20},     // up by a tenth
		{34, 33.5, 33.5}, // within 1 %
		{-5, 20, 5},      // the floor
	} {
		if got := s.Quota(c.limit, c.present, 100); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("Quota(%v, %v) = %v, want %v", c.limit, c.present, got, c.want)
		}
	}
	for _, c := range []struct {
		limit               float64
		present, cpus, want int
	}{
		{33.1, 0, 100, 34}, {33.1, 50, 100, 34}, {33.1, 10, 100, 20}, {-5, 20, 100, 5}, {200, 95, 100, 100},
		{0, 4, 16, 2}, {0, 2, 2, 1}, {0, 1, 1, 1}, {5, 2, 16, 4}, // 5, but by two at most
	} {
		if got := s.CPUs(c.limit, c.present, c.cpus); got != c.want {
			t.Errorf("CPUs(%v, %d, %d) = %d, want %d", c.limit, c.present, c.cpus, got, c.want)
		}
	}
}

// Which CPUs best-effort work gets, on two nodes of four cores of two threads: nodes 0-7 and
// 8-15, cores 0-1, 2-3 and so on. The split is Koordinator's: of n CPUs n × LSR ÷ (LSR + LS)
// are LSR's, rounded down; where there are neither it does not divide by zero.
func TestSuppressionPick(t *testing.T) {
	t.Parallel()
	m := &machine.Machine{Online: cpuset.MustParse("0-15")}
	for i, cpus := range []string{"0-7", "8-15"} {
		m.Domains = append(m.Domains, machine.Domain{Kind: machine.Node, ID: i, KernelID: i, CPUs: cpuset.MustParse(cpus)})
	}
	for i := range 8 {
		m.Domains = append(m.Domains, machine.Domain{Kind: machine.Core, ID: i, KernelID: i, CPUs: cpuset.MustOf(2*i, 2*i+1)})
	}
	var s control.Suppression
	for _, c := range []struct {
		ls, lsr string
		n       int
		want    string
	}{
		{"0-15", "", 2, "6-7"}, {"0-15", "", 4, "6-7,14-15"}, {"0-15", "", 6, "4-7,14-15"}, {"0-15", "", 5, "4,6-7,14-15"},
		{"0-15", "", 16, "0-15"}, {"0-15", "", 99, "0-15"}, {"0-15", "", 0, ""}, {"", "", 4, ""},
		{"0-7", "8-15", 4, "6-7,14-15"}, {"0-7", "8-15", 5, "4,6-7,14-15"}, {"0-3", "4-15", 4, "2,6-7,14"}, {"", "8-15", 3, "12,14-15"},
		{"0-1,8-15", "", 8, "0-1,10-15"}, // a node that has no more
		{"1,3,5,7", "", 2, "5,7"},        // no whole core
	} {
		got := s.Pick(m, cpuset.MustParse(c.ls), cpuset.MustParse(c.lsr), c.n)
		if got.String() != c.want {
			t.Errorf("%d of %q and LSR's %q: %s, want %s", c.n, c.ls, c.lsr, got, c.want)
		}
		if few := s.Pick(m, cpuset.MustParse(c.ls), cpuset.MustParse(c.lsr), c.n-1); !got.Contains(few) && c.n > 0 {
			t.Errorf("%d of %q are %s, one less are %s", c.n, c.ls, got, few)
		}
		if got := s.Pick(nil, cpuset.MustParse(c.ls), cpuset.MustParse(c.lsr), c.n); got.Len() != min(c.n, cpuset.MustParse(c.ls).Len()+cpuset.MustParse(c.lsr).Len()) {
			t.Errorf("without a machine: %s", got)
		}
	}
}

func TestSuppression(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16)
		p.workloads = []control.Workload{
			{Group: "api", Class: place.LS, Use: 6}, {Group: "be", Class: place.BE, Use: 5}, {Group: "be/batch", Class: place.BE, Use: 5},
		}
		p.neighbours = []neighbour{{use: 15}} // the host uses all 16
		c := enforce()
		c.Suppression = &control.Suppression{Group: "be", ByQuota: true}
		loop, err := control.New(c, p)
		if err != nil {
			t.Fatal(err)
		}
		step := func(others float64) string {
			t.Helper()
			time.Sleep(time.Second)
			p.workloads[0].Use = others
			h := p.host()
			h.Use = others + 5 + 1 // the system uses 1
			return told(loop.Step(context.Background(), control.Input{Workloads: p.workloads, Host: h}))
		}
		for _, s := range []struct {
			others float64
			want   string
		}{
			{6, "applied headroom_cap be: 3.40 CPUs\n"}, // 10.4 - 6 - 1
			{6, ""},
			{9, "applied headroom_cap be: 0.80 CPUs\n"}, // the floor
			{2, "applied headroom_cap be: 2.40 CPUs\n"}, // up by a tenth
			{2, "applied headroom_cap be: 4.00 CPUs\n"},
			{math.NaN(), ""}, {math.NaN(), ""}, {math.NaN(), ""},
			{math.NaN(), "reverted headroom_cap be: 4.00 CPUs\n"},
		} {
			if got := step(s.others); got != s.want {
				t.Errorf("others use %v: %q, want %q", s.others, got, s.want)
			}
		}
	})
}

func TestEventJSON(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := at100(t, hog("pods/batch", 2))
		for _, e := range w.runner(enforce()).run(onset + 5*time.Second) {
			text, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range []string{`"mode":"enforce"`, `"resource":"cpu"`, `"remedy":"weight"`, `"idle":"on"`} {
				if !strings.Contains(string(text), part) {
					t.Errorf("%s lacks %s", text, part)
				}
			}
			var back control.Event
			if err := json.Unmarshal(text, &back); err != nil {
				t.Fatal(err)
			}
			if back.String() != e.String() || !back.Time.Equal(e.Time) {
				t.Errorf("%v came back as %v", e, back)
			}
		}
		for _, bad := range []string{`{"outcome":"nonsense"}`, `{"mode":""}`, `{"resource":"x"}`} {
			if json.Unmarshal([]byte(bad), new(control.Event)) == nil {
				t.Errorf("%s is read", bad)
			}
		}
		if _, err := control.Outcome(99).MarshalText(); err == nil {
			t.Error("an outcome that there is not is written")
		}
	})
}

func TestConfigRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []control.Config{
		{Mode: 9}, {Window: -1}, {Hold: -1}, {PerMinute: -1}, {Burst: -1},
		{Protected: []string{"["}}, {Allowed: []string{"["}}, {Machine: &machine.Machine{}},
		{Suppression: &control.Suppression{}},
		{Suppression: &control.Suppression{Group: "be", Threshold: 1.1}},
		{Suppression: &control.Suppression{Group: "be", Threshold: math.NaN()}},
		{Suppression: &control.Suppression{Group: "be", Reserve: -1}},
		{Mode: control.Enforce}, // without an Actuator
	} {
		if _, err := control.New(c, nil); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	if _, err := control.New(control.Config{}, nil); err != nil {
		t.Errorf("the zero configuration: %v", err)
	}
}

// What explains the symptom otherwise keeps the neighbour from being acted on,
// whatever another finding says.
func TestExplainedOtherwise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ by, of detect.Resource }{
		{detect.OwnLimit, detect.CPU}, {detect.OwnLoad, detect.CPU}, {detect.OwnLimit, detect.LLC}, {detect.Hypervisor, detect.MemoryBandwidth},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := onPaper(t, 16, complaint{victim, "", c.by, nil}, complaint{victim, "pods/batch", c.of, nil})
			for _, e := range p.run(enforce(), 10) {
				if e.Action != nil {
					t.Errorf("%v beside a finding of %v", e, c.by)
				}
			}
		})
	}
}

// While one change cannot be reverted, there is no other to the same group.
func TestNothingOnTopOfWhatIsOwed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16, complaint{victim, "pods/batch", detect.CPU, nil})
		p.fail = func(_ int, op string) error {
			if op == "revert" {
				return errRefused
			}
			return nil
		}
		if events := p.run(enforce(), 30); len(p.applied) != 2 { // the first stays on probation
			t.Errorf("applied %v, want two\n%s", p.applied, told(events))
		}
	})
}

// A remedy that takes its time is not judged before.
func TestWaitsForSlowRemedies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		resource detect.Resource
		remedy   detect.Remedy
		after    time.Duration
	}{
		{detect.CPU, detect.Weight, 3 * time.Second}, {detect.IO, detect.IOWeight, 4 * time.Second}, {detect.Memory, detect.MemoryHigh, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			events := onPaper(t, 16, complaint{victim, "pods/batch", c.resource, map[detect.Remedy]float64{c.remedy: 0.1}}).run(enforce(), 8)
			if len(events) != 2 || events[1].Time.Sub(events[0].Time) != c.after {
				t.Errorf("%v: %v, want it kept after %v", c.remedy, events, c.after)
			}
		})
	}
}

// Beside a hog that yields, a group that uses little is left alone, whatever the victim waits for it; another hog
// is not, and neither is the same group where it is alone.
func TestSparesWhoUsesLittle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		beside bool
		use    float64
		acted  bool
	}{{"little", true, 0.4, false}, {"half of the victim's", true, 0.6, true}, {"a hog", true, 2, true}, {"little, alone", false, 0.4, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				other := hog("pods/mail", 0.8)
				other.use, other.on = c.use, from(time.Minute)
				neighbours := []neighbour{other}
				if c.beside {
					batch := hog("pods/batch", 2)
					batch.on = from(time.Minute)
					neighbours = append(neighbours, batch)
				}
				w := newWorld(t, 4, 100*time.Millisecond, neighbours...)
				r := w.runner(enforce())
				r.run(time.Minute)
				events := told(r.run(10 * time.Second))
				if c.beside && !strings.Contains(events, "kept weight pods/batch: idle") {
					t.Fatalf("%s, want batch set idle", events)
				}
				if strings.Contains(events, "applied weight pods/mail") != c.acted {
					t.Errorf("%s, want mail acted on: %v", events, c.acted)
				}
				if n := strings.Count(events, "spared\n"); (n == 1) == c.acted || n > 1 {
					t.Errorf("%s, told %d times that mail is spared", events, n)
				}
			})
		})
	}
}

// By the short windows a group is left alone that uses little. Another group is acted on in its place that uses twice as
// much and costs the victim half as much, if something can be done about that one.
func TestSparesByRecentUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		use         float64 // of mail
		wait        float64 // that batch costs; mail costs 1
		unread, not bool    // use is not read; nothing can be done about batch
		lags        bool    // the long windows have not seen them yet
		acted       string  // on which, in this order
	}{
		{name: "uses little", use: 0.2},
		{name: "uses more", use: 0.3, acted: "mail"},
		{name: "use is not read", use: 0.2, unread: true, acted: "mail"},
		{name: "beside a hog", use: 0.45, wait: 0.7, acted: "batch"},
		{name: "beside a hog, at once", use: 0.45, wait: 0.7, lags: true, acted: "batch"},
		{name: "beside a hog, a second one", use: 0.9, wait: 0.7, lags: true, acted: "batch mail"},
		{name: "beside a group that uses less than twice as much", use: 1.1, wait: 0.7, acted: "mail batch"},
		{name: "beside a hog that costs little", use: 0.9, wait: 0.3, acted: "mail batch"},
		{name: "beside a hog that is protected", use: 0.9, wait: 0.7, not: true, acted: "mail"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mail, batch := hog("pods/mail", 1), hog("pods/batch", c.wait)
				mail.use, batch.use = c.use, 2
				mail.on, batch.on = from(time.Minute), func(since time.Duration) bool { return c.wait > 0 && since >= time.Minute }
				w := newWorld(t, 4, 100*time.Millisecond, mail, batch)
				w.workloads[2].Protected = c.not
				cfg := enforce()
				cfg.Near = w.window
				r := w.runner(cfg)
				r.near, r.unread, r.lags = true, c.unread, c.lags
				r.run(time.Minute)
				var acted []string
				for _, e := range r.run(10 * time.Second) {
					if e.Outcome == control.Spared && (e.Suspect != "pods/mail" || c.use > 0.45 || !strings.HasPrefix(e.Text, fmt.Sprintf("it uses %.3f CPUs", c.use))) {
						t.Errorf("%v: %s", e, e.Text)
					}
					if name := strings.TrimPrefix(e.Victim+e.Suspect, victim+"pods/"); e.Outcome == control.Applied && !slices.Contains(acted, name) {
						acted = append(acted, name)
						if last := e.Evidence[len(e.Evidence)-1]; e.Suspect != e.Action.Group || last.Subject.Name != e.Suspect || last.Signal != detect.QueueShare {
							t.Errorf("%v: by %v", e, e.Evidence)
						}
					}
				}
				if strings.Join(acted, " ") != c.acted {
					t.Errorf("acted on %q, want %q: %s", acted, c.acted, told(r.events))
				}
			})
		})
	}
}
