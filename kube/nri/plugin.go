// Package nri places the containers of a Kubernetes node through the node resource
// interface of its container runtime (containerd/nri): it is an agent.Enforcer whose
// answers are those of a plugin's handlers. The new container's CPUs and memory nodes, and
// the updates that take these CPUs from everybody else, go back in one answer, so that no
// exclusive CPU has two users at any instant.
//
// A handler never waits: the runtime handles nothing else meanwhile, and drops a plugin
// that takes longer than its time-out. So a decision has a budget, after which the
// container gets the shared pool; and an update outside of answers is sent by a goroutine
// of its own, while no handler is at work. The runtime does not say which updates failed:
// what is in force is read from the kernel afterwards.
package nri

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/desired"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Options say what a Plugin is. The zero value is the live host under the default policy.
type Options struct {
	// Node opens the node that decides. Its Enforcer, Keep, Events, Confine and Protected are the plugin's.
	Node agent.Options
	Words
	// Idle has pods run only when no other wants to whose class is BE and that the kubelet made
	// as best effort: cpu.idle of the pod's group.
	Idle bool
	// CacheAfterStart has no container start in the group of its cache class: it is put there once it is there.
	CacheAfterStart bool
	// Confine are globs of groups that are kept off exclusive CPUs, from the top of the
	// hierarchy on: "system.slice", "*". Of one that holds containers its other groups are
	// confined, sandboxes among them. Protected are globs of those that are not.
	Confine, Protected []string
	// Within are the CPUs of what is confined; empty is all that no container owns.
	Within cpuset.Set
	// Name and Index are the plugin's; "" is "berth" and "50". The runtime calls plugins in
	// the order of their two digits.
	Name, Index string
	// Budget is how long a decision may take until the container gets the shared pool; 0
	// is 1 s. The runtime's own time-out is 2 s unless it is set.
	Budget time.Duration
	// Every is how often what is in force is compared; 0 is 5 s. Rescan is how often it is
	// looked for threads that have come to containers with classes; 0 is 30 s.
	Every, Rescan time.Duration
	// Scale is how often the load of pools is measured whose clocks follow it; 0 is
	// power.ScaleEvery.
	Scale time.Duration
	// Unstarted is how long a container may be created and not started, or gone and not ended,
	// until it has no place any more; 0 is 30 s. It is placed again if it starts after all.
	Unstarted time.Duration
	// Effective reads the CPUs on which a control group's processes can run, by its name below
	// the top of the hierarchy; ok is false if it is not there. Nil reads the node's Root.
	Effective func(group string) (cpus cpuset.Set, ok bool)
	// Busy reports whether a control group has processes. Nil reads the node's Root, or takes it
	// from Effective where that is set.
	Busy func(group string) bool
	// Pods knows exact requests, pod-level resources and priorities of pods; nil is nobody,
	// and what the runtime tells has to do.
	Pods Pods
	// Events is told what happens; nil is nobody. It must neither call the Plugin nor wait:
	// a handler may be at work.
	Events func(Event)
}

// backend is the name of the plugin's way in records.
const backend = "nri"

// Plugin is the plugin. Its exported methods that take an api.PodSandbox or api.Container
// are the handlers that the stub of containerd/nri calls.
type Plugin struct {
	opt     Options
	node    *agent.Node
	table   *table
	online  cpuset.Set
	nodes   cpuset.Set // NUMA nodes with CPUs
	sizes   []int      // how many CPUs of theirs workloads can own, the most first
	threads int        // CPUs of a core
	placer  bool       // the policy can place pods as a whole
	scoped  bool       // and does
	classes agent.ClassConfig
	lacks   map[agent.ClassKind]error // why this host has no classes of a kind
	wording atomic.Pointer[Words]

	mu          sync.Mutex
	ids         map[string]named           // by container id
	names       map[string]string          // container ids, by workload
	reserved    map[string]string          // UIDs of pods, by workload that has a place and no container
	retries     map[string]*unplaced       // by container id
	reported    map[string]map[string]bool // problems that were reported, by pod id
	runtime     string                     // its name
	groupStarts groupStarts
	drift       desired.Drift[string] // by container id, and by heldKey
	start       time.Time

	now   func() time.Time // the clock of within
	after func(time.Duration) <-chan time.Time

	connected atomic.Bool
	verifyNow chan struct{}
	trim      func(used map[string]bool) // closes what is open of groups that are not in use
}

