package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// view is who holds what.
type view struct {
	state  *place.State
	bodies map[string]*body // by id
}

func (v *view) ids() []string { return slices.Sorted(maps.Keys(v.bodies)) }

// books are what was read from the state directory.
type books struct {
	store
	view
	lock    *os.File // nil if the Node keeps it
	ledger  *kernel.Journal
	stale   []string // files of no use
	bad     map[string]error
	changed bool // the directory was
	settled bool // since they were read
}

func (b *books) close() error {
	if b == nil {
		return nil
	}
	err := b.ledger.Close()
	if b.lock != nil {
		err = errors.Join(err, b.lock.Close())
	}
	return err
}

// change is one view to come about after another.
type change struct {
	from, to view
	focus    []string // the workloads that it is about
	all      bool     // look at everything, not only at what changes
	kept     bool     // the books are kept in memory, and settled
	ledger   *kernel.Journal
	confine  []string
	yielded  func(path string) bool
}

// stands reports whether a workload is where the books say, as far as it
// concerns this change, so that its group need not be looked at. What someone
// else did to it is for Reconcile to find.
func (c *change) stands(id string) bool {
	was, is := c.from.bodies[id], c.to.bodies[id]
	return c.keepsMems(id) && (was == is || was.Workload.CPUs == is.Workload.CPUs)
}

// keepsMems reports likewise that a workload's memory nodes stay.
func (c *change) keepsMems(id string) bool {
	was, is := c.from.bodies[id], c.to.bodies[id]
	return !c.all && was != nil && !slices.Contains(c.focus, id) && (was == is || was.Workload.Mems == is.Workload.Mems)
}

// follows reports whether a workload only follows a change of others, while the books
// are kept in memory: its CPUs are taken from there.
func (c *change) follows(id string) bool {
	return c.kept && !c.all && c.from.bodies[id] != nil && !slices.Contains(c.focus, id)
}

// disturbs reports whether groups that are not Berth's may have to be kept off
// other CPUs than before.
func (c *change) disturbs() bool {
	return c.all || c.from.state.Owned() != c.to.state.Owned() || given(c.from, c.to) || c.parts()
}

// parts reports whether a group that is to be placed may lie within a confined one,
// whose other children are to be confined instead.
func (c *change) parts() bool {
	return len(c.confine) > 0 && !c.to.state.Owned().IsEmpty() && given(c.to, c.from)
}

// leaves reports whether something may be of no use any more.
func (c *change) leaves() bool {
	if c.all || c.parts() || !c.to.state.Owned().Contains(c.from.state.Owned()) {
		return true
	}
	for id := range c.from.bodies {
		if c.to.bodies[id] == nil {
			return true
		}
	}
	return false
}

// given reports whether a view has a workload in a group that is not Berth's
// and that another view does not have.
func given(v, other view) bool {
	for id, b := range v.bodies {
		if b.Workload.Spec.Group != "" && other.bodies[id] == nil {
			return true
		}
	}
	return false
}

// limited are the workloads whose limits are looked at.
func (c *change) limited() []string {
	if c.all {
		return c.to.ids()
	}
	return c.focus
}

// contested are the CPUs that somebody owns, before or after.
func (c *change) contested() cpuset.Set { return c.from.state.Owned().Union(c.to.state.Owned()) }

// work is what a change comes to.
type work struct {
	plan  kernel.Plan
	masks []mask
}

func (w work) isEmpty() bool { return len(w.plan) == 0 && len(w.masks) == 0 }

// backend tells the kernel who runs where.
type backend interface {
	name() string
	// notes are plain warnings about a workload.
	notes(b *body) []string
	// seat is the file that says on which CPUs a workload runs, "" if none does.
	seat(b *body) string
	// admit fills in where a new workload is to be.
	admit(b *body, others map[string]*body) error
	// exists reports whether there is still something to place.
	exists(b *body) bool
	// present returns the workload's processes; ok is false if its group is gone.
	present(b *body) (pids []int, ok bool, err error)
	// kill kills them.
	kill(ctx context.Context, b *body) error
	// enable is what must be done before a change can be planned.
	enable(c *change) (kernel.Plan, error)
	// plan is what must be done for a change.
	plan(c *change) (work, error)
	// verify looks at what came of it.
	verify(c *change) error
	// remove takes away the place of a workload without processes.
	remove(c *change, b *body) error
	// evacuate moves the processes of a workload out of its place.
	evacuate(c *change, b *body) error
	// giveBack gives back what no workload needs any more.
	giveBack(c *change) error
}

