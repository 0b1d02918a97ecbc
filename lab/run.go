package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/stats"
)

// Experiment is roles × cells × blocks × metrics: what Run runs. Its roles are the
// testbed's; its metrics are what each cell keeps of a round.
type Experiment struct {
	// Parts are run one after the other. No two of their cells have the same name.
	Parts []Part
	// Seed fixes the order of the cells of each block.
	Seed uint64
	// Result is stored as JSON after each round; Header is the part of it that Run fills.
	Result any
	Header *Header

	// Ends is when the run is to be over: no block begins that would last longer, but the
	// first ones of a part. The zero time is no limit.
	Ends time.Time
	// Enough is asked after each block whether the part is decided; nil never is.
	Enough func() (bool, error)
	// Drop is asked after the first Look blocks of a part which of its cells need no more
	// rounds; the others get their time. It is not asked where Look is 0.
	Look int
	Drop func() (cells []string, err error)
	// Blocks is told how many blocks a part has where that changes; it may be nil.
	Blocks func(blocks int)
}

// leastBlocks are run of a part in any case: fewer decide nothing.
const leastBlocks = 2

// Part is cells run in blocks: one round of each cell, in random order.
type Part struct {
	Name   string // before those of its cells, where progress is told; "" for none
	Blocks int
	Cells  []Cell
}

// Cell is one way of running the roles side by side.
type Cell struct {
	Name string
	// Settings are in force from before the neighbour begins until after it has stopped.
	Settings Settings
	// Neighbour has the neighbour of the setup work beside the tenant, Together in the
	// tenant's control group.
	Neighbour, Together bool
	// Noise is another neighbour than that of the setup, if it is not nil.
	Noise *noise.Config
	// Tenant is how the tenant runs, which then lives for the round alone; nil is as the
	// setup says.
	Tenant *load.TenantConfig
	// Fresh has the tenant start anew, when the settings are in force: its memory is then
	// where they say.
	Fresh bool
	// Serve has servers in place of the tenant; nil is the tenant.
	Serve *Serve
	// Rate is what the tenant is asked for, in requests per second; 0 is as the setup says.
	Rate float64
	// Settle is discarded at the start of a round, Window is measured.
	Settle, Window time.Duration
	Hooks
	// Prepare fills in what is known only before the round of a block. A
	// kernel.NotSupportedError, of it or of the round, skips the cell from then on.
	Prepare func(c *Cell, block int) error
	// Keep enters a round into the result.
	Keep func(Round) error
}

// Serve is a cell of servers: how many, each in the group of its role (Server), and what
// they are asked for. They live on from round to round, also while other cells are run.
type Serve struct {
	Servers int
	Tenant  load.TenantConfig // of each
	// Graph has servers that differ and call each other, Servers of them; nil has them alike.
	// Cells with the same one share its processes.
	Graph *Graph
	// Service is the name of a server in place of the built-in one (TenantSpec); "" is that.
	Service string
	// Load is filled in, but for what is asked for and how much of it.
	Load load.Config
}

// Graph is servers that call each other: each those before it alone, so that nobody waits for
// himself. The last one is that which is asked. Their addresses are filled in.
type Graph struct{ Services []load.ServiceConfig }

// Hooks are what happens in a round besides its load. Each may be nil.
type Hooks struct {
	// Settle is called when the load begins, and has to return before the window
	// opens.
	Settle func(ctx context.Context, r *Running) error
	// During is called when the load begins and runs beside it. A round ends
	// when both have.
	During func(ctx context.Context, r *Running) error
}

// Bed is where rounds are run: a *Testbed, or what stands for it in a test.
type Bed interface {
	// Round sets a cell up, settles, measures and restores every value. An error that
	// is a *NotRestoredError, too, says that the last failed.
	Round(ctx context.Context, c Cell, block, position int) (Round, error)
}

// Progress is one step of a run.
type Progress struct {
	Phase    string // "calibrate", "measure"
	Scenario string
	Round    int // rounds finished
	Rounds   int
	Block    int // from 1
	Blocks   int
	Left     time.Duration // estimated from the rounds so far
}

func (o Options) tell(p Progress) {
	if o.Progress != nil {
		o.Progress(p)
	}
}

