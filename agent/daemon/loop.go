package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/watch/cgroupstat"
)

const (
	// settleTime is from a group's coming to comparing all that is: what made it
	// may write its own settings, and groups to confine are told only then.
	settleTime = 250 * time.Millisecond
	// youth is how long a group that could not be placed is tried again that often.
	youth = 5 * time.Second
	// calmTime is from a change of the configuration's directory to reading it: an
	// editor does several things at once.
	calmTime = 100 * time.Millisecond
	label    = config.WorkloadLabel
	// maxID is the longest id, escaped, that has its group's path in it.
	maxID = 200
)

type sources struct {
	groups <-chan cgroupstat.Event
	// present is how many of the first of these tell what was there at the start.
	present int
	// file is the configuration's directory, hangup a wish to read it again.
	file   <-chan struct{}
	hangup <-chan os.Signal
	read   func() (*config.NodeConfig, []byte, error)
	// follow is told the groups of the workloads, and their own CPUs, whenever they changed.
	follow func(groups map[string]string, own map[string]cpuset.Set) error
	// where says where the agent listens.
	where string
	// tell tells the service manager, alive says how often that all is well; 0 is
	// never.
	tell  func(...string) error
	alive time.Duration
}

type group struct {
	path  string           // from the base on
	entry *config.Workload // what the configuration makes of it; nil is nothing
	id    string           // of that workload
	wait  *api.Waiting     // why it has no place; nil if it has one
}

// loop decides what is done about groups, and when. Its fields but those below mu
// are for its goroutine.
type loop struct {
	keeper *keeper
	base   agent.Options
	dir    string             // the base in which groups are looked for; "" without groups
	prefix string             // of the base in its hierarchy
	first  *config.NodeConfig // that of the start
	groups map[string]*group
	// gone are workloads whose group vanished since the last comparison, which
	// releases them, and fresh those whose group came. strange is true if a group to
	// confine came.
	gone, fresh map[string]bool
	strange     bool
	leftOut     map[string]bool            // see leaveOut
	warn        func(id string, err error) // takes what leaveOut says
	scaled      string                     // the last error of scale
	// guard is told a configuration that is in force.
	guard func(*config.NodeConfig)
	// file is where the configuration is kept, versions those that were in force.
	file     *file
	versions versions
	// asks are what others want the loop to do, and ended that it does nothing any more.
	asks  chan ask
	ended chan struct{}

	mu      sync.Mutex
	conf    *config.NodeConfig
	admins  map[int]bool // users of conf.Agent.Admins
	loaded  time.Time
	refused string
	pending []string
	known   int
	waiting []api.Waiting
}

func newLoop(k *keeper, base agent.Options, c *config.NodeConfig) *loop {
	l := &loop{keeper: k, base: base, first: c, groups: map[string]*group{}, gone: map[string]bool{}, fresh: map[string]bool{}, leftOut: map[string]bool{}, conf: c, loaded: time.Now(), asks: make(chan ask), ended: make(chan struct{})}
	l.warn = func(_ string, err error) { l.complain(err) }
	return l
}

func (l *loop) options(c *config.NodeConfig) (agent.Options, error) { return NodeOptions(l.base, c) }

// NodeOptions are the options of a node as a configuration has them, over those of base.
func NodeOptions(base agent.Options, c *config.NodeConfig) (agent.Options, error) {
	opt := base
	var err error
	if opt.Policy, err = c.NewPolicy(); err != nil {
		return opt, err
	}
	opt.PolicyName, opt.PolicyOptions = c.Policy.Name, c.Policy.Options
	opt.Classes = ClassesOf(c)
	opt.Config, opt.Rewrites = placeConfig(base.Root, c), c.Agent.YieldAfter
	if opt.Confine, err = globs("confine", c.Confine); err != nil {
		return opt, err
	}
	opt.Within = c.Within()
	opt.Protected, err = globsWithBelow("protected", c.Protected)
	return opt, err
}

func (l *loop) open(ctx context.Context) error {
	opt, err := l.options(l.conf)
	if err != nil {
		return err
	}
	if l.admins, err = adminsOf(l.conf); err != nil {
		return err
	}
	return l.keeper.open(ctx, opt)
}

func (l *loop) run(ctx context.Context, src sources) error {
	if err := l.adopt(ctx); err != nil {
		return err
	}
	rescan := time.Tick(time.Duration(l.conf.Agent.Rescan))
	var settle, calm, alive <-chan time.Time // nil while there is nothing to wait for
	if src.alive > 0 {
		alive = time.Tick(src.alive)
	}
	l.note(api.Started, src.where)
	if err := src.tell("READY=1"); err != nil {
		return err
	}
	poke(l.keeper.changed)
	asks := l.asks
	if src.present > 0 {
		asks = nil // until all of them are known: what is previewed or applied is about all
	}
	load := time.NewTicker(power.ScaleEvery) // it wakes nobody while nobody waits for it
	defer load.Stop()
	for {
		var scale <-chan time.Time
		if l.conf.Classes.Power.Scales() {
			scale = load.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-scale:
			l.scale(ctx)
		case e := <-src.groups:
			if src.present--; src.present == 0 {
				asks = l.asks
			}
			if l.heard(ctx, e) && settle == nil {
				settle = time.After(settleTime)
			}
		case <-settle:
			settle = nil
			l.compare(ctx)
			if l.retry(ctx) {
				settle = time.After(settleTime)
			}
		case <-rescan:
			l.reconcile(ctx)
			l.retry(ctx)
		case <-l.keeper.changed:
			l.retry(ctx)
			l.follow(ctx, src)
		case <-src.file:
			calm = time.After(calmTime)
		case <-calm:
			calm = nil
			l.reload(ctx, src)
		case <-src.hangup:
			l.reload(ctx, src)
		case a := <-asks:
			a.done <- a.do()
		case <-alive:
			l.complain(src.tell("WATCHDOG=1"))
		}
	}
}

