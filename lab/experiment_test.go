package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/labtest"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// All of a made-up experiment stands in this file: how far a pendulum swings in cells
// of several lengths. Its bed swings no pendulum, and takes two seconds for a round.

const pendulumSchema = "example.org/pendulum/v1"

type pendulum struct {
	lab.Header
	Seed   uint64  `json:"seed"`
	Swings []swing `json:"swings"`
}

type swing struct {
	Cell    string  `json:"cell"`
	Block   int     `json:"block"`
	Degrees float64 `json:"degrees"`
}

// fakeBed stands for a testbed.
type fakeBed struct {
	played []string
	before func(played []string) error // of a round
}

func (b *fakeBed) Round(ctx context.Context, c lab.Cell, block, position int) (lab.Round, error) {
	b.played = append(b.played, fmt.Sprintf("%d %s", block, c.Name))
	if err := b.before(b.played); err != nil {
		return lab.Round{}, err
	}
	r := lab.Round{Block: block, Position: position, Scenario: c.Name, Seconds: c.Window.Seconds()}
	return r, errors.Join(c.During(ctx, nil), ctx.Err())
}

// cells are the lengths of the pendulum. No string is as long as that of the last.
func (p *pendulum) cells() []lab.Cell {
	var cells []lab.Cell
	for i, name := range []string{"short", "middle", "long", "endless"} {
		var degrees float64
		cells = append(cells, lab.Cell{
			Name: name, Settings: lab.Settings{lab.Tenant: {Weight: 10 * (i + 1)}}, Window: 2 * time.Second,
			Prepare: func(*lab.Cell, int) error {
				if name == "endless" {
					return &kernel.NotSupportedError{Feature: "string", Reason: "it has an end", Remedy: "knots"}
				}
				return nil
			},
			Hooks: lab.Hooks{During: func(context.Context, *lab.Running) error {
				degrees = float64(30 / (i + 1))
				return nil
			}},
			Keep: func(r lab.Round) error {
				p.Swings = append(p.Swings, swing{r.Scenario, r.Block, degrees})
				return nil
			},
		})
	}
	return cells
}

func (p *pendulum) run(ctx context.Context, bed lab.Bed, opt lab.Options) error {
	return lab.Run(ctx, lab.Experiment{Parts: []lab.Part{{Blocks: 3, Cells: p.cells()}}, Seed: p.Seed, Result: p, Header: &p.Header}, bed, opt)
}

// resume goes on with what is stored.
func resume(ctx context.Context, bed lab.Bed, opt lab.Options) (*pendulum, error) {
	var p pendulum
	if err := lab.Load(opt.Dir, pendulumSchema, &p); err != nil {
		return nil, err
	}
	opt.Finished = func(cell string, block int) bool {
		return slices.ContainsFunc(p.Swings, func(s swing) bool { return s.Cell == cell && s.Block == block })
	}
	return &p, p.run(ctx, bed, opt)
}

// sheet reports it: as text, and on a page.
func (p *pendulum) sheet() *report.Sheet {
	sums := map[string]float64{}
	for _, s := range p.Swings {
		sums[s.Cell] += s.Degrees
	}
	names, means := report.Column{Head: "cell", Left: true}, report.Column{Head: "swing", Unit: "°"}
	spans := map[int]string{}
	for i, c := range p.cells() {
		names.Add(c.Name)
		means.Add(fmt.Sprintf("%.1f", sums[c.Name]/3))
		for _, s := range p.Skipped {
			if s.Scenario == c.Name {
				spans[i] = "skipped: " + s.Reason
			}
		}
	}
	s := &report.Sheet{Title: "pendulum"}
	s.Fact("seed", fmt.Sprint(p.Seed))
	s.Add(report.Block{Table: &report.Table{Columns: []report.Column{names, means}, Spans: spans}})
	s.Page = func() report.Page {
		degrees := report.Series{Label: "swing", Line: true}
		for i, swing := range p.Swings {
			degrees.Points = append(degrees.Points, report.Point{X: float64(i), Y: swing.Degrees, Radius: 3})
		}
		return report.Page{Plots: []report.Plot{{
			ID: "swings", Heading: "Swings", X: report.Axis{Max: float64(len(p.Swings))},
			Panels: []report.Panel{{Height: 100, Y: report.Axis{Max: 30, Label: "degrees"}, Series: []report.Series{degrees}}},
		}}}
	}
	return s
}

