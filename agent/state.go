package agent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"

	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// snapshot is who holds what.
type snapshot struct {
	state   *place.State
	records map[string]*record // by id
}

func (v *snapshot) ids() []string { return slices.Sorted(maps.Keys(v.records)) }

// change puts a copy of a workload in its place and has f change that.
func (v *snapshot) change(id string, f func(*Workload)) {
	b, w := *v.records[id], *v.records[id].Workload
	f(&w)
	b.Workload = &w
	v.records[id] = &b
}

func (v *snapshot) workload(id string) *Workload {
	if b := v.records[id]; b != nil {
		return b.Workload
	}
	return nil
}

// workloads are those of the records, in no order.
func (v *snapshot) workloads() iter.Seq[*Workload] {
	return func(yield func(*Workload) bool) {
		for _, b := range v.records {
			if !yield(b.Workload) {
				return
			}
		}
	}
}

// nodeState is what was read from the state directory.
type nodeState struct {
	store
	snapshot
	lock      *os.File // nil if the Node keeps it
	log       *kernel.UndoLog
	stale     []string // files of no use
	bad       map[string]error
	cut       *batch // was committed, and is maybe not installed
	changed   bool   // the directory was
	recovered bool   // since they were read
}

func (b *nodeState) close() error {
	if b == nil {
		return nil
	}
	err := b.log.Close()
	if b.lock != nil {
		err = errors.Join(err, kernel.Unlock(b.lock))
	}
	return err
}

// look runs f on the records as they are, without recovering them.
func (n *Node) look(ctx context.Context, f func(*transaction) error) error {
	if n.unread != nil {
		return n.peek(ctx, f)
	}
	return n.with(ctx, func(b *nodeState) error { return f(&transaction{n: n, nodeState: b, ctx: ctx}) })
}

// with runs f under the lock. After an error amid changes everything is read anew.
func (n *Node) with(ctx context.Context, f func(*nodeState) error) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, err := n.begin(ctx)
	if err != nil {
		return err
	}
	return n.end(f(b))
}

// begin takes the lock of the state directory and reads what is there, unless it is kept.
// The caller holds mu, and calls end.
func (n *Node) begin(ctx context.Context) (b *nodeState, err error) {
	if n.unread != nil {
		return nil, fmt.Errorf("change node %s: %w", n.opt.Dir, syscall.EROFS)
	}
	if err := n.survey(); err != nil {
		return nil, err
	}
	n.disks, n.unified, n.noted = nil, nil, nil
	if n.held == nil {
		if n.held, err = n.read(ctx); err != nil {
			n.held = nil
			return nil, err
		}
	}
	n.held.changed = false
	return n.held, nil
}

// end gives the lock back, unless it is kept. Its error is joined to the one that it gets.
func (n *Node) end(err error) error {
	if n.held == nil {
		return err
	}
	err = errors.Join(err, n.releaseOwnership(n.held))
	if err != nil && n.held.changed || n.kept == nil {
		err = errors.Join(err, n.forget())
	}
	return err
}

// hold makes records that were read the Node's.
func (n *Node) hold(b *nodeState) {
	n.touching(b)
	n.held = b
}

// touching has changes of the records' files noted, and pass by Node.touch.
func (n *Node) touching(b *nodeState) {
	b.touch = func(op string) error {
		b.changed = true
		if n.touch == nil {
			return nil
		}
		return n.touch(op)
	}
}

func (n *Node) forget() error {
	err := n.held.close()
	n.held = nil
	return err
}

// read takes the lock, unless it is kept, and reads the records.
func (n *Node) read(ctx context.Context) (*nodeState, error) {
	b := &nodeState{store: store{dir: n.opt.Dir}}
	n.touching(b)
	b.records = map[string]*record{}
	if n.kept == nil {
		var err error
		if b.lock, err = waitLock(ctx, n.opt.Dir); err != nil {
			return nil, err
		}
	}
	err := n.loadStored(b)
	if err == nil {
		b.log, err = kernel.OpenUndoLog(n.root, filepath.Join(n.opt.Dir, logFile), "berth")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read node %s: %w", n.opt.Dir, err), b.close())
	}
	return b, nil
}

func (n *Node) loadStored(b *nodeState) error {
	texts, bad, err := b.texts()
	if err == nil {
		err = n.resurvey(texts)
	}
	if err != nil {
		return err
	}
	return n.load(b, texts, bad)
}

// resurvey looks at the settings among the texts of the state directory and, if they are
// others than before, chooses anew how to place.
func (n *Node) resurvey(texts map[string][]byte) error {
	changed, err := n.recall(texts)
	if err != nil || !changed {
		return err
	}
	n.topology = nil
	return n.survey()
}