// scale has the clocks of pools follow their load, and tells an error when it is another one.
func (l *loop) scale(ctx context.Context) {
	err := l.keeper.do(ctx, func(n *agent.Node) error { return n.Scale(ctx) })
	if text := fmt.Sprint(err); text != l.scaled {
		l.scaled = text
		l.complain(err)
	}
}

func (l *loop) note(kind agent.EventKind, text string) {
	l.keeper.record(api.Event{Event: agent.Event{Time: time.Now(), Kind: kind, Text: text}})
}

// complain records what went wrong beside the point.
func (l *loop) complain(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		l.note(agent.Failed, err.Error())
	}
}

// adopt releases the workloads of an earlier configuration that this one does not
// know any more.
func (l *loop) adopt(ctx context.Context) error {
	all, err := l.keeper.List(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		w := &all[i]
		if w.Spec.Request.Labels[label] == "" {
			continue
		}
		if entry, _, ok := l.entryOf(l.conf, w.Group); !ok || idOf(entry.Name, w.Group) != w.ID() {
			l.complain(l.release(ctx, w.ID()))
		}
	}
	return nil
}

// heard acts on an event; it reports whether the rest is to be compared soon.
func (l *loop) heard(ctx context.Context, e cgroupstat.Event) bool {
	if e.Crowd != nil {
		l.note(api.Slow, e.Crowd.String())
		return false
	}
	if e.Path == "" || agent.IsOwn(e.Path) {
		return false
	}
	g, known := l.groups[e.Path]
	defer l.show()
	if e.Vanished {
		delete(l.groups, e.Path)
		if known && g.entry != nil {
			l.gone[g.id] = true
		}
		return known && g.entry != nil
	}
	if known {
		return false
	}
	g = &group{path: e.Path}
	l.groups[e.Path] = g
	delegated := l.match(l.conf, g)
	if l.gone[g.id] { // made anew: what was written to the old one is not here
		l.complain(l.release(ctx, g.id))
		delete(l.gone, g.id)
	}
	l.settle(ctx, g)
	if g.entry != nil {
		l.fresh[g.id] = true
		return true
	}
	l.strange = l.strange || l.conf.IsConfined(config.Candidate{Path: l.prefix + "/" + g.path, Delegated: delegated})
	return l.strange
}

// compare is reconcile for what came and went, as comparing everything would keep
// the next group waiting.
func (l *loop) compare(ctx context.Context) {
	if l.strange {
		l.reconcile(ctx)
		return
	}
	ids := slices.AppendSeq(slices.Collect(maps.Keys(l.gone)), maps.Keys(l.fresh))
	if len(ids) > 0 {
		l.reconcile(ctx, ids...)
	}
}

// reconcile repairs what others have changed, of all workloads if none is given,
// and releases whose group is gone.
func (l *loop) reconcile(ctx context.Context, ids ...string) {
	clear(l.gone)
	clear(l.fresh)
	l.strange = false
	l.complain(l.keeper.do(ctx, func(n *agent.Node) error {
		_, err := n.Reconcile(ctx, ids...)
		return err
	}))
}

// retry tries once more what has no place. It reports whether a group is so new
// that it may be still in the making: runtimes make the directories of a group one
// hierarchy after the other.
func (l *loop) retry(ctx context.Context) (young bool) {
	for _, path := range l.paths() {
		g := l.groups[path]
		if g.wait == nil {
			continue
		}
		l.settle(ctx, g)
		young = young || g.wait != nil && time.Since(g.wait.Since) < youth
	}
	l.show()
	return young
}

func (l *loop) paths() []string { return slices.Sorted(maps.Keys(l.groups)) }

func (l *loop) follow(ctx context.Context, src sources) {
	var groups map[string]string
	var own map[string]cpuset.Set
	err := l.keeper.do(ctx, func(n *agent.Node) (err error) { groups, own, err = n.Groups(ctx); return err })
	if err == nil {
		err = src.follow(groups, own)
	}
	l.complain(err)
}

// show lets others see what is known.
func (l *loop) show() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = len(l.groups)
	l.waiting = []api.Waiting{}
	for _, g := range l.groups {
		if g.wait != nil {
			l.waiting = append(l.waiting, *g.wait)
		}
	}
	slices.SortFunc(l.waiting, func(a, b api.Waiting) int { return strings.Compare(a.Group, b.Group) })
}

func (l *loop) about() api.About {
	l.mu.Lock()
	defer l.mu.Unlock()
	return api.About{Policy: l.conf.Policy.Name, Groups: l.known, Waiting: append([]api.Waiting{}, l.waiting...)}
}

func (l *loop) config() *config.NodeConfig {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conf
}

// isAdmin reports whether the configuration in force lets a user do what root may.
func (l *loop) isAdmin(uid int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.admins[uid]
}

func (l *loop) configView() api.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	return api.Config{Loaded: l.loaded, Config: l.conf, Refused: l.refused, Pending: l.pending}
}
