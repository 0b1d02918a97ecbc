package detect_test

import (
	"strings"
	"testing"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// A program in no group of its own is a victim and a suspect as a group is, also beside a
// group of the same name. Nobody can act on it.
func TestProgram(t *testing.T) {
	t.Parallel()
	d, err := detect.New(detect.Config{Machine: simMachine()})
	if err != nil {
		t.Fatal(err)
	}
	web, hog := watch.Subject{Scope: watch.Process, Name: "a/web"}, watch.Subject{Scope: watch.Process, Name: "hog"}
	group := watch.Subject{Scope: watch.Group, Name: "hog"}
	for _, s := range []watch.Subject{web, hog, group} {
		d.Track(detect.Workload{Group: detect.Name(s), Sensitive: s == web})
	}
	cpus := float64(simMachine().Online.Len())
	var last []detect.Finding
	for i := range 20 {
		at := watch.Time(i) * watch.Second
		samples := []watch.Sample{{Time: at, Quantity: watch.CPUTime, Value: cpus * float64(i)}, {Time: at, Quantity: watch.Steal}}
		for s, use := range map[watch.Subject]float64{web: 0.5, hog: cpus - 0.6, group: 0.1} {
			add := func(q watch.Quantity, level float64) {
				samples = append(samples, watch.Sample{Time: at, Subject: s, Quantity: q, Value: level * float64(i)})
			}
			add(watch.CPUTime, use)
			add(watch.CPUWait, 1)
			add(watch.CPUPeriods, 0)
			add(watch.CPUThrottledPeriods, 0)
		}
		d.Observe(samples)
		last = d.Judge(at)
	}
	if len(last) != 1 {
		t.Fatalf("%d findings: %v", len(last), last)
	}
	f := last[0]
	if f.Victim != "process a/web" || f.Suspect != "process hog" || f.Resource != detect.CPU || len(f.Remedies) != 0 || !detect.InNoGroup(f.Suspect) {
		t.Errorf("%+v", f)
	}
	if text := f.String(); !strings.Contains(text, "seen: process hog: correlation") || !strings.Contains(text, "would help: to give them a group of their own, in class BE") {
		t.Error(text)
	}
	for name, want := range map[string]bool{"/": true, "process x": true, "hog": false, "": false, "processes/x": false} {
		if detect.InNoGroup(name) != want {
			t.Errorf("%q is in no group: %v", name, !want)
		}
	}
}
