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

func without(bodies map[string]*body, id string) map[string]*body {
	rest := maps.Clone(bodies)
	delete(rest, id)
	return rest
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
