package guarded

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// ProtocolAnalysis is what a ProtocolResult comes to.
type ProtocolAnalysis struct {
	// Look is how many of the looks have been made, Chance the one-sided p-value up to which
	// this one decides; before the first that of the first.
	Look     int       `json:"look"`
	Chance   float64   `json:"chance"`
	Verdicts []Decided `json:"verdicts"`
	Arms     []ArmRow  `json:"arms,omitempty"`
	// Alone is the tenant by itself: what the guard found and did where nothing was done.
	Alone Quietness `json:"alone"`
	// Placebo is the p99 of periods in which nothing switched over others of the same
	// quadruplet, and PlaceboChance the two-sided p-value of no difference.
	Placebo       stats.Interval `json:"placebo"`
	PlaceboChance float64        `json:"placeboChance"`
	// Left is the share (0-1) of the bins that was used, by arm; Unlike by how much it differs
	// between the periods of a quadruplet. Blind is false where that is more than two points:
	// then the figures without rejection are those that count.
	Left   map[string]float64 `json:"left,omitempty"`
	Unlike float64            `json:"unlike"`
	Blind  bool               `json:"blind"`
	// Others is the share (0-1) of the shared CPUs that processes outside of the run and the
	// hypervisor took, by arm. Work of outsiders that belong to a fault is in it.
	Others map[string]float64 `json:"others,omitempty"`
	// Adjusted are the covariates that were used, Coefficients what a placebo says they do.
	Adjusted     []string     `json:"adjusted,omitempty"`
	Coefficients []float64    `json:"coefficients,omitempty"`
	Quadruplets  []Quadruple  `json:"quadruplets,omitempty"`
	Onsets       []Onset      `json:"onsets,omitempty"`
	Recoveries   []Recoveries `json:"recoveries,omitempty"`

	period float64 // in seconds
	rests  bool    // the tenant is alone for a while before each quadruplet
}

// ArmRow is an arm with a fault and a demand. Nothing is left out of its counts for what happened
// after an onset.
type ArmRow struct {
	Arm    string  `json:"arm"`
	Fault  string  `json:"fault"`
	Demand float64 `json:"demand"`
	// Quadruplets were run, of which Counted are in the p99.
	Quadruplets int `json:"quadruplets"`
	Counted     int `json:"counted"`
	// P99 is that over alone, All the same without rejection. Each interval has the effects that
	// the sign-flip test does not reject at the chance of the look.
	P99 stats.Interval `json:"p99"`
	All stats.Interval `json:"p99All"`
	// Work is the neighbour's CPU time as a share (0-1) of what all others leave.
	Work stats.Interval `json:"work"`
	// Onsets, and in how many of them: what was named was right; a remedy was in force at the
	// end against who is to blame; one was taken back; the guard gave up; a window accused
	// somebody innocent; a remedy was applied against one; one against one was refused.
	Onsets   int `json:"onsets"`
	Named    int `json:"named"`
	InForce  int `json:"inForce"`
	Reverted int `json:"reverted"`
	GaveUp   int `json:"gaveUp"`
	Accused  int `json:"accused"`
	Innocent int `json:"innocent"`
	Refused  int `json:"refused"`
	// Windows is in how many windows somebody innocent was accused.
	Windows int `json:"windows"`
	// OutOnsets are those of quadruplets that do not count for the p99, OutNamed how many of
	// them were named rightly.
	OutOnsets int `json:"outOnsets"`
	OutNamed  int `json:"outNamed"`
	// Reaction is from an onset after a period of A, or after the protocol's rest, until a remedy
	// against who is to blame was written.
	Reaction Delays `json:"reaction"`
	// Excess is how many requests of an onset were slower than 99 of 100 in the period alone beside
	// it, after its washout, beyond the one in 100; Saved how many less than unguarded in the same
	// block, if that was run. Quadruplets that say nothing of the p99 say nothing of these.
	Excess stats.Interval `json:"excess"`
	Saved  stats.Interval `json:"saved"`
}

