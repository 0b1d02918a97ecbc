package lab

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/watch/proc"
)

// at is a reading so many milliseconds after 1 s: what CPUs 0 and 1 had been doing by
// then, in hundredths of a second, and what the lab had used, in seconds.
func at(millis int64, used float64, cpus ...proc.Times) reading {
	r := reading{at: 1e9 + millis*1e6, used: used}
	for i, t := range cpus {
		t.Columns = 10
		r.host.CPUs = append(r.host.CPUs, proc.CPU{ID: i, Times: t})
		for to, from := range map[*proc.Ticks]proc.Ticks{&r.host.Total.User: t.User, &r.host.Total.Idle: t.Idle, &r.host.Total.Steal: t.Steal} {
			*to += from
		}
	}
	r.host.Total.Columns = 10
	return r
}

// approx compares seconds.
var approx = cmpopts.EquateApprox(0, 1e-9)

// What a round's counters come to, by value: the hypervisor's time and that of processes
// outside of the lab are on the shared CPUs, and each is counted once.
func TestRoundIsWhatHappenedInBetween(t *testing.T) {
	t.Parallel()
	before := snapshot{
		reading: at(0, 10, proc.Times{User: 1000, Idle: 500, Steal: 7}, proc.Times{User: 1000, Idle: 500, IOWait: 5, Steal: 1}, proc.Times{User: 10}),
		tenants: []Usage{{CPUSeconds: 4, WaitSeconds: 1}}, neighbour: Usage{CPUSeconds: 6, Work: 100, ThrottledPeriods: 3}, hasNeighbour: true,
	}
	// In 2 s CPU 0 is idle for 0.5 s and stolen for 0.1 s, CPU 1 is idle for 0.3 s, 0.2 of
	// them with I/O under way: 3.1 s of work, of which the lab's is 2.3. CPU 2 is not shared.
	after := snapshot{
		reading: at(2000, 12.3, proc.Times{User: 1140, Idle: 550, Steal: 17}, proc.Times{User: 1170, Idle: 510, IOWait: 25, Steal: 1}, proc.Times{User: 200, Steal: 90}),
		tenants: []Usage{{CPUSeconds: 4.8, WaitSeconds: 1.25}}, neighbour: Usage{CPUSeconds: 7.4, Work: 350, Unit: "loops", ThrottledPeriods: 5}, hasNeighbour: true,
	}
	var round Round
	after.since(before, &round, cpuset.MustParse("0-1"))
	want := Round{
		Seconds: 2, Tenant: Usage{CPUSeconds: 0.8, WaitSeconds: 0.25},
		Neighbour: &Usage{CPUSeconds: 1.4, Work: 250, Unit: "loops", ThrottledPeriods: 2},
		Host:      HostUsage{CPUs: 3, Busy: 5, SharedCPUs: 2, Steal: 0.1, Foreign: 0.8},
	}
	if diff := cmp.Diff(want, round, approx); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	after.used = 14 // rounded counters, and nobody else
	after.hasNeighbour = false
	round = Round{}
	if after.since(before, &round, cpuset.MustParse("0-1")); round.Host.Foreign != 0 || round.Neighbour != nil {
		t.Errorf("foreign %g, neighbour %v; want neither", round.Host.Foreign, round.Neighbour)
	}
}

// What several servers used is told of each, and summed; what limits withheld counts as waste
// as far as CPUs were idle then.
func TestServersInBetween(t *testing.T) {
	t.Parallel()
	before := snapshot{reading: at(0, 0), tenants: []Usage{{CPUSeconds: 1, Periods: 7}, {CPUSeconds: 5, ThrottledPeriods: 2}}, servers: true}
	after := snapshot{reading: at(1000, 0), tenants: []Usage{{CPUSeconds: 1.5, Periods: 9}, {CPUSeconds: 6, ThrottledPeriods: 6}}, servers: true}
	var round Round
	after.since(before, &round, cpuset.MustParse("0-1"))
	want := []Usage{{CPUSeconds: 0.5, Periods: 2}, {CPUSeconds: 1, ThrottledPeriods: 4}}
	if diff := cmp.Diff(want, round.Servers, approx); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(Usage{CPUSeconds: 1.5, Periods: 2, ThrottledPeriods: 4}, round.Tenant, approx); diff != "" {
		t.Errorf("sum: -want +got:\n%s", diff)
	}
	var readings []reading
	for i, sum := range []struct {
		throttled float64
		idle      proc.Ticks
	}{{1, 100}, {1.04, 108}, {1.5, 110}, {1.5, 150}} {
		r := at(int64(50*i), 0, proc.Times{Idle: 10}, proc.Times{Idle: sum.idle}, proc.Times{Idle: 10 * sum.idle})
		r.throttled = sum.throttled
		readings = append(readings, r)
	}
	if got := waste(readings, cpuset.MustParse("0-1")); math.Abs(got-0.06) > 1e-9 { // 0.04 of 0.08 idle, 0.02 of 0.46 throttled
		t.Errorf("waste %g, want 0.06", got)
	}
}

func TestLateCounters(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		opened, closed time.Duration
		want           string
	}{
		{0, 0, ""},
		{25 * ms, 25 * ms, ""},
		{26 * ms, 0, "26ms late"},
		{0, 500 * ms, "500ms late"},
	} {
		got := late(tc.opened.Nanoseconds(), tc.closed.Nanoseconds(), 500*ms)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("late by %s and %s: %q, want %q", tc.opened, tc.closed, got, tc.want)
		}
	}
}

