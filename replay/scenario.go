// Package replay runs a scenario: a machine, a policy and a list of steps
// (place, release, resize, restart, also of whole pods), and tells what each step
// led to, whether it is what the scenario expects, and what a whole run cost by
// measures that do not depend on the policy.
//
// A scenario is a YAML document; docs/replay.md describes it. Parse reads one,
// Scenario.Run replays it under any of Policies. A scenario with a Generator has
// streams instead of steps: Stream makes one from a seed, Measure replays it for its
// summary, Pair compares two policies over several. Nothing here does I/O: the
// caller hands in the text, and a Loader for machines.
package replay

import (
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Action is what a step does.
type Action string

// The actions.
const (
	Place      Action = "place"
	Release    Action = "release"
	Resize     Action = "resize"
	Restart    Action = "restart"  // saves the grants and reinstates them on an empty machine
	PlacePod   Action = "placePod" // all containers of a pod, or none
	ReleasePod Action = "releasePod"
)

// Scenario is what a scenario file says.
type Scenario struct {
	About    string
	Topology *place.Topology
	Config   place.Config
	// Policy is the name of the scenario's own policy, under which its
	// expectations hold.
	Policy string
	Steps  []Step
	// Generate makes the steps (Stream) of a scenario that has none.
	Generate *Generator

	policies    map[string]place.Policy // those with options, by name
	allocatable int                     // CPUs that could be owned on the empty machine
}

// Step is one thing that happens.
type Step struct {
	Line    int // in the file
	Do      Action
	ID      string        // "" for Restart, the pod's group for PlacePod and ReleasePod
	Request place.Request // of Place and Resize
	Pod     *Pod          // of PlacePod
	Expect  *Expect       // nil if nothing is expected
}

// Pod is what a pod asks for.
type Pod struct {
	// Milli and LimitMilli are the pod's own request, in thousandths of a CPU; 0 is
	// none. Only a policy that places pods as a whole looks at it.
	Milli, LimitMilli int
	Containers        []Container // in the order of their start
}

// Container is one container of a pod; its Request.Group is the pod.
type Container struct {
	Request place.Request
	Expect  *Expect
}

// String returns the step in a few words, as in "place web-1".
func (s *Step) String() string {
	if s.ID == "" {
		return string(s.Do)
	}
	return string(s.Do) + " " + s.ID
}

// Loader returns the machine that the source names: a short form, a file or
// the text of a table.
type Loader func(source string) (*machine.Machine, error)

// PolicyFor returns the policy of that name, with the options that the scenario
// has for it.
func (s *Scenario) PolicyFor(name string) (place.Policy, error) {
	if p, ok := s.policies[name]; ok {
		return p, nil
	}
	return newPolicy(name, nil)
}