// Delays are times of which some may not have come within the period.
type Delays struct {
	N    int `json:"n"`
	Came int `json:"came"`
	// Rested is at how many of the onsets the run-queue probe rested; it is told by a protocol
	// with a rest.
	Rested *int  `json:"rested,omitempty"`
	P50    Delay `json:"p50"`
	P95    Delay `json:"p95"`
}

// Delay is a percentile in seconds with its distribution-free 95 % interval; nil is not to be told
// from so few. What did not come counts as a whole period.
type Delay struct {
	Estimate *float64 `json:"estimate,omitempty"`
	Low      *float64 `json:"low,omitempty"`
	High     *float64 `json:"high,omitempty"`
}

// Quietness is what the guard said where nothing was done.
type Quietness struct {
	Periods int `json:"periods"`
	Accused int `json:"accused"` // periods in which a window accused somebody
	Windows int `json:"windows"` // such windows
}

// Onset is one period of B.
type Onset struct {
	Cell  string `json:"cell"`
	Block int    `json:"block"`
	Named string `json:"named"`
	Right bool   `json:"right"`
	// Fresh: the period before was one of A or, with a rest, this is the first of B after it. Only
	// these have a reaction that counts: what the guard knows of the period of B before another
	// helps it.
	Fresh  bool `json:"fresh"`
	rested bool // the run-queue probe was at rest, as a protocol with a rest tells
	// Reaction is nil where no remedy against who is to blame was applied.
	Reaction *float64 `json:"reaction,omitempty"`
	InForce  bool     `json:"inForce"`
	Reverted bool     `json:"reverted"`
	GaveUp   bool     `json:"gaveUp"`
	Windows  int      `json:"windows"` // that accused somebody innocent
	Innocent int      `json:"innocent"`
	Refused  int      `json:"refused"` // remedies against the innocent
	Out      bool     `json:"out"`     // the quadruplet is not in the p99

	row rowKey
}

// AnalyseProtocol computes what a result comes to. It is pure.
func AnalyseProtocol(r *ProtocolResult) *ProtocolAnalysis {
	a := &ProtocolAnalysis{Left: map[string]float64{}, Others: map[string]float64{}, period: time.Duration(r.Experiment.Period).Seconds(), rests: r.Experiment.Rest > 0}
	names, _ := r.Experiment.cells()
	var shares []float64
	looked, ran := len(r.Quadruplets), 0 // the blocks that were run: a decided run stops at a look before the last
	for i := range r.Quadruplets {
		ran = max(ran, r.Quadruplets[i].Block+1)
	}
	for _, look := range r.Experiment.Looks {
		shares = append(shares, float64(look)/float64(r.Experiment.Blocks))
		if len(r.Quadruplets) >= look*len(names) || r.Complete && look == r.Experiment.Blocks && ran >= look {
			a.Look, looked = len(shares), min(look*len(names), len(r.Quadruplets))
		}
	}
	if len(shares) > 0 {
		a.Chance = stats.OBrienFleming(shares, r.Experiment.Error)[max(a.Look, 1)-1]
	}
	for i := range r.Quadruplets {
		a.Quadruplets = append(a.Quadruplets, quadruple(&r.Quadruplets[i], r.Experiment))
	}
	a.judgeRejection()
	a.adjust(r.Experiment.Covariates)
	for i := range a.Quadruplets {
		a.onsets(&a.Quadruplets[i])
	}
	for _, q := range r.Experiment.Quadruplets {
		if key := r.Experiment.row(q); q.Arm != Placebo && !slices.ContainsFunc(a.Arms, func(row ArmRow) bool { return row.key() == key }) {
			if row := a.row(key); row.Quadruplets > 0 {
				a.Arms = append(a.Arms, row)
			}
		}
	}
	of := unadjusted
	if !a.Blind {
		of = unrejected
	}
	placebos := stats.Ratios(a.ratios(func(q *Quadruple) bool { return q.Arm == Placebo }, of))
	a.Placebo, a.PlaceboChance = placebos.Unrejected(a.Chance), 1
	if placebos.Blocks() > 0 {
		above, below := placebos.Beyond(1)
		a.PlaceboChance = min(1, 2*min(above, below))
	}
	for _, h := range r.Experiment.Hypotheses {
		a.Verdicts = append(a.Verdicts, a.decide(h))
	}
	a.recover(r)
	if looked < len(r.Quadruplets) { // what came since is not looked at yet
		upTo := *r
		upTo.Quadruplets, upTo.Complete = r.Quadruplets[:looked], false
		a.Verdicts = AnalyseProtocol(&upTo).Verdicts
	}
	return a
}

