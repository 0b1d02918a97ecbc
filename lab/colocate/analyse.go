package colocate

import (
	"fmt"
	"slices"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// view is a result with its figures judged.
type view struct {
	*Experiment
	report.Judged
	measured    *lab.Measured
	undisturbed bool
	// each are the services of every mode by themselves, bills what the modes with CPUs of
	// their own cost.
	each  []ServiceRow
	bills []ModeBill
}

// ServiceRow is a service in a mode: of all its requests in the rounds that count, those
// included that others disturbed.
type ServiceRow struct {
	Mode     string `json:"mode"`
	Service  int    `json:"service"` // from 1
	CPUs     string `json:"cpus"`
	Requests int    `json:"requests"`
	Failed   int    `json:"failed,omitempty"` // or not answered
	// Response times are in microseconds; those that the requests are too few for are 0.
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	// Throughput is answers per second, Used the CPUs that it used, Throttled the seconds
	// per second for which a limit stopped it.
	Throughput float64 `json:"throughput"`
	Used       float64 `json:"used"`
	Throttled  float64 `json:"throttled,omitempty"`
}

// ModeBill is the bill of a mode.
type ModeBill struct {
	Mode string `json:"mode"`
	report.Bill
	// Idle is how many of the reserved CPUs stay idle beside others.
	Idle int `json:"idle,omitempty"`
}

// figures are what modes are compared by.
func figures() []stats.Figure { return []stats.Figure{lab.P50, lab.P95, lab.P99, lab.Throughput} }

func (x *Experiment) view() (*view, error) {
	if len(x.Experiment.Modes) == 0 || x.Services > maxServices {
		return nil, fmt.Errorf("result: %d modes, %d services: want a mode, and at most %d services", len(x.Experiment.Modes), x.Services, maxServices)
	}
	m, err := lab.Measure(&lab.Result{Header: x.Header, Rounds: x.Rounds})
	if err != nil {
		return nil, err
	}
	e := x.Experiment
	v := &view{Experiment: x, measured: m, Judged: report.Judged{Head: "mode", Reference: e.Modes[0].Name, Figures: figures(), Skipped: x.Skipped}}
	references := e.references()
	if len(references) > 1 {
		v.Again = references[1]
	}
	v.Samples, v.undisturbed = m.Samples()
	var family []stats.Versus
	for i, mode := range e.Modes {
		v.Cells = append(v.Cells, report.JudgedCell{Name: mode.Name, Means: mode.Means})
		if i == 0 {
			continue
		}
		versus := stats.Versus{Cell: mode.Name, Against: v.Reference}
		if !slices.Contains(references, mode.Name) {
			versus.References = references
		}
		family = append(family, versus)
	}
	own := v.own()
	for i := 1; i < len(own); i++ {
		family = append(family, stats.Versus{Cell: own[i].Name, Against: own[0].Name})
	}
	v.Compared = stats.Compare(v.Samples, v.Figures, family)
	for _, mode := range e.Modes {
		rows, err := v.services(mode.Name)
		if err != nil {
			return nil, err
		}
		v.each = append(v.each, rows...)
	}
	for _, mode := range own {
		t, p := m.Total(mode.Name), x.placed(mode.Name)
		v.bills = append(v.bills, ModeBill{mode.Name, report.Bill{Reserved: p.reserved().Len(), Of: t.SharedCPUs, Used: t.Tenant.CPUSeconds / t.Seconds}, p.idle().Len()})
	}
	return v, nil
}

// own are the modes that ran and give services CPUs of their own.
func (v *view) own() (all []Mode) {
	for _, m := range v.Experiment.Experiment.Modes {
		if m.owns() && v.Ran(m.Name) {
			all = append(all, m)
		}
	}
	return all
}

// placed is where a mode has the services.
func (x *Experiment) placed(mode string) Placed {
	i := slices.IndexFunc(x.Placed, func(p Placed) bool { return p.Mode == mode })
	if i < 0 {
		return Placed{}
	}
	return x.Placed[i]
}

// services are those of a mode, each by itself.
func (v *view) services(mode string) (rows []ServiceRow, err error) {
	rounds := v.measured.Valid(mode)
	at := v.placed(mode).Services
	for n := range v.Services {
		row := ServiceRow{Mode: mode, Service: n + 1}
		if n < len(at) {
			row.CPUs = at[n].CPUs.String()
		}
		var responses []stats.Round
		seconds, done := 0.0, 0
		for _, r := range rounds {
			if n >= len(r.Load.Each) || n >= len(r.Servers) {
				continue
			}
			of := r.Load.Each[n]
			response, err := stats.Decode(of.Response)
			if err != nil {
				return nil, err
			}
			responses = append(responses, stats.Round{Seconds: []stats.Distribution{response}})
			row.Requests += of.Offered
			row.Failed += of.Censored
			done += of.DoneInWindow
			seconds += r.Seconds
			row.Used += r.Servers[n].CPUSeconds
			row.Throttled += r.Servers[n].ThrottledSeconds
		}
		if seconds == 0 {
			continue
		}
		row.Throughput, row.Used, row.Throttled = float64(done)/seconds, row.Used/seconds, row.Throttled/seconds
		row.P50, row.P95 = stats.Pooled(responses, 50), stats.Pooled(responses, 95)
		row.P99, row.P999 = stats.Pooled(responses, 99), stats.Pooled(responses, 99.9)
		rows = append(rows, row)
	}
	return rows, nil
}
