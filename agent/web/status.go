package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
)

// maxEvents is how many of the latest events a Status has at most.
const maxEvents = 50

// Status is what the page shows.
type Status struct {
	// Time is the agent's clock, Read when the figures were read; absent before the
	// first reading.
	Time    time.Time `json:"time"`
	Read    time.Time `json:"read,omitzero"`
	Started time.Time `json:"started"`
	Backend string    `json:"backend"`
	Policy  string    `json:"policy"`
	PID     int       `json:"pid"`
	// File is the configuration's, "" for the defaults.
	File string `json:"file,omitempty"`

	Machine Machine `json:"machine"`
	// Workloads are by rising id.
	Workloads []Workload    `json:"workloads"`
	Waiting   []api.Waiting `json:"waiting"`
	Guard     Guard         `json:"guard"`
	// Classes are those of caches and other kinds that this host has.
	Classes []Classes `json:"classes"`
	// Warnings are about the configuration and the agent.
	Warnings []string `json:"warnings"`
	// Events are the latest, oldest first.
	Events []api.Event `json:"events"`
}

// Workload is a line of the page's table. A figure that the host does not tell is
// absent.
type Workload struct {
	api.Owner
	Since time.Time `json:"since"`
	Notes []string  `json:"notes,omitempty"`
	Figures
}

// Figures are rates over the last two readings, and the memory at the last.
type Figures struct {
	// CPU is CPU time per second: CPUs in use.
	CPU *float64 `json:"cpu,omitempty"`
	// Throttled is the share of the enforcement periods in which the quota ran out;
	// absent without quota.
	Throttled *float64 `json:"throttled,omitempty"`
	// CPUPressure, MemoryPressure and IOPressure are the share of the time in which
	// some task waited for the resource (PSI, Documentation/accounting/psi.rst).
	CPUPressure    *float64 `json:"cpuPressure,omitempty"`
	MemoryPressure *float64 `json:"memoryPressure,omitempty"`
	IOPressure     *float64 `json:"ioPressure,omitempty"`
	// Memory is in bytes.
	Memory *float64 `json:"memory,omitempty"`
}

// statusOf asks the agent for all that the page shows. What changes between the
// questions is told by the next Status.
func statusOf(ctx context.Context, s api.Server) (status Status, err error) {
	about, errAbout := s.View.About(ctx)
	config, errConfig := s.View.Config(ctx)
	m, errMachine := s.View.Machine(ctx)
	stats, errStats := s.View.Stats(ctx)
	guard, errGuard := s.View.Guard(ctx)
	list, errList := s.Node.List(ctx)
	classes, errClasses := s.View.ClassReport(ctx)
	if err := errors.Join(errAbout, errConfig, errMachine, errStats, errGuard, errList); err != nil {
		return status, err
	}
	status = Status{
		Time: time.Now(), Read: stats.Time, Started: about.Started, Backend: about.Backend, Policy: about.Policy, PID: about.PID, File: config.File,
		Machine: machineOf(m), Workloads: workloadsOf(m.Owners, list, stats),
		Waiting: append([]api.Waiting{}, about.Waiting...), Warnings: warningsOf(about, config), Guard: guardOf(guard),
		Classes: classesOf(classes),
		Events:  append([]api.Event{}, s.History.After(0)...),
	}
	if errClasses != nil { // it hides nothing else
		status.Warnings = append(status.Warnings, "classes: "+errClasses.Error())
	}
	status.Events = status.Events[max(0, len(status.Events)-maxEvents):]
	for i := range status.Events {
		if e := &status.Events[i]; e.Guard != nil {
			e.Text = strings.ReplaceAll(e.Guard.Outcome.String(), "_", " ") + ": " + e.Guard.Sentence(naming(guard))
		}
	}
	return status, nil
}

// snapshot is a Status as text, for many requests.
type snapshot struct {
	head   []byte // up to the first event
	events []eventText
	held   map[string]bool // the ids of the workloads that there are

	mu        sync.Mutex
	explained map[string]explained // since, by id
}

type explained struct {
	text []byte
	err  error
}

type eventText struct {
	seq  uint64
	text []byte
}

// maxExplained is how many workloads are explained at most in api.Freshness.
const maxExplained = 8

var errBusy = errors.New("too many explanations at once; ask again in a second")

func snapshotOf(ctx context.Context, s api.Server, hour *Hour) (*snapshot, error) {
	status, err := statusOf(ctx, s)
	if err != nil {
		return nil, err
	}
	status.Machine.Load = hour.Loads(time.Now())
	snap := &snapshot{explained: map[string]explained{}, held: map[string]bool{}}
	for i := range status.Workloads {
		snap.held[status.Workloads[i].ID] = true
	}
	for i := range status.Events {
		text, err := json.Marshal(&status.Events[i])
		if err != nil {
			return nil, err
		}
		snap.events = append(snap.events, eventText{status.Events[i].Seq, text})
	}
	status.Events = []api.Event{}
	text, err := json.Marshal(&status)
	if err != nil {
		return nil, err
	}
	var ok bool
	if snap.head, ok = bytes.CutSuffix(text, []byte("]}")); !ok {
		return nil, errors.New("status: its events are not the last field")
	}
	return snap, nil
}

