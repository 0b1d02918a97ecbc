package daemon

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
)

// jumped is a reading of the clock after someone has set it by d, whole seconds: the
// wall clock differs and the monotonic one goes on. It needs the layout of time.Time,
// whose first word has the seconds above 30 bits.
func jumped(t *testing.T, at time.Time, d time.Duration) time.Time {
	t.Helper()
	set := at
	*(*uint64)(unsafe.Pointer(&set)) += uint64(int64(d/time.Second)) << 30
	if set.Sub(at) != 0 || set.Unix()-at.Unix() != int64(d/time.Second) {
		t.Fatalf("%v set by %v is %v", at, d, set)
	}
	return set
}

// isMonotonic reports whether differences of a time are those of the monotonic clock.
func isMonotonic(at time.Time) bool { return strings.Contains(at.String(), " m=") }

// Someone sets the clock while another writer meddles: repairs within a minute are
// those within a minute that passed, whatever the wall clock says.
func TestClockJumpsYield(t *testing.T) {
	t.Parallel()
	const file = cpusets + "a1/cpuset.cpus"
	for what, tc := range map[string]struct {
		set    []time.Duration // of the wall clock, at each repair
		every  time.Duration   // that pass between two
		yields bool
	}{
		"forward":         {[]time.Duration{0, 2 * time.Hour, 4 * time.Hour, 6 * time.Hour}, 10 * time.Second, true},
		"back":            {[]time.Duration{0, -2 * time.Hour, -4 * time.Hour, -6 * time.Hour}, 10 * time.Second, true},
		"to and fro":      {[]time.Duration{0, time.Hour, -time.Hour, 0}, 10 * time.Second, true},
		"back, but slow":  {[]time.Duration{0, -time.Hour, -2 * time.Hour, -3 * time.Hour}, 40 * time.Second, false},
		"stands, as slow": {[]time.Duration{0, -40 * time.Second, -80 * time.Second, -120 * time.Second}, 40 * time.Second, false},
	} {
		h := newHost(t, "")
		h.mkdir("a1")
		history := api.NewHistory(64, 0)
		k := newKeeper(discard(), history)
		began := time.Now()
		var passed, set time.Duration
		now := func() time.Time { return jumped(t, began.Add(passed), set) }
		opt := agent.Options{Root: h.opt.Root, Machine: h.opt.Machine, Dir: filepath.Join(h.dir, "state"), Now: now}
		if err := k.open(t.Context(), opt); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Place(t.Context(), agent.Spec{Request: request("a"), Group: "a1"}); err != nil {
			t.Fatal(err)
		}
		for _, set = range tc.set {
			passed += tc.every
			if err := h.k.WriteFile(file, "7"); err != nil {
				t.Fatal(err)
			}
			if err := k.do(t.Context(), func(n *agent.Node) error { _, err := n.Reconcile(t.Context()); return err }); err != nil {
				t.Fatal(err)
			}
		}
		if got := h.read(file) == "7"; got != tc.yields {
			t.Errorf("%s: the value is left to the other writer: %t", what, got)
		}
		if err := k.close(); err != nil {
			t.Error(err)
		}
	}
}

// Durations and rates do not know the wall clock: an hour lost between asking and
// answering is no negative time, and one between two readings no other rate.
func TestClockJumpsDurations(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	history := api.NewHistory(64, 0)
	k := newKeeper(discard(), history)
	began := time.Now()
	var passed, set time.Duration
	now := func() time.Time { // each look at the clock finds it set back by an hour, and 1 ms later
		passed += time.Millisecond
		set -= time.Hour
		return jumped(t, began.Add(passed), set)
	}
	opt := agent.Options{Root: h.opt.Root, Machine: h.opt.Machine, Dir: filepath.Join(h.dir, "state"), Now: now}
	if err := k.open(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	defer k.close()
	if _, err := k.Place(t.Context(), agent.Spec{Request: request("a")}); err != nil {
		t.Fatal(err)
	}
	all := history.After(0)
	if e := all[len(all)-1]; e.Kind != agent.Placed || e.Took <= 0 || e.Took > time.Second {
		t.Errorf("%s took %v", e.Kind, e.Took)
	}

	stat := newStatistics(t, "own")
	stat.plantOwn("1000000000", "10", "5000")
	m := stat.meter()
	if err := m.follow(map[string]string{"o": "own"}, map[string]cpuset.Set{"o": cpuset.MustOf(1)}); err != nil {
		t.Fatal(err)
	}
	origin := time.Now()
	m.read(origin, origin)
	stat.plantOwn("3000000000", "16", "9000")
	stat.write("sys/fs/cgroup/cpu/own/cpuacct.usage", "6000000000\n")
	m.read(jumped(t, origin.Add(2*time.Second), -time.Hour), origin)
	if _, rates := told(t, m, "o"); rates["cpu_time"] != 0.5 || rates["cpu_wait"] != 2 || rates["bandwidth cache0"] != 2000 {
		t.Errorf("rates over 2 s in which the clock was set back: %v", rates)
	}
}

// What the agent compares with the clock later has a monotonic reading.
func TestClockMonotonic(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	h.mkdir("a1")
	k := newKeeper(discard(), api.NewHistory(64, 0))
	conf, _, err := (&file{name: h.file}).read()
	if err != nil {
		t.Fatal(err)
	}
	l := newLoop(k, agent.Options{Root: h.opt.Root, Machine: h.opt.Machine, Dir: filepath.Join(h.dir, "state")}, conf)
	if err := l.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer k.close()
	g := &group{path: "none"}
	l.groups[g.path] = g
	g.entry, g.id = &conf.Workloads[0], "a:none"
	l.settle(t.Context(), g)
	if g.wait == nil || !isMonotonic(g.wait.Since) {
		t.Fatalf("it waits since %+v", g.wait)
	}
	// A group that waits is young for 5 s that pass, and its reason is the last one.
	g.wait.Since = jumped(t, g.wait.Since, 24*time.Hour)
	if !l.retry(t.Context()) {
		t.Error("a new group is not tried again, as the clock was set back")
	}
	g.wait.Since = jumped(t, g.wait.Since.Add(-youth), 24*time.Hour)
	if l.retry(t.Context()) {
		t.Error("an old group is tried again and again, as the clock was set back")
	}
}

// Any number of names may be refused: what is kept of them is bounded.
func TestRefusedNamesAreBounded(t *testing.T) {
	t.Parallel()
	k := newKeeper(discard(), api.NewHistory(4, 0))
	for i := range 10 * maxRefused {
		k.tell(agent.Event{Kind: agent.Refused, ID: fmt.Sprint(i), Text: "no"})
		if len(k.refused) > maxRefused {
			t.Fatalf("%d are kept", len(k.refused))
		}
	}
}
