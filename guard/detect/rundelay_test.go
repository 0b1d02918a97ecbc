package detect_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"berth.dev/berth/guard/detect"
)

// The run delay is in seconds per second that the workload runs, by suspect. Beside
// processes in no group its strength hardly says that a suspect's part is gone.
func TestRunDelay(t *testing.T) {
	t.Parallel()
	for _, probe := range []bool{true, false} {
		h := newSimHost(trouble{name: "beside outsiders", probe: probe}, 1, 1)
		d := newDetector(t)
		r := rand.New(rand.NewPCG(1, 99))
		var strengths []float64
		for i := range 12 {
			h.quiet(0.5, 0.5)
			cpuHog(h, r)
			h.blame("batch", 0.45, 4)
			v := h.groups[simVictim]
			outside := 2.0
			v.by[detect.Outside] += outside
			if i >= 8 { // the neighbour yields
				h.groups["batch"].use = 5
				delete(v.by, "batch")
			}
			v.wait = 0
			for _, wait := range v.by {
				v.wait += wait
			}
			h.step()
			d.Observe(h.samples())
			d.Judge(h.now)
			got, ok := d.RunDelay(simVictim, "batch", 1)
			if i == 0 {
				continue // nothing to compare counters with
			}
			if !ok {
				t.Fatalf("window %d: unknown", i)
			}
			near := func(what string, got, want float64) {
				if !(math.Abs(got-want) <= 0.06*want+0.02) {
					t.Errorf("probe %v, window %d: %s %.3f, want %.3f", probe, i, what, got, want)
				}
			}
			near("run delay", got.Wait, v.wait/v.use)
			near("CPU time", got.Run, v.use)
			use := 0.0
			for _, name := range h.order[1:] {
				use += h.groups[name].use
			}
			near("share of the CPU time", got.UseShare, h.groups["batch"].use/use)
			if probe {
				near("behind others", got.Others, (v.wait-v.by[simVictim])/v.use)
				near("behind the suspect", got.Suspect, v.by["batch"]/v.use)
				near("share of processes in no group", got.Outside, outside/(v.wait-v.by[simVictim]))
			} else if !math.IsNaN(got.Others) || !math.IsNaN(got.Suspect) {
				t.Errorf("window %d: %+v without the probe", i, got)
			}
			s, _ := d.Symptom(simVictim, detect.CPU)
			strengths = append(strengths, s.Strength)
		}
		if before, after := strengths[5], strengths[10]; after < 0.8*before {
			t.Errorf("strength %.2f, then %.2f: it tells enough by itself", before, after)
		}
		if _, ok := d.RunDelay("batch", "mail", 1); ok {
			t.Error("known of a workload that is not sensitive")
		}
	}
}
