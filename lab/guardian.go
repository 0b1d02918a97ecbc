package lab

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/machine"
)

// The guard that protects the tenant in a scenario (Isolation.Guard) is a process of the run, in the
// network of tenant and neighbour. It lives from the first such round on, and looks on in those of
// the others: as on a host, it knows by then what is usual.

const (
	guardWindow = 200 * time.Millisecond
	// guardLearns is how long it sees the tenant alone before it first acts: of thirty windows the
	// guard takes twenty to know what is usual.
	guardLearns = 6 * time.Second
	// guardActs is for how much longer than elsewhere the neighbour has been there when a round is
	// measured: three windows that agree, and a second until what had waited at the link is sent.
	guardActs = 2200 * time.Millisecond
)

// GuardConfig is what the process of the guard is told first.
type GuardConfig struct {
	// Groups are the directories of the groups of tenant and neighbour, below the root.
	Groups  map[Role]string  `json:"groups"`
	Machine *machine.Machine `json:"machine"`
	Window  Duration         `json:"window"`
}

// GuardOrder has the guard act from now on, or look on: what it did is then taken back.
type GuardOrder struct {
	Act bool `json:"act"`
}

// GuardAnswer is the answer of the guard's process to its config and to each order.
type GuardAnswer struct {
	// Lacks says why there can be no guard here; nil if there is one.
	Lacks *kernel.NotSupportedError `json:"lacks,omitempty"`
	// Acts are what it did since it was told to act, and what failed since the answer before.
	Acts []Act `json:"acts,omitempty"`
}

// Act is something that the guard did in a round.
type Act struct {
	At float64 `json:"at"` // seconds after the neighbour began; less than 0 before
	// Applied: it limited somebody; else it kept a limit, gave it back, or says why it does nothing.
	Applied bool `json:"applied,omitempty"`
	// Failed: it met an error, with which it goes on.
	Failed bool   `json:"failed,omitempty"`
	What   string `json:"what"` // in the guard's words
}

// guardian is the guard's process.
type guardian struct {
	*child
	learned bool
}

// order has the guard do something, and returns what it answers.
func (g *guardian) order(ctx context.Context, what any) (a GuardAnswer, err error) {
	if err = g.send(what); err == nil {
		err = g.receive(ctx, startLimit, &a)
	}
	if err == nil && a.Lacks != nil {
		err = a.Lacks
	}
	return a, err
}

// openGuard starts the guard, once. What stops it is a kernel.NotSupportedError if that is due to the host.
func (b *Testbed) openGuard(ctx context.Context) error {
	if b.guardian != nil || b.link.lacks != nil {
		return b.link.lacks
	}
	c, err := childConfig{name: "guard", exe: b.opt.Exe, args: []string{"__guard"}, keeps: true, network: b.link.near, mounts: true}.start(b.parent)
	if err != nil {
		return err
	}
	g := &guardian{child: c}
	cfg := GuardConfig{Groups: map[Role]string{}, Machine: b.machine, Window: Duration(guardWindow)}
	for _, r := range []Role{Tenant, Neighbour} {
		cfg.Groups[r] = b.backend.group(r).Dirs()[0]
	}
	if _, err := g.order(ctx, cfg); err != nil {
		c.kill()
		return err
	}
	b.guardian = g
	b.later = append(b.later, func() error {
		g.kill()
		if g.err != nil {
			return fmt.Errorf("guard: %w", g.exitError())
		}
		return nil
	})
	return nil
}

// prepareGuard has the guard there for a round, of which the first is longer.
func (b *Testbed) prepareGuard(c *Cell) error {
	if err := b.openGuard(context.Background()); err != nil {
		return err
	}
	if !b.guardian.learned {
		c.Settle += guardLearns
	}
	return nil
}

// guarded has the guard act in a round from when the neighbour begins.
func (b *Testbed) guarded(ctx context.Context, r *Running) error {
	g := b.guardian
	if !g.learned {
		if err := r.Until(ctx, guardLearns); err != nil {
			return err
		}
		g.learned = true
	}
	if _, err := g.order(ctx, GuardOrder{Act: true}); err != nil {
		return err
	}
	r.Finish(func() error {
		a, err := g.order(context.Background(), GuardOrder{})
		r.round.Guard = a.Acts
		return err
	})
	return r.StartNeighbour(ctx)
}

// lengthOf is how long a round of a scenario takes: what is discarded, and what is measured.
func (e Spec) lengthOf(s Scenario) (settle, window time.Duration) {
	settle, window = time.Duration(e.Settle), time.Duration(e.Window)
	if s.Isolation.Guard {
		settle += guardActs
	}
	return settle, window
}

// block is how long a block takes, with so much between its rounds.
func (e Spec) block(between time.Duration) (length time.Duration) {
	for _, s := range e.Scenarios {
		settle, window := e.lengthOf(s)
		length += settle + window + between
	}
	return length
}
