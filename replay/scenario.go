// Package replay runs a scenario: a machine, a policy and a list of steps
// (place, release, resize, restart, also of whole pods). It returns the result of each
// step, whether the scenario expects it, and the cost of a whole run by measures that do
// not depend on the policy.
//
// A scenario is a YAML document; docs/replay.md describes it. Parse reads one,
// Scenario.Run replays it under any of Policies. A scenario with a Generator has
// streams instead of steps: Stream makes one from a seed, Measure replays it for its
// summary, Pair compares two policies over several. Nothing here does I/O: the
// caller hands in the text, and a Loader for machines and the objects of Kubernetes.
package replay

import (
	"strings"

	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// Action is the action of a step.
type Action string

// The actions.
const (
	Place      Action = "place"
	Release    Action = "release"
	Resize     Action = "resize"
	Restart    Action = "restart"  // saves the grants and reinstates them on an empty machine
	PlacePod   Action = "placePod" // all containers of a pod, as a whole
	ReleasePod Action = "releasePod"
	apply      Action = "apply" // becomes a PlacePod for each pod of a file
)

// Scenario is the content of a scenario file.
type Scenario struct {
	About    string
	Topology *place.Topology
	Config   place.Config
	// Policy is the name of the scenario's own policy, under which its
	// expectations hold.
	Policy string
	Steps  []Step
	// Generate makes the steps (Stream) of a scenario without steps.
	Generate *Generator
	// Notes say what of the objects of Kubernetes is no part of the scenario.
	Notes []string

	policies    map[string]place.Policy // those with options, by name
	allocatable int                     // CPUs that could be owned on the empty machine
}

// Step is one thing that happens.
type Step struct {
	Line    int // in the file
	Do      Action
	ID      string        // "" for Restart, the pod's group for PlacePod and ReleasePod
	Request place.Request // of Place and Resize
	Pod     *place.Pod    // of PlacePod
	Expect  *Expect       // nil if nothing is expected
	Expects []*Expect     // of the pod's containers
}

// String returns the step in a few words, as in "place web-1".
func (s *Step) String() string {
	if s.ID == "" {
		return string(s.Do)
	}
	return string(s.Do) + " " + s.ID
}

// Loader loads what a scenario names.
type Loader struct {
	// Machine returns the machine of a short form, a file or the text of a table.
	Machine func(source string) (*machine.Machine, error)
	// File returns the text of a file with objects of Kubernetes.
	File func(name string) (string, error)
}

// PolicyFor returns the policy of that name, with the options that the scenario
// has for it.
func (s *Scenario) PolicyFor(name string) (place.Policy, error) {
	if p, ok := s.policies[name]; ok {
		return p, nil
	}
	return newPolicy(name, nil)
}

// newPolicy returns the policy of a name, which may carry a variant behind a
// slash: "berth/even" is policy berth with other options.
func newPolicy(name string, options map[string]any) (place.Policy, error) {
	base, _, _ := strings.Cut(name, "/")
	return policies.New(base, options)
}
