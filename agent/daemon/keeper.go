package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// keeper serializes the calls of the node, so that each event can name the client that
// asked, and a revised node can take the place of this one.
type keeper struct {
	log     *slog.Logger
	history *api.History
	// changed is told when workloads came, went or moved.
	changed chan struct{}

	mu   sync.Mutex
	node *agent.Node
	// version is another when workloads came, went, moved or changed since.
	version int
	by      *api.Origin
	// refused is why a workload was refused last: told again only if it differs. It
	// begins anew when there are maxRefused: any number of names may be refused.
	refused map[string]string
}

const maxRefused = 1024

func newKeeper(log *slog.Logger, history *api.History) *keeper {
	return &keeper{log: log, history: history, changed: make(chan struct{}, 1), refused: map[string]string{}}
}

// open opens the node.
func (k *keeper) open(ctx context.Context, opt agent.Options) (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	opt.Keep, opt.Events = true, k.tell
	k.node, err = agent.Open(ctx, opt)
	k.version++
	return err
}

// revise has a revision of the node take its place. After an error that stays as it was.
func (k *keeper) revise(ctx context.Context, r agent.Revision, commit func() (func() error, error)) (effects []agent.Effect, err error) {
	err = k.do(ctx, func(n *agent.Node) error {
		r.Options.Keep, r.Options.Events = true, k.tell
		next, all, err := n.Revise(ctx, r, commit)
		if err != nil {
			return err
		}
		k.node, effects = next, all
		k.version++
		poke(k.changed)
		if err := n.Close(); err != nil { // the other one is at work already
			k.record(api.Event{Event: agent.Event{Time: time.Now(), Kind: agent.Failed, Text: err.Error()}})
		}
		return nil
	})
	return effects, err
}

// previewRevision says what revise would come to, and write.
func (k *keeper) previewRevision(ctx context.Context, r agent.Revision) (effects []agent.Effect, plan kernel.Plan, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) {
		r.Options.Keep, r.Options.Events = true, func(agent.Event) {}
		effects, plan, err = n.PreviewRevision(ctx, r)
		return err
	})
	return effects, plan, err
}

func (k *keeper) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.node.Close()
}

// do runs f with the node, in the name of the client that asks.
func (k *keeper) do(ctx context.Context, f func(*agent.Node) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.by = api.OriginOf(ctx)
	defer func() { k.by = nil }()
	return f(k.node)
}

// tell takes an event of the node. The caller holds mu.
func (k *keeper) tell(e agent.Event) {
	switch e.Kind {
	case agent.Refused:
		if k.refused[e.ID] == e.Text {
			return
		}
		if len(k.refused) >= maxRefused {
			clear(k.refused)
		}
		k.refused[e.ID] = e.Text
	case agent.Placed, agent.Changed, agent.Released, agent.Dropped, agent.Restored:
		delete(k.refused, e.ID)
		k.version++
		poke(k.changed)
	}
	k.record(api.Event{Event: e, By: k.by})
}

// record notes an event in the history and the log.
func (k *keeper) record(e api.Event) {
	level := slog.LevelInfo
	switch e.Kind {
	case agent.Refused, agent.Yielded, agent.Dropped, agent.Failed, api.Kept, api.Slow, api.Found:
		level = slog.LevelWarn
	}
	if e.Guard != nil && e.Guard.Alert {
		level = slog.LevelWarn
	}
	var args []any
	for _, a := range []struct{ key, value string }{{"workload", e.ID}, {"object", e.Object}} {
		if a.value != "" {
			args = append(args, a.key, a.value)
		}
	}
	if e.By != nil && e.By.Peer != nil {
		args = append(args, "by", e.By.String())
	}
	k.log.Log(context.Background(), level, string(e.Kind), append(append(args, "text", e.Text), ofGuard(&e)...)...)
	k.history.Add(e)
}

// poke tells a channel of one place that there is something to look at.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Place is agent.Node's.
func (k *keeper) Place(ctx context.Context, spec agent.Spec) (w agent.Workload, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) { w, err = n.Place(ctx, spec); return err })
	return w, err
}

// Preview is agent.Node's.
func (k *keeper) Preview(ctx context.Context, spec agent.Spec) (w agent.Workload, plan kernel.Plan, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) { w, plan, err = n.Preview(ctx, spec); return err })
	return w, plan, err
}

// PlaceTogether is agent.Node's.
func (k *keeper) PlaceTogether(ctx context.Context, specs []agent.Spec) (all []agent.Workload, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) { all, err = n.PlaceTogether(ctx, specs); return err })
	return all, err
}

// PreviewTogether is agent.Node's.
func (k *keeper) PreviewTogether(ctx context.Context, specs []agent.Spec) (all []agent.Workload, plan kernel.Plan, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) { all, plan, err = n.PreviewTogether(ctx, specs); return err })
	return all, plan, err
}

// Resize is agent.Node's.
func (k *keeper) Resize(ctx context.Context, spec agent.Spec) (w agent.Workload, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) { w, err = n.Resize(ctx, spec); return err })
	return w, err
}

// Move is agent.Node's.
func (k *keeper) Move(ctx context.Context, id string, cpus, mems cpuset.Set) (w agent.Workload, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) { w, err = n.Move(ctx, id, cpus, mems); return err })
	return w, err
}

// Release is agent.Node's. While it waits for killed processes others have the node.
func (k *keeper) Release(ctx context.Context, id string, leaving agent.Leaving) error {
	return agent.Release(ctx, k.do, id, leaving)
}

// Get is agent.Node's.
func (k *keeper) Get(ctx context.Context, id string) (w agent.Workload, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) { w, err = n.Get(ctx, id); return err })
	return w, err
}

// List is agent.Node's.
func (k *keeper) List(ctx context.Context) (all []agent.Workload, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) { all, err = n.List(ctx); return err })
	return all, err
}

// changes returns the workloads, and a version of them, unless they are of that version
// still.
func (k *keeper) changes(ctx context.Context, since int) (all []agent.Workload, version int, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) {
		if version = k.version; version != since {
			all, err = n.List(ctx)
		}
		return err
	})
	return all, version, err
}

// State is agent.Node's.
func (k *keeper) State(ctx context.Context) (s *place.State, err error) {
	err = k.do(ctx, func(n *agent.Node) (err error) { s, err = n.State(ctx); return err })
	return s, err
}
