package beside

import (
	"math"
	"strings"
	"testing"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/watch"
)

// Where energy is counted, it is judged by request and said; where it is not, the reason is.
func TestPowerWords(t *testing.T) {
	t.Parallel()
	times := map[string]float64{asItIs: 1, awake: 0.5, shallow: 0.7, fast: 0.8, saving: 2}
	say := func(x *Experiment) (*view, string) {
		v, err := x.view()
		if err != nil {
			t.Fatal(err)
		}
		return v, strings.Join(powerWords(v), "\n")
	}
	x := stored(t, Power(), 40, times, nil)
	x.EnergyNote = "no package has one"
	v, text := say(x)
	if !strings.Contains(text, "Keeping idle CPUs awake takes p99 to ×0.") || !strings.Contains(text, "not known: no package has one") || strings.Contains(text, "energy per request") {
		t.Errorf("without energy: %s", text)
	}
	if _, ok := stats.Typical(v.Samples, awake, EnergyPerRequest.Name); ok || len(v.Figures) != 3 {
		t.Errorf("energy of what is not counted: %v", v.Figures)
	}

	x.EnergyNote = ""
	watts := map[string]float64{asItIs: 50, awake: 100, shallow: 70, fast: 60, saving: 50}
	for _, r := range x.Rounds {
		joules, memory := 0.24*watts[r.Scenario], 0.01*watts[r.Scenario]
		x.Power = append(x.Power, PowerUse{Cell: r.Scenario, Block: r.Block, Seconds: 0.25, PackageJoules: &joules, MemoryJoules: &memory})
	}
	v, text = say(x)
	// 250 requests in 0.25 s: 1000 a second, so watts are millijoules per request.
	if typical, ok := stats.Typical(v.Samples, awake, EnergyPerRequest.Name); !ok || math.Abs(typical-0.1) > 0.001 {
		t.Errorf("energy per request of %s: %g, want 0.1", awake, typical)
	}
	if c := v.Of(awake, asItIs, EnergyPerRequest.Name); c.Verdict != stats.Worse || !strings.Contains(text, "energy per request: ×2") {
		t.Errorf("%+v\n%s", c, text)
	}
	if c := v.Of(fast, saving, lab.P99.Name); c.Verdict != stats.Better {
		t.Errorf("%+v", c)
	}
	if rows := v.doings().Table.Columns[2].Cells; len(rows) != 5 || rows[1].Text != "96" {
		t.Errorf("watts of the packages: %+v", rows)
	}
}

func TestMeterUse(t *testing.T) {
	t.Parallel()
	m := &meter{cpus: set(t, "0-1")}
	from := meterReading{at: 1e9, slept: 5e9, energy: []watch.Sample{{Quantity: watch.EnergyPackages, Value: 3}}}
	to := meterReading{at: 3e9, slept: 8e9, energy: []watch.Sample{{Quantity: watch.EnergyPackages, Value: 10}}}
	u := m.use(from, to)
	if u.Seconds != 2 || u.Asleep != 0.75 || u.PackageJoules == nil || *u.PackageJoules != 7 || u.MemoryJoules != nil {
		t.Errorf("%+v", u)
	}
}