func (n *Node) load(b *nodeState, texts map[string][]byte, bad map[string]error) error {
	boot := n.bootID()
	if text, cut := texts[batchFile]; cut && b.isOfBoot(boot) {
		pending, err := b.batchOf(text)
		if err != nil {
			return err
		}
		for name, text := range pending.Put {
			texts[name] = text
			delete(bad, name)
		}
		for _, name := range pending.Drop {
			delete(texts, name)
		}
		b.cut = &pending
	} else if cut {
		b.stale = append(b.stale, batchFile)
	}
	for _, name := range []string{batchFile, dirtyFile, settingsFile} {
		delete(texts, name)
	}
	b.bad = bad
	var saved place.Saved
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		r, err := readRecord(texts[name])
		switch {
		case err != nil && b.isOfBoot(boot):
			b.bad[name] = err
		case err != nil:
			b.stale = append(b.stale, name)
		case r.Boot != boot && r.format > 0:
			// Nothing of it is in force, and it is the newer version's to remove.
		case r.Boot != boot:
			b.stale = append(b.stale, name)
		case name == poolsFile:
			saved.Pools = r.Pools
		case r.Workload == nil || r.Workload.Grant == nil || fileName(r.Workload.ID())+recordExt != name:
			b.bad[name] = errors.New("it is not the record that its name says")
		default:
			r.Workload.Before = r.Before
			b.records[r.Workload.ID()] = r
			saved.Grants = append(saved.Grants, r.Workload.Grant)
		}
	}
	var err error
	if len(saved.Grants) == 0 && len(saved.Pools) == 0 {
		b.state, err = place.Start(n.opt.Policy, n.topology, n.config)
		return err
	}
	fresh, err := place.New(n.topology, n.config)
	if err != nil {
		return err
	}
	// What cannot be reinstated is not in the state; recover places it anew.
	b.state, err = fresh.Reinstate(saved)
	if b.state == nil {
		return err
	}
	for id, r := range b.records {
		if _, ok := b.state.Grant(id); !ok && r.format > 0 {
			b.bad[fileName(id)+recordExt] = &newerError{r.format}
		}
	}
	b.snapshot = b.snapshot.refreshed()
	return nil
}

// manyRecords is how many records a change may write before the change is over. What a
// committed batch says counts as if it were installed, so that more can wait.
const manyRecords = 16

// installLater installs a committed batch, unless the next transaction has. What fails is tried
// again by that one, which returns the error.
func (n *Node) installLater() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held == nil || n.held.cut == nil {
		return
	}
	n.held.changed = false
	_ = n.end(n.held.install(*n.held.cut))
}

// install carries out a committed batch. It may be done any number of times: until
// batchFile is gone, what it says counts and not what is in the files that it names.
func (b *nodeState) install(all batch) error {
	b.cut = &all
	for name, text := range all.Put {
		if err := b.write(name, text); err != nil {
			return err
		}
	}
	err := b.drop(all)
	if err == nil && !all.takesAway() {
		err = b.remove(batchFile)
	}
	if err == nil {
		b.cut = nil
	}
	return err
}

func (b *nodeState) corrupt() error {
	names := slices.Sorted(maps.Keys(b.bad))
	if len(names) == 0 {
		return nil
	}
	return &CorruptError{b.path(names[0]), b.bad[names[0]]}
}

func (n *Node) bootID() string {
	text, _ := kernel.ReadText(n.root.FS(), "proc/sys/kernel/random/boot_id")
	return text
}

func without(records map[string]*record, id string) map[string]*record {
	rest := maps.Clone(records)
	delete(rest, id)
	return rest
}

// refreshed is a snapshot whose records hold the grants of its state. Records that do
// already are the same.
func (v snapshot) refreshed() snapshot {
	records := maps.Clone(v.records)
	for g := range v.state.Grants() {
		b := records[g.ID]
		cpus := v.state.Effective(g)
		if b == nil || b.Workload.Grant == g && b.Workload.CPUs == cpus {
			continue
		}
		next, w := *b, *b.Workload
		w.Grant, w.CPUs, w.Mems = g, cpus, g.Mems
		next.Workload = &w
		records[g.ID] = &next
	}
	return snapshot{v.state, records}
}

// batch is the difference of the files of two snapshots. Specs of workloads that are
// not in focus are the same.
func (t *transaction) batch(to snapshot, focus ...string) (batch, error) {
	b := batch{Put: map[string][]byte{}}
	for id, next := range to.records {
		was := t.records[id]
		if was == next || next.format > 0 {
			continue
		}
		if was != nil && next.Workload.Grant.Equal(was.Workload.Grant) && next.Workload.Releasing == was.Workload.Releasing && next.Workload.State == was.Workload.State && next.Workload.LateNet == was.Workload.LateNet &&
			(!slices.Contains(focus, id) || next.Workload.Spec.equal(&was.Workload.Spec)) {
			continue
		}
		text, err := next.text()
		if err != nil {
			return b, err
		}
		b.Put[fileName(id)+recordExt] = text
	}
	for id := range t.records {
		if to.records[id] == nil {
			b.Drop = append(b.Drop, fileName(id)+recordExt)
		}
	}
	return b, t.pools(to, &b)
}

// pools adds the policy's named pools to a batch, if they change.
func (t *transaction) pools(to snapshot, b *batch) error {
	was, next := poolsOf(t.state), poolsOf(to.state)
	if t.bad[poolsFile] != nil || reflect.DeepEqual(was, next) && len(t.records) > 0 {
		return nil
	}
	if len(next) == 0 {
		if len(was) > 0 {
			b.Drop = append(b.Drop, poolsFile)
		}
		return nil
	}
	text, err := seal(record{Boot: t.n.bootID(), Pools: next})
	b.Put[poolsFile] = text
	return err
}

func poolsOf(s *place.State) (pools []place.Pool) {
	for p := range s.Pools() {
		pools = append(pools, *p)
	}
	return pools
}
