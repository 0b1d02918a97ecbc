package detect_test

import (
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
