package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
)

// model is a host with four CPUs that a test plays: svc/web, which uses one CPU, and
// batch/hog, which uses the rest from some time on and makes web wait unless batch is
// idle. It is Sensors and Actuator.
type model struct {
	web, hog, other string // the groups

	mu      sync.Mutex
	began   time.Time
	hogs    time.Duration // from when on the hog runs; 0 is never
	ends    time.Duration // until when; 0 is the end
	idle    bool
	noProbe error
	loses   time.Duration // when the probe is lost; 0 is never
	broken  error         // reading fails
	panics  bool

	armed     bool
	focus     []string
	now       watch.Time
	used      map[string]float64
	waited    float64
	queued    float64
	by        float64
	own       float64
	uneven    bool     // see waitsAlone
	asked     []string // groups whose CPUs were asked for
	ticks     int
	near      int
	setAt     []time.Duration // when idle was set
	givenBack []time.Duration
}

func newModel() *model {
	return &model{web: "svc/web", hog: "batch/hog", other: "other", began: time.Now(), used: map[string]float64{}}
}

// state says whether the hog is idle, and the probe armed, while a guard runs.
func (m *model) state() (idle, armed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.idle, m.armed
}

// waitsAlone says that the victim waits, whatever the hog does: in one second of eight.
func (m *model) waitsAlone() bool {
	return m.uneven && time.Since(m.began)/time.Second%8 == 0
}

func (m *model) hogging() bool {
	at := time.Since(m.began)
	return m.hogs > 0 && at >= m.hogs && (m.ends == 0 || at < m.ends)
}

func (m *model) Groups() ([]string, error) { return []string{m.hog, m.other, m.web}, nil }

func (m *model) CPUs(group string) cpuset.Set {
	m.asked = append(m.asked, group)
	return cpuset.Set{}
}

func (m *model) Focus(groups []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.focus = slices.Clone(groups)
	return nil
}

func (m *model) Arm(on bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.probe(); err != nil {
		m.armed = false
		return err
	}
	if m.loses > 0 && m.loses < time.Second { // it seems to be there until it is tried
		return errTooDear
	}
	m.armed = on
	return nil
}

func (m *model) Probe() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.probe()
}

func (m *model) probe() error {
	if at := time.Since(m.began); m.loses >= time.Second && at >= m.loses {
		m.armed = false
		return errTooDear
	}
	return m.noProbe
}

var errTooDear = errors.New("too dear")

func (m *model) ProbeCost() float64 { return 0.001 }

// pass lets the time go by since the last sample.
func (m *model) pass(now watch.Time) {
	s := (now - m.now).Seconds()
	m.now = now
	m.used[m.web] += s
	m.used[m.other] += 0.1 * s
	if m.waitsAlone() {
		m.waited += 0.5 * s
		m.queued += 0.5 * s
		m.own += 0.5 * s
	}
	if !m.hogging() {
		return
	}
	m.used[m.hog] += 2.9 * s
	if !m.idle {
		m.waited += 0.5 * s
		m.queued += 0.5 * s
		m.by += 0.5 * s
	}
}

func (m *model) Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.panics {
		panic("a bug")
	}
	if m.broken != nil {
		return to, m.broken
	}
	m.ticks++
	m.pass(now)
	to = m.host(now, to)
	for _, group := range []string{m.hog, m.other, m.web} {
		to = m.group(now, group, to)
	}
	return to, nil
}

func (m *model) host(now watch.Time, to []watch.Sample) []watch.Sample {
	add := func(part watch.Part, q watch.Quantity, v float64) {
		to = append(to, watch.Sample{Time: now, Subject: watch.Subject{Part: part}, Quantity: q, Value: v})
	}
	sum := 0.0
	for _, v := range m.used {
		sum += v
	}
	add(watch.Part{}, watch.CPUTime, sum)
	add(watch.Part{}, watch.Steal, 0)
	for cpu := range 4 {
		add(watch.Part{Kind: watch.CPU, ID: cpu}, watch.CPUTime, sum/4)
	}
	return to
}