func newPendulum() *pendulum {
	return &pendulum{Header: lab.Header{Schema: pendulumSchema}, Seed: 7}
}

// inOrder is what is played, block by block; a cell that cannot be is tried and skipped.
func inOrder() []string {
	var all []string
	for block := range 3 {
		for _, name := range stats.Order([]string{"short", "middle", "long", "endless"}, block, 7) {
			if name != "endless" {
				all = append(all, fmt.Sprintf("%d %s", block, name))
			}
		}
	}
	return all
}

func TestMadeUpExperiment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		bed := &fakeBed{before: func([]string) error { time.Sleep(2 * time.Second); return nil }}
		var steps []lab.Progress
		p := newPendulum()
		if err := p.run(t.Context(), bed, lab.Options{Dir: dir, Progress: func(s lab.Progress) { steps = append(steps, s) }}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(inOrder(), bed.played); diff != "" {
			t.Errorf("played (-want +got):\n%s", diff)
		}
		if last := steps[len(steps)-1]; last.Round != 9 || last.Rounds != 9 || last.Blocks != 3 || last.Left != 0 {
			t.Errorf("at the end: %+v", last)
		}
		if s := steps[len(steps)-2]; s.Round != 8 || s.Rounds != 9 || s.Block != 3 || s.Left < time.Second || s.Left > 3*time.Second {
			t.Errorf("before the last round: %+v", s)
		}
	})
	var stored pendulum
	if err := lab.Load(dir, pendulumSchema, &stored); err != nil || !stored.Complete || len(stored.Swings) != 9 || len(stored.Skipped) != 1 {
		t.Fatalf("stored %+v, %v", stored, err)
	}
	var text, page bytes.Buffer
	if err := errors.Join(report.Text(&text, stored.sheet(), report.Options{}), report.HTML(&page, stored.sheet())); err != nil {
		t.Fatal(err)
	}
	want := `pendulum   on this host, this kernel, this load

seed  7

cell     swing
             °
short     30.0
middle    15.0
long      10.0
endless  skipped: string: it has an end
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	for _, want := range []string{"<dt>seed</dt><dd>7</dd>", ">30.0</td>", "skipped: string: it has an end", `id="swings-wide-t"`} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if err := lab.Load(dir, "other", &stored); err == nil || !strings.Contains(err.Error(), pendulumSchema) {
		t.Errorf("read as another format: %v", err)
	}
}

// A run that was cancelled, or that failed, keeps what was finished, and goes on from there.
func TestMadeUpExperimentResumes(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(cancel func()) error{
		"cancelled": func(cancel func()) error { cancel(); return nil },
		"failed":    func(func()) error { return errors.New("the string broke") },
		"not restored": func(func()) error {
			return &lab.NotRestoredError{Err: &kernel.NotSupportedError{Feature: "glue", Reason: "none"}}
		},
	} {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		bed := &fakeBed{before: func(played []string) error {
			if len(played) == 5 {
				return fails(cancel)
			}
			return nil
		}}
		if err := newPendulum().run(ctx, bed, lab.Options{Dir: dir}); err == nil {
			t.Errorf("%s: no error", name)
		}
		rest := &fakeBed{before: func([]string) error { return nil }}
		p, err := resume(t.Context(), rest, lab.Options{Dir: dir})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(inOrder(), append(bed.played[:4], rest.played...)); diff != "" || !p.Complete || len(p.Swings) != 9 || len(p.Skipped) != 1 {
			t.Errorf("%s: complete %v, %d swings, %d skipped; played (-want +got):\n%s", name, p.Complete, len(p.Swings), len(p.Skipped), diff)
		}
	}
}

func TestMadeUpExperimentIsKilled(t *testing.T) {
	t.Parallel()
	if dir := labtest.Doomed(); dir != "" {
		bed := &fakeBed{before: func(played []string) error {
			fmt.Println("playing", len(played))
			if len(played) == 6 {
				select {}
			}
			return nil
		}}
		t.Fatal(newPendulum().run(t.Context(), bed, lab.Options{Dir: dir}))
	}
	dir := t.TempDir()
	labtest.Kill(t, dir, "playing 6")
	rest := &fakeBed{before: func([]string) error { return nil }}
	p, err := resume(t.Context(), rest, lab.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(inOrder()[5:], rest.played); diff != "" || !p.Complete || len(p.Swings) != 9 {
		t.Errorf("complete %v, %d swings; played after the kill (-want +got):\n%s", p.Complete, len(p.Swings), diff)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 1 {
		t.Errorf("in the folder: %q, %v; want the result alone", left, err)
	}
}

// days is a made-up experiment of two cells, of a second a round.
func days(t *testing.T, change func(*lab.Experiment), before func(played []string) error) (played []string, last lab.Progress, ended []int) {
	t.Helper()
	bed := &fakeBed{before: func(played []string) error {
		time.Sleep(time.Second)
		return before(played)
	}}
	var h lab.Header
	cell := lab.Cell{Hooks: lab.Hooks{During: func(context.Context, *lab.Running) error { return nil }}, Keep: func(lab.Round) error { return nil }}
	first, second := cell, cell
	first.Name, second.Name = "x", "y"
	e := lab.Experiment{
		Parts: []lab.Part{{Blocks: 10, Cells: []lab.Cell{first, second}}}, Seed: 1, Result: &h, Header: &h,
		Blocks: func(blocks int) { ended = append(ended, blocks) },
	}
	change(&e)
	err := lab.Run(t.Context(), e, bed, lab.Options{Dir: t.TempDir(), Progress: func(p lab.Progress) { last = p }})
	if err != nil {
		t.Fatal(err)
	}
	return bed.played, last, ended
}

// A run ends before the block that would go beyond its end, or when it is decided, and
// not before two blocks are measured.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	goOn := func([]string) error { return nil }
	for name, tc := range map[string]struct {
		change func(*lab.Experiment)
		blocks int
	}{
		"by itself":      {func(*lab.Experiment) {}, 10},
		"in time":        {func(e *lab.Experiment) { e.Ends = time.Now().Add(9 * time.Second) }, 4},
		"just in time":   {func(e *lab.Experiment) { e.Ends = time.Now().Add(10 * time.Second) }, 5},
		"at once":        {func(e *lab.Experiment) { e.Ends = time.Now().Add(-time.Hour) }, 2},
		"far in future":  {func(e *lab.Experiment) { e.Ends = time.Now().Add(time.Hour) }, 10},
		"decided":        {func(e *lab.Experiment) { e.Enough = after(3) }, 5},
		"decided early":  {func(e *lab.Experiment) { e.Enough = after(0) }, 2},
		"never decided":  {func(e *lab.Experiment) { e.Enough = after(100) }, 10},
		"what is sooner": {func(e *lab.Experiment) { e.Enough, e.Ends = after(4), time.Now().Add(6*time.Second) }, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			played, last, ended := days(t, tc.change, goOn)
			if len(played) != 2*tc.blocks || len(ended) != 1 || ended[0] != tc.blocks {
				t.Errorf("%s: %d rounds, told of %v blocks; want %d blocks", name, len(played), ended, tc.blocks)
			}
			if last.Round != 2*tc.blocks || last.Rounds != 2*tc.blocks || last.Blocks != tc.blocks || last.Left != 0 {
				t.Errorf("%s: at the end: %+v", name, last)
			}
		})
	}
}

// A large result is not stored after each round, but always when the run ends.
func TestLargeResult(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("computes for minutes under the race detector")
	}
	type large struct {
		lab.Header
		Rounds int    `json:"rounds"`
		Text   string `json:"text"`
	}
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		size  int
		fails error
		all   bool // are stored while the run goes on
	}{"small": {1, nil, true}, "large": {8 << 20, nil, false}, "large, fails": {8 << 20, broken, false}} {
		dir := t.TempDir()
		r := &large{Header: lab.Header{Schema: "s"}, Text: strings.Repeat("x", tc.size)}
		stored := func() int {
			var now large
			if err := lab.Load(dir, "s", &now); err != nil {
				return 0
			}
			return now.Rounds
		}
		behind := 0
		bed := &fakeBed{before: func(played []string) error {
			behind = max(behind, r.Rounds-stored())
			if len(played) == 12 {
				return tc.fails
			}
			return nil
		}}
		c := lab.Cell{Name: "x", Keep: func(lab.Round) error { r.Rounds++; return nil }}
		c.During = func(context.Context, *lab.Running) error { return nil }
		err := lab.Run(t.Context(), lab.Experiment{Parts: []lab.Part{{Blocks: 12, Cells: []lab.Cell{c}}}, Result: r, Header: &r.Header}, bed, lab.Options{Dir: dir})
		if !errors.Is(err, tc.fails) || stored() != r.Rounds || r.Rounds < 11 {
			t.Errorf("%s: %v, %d of %d rounds stored at the end", name, err, stored(), r.Rounds)
		}
		if (behind == 0) != tc.all {
			t.Errorf("%s: %d rounds were not stored at one time", name, behind)
		}
	}
}

// after says that it is enough when asked for the time after so many others.
func after(times int) func() (bool, error) {
	asked := 0
	return func() (bool, error) { asked++; return asked > times, nil }
}

// After a look the cells that are decided are not run any more, and the others get their
// rounds: the length stays the same. A run that was killed afterwards goes on so.
func TestRunDrops(t *testing.T) {
	t.Parallel()
	goOn := func([]string) error { return nil }
	for name, tc := range map[string]struct {
		drop   []string
		blocks []int // told of
		rounds int
	}{
		"nothing": {nil, []int{10}, 20},
		"one":     {[]string{"x"}, []int{16, 16}, 20},
		"all":     {[]string{"x", "y"}, []int{4, 4}, 8},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			change := func(e *lab.Experiment) {
				e.Look, e.Drop = 4, func() ([]string, error) { asked++; return tc.drop, nil }
			}
			played, last, told := days(t, change, goOn)
			if len(played) != tc.rounds || !slices.Equal(told, tc.blocks) || asked != 1 {
				t.Errorf("%s: %d rounds, told of %v blocks, asked %d times; want %d and %v", name, len(played), told, asked, tc.rounds, tc.blocks)
			}
			for i, round := range played {
				if i >= 8 && slices.Contains(tc.drop, strings.Fields(round)[1]) {
					t.Errorf("%s: round %d is %q, which was dropped", name, i, round)
				}
			}
			if last.Round != tc.rounds || last.Rounds != tc.rounds {
				t.Errorf("%s: at the end: %+v", name, last)
			}
		})
	}
	wrong := errors.New("no analysis")
	synctest.Test(t, func(t *testing.T) {
		var h lab.Header
		e := lab.Experiment{Parts: []lab.Part{{Blocks: 3, Cells: newPendulum().cells()}}, Result: &h, Header: &h, Look: 1, Drop: func() ([]string, error) { return nil, wrong }}
		if err := lab.Run(t.Context(), e, &fakeBed{before: goOn}, lab.Options{Dir: t.TempDir()}); !errors.Is(err, wrong) {
			t.Errorf("%v, want that the look failed", err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // stored: x was dropped after 4 of 16 blocks, and 6 are done
		h := lab.Header{Dropped: []lab.Dropped{{Scenario: "x", Blocks: 4}}}
		bed := &fakeBed{before: goOn}
		var cells []lab.Cell
		for _, name := range []string{"x", "y"} {
			cells = append(cells, lab.Cell{
				Name: name, Keep: func(lab.Round) error { return nil },
				Hooks: lab.Hooks{During: func(context.Context, *lab.Running) error { return nil }},
			})
		}
		e := lab.Experiment{
			Parts: []lab.Part{{Blocks: 16, Cells: cells}}, Result: &h, Header: &h, Look: 4,
			Drop: func() ([]string, error) { t.Error("looked again"); return nil, nil },
		}
		finished := func(cell string, block int) bool { return block < 4 || cell == "y" && block < 6 }
		if err := lab.Run(t.Context(), e, bed, lab.Options{Dir: t.TempDir(), Finished: finished}); err != nil {
			t.Fatal(err)
		}
		if len(bed.played) != 10 || bed.played[0] != "6 y" || len(h.Dropped) != 1 {
			t.Errorf("played %v; dropped %v", bed.played, h.Dropped)
		}
	})
}
