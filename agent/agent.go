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
// group that it did, the ledger (kernel.OpenLedger) knows the way back.
//
// Configuration files, watching for groups, the API and metrics are left to
// others.
package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/systemd"
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
	// Policy decides; nil is the default policy, place/berth.
	Policy place.Policy
	// Config says what of the machine may be given away. CPUs that Berth's base
	// group does not have are left out.
	Config place.Config
	// Confine are globs (path.Match) of control groups that are not Berth's and are
	// kept off exclusive CPUs, named from the base on: "system.slice", "*". Where
	// a workload lies within one, its other children are confined instead. Never
	// are init.scope and this process's own group, unless a whole slice around it
	// can only be confined as one.
	Confine []string
	// Protected are globs likewise of groups that, with all below them, are neither
	// placed nor confined: where one lies within a group to confine, that group's
	// other children are confined instead.
	Protected []string
	// Keep holds the lock of Dir until Close, as an agent does. A second Node that
	// wants it meanwhile waits, or gets a BusyError if it is to keep it, too.
	Keep bool
	// Affinity uses no control groups but affinity and nice values.
	Affinity bool
	// Rewrites is after how many repairs within Window a value that someone else
	// keeps changing is left alone; 0 is 3 within a minute.
	Rewrites int
	Window   time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Events is told what happens, in the order in which it does; it must not call
	// the Node. Nil is nobody.
	Events func(Event)
}

// Validate reports what no Node could work with.
func (o Options) Validate() error {
	if o.Rewrites < 0 || o.Window < 0 {
		return errors.New("options: negative rewrites or window")
	}
	return errors.Join(validGlobs("confine", o.Confine), validGlobs("protected", o.Protected))
}

// StateDir returns the directory of a user's node: /run/berth/node for root, see
// kernel.JournalDir for others. It does not outlive the boot.
func StateDir(uid int, xdgRuntimeDir string) string {
	return filepath.Join(kernel.JournalDir(uid, xdgRuntimeDir), "node")
}

// BusyError is a state directory that another Node keeps.
type BusyError struct{ Dir string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("open node %s: another agent keeps it", e.Dir)
}

// Node is one host's placing. Its methods may be called concurrently.
type Node struct {
	opt   Options
	root  *kernel.Root
	drift drift
	// touch is called before each change of a record's file (write, rename, remove),
	// which fails if it does; nil but in tests.
	touch func(op string) error

	mu       sync.Mutex
	online   string // the kernel's list of CPUs, when the machine was read
	topology *place.Topology
	config   place.Config
	backend  backend
	keeper   *os.File // with Options.Keep: that this is the agent
	kept     *os.File // and the lock
	held     *books   // what was read, as long as the lock is kept
}

// Open opens a node, releases what dead owners left, and finishes what a killed
// process began.
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
	if err := n.change(ctx, func(*transaction) error { return nil }); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Reopen opens a node that is kept under other options, without giving the locks
