// Package colocate measures many services on one machine: so many servers with so many CPUs
// each, which all share the CPUs, or have exclusive ones, as the placement engine gives them
// out. It follows an experiment that Koordinator published, with ten nginx.
//
// Servers, load and rounds are those of lab, statistics those of lab/stats, and which
// service gets which CPUs is what a policy of place/policies answers.
package colocate

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/lab"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// Schema names the version of the result file's format.
const Schema = "berth.dev/lab-colocate/v1"

// Spec is what was asked for.
type Spec struct {
	// Service is the server: "nginx", "article" (Berth's own), or "auto": nginx where it is
	// installed, else article.
	Service string `json:"service"`
	// Services is how many there are, and CPUsEach how many CPUs each asks for; 0 is ten and
	// four, or as much of that as the CPUs hold in all modes.
	Services int `json:"services"`
	CPUsEach int `json:"cpusEach"`
	// Policy is the placement policy that gives out the CPUs, with its options.
	Policy  string         `json:"policy"`
	Options map[string]any `json:"options,omitempty"`
	// Modes are the ways of giving out the CPUs. The first is what the others are compared
	// with, and the second, if it is like the first but for its name, is the same once more.
	Modes []Mode `json:"modes"`

	// Load is "open": requests are due at times of their own, whatever became of those
	// before; or "wrk": wrk asks in a closed loop, with Connections for each service.
	Load        string `json:"load"`
	Connections int    `json:"connections"`
	// Demand is the share (0-1) of the shared CPUs that all services together want under open
	// load, Rate the requests per second of all of them (0: what comes to that).
	Demand float64 `json:"demand"`
	Rate   float64 `json:"rate,omitempty"`

	// Blocks is how often each mode is measured, if For leaves the time for it; 0 is no limit.
	Blocks int          `json:"blocks"`
	For    lab.Duration `json:"for,omitempty"`
	// Settle is discarded at the start of each round, Window is measured.
	Settle lab.Duration `json:"settle"`
	Window lab.Duration `json:"window"`
	CPUs   string       `json:"cpus,omitempty"` // "" lets the lab choose
	// Weight is the CPU weight of all of it together against all else on the host; 0 is the
	// usual 100. It takes control groups.
	Weight int    `json:"weight,omitempty"`
	Seed   uint64 `json:"seed,omitempty"` // of arrivals and orders; 0 lets the clock choose
}

// Mode is how the services are placed: all by requests of the same kind.
type Mode struct {
	Name  string `json:"name"`
	Means string `json:"means,omitempty"`
	// Class is LSE or LSR, which own CPUs, or LS, which shares all of them and asks for none.
	Class place.Class `json:"class"`
	// Bind and Exclusive are how the CPUs lie on physical cores, and who may be beside them.
	Bind      place.Bind        `json:"bind,omitzero"`
	Exclusive place.Exclusivity `json:"exclusive,omitzero"`
	// Limit limits each service to the time of its CPUs (cpu.max), as a pod of the QoS class
	// Guaranteed is.
	Limit bool `json:"limit,omitempty"`
}

// owns says whether the services have CPUs of their own.
func (m Mode) owns() bool { return m.Class.Traits().Own }

// The loads.
const (
	open = "open"
	wrk  = "wrk"
)

// auto is nginx where it is installed.
const auto = "auto"

// Default is the experiment unless told otherwise.
func Default() Spec {
	const ms = lab.Duration(time.Millisecond)
	return Spec{
		Service: auto, Policy: policies.Default,
		Modes: []Mode{
			{Name: "shared", Means: "all services on all CPUs, as they are by default", Class: place.LS},
			{Name: "shared again", Means: "the same once more, to see by how much the same thing differs", Class: place.LS},
			{Name: "LSE", Means: "whole cores of its own for each (LSE, FullPCPUs)", Class: place.LSE, Bind: place.FullPCPUs},
			{Name: "LSR", Means: "a core for each CPU of each, siblings idle (LSR, SpreadByPCPUs, PCPULevel)", Class: place.LSR, Bind: place.SpreadByPCPUs, Exclusive: place.PCPULevel},
		},
		Load: open, Connections: 32, Demand: 0.4,
		Blocks: 60, For: lab.Duration(2 * time.Minute), Settle: 100 * ms, Window: 500 * ms,
	}
}

