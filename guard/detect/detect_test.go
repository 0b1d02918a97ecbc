package detect_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

func named(name string) trouble {
	for _, t := range troubles() {
		if t.name == name {
			return t
		}
	}
	panic(name)
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	broken := simMachine()
	broken.CPUs = nil
	for _, bad := range []detect.Config{
		{Window: -1}, {PeakBandwidth: -1}, {PeakBandwidth: math.NaN()}, {PeakBandwidth: math.Inf(1)}, {Machine: broken},
	} {
		if d, err := detect.New(bad); err == nil || d != nil {
			t.Errorf("%+v: no error", bad)
		}
	}
	if _, err := detect.New(detect.Config{}); err != nil {
		t.Error(err)
	}
}

// TestEvidenceNeeded takes away one thing at a time that an accusation needs.
func TestEvidenceNeeded(t *testing.T) {
	t.Parallel()
	without := func(qs ...watch.Quantity) func(*watch.Sample) bool {
		return func(s *watch.Sample) bool { return !slices.Contains(qs, s.Quantity) }
	}
	for _, tc := range []struct {
		label, lacking string
		keep           func(*watch.Sample) bool
		accused        bool
	}{
		{"hog, probed", "nothing", without(), true},
		{"hog, probed", "PSI and the wait", without(watch.CPUSome, watch.CPUWait), true},
		{"hog, probed", "all symptoms but who had the CPU", without(watch.CPUSome, watch.CPUWait, watch.QueueP99), true},
		{"hog, probed", "steal", without(watch.Steal), false},
		{"hog, probed", "throttling", without(watch.CPUPeriods, watch.CPUThrottledPeriods, watch.CPUThrottled), false},
		{"hog, probed", "any symptom", without(watch.CPUSome, watch.CPUWait, watch.QueueP99, watch.Queued), false},
		{"hog", "nothing", without(), true},
		{"hog", "CPU use", without(watch.CPUTime), false},
		{"reclaim", "nothing", without(), true},
		{"reclaim", "own maximum", without(watch.MemoryMax), false},
		{"reclaim", "own high", without(watch.MemoryHigh), false},
		{"reclaim", "memory of the suspect", func(s *watch.Sample) bool { return s.Quantity != watch.Memory || s.Subject.Name != "batch" }, false},
		{"disk", "nothing", without(), true},
		{"disk", "I/O of the victim", func(s *watch.Sample) bool { return s.Quantity != watch.IOWritten || s.Subject.Name != simVictim }, false},
		{"full link", "nothing", without(), true},
		{"full link", "round trips", without(watch.RoundTrip), true},
		{"full link", "round trips and what is sent again", without(watch.RoundTrip, watch.Retransmits), false},
		{"full link", "the link's rate", without(watch.LinkRate), true},
		{"full link", "the link's rate and queue", without(watch.LinkRate, watch.LinkQueued), false},
		{"full link", "what the link sends", func(s *watch.Sample) bool { return s.Quantity != watch.NetSent || s.Subject.Scope != watch.Host }, false},
		{"full link", "what the suspect sends", func(s *watch.Sample) bool { return s.Quantity != watch.NetSent || s.Subject.Name != "batch" }, false},
		{"bandwidth", "nothing", without(), true},
		{"bandwidth", "the host's traffic", func(s *watch.Sample) bool { return s.Quantity != watch.Bandwidth || s.Subject.Scope != watch.Host }, false},
		{"cache", "nothing", without(), true},
		{"cache", "occupancy", without(watch.LLCOccupancy), false},
		{"cache", "misses", without(watch.LLCMisses), false},
		{"sibling", "nothing", without(), true},
		{"sibling", "misses", without(watch.LLCMisses), false},
		{"sibling", "use by CPU", func(s *watch.Sample) bool { return s.Subject.Part.Kind != watch.CPU }, false},
	} {
		batches, ends := simulate(named(tc.label), 3, 1)
		for i := range batches {
			batches[i] = slices.DeleteFunc(batches[i], func(s watch.Sample) bool { return !tc.keep(&s) })
		}
		accused := false
		for _, f := range slices.Concat(run(newDetector(t), batches, ends)...) {
			accused = accused || f.Suspect != ""
		}
		if accused != tc.accused {
			t.Errorf("%s without %s: accused %v, want %v", tc.label, tc.lacking, accused, tc.accused)
		}
	}
}