// text is the Status with the events above a number; one above all of them is of an
// earlier start, before the clock was set back, and stands for none.
func (s *snapshot) text(after uint64) []byte {
	if n := len(s.events); n > 0 && after > s.events[n-1].seq {
		after = 0
	}
	text := slices.Clone(s.head)
	separator := ""
	for _, e := range s.events {
		if e.seq > after {
			text = append(append(text, separator...), e.text...)
			separator = ","
		}
	}
	return append(text, "]}"...)
}

// explain is why a workload is where it is.
func (s *snapshot) explain(ctx context.Context, from api.Server, id string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.explained[id]
	switch {
	case ok:
		return e.text, e.err
	case !s.held[id]:
		return nil, &place.NotHeldError{ID: id}
	case len(s.explained) >= maxExplained:
		return nil, errBusy
	}
	why, err := from.Explain(ctx, id)
	if e.err = err; err == nil {
		e.text, e.err = json.Marshal(why)
	}
	s.explained[id] = e
	return e.text, e.err
}

// workloadsOf joins what is told of each workload.
func workloadsOf(owners []api.Owner, list []agent.Workload, stats api.Stats) []Workload {
	held := make(map[string]api.Owner, len(owners))
	for _, o := range owners {
		held[o.ID] = o
	}
	figures := make(map[string][]api.Figure, len(stats.Workloads))
	for _, f := range stats.Workloads {
		figures[f.ID] = f.Figures
	}
	all := make([]Workload, 0, len(list))
	for i := range list {
		w := &list[i]
		o := held[w.ID()]
		o.ID, o.Class, o.CPUs, o.Mems = w.ID(), w.Spec.Request.Class, w.CPUs, w.Mems
		all = append(all, Workload{o, w.Since, w.Notes, figuresOf(figures[o.ID])})
	}
	return all
}

func figuresOf(all []api.Figure) (f Figures) {
	var periods, throttled *float64
	rates := map[watch.Quantity]**float64{
		watch.CPUTime: &f.CPU, watch.CPUPeriods: &periods, watch.CPUThrottledPeriods: &throttled,
		watch.CPUSome: &f.CPUPressure, watch.MemorySome: &f.MemoryPressure, watch.IOSome: &f.IOPressure,
	}
	for i := range all {
		to, rated := rates[all[i].Quantity]
		switch {
		case all[i].Part != (watch.Part{}):
		case rated:
			*to = all[i].Rate
		case all[i].Quantity == watch.Memory:
			f.Memory = &all[i].Value
		}
	}
	if periods != nil && throttled != nil && *periods > 0 {
		share := *throttled / *periods
		f.Throttled = &share
	}
	return f
}

func warningsOf(a api.About, c api.Config) []string {
	all := []string{}
	for _, u := range a.Unserved {
		all = append(all, "This page is to be in one more place, and is not: "+u)
	}
	if c.Refused != "" {
		all = append(all, "The configuration's file was refused, and the one before stays active: "+c.Refused)
	}
	for _, p := range c.Pending {
		all = append(all, "Waits for the next start of the agent: "+p)
	}
	return all
}

// Machine is the hardware as the page draws it.
type Machine struct {
	Name  string `json:"name,omitempty"`
	Model string `json:"model,omitempty"`
	// Boxes are the widest domains that have CPUs.
	Boxes    []Box      `json:"boxes"`
	Online   cpuset.Set `json:"online"`
	Offline  cpuset.Set `json:"offline,omitzero"`
	Isolated cpuset.Set `json:"isolated,omitzero"`
	Reserved cpuset.Set `json:"reserved,omitzero"`
	Allowed  cpuset.Set `json:"allowed,omitzero"`
	Shared   cpuset.Set `json:"shared"`
	// Load is how busy each CPU was since the last status, as a share (0-1); absent where
	// that is not known.
	Load map[int]float64 `json:"load,omitempty"`
	// Notes are what is unusual about it.
	Notes []string `json:"notes"`
}

func machineOf(m api.Machine) Machine {
	hw := m.Machine
	out := Machine{
		Name: hw.Name, Model: hw.Model, Boxes: boxesOf(hw), Online: hw.Online, Offline: hw.Offline, Isolated: hw.Isolated,
		Reserved: m.Config.Reserved, Allowed: m.Config.Allowed, Shared: m.Shared, Notes: []string{},
	}
	for _, n := range machine.Unusual(hw) {
		out.Notes = append(out.Notes, n.Text)
	}
	return out
}