// What reads the counters has SCHED_FIFO meanwhile, behind the generator, and is as it was afterwards; without the
// permission it reads all the same.
func TestPromptly(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread() // to look at the same thread afterwards
	defer runtime.UnlockOSThread()
	state := func() sched.State {
		s, err := sched.Get(0)
		if err != nil {
			t.Error(err)
		}
		return s
	}
	before, failure := state(), errors.New("a counter is gone")
	var within sched.State
	if err := promptly(func() error { within = state(); return failure }); !errors.Is(err, failure) {
		t.Errorf("it said %v, want %v", err, failure)
	}
	if after := state(); after != before {
		t.Errorf("afterwards %v, before %v", after, before)
	}
	if within == before {
		t.Skip("SCHED_FIFO is not permitted here")
	}
	if within.Policy != sched.FIFO || within.Priority != 39 {
		t.Errorf("meanwhile %v, want SCHED_FIFO 39", within)
	}
}

func TestSleepUntil(t *testing.T) {
	t.Parallel()
	at := monotonic() + (70 * ms).Nanoseconds()
	if err := sleepUntil(t.Context(), at); err != nil || monotonic() < at {
		t.Errorf("%v, %d ns too early", err, at-monotonic())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*ms)
	defer cancel()
	if err := sleepUntil(ctx, at+time.Hour.Nanoseconds()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it was told to end, and said %v", err)
	}
	if err := sleepUntil(ctx, at); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the instant is past, and so is the context: %v", err)
	}
}

// The generator has the longer to report, the longer the window was: a tenth of it, beside what a short one
// takes. One that says nothing is not waited for without end.
func TestReportLimit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		window, after time.Duration // when it reports; 0 is never
		late          time.Duration // when that is too late; 0 is in time
	}{
		"a short window":              {window: 500 * ms, after: startLimit},
		"a short window, and silence": {window: 500 * ms, late: startLimit + 2*time.Second + 50*ms},
		"half an hour":                {window: 30 * time.Minute, after: startLimit + 3*time.Minute},
		"half an hour, and too late":  {window: 30 * time.Minute, after: startLimit + 183*time.Second, late: startLimit + 182*time.Second},
		"half an hour, and silence":   {window: 30 * time.Minute, late: startLimit + 182*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lines := make(chan []byte, 1)
				if tc.after > 0 {
					time.AfterFunc(tc.after, func() { lines <- []byte(`{"offered": 7}`) })
				}
				p := &processes{generator: &child{name: "generator", lines: lines}}
				began, round := time.Now(), Round{}
				err := p.reported(t.Context(), load.Config{Window: tc.window, Grace: 2 * time.Second}, &round)
				switch took := time.Since(began); {
				case tc.late == 0 && (err != nil || round.Load.Offered != 7 || took != tc.after):
					t.Errorf("%d offered after %s: %v", round.Load.Offered, took, err)
				case tc.late > 0 && (took != tc.late || err == nil || err.Error() != "generator did not answer within "+tc.late.String()):
					t.Errorf("after %s, want %s: %v", took, tc.late, err)
				}
			})
		})
	}
}

// Bins hold what others took in them, also where a reading came late, or not at all.
func TestBinsOfReadings(t *testing.T) {
	t.Parallel()
	idle := func(zero, one proc.Ticks) []proc.Times { return []proc.Times{{Idle: zero}, {Idle: one}} }
	steady := []reading{
		at(0, 0, idle(0, 0)...), at(50, 0.02, idle(3, 5)...), at(100, 0.04, idle(6, 10)...), at(150, 0.06, idle(9, 10)...), at(170, 0.068, idle(10, 11)...),
	}
	stolen := []reading{at(0, 0, idle(0, 0)...), at(50, 0, idle(5, 5)...), at(100, 0, proc.Times{Idle: 7, Steal: 3}, proc.Times{Idle: 10})}
	for name, tc := range map[string]struct {
		readings []reading
		window   time.Duration
		want     []Bin
	}{
		"steady": {steady, 170 * ms, []Bin{{}, {}, {Foreign: 0.05}, {Foreign: 0.012}}},
		"late": {
			[]reading{at(0, 0, idle(0, 0)...), at(75, 0.01, idle(3, 4)...), at(100, 0.02, idle(4, 5)...)}, 100 * ms,
			// 150 ms less 70 idle and 10 used in the first 75 ms: 70; then 50 less 20 and 10: 20.
			[]Bin{{Foreign: 0.0467}, {Foreign: 0.0433}},
		},
		"one for two": {[]reading{at(0, 0, idle(0, 0)...), at(100, 0, idle(8, 10)...)}, 100 * ms, []Bin{{Foreign: 0.01}, {Foreign: 0.01}}},
		"steal":       {stolen, 100 * ms, []Bin{{}, {Steal: 0.03}}},
		"rounding":    {[]reading{at(0, 0, idle(0, 0)...), at(50, 0.01, idle(5, 5)...)}, 50 * ms, []Bin{{}}},
		"none":        {nil, 100 * ms, nil},
		// Groups' time is read now before the host's, now after it: nobody else had any.
		"to and fro": {[]reading{at(0, 0, idle(0, 0)...), at(50, 0.11, idle(0, 0)...), at(100, 0.2, idle(0, 0)...), at(150, 0.31, idle(0, 0)...), at(200, 0.4, idle(0, 0)...)}, 200 * ms, []Bin{{}, {}, {}, {}}},
	} {
		got := binsOf(tc.readings, 1e9, tc.window, cpuset.MustParse("0-1"))
		if diff := cmp.Diff(tc.want, got, approx); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if steal, foreign := steady[4].others(steady[0], cpuset.MustParse("0-1")); math.Abs(foreign-0.062) > 1e-9 || steal != 0 {
		t.Errorf("steady: %g foreign, %g stolen in all", foreign, steal)
	}
}
