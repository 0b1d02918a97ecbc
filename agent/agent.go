// Package agent keeps one host's placing true: which workload has which CPUs
// and memory nodes, in durable records, and the kernel told accordingly.
//
// A Node is a state directory and a control group tree. Every change is one
// transaction under a lock of the directory: read the records, let the policy
// of package place decide, tell the kernel, note the result. So several
// processes may each open the node and change it in turn; one that is to stay
// keeps the lock.
//
// The records say what is to be; the kernel's files are driven there by the
// difference. CPUs change hands in an order in which no exclusive CPU ever has
// two owners. For every value in a group that Berth did not make, and for every
// group that it did, the undo log (kernel.UndoLog) knows the way back.
//
// Configuration files, watching for groups, the API and metrics are left to
// others.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/desired"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// Options say what a Node is. The zero value is the live host under the default
// policy, with its state where all processes of this user find it.
type Options struct {
	// Root is the kernel's files; nil is the live host.
	Root *kernel.Root
	// Dir is the state directory; "" is StateDir of this user.
	Dir string
	// Machine is the hardware; nil reads it from Root.
	Machine *machine.Machine
	// Policy decides; nil is the default policy, place/berth. PolicyName and
	// PolicyOptions are what Policies makes it of.
	Policy place.Policy
	// Policies makes a policy, the default one of the name "". With it the opener has
	// no configuration of its own: the Settings stored in Dir hold, if there are any,
	// but for a PolicyName and a Confine that are set here.
	Policies func(name string, options map[string]any) (place.Policy, error)
	Settings
	// Keep holds the lock of Dir until Close, as an agent does. A second Node that
	// wants it meanwhile waits, or gets a BusyError if it is to keep it, too.
	Keep bool
	// Enforcer makes what carries out the Node's decisions on the files of a Root; nil uses
	// control groups where this process may, else CPU affinity.
	Enforcer func(*kernel.Root) (Enforcer, Site, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Events is told what happens, in the order in which it does; it must not call
	// the Node. Nil is nobody.
	Events func(Event)
}

// Settings are the Options that are kept beside the records, so that a process without a
// configuration reads, and changes, the records under the settings that they were made
// under. An agent's hold until those of another agent; other openers' hold as long as there
// are records.
type Settings struct {
	PolicyName    string         `json:"policy,omitempty"`
	PolicyOptions map[string]any `json:"options,omitempty"`
	// Config says what of the machine may be given away. CPUs that Berth's base
	// group does not have are left out.
	Config place.Config `json:"config"`
	// Confine are globs (path.Match) of control groups that are not Berth's and are
	// kept off exclusive CPUs, named from the base on: "system.slice", "*". Where
	// a workload lies within one, its other children are confined instead. Never
	// are init.scope and this process's own group, unless a whole slice around it
	// can only be confined as one.
	Confine []string `json:"confine,omitempty"`
	// Within are the CPUs of what is confined; empty is all that nobody owns.
	Within cpuset.Set `json:"within,omitzero"`
	// Protected are globs likewise of groups that, with all below them, are neither
	// placed nor confined: where one lies within a group to confine, that group's
	// other children are confined instead.
	Protected []string `json:"protected,omitempty"`
	// Classes are those that workloads may have, beside their class of service.
	Classes ClassConfig `json:"classes,omitzero"`
	// Affinity uses no control groups but affinity and nice values.
	Affinity bool `json:"affinity,omitempty"`
	// Rewrites is after how many repairs within Window a value that someone else
	// keeps changing is left alone; 0 is 3 within a minute.
	Rewrites int           `json:"rewrites,omitempty"`
	Window   time.Duration `json:"window,omitempty"`
}

// Validate reports what no Node could work with.
func (o Options) Validate() error {
	if o.Rewrites < 0 || o.Window < 0 {
		return errors.New("options: negative rewrites or window")
	}
	return errors.Join(validGlobs("confine", o.Confine), validGlobs("protected", o.Protected), o.Classes.Validate())
}

// StateDir returns the directory of a user's node: /run/berth/node for root, see
// kernel.RunDir for others. It does not outlive the boot.
func StateDir(uid int, xdgRuntimeDir string) string {
	return filepath.Join(kernel.RunDir(uid, xdgRuntimeDir), "node")
}

// Node is one host's placing. Its methods may be called concurrently.
type Node struct {
	asked    Options // as the opener gave them, with the defaults
	opt      Options // with the stored settings
	stored   *stored
	recalled bool
	root     *kernel.Root
	uid      int                   // this process's user
	drift    desired.Drift[string] // by file; guarded by mu
	opened   time.Time
	// touch is called before each change of a record's file (write, rename, remove),
	// which fails if it does; nil but in tests.
	touch func(op string) error

	unread map[Event]bool  // of a reader, see NewReader: what could not be read, told once
	looks  bool            // of a reader: its read-only root is a view of the live host
	once   map[string]bool // what was told once (tellOnce)
	// profiles are the power profiles that held at the last look, and power is what CPUs had
	// when it was last read; guarded by mu.
	profiles *power.Config
	scaling  scaling
	lacked   int // how often somebody went without what a class has
	// unwritten are the settings (see setting) that the kernel refused since the last comparison began.
	unwritten map[string]bool
	// refused are the limits and classes that the kernel refused, and when each is tried again.
	refused refusals
	// changedPriorities are I/O priorities that others have changed since the last comparison.
	changedPriorities []Repair
	power             *power.Host

	mu        sync.Mutex
	online    string // the kernel's list of CPUs, when the machine was read
	topology  *place.Topology
	config    place.Config
	enforcer  Enforcer
	disks     *blockio.Devices    // see blockDevices
	unified   *string             // see unifiedTop
	noted     map[string][]string // see notesOnce
	site      Site
	agentLock *os.File   // with Options.Keep: that this is the agent
	kept      *os.File   // and the lock
	held      *nodeState // what was read, as long as the lock is kept
}

// Open opens a node, releases what dead owners left, and finishes what a killed
// process began. What another build of Berth left in force is this one's then.
func Open(ctx context.Context, opt Options) (*Node, error) {
	n, err := newNode(opt)
	if err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	if opt.Keep {
		if err := n.keep(ctx); err != nil {
			return nil, err
		}
	}
	if err := n.change(ctx, func(t *transaction) error { t.renewNet(); return nil }); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func newNode(opt Options) (*Node, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	n := &Node{opt: opt, root: opt.Root}
	if err := n.fill(); err != nil {
		return nil, err
	}
	if err := n.survey(); err != nil {
		return nil, err
	}
	return n, kernel.MakePrivateDir(n.opt.Dir)
}

func (n *Node) fill() (err error) {
	o := &n.opt
	if n.root == nil {
		if n.root, err = systemd.Open("/"); err != nil {
			return err
		}
	}
	n.root = power.Over(traffic.Over(sched.Over(n.root)))
	o.Dir = cmp.Or(o.Dir, StateDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR")))
	o.Rewrites, o.Window = cmp.Or(o.Rewrites, 3), cmp.Or(o.Window, time.Minute)
	if o.Policy == nil {
		o.Policy = berth.Policy{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Events == nil {
		o.Events = func(Event) {}
	}
	n.asked, n.uid, n.opened = *o, os.Geteuid(), o.Now()
	n.refused.now = n.sinceOpened
	n.drift.Rule = desired.Rule{Limit: o.Rewrites, Window: int64(o.Window)}
	return nil
}

// survey reads the machine, unless it was given, and chooses how to place. It
// does so again, and forgets the records, when other CPUs are online than the last
// time: what was granted of the others is then placed anew.
func (n *Node) survey() (err error) {
	online, _ := kernel.ReadText(n.root.FS(), "sys/devices/system/cpu/online")
	if n.topology != nil && (n.opt.Machine != nil || online == n.online) {
		return nil
	}
	m := n.opt.Machine
	if m == nil {
		if m, err = sysfs.Read(n.root.FS()); err != nil {
			return err
		}
	}
	topology, err := place.NewTopology(m)
	if err != nil {
		return err
	}
	n.config = n.opt.Config
	if n.enforcer != nil {
		if err := n.enforcer.Close(); err != nil {
			return err
		}
		n.enforcer = nil
	}
	if n.enforcer, n.site, err = n.openEnforcer(); err != nil {
		return err
	}
	if cpus := n.site.CPUs; n.config.Allowed.IsEmpty() {
		n.config.Allowed = cpus
	} else if !cpus.IsEmpty() {
		n.config.Allowed = n.config.Allowed.Intersect(cpus)
	}
	if n.config.Memory == nil {
		if n.config.Memory, err = memoryOf(m, n.root); err != nil {
			return err
		}
	}
	n.topology, n.online, n.power = topology, online, nil
	return n.forget()
}

// memoryOf is the memory of the NUMA nodes, ordinary and huge pages; nil, which stands for
// the machine's own figures, if there are no huge pages.
func memoryOf(m *machine.Machine, root *kernel.Root) (all []place.Block, err error) {
	pages, err := sysfs.ReadHugePages(root.FS())
	if err != nil {
		return nil, err
	}
	for _, p := range pages {
		if p.Bytes > 0 {
			all = append(all, place.Block{Node: p.Node, Resource: place.HugePages(place.Bytes(p.Size)), Bytes: p.Bytes})
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	for _, d := range m.ByKind(machine.Node) {
		if d.Bytes > 0 {
			all = append(all, place.Block{Node: d.ID, Resource: place.Memory, Bytes: d.Bytes})
		}
	}
	return all, nil
}

// Close gives the lock back. Everything stays in place.
func (n *Node) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.forget()
	if n.enforcer != nil {
		err = errors.Join(err, n.enforcer.Close())
	}
	for _, lock := range []**os.File{&n.kept, &n.agentLock} {
		if *lock != nil {
			err = errors.Join(err, kernel.Unlock(*lock))
			*lock = nil
		}
	}
	return err
}

// Backend names how workloads are placed: "cgroup v2", "cgroup v1", "hybrid" or
// "affinity".
func (n *Node) Backend() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.site.Backend
}

// Bases returns the directories, relative to the kernel.Root, that control groups
// are named from: one in each hierarchy, first the one where CPUs are given. With
// affinity there are none.
func (n *Node) Bases() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.site.Dirs)
}

func (n *Node) tell(kind EventKind, id, object, text string) {
	n.opt.Events(Event{Time: n.opt.Now(), Kind: kind, ID: id, Object: object, Text: text})
}
