package guard

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// limited is a model whose victim runs into its own quota from some time on, as the slow windows alone tell.
type limited struct {
	*model
	from time.Duration
	out  float64 // periods in which the quota ran out
}

func (m *limited) Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	n := len(to)
	to, err := m.model.Tick(now, to)
	if time.Since(m.began) >= m.from {
		m.out += 5
	}
	for i := range to[n:] {
		if s := &to[n+i]; s.Subject.Name == m.web {
			switch s.Quantity {
			case watch.CPUPeriods:
				s.Value = 10 * now.Seconds()
			case watch.CPUThrottledPeriods:
				s.Value = m.out
			}
		}
	}
	return to, err
}

// What the slow windows find explains what the short ones do: nothing is done about a hog while the victim
// runs into its own quota.
func TestSlowWindowsExplain(t *testing.T) {
	t.Parallel()
	for from, acts := range map[time.Duration]int{20 * time.Second: 0, time.Hour: 1} {
		synctest.Test(t, func(t *testing.T) {
			m := &limited{model: newModel(), from: from}
			m.hogs = 30*time.Second + 50*time.Millisecond
			o := m.options(control.Enforce)
			o.Sensors, o.Probe = m, ProbeAlways
			near := 0
			o.Found = func(all []detect.Finding) {
				for _, f := range all {
					if f.Resource == detect.CPU && f.Suspect == m.hog {
						near++
					}
				}
			}
			events, errs := runFor(t, o, 45*time.Second)
			if len(errs) > 0 {
				t.Fatal(errors.Join(errs...))
			}
			if near == 0 || len(m.setAt) != acts {
				t.Errorf("quota from %v on: named %d times, idle set at %v, want %d: %s", from, near, m.setAt, acts, outcomes(events))
			}
		})
	}
}

// Of one victim and resource one kind of windows tells, though both find the hog.
func TestOnePaceTells(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		m.hogs = 15*time.Second + 50*time.Millisecond
		o := m.options(control.Observe)
		o.Probe = ProbeAlways
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		time.Sleep(25*time.Second + 10*time.Millisecond)
		n := 0
		for _, f := range r.Status().Findings {
			if f.Victim == m.web && f.Resource == detect.CPU {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d findings about the CPU: %v", n, r.Status().Findings)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// suspected is a model whose short windows read what the hog uses: so much of what it does by the slow ones.
type suspected struct {
	*model
	share float64
}

func (m suspected) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	to, err := m.model.TickNear(now, to)
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(to, watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Group, Name: m.hog}, Quantity: watch.CPUTime, Value: m.share * m.used[m.hog]}), err
}

// Who uses little by the short windows is left alone, whatever the victim waits for it.
func TestShortWindowsTellTheLoop(t *testing.T) {
	t.Parallel()
	for share, acts := range map[float64]int{1: 1, 0.05: 0} { // of 2.9 CPUs
		synctest.Test(t, func(t *testing.T) {
			m := suspected{newModel(), share}
			m.hogs = 30*time.Second + 50*time.Millisecond
			o := m.options(control.Enforce)
			o.Sensors, o.Probe = m, ProbeAlways
			events, errs := runFor(t, o, 40*time.Second)
			if len(errs) > 0 {
				t.Fatal(errors.Join(errs...))
			}
			if len(m.setAt) != acts {
				t.Errorf("%g of 2.9 CPUs: idle set at %v, want %d times: %s", share, m.setAt, acts, outcomes(events))
			}
		})
	}
}