// change runs f as a transaction on the settled books. Books that are kept in memory
// are settled already but for who died since, which takes a look at every workload:
// only if f fails, as it may for them, are they buried and f tried once more.
func (n *Node) change(ctx context.Context, f func(*transaction) error) error {
	var kept bool
	once := func(b *books) error {
		t := &transaction{n: n, books: b, ctx: ctx}
		kept = b.settled
		if err := t.settle(nil); err != nil {
			return err
		}
		return f(t)
	}
	err := n.with(ctx, once)
	if err == nil || !kept || ctx.Err() != nil {
		return err
	}
	released := 0
	if n.with(ctx, func(b *books) error {
		t := &transaction{n: n, books: b, ctx: ctx}
		settleErr := t.settle(t.ids())
		released = t.released
		return settleErr
	}) != nil || released == 0 {
		return err
	}
	return n.with(ctx, once)
}

// look runs f on the books as they are.
func (n *Node) look(ctx context.Context, f func(*transaction) error) error {
	return n.with(ctx, func(b *books) error { return f(&transaction{n: n, books: b, ctx: ctx}) })
}

// with runs f under the lock. After an error amid changes everything is read anew.
func (n *Node) with(ctx context.Context, f func(*books) error) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.survey(); err != nil {
		return err
	}
	if n.held == nil {
		if n.held, err = n.read(ctx); err != nil {
			n.held = nil
			return err
		}
	}
	n.held.changed = false
	err = f(n.held)
	if e := n.unclaim(n.held); e != nil {
		err = errors.Join(err, e)
	}
	if err != nil && n.held.changed || n.kept == nil {
		err = errors.Join(err, n.held.close())
		n.held = nil
	}
	return err
}

// read takes the lock, unless it is kept, and reads the books.
func (n *Node) read(ctx context.Context) (*books, error) {
	b := &books{store: store{dir: n.opt.Dir}}
	b.touch = func(op string) error {
		b.changed = true
		if n.touch == nil {
			return nil
		}
		return n.touch(op)
	}
	b.bodies = map[string]*body{}
	if n.kept == nil {
		var err error
		if b.lock, err = waitLock(ctx, n.opt.Dir); err != nil {
			return nil, err
		}
	}
	err := n.load(b)
	if err == nil {
		b.ledger, err = kernel.OpenLedger(n.root, filepath.Join(n.opt.Dir, ledgerFile), "berth")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read node %s: %w", n.opt.Dir, err), b.close())
	}
	return b, nil
}

func (n *Node) load(b *books) error {
	files, bad, err := b.files()
	if err != nil {
		return err
	}
	b.bad = bad
	boot := n.bootID()
	var saved place.Saved
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var r body
		err := unseal(files[name], &r)
		switch {
		case err == nil && r.Boot != boot:
			b.stale = append(b.stale, name)
		case err == nil && name == poolsFile:
			saved.Pools = r.Pools
		case err == nil && (r.Workload == nil || r.Workload.Grant == nil || fileName(r.Workload.ID())+recordExt != name):
			b.bad[name] = errors.New("it is not the record that its name says")
		case err != nil:
			b.bad[name] = err
		default:
			b.bodies[r.Workload.ID()] = &r
			saved.Grants = append(saved.Grants, r.Workload.Grant)
		}
	}
	if len(saved.Grants) == 0 && len(saved.Pools) == 0 {
		b.state, err = place.Start(n.opt.Policy, n.topology, n.config)
		return err
	}
	fresh, err := place.New(n.topology, n.config)
	if err != nil {
		return err
	}
	// What cannot be reinstated is not in the state; settle places it anew.
	b.state, err = place.Restore(n.opt.Policy, fresh, saved)
	if b.state == nil {
		return err
	}
	b.view = b.view.refreshed()
	return nil
}

func (n *Node) bootID() string {
	text, _ := readText(n.root, "proc/sys/kernel/random/boot_id")
	return text
}

