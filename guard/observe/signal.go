package observe

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/proc"
)

// RunQueue is the name of the signal that needs the run-queue probe.
const RunQueue = "run queue"

// Signal is a source of samples.
type Signal struct {
	Name string `json:"name"`
	// Of is whose samples they are: "host", "group" or "group in focus".
	Of string `json:"of"`
	// Available is false where there are none, Reason then says why, and Remedy
	// what would help, if that is known.
	Available bool   `json:"available"`
	Reason    string `json:"reason,omitempty"`
	Remedy    string `json:"remedy,omitempty"`
	// CostSeconds is the time that one reading took, by the median of a few; 0
	// where that was not measured.
	CostSeconds float64 `json:"costSeconds,omitempty"`
	// Note says what else it costs.
	Note string `json:"note,omitempty"`
}

// with completes a signal with how reading it went.
func (s Signal) with(cost time.Duration, err error) Signal {
	var no *kernel.NotSupportedError
	switch {
	case err == nil:
		s.Available, s.CostSeconds = true, cost.Seconds()
	case errors.As(err, &no):
		s.Reason, s.Remedy = no.Reason, no.Remedy
	default:
		s.Reason = err.Error()
	}
	return s
}

// Signals says for each signal whether it is there, why not, and what reading it
// costs. Those of groups are asked of the first in focus or, if there is none, of
// the one of a few that has most of them; without a group they are not listed.
func (o *Observer) Signals() ([]Signal, error) {
	groups := sortedKeys(o.focus)
	if len(groups) > 0 {
		groups = groups[:1]
	} else {
		var err error
		if groups, err = o.Groups(); err != nil {
			return nil, err
		}
		groups = groups[:min(len(groups), MaxFocus)]
	}
	var most []Signal
	for _, group := range groups {
		if signals := o.groupSignals(group); available(signals) > available(most) || most == nil {
			most = signals
		}
	}
	return append(append(o.hostSignals(), most...), o.probeSignal()), nil
}

func (o *Observer) groupSignals(group string) []Signal {
	var all []Signal
	for _, signal := range sampled() {
		all = append(all, o.groupSignal(group, signal))
	}
	r := o.focus[group]
	if r == nil {
		r = o.site.Open(group, o.usable(group), Sources(InFocus, o.cfg.Sources...))
	}
	return append(all, r.signals("group in focus")...)
}

func available(signals []Signal) (n int) {
	for _, s := range signals {
		if s.Available {
			n++
		}
	}
	return n
}

func (o *Observer) probeSignal() Signal {
	err := o.noRun
	if err == nil {
		err = o.probeAvailable()
	}
	if err == nil && !o.cfg.Probe {
		err = &kernel.NotSupportedError{Feature: "run-queue probe", Reason: "it was not asked for"}
	}
	return Signal{Name: RunQueue, Of: "group in focus", Note: "programs in the kernel at every wake-up and context switch while armed"}.with(0, err)
}

func (o *Observer) hostSignals() []Signal {
	all := []Signal{Signal{Name: "cpu time and steal", Of: "host"}.with(measure(func() error {
		err := o.files.readTimes()
		if err == nil && !o.files.times.Total.HasSteal() {
			err = &kernel.NotSupportedError{Feature: "steal", Reason: "/proc/stat has no such column"}
		}
		return err
	}))}
	for _, p := range pressures {
		all = append(all, Signal{Name: p.resource + " pressure", Of: "host"}.with(measure(func() error {
			_, err := proc.ReadPressure(o.host, "proc/pressure/"+p.resource)
			return err
		})))
	}
	return append(all, o.site.Open("", cpuset.Set{}, Sources(OfHost, o.cfg.Sources...)).signals("host")...)
}

func (o *Observer) groupSignal(group string, signal cgroupstat.Signal) Signal {
	s := Signal{Name: signal.String(), Of: "group"}
	r, err := cgroupstat.Open(o.site.Trees, group, signal)
	if err != nil {
		return s.with(0, err)
	}
	defer r.Close()
	if err := r.Signals()[0].Err; err != nil {
		return s.with(0, err)
	}
	return s.with(measure(readAgain(func(now watch.Time) error {
		_, err := r.Read(now, nil)
		return err
	})))
}

// readAgain gives each reading a later time.
func readAgain(read func(watch.Time) error) func() error {
	now := watch.Time(0)
	return func() error {
		now += watch.Millisecond
		return read(now)
	}
}

// measure returns the median time of a few calls.
func measure(read func() error) (time.Duration, error) {
	var took []time.Duration
	for range 9 {
		began := time.Now()
		if err := read(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
