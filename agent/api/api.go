// Package api is the agent's API: HTTP with JSON on a Unix socket, and the client of
// it.
//
// A Server shows a Node, which changes things, and a View, which tells what is; the
// Client offers the same methods, with the same typed errors, so that a caller
// need not know whether it speaks to an agent or opened the node itself.
// docs/openapi.json describes the protocol; a test makes it of the types here and
// compares a running server with it. Who listens where, and what stands behind Node
// and View, is left to agent/daemon.
package api

import (
	"context"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// Node changes who has which place. *agent.Node is one, and *Client is one far
// away; the methods are as there.
type Node interface {
	Place(ctx context.Context, spec agent.Spec) (agent.Workload, error)
	Preview(ctx context.Context, spec agent.Spec) (agent.Workload, kernel.Plan, error)
	PlaceTogether(ctx context.Context, specs []agent.Spec) ([]agent.Workload, error)
	PreviewTogether(ctx context.Context, specs []agent.Spec) ([]agent.Workload, kernel.Plan, error)
	Resize(ctx context.Context, spec agent.Spec) (agent.Workload, error)
	Move(ctx context.Context, id string, cpus, mems cpuset.Set) (agent.Workload, error)
	Release(ctx context.Context, id string, leaving agent.Leaving) error
	Get(ctx context.Context, id string) (agent.Workload, error)
	List(ctx context.Context) ([]agent.Workload, error)
}

// View tells what is, beside the workloads. The agent's daemon and *Client are
// views.
type View interface {
	// About says who answers.
	About(ctx context.Context) (About, error)
	// Machine is the hardware and who holds what of it.
	Machine(ctx context.Context) (Machine, error)
	// Config is the active configuration.
	Config(ctx context.Context) (Config, error)
	// Stats are the latest figures of every workload, by rising id.
	Stats(ctx context.Context) (Stats, error)
	// Guard is where the guard stands.
	Guard(ctx context.Context) (Guard, error)
	// ClassReport says what classes there are, who has which, and what is left.
	ClassReport(ctx context.Context) (agent.ClassReport, error)
}

// About says who answers.
type About struct {
	// Backend is how workloads are placed, as in agent.Workload.
	Backend string `json:"backend"`
	Policy  string `json:"policy"`
	PID     int    `json:"pid"`
	// Started is when the agent was ready.
	Started time.Time `json:"started"`
	// Groups is how many control groups are present.
	Groups int `json:"groups"`
	// Crowded are the subtrees of other users with so many groups, or so many changes of
	// them, that they are not watched group by group.
	Crowded []cgroupstat.Crowd `json:"crowded"`
	// Waiting are the workloads of the configuration that have no place, by rising
	// id.
	Waiting []Waiting `json:"waiting"`
	// Unserved are the addresses where the status page is to be and is not, each with
	// the reason. The agent tries them again.
	Unserved []string `json:"unserved,omitempty"`
}

// Waiting is a workload of the configuration that could not be placed.
type Waiting struct {
	ID    string `json:"id"`
	Group string `json:"group"`
	// Since is when it was tried first, Reason why it failed last.
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// Machine is the hardware and who holds what of it.
type Machine struct {
	Machine *machine.Machine `json:"machine"`
	// Config says what of it may be given away, defaults filled in.
	Config place.Config `json:"config"`
	// Shared are the CPUs that nobody owns.
	Shared cpuset.Set `json:"shared"`
	// Owners are the workloads by rising id.
	Owners []Owner `json:"owners"`
	// Saved is the state, without explanations; see Client.State.
	Saved place.Saved `json:"saved"`
}

// Owner is what a workload holds.
type Owner struct {
	ID    string      `json:"id"`
	Class place.Class `json:"class"`
	// Own are the CPUs that are its alone, Fence those that stay idle beside them.
	Own   cpuset.Set `json:"own,omitzero"`
	Fence cpuset.Set `json:"fence,omitzero"`
	// Lent lets best-effort work use Own while it is idle.
	Lent bool `json:"lent,omitempty"`
	// CPUs are what it may run on now, Mems its memory nodes; empty is any.
	CPUs cpuset.Set `json:"cpus"`
	Mems cpuset.Set `json:"mems,omitzero"`
}

// Config is the active configuration.
type Config struct {
	// File is where it is from, "" for the defaults.
	File   string             `json:"file,omitempty"`
	Loaded time.Time          `json:"loaded"`
	Config *config.NodeConfig `json:"config"`
	// Refused says what is wrong with what the file holds now; "" if it is active.
	Refused string `json:"refused,omitempty"`
	// Pending are the changes that wait for the next start.
	Pending []string `json:"pending,omitempty"`
}

// Stats are the latest figures.
type Stats struct {
	// Time is when they were read; absent before the first reading.
	Time      time.Time `json:"time,omitzero"`
	Workloads []Figures `json:"workloads"`
}

// Figures are what the kernel tells of one workload.
type Figures struct {
	ID string `json:"id"`
	// Figures are in the order in which they were read. What this host does not
	// tell is not there.
	Figures []Figure `json:"figures"`
}

// Figure is one value in the unit of its quantity.
type Figure struct {
	Quantity watch.Quantity `json:"quantity"`
	// Part is the CPU, memory node or device that it is about; absent is all.
	Part watch.Part `json:"part,omitzero"`
	// Value is, for a counter, since the group was made.
	Value float64 `json:"value"`
	// Rate is a counter's increase per second between the last two readings; absent
	// after only one, or if the counter went back.
	Rate *float64 `json:"rate,omitempty"`
}

// Draft is what a Preview answers: what a change would come to, and the writes
// that it would take.
type Draft struct {
	Workload agent.Workload `json:"workload"`
	Plan     kernel.Plan    `json:"plan"`
}

// together is the body that places several workloads as a whole.
type together struct {
	Specs []agent.Spec `json:"specs"`
}

// Drafts is Draft for several workloads that would be placed as a whole.
type Drafts struct {
	Workloads []agent.Workload `json:"workloads"`
	Plan      kernel.Plan      `json:"plan"`
}

// Explanation says why a workload is where it is.
type Explanation struct {
	ID    string       `json:"id"`
	Grant *place.Grant `json:"grant"`
	// Why are the decisions that led to the grant, if they were recorded, else
	// those that would be taken now; absent if the policy tells none.
	Why *place.Why `json:"why,omitempty"`
	// Recorded is true for the former.
	Recorded bool `json:"recorded"`
}

// list and move are bodies that have no use elsewhere.
type (
	list struct {
		Workloads []agent.Workload `json:"workloads"`
	}
	move struct {
		CPUs cpuset.Set `json:"cpus"`
		Mems cpuset.Set `json:"mems,omitzero"`
	}
)

// MachineOf returns what a state's machine is and who holds what of it.
func MachineOf(s *place.State) Machine {
	m := Machine{Machine: s.Topology().Machine(), Config: *s.Config(), Shared: s.Sharable(), Owners: []Owner{}, Saved: s.Save()}
	for i, g := range m.Saved.Grants {
		o := Owner{ID: g.ID, Class: g.Request.Class, Own: g.Own, Fence: g.Fence, Lent: g.Lent, Mems: g.Mems}
		o.CPUs, _ = s.CPUs(g.ID)
		m.Owners = append(m.Owners, o)
		bare := *g
		bare.Why = nil
		m.Saved.Grants[i] = &bare
	}
	return m
}
