package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"

	"berth.dev/berth/kernel"
)

// OccupiedError is a workload that still has processes.
type OccupiedError struct {
	ID   string
	PIDs []int
}

func (e *OccupiedError) Error() string {
	return fmt.Sprintf("release workload %q: it still has processes %v; end them, or release it with kill or keep", e.ID, e.PIDs)
}

// Leaving says what becomes of the processes that a workload has when it is released.
type Leaving string

// The ways to leave. A group that Berth was given keeps its processes in each.
const (
	WhenEmpty Leaving = ""     // a workload that has some is not released: *OccupiedError
	Kill      Leaving = "kill" // they are killed
	Keep      Leaving = "keep" // they run on, in the groups that they came from
)

// StuckError is a workload whose processes were killed and have not ended. It keeps its
// place until they have; then the next Reconcile, or opening the node, releases it.
type StuckError struct {
	ID   string         `json:"id"`
	Left []kernel.Alive `json:"left"`
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("release workload %q: %v; it keeps its place until they have ended, and is released then", e.ID, e.Unwrap())
}

// Unwrap returns the *kernel.AliveError.
func (e *StuckError) Unwrap() error { return &kernel.AliveError{Left: e.Left} }

// Release takes a workload's place away. A group that Berth made is removed; one
// that still has processes is an *OccupiedError, unless Leaving says what becomes of them.
// A group that Berth was given gets its values back and keeps its processes.
//
// While processes are killed the node can be used: the workload is marked as
// Workload.Releasing, and keeps its place until they have ended. If they have not after
// 10 s, or when ctx ends, that is a *StuckError. If this process ends meanwhile, the next
// that opens the node goes on.
func (n *Node) Release(ctx context.Context, id string, leaving Leaving) error {
	return Release(ctx, func(_ context.Context, f func(*Node) error) error { return f(n) }, id, leaving)
}

// Release is Node.Release on the node that use hands to a function, and that is free for
// others between two uses.
func Release(ctx context.Context, use func(context.Context, func(*Node) error) error, id string, leaving Leaving) error {
	var end func(context.Context) error
	var since time.Time
	err := use(ctx, func(n *Node) (err error) {
		end, since, err = n.beginRelease(ctx, id, leaving)
		return err
	})
	if err != nil || end == nil {
		return err
	}
	err = end(ctx)
	var alive *kernel.AliveError
	switch {
	case errors.As(err, &alive) && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", &StuckError{id, alive.Left}, ctx.Err())
	case errors.As(err, &alive):
		return &StuckError{id, alive.Left}
	case err != nil:
		return fmt.Errorf("release workload %q: %w", id, err)
	}
	return use(ctx, func(n *Node) error { return n.endRelease(ctx, id, since) })
}

// beginRelease releases a workload or, if it has processes that are to be killed, marks
// it and returns how that is done, and since when the workload has its place.
func (n *Node) beginRelease(ctx context.Context, id string, leaving Leaving) (end func(context.Context) error, since time.Time, err error) {
	err = n.change(ctx, func(t *transaction) error {
		b, ok := t.records[id]
		if !ok && slices.Contains(t.released, id) {
			return nil // by this transaction, which found it without processes
		}
		if err := t.mayChange("release", id); err != nil {
			return err
		}
		if leaving == Kill {
			rule := "the agent kills for root only; end the processes yourself, then release it"
			if err := RequireAdmin(ctx, fmt.Sprintf("kill workload %q", id), rule); err != nil {
				return err
			}
		}
		if b.format > 0 {
			return t.foreign(id)
		}
		pids, err := t.occupants(b)
		switch {
		case err != nil:
			return err
		case len(pids) == 0:
			return t.release(id, "as asked for")
		case leaving == WhenEmpty:
			return &OccupiedError{id, pids}
		case leaving == Keep:
			return t.releaseKeeping(id)
		}
		supervisor := n.enforcer.(Supervisor) // it told the processes
		end, since = func(ctx context.Context) error { return supervisor.Kill(ctx, b.Workload) }, b.Workload.Since
		return t.markReleasing(id)
	})
	return end, since, err
}

// releaseKeeping releases a workload whose processes run on. Those that fork while they
// are moved take some passes.
func (t *transaction) releaseKeeping(id string) error {
	const most = 10
	w := t.records[id].Workload
	if err := t.mayKeep(w); err != nil {
		return err
	}
	for pass := 1; w.made(); pass++ {
		err := t.n.enforcer.Release(w, true, t.log)
		if err == nil {
			_, err = t.log.Undo(func(s kernel.Step) bool {
				return s.Op == kernel.Attach && slices.Contains(w.Dirs, path.Dir(s.Path))
			})
		}
		if err != nil {
			return err
		}
		pids, err := t.occupants(t.records[id])
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			break
		}
		if pass == most {
			return &OccupiedError{id, pids}
		}
	}
	return t.release(id, "as asked for; its processes run on")
}

// mayKeep refuses an ordinary user whose processes have no group to go back to: at the top
// of the tree they would be out of the limits of the user's own groups.
func (t *transaction) mayKeep(w *Workload) error {
	for _, dir := range w.Dirs {
		back := slices.ContainsFunc(t.log.Notes(), func(n kernel.Item) bool {
			if n.Step.Op != kernel.Attach || n.Step.Path != dir+"/cgroup.procs" {
				return false
			}
			_, err := fs.Stat(t.n.root.FS(), path.Dir(n.Step.Back))
			return err == nil
		})
		if w.made() && !back {
			return RequireAdmin(t.ctx, fmt.Sprintf("keep the processes of workload %q", w.ID()), "the control group that they came from is gone")
		}
	}
	return nil
}

// endRelease releases a workload whose processes have been killed, unless somebody else
// has done so meanwhile.
func (n *Node) endRelease(ctx context.Context, id string, since time.Time) error {
	return n.change(ctx, func(t *transaction) error {
		b, ok := t.records[id]
		if !ok || !b.Workload.Since.Equal(since) {
			return nil
		}
		pids, err := t.occupants(b)
		if err == nil && len(pids) > 0 {
			err = &OccupiedError{id, pids}
		}
		if err != nil {
			return err
		}
		return t.release(id, "as asked for")
	})
}