// again says whether the second mode is the first once more.
func (s Spec) again() bool {
	if len(s.Modes) < 2 {
		return false
	}
	a, b := s.Modes[0], s.Modes[1]
	a.Name, a.Means, b.Name, b.Means = "", "", "", ""
	return a == b
}

// references are the names of the modes that the others are compared with.
func (s Spec) references() []string {
	if s.again() {
		return []string{s.Modes[0].Name, s.Modes[1].Name}
	}
	return []string{s.Modes[0].Name}
}

// Bounds of a spec.
const (
	maxServices = 64
	maxCPUs     = 1024
	maxBlocks   = 100_000
)

var nameLike = regexp.MustCompile(`^[\pL\d][\pL\d '._×/-]{0,39}$`)

// Validate says what is wrong, naming the field.
func (s Spec) Validate() error {
	var errs []error
	bad := func(broken bool, format string, args ...any) {
		if broken {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	between := func(d lab.Duration, least, most time.Duration) bool {
		return time.Duration(d) >= least && time.Duration(d) <= most
	}
	bad(!slices.Contains([]string{auto, "nginx", lab.Article}, s.Service), "service: %q: want auto, nginx or article", s.Service)
	bad(s.Services < 0 || s.Services > maxServices, "services: %d: want at most %d, or 0 to let the machine decide", s.Services, maxServices)
	bad(s.CPUsEach < 0 || s.CPUsEach > maxCPUs, "cpusEach: %d: want at most %d, or 0 to let the machine decide", s.CPUsEach, maxCPUs)
	_, err := policies.New(s.Policy, s.Options)
	bad(err != nil, "policy: %w", err)
	bad(len(s.Modes) < 2, "modes: %d: want two at least, to compare", len(s.Modes))
	seen := map[string]bool{}
	for _, m := range s.Modes {
		bad(!nameLike.MatchString(m.Name) || seen[m.Name], "modes: name %q: want one of its own, of letters, digits, spaces and '._×/-", m.Name)
		seen[m.Name] = true
		bad(m.Class == place.BE || m.Class == place.System, "modes: %s: class %s: want LS, LSR or LSE", m.Name, m.Class)
		bad(!m.owns() && (m.Bind != place.BindAny || m.Exclusive != place.CPULevel), "modes: %s: bind, exclusive: class %s has no CPUs of its own", m.Name, m.Class)
	}
	bad(s.Load != open && s.Load != wrk, "load: %q: want open or wrk", s.Load)
	bad(s.Load == wrk && (s.Window < lab.Duration(time.Second) || time.Duration(s.Window)%time.Second != 0), "window: %s: wrk measures whole seconds (window: 2s)", s.Window)
	bad(s.Connections < 1 || s.Connections > 4096, "connections: %d: want 1 to 4096 for each service", s.Connections)
	bad(!(s.Demand > 0 && s.Demand <= 1), "demand: %g: want more than 0 and at most 1", s.Demand)
	bad(!(s.Rate >= 0 && s.Rate <= 1e6), "rate: %g: want at most 1e6 requests per second", s.Rate)
	bad(s.Blocks < 1 || s.Blocks > maxBlocks, "blocks: %d: want 1 to %d", s.Blocks, maxBlocks)
	bad(!between(s.For, 0, 30*24*time.Hour), "for: %s: want at most 720h", s.For)
	bad(!between(s.Settle, 0, time.Minute), "settle: %s: want at most 1m", s.Settle)
	bad(!between(s.Window, 100*time.Millisecond, time.Hour), "window: %s: want 100ms to 1h", s.Window)
	bad(s.Weight < 0 || s.Weight > 10_000, "weight: %d: want 1 to 10000", s.Weight)
	_, err = cpuset.Parse(s.CPUs)
	bad(err != nil, "cpus: %w", err)
	if len(errs) > 0 {
		return fmt.Errorf("experiment: %w", errors.Join(errs...))
	}
	return nil
}
