package guard

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fakenet"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
)

// wired is a host whose hog fills a link of 100 Mbit/s beside svc/web, unless the network that the
// test plays lets it send less.
type wired struct {
	*model
	net    *fakenet.Network
	dir    string // of groups
	helps  bool   // the victim is well once the hog sends less
	sent   map[string]float64
	last   watch.Time
	capped bool // some other group was
}

// link is that of eth0, of 12.5 million bytes per second.
var link = watch.Part{Kind: watch.Link, ID: 1}

const linkRate = 12.5e6

// ceiling is what a group may send.
func (w *wired) ceiling(group string) float64 {
	minor, err := w.net.Mark(filepath.Join(w.dir, group))
	_, classes := w.net.Of("eth0")
	if c, ok := classes[minor]; err == nil && ok {
		return float64(c.Ceil)
	}
	return linkRate
}

func (w *wired) Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	to, err := w.model.Tick(now, to)
	s := (now - w.last).Seconds()
	w.last = now
	paces := map[string]float64{w.web: 5e5, w.other: 2e6, w.hog: 1e4}
	if w.hogging() {
		paces[w.hog] = min(9.5e6, w.ceiling(w.hog))
	}
	w.capped = w.capped || w.ceiling(w.other) < linkRate || w.ceiling(w.web) < linkRate
	sum := 0.0
	for _, v := range paces {
		sum += v
	}
	trip := 300e-6
	if full := sum >= 0.9*linkRate; full || w.hogging() && !w.helps {
		trip = 20e-3
	}
	add := func(of watch.Subject, q watch.Quantity, v float64) {
		to = append(to, watch.Sample{Time: now, Subject: of, Quantity: q, Value: v})
	}
	for group, pace := range paces {
		w.sent[group] += pace * s
		of := watch.Subject{Scope: watch.Group, Name: group, Part: link}
		add(of, watch.NetSent, w.sent[group])
		w.sent[""] += pace * s
	}
	add(watch.Subject{Part: link}, watch.NetSent, w.sent[""])
	add(watch.Subject{Part: link}, watch.LinkRate, linkRate)
	add(watch.Subject{Part: link}, watch.LinkQueued, 0)
	add(watch.Subject{Scope: watch.Group, Name: w.web}, watch.RoundTrip, trip)
	return to, err
}

func (w *wired) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) { return to, nil }

// From the finding to the class of the hog, and back once it has ended; what does not help is taken
// back, and nothing is done on a link that nobody named. An innocent sender is never limited.
func TestSendIsLowered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		helps, divided bool
		begins, ends   string
		during         float64 // the ceiling of the hog once it is kept
	}{
		"it helps":         {true, true, "applied kept on_trial relaxed", "on_trial restored kept on_trial relaxed", 4.75e6},
		"it does not help": {false, true, "applied reverted gave_up", "", 0},
		"nobody named it":  {true, false, "refused", "refused", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			layout := fakekernel.V2()
			layout.CPUs = "0-3"
			k, err := fakekernel.New(dir, layout)
			if err != nil {
				t.Fatal(err)
			}
			w := &wired{model: newModel(), net: fakenet.New(k.FS(), "eth0"), dir: "sys/fs/cgroup", helps: c.helps, sent: map[string]float64{}}
			root := traffic.Lay(kernel.NewRoot(dir, k), w.net)
			groups, err := cgroup.Detect(root)
			if err != nil {
				t.Fatal(err)
			}
			groups.Hierarchies[0].Own = ""
			base, err := groups.Base(cgroup.CPU, cgroup.CPUSet)
			if err != nil {
				t.Fatal(err)
			}
			var plan kernel.Plan
			for _, group := range []string{w.web, w.hog, w.other} {
				some, err := base.Child(group).Create()
				if err != nil {
					t.Fatal(err)
				}
				plan = append(plan, some...)
			}
			if c.divided {
				const htb = "sys/net/eth0/htb"
				plan = append(plan, kernel.Step{Op: kernel.Mkdir, Path: htb}, kernel.Step{Path: htb + "/0001", Value: "rate 12500000 ceil 12500000 prio 0"},
					kernel.Step{Path: htb + "/0002", Value: "rate 12500000 ceil 12500000 prio 3"})
			}
			if _, err := kernel.Apply(root, plan, nil); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				host, err := actuate.Open(actuate.Options{Root: root, Dir: filepath.Join(dir, "run/guard")})
				if err != nil {
					t.Fatal(err)
				}
				w.began = time.Now()
				w.noProbe, w.hogs, w.ends, w.idle = errTooDear, time.Minute, 6*time.Minute, true // it takes no CPU away
				o := w.options(control.Enforce)
				o.Sensors, o.Actuator = w, host
				o.Workloads = func(context.Context) ([]Workload, error) {
					return []Workload{{Group: w.web, Class: place.LSR, Sensitive: true}, {Group: w.hog, Class: place.BE}, {Group: w.other, Class: place.BE}}, nil
				}
				during := 0.0
				var acted []control.Event
				o.Acted = func(e control.Event) {
					if acted = append(acted, e); e.Outcome == control.Kept && during == 0 {
						during = w.ceiling(w.hog)
					}
				}
				o.Failed = func(err error) { t.Error(err) }
				r, err := New(o)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
				defer cancel()
				if err := r.Run(ctx); err != nil {
					t.Error(err)
				}
				if got := outcomes(acted); !strings.HasPrefix(got, c.begins) || !strings.HasSuffix(got, c.ends) || during != c.during {
					t.Errorf("ceiling %g, want %g; events %v", during, c.during, acted)
				}
				for _, e := range acted {
					if e.Suspect != w.hog || e.Action != nil && e.Action.Group != w.hog {
						t.Errorf("about another group: %v", e)
					}
				}
				if _, classes := w.net.Of("eth0"); w.capped || w.ceiling(w.hog) < linkRate || len(classes) > 2 || len(host.Notes()) > 0 {
					t.Errorf("others were limited %v; in the end classes %v, noted %v", w.capped, classes, host.Notes())
				}
				if err := host.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