// transaction is one change to the books and the kernel.
type transaction struct {
	n *Node
	*books
	ctx      context.Context
	released int // workloads that were found dead
}

// began notes that the kernel is about to be told something, once its groups are
// this node's to place.
func (t *transaction) began() error {
	if err := t.n.claim(); err != nil {
		return err
	}
	return t.store.began()
}

// beganTakingAway is began for what only takes away: that goes on where nothing can
// be written, and beside another node.
func (t *transaction) beganTakingAway() error {
	err := t.began()
	var claimed *ClaimedError
	if errors.Is(err, syscall.ENOSPC) || errors.As(err, &claimed) {
		return nil
	}
	return err
}

// settle brings the books up to date: files of no use go, what a killed process
// began is undone or finished, and who is dead is released: of the given workloads,
// or of all if the books have just been read.
func (t *transaction) settle(ids []string) error {
	if !t.settled {
		ids = t.ids()
	}
	if err := t.resume(); err != nil {
		return err
	}
	if err := t.tidy(); err != nil {
		return err
	}
	if err := t.replace(); err != nil {
		return err
	}
	if err := t.bury(ids); err != nil {
		return err
	}
	if damage := t.ledger.Damage(); damage != nil {
		t.n.tell(Failed, "", "", damage.Error())
		return nil
	}
	if t.wasKilled() {
		if err := t.converge(); err != nil {
			return err
		}
	}
	t.settled = true
	return nil
}

// bury releases who is dead of some workloads.
func (t *transaction) bury(ids []string) error {
	for _, id := range ids {
		if t.bodies[id] == nil {
			continue
		}
		why, err := t.dead(id)
		if err != nil {
			return err
		}
		if why == "" {
			continue
		}
		// One that cannot be released does not hold up the others.
		if err := t.release(id, why); err != nil {
			t.n.tell(Failed, id, "", err.Error())
			continue
		}
		t.released++
	}
	return nil
}

// resume installs a batch that a killed process has committed.
func (t *transaction) resume() error {
	b, ok, err := t.pending()
	if err == nil && ok {
		err = t.install(b)
	}
	if err != nil {
		return fmt.Errorf("finish a change: %w", err)
	}
	return nil
}

// tidy removes records of an earlier boot and sets aside those that cannot be
// read.
func (t *transaction) tidy() error {
	for _, name := range t.stale {
		if err := t.remove(name); err != nil {
			return err
		}
		t.n.tell(Dropped, "", name, "of an earlier boot")
	}
	t.stale = nil
	for _, name := range slices.Sorted(maps.Keys(t.bad)) {
		to, err := t.aside(name)
		if err != nil {
			return fmt.Errorf("set aside a record: %w", err)
		}
		t.n.tell(Dropped, "", to, (&CorruptError{to, t.bad[name]}).Error())
	}
	if len(t.bad) > 0 {
		t.bad = map[string]error{}
		return t.began()
	}
	return nil
}

// replace places workloads anew that the machine or the configuration no longer
// has room for where they were.
func (t *transaction) replace() error {
	if t.settled {
		return nil
	}
	for _, id := range t.ids() {
		if _, ok := t.state.Grant(id); ok {
			continue
		}
		b := *t.bodies[id]
		next, err := t.decide(t.state, &b.Workload.Spec)
		to := view{next, t.bodies}
		if err != nil {
			to = view{t.state, without(t.bodies, id)}
			t.n.tell(Dropped, id, "", fmt.Sprintf("its place is gone, and there is no other: %v", err))
		}
		if err := t.record(to); err != nil {
			return err
		}
		if err == nil && to.bodies[id] != nil {
			t.n.tell(Changed, id, "", "its place is gone; it has another")
		}
	}
	return nil
}

func without(bodies map[string]*body, id string) map[string]*body {
	rest := maps.Clone(bodies)
	delete(rest, id)
	return rest
}

// dead says why a workload is to be released though nobody asked; "" if it is
// not.
func (t *transaction) dead(id string) (string, error) {
	b := t.bodies[id]
	owner := b.Workload.Spec.Owner
	switch {
	case !t.n.backend.exists(b):
		return "its control group or process is gone", nil
	case owner.PID == 0 || t.n.alive(owner):
		return "", nil
	}
	pids, _, err := t.n.backend.present(b)
	if err != nil || len(pids) > 0 {
		return "", err
	}
	return fmt.Sprintf("its owner, process %d, has ended", owner.PID), nil
}

