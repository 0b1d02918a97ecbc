package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
)

// GuardDir is the state directory of the guard beside that of a node.
func GuardDir(node string) string {
	if filepath.Base(node) == "node" {
		return filepath.Join(filepath.Dir(node), "guard")
	}
	return filepath.Clean(node) + "-guard"
}

// knob is what one action of the guard is about.
type knob struct {
	group  string
	remedy detect.Remedy
}

func (k knob) compare(o knob) int {
	return cmp.Or(cmp.Compare(k.group, o.group), cmp.Compare(k.remedy, o.remedy))
}

// actuator is the guard's, beside the node: one call of the two at a time, under the
// keeper's lock.
type actuator struct {
	keeper *keeper
	view   *overlay
	dir    string

	// guarded by the keeper's lock
	host      *actuate.Host // nil if there is none
	enforcing bool
	force     map[knob]control.Action
	lifted    []control.Action // given back for a change of the node
}

func newActuator(k *keeper, root *kernel.Root, dir string) *actuator {
	a := &actuator{keeper: k, view: newOverlay(root), dir: dir, force: map[knob]control.Action{}}
	a.view.lift = a.lift
	k.relay = a.relay
	return a
}

// open opens the host to act on or, unless enforcing, only to preview. What a killed
// guard left is given back first. It is an *actuate.BusyError if another guard may act.
func (a *actuator) open(enforcing bool) error {
	a.keeper.mu.Lock()
	defer a.keeper.mu.Unlock()
	if a.host != nil && a.enforcing == enforcing {
		return nil
	}
	if err := a.closeHost(); err != nil {
		return err
	}
	o := actuate.Options{Root: a.view.forGuard(), Program: "berth agent"}
	if enforcing {
		o.Dir = a.dir
	}
	host, err := actuate.Open(o)
	if err != nil {
		return err
	}
	a.host, a.enforcing = host, enforcing
	return a.restoreAll()
}

// recover gives back what a killed agent's guard left, before the node is opened: its
// values lie above the node's. Another guard that runs, and a host without groups,
// are left alone.
func (a *actuator) recover() error {
	err := a.open(true)
	var busy *actuate.BusyError
	if errors.As(err, &busy) || errors.Is(err, kernel.ErrNotSupported) {
		return nil
	}
	return errors.Join(err, a.close())
}

// restoreAll gives everything back. The caller holds the lock.
func (a *actuator) restoreAll() error {
	if a.host == nil || !a.enforcing {
		return nil
	}
	items, err := a.host.Restore()
	clear(a.force)
	a.lifted = nil
	a.view.clear()
	for _, item := range items {
		if item.Outcome == kernel.Restored || item.Outcome == kernel.Changed {
			a.keeper.complain(fmt.Sprintf("/%s, which the guard had in force, is %v", item.Step.Path, item.Outcome), nil)
		}
	}
	return err
}

// giveBack gives everything back, whatever the guard thinks is in force.
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
	err = errors.Join(err, a.host.Close())
	a.host, a.enforcing = nil, false
	return err
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
	k := knob{action.Group, action.Remedy}
	_, was := a.force[k]
	a.view.begin(k)
	changes, err := a.host.Apply(ctx, action)
	a.view.end(k, err == nil || was)
	if err == nil {
		a.force[k] = action
	}
	return changes, err
}

var errClosed = errors.New("the guard is off")

// fits refuses CPUs that the group does not have: the guard only ever takes some away,
// as others may be somebody's own by now.
func (a *actuator) fits(action control.Action) error {
	if action.Remedy != detect.ShrinkCPUs {
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
	k := knob{action.Group, action.Remedy}
	a.view.begin(k)
	changes, err := a.host.Revert(ctx, action)
	back := err == nil || errors.Is(err, kernel.ErrChanged) || errors.Is(err, fs.ErrNotExist)
	a.view.end(k, !back)
	if back {
		delete(a.force, k)
	}
	return changes, err
}

// lift gives back what is in force by one knob, so that the node can write below it.
// The node has the lock.
func (a *actuator) lift(k knob) error {
	action, ok := a.force[k]
	if !ok {
		action = control.Action{Group: k.group, Remedy: k.remedy}
	}
	_, err := a.revert(context.Background(), action)
	if err != nil && !errors.Is(err, kernel.ErrChanged) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give back what the guard has in force: %w", err)
	}
	if ok {
		a.lifted = append(a.lifted, action)
	}
	return nil
}

// relay puts in force again what was given back for a change of the node that is done
// now, as far as it fits. The keeper has the lock.
func (a *actuator) relay() {
	lifted := a.lifted
	a.lifted = nil
	for _, action := range lifted {
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
	all := maps.Clone(a.host.Unavailable())
	all[detect.ExclusiveCPUs] = (&kernel.NotSupportedError{
		Feature: detect.ExclusiveCPUs.Words(), Reason: "who has CPUs of its own is for the configuration to say", Remedy: "give the victim class: LSE in the NodeConfig",
	}).Error()
	return all
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
	return len(a.force)
}