// back in between, and closes n. After an error n is as it was.
func (n *Node) Reopen(ctx context.Context, opt Options) (*Node, error) {
	next, err := newNode(opt)
	if err != nil {
		return nil, fmt.Errorf("open node: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept == nil || !opt.Keep || next.opt.Dir != n.opt.Dir {
		return nil, fmt.Errorf("open node %s anew: only one that is kept, and under the same state directory", n.opt.Dir)
	}
	if err := n.held.close(); err != nil {
		return nil, err
	}
	n.held = nil
	next.keeper, next.kept = n.keeper, n.kept
	if err := next.change(ctx, func(*transaction) error { return nil }); err != nil {
		next.keeper, next.kept = nil, nil
		return nil, errors.Join(err, next.Close())
	}
	n.keeper, n.kept = nil, nil
	return next, nil
}

// keep takes both locks: the keeper's, which only another agent can have, and
// that of the books, which is soon free.
func (n *Node) keep(ctx context.Context) (err error) {
	if n.keeper, err = tryLock(n.opt.Dir, keeperFile); err != nil {
		return err
	}
	if n.kept, err = waitLock(ctx, n.opt.Dir); err != nil {
		return errors.Join(err, n.Close())
	}
	return nil
}

// Restore gives everything back that a node holds, also where Open could not
// settle it: see Node.Restore. A node that an agent keeps is left alone, and is
// a *BusyError. To give back what dead owners left, and no more, Open with Keep
// and Close are enough.
func Restore(ctx context.Context, opt Options) ([]kernel.Item, error) {
	n, err := newNode(opt)
	if err != nil {
		return nil, fmt.Errorf("restore node: %w", err)
	}
	if err := n.keep(ctx); err != nil {
		return nil, err
	}
	items, err := n.Restore(ctx)
	return items, errors.Join(err, n.Close())
}

// Disclaim removes the mark of a node whose state directory is gone, with all that it
// knew, from the control groups, so that another one may place there. It makes nothing;
// ok is false if there is no such mark.
func Disclaim(opt Options) (ok bool, err error) {
	n := &Node{opt: opt, root: opt.Root}
	if err := n.fill(); err != nil {
		return false, fmt.Errorf("disclaim node: %w", err)
	}
	if ok, err = n.disclaim(); err != nil {
		return false, fmt.Errorf("disclaim node %s: %w", n.opt.Dir, err)
	}
	return ok, nil
}

// SetAside keeps a node's ledger of which nothing can be read (kernel.HeaderError)
// under another name, which it returns, so that the node can go on without it: what
// it notes is not given back. The name is "" if the ledger can be read.
func SetAside(ctx context.Context, opt Options) (to string, err error) {
	n, err := newNode(opt)
	if err != nil {
		return "", fmt.Errorf("set aside ledger: %w", err)
	}
	if err := n.keep(ctx); err != nil {
		return "", err
	}
	ledger, err := kernel.OpenLedger(n.root, filepath.Join(n.opt.Dir, ledgerFile), "berth")
	var header *kernel.HeaderError
	switch {
	case errors.As(err, &header):
		to, err = store{n.opt.Dir, func(string) error { return nil }}.aside(ledgerFile)
	case err == nil:
		err = ledger.Close()
	}
	return to, errors.Join(err, n.Close())
}

func newNode(opt Options) (*Node, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	n := &Node{opt: opt, root: opt.Root}
	if err := n.fill(); err != nil {
		return nil, err
	}
	return n, kernel.MakePrivateDir(n.opt.Dir)
}

// fill sets the defaults.
func (n *Node) fill() (err error) {
	o := &n.opt
	if n.root == nil {
		if n.root, err = systemd.Open("/"); err != nil {
			return err
		}
	}
	if o.Dir == "" {
		o.Dir = StateDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
	}
	if o.Policy == nil {
		o.Policy = berth.Policy{}
	}
	if o.Rewrites == 0 {
		o.Rewrites = 3
	}
	if o.Window == 0 {
		o.Window = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Events == nil {
		o.Events = func(Event) {}
	}
	n.drift = drift{limit: o.Rewrites, window: o.Window, rewrites: map[string][]time.Time{}, yielded: map[string]bool{}}
	return n.survey()
}

// survey reads the machine, unless it was given, and chooses how to place. It
// does so again, and forgets the books, when other CPUs are online than the last
// time: what was granted of the others is then placed anew.
func (n *Node) survey() (err error) {
	online, _ := readText(n.root, "sys/devices/system/cpu/online")
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
	if err := n.chooseBackend(); err != nil {
		return err
	}
	n.topology, n.online = topology, online
	err = n.held.close()
	n.held = nil
	return err
}

// chooseBackend uses control groups where this process may, else affinity.
func (n *Node) chooseBackend() error {
	if n.opt.Affinity {
		n.backend = newAffinity(n.root, "as asked for")
		return nil
	}
	host, err := cgroup.Detect(n.root)
	if err != nil {
		return err
	}
	g, err := openGroups(n.root, host)
	switch {
	case errors.Is(err, kernel.ErrNotSupported):
		n.backend = newAffinity(n.root, err.Error())
		return nil
	case err != nil:
		return err
	}
	n.backend, g.protect = g, n.opt.Protected
	if n.config.Allowed.IsEmpty() {
		n.config.Allowed = g.allowed
	}
	n.config.Allowed = n.config.Allowed.Intersect(g.allowed)
	return nil
}

// Close gives the lock back. Everything stays in place.
func (n *Node) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.held.close()
	n.held = nil
	for _, lock := range []**os.File{&n.kept, &n.keeper} {
		if *lock != nil {
			err = errors.Join(err, (*lock).Close())
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
	return n.backend.name()
}

// Bases returns the directories, relative to the kernel.Root, that control groups
// are named from: one in each hierarchy, first the one where CPUs are given. With
// affinity there are none.
func (n *Node) Bases() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	g, ok := n.backend.(*groups)
	if !ok {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(g.base.Dirs()), func(dir string) bool { return dir == g.dir })
	return append([]string{g.dir}, rest...)
}

func (n *Node) tell(kind EventKind, id, object, text string) {
	n.opt.Events(Event{Time: n.opt.Now(), Kind: kind, ID: id, Object: object, Text: text})
}
