package control_test

import (
	"context"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

// outsiders are the processes in no group of a host on paper.
func outsiders(use float64, of ...control.Process) control.Workload {
	return control.Workload{Group: detect.Outside, Class: place.BE, Use: use, Processes: of}
}

var (
	maker = control.Process{PID: 7, Start: "70", Program: "make"}
	cc    = control.Process{PID: 8, Start: "80", Program: "cc1"}
)

// Remedies of processes are tried in order, and those of groups not at all; without a process
// that may be acted on there is none.
func TestProcessRemedies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		workload control.Workload
		left     map[detect.Remedy]float64
		want     string
	}{
		"groups cannot be idle": {outsiders(8, maker), map[detect.Remedy]float64{detect.ProcessWeight: 0.1}, "applied process_weight /: SCHED_IDLE\nkept process_weight /: SCHED_IDLE\n"},
		"helps":                 {outsiders(8, maker), map[detect.Remedy]float64{detect.ProcessWeight: 0.1}, "applied process_weight /: SCHED_IDLE\nkept process_weight /: SCHED_IDLE\n"},
		"helps in part": {outsiders(8, maker), map[detect.Remedy]float64{detect.ProcessWeight: 0.7, detect.ProcessCPUs: 0.1}, `applied process_weight /: SCHED_IDLE
kept process_weight /: SCHED_IDLE
applied process_cpus /: CPUs 4-15
kept process_cpus /: CPUs 4-15
`},
		"no SCHED_IDLE": {
			control.Workload{Group: detect.Outside, Class: place.BE, Use: 8, Processes: []control.Process{maker}, NoIdle: "not allowed"},
			map[detect.Remedy]float64{detect.ProcessWeight: 0.1}, "applied process_weight /: weight 1 by nice\nkept process_weight /: weight 1 by nice\n",
		},
		"nobody to act on": {outsiders(8), nil, "refused\n"},
		"not known":        {control.Workload{Group: "else"}, nil, "refused\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := onPaper(t, 16, complaint{victim, detect.Outside, detect.CPU, c.left})
				p.workloads = append(p.workloads, c.workload)
				if name == "groups cannot be idle" {
					p.noIdle = "Linux 5.15 has cpu.idle"
				}
				want(t, p.run(enforce(), 30), c.want)
			})
		})
	}
}

// A process that turns up later is added to those that are acted on.
func TestMoreProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16, complaint{victim, detect.Outside, detect.CPU, map[detect.Remedy]float64{detect.ProcessWeight: 0.7, detect.ProcessCPUs: 1}})
		p.workloads = append(p.workloads, outsiders(8, maker))
		loop, err := control.New(enforce(), p)
		if err != nil {
			t.Fatal(err)
		}
		var acted [][]control.Process
		for i := range 12 {
			if i == 6 {
				p.workloads[len(p.workloads)-1] = outsiders(8, maker, cc)
			}
			time.Sleep(time.Second)
			h := p.host()
			h.Use = 16
			in := control.Input{Findings: p.findings(), Symptoms: p, Workloads: p.workloads, Host: h}
			for _, e := range loop.Step(t.Context(), in) {
				if e.Outcome == control.Applied && e.Action.Remedy == detect.ProcessWeight {
					acted = append(acted, e.Action.Processes)
				}
			}
		}
		if diff := cmp.Diff([][]control.Process{{maker}, {maker, cc}}, acted); diff != "" {
			t.Errorf("acted on (-want +got):\n%s", diff)
		}
		written := slices.DeleteFunc(p.applied, func(a control.Action) bool { return a.Remedy != detect.ProcessWeight })
		if len(written) < 2 || len(written[1].Processes) != 2 {
			t.Errorf("wrote %v, want it for both", written)
		}
	})
}

// restless is a host on which a process changes its own settings all the time.
type restless struct {
	*paper
	p     control.Process
	alone bool // the others have ended
}

func (r restless) Apply(ctx context.Context, a control.Action) ([]control.Change, error) {
	if r.alone && !slices.ContainsFunc(a.Processes, r.p.Is) {
		return nil, fs.ErrNotExist
	}
	return r.paper.Apply(ctx, a)
}

func (r restless) Preview(ctx context.Context, a control.Action) ([]control.Change, error) {
	if r.p.PID != 0 && slices.ContainsFunc(a.Processes, r.p.Is) {
		return []control.Change{{Path: "/proc/7@70/sched.policy", From: "SCHED_OTHER", To: "SCHED_IDLE", Process: r.p}}, nil
	}
	return r.paper.Preview(ctx, a)
}