// ratios are those of some quadruplets that say something of the p99, over 1.
func (a *ProtocolAnalysis) ratios(of func(*Quadruple) bool, k kind) (blocks [][]float64) {
	for i := range a.Quadruplets {
		q := &a.Quadruplets[i]
		if !of(q) || q.invalid || q.queued || k != unrejected && q.Out != "" {
			continue
		}
		ratio := q.Ratio
		switch k {
		case unadjusted:
			ratio = exp((q.pairs[0] + q.pairs[1]) / 2)
		case unrejected:
			ratio = q.RatioAll
		}
		blocks = append(blocks, []float64{ratio, 1})
	}
	return blocks
}

// works are the shares of the CPU time that was kept in some quadruplets.
func (a *ProtocolAnalysis) works(of func(*Quadruple) bool) *stats.Paired {
	var works [][]float64
	for i := range a.Quadruplets {
		if q := &a.Quadruplets[i]; of(q) && !q.invalid {
			works = append(works, []float64{q.Work, 0})
		}
	}
	return stats.Differences(works)
}

// onsets judges the periods of a quadruplet: those of B by its fault, the others as quiet.
func (a *ProtocolAnalysis) onsets(q *Quadruple) {
	for i, p := range q.of.Periods {
		trial := Trial{Fault: q.of.Fault, Findings: p.Findings, Events: p.Events, End: p.To - max(p.Onset, p.From)}
		if q.of.Arm == Placebo || !q.of.second(i) {
			trial.Fault = Quiet
			j := judge(&trial)
			a.Alone.Periods++
			if a.Alone.Windows += j.Accused; j.Accused > 0 {
				a.Alone.Accused++
			}
			continue
		}
		j := judge(&trial)
		o := Onset{
			Cell: q.Cell, Block: q.Block, Named: j.Named, Right: j.Right, Windows: j.Accused, Innocent: j.Innocent, Out: q.Out != "", row: q.of.row(),
			Fresh: a.fresh(q.of, i), rested: a.rests && !p.Armed,
		}
		for _, e := range p.Events {
			switch {
			case e.Outcome == control.Applied && e.Action != nil && q.fault.guilty(e.Action.Suspect) && e.At > 0 && o.Reaction == nil:
				at := max(e.At, e.Written)
				o.Reaction = &at
			case e.Outcome == control.Reverted:
				o.Reverted = true
			case e.Outcome == control.GaveUp:
				o.GaveUp = true
			case e.Outcome == control.Refused && e.Suspect != "" && !q.fault.guilty(e.Suspect):
				o.Refused++
			}
		}
		for _, who := range q.fault.antagonists() {
			o.InForce = o.InForce || slices.ContainsFunc(p.Changed, func(c string) bool { return strings.HasPrefix(c, who+" ") })
		}
		a.Onsets = append(a.Onsets, o)
	}
}

// fresh says whether a period's onset counts for the reaction: the tenant was alone in the period
// before or, with a rest, for all of that.
func (a *ProtocolAnalysis) fresh(q *Quadruplet, i int) bool {
	if a.rests {
		return i == slices.IndexFunc(q.Periods, func(p Period) bool { return p.Arm != Alone })
	}
	return i > 0 && !q.second(i-1)
}

// rowKey tells which row a quadruplet is of.
type rowKey struct {
	arm, fault string
	demand     float64
}

func (k rowKey) String() string { return fmt.Sprintf("%s, %s at %g", k.arm, k.fault, k.demand) }

func (q *Quadruplet) row() rowKey       { return rowKey{q.Arm, q.Fault, q.Demand} }
func (row ArmRow) key() rowKey          { return rowKey{row.Arm, row.Fault, row.Demand} }
func (rec Recoveries) key() rowKey      { return rowKey{rec.Arm, rec.Fault, rec.Demand} }
func (p Protocol) row(q Planned) rowKey { return rowKey{q.Arm, q.Fault, cmp.Or(q.Demand, p.Demand)} }