// Run runs an experiment on a bed: every cell once per block, in random order. It
// stores the result after each round, or every few seconds where that takes long. When it
// fails or is cancelled, the result in the run's folder has the rounds finished by
// then, from which the run can be resumed.
func Run(ctx context.Context, e Experiment, bed Bed, opt Options) error {
	r := runner{Experiment: e, bed: bed, opt: opt, began: time.Now(), skipped: map[string]bool{}, progress: Progress{Phase: "measure"}}
	for _, s := range e.Header.Skipped {
		r.skipped[s.Scenario] = true
	}
	for _, p := range e.Parts {
		for block := range p.Blocks {
			r.progress.Rounds += r.left(p.Cells, block)
		}
		r.progress.Blocks += p.Blocks
	}
	for _, p := range e.Parts {
		if err := r.part(ctx, p); err != nil {
			if r.unstored {
				err = errors.Join(err, r.store())
			}
			return err
		}
	}
	r.progress.Scenario, r.progress.Left = "", 0
	opt.tell(r.progress)
	e.Header.Complete, e.Header.Finished = true, time.Now()
	return r.store()
}

// runner is a run under way.
type runner struct {
	Experiment
	bed      Bed
	opt      Options
	skipped  map[string]bool
	progress Progress
	began    time.Time
	measured int // rounds since then

	unstored bool      // what was measured last
	stored   time.Time // last
	storing  time.Duration
	large    bool
}

func (r *runner) part(ctx context.Context, p Part) error {
	var names []string
	cells := map[string]Cell{}
	for _, c := range p.Cells {
		names = append(names, c.Name)
		cells[c.Name] = c
	}
	ran := 0
	for ; ran < p.Blocks; ran++ {
		if over, err := r.over(p, ran); over || err != nil {
			if err != nil {
				return err
			}
			break
		}
		if err := r.look(&p, ran); err != nil {
			return err
		}
		if ran == p.Blocks {
			break
		}
		r.progress.Block++
		order := stats.Order(names, ran, r.Seed)
		order = slices.DeleteFunc(order, func(name string) bool { return !r.turns(cells[name], ran) })
		for position, name := range order {
			r.progress.Scenario = p.Name + name
			if err := r.turn(ctx, cells[name], ran, position); err != nil {
				return fmt.Errorf("%s%s, block %d: %w", p.Name, name, ran+1, err)
			}
			if r.skipped[name] {
				r.forgo(&p, cells[name], ran)
			} else {
				r.progress.Round++
			}
		}
	}
	r.resize(&p, ran, (ran-p.Blocks)*r.left(p.Cells, ran))
	return nil
}

// look drops what needs no more rounds, and gives the others its time.
func (r *runner) look(p *Part, block int) error {
	if r.Look == 0 || block != r.Look || r.begun(*p, block) {
		return nil
	}
	cells, err := r.Drop()
	if err != nil {
		return err
	}
	rounds, was := (p.Blocks-block)*r.left(p.Cells, block), time.Duration(p.Blocks-block)*r.length(p.Cells, block)
	for _, cell := range cells {
		r.Header.Dropped = append(r.Header.Dropped, Dropped{cell, block})
	}
	switch kept := r.left(p.Cells, block); {
	case kept == 0:
		r.resize(p, block, -rounds)
	case len(cells) > 0:
		more := int(was / r.length(p.Cells, block))
		r.resize(p, block+more, more*kept-rounds)
	}
	return nil
}

// forgo takes away the rounds of a cell that cannot be measured, from a block on. Where the run
// has a time to fill, and a look gives time to others, the others get its time, too.
func (r *runner) forgo(p *Part, c Cell, block int) {
	rounds, kept := p.Blocks-block, r.left(p.Cells, block)
	if r.Look == 0 || r.Ends.IsZero() || kept == 0 {
		r.progress.Rounds -= rounds
		return
	}
	more := int(time.Duration(rounds) * length(c) / r.length(p.Cells, block))
	more = max(0, min(more, MaxBlocks-p.Blocks))
	r.resize(p, p.Blocks+more, more*kept-rounds)
}

// length is how long a round of a cell takes by itself.
func length(c Cell) time.Duration { return max(c.Settle+c.Window, 1) }

// length is that of the cells that have a turn in a block.
func (r *runner) length(cells []Cell, block int) (sum time.Duration) {
	for _, c := range cells {
		if r.turns(c, block) {
			sum += length(c)
		}
	}
	return sum
}

// turns says whether a cell has a turn in a block.
func (r *runner) turns(c Cell, block int) bool {
	return !r.skipped[c.Name] && !r.Header.dropped(c.Name, block)
}

