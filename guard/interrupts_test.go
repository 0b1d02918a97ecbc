package guard

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch/proc"
)

func line(number int, device string, counts ...uint64) proc.Interrupt {
	i := proc.Interrupt{Number: number, Device: device, Counts: map[int]uint64{}}
	for cpu, n := range counts {
		i.Counts[cpu] = n
	}
	return i
}

// Named are the lines that come most often on the CPU that has most to do with interrupts, if that is
// much.
func TestInterrupts(t *testing.T) {
	t.Parallel()
	var i interrupts
	i.take(1e9, map[int]float64{0: 5, 1: 90}, []proc.Interrupt{line(38, "eth0", 0, 100), line(39, "disk", 9000, 0), line(40, "old", 0, 1e6)})
	if i.now != nil {
		t.Errorf("after one reading: %v", i.now)
	}
	i.take(3e9, map[int]float64{0: 5.1, 1: 90.7, 2: 50}, []proc.Interrupt{line(38, "eth0", 0, 20100), line(39, "disk", 99000, 30), line(40, "old", 0, 1e6), line(41, "new", 0, 1e7)})
	want := &detect.Interrupts{CPU: 1, Share: 0.35, Lines: []detect.InterruptLine{{Number: 38, Device: "eth0", PerSecond: 10000}, {Number: 39, Device: "disk", PerSecond: 15}}}
	round := cmp.Transformer("", func(f float64) int { return int(f*1e6 + 0.5) })
	if diff := cmp.Diff(want, i.now, round); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if text := want.String(); text != "interrupts take 35 % of CPU 1: eth0 (line 38, 10000 a second), disk (line 39, 15 a second)" {
		t.Error(text)
	}
	i.take(4e9, map[int]float64{0: 5.15, 1: 90.75}, nil)
	if i.now != nil {
		t.Errorf("little: %v", i.now)
	}
}

func (o *outside) Interrupts() (map[int]float64, []proc.Interrupt, error) {
	s := time.Since(o.began).Seconds()
	return map[int]float64{0: 0.02 * s, 3: 0.4 * s}, []proc.Interrupt{line(38, "eth0", 0, 0, 0, uint64(5000*s))}, nil
}

// A finding against processes in no group says what interrupts take; nothing is done to them.
func TestFindingNamesInterrupts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &outside{model: newModel()}
		m.hogs, m.ends = 20*time.Second, 30*time.Second
		o := m.options(control.Observe)
		o.Sensors, o.Repeat = m, time.Hour
		var said string
		o.Found = func(all []detect.Finding) {
			for _, f := range all {
				if f.Interrupts != nil {
					said = f.String()
				}
			}
		}
		if _, errs := runFor(t, o, time.Minute); len(errs) > 0 {
			t.Fatal(errs)
		}
		if !strings.Contains(said, "interrupts take 40 % of CPU 3: eth0 (line 38, 5000 a second)") || !strings.Contains(said, "smp_affinity_list") {
			t.Errorf("said %q", said)
		}
	})
}