func (m *model) group(now watch.Time, name string, to []watch.Sample) []watch.Sample {
	add := func(q watch.Quantity, v float64, by string) {
		to = append(to, watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Group, Name: name}, Quantity: q, Value: v, By: by})
	}
	add(watch.CPUTime, m.used[name], "")
	add(watch.CPUPeriods, 0, "")
	add(watch.CPUThrottledPeriods, 0, "")
	add(watch.CPUThrottled, 0, "")
	add(watch.CPUThrottledAny, 0, "")
	if name == m.web {
		add(watch.CPUWait, m.waited, "")
		add(watch.CPUSome, m.waited, "")
	}
	return to
}

func (m *model) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return to, m.broken
	}
	m.near++
	m.pass(now)
	to = m.host(now, to)
	for _, name := range m.focus {
		to = m.group(now, name, to)
		if !m.armed || name != m.web {
			continue
		}
		add := func(q watch.Quantity, v float64, by string) {
			to = append(to, watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Group, Name: name}, Quantity: q, Value: v, By: by})
		}
		add(watch.Queued, m.queued, "")
		add(watch.QueuedBy, m.by, m.hog)
		add(watch.QueuedBy, m.own, m.web)
		p99 := 0.0001
		if m.hogging() && !m.idle {
			p99 = 0.005
		}
		add(watch.QueueP99, p99, "")
	}
	return to, nil
}

func (m *model) Apply(_ context.Context, a control.Action) ([]control.Change, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.Group != "batch" || a.Remedy != detect.Weight {
		return nil, fmt.Errorf("apply %v: the model knows nothing of it", a)
	}
	m.idle = true
	m.setAt = append(m.setAt, time.Since(m.began))
	return []control.Change{{Path: "/batch/cpu.idle", From: "0", To: "1"}}, nil
}

func (m *model) Revert(context.Context, control.Action) ([]control.Change, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.idle {
		m.givenBack = append(m.givenBack, time.Since(m.began))
	}
	m.idle = false
	return nil, nil
}

func (m *model) Preview(context.Context, control.Action) ([]control.Change, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.idle {
		return nil, nil
	}
	return []control.Change{{Path: "/batch/cpu.idle", From: "0", To: "1"}}, nil
}

func (m *model) Settings(string) (actuate.Settings, error) { return actuate.Settings{}, nil }

func (m *model) Unavailable() map[detect.Remedy]string { return nil }

func (m *model) NoIdle() string { return "" }

func (m *model) Actable(of []control.Process) []control.Process { return of }

// options are those of a guard of svc/web in the model.
func (m *model) options(mode control.Mode) Options {
	return Options{
		Sensors: m, Actuator: m, Machine: fourCPUs(), Control: control.Config{Mode: mode},
		Workloads: func(context.Context) ([]Workload, error) {
			return []Workload{
				{Group: "svc/web", Class: place.LSR, Sensitive: true},
				{Group: "batch/hog", Class: place.BE},
			}, nil
		},
	}
}

func fourCPUs() *machine.Machine {
	m := &machine.Machine{Online: cpuset.MustParse("0-3")}
	for i := range 4 {
		m.CPUs = append(m.CPUs, machine.CPU{ID: i})
		m.Domains = append(m.Domains, machine.Domain{Kind: machine.Core, ID: i, KernelID: i, CPUs: cpuset.MustOf(i)})
	}
	return m
}

// runFor runs a guard for some time, and returns what it said.
func runFor(t *testing.T, o Options, d time.Duration) (events []control.Event, errs []error) {
	t.Helper()
	o.Acted = func(e control.Event) { events = append(events, e) }
	o.Failed = func(err error) { errs = append(errs, err) }
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := r.Run(ctx); err != nil {
		errs = append(errs, err)
	}
	return events, errs
}

func outcomes(events []control.Event) string {
	var words []string
	for _, e := range events {
		words = append(words, e.Outcome.String())
	}
	return strings.Join(words, " ")
}

func TestEnforce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		noProbe error
		probe   ProbeUse
		within  time.Duration // from the hog's start until it yields
	}{
		"probe when needed": {probe: ProbeNeeded, within: 2 * time.Second},
		"probe always":      {probe: ProbeAlways, within: 500 * time.Millisecond},
		"no probe":          {noProbe: errors.New("not root"), within: 16 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.hogs, m.noProbe = 30*time.Second+50*time.Millisecond, c.noProbe
				o := m.options(control.Enforce)
				o.Probe = c.probe
				events, errs := runFor(t, o, 60*time.Second)
				if len(errs) > 0 {
					t.Fatal(errs)
				}
				if len(m.setAt) != 1 || m.setAt[0]-m.hogs > c.within || m.setAt[0] < m.hogs {
					t.Errorf("idle set at %v, hog from %v", m.setAt, m.hogs)
				}
				if m.idle || m.armed || len(m.givenBack) != 1 {
					t.Errorf("at the end: idle %v, armed %v, restored at %v", m.idle, m.armed, m.givenBack)
				}
				if got := outcomes(events); got != "applied kept reverted" {
					t.Errorf("events: %s", got)
				}
			})
		})
	}
}