// left is how many of the cells have a turn in a block.
func (r *runner) left(cells []Cell, block int) (n int) {
	for _, c := range cells {
		if r.turns(c, block) {
			n++
		}
	}
	return n
}

// resize sets how many blocks a part has, which are so many rounds more.
func (r *runner) resize(p *Part, blocks, rounds int) {
	r.progress.Blocks += blocks - p.Blocks
	r.progress.Rounds += rounds
	p.Blocks = blocks
	if r.Blocks != nil {
		r.Blocks(blocks)
	}
}

// over says whether a part ends before a block. A block of which a part was measured
// before is measured to its end.
func (r *runner) over(p Part, block int) (bool, error) {
	if block < leastBlocks || r.begun(p, block) {
		return false, nil
	}
	if r.Enough != nil {
		if enough, err := r.Enough(); enough || err != nil {
			return enough, err
		}
	}
	next := time.Now().Add(time.Duration(r.left(p.Cells, block)) * r.perRound())
	return !r.Ends.IsZero() && next.After(r.Ends), nil
}

// begun says whether a part of a block was measured before.
func (r *runner) begun(p Part, block int) bool {
	return slices.ContainsFunc(p.Cells, func(c Cell) bool { return r.finished(c.Name, block) })
}

// perRound is how long the rounds so far took on average.
func (r *runner) perRound() time.Duration {
	if r.measured == 0 {
		return 0
	}
	return time.Since(r.began) / time.Duration(r.measured)
}

func (r *runner) finished(cell string, block int) bool {
	return r.opt.Finished != nil && r.opt.Finished(cell, block)
}

// turn is that of a cell in a block: it is measured, unless it is finished or cannot be.
func (r *runner) turn(ctx context.Context, c Cell, block, position int) error {
	if r.finished(c.Name, block) {
		return nil
	}
	r.opt.tell(r.progress)
	err := r.measure(ctx, c, block, position)
	var left *NotRestoredError
	if errors.Is(err, kernel.ErrNotSupported) && !errors.As(err, &left) {
		r.skipped[c.Name] = true
		r.Header.skip(c.Name, err)
		return nil
	}
	if err != nil {
		return err
	}
	r.measured++
	todo := r.progress.Rounds - r.progress.Round - 1
	r.progress.Left = r.perRound() * time.Duration(todo)
	if !r.Ends.IsZero() {
		r.progress.Left = min(r.progress.Left, max(0, time.Until(r.Ends)))
	}
	r.unstored = true
	if r.large && time.Since(r.stored) < 20*r.storing {
		return nil
	}
	return r.store()
}

// largeResult is the size from which on a result is not stored after each round: a
// thousand rounds, which take 50 ms to write. A larger one gets a twentieth of the time.
const largeResult = 4 << 20

func (r *runner) measure(ctx context.Context, c Cell, block, position int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.Prepare != nil {
		if err := c.Prepare(&c, block); err != nil {
			return err
		}
	}
	round, err := r.bed.Round(ctx, c, block, position)
	if err != nil {
		return err
	}
	return c.Keep(round)
}

func (h *Header) skip(name string, why error) {
	skipped := Skipped{Scenario: name, Reason: why.Error()}
	if unsupported, ok := errors.AsType[*kernel.NotSupportedError](why); ok {
		skipped.Reason, skipped.Remedy = unsupported.Feature+": "+unsupported.Reason, unsupported.Remedy
	}
	h.Skipped = append(h.Skipped, skipped)
}

func (r *runner) store() error {
	began := time.Now()
	path := filepath.Join(r.opt.Dir, ResultFile)
	if err := WriteFile(path, r.Result); err != nil {
		return err
	}
	r.stored = time.Now()
	r.storing, r.unstored = r.stored.Sub(began), false
	info, err := os.Stat(path)
	if err == nil {
		r.large = info.Size() >= largeResult
	}
	return err
}

// NewRunDir makes the folder of a run below results: <time>-<experiment>.
func NewRunDir(results, experiment string, now time.Time) (string, error) {
	name := now.UTC().Format("20060102T150405Z") + "-" + experiment
	dir := filepath.Join(results, name)
	for n := 2; ; n++ {
		err := os.MkdirAll(results, 0o755)
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
		if !errors.Is(err, os.ErrExist) || n > 100 {
			return dir, err
		}
		dir = filepath.Join(results, fmt.Sprintf("%s-%d", name, n))
	}
}
