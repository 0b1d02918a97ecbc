package control

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
)

// TestKeepsWhatHelpsBesideOutsiders has a loop act on the recording of nginx beside stress-ng and processes in no group
// (detect's TestBesideOutsiders). What it does is not in the recording, but what was done by hand then is: cpu.idle of
// stress-ng's group, 0.6 s after that began. The loop does the same by then, finds that it helps though nginx goes on
// waiting for processes in no group, and does nothing else.
func TestKeepsWhatHelpsBesideOutsiders(t *testing.T) {
	t.Parallel()
	const window, web, batch = 100 * time.Millisecond, "berth-d3/web", "berth-d3/batch"
	f, err := os.Open("../detect/testdata/d3.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, ticks, err := observe.ReadRecording(f)
	if err != nil {
		t.Fatal(err)
	}
	d, err := detect.New(detect.Config{Machine: h.Machine, Near: watch.Time(window)})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range h.Groups {
		d.Track(detect.Workload{Group: g.Path, CPUs: g.CPUs, Sensitive: g.Path == web})
	}
	now := time.Unix(1e9, 0)
	did := &scribe{}
	l, err := New(Config{Mode: Enforce, Near: window, Machine: h.Machine, Now: func() time.Time { return now }}, did)
	if err != nil {
		t.Fatal(err)
	}
	var events []Event
	var used []watch.Sample // the CPU time of batch, the last three
	var judged, onset watch.Time
	for tick, err := range ticks {
		if err != nil {
			t.Fatal(err)
		}
		at := tick[0].Time
		now = time.Unix(1e9, int64(at))
		for _, s := range tick {
			if s.Quantity == watch.CPUTime && s.Subject.Name == batch {
				if used = append(used[max(len(used)-2, 0):], s); onset == 0 && len(used) == 3 && s.Value-used[1].Value > 0.02 {
					onset = at
				}
			}
		}
		d.Near().Observe(tick)
		in := Input{
			Symptoms: d.Near(), Near: true, Closely: func(_ string, r detect.Resource) bool { return r == detect.CPU },
			Findings: slices.DeleteFunc(d.Near().Judge(at), func(f detect.Finding) bool { return f.Resource != detect.CPU }),
			Host:     Host{CPUs: h.Machine.Online, Use: d.HostUse()},
		}
		for _, g := range h.Groups {
			w := Workload{Group: g.Path, Class: place.LS, CPUs: g.CPUs}
			w.Use, w.Memory = d.Usage(g.Path)
			if g.Path == batch && len(used) == 3 {
				use := (used[2].Value - used[0].Value) / (used[2].Time - used[0].Time).Seconds()
				w.Class, w.Recent = place.BE, &use
			}
			in.Workloads = append(in.Workloads, w)
		}
		events = append(events, l.Step(t.Context(), in)...)
		if d.Observe(tick); at-judged >= watch.Second {
			d.Judge(at)
			judged = at
		}
	}
	did.said = slices.DeleteFunc(did.said, func(what string) bool { return strings.HasPrefix(what, "preview") })
	if got := did.take(); got != "apply map[idle:1]" {
		t.Errorf("did %q, want cpu.idle alone, and that it stays", got)
	}
	if len(events) != 2 || events[0].Outcome != Applied || events[1].Outcome != Kept || events[1].Effect.RunDelay == nil {
		t.Fatalf("events %v, want that it is applied and kept", events)
	}
	if after := events[0].Time.Sub(time.Unix(1e9, int64(onset))); onset == 0 || after < 0 || after > 600*time.Millisecond {
		t.Errorf("it is applied %v after stress-ng began", after)
	}
	if r := events[1].Effect.RunDelay; r.SuspectAfter > r.SuspectBefore/4 || r.After < r.SuspectAfter || r.Outside == 0 {
		t.Errorf("run delay %+v: want a quarter of what is due to stress-ng at most, and that the rest is due to others", *r)
	}
}