func TestObserveAndPreviewChangeNothing(t *testing.T) {
	t.Parallel()
	for mode, want := range map[control.Mode]string{control.Observe: "", control.Preview: "would_apply"} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.hogs = 20 * time.Second
				o := m.options(mode)
				found := 0
				o.Found = func(all []detect.Finding) {
					for _, f := range all {
						if f.Suspect == "batch/hog" && f.Resource == detect.CPU {
							found++
						}
					}
				}
				events, errs := runFor(t, o, 40*time.Second)
				if len(errs) > 0 || len(m.setAt) > 0 || found == 0 || outcomes(events) != want {
					t.Errorf("errors %v, set at %v, found %d times, events %q", errs, m.setAt, found, outcomes(events))
				}
			})
		})
	}
}

// A finding that lasts is reported once per Repeat, to those who ask for it.
func TestFindingsRepeat(t *testing.T) {
	t.Parallel()
	for repeat, want := range map[time.Duration][2]int{0: {50, 2000}, 10 * time.Second: {5, 7}, time.Hour: {1, 1}} {
		synctest.Test(t, func(t *testing.T) {
			m := newModel()
			m.hogs = 20 * time.Second
			o := m.options(control.Observe)
			o.Repeat = repeat
			found := 0
			o.Found = func(all []detect.Finding) {
				for _, f := range all {
					if f.Victim == "svc/web" && f.Suspect == "batch/hog" && f.Resource == detect.CPU {
						found++
					}
				}
			}
			if _, errs := runFor(t, o, 80*time.Second); len(errs) > 0 || found < want[0] || found > want[1] {
				t.Errorf("every %v: found %d times, errors %v", repeat, found, errs)
			}
		})
	}
}

func TestQuietHostIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		events, errs := runFor(t, m.options(control.Enforce), 10*time.Minute)
		if len(events) > 0 || len(errs) > 0 || m.near > 0 || m.armed {
			t.Errorf("events %v, errors %v, near ticks %d", events, errs, m.near)
		}
		if m.ticks < 599 || m.ticks > 601 {
			t.Errorf("%d ticks in 600 s", m.ticks)
		}
	})
}

// TestProbeRests arms the probe for a hog that goes, and disarms it later.
// Which CPUs groups may use is not asked while nobody is looked after, and of all groups
// as soon as somebody is.
func TestCPUsOfWhom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		o := m.options(control.Observe)
		all := o.Workloads
		o.Workloads = func(ctx context.Context) ([]Workload, error) {
			told, err := all(ctx)
			told[0].Sensitive = time.Since(m.began) > 12*time.Second
			if !told[0].Sensitive && len(m.asked) > 0 {
				t.Errorf("asked for the CPUs of %q", m.asked)
			}
			return told, err
		}
		if _, errs := runFor(t, o, 17*time.Second); len(errs) > 0 {
			t.Error(errs)
		}
		slices.Sort(m.asked)
		if want := []string{"batch/hog", "other", "svc/web"}; !slices.Equal(slices.Compact(m.asked), want) {
			t.Errorf("asked for the CPUs of %q, want those of %q", m.asked, want)
		}
	})
}

func TestProbeRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		m.hogs, m.ends = 10*time.Second, 20*time.Second
		o := m.options(control.Enforce)
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		time.Sleep(15*time.Second + time.Millisecond)
		_, armed := m.state()
		if s := r.Status(); !armed || !s.Probe.Armed || len(s.Active) != 1 || len(s.Focus) != 1 || s.Probe.Cost != 0.001 {
			t.Errorf("at 15 s: armed %v, status %+v", armed, s)
		}
		time.Sleep(3 * time.Minute)
		idle, armed := m.state()
		if s := r.Status(); armed || s.Probe.Armed || len(s.Active) > 0 || s.Probe.ArmedFor < 10*time.Second || idle {
			t.Errorf("long after: armed %v, idle %v, status %+v", armed, idle, s)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestProbeRestsThoughItWaitsAtTimes has a victim with a wait of its own now and then,
// with and without a hog that stays and is idle.
func TestProbeRestsThoughItWaitsAtTimes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ hogs, armed time.Duration }{
		"alone": {0, 150 * time.Second}, "helped": {10 * time.Second, 45 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.hogs, m.uneven = c.hogs, true
				r, err := New(m.options(control.Enforce))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				if err := r.Run(ctx); err != nil {
					t.Error(err)
				}
				armed := r.Status().Probe.ArmedFor
				if armed > c.armed {
					t.Errorf("armed for %v of 5 min, want at most %v", armed, c.armed)
				}
			})
		})
	}
}

// TestEverythingBack ends a guard that has something active in every way.
func TestEverythingBack(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(m *model, cancel func()){
		"canceled":       func(_ *model, cancel func()) { cancel() },
		"signals gone":   func(m *model, _ func()) { m.broken = errors.New("input/output error") },
		"a bug":          func(m *model, _ func()) { m.panics = true },
		"probe too dear": func(m *model, _ func()) { m.noProbe, m.armed = errors.New("it cost more than it may"), false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.hogs = 10 * time.Second
				r, err := New(m.options(control.Enforce))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan any)
				go func() {
					defer func() { ended <- recover() }()
					if err := r.Run(ctx); err != nil {
						panic(err)
					}
				}()
				time.Sleep(15 * time.Second)
				if idle, _ := m.state(); !idle {
					t.Fatal("nothing was done about the hog")
				}
				m.mu.Lock()
				end(m, cancel)
				m.mu.Unlock()
				time.Sleep(2 * time.Second)
				if name == "probe too dear" {
					if idle, _ := m.state(); !idle || r.Status().Probe.Reason == "" { // it is held by the slow windows until the end
						t.Errorf("active: %v, status %+v", idle, r.Status())
					}
					cancel()
				}
				why := <-ended
				if m.idle || m.armed {
					t.Errorf("still active: idle %v, armed %v", m.idle, m.armed)
				}
				if wants := name == "signals gone" || name == "a bug"; (why != nil) != wants {
					t.Errorf("ended with %v", why)
				}
				cancel()
			})
		})
	}
}

