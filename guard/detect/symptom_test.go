package detect_test

import (
	"testing"

	"berth.dev/berth/guard/detect"
)

// The symptom is there before, weak, and while something is wrong, strong, with
// whom the window accuses.
func TestSymptom(t *testing.T) {
	t.Parallel()
	for _, label := range troubles() {
		if label.none || label.resource == detect.NUMA {
			continue
		}
		d, err := detect.New(detect.Config{Machine: simMachine(), PeakBandwidth: simPeak})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range simWorkloads() {
			d.Track(w)
		}
		batches, ends := simulate(label, 1, 1)
		strong := 0
		for i, batch := range batches {
			d.Observe(batch)
			d.Judge(ends[i])
			s, ok := d.Symptom(simVictim, label.resource)
			switch {
			case i < 25: // baselines are being learnt
			case !ok:
				t.Errorf("%s: window %d has no symptom of %v", label.name, i, label.resource)
			case i < simQuiet && s.Typical != 0 && s.Strength < 1:
				t.Errorf("%s: window %d: typical strength %v while nothing was wrong", label.name, i, s.Typical)
			case i >= simQuiet && s.Strength >= 1 && s.Typical >= 1:
				strong++
			}
		}
		if strong < simTrouble/2 {
			t.Errorf("%s: %d of %d windows have a strong symptom of %v", label.name, strong, simTrouble, label.resource)
		}
		if _, ok := d.Symptom("batch", label.resource); ok {
			t.Errorf("%s: a workload that is not sensitive has a symptom", label.name)
		}
	}
}