// New opens the node, which no other process may keep.
func New(ctx context.Context, opt Options) (*Plugin, error) {
	opt.Name, opt.Index = cmp.Or(opt.Name, "berth"), cmp.Or(opt.Index, "50")
	opt.Budget, opt.Every, opt.Unstarted = cmp.Or(opt.Budget, time.Second), cmp.Or(opt.Every, 5*time.Second), cmp.Or(opt.Unstarted, 30*time.Second)
	opt.Rescan, opt.Scale = cmp.Or(opt.Rescan, 30*time.Second), cmp.Or(opt.Scale, power.ScaleEvery)
	var err error
	if opt.Node.Root == nil {
		if opt.Node.Root, err = kernel.Open("/"); err != nil {
			return nil, err
		}
	}
	p := &Plugin{
		opt: opt, table: newTable(cpuset.Set{}), ids: map[string]named{}, names: map[string]string{}, reserved: map[string]string{},
		retries: map[string]*unplaced{}, reported: map[string]map[string]bool{}, groupStarts: groupStarts{of: map[startKey]groupStart{}},
		start: time.Now(), now: time.Now, after: time.After, verifyNow: make(chan struct{}, 1),
	}
	if err := errors.Join(p.SetWords(opt.Words), p.surveyClasses()); err != nil {
		return nil, err
	}
	p.drift.Rule = desired.Rule{Limit: 3, Window: int64(time.Minute)}
	o := opt.Node
	o.Keep = true
	o.Confine, o.Within, o.Protected = opt.Confine, opt.Within, opt.Protected // the table's to obey, and on record for whoever reads or runs without a plugin
	o.Enforcer = func(root *kernel.Root) (agent.Enforcer, agent.Site, error) {
		site, err := p.openSurroundings(root)
		return p.table, site, err
	}
	o.Events = p.emitNode
	if p.node, err = agent.Open(ctx, o); err != nil {
		return nil, err
	}
	s, err := p.node.State(ctx)
	var all []agent.Workload
	if err == nil {
		all, err = p.node.List(ctx)
	}
	if err == nil {
		err = p.read()
	}
	if err != nil {
		return nil, errors.Join(err, p.node.Close())
	}
	placer, ok := o.Policy.(place.PodPlacer)
	p.placer, p.scoped = ok, ok && placer.PodScope()
	p.online = s.Topology().Machine().Online
	p.nodes = s.Topology().NodesOf(p.online)
	conf := s.Config()
	ownable := conf.Allowed.Minus(conf.Reserved).Minus(conf.Floor)
	for _, node := range s.Topology().Units(machine.Node) {
		p.sizes = append(p.sizes, node.CPUs.Overlap(&ownable))
	}
	slices.SortFunc(p.sizes, func(a, b int) int { return b - a })
	p.threads, _ = s.Topology().ThreadsPerCore()
	p.table.shared, p.table.owned = s.Sharable(), s.Owned()
	for i := range all {
		if w := &all[i]; p.table.others(w) {
			p.table.beside = true
		} else {
			p.name(containerOf(w), w)
		}
	}
	return p, nil
}

// read sets what reads the kernel's control groups.
func (p *Plugin) read() (err error) {
	effective, busy := p.opt.Effective, p.opt.Busy
	p.trim = func(map[string]bool) {}
	if effective == nil {
		effective, busy, p.trim, err = readersOf(p.opt.Node.Root)
	} else if busy == nil {
		busy = func(group string) bool { _, ok := effective(group); return ok }
	}
	p.opt.Effective, p.opt.Busy = effective, busy
	return err
}

// openSurroundings opens the control groups around containers. Without any, nothing of them is known
// and nothing is to be written.
func (p *Plugin) openSurroundings(root *kernel.Root) (agent.Site, error) {
	site := agent.Site{Backend: backend}
	around, err := agent.OpenSurroundings(root, p.opt.Confine, p.opt.Protected, p.opt.Within)
	if errors.Is(err, kernel.ErrNotSupported) && len(p.opt.Confine) == 0 && !p.opt.Idle {
		return site, nil
	}
	if err != nil {
		return site, err
	}
	site.Dirs, site.Around = around.Dirs(), around
	p.table.around, p.table.idle = around, p.opt.Idle
	if why := around.NoIdle(); why != "" && p.opt.Idle {
		p.table.idle = false
		p.emit(Event{Kind: string(agent.Failed), Text: "best effort is not idle: " + why})
	}
	p.table.failed = p.emitFailed
	return site, nil
}

// Close gives the node back. Every container keeps what it has.
func (p *Plugin) Close() error {
	p.trim(nil)
	return p.node.Close()
}

func (p *Plugin) emit(e Event) {
	if p.opt.Events != nil {
		p.opt.Events(e)
	}
}

// Node is the node that has the containers' places, to read.
func (p *Plugin) Node() *agent.Node { return p.node }

// State returns who holds what and what is free. It waits for the decision at work.
func (p *Plugin) State(ctx context.Context) (*place.State, error) { return p.node.State(ctx) }
