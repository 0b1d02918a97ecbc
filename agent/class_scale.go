package agent

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/kernel/power"
	"berth.dev/berth/place"
	"berth.dev/berth/watch/proc"
)

// scaling is how far the load of pools limits their clocks, and what their CPUs had done when
// it was last measured.
type scaling struct {
	levels map[string]power.Level // by pool
	stat   proc.Stat
	at     time.Time
}

// level is how far a pool needs its clock, with a profile that scales, in percent. Without an
// agent nobody measures it.
func (n *Node) level(w power.Wish) int {
	if w.Profile.Scale == nil || !w.Pool || !n.opt.Keep {
		return 0
	}
	if level, ok := n.scaling.levels[w.Who]; ok {
		return level.Percent
	}
	return 100
}

// poolNotes say that the clock of the pool that a workload is in follows its load.
func (n *Node) poolNotes(w *Workload) []string {
	level, scaled := n.scaling.levels[sharedPool]
	if !scaled || w.Grant == nil || !w.Grant.Own.IsEmpty() || w.Spec.Request.Class == place.System {
		return nil
	}
	return []string{fmt.Sprintf("power class %q of the shared CPUs follows their load: they need %d%% of the highest clock now", n.classesNow().Power.Shared, level.Percent)}
}

// Scale has the clocks of pools follow what their CPUs did since the last call, where their
// profiles say so. It is to be called every power.ScaleEvery; after an error everything is as
// it was.
func (n *Node) Scale(ctx context.Context) error {
	return n.change(ctx, func(t *transaction) error {
		if t.corrupt() != nil || !n.classesNow().Power.Scales() {
			n.scaling = scaling{}
			return nil
		}
		stat, err := proc.ReadStat(n.root.FS())
		if err != nil {
			return fmt.Errorf("scale pools: %w", err)
		}
		next := scaling{map[string]power.Level{}, stat, n.opt.Now()}
		busy := stat.BusySince(&n.scaling.stat)
		var changed []string
		for _, w := range n.powerWishes(t.snapshot) {
			if w.Level == 0 {
				continue
			}
			to, err := n.nextLevel(w, busy, next.at.Sub(n.scaling.at))
			if err != nil {
				return fmt.Errorf("scale pools: %w", err)
			}
			if to.Percent == 0 {
				continue
			}
			// Of one that is new all is in force: the most that its profile allows.
			if _, known := n.scaling.levels[w.Who]; known && to.Percent != w.Level {
				changed = append(changed, fmt.Sprintf("%s need %d%% of the highest clock by their load, after %d%% (power profile %s)", w.Who, to.Percent, w.Level, w.Name))
			}
			next.levels[w.Who] = to
		}
		was, lacked := n.scaling, n.lacked
		if n.scaling = next; len(changed) == 0 {
			return nil
		}
		if err := t.scaled(); err != nil || n.lacked > lacked { // what was refused is tried again
			n.scaling.levels = was.levels
			return err
		}
		for _, text := range changed {
			n.tell(Scaled, "", "", text)
		}
		return nil
	})
}

// StopScaling gives the clocks of pools back what their profiles allow, as nobody is to measure
// their load any more.
func (n *Node) StopScaling(ctx context.Context) error {
	return n.change(ctx, func(t *transaction) error {
		if len(n.scaling.levels) == 0 || t.corrupt() != nil {
			return nil
		}
		n.scaling = scaling{}
		return t.scaled()
	})
}

// scaled puts the clocks of pools in force, and touches nothing else.
func (t *transaction) scaled() error {
	c := t.to(t.snapshot)
	c.scales = true
	return t.commit(c)
}

// nextLevel is where a pool's level goes after a window; the zero value where no driver scales
// its clock.
func (n *Node) nextLevel(w power.Wish, busy map[int]float64, took time.Duration) (level power.Level, err error) {
	if n.power == nil { // which CPUs have what in common stays
		if n.power, err = power.Read(n.root.FS()); err != nil {
			return level, err
		}
	}
	least, most := n.power.Levels(w.CPUs, w.Profile)
	if most == 0 {
		return level, nil
	}
	windows, err := n.power.Windows(n.root.FS(), w.CPUs, busy)
	return w.Profile.Scale.Next(n.scaling.levels[w.Who], windows, took, least, most), err
}
