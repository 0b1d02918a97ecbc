package control_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
)

// nice is a remedy that there is not: it takes processes away from the suspect, ten each
// time.
var nice = control.Remedy{
	Name:  "fewer_tasks",
	Knobs: []string{"pidsMax"},
	Propose: func(c *control.Case) (to cgroup.Limits, reason string) {
		to.PIDsMax = 100
		if c.Held != nil {
			to.PIDsMax = c.Held.PIDsMax - 10
		}
		return to, ""
	},
	Weaker: func(_ *control.Case, from cgroup.Limits, before *cgroup.Limits) (to cgroup.Limits, ok bool) {
		to.PIDsMax = from.PIDsMax + 5
		return to, before != nil && to.PIDsMax < before.PIDsMax
	},
}

// niced is a host on which nothing else is known to help.
type niced struct{ *paper }

func (p niced) findings() []detect.Finding {
	all := p.paper.findings()
	for i := range all {
		all[i].Remedies = []detect.Remedy{nice.Name}
	}
	return all
}

// A remedy is a value: the loop tries one that it has never heard of, verifies it, makes
// it stronger, relaxes it, and reverts it.
func TestRemedyIsAValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		left   float64
		ends   time.Duration // when the suspect stops; 0 is never
		within time.Duration
		want   string
		set    []int64
	}{
		{"helps", 0.1, 0, 10 * time.Second, "applied kept", []int64{100}},
		{"does nothing", 1, 0, 10 * time.Second, "applied reverted gave_up", []int64{100}},
		{"helps in part", 0.5, 0, 11 * time.Second, "applied kept applied reverted gave_up", []int64{100, 90, 100}},
		{"not needed any more", 0.1, 10 * time.Second, time.Minute, "applied kept on_trial relaxed", []int64{100}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := onPaper(t, 16, complaint{victim, "pods/batch", detect.CPU, map[detect.Remedy]float64{nice.Name: c.left}})
				config := enforce()
				config.Remedies = append(control.Remedies(), nice)
				loop, err := control.New(config, p)
				if err != nil {
					t.Fatal(err)
				}
				var words []string
				for began := time.Now(); time.Since(began) < c.within; {
					time.Sleep(time.Second)
					if c.ends > 0 && time.Since(began) > c.ends {
						p.base = 0.1
					}
					in := control.Input{Findings: niced{p}.findings(), Symptoms: p, Workloads: p.workloads, Host: p.host()}
					for _, e := range loop.Step(t.Context(), in) {
						words = append(words, e.Outcome.String())
					}
				}
				if got := strings.Join(words, " "); got != c.want {
					t.Errorf("events %q, want %q", got, c.want)
				}
				var set []int64
				for _, a := range p.applied {
					set = append(set, a.Limits.PIDsMax)
				}
				if len(set) != len(c.set) {
					t.Fatalf("set %v, want %v", set, c.set)
				}
				for i := range set {
					if set[i] != c.set[i] {
						t.Errorf("set %v, want %v", set, c.set)
					}
				}
				if held := strings.Contains(c.want, "kept") && c.ends == 0; (len(p.force) > 0) != held {
					t.Errorf("active: %v after %s", p.force, c.want)
				}
			})
		})
	}
}

// What no loop could carry out is refused.
func TestRemediesRefused(t *testing.T) {
	t.Parallel()
	for name, all := range map[string][]control.Remedy{
		"no name":    {{Propose: nice.Propose, Knobs: nice.Knobs}},
		"no action":  {{Name: "x", Knobs: nice.Knobs}},
		"no setting": {{Name: "x", Propose: nice.Propose}},
		"unknown":    {{Name: "x", Propose: nice.Propose, Knobs: []string{"tasks"}}},
		"two of one": {nice, nice},
	} {
		if _, err := control.New(control.Config{Remedies: all}, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
