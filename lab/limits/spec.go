// Package limits measures what limits of CPU time cost: servers that render tiles of the
// Mandelbrot set, each in a control group with a limit, under load. It has the experiments
// limits, limits-ramp, limits-noise and routing, which differ in their settings.
//
// The testbed of lab runs the servers, lab/load asks them, and lab/routing says what theory
// expects.
package limits

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
)

// Spec is what was asked for. All that depends on the machine is a share of the CPUs that
// the servers share, or per CPU: so the same settings do on any machine.
type Spec struct {
	Name string `json:"name"`
	// Configs are measured under each of Loads, once a block, in random order. The first is
	// what the others are compared with, and the second, if it is like the first but for its
	// name, is the same once more.
	Configs []Config `json:"configs"`
	Loads   []Load   `json:"loads"`
	// Compare has further pairs to compare, besides each with the first.
	Compare []Pair `json:"compare,omitempty"`
	Sample  int    `json:"sample"` // how many tiles are rendered, again and again; at most all 26,010
	// Blocks is how often each is measured, if For leaves the time for it; 0 is no limit.
	Blocks int          `json:"blocks"`
	For    lab.Duration `json:"for,omitempty"`
	// Settle is discarded at the start of each round, Window is measured.
	Settle lab.Duration `json:"settle"`
	Window lab.Duration `json:"window"`
	CPUs   string       `json:"cpus,omitempty"` // "" lets the lab choose
	// Weight is the CPU weight (1-10000) of the group around the servers, so that the rest of
	// a busy host takes less part; 0 leaves it as it is. Not with noise, beside which the
	// generator, which is in no group, would then starve.
	Weight int    `json:"weight,omitempty"`
	Seed   uint64 `json:"seed,omitempty"` // of the tiles, arrivals and orders; 0 lets the clock choose
}

// Config is a way of serving.
type Config struct {
	Name  string `json:"name"`
	Means string `json:"means,omitempty"`
	// Servers is how many there are. Each has Limit of the CPUs' time (0.5: half of them; 0:
	// no limit) in each Period (0: 100 ms), and may save Burst of that up, as a share of it.
	Servers int          `json:"servers"`
	Limit   float64      `json:"limit,omitempty"`
	Period  lab.Duration `json:"period,omitempty"`
	Burst   float64      `json:"burst,omitempty"`
	// Threads is how many tiles a server renders at once; 0 is as many as there are CPUs.
	Threads int          `json:"threads,omitempty"`
	Routing load.Routing `json:"routing,omitempty"`
	// Noise has another group spin beside the servers, with four threads per CPU, limited to
	// NoiseLimit of the CPUs' time; 0 is no limit.
	Noise      bool    `json:"noise,omitempty"`
	NoiseLimit float64 `json:"noiseLimit,omitempty"`
}

// Load is what the servers are asked for: either of Share and ClientsPerCPU.
type Load struct {
	// Share is how much of the CPUs' time the tiles take (0-1), whose requests arrive by
	// chance, whatever becomes of those before.
	Share float64 `json:"share,omitempty"`
	// ClientsPerCPU ask in a closed loop: each asks again when it was answered.
	ClientsPerCPU float64 `json:"clientsPerCPU,omitempty"`
	// Tiles are "small" (2 to 50 ms each), "large" (400 ms and more), or "all".
	Tiles string `json:"tiles"`
}

// Pair is two configs to compare.
type Pair struct {
	Config  string `json:"config"`
	Against string `json:"against"`
}

// String names a load as in tables: "50 % of the CPUs", "2 clients per CPU, large tiles".
func (l Load) String() string {
	text := fmt.Sprintf("%g %% of the CPUs", 100*l.Share)
	if l.ClientsPerCPU > 0 {
		text = fmt.Sprintf("%g clients per CPU", l.ClientsPerCPU)
		if l.ClientsPerCPU == 1 {
			text = "1 client per CPU"
		}
	}
	if l.Tiles != small {
		text += ", " + l.Tiles + " tiles"
	}
	return text
}

// The kinds of tiles.
const (
	small = "small"
	large = "large"
	all   = "all"
)

// fits says whether a tile of so many steps is of a kind. 2 million steps take about 10 ms.
func fits(kind string, steps int) bool {
	switch kind {
	case small:
		return steps <= 12_000_000
	case large:
		return steps >= load.MaxTileSteps*85/100
	}
	return true
}

// again says whether the second config is the first once more.
func (s Spec) again() bool {
	if len(s.Configs) < 2 {
		return false
	}
	a, b := s.Configs[0], s.Configs[1]
	a.Name, a.Means, b.Name, b.Means = "", "", "", ""
	return a == b
}