// alive reports whether a process is still the one that it was.
func (n *Node) alive(o Owner) bool {
	start, ok := startTime(n.root, o.PID)
	return ok && start == o.Start
}

// startTime is when a process started. One that has ended has none, also while
// nobody has waited for it yet.
func startTime(root *kernel.Root, pid int) (string, bool) {
	p, err := kernel.ReadProcess(root.FS(), strconv.Itoa(pid))
	if err != nil || p.Ended() {
		return "", false
	}
	return p.Start, true
}

// decide returns the state with a workload placed.
func (t *transaction) decide(s *place.State, spec *Spec) (*place.State, error) {
	if !spec.CPUs.IsEmpty() {
		return seated(s, &spec.Request, spec.CPUs, spec.Mems)
	}
	offer, err := place.Place(t.n.opt.Policy, s, &spec.Request)
	if err != nil {
		return nil, err
	}
	return s.Commit(bound(offer, spec.Mems))
}

// bound is an offer with the given memory nodes, if any.
func bound(offer place.Offer, mems cpuset.Set) place.Offer {
	if !mems.IsEmpty() && offer.Grant != nil {
		g := *offer.Grant
		g.Mems = mems
		offer.Grant = &g
	}
	return offer
}

// seated returns the state in which a workload has the given CPUs, whatever it
// had before.
func seated(s *place.State, r *place.Request, cpus, mems cpuset.Set) (*place.State, error) {
	if _, ok := s.Grant(r.ID); ok {
		var err error
		if s, err = s.Release(r.ID); err != nil {
			return nil, err
		}
	}
	g := &place.Grant{ID: r.ID, Request: *r, Mems: mems}
	nodes := mems
	if nodes.IsEmpty() {
		nodes = s.Topology().NodesOf(cpus)
	}
	if len(r.Memory) > 0 {
		var err error
		if g.Mems, g.Memory, err = s.FitMemory(nodes, r.Memory); err != nil {
			return nil, err
		}
	}
	if own := r.Mode == place.Exclusive || r.Mode == place.Auto && (r.Class == place.LSE || r.Class == place.LSR); own {
		g.Own, g.Lent = cpus, r.Class == place.LSR
	} else {
		g.Share = place.Share{Within: cpus, Milli: r.Milli}
	}
	if r.Explain {
		g.Why = place.NewWhy(r)
		g.Why.Note("CPUs %s as asked for", cpus)
	}
	offer := s.Offer()
	offer.Grant = g
	return s.Commit(offer)
}

// refreshed is a view whose records hold the grants of its state. Records that do
// already are the same.
func (v view) refreshed() view {
	bodies := maps.Clone(v.bodies)
	for g := range v.state.Grants() {
		b := bodies[g.ID]
		cpus := v.state.Effective(g)
		if b == nil || b.Workload.Grant == g && b.Workload.CPUs == cpus {
			continue
		}
		next, w := *b, *b.Workload
		w.Grant, w.CPUs, w.Mems = g, cpus, g.Mems
		next.Workload = &w
		bodies[g.ID] = &next
	}
	return view{v.state, bodies}
}

// to returns the change to a view.
func (t *transaction) to(v view, focus ...string) *change {
	return &change{
		from: t.view, to: v.refreshed(), focus: focus, kept: t.n.kept != nil && t.settled, ledger: t.ledger,
		confine: t.n.opt.Confine, yielded: t.n.drift.isYielded,
	}
}

// carry tells the kernel and then makes the change the truth. On an error
// everything is as it was.
func (t *transaction) carry(c *change) error {
	b, err := t.batch(c.to, c.focus...)
	if err == nil && b.takesAway() && len(c.focus) == 0 {
		err = t.beganTakingAway()
	} else if err == nil {
		err = t.began()
	}
	if err == nil {
		err = t.prepare(b)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("note a change: %w", err), t.abandon())
	}
	undo, err := t.enforce(c)
	if err == nil {
		if err = t.commit(b); err != nil {
			err = errors.Join(err, undo())
		}
	}
	if err != nil {
		return errors.Join(err, t.abandon())
	}
	t.finish(c, b)
	return nil
}