// TestModeChanges restores what is active when the guard may only observe.
func TestModeChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		m.hogs = 5 * time.Second
		r, err := New(m.options(control.Enforce))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		time.Sleep(12*time.Second + time.Millisecond)
		if idle, _ := m.state(); !idle {
			t.Error("nothing was done about the hog")
		}
		err = r.SetMode(ctx, control.Observe)
		if idle, _ := m.state(); err != nil || idle || r.Status().Mode != control.Observe {
			t.Errorf("%v, active %v", err, idle)
		}
		time.Sleep(20 * time.Second)
		if idle, _ := m.state(); idle || len(m.setAt) != 1 {
			t.Errorf("observing, idle was set at %v", m.setAt)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// depended is a host that depends on the hog.
type depended struct{ *model }

func (depended) Settings(group string) (s actuate.Settings, err error) {
	if group == "batch/hog" {
		s.Essential = "process 7 has oom_score_adj -997"
	}
	return s, nil
}

// TestLeftAlone leaves groups alone that are, or that nobody gave free.
func TestLeftAlone(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"protected by a glob": func(o *Options) { o.Control.Protected = []string{"batch"} },
		"protected itself": func(o *Options) {
			o.Workloads = func(context.Context) ([]Workload, error) {
				return []Workload{{Group: "svc/web", Sensitive: true}, {Group: "batch/hog", Class: place.BE, Protected: true}}, nil
			}
		},
		"essential": func(o *Options) { o.Actuator = depended{o.Actuator.(*model)} },
		"of no known class": func(o *Options) {
			o.Workloads = func(context.Context) ([]Workload, error) { return []Workload{{Group: "svc/web", Sensitive: true}}, nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.hogs = 5 * time.Second
				o := m.options(control.Enforce)
				change(&o)
				events, errs := runFor(t, o, 20*time.Second)
				if len(m.setAt) > 0 || len(errs) > 0 || !strings.HasPrefix(outcomes(events), "refused") {
					t.Errorf("set at %v, errors %v, events %s", m.setAt, errs, outcomes(events))
				}
			})
		})
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	m := newModel()
	for name, change := range map[string]func(*Options){
		"nothing to read":   func(o *Options) { o.Sensors = nil },
		"nobody to act":     func(o *Options) { o.Actuator = nil },
		"a short window":    func(o *Options) { o.Window = FastWindow },
		"no such probe use": func(o *Options) { o.Probe = "maybe" },
		"no such mode":      func(o *Options) { o.Control.Mode = 9 },
		"both":              func(o *Options) { o.Replay = func(func([]watch.Sample, error) bool) {} },
	} {
		o := m.options(control.Enforce)
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestWithoutProbeAfterAll has the 1 s windows act on the CPU where the probe cannot be
// armed although it seemed so, and after it was lost.
func TestWithoutProbeAfterAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		loses, goes, ends time.Duration // when the probe is lost, and the hog goes; the end
		want              string
	}{
		"cannot be armed": {0, 0, 60 * time.Second, "applied kept reverted"},
		// What was done by the fast windows stays: it is held by the slow ones, and reverted at the end, or when the hog is gone.
		"lost":           {40 * time.Second, 0, 100 * time.Second, "applied kept reverted"},
		"lost, hog gone": {40 * time.Second, 60 * time.Second, 100 * time.Second, "applied kept on_trial relaxed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.hogs, m.ends, m.loses = 30*time.Second, c.goes, max(c.loses, time.Nanosecond)
				events, errs := runFor(t, m.options(control.Enforce), c.ends)
				if got := outcomes(events); got != c.want {
					t.Errorf("events %q, want %q", got, c.want)
				}
				if len(m.setAt) != 1 || len(m.givenBack) != 1 {
					t.Errorf("set at %v, restored at %v, want each once", m.setAt, m.givenBack)
				}
				if len(errs) != 1 || !strings.Contains(errs[0].Error(), "run-queue probe: too dear") {
					t.Errorf("errors %v, want one of the probe", errs)
				}
				if m.idle || m.armed {
					t.Errorf("at the end: idle %v, armed %v", m.idle, m.armed)
				}
			})
		})
	}
}

// TestProbeRestsBetweenTrials has a hog that stays: what helps stays active, and the
// probe is armed for the trials only, which lie further and further apart.
func TestProbeRestsBetweenTrials(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		hold   time.Duration
		trials int           // 10 holds after it was kept, 20 and 40 after the trials, and so on
		armed  time.Duration // at most
	}{{30 * time.Second, 3, 3 * time.Minute}, {3 * time.Second, 7, 5 * time.Minute}} {
		t.Run(c.hold.String(), func(t *testing.T) {
			t.Parallel()
			restsBetweenTrials(t, c.hold, c.trials, c.armed)
		})
	}
}

func restsBetweenTrials(t *testing.T, hold time.Duration, trials int, most time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		m.hogs = 10 * time.Second
		o := m.options(control.Enforce)
		o.Control.Hold = hold
		var events []control.Event
		o.Acted = func(e control.Event) { events = append(events, e) }
		o.Failed = func(err error) { t.Error(err) }
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		const until = 65 * time.Minute
		var armedFor, idleFor time.Duration
		for at := time.Duration(0); at < until; at += 100 * time.Millisecond {
			time.Sleep(100 * time.Millisecond)
			idle, armed := m.state()
			if armed {
				armedFor += 100 * time.Millisecond
			}
			if idle {
				idleFor += 100 * time.Millisecond
			}
		}
		if armedFor < 30*time.Second || armedFor > most {
			t.Errorf("armed for %v of %v", armedFor, until)
		}
		if told := r.Status().Probe.ArmedFor; (told - armedFor).Abs() > 5*time.Second {
			t.Errorf("status: armed for %v, not %v", told, armedFor)
		}
		if idleFor < until-30*time.Second {
			t.Errorf("the hog was idle for %v of %v only", idleFor, until)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got, want := outcomes(events), "applied kept"+strings.Repeat(" on_trial restored kept", trials)+" reverted"; got != want {
			t.Errorf("events: %s, want %s", got, want)
		}
	})
}