func (a *ProtocolAnalysis) row(key rowKey) ArmRow {
	row := ArmRow{Arm: key.arm, Fault: key.fault, Demand: key.demand}
	mine := func(q *Quadruple) bool { return q.of.row() == key }
	var excess, saved [][]float64
	for i := range a.Quadruplets {
		q := &a.Quadruplets[i]
		if !mine(q) {
			continue
		}
		row.Quadruplets++
		if q.Out == "" {
			row.Counted++
		}
		if q.invalid || q.queued {
			continue
		}
		excess = append(excess, []float64{q.excess, 0})
		for k := range a.Quadruplets {
			other := &a.Quadruplets[k]
			if row.Arm != NoGuard && other.Block == q.Block && other.of.row() == (rowKey{NoGuard, key.fault, key.demand}) && !other.invalid && !other.queued {
				saved = append(saved, []float64{other.excess, q.excess})
				break
			}
		}
	}
	row.P99, row.All, row.Work = stats.Ratios(a.ratios(mine, adjusted)).Unrejected(a.Chance), stats.Ratios(a.ratios(mine, unrejected)).Unrejected(a.Chance), a.works(mine).Unrejected(a.Chance)
	row.Excess, row.Saved = stats.Differences(excess).Unrejected(a.Chance), stats.Differences(saved).Unrejected(a.Chance)
	a.count(&row, func(o Onset) bool { return o.row == key })
	return row
}

// count enters some of the onsets into a row.
func (a *ProtocolAnalysis) count(row *ArmRow, of func(Onset) bool) {
	var delays []*float64
	rested := 0
	add := func(n *int, yes bool) {
		if yes {
			*n++
		}
	}
	for _, o := range a.Onsets {
		if !of(o) {
			continue
		}
		row.Onsets++
		add(&row.Named, o.Right)
		add(&row.InForce, o.InForce)
		add(&row.Reverted, o.Reverted)
		add(&row.GaveUp, o.GaveUp)
		add(&row.Accused, o.Windows > 0)
		add(&row.Innocent, o.Innocent > 0)
		add(&row.Refused, o.Refused > 0)
		add(&row.OutOnsets, o.Out)
		add(&row.OutNamed, o.Out && o.Right)
		row.Windows += o.Windows
		if o.Fresh {
			delays = append(delays, o.Reaction)
			add(&rested, o.rested)
		}
	}
	row.Reaction = delaysOf(delays, a.period)
	if a.rests {
		row.Reaction.Rested = &rested
	}
}

// delaysOf counts those that did not come as a whole period, which is less than they are.
func delaysOf(all []*float64, period float64) Delays {
	d := Delays{N: len(all)}
	var delays []float64
	for _, v := range all {
		if v == nil {
			delays = append(delays, period)
			continue
		}
		d.Came++
		delays = append(delays, *v)
	}
	slices.Sort(delays)
	rank := func(n int) *float64 {
		if n < 1 || n > len(delays) {
			return nil
		}
		return &delays[n-1]
	}
	percentile := func(p float64) Delay {
		low, high := stats.QuantileRanks(d.N, p, 0.95)
		return Delay{rank(int(math.Ceil(p * float64(d.N)))), rank(low), rank(high)}
	}
	d.P50, d.P95 = percentile(0.5), percentile(0.95)
	return d
}

// Judged are the arms by what their quadruplets came to: what two results are compared by.
func (a *ProtocolAnalysis) Judged() []report.Judged {
	j := report.Judged{Name: "arms", Head: "arm", Figures: []stats.Figure{{Name: P99}, {Name: Work}}}
	for _, row := range a.Arms {
		j.Cells = append(j.Cells, report.JudgedCell{Name: row.key().String()})
	}
	for i, q := range a.Quadruplets {
		if q.Out == "" && q.Arm != Placebo {
			j.Samples = append(j.Samples, stats.Sample{Cell: q.of.row().String(), Block: i, Figures: map[string]float64{P99: q.Ratio, Work: q.Work}})
		}
	}
	return []report.Judged{j}
}