// What groups have of a cache is told in turns where the CPU counts fewer at a time. Who fills it is
// named in his own turn, with the last that others were seen to have since the onset.
func TestOccupancyInTurns(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		silent  func(group string, window int) bool
		accused bool
	}{
		{"all at a time", func(string, int) bool { return false }, true},
		{"an innocent one, since soon after the onset", func(group string, window int) bool { return group == "mail" && window > simQuiet+1 }, true},
		{"an innocent one, from before the onset", func(group string, window int) bool { return group == "mail" && window > simQuiet-5 }, false},
		{"the guilty, since the onset", func(group string, window int) bool { return group == "batch" && window > simQuiet-5 }, false},
		{"each of three in turns of five windows", func(group string, window int) bool {
			return group != simVictim && []string{"batch", "mail", "web"}[window/5%3] != group
		}, true},
	} {
		batches, ends := simulate(named("cache"), 3, 1)
		for i := range batches {
			batches[i] = slices.DeleteFunc(batches[i], func(s watch.Sample) bool { return s.Quantity == watch.LLCOccupancy && tc.silent(s.Subject.Name, i) })
			for j := range batches[i] {
				if s := &batches[i][j]; i >= simQuiet && s.Quantity == watch.LLCOccupancy && s.Subject.Name == "mail" {
					s.Value *= 1.4 // an innocent one grows, too
				}
			}
		}
		accused := false
		for _, f := range slices.Concat(run(newDetector(t), batches, ends)...) {
			accused = accused || f.Suspect == "batch"
			if f.Suspect != "" && f.Suspect != "batch" {
				t.Errorf("%s: %s is accused", tc.name, f.Suspect)
			}
		}
		if accused != tc.accused {
			t.Errorf("%s: accused %v, want %v", tc.name, accused, tc.accused)
		}
	}
}

// Who grew most is told by what is known since the onset: a group that was last seen before it
// may have grown since, and then nobody is named.
func TestGrowthSinceOnset(t *testing.T) {
	t.Parallel()
	for label, q := range map[string]watch.Quantity{"reclaim": watch.Memory, "sibling": watch.CPUTime} {
		for _, tc := range []struct {
			name    string
			last    int // the window in which another group was last seen
			accused bool
		}{
			{"always", 1 << 20, true},
			{"since soon after the onset", simQuiet + 1, true},
			{"from just before the onset", simQuiet - 2, false},
		} {
			batches, ends := simulate(named(label), 3, 1)
			for i := range batches {
				batches[i] = slices.DeleteFunc(batches[i], func(s watch.Sample) bool {
					return s.Quantity == q && s.Subject.Name == "mail" && i > tc.last
				})
			}
			accused := 0
			for i, f := range run(newDetector(t), batches, ends) {
				if i < simQuiet+12 && slices.ContainsFunc(f, func(f detect.Finding) bool { return f.Suspect != "" }) {
					accused++
				}
			}
			if accused > 0 != tc.accused {
				t.Errorf("%s, another group was seen %s: %d windows accuse, want some: %v", label, tc.name, accused, tc.accused)
			}
		}
	}
}

// A disturbance does not become usual while it lasts, whether it was there from the
// start or came later, even if it takes little of the victim's time and the CPUs are
// not full.
func TestStays(t *testing.T) {
	t.Parallel()
	for _, quiet := range []int{0, 60} {
		h := newSimHost(trouble{name: "stays", probe: true}, 1, 1)
		d := newDetector(t)
		var last []detect.Finding
		for i := range quiet + 400 {
			h.quiet(1.5, 0.5)
			if i >= quiet {
				h.groups["batch"].use = 6
				h.blame("batch", 0.9, 0.08)
				h.groups[simVictim].p99 = 20e-3
			}
			h.step()
			d.Observe(h.samples())
			last = d.Judge(h.now)
		}
		if len(last) != 1 || last[0].Suspect != "batch" || last[0].Resource != detect.CPU {
			t.Errorf("after %d quiet windows and 400 others: %v, want the hog", quiet, last)
		}
	}
}

func TestGaps(t *testing.T) {
	t.Parallel()
	d := newDetector(t)
	batches, ends := simulate(named("nothing"), 1, 1)
	for i := range batches {
		batches[i] = slices.DeleteFunc(batches[i], func(s watch.Sample) bool { return s.Quantity == watch.Instructions || s.Quantity == watch.IOSome })
	}
	run(d, batches, ends)
	var got []string
	for _, g := range d.Gaps(simVictim) {
		got = append(got, fmt.Sprint(g.Resource, g.Missing))
	}
	want := []string{
		"own_load [run_queue_p99 foreign_queued]", "cpu [run_queue_p99 foreign_queued]", "io [io_pressure]",
		"memory_bandwidth [cpi]", "llc [cpi mpki]", "smt [cpi mpki]", "frequency [cpi clock idle_queued]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if d.Gaps("nobody") != nil {
		t.Error("gaps of a workload that is not tracked")
	}
}