// A process that changes its own settings is left alone for long, and the others are not.
func TestRestlessProcess(t *testing.T) {
	t.Parallel()
	for name, all := range map[string][]control.Process{"one of two": {maker, cc}, "alone": {maker}, "the other has ended": {maker, cc}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := onPaper(t, 16, complaint{victim, detect.Outside, detect.CPU, map[detect.Remedy]float64{detect.ProcessWeight: 0.1}})
				p.workloads = append(p.workloads, outsiders(8, all...))
				loop, err := control.New(enforce(), restless{p, maker, name == "the other has ended"})
				if err != nil {
					t.Fatal(err)
				}
				var yielded []control.Process
				for range 60 {
					time.Sleep(time.Second)
					h := p.host()
					h.Use = 16
					for _, e := range loop.Step(t.Context(), control.Input{Findings: p.findings(), Symptoms: p, Workloads: p.workloads, Host: h}) {
						if e.Outcome == control.Yielded {
							yielded = append(yielded, e.Action.Processes...)
						}
					}
				}
				if !slices.Equal(yielded, []control.Process{maker}) {
					t.Errorf("left alone: %v", yielded)
				}
				active := loop.Active()
				if name != "one of two" {
					if len(active) > 0 {
						t.Errorf("active: %v", active)
					}
					return
				}
				if len(active) != 1 || !slices.Equal(active[0].Processes, []control.Process{cc}) {
					t.Errorf("active: %+v, want it for the other one", active)
				}
			})
		})
	}
}

// A process that was left alone is in no later step either.
func TestRestlessProcessStaysLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16, complaint{victim, detect.Outside, detect.CPU, map[detect.Remedy]float64{detect.ProcessWeight: 0.7, detect.ProcessCPUs: 0.9}})
		p.workloads = append(p.workloads, outsiders(8, maker, cc))
		host := &restless{paper: p}
		loop, err := control.New(enforce(), host)
		if err != nil {
			t.Fatal(err)
		}
		left, later := false, 0
		for i := range 420 {
			switch i {
			case 5:
				host.p = maker
			case 300:
				p.workloads[len(p.workloads)-1] = outsiders(8, maker, cc, control.Process{PID: 9, Start: "90", Program: "ld"})
			}
			time.Sleep(time.Second)
			h := p.host()
			h.Use = 16
			before := len(p.applied)
			for _, e := range loop.Step(t.Context(), control.Input{Findings: p.findings(), Symptoms: p, Workloads: p.workloads, Host: h}) {
				switch {
				case e.Outcome == control.Yielded:
					left = true
				case e.Outcome == control.Applied && left && slices.ContainsFunc(e.Action.Processes, maker.Is):
					t.Errorf("%d s: %v", i, e)
				case e.Outcome == control.Applied && left:
					later++
				}
			}
			for _, a := range p.applied[before:] {
				if left && slices.ContainsFunc(a.Processes, maker.Is) {
					t.Errorf("%d s: wrote %+v", i, a)
				}
			}
		}
		if !left || later == 0 {
			t.Errorf("left alone: %v, %d steps after that", left, later)
		}
	})
}

// Processes that go short under SCHED_IDLE get a weight that is no less than their floor.
func TestProcessFloor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := onPaper(t, 16, complaint{victim, detect.Outside, detect.CPU, map[detect.Remedy]float64{detect.ProcessWeight: 0.1}})
		p.workloads = append(p.workloads, outsiders(8, maker))
		loop, err := control.New(enforce(), p)
		if err != nil {
			t.Fatal(err)
		}
		var last *control.Event
		for i := range 20 {
			if i == 3 {
				p.workloads[len(p.workloads)-1].Use = 0.01
			}
			time.Sleep(time.Second)
			h := p.host()
			h.Use = 16
			for _, e := range loop.Step(t.Context(), control.Input{Findings: p.findings(), Symptoms: p, Workloads: p.workloads, Host: h}) {
				last = &e
			}
		}
		if last == nil || last.Outcome != control.Relaxed || last.Action.Limits.Idle != 0 || last.Action.Limits.Weight != 6 {
			t.Errorf("last event %v, want the weight of the floor, 6", last)
		}
	})
}

func TestProcessSentence(t *testing.T) {
	t.Parallel()
	a := control.Action{Remedy: detect.ProcessCPUs, Group: detect.Outside, Processes: []control.Process{maker, cc, {PID: 9, Program: "make"}, {PID: 10, Program: "ld"}, {PID: 11, Program: "as"}}}
	a.Limits.CPUs = cpuset.MustParse("1")
	if got, want := a.Sentence("x"), "processes outside of any group (make, cc1, ld, and others) run on CPUs 1 only"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := a.String(); !strings.Contains(got, "process_cpus /: CPUs 1") {
		t.Errorf("%q", got)
	}
}
