package lab

import (
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
)

// Validate says what is wrong with an experiment, naming the field.
func (e Experiment) Validate() error {
	window, service := time.Duration(e.Window), time.Duration(e.Tenant.ServiceTime)
	requests := e.Rate * (window + time.Duration(e.Settle)).Seconds()
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{!isName(e.Name), fmt.Sprintf("name %q: %s", e.Name, nameRule)},
		{e.Blocks < 1 || e.Blocks > 1000, fmt.Sprintf("rounds: %d: want 1 to 1000", e.Blocks)},
		{window < time.Second || window > time.Hour, fmt.Sprintf("duration: %s: want 1s to 1h", e.Window)},
		{e.Settle < 0 || time.Duration(e.Settle) > time.Hour, fmt.Sprintf("settle: %s: want 0 to 1h", e.Settle)},
		{!(e.Rate >= 0 && e.Rate <= 50_000), fmt.Sprintf("rate: %g: want at most 50000 requests per second", e.Rate)},
		{requests > maxRequests, fmt.Sprintf("rate %g for %s: want at most %d requests in a round", e.Rate, e.Window, maxRequests)},
		{!(e.Tenant.Demand > 0 && e.Tenant.Demand <= 1), fmt.Sprintf("demand: %g: want more than 0 and at most 1", e.Tenant.Demand)},
		{service < 0 || service > time.Second, fmt.Sprintf("service-time: %s: want at most 1s", e.Tenant.ServiceTime)},
		{e.Tenant.Service != "article", fmt.Sprintf("tenant service %q: the one there is is article", e.Tenant.Service)},
		{e.Tenant.WorkingSetBytes < 4096, fmt.Sprintf("working-set: %d bytes: want 4096 or more", e.Tenant.WorkingSetBytes)},
	} {
		if rule.broken {
			return fmt.Errorf("experiment: %s", rule.says)
		}
	}
	if _, err := cpuset.Parse(e.CPUs); err != nil {
		return fmt.Errorf("experiment: cpus: %w", err)
	}
	neighbour := e.Neighbour
	neighbour.Threads = max(1, neighbour.Threads) // 0: chosen from the machine
	if err := neighbour.Validate(); err != nil {
		return fmt.Errorf("experiment: %w", err)
	}
	return e.validateScenarios()
}

func (e Experiment) validateScenarios() error {
	seen := map[string]bool{}
	for _, s := range e.Scenarios {
		if !isName(s.Name) || seen[s.Name] {
			return fmt.Errorf("experiment: scenario %q: want a name of its own, %s", s.Name, nameRule)
		}
		seen[s.Name] = true
		if w := s.Isolation.Weight; w > 10_000 {
			return fmt.Errorf("experiment: scenario %s: weight %d: want 1 to 10000", s.Name, w)
		}
		if s.Isolation.Idle && s.Isolation.Weight > 0 {
			return fmt.Errorf("experiment: scenario %s: an idle group has no weight of its own", s.Name)
		}
		if s.Neighbour && (s.Name == Baseline || s.Name == BaselineAgain) {
			return fmt.Errorf("experiment: scenario %s: the baseline is the tenant alone", s.Name)
		}
		if s.Isolation != (Isolation{}) && !s.Neighbour {
			return fmt.Errorf("experiment: scenario %s: isolation from a neighbour that does not run", s.Name)
		}
	}
	if !seen[Baseline] || !seen[BaselineAgain] {
		return fmt.Errorf("experiment: scenarios: %s and %s must be there", Baseline, BaselineAgain)
	}
	return nil
}

// maxRequests bounds what the generator keeps of a round in memory.
const maxRequests = 10_000_000

const nameRule = "of letters, digits, '-', '_', '.' and \"'\""

// isName reports whether a name can stand in file names and CSV as it is.
func isName(name string) bool {
	ok := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.'", c)
	}
	return name != "" && len(name) <= 40 && name[0] != '.' && strings.IndexFunc(name, func(c rune) bool { return !ok(c) }) < 0
}