// TestNewNormal keeps up a change that is nobody's doing: after ten minutes it is
// what is usual.
func TestNewNormal(t *testing.T) {
	t.Parallel()
	h := newSimHost(named("nothing"), 1, 1)
	d := newDetector(t)
	usual := func(windows int, factor float64) float64 {
		for range windows {
			h.quiet(1.5, 0.5)
			h.groups[simVictim].cpi *= factor
			h.step()
			d.Observe(h.samples())
			if f := d.Judge(h.now); len(f) > 0 {
				t.Fatal(f)
			}
		}
		return d.MeanOf(simVictim, detect.CPI, 1.5)
	}
	if cpi := usual(60, 1); cpi < 0.9 || cpi > 1.2 {
		t.Fatalf("usual CPI %v, want about 1.05", cpi)
	}
	if cpi := usual(500, 2); cpi > 1.2 {
		t.Errorf("usual CPI %v after 500 unusual windows", cpi)
	}
	if cpi := usual(200, 2); cpi < 1.8 {
		t.Errorf("usual CPI %v after 700 unusual windows, want about 2.1", cpi)
	}
}

// TestStranger has a neighbour that starts when the trouble does: all that it
// has is growth.
func TestStranger(t *testing.T) {
	t.Parallel()
	batches, ends := simulate(named("cache"), 4, 1)
	d, err := detect.New(detect.Config{Machine: simMachine(), PeakBandwidth: simPeak})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range simWorkloads() {
		if w.Group != "batch" {
			d.Track(w)
		}
	}
	run(d, batches[:simQuiet], ends[:simQuiet])
	d.Track(detect.Workload{Group: "batch"})
	if resource, suspect := answer(run(d, batches[simQuiet:], ends[simQuiet:])); resource != "llc" || suspect != "batch" {
		t.Errorf("%s, %q", resource, suspect)
	}
}

// TestPlaces: who cannot run where the victim does is no suspect.
func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, cpus := range []string{"", "8-11", "12-15"} {
		batches, ends := simulate(named("sibling"), 4, 1)
		d := newDetector(t)
		d.Track(detect.Workload{Group: "batch", CPUs: cpuset.MustParse(cpus)})
		_, suspect := answer(run(d, batches, ends))
		if (suspect == "batch") != (cpus != "12-15") {
			t.Errorf("suspect on CPUs %q: %q", cpus, suspect)
		}
	}
}

func TestForget(t *testing.T) {
	t.Parallel()
	batches, ends := simulate(named("quota"), 1, 1)
	d := newDetector(t)
	run(d, batches[:simQuiet], ends[:simQuiet])
	d.Forget(simVictim)
	if got := slices.Concat(run(d, batches[simQuiet:], ends[simQuiet:])...); len(got) > 0 || d.Learnt() > 0 {
		t.Errorf("after forgetting: %v", got)
	}
}

// TestSame: the same samples give the same findings, whatever order the
// workloads were named in.
func TestSame(t *testing.T) {
	t.Parallel()
	batches, ends := simulate(named("hog"), 2, 1)
	one, other := newDetector(t), newDetector(t)
	for _, w := range slices.Backward(simWorkloads()) {
		other.Forget(w.Group)
		other.Track(w)
	}
	if diff := cmp.Diff(run(one, batches, ends), run(other, batches, ends)); diff != "" {
		t.Error(diff)
	}
}

func TestFindingJSON(t *testing.T) {
	t.Parallel()
	batches, ends := simulate(named("cache"), 2, 1)
	all := slices.Concat(run(newDetector(t), batches, ends)...)
	if len(all) == 0 {
		t.Fatal("no finding")
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var again []detect.Finding
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all, again); diff != "" {
		t.Error(diff)
	}
	if text := all[0].String(); !strings.Contains(text, "because of batch") || !strings.Contains(text, "usually") {
		t.Error(text)
	}
}

// Processes outside of any group are named in words, and are nobody to act on.
func TestOutsiders(t *testing.T) {
	t.Parallel()
	i := slices.IndexFunc(troubles(), func(t trouble) bool { return t.name == "outsiders" })
	batches, ends := simulate(troubles()[i], 1, 1)
	all := run(newDetector(t), batches, ends)
	last := all[len(all)-1]
	if len(last) != 1 || last[0].Suspect != detect.Outside || len(last[0].Remedies) > 0 {
		t.Fatalf("findings %v, want one against %q without remedies", last, detect.Outside)
	}
	text := last[0].String()
	for _, want := range []string{"because of processes outside of any group", "seen: processes outside of any group: part of the run delay above baseline", "would help: to give them a group of their own, in class BE"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
}
