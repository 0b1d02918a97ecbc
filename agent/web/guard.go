package web

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

// newActions counts steps of the guard, from zero. A step without a remedy, as there is
// none left or none may be taken, has the remedy "none". That a suspect was left alone is no step.
func newActions() *prometheus.CounterVec {
	actions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_guard_actions_total", Help: "Steps of the guard, by remedy and what became of it.",
	}, []string{"remedy", "outcome"})
	for _, remedy := range append(remedies(), noRemedy) {
		for o := control.Outcome(0); o.Known(); o++ {
			if o != control.Spared {
				actions.WithLabelValues(remedy, o.String())
			}
		}
	}
	return actions
}

const noRemedy = "none"

// remedies are the names of those that the guard carries out.
func remedies() (names []string) {
	for _, r := range control.Remedies() {
		names = append(names, r.Name.String())
	}
	return names
}

// guarded counts a step of the guard.
func (t *told) guarded(e *control.Event) {
	if e == nil || e.Outcome == control.Spared {
		return
	}
	remedy := noRemedy
	if e.Action != nil {
		remedy = e.Action.Remedy.String()
	}
	t.actions.WithLabelValues(remedy, e.Outcome.String()).Inc()
}

// guard shows where the guard stands. Shown are the workloads that have series.
func (s scrape) guard(g api.Guard, shown []api.Owner) {
	for _, mode := range config.GuardModes() {
		s.gauge("berth_guard_mode", truth(g.Mode == mode), string(mode))
	}
	s.gauge("berth_guard_running", truth(g.Status != nil))
	if g.Status == nil {
		return
	}
	s.counter("berth_guard_windows_total", float64(g.Status.Windows))
	s.counter("berth_guard_late_windows_total", float64(g.Status.Late))
	s.gauge("berth_guard_left_out_groups", float64(g.Status.LeftOut))
	s.gauge("berth_guard_probe_armed", truth(g.Status.Probe.Armed))
	s.gauge("berth_guard_probe_cpus", g.Status.Probe.Cost)
	inForce := map[string]int{}
	if g.Mode == config.GuardEnforce {
		for _, a := range g.Status.Active {
			inForce[a.Remedy.String()]++
		}
	}
	for _, remedy := range remedies() {
		s.gauge("berth_guard_in_force", float64(inForce[remedy]), remedy)
	}
	s.suffering(g, shown)
}

// suffering shows the findings, and the surest of each resource for the workloads that
// are shown.
func (s scrape) suffering(g api.Guard, shown []api.Owner) {
	classes := make(map[string]place.Class, len(shown))
	for i := range shown {
		classes[shown[i].ID] = shown[i].Class
	}
	type suffers struct{ workload, resource string }
	count, surest := map[string]int{}, map[suffers]float64{}
	for i := range g.Status.Findings {
		f := &g.Status.Findings[i]
		count[f.Resource.String()]++
		key := suffers{g.Workloads[f.Victim], f.Resource.String()}
		surest[key] = max(surest[key], f.Confidence)
	}
	for _, r := range detect.Resources() {
		s.gauge("berth_guard_findings", float64(count[r.String()]), r.String())
	}
	for key, confidence := range surest {
		if class, ok := classes[key.workload]; ok {
			s.gauge("berth_workload_suffering", confidence, append(s.labels(key.workload, class), key.resource)...)
		}
	}
}
