package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
)

// knob is what one action of the guard is about.
type knob struct {
	group  string
	remedy detect.Remedy
}

// actuator is the guard's, beside the node: one call of the two at a time, under the
// keeper's lock.
type actuator struct {
	keeper *keeper
	root   *kernel.Root
	dir    string

	// guarded by the keeper's lock
	enforcing bool
	active    map[knob]control.Action
	suspended []control.Action // reverted for a change of the node

	// mu guards the host's undo log, too: the node reads files for a release without the
	// keeper's lock.
	mu   sync.Mutex
	host *actuate.Host // nil if there is none
}

func newActuator(k *keeper, root *kernel.Root, dir string) *actuator {
	a := &actuator{keeper: k, root: root, dir: dir, active: map[knob]control.Action{}}
	k.reapply = a.reapply
	return a
}

// open opens the host to act on or, unless enforcing, only to preview. What a killed
// guard left is restored first. It is an *actuate.BusyError if another guard may act.
func (a *actuator) open(enforcing bool) error {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	if a.host != nil && a.enforcing == enforcing {
		return nil
	}
	if err := a.closeHost(); err != nil {
		return err
	}
	o := actuate.Options{Root: a.root, Program: "berth agent"}
	if enforcing {
		o.Dir = a.dir
	}
	host, err := actuate.Open(o)
	if err != nil {
		return err
	}
	a.enforcing = enforcing
	a.use(host)
	return a.restoreAll()
}

// use makes a host the one to act on.
func (a *actuator) use(host *actuate.Host) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.host = host
}

// recover restores what a killed guard left, before the node is opened: its values lie
// above the node's, which would be noted as the original ones. So another guard that
// runs, and a ledger that cannot be read, are errors. A host without groups has nothing to
// restore.
func (a *actuator) recover() error {
	items, err := actuate.Recover(actuate.Options{Root: a.root, Dir: a.dir, Program: "berth agent"})
	a.say(items)
	if err != nil {
		return fmt.Errorf("before the node is opened: %w", err)
	}
	return nil
}

// restoreAll restores everything. The caller holds the lock.
func (a *actuator) restoreAll() error {
	if a.host == nil || !a.enforcing {
		return nil
	}
	a.mu.Lock()
	items, err := a.host.Restore()
	a.mu.Unlock()
	clear(a.active)
	a.suspended = nil
	a.say(items)
	return err
}

// say reports the restored values.
func (a *actuator) say(items []kernel.Item) {
	for _, item := range items {
		if item.Outcome == kernel.Restored || item.Outcome == kernel.Changed {
			a.keeper.complain(fmt.Sprintf("/%s, which the guard had in force, is %v", item.Step.Path, item.Outcome), nil)
		}
	}
}

// giveBack restores everything, whatever the guard thinks is active.
func (a *actuator) giveBack() error {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	return a.restoreAll()
}

func (a *actuator) close() error {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	return a.closeHost()
}

func (a *actuator) closeHost() error {
	if a.host == nil {
		return nil
	}
	err := a.restoreAll()
	host := a.host
	a.use(nil)
	a.enforcing = false
	return errors.Join(err, host.Close())
}

// Apply implements control.Actuator.
func (a *actuator) Apply(ctx context.Context, action control.Action) ([]control.Change, error) {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	return a.apply(ctx, action)
}

func (a *actuator) apply(ctx context.Context, action control.Action) ([]control.Change, error) {
	if a.host == nil {
		return nil, errClosed
	}
	if err := a.fits(action); err != nil {
		return nil, err
	}
	a.mu.Lock()
	changes, err := a.host.Apply(ctx, action)
	a.mu.Unlock()
	if err == nil {
		a.active[knob{action.Group, action.Remedy}] = action
	}
	return changes, err
}

var errClosed = errors.New("the guard is off")

// fits refuses CPUs that the group does not have: the guard only ever takes some away,
// as another workload may have the others exclusively by now.
func (a *actuator) fits(action control.Action) error {
	if action.Limits.CPUs.IsEmpty() {
		return nil
	}
	s, err := a.host.Settings(action.Group)
	if err != nil {
		return err
	}
	if !s.CPUs.IsEmpty() && !s.CPUs.Contains(action.Limits.CPUs) {
		return fmt.Errorf("apply %v: the group has CPUs %s by now", action, s.CPUs)
	}
	return nil
}

// Revert implements control.Actuator.
func (a *actuator) Revert(ctx context.Context, action control.Action) ([]control.Change, error) {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	return a.revert(ctx, action)
}

func (a *actuator) revert(ctx context.Context, action control.Action) ([]control.Change, error) {
	if a.host == nil {
		return nil, errClosed
	}
	a.mu.Lock()
	changes, err := a.host.Revert(ctx, action)
	a.mu.Unlock()
	if err == nil || errors.Is(err, kernel.ErrChanged) || errors.Is(err, fs.ErrNotExist) {
		delete(a.active, knob{action.Group, action.Remedy})
	}
	return changes, err
}

// suspend reverts an action, so that the node can write below it. The node has the lock.
func (a *actuator) suspend(action control.Action) error {
	_, err := a.revert(context.Background(), action)
	if err != nil && !errors.Is(err, kernel.ErrChanged) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give back what the guard has in force: %w", err)
	}
	a.suspended = append(a.suspended, action)
	return nil
}

// reapply applies suspended actions again once the change of the node is done, as far as they
// still fit. The keeper has the lock.
func (a *actuator) reapply() {
	suspended := a.suspended
	a.suspended = nil
	for _, action := range suspended {
		if _, err := a.apply(context.Background(), action); err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.keeper.complain("given back for a change of the placement, and not put in force again", err)
		}
	}
}

// Preview implements control.Actuator.
func (a *actuator) Preview(ctx context.Context, action control.Action) ([]control.Change, error) {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	if a.host == nil {
		return nil, errClosed
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.host.Preview(ctx, action)
}

// Settings implements guard.Actuator.
func (a *actuator) Settings(group string) (actuate.Settings, error) {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	if a.host == nil {
		return actuate.Settings{}, errClosed
	}
	return a.host.Settings(group)
}

// Unavailable implements guard.Actuator.
func (a *actuator) Unavailable() map[detect.Remedy]string {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	if a.host == nil {
		return nil
	}
	return a.host.Unavailable()
}

// NoIdle implements guard.Actuator.
func (a *actuator) NoIdle() string {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	if a.host == nil {
		return ""
	}
	return a.host.NoIdle()
}

// inForce is how many actions are.
func (a *actuator) inForce() int {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	return len(a.active)
}