// references are the names of the configs that the others are compared with.
func (s Spec) references() []string {
	if s.again() {
		return []string{s.Configs[0].Name, s.Configs[1].Name}
	}
	return []string{s.Configs[0].Name}
}

// cell names a config under a load, which is its name where there is one load.
func (s Spec) cell(c Config, l Load) string {
	if len(s.Loads) == 1 {
		return c.Name
	}
	return c.Name + " @ " + strings.ReplaceAll(l.String(), ",", ";") // a field of a CSV file
}

// servers is the largest number of them.
func (s Spec) servers() (most int) {
	for _, c := range s.Configs {
		most = max(most, c.Servers)
	}
	return most
}

// Bounds of a spec.
const (
	maxServers = 64
	maxBlocks  = 100_000
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
	bad(!nameLike.MatchString(s.Name), "name %q: want letters, digits, spaces and '._×/-, at most 40", s.Name)
	bad(len(s.Configs) == 0, "configs: none: want one at least")
	bad(len(s.Loads) == 0, "loads: none: want one at least")
	bad(s.Sample < 1 || s.Sample > load.Tiles, "sample: %d: want 1 to %d tiles", s.Sample, load.Tiles)
	bad(s.Blocks < 1 || s.Blocks > maxBlocks, "blocks: %d: want 1 to %d", s.Blocks, maxBlocks)
	bad(!between(s.For, 0, 30*24*time.Hour), "for: %s: want at most 720h", s.For)
	bad(!between(s.Settle, 0, time.Minute), "settle: %s: want at most 1m", s.Settle)
	bad(!between(s.Window, 100*time.Millisecond, time.Hour), "window: %s: want 100ms to 1h", s.Window)
	bad(s.Weight < 0 || s.Weight > 10_000, "weight: %d: want 1 to 10000", s.Weight)
	_, err := cpuset.Parse(s.CPUs)
	bad(err != nil, "cpus: %w", err)
	seen := map[string]bool{}
	for _, c := range s.Configs {
		bad(!nameLike.MatchString(c.Name) || seen[c.Name], "configs: name %q: want one of its own, of letters, digits, spaces and '._×/-", c.Name)
		seen[c.Name] = true
		bad(c.Noise && s.Weight > 0, "weight: %d: not with noise, which would then starve the generator", s.Weight)
		if err := c.validate(); err != nil {
			errs = append(errs, fmt.Errorf("configs: %s: %w", c.Name, err))
		}
	}
	for _, p := range s.Compare {
		bad(!seen[p.Config] || !seen[p.Against], "compare: %s with %s: want names of configs", p.Config, p.Against)
	}
	loads := map[string]bool{}
	for _, l := range s.Loads {
		bad(loads[l.String()], "loads: %s: twice", l)
		loads[l.String()] = true
		bad((l.Share > 0) == (l.ClientsPerCPU > 0), "loads: want either of share and clientsPerCPU")
		bad(!(l.Share >= 0 && l.Share <= 2), "loads: share %g: want more than 0 and at most 2", l.Share)
		bad(!(l.ClientsPerCPU >= 0 && l.ClientsPerCPU <= 32), "loads: clientsPerCPU %g: want more than 0 and at most 32", l.ClientsPerCPU)
		bad(l.Tiles != small && l.Tiles != large && l.Tiles != all, "loads: tiles %q: want small, large or all", l.Tiles)
	}
	if len(errs) > 0 {
		return fmt.Errorf("experiment: %w", errors.Join(errs...))
	}
	return nil
}

func (c Config) validate() error {
	switch {
	case c.Servers < 1 || c.Servers > maxServers:
		return fmt.Errorf("servers: %d: want 1 to %d", c.Servers, maxServers)
	case !(c.Limit >= 0 && c.Limit <= 1):
		return fmt.Errorf("limit: %g: want a share of the CPUs' time, at most 1", c.Limit)
	case c.Period < 0 || c.Period > 0 && (time.Duration(c.Period) < time.Millisecond || time.Duration(c.Period) > time.Second):
		return fmt.Errorf("period: %s: want 1ms to 1s", c.Period)
	case !(c.Burst >= 0 && c.Burst <= 1):
		return fmt.Errorf("burst: %g: want a share of the limit, at most 1", c.Burst)
	case c.Limit == 0 && (c.Burst > 0 || c.Period > 0):
		return errors.New("burst and period: want a limit")
	case c.Threads < 0 || c.Threads > 1024:
		return fmt.Errorf("threads: %d: want at most 1024", c.Threads)
	case !(c.NoiseLimit >= 0 && c.NoiseLimit <= 1) || c.NoiseLimit > 0 && !c.Noise:
		return fmt.Errorf("noiseLimit: %g: want a share of the CPUs' time, with noise", c.NoiseLimit)
	}
	return c.Routing.Validate()
}
