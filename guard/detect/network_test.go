package detect_test

import (
	"slices"
	"testing"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// TestFullLink judges a recording: a service with short requests over a veth that lets 100
// Mbit/s pass, on a host whose CPUs are busy. From 32 s on a neighbour sends what it can.
func TestFullLink(t *testing.T) {
	t.Parallel()
	d, err := detect.New(detect.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"demo/victim", "demo/batch", "demo/server"} {
		d.Track(detect.Workload{Group: group, Sensitive: group == "demo/victim"})
	}
	batches, ends := recorded(t, "full-link")
	named := 0
	for i, findings := range run(d, batches, ends) {
		for _, f := range findings {
			switch {
			case f.Resource != detect.Network:
			case ends[i] < 32*watch.Second || f.Suspect != "" && f.Suspect != "demo/batch":
				t.Errorf("%.0f s: %v", ends[i].Seconds(), f)
			case f.Suspect != "":
				named++
			}
		}
	}
	if named < 8 {
		t.Errorf("the neighbour is named in %d of 15 windows", named)
	}
}

// The full one of two links is the victim's, whatever is not known of it.
func TestFullLinkOfTwo(t *testing.T) {
	t.Parallel()
	victims := func(s *watch.Sample) bool { return s.Quantity == watch.NetSent && s.Subject.Name == simVictim }
	for _, tc := range []struct {
		name    string
		without func(s *watch.Sample, window int) bool
	}{
		{"all is known", func(*watch.Sample, int) bool { return false }},
		{"neither its rate nor what the victim sends by it", func(s *watch.Sample, _ int) bool {
			return s.Quantity == watch.LinkRate && s.Subject.Part == simLink || victims(s)
		}},
		{"what the victim sends by it since the onset", func(s *watch.Sample, window int) bool { return window >= simQuiet && victims(s) }},
	} {
		batches, ends := simulate(named("full link"), 3, 1)
		for i := range batches {
			idle := watch.Subject{Part: watch.Part{Kind: watch.Link, ID: simLink.ID + 1}}
			batches[i] = append(slices.DeleteFunc(batches[i], func(s watch.Sample) bool { return tc.without(&s, i) }),
				watch.Sample{Time: ends[i], Subject: idle, Quantity: watch.LinkRate, Value: simRate},
				watch.Sample{Time: ends[i], Subject: idle, Quantity: watch.LinkQueued, Value: 0},
				watch.Sample{Time: ends[i], Subject: idle, Quantity: watch.NetSent, Value: 1e5 * float64(i)})
		}
		if resource, suspect := answer(run(newDetector(t), batches, ends)); resource != "network" || suspect != "batch" {
			t.Errorf("%s: %s by %q, want network by batch", tc.name, resource, suspect)
		}
	}
}