// enforce tells the kernel. What has to be enabled comes first, since only then
// there is something to look at.
func (t *transaction) enforce(c *change) (undo func() error, err error) {
	enable, err := t.n.backend.enable(c)
	if err != nil {
		return nil, err
	}
	disable, err := kernel.Apply(t.n.root, enable, t.ledger)
	if err != nil {
		return nil, err
	}
	w, err := t.n.backend.plan(c)
	if err != nil {
		return nil, errors.Join(err, disable())
	}
	restore, err := t.n.apply(w, t.ledger)
	if err != nil {
		return nil, errors.Join(err, disable())
	}
	undo = func() error { return errors.Join(restore(), disable()) }
	if err := t.n.backend.verify(c); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// finish does what is left once a change is the truth. What fails now is done
// by the next transaction, which finds that this one has not ended.
func (t *transaction) finish(c *change, b batch) {
	t.view = c.to
	err := t.install(b)
	if err == nil && c.leaves() {
		err = t.n.backend.giveBack(c)
	}
	if err == nil {
		err = t.ended()
	}
	if err != nil {
		t.n.tell(Failed, "", "", err.Error())
	}
}

// record makes a view the truth without telling the kernel.
func (t *transaction) record(v view) error {
	v = v.refreshed()
	b, err := t.batch(v)
	if err == nil && b.takesAway() {
		err = t.beganTakingAway()
	} else if err == nil {
		err = t.began()
	}
	if err == nil {
		err = t.prepare(b)
	}
	if err == nil {
		err = t.commit(b)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("note a change: %w", err), t.abandon())
	}
	t.view = v
	return t.install(b)
}

// batch is the difference of the files of two views. Specs of workloads that are
// not in focus are the same.
func (t *transaction) batch(to view, focus ...string) (batch, error) {
	b := batch{Put: map[string][]byte{}}
	for id, next := range to.bodies {
		was := t.bodies[id]
		if was == next {
			continue
		}
		if was != nil && next.Workload.Grant.Equal(was.Workload.Grant) &&
			(!slices.Contains(focus, id) || next.Workload.Spec.equal(&was.Workload.Spec)) {
			continue
		}
		text, err := seal(next)
		if err != nil {
			return b, err
		}
		b.Put[fileName(id)+recordExt] = text
	}
	for id := range t.bodies {
		if to.bodies[id] == nil {
			b.Drop = append(b.Drop, fileName(id)+recordExt)
		}
	}
	return b, t.pools(to, &b)
}

// pools adds the policy's named pools to a batch, if they change.
func (t *transaction) pools(to view, b *batch) error {
	was, next := poolsOf(t.state), poolsOf(to.state)
	if reflect.DeepEqual(was, next) && len(t.bodies) > 0 {
		return nil
	}
	if len(next) == 0 {
		if len(was) > 0 {
			b.Drop = append(b.Drop, poolsFile)
		}
		return nil
	}
	text, err := seal(body{Boot: t.n.bootID(), Pools: next})
	b.Put[poolsFile] = text
	return err
}

func poolsOf(s *place.State) (pools []place.Pool) {
	for p := range s.Pools() {
		pools = append(pools, *p)
	}
	return pools
}

// release ends a workload that has no processes. Once its group is gone it is
// released, whatever follows.
func (t *transaction) release(id, why string) error {
	offer, err := place.Release(t.n.opt.Policy, t.state, id)
	if err != nil {
		return err
	}
	state, err := t.state.Commit(offer)
	if err != nil {
		return err
	}
	if err := t.beganTakingAway(); err != nil {
		return fmt.Errorf("note a change: %w", err)
	}
	c := t.to(view{state, without(t.bodies, id)})
	if err := t.n.backend.remove(c, t.bodies[id]); err != nil {
		return errors.Join(err, t.carry(t.to(t.view, id)))
	}
	if err := t.record(c.to); err != nil {
		return err
	}
	t.n.tell(Released, id, "", why)
	if err := t.carry(c); err != nil {
		t.n.tell(Failed, "", "", err.Error())
	}
	return nil
}

// converge drives the kernel to the books.
func (t *transaction) converge() error {
	c := t.to(t.view, t.ids()...)
	c.all = true
	return t.carry(c)
}
