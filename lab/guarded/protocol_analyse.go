package guarded

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
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
}

// Word is what a hypothesis comes to.
type Word string

// The words.
const (
	Shown     Word = "shown"
	Refuted   Word = "refuted"
	Undecided Word = "undecided"
)

// Decided is a hypothesis and what the run says of it.
type Decided struct {
	Hypothesis
	Word Word `json:"word"`
	// Interval is of the figure; without limits where nothing tells them.
	Interval stats.Interval `json:"interval"`
	// ForChance and AgainstChance are the p-values of what was seen if the figure were just at
	// its limit: the smaller, the more is said for it, or against it. 0 where the interval decides.
	ForChance     float64 `json:"forChance,omitempty"`
	AgainstChance float64 `json:"againstChance,omitempty"`
	Why           string  `json:"why"`
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
	// Reaction is from an onset after a period of A until a remedy against who is to blame was
	// written.
	Reaction Delays `json:"reaction"`
	// Excess is how many requests of an onset were slower than 99 of 100 alone, beyond the one
	// in 100; Saved how many less than unguarded in the same block, if that was run. Quadruplets
	// that say nothing of the p99 say nothing of these.
	Excess stats.Interval `json:"excess"`
	Saved  stats.Interval `json:"saved"`
}

// Delays are times of which some may not have come within the period.
type Delays struct {
	N    int   `json:"n"`
	Came int   `json:"came"`
	P50  Delay `json:"p50"`
	P95  Delay `json:"p95"`
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

// Quadruple is what a quadruplet comes to.
type Quadruple struct {
	Cell  string `json:"cell"`
	Block int    `json:"block"`
	Arm   string `json:"arm"`
	// Out says why it is not in the p99; "" if it is.
	Out  string    `json:"out,omitempty"`
	Left []float64 `json:"left"` // share of the bins used, of A and of B
	// P99 is that of A and of B in microseconds, of what was not rejected; Ratio of B over A,
	// adjusted, RatioAll of all requests, neither rejected nor adjusted.
	P99      []float64 `json:"p99"`
	Ratio    float64   `json:"ratio"`
	RatioAll float64   `json:"ratioAll"`
	Work     float64   `json:"work"`

	fault   Fault
	of      *Quadruplet
	invalid bool         // nothing of it can be used
	queued  bool         // it says nothing of the p99
	pairs   [2]float64   // log ratios, B over A, not adjusted
	moved   [2][]float64 // by how much the covariates differ
	excess  float64      // slow requests per onset beyond one in 100
	others  [2]float64   // share of the shared CPUs that others took, in A and in B
}

// Onset is one period of B.
type Onset struct {
	Cell  string `json:"cell"`
	Block int    `json:"block"`
	Named string `json:"named"`
	Right bool   `json:"right"`
	// Fresh: the period before was one of A. Only these have a reaction that counts: what the
	// guard knows of the period of B before another helps it.
	Fresh bool `json:"fresh"`
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
	a := &ProtocolAnalysis{Left: map[string]float64{}, Others: map[string]float64{}, period: time.Duration(r.Experiment.Period).Seconds()}
	names, _ := r.Experiment.cells()
	var shares []float64
	looked := len(r.Quadruplets)
	for _, look := range r.Experiment.Looks {
		shares = append(shares, float64(look)/float64(r.Experiment.Blocks))
		if len(r.Quadruplets) >= look*len(names) || r.Complete && look == r.Experiment.Blocks {
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
	a.slow()
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

// decided says whether the looks have decided all that they may decide.
func (a *ProtocolAnalysis) decided() bool {
	some := false
	for _, v := range a.Verdicts {
		if v.Figure == P99 || v.Figure == Work {
			if some = true; v.Word == Undecided {
				return false
			}
		}
	}
	return some
}

// rejected says which bins leave. It is told nothing of who acted.
func (reject Reject) rejected(machine []lab.Bin) []bool {
	out := make([]bool, len(machine))
	for i, b := range machine {
		if b.Lag <= float64(time.Duration(reject.Lag).Microseconds()) && b.Steal <= time.Duration(reject.Steal).Seconds() {
			continue
		}
		for after := i; after < min(i+reject.After+1, len(machine)); after++ {
			out[after] = true
		}
	}
	return out
}

// bins are those of a part of a quadruplet, given in seconds.
func bins(from, to float64, n int) (first, last int) {
	const slack = 1e-9
	first = int(math.Ceil(from/binLength.Seconds() - slack))
	last = min(n, int(math.Floor(to/binLength.Seconds()+slack)))
	return min(first, max(last, 0)), max(last, 0)
}

// quadruple takes a quadruplet's figures. What is rejected is so before anybody asks for its arm.
func quadruple(q *Quadruplet, p Protocol) Quadruple {
	fault, _ := FaultNamed(q.Fault)
	washout := time.Duration(p.Washout).Seconds()
	s := Quadruple{Cell: q.Cell, Block: q.Block, Arm: q.Arm, Out: q.late(washout), fault: fault, of: q}
	s.invalid = s.Out != ""
	out := p.Reject.rejected(q.Machine)
	var logs, logsAll [4]float64
	var moved [4][]float64
	var left, used [2]float64
	for i, period := range q.Periods {
		first, last := bins(period.From+washout, period.To, len(q.Bins))
		var kept, all []int64
		n, unanswered := 0, 0
		for b := first; b < last; b++ {
			all, unanswered = append(all, q.Bins[b].Response...), unanswered+q.Bins[b].unanswered(time.Duration(len(q.Bins)-b)*binLength)
			if b < len(out) && out[b] {
				continue
			}
			kept = append(kept, q.Bins[b].Response...)
			n++
		}
		share := 0.0
		if last > first {
			share = float64(n) / float64(last-first)
		}
		side := 0
		if q.second(i) {
			side = 1
		}
		left[side] += share / 2
		if stats.AtLeast(unanswered, len(all), 99) {
			if s.queued = true; !s.invalid {
				s.Out = queuedWords
			}
		}
		if share < 1-p.Reject.Most && s.Out == "" {
			s.Out = fmt.Sprintf("%.0f %% of period %d were disturbed", 100*(1-share), i+1)
		}
		if len(kept) == 0 && s.Out == "" {
			s.Out = fmt.Sprintf("period %d has no requests", i+1)
		}
		logs[i], logsAll[i] = math.Log(p99(kept)), math.Log(p99(all))
		for _, name := range p.Covariates {
			moved[i] = append(moved[i], covariate(name, q, first, last, len(all)))
		}
		used[side] += work(fault, q, period, washout) / 2
		s.others[side] += q.others(first, last) / 2
	}
	s.Left, s.Work, s.P99 = left[:], used[1], []float64{0, 0}
	if len(q.Periods) < 4 {
		s.Out, s.invalid = "it has no four periods", true
		return s
	}
	for pair := range 2 {
		b, alone := 2*pair, 2*pair+1
		if !q.second(b) {
			b, alone = alone, b
		}
		s.pairs[pair] = logs[b] - logs[alone]
		s.RatioAll += (logsAll[b] - logsAll[alone]) / 2
		s.P99[0] += logs[alone] / 2
		s.P99[1] += logs[b] / 2
		for i := range p.Covariates {
			s.moved[pair] = append(s.moved[pair], moved[b][i]-moved[alone][i])
		}
	}
	s.P99 = []float64{exp(s.P99[0]), exp(s.P99[1])}
	s.Ratio, s.RatioAll = exp((s.pairs[0]+s.pairs[1])/2), exp(s.RatioAll)
	return s
}

// unanswered is how many requests were not answered when so much time was over from the bin's start
// on: at least, as it is not known when in the bin each was due.
func (b Bin) unanswered(left time.Duration) int {
	at, _ := slices.BinarySearch(b.Response, left.Microseconds())
	return max(b.Censored, len(b.Response)-at)
}

// queuedWords say that the tenant fell behind: more than one in 100 of a period's requests were not
// answered when the quadruplet ended, so that its p99 is a lower bound (stats.AtLeast), and the
// backlog is in the periods after it, whatever their arm.
const queuedWords = "requests queued to the end"

// mostLate is by how much the time over which CPU time was read may differ from what was planned, in
// seconds.
const mostLate = 0.1

// late says why nothing of a quadruplet can be used; "" where all was read and switched in time.
func (q *Quadruplet) late(washout float64) string {
	if q.Invalid != "" {
		return q.Invalid
	}
	for i, p := range q.Periods {
		if planned := p.To - p.From - washout; math.Abs(p.Use.Seconds-planned) > mostLate {
			return fmt.Sprintf("period %d was read over %.2f s, not %.2f", i+1, p.Use.Seconds, planned)
		}
	}
	return ""
}

// exp has no values that JSON has not: what came of no requests is 0.
func exp(v float64) float64 {
	if e := math.Exp(v); !math.IsNaN(e) && !math.IsInf(e, 0) {
		return e
	}
	return 0
}

// second says whether a period is one of B; in a placebo, where nothing tells them, it is drawn
// which are called so.
func (q *Quadruplet) second(i int) bool { return q.Periods[i].Arm != Alone }

// covariate is what a period's is: nothing that the neighbour or the guard can move.
func covariate(name string, q *Quadruplet, first, last, requests int) (v float64) {
	n := float64(max(1, last-first))
	if name == Offered {
		return math.Log(max(1, float64(requests)))
	}
	for b := first; b < min(last, len(q.Machine)); b++ {
		if name == Lag {
			v += q.Machine[b].Lag / n / 1000
		} else {
			v += q.Machine[b].Steal / n / binLength.Seconds()
		}
	}
	return v
}

// work is the CPU time of who is to blame, as a share of what all others leave in the period.
func work(fault Fault, q *Quadruplet, p Period, washout float64) float64 {
	first, last := bins(p.From+washout, p.From+washout+p.Use.Seconds, len(q.Machine))
	u := p.Use
	left := float64(q.SharedCPUs)*u.Seconds*(1-q.others(first, last)) - u.Tenant - u.Bystander - u.Generator - u.Lab
	own := u.Neighbour
	if fault.guilty(lab.Bystander) {
		left, own = left+u.Bystander, own+u.Bystander
	}
	if left <= 0 {
		return 0
	}
	return own / left
}

// others is the share of the shared CPUs that processes outside and the hypervisor took in some bins.
func (q *Quadruplet) others(first, last int) (share float64) {
	last = min(last, len(q.Machine))
	for b := first; b < last; b++ {
		share += (q.Machine[b].Steal + q.Machine[b].Foreign) / (float64(q.SharedCPUs*(last-first)) * binLength.Seconds())
	}
	return share
}

// mostUnlike is by how much the share that was rejected may differ between the periods of a
// quadruplet for the rejection to be blind.
const mostUnlike = 0.02

func (a *ProtocolAnalysis) judgeRejection() {
	var blocks [][]float64
	n := map[string]float64{}
	for _, q := range a.Quadruplets {
		if q.invalid {
			continue
		}
		for side, arm := range []string{Alone, q.Arm} {
			n[arm]++
			a.Left[arm] += (q.Left[side] - a.Left[arm]) / n[arm]
			a.Others[arm] += (q.others[side] - a.Others[arm]) / n[arm]
		}
		if q.Arm != Placebo {
			blocks = append(blocks, []float64{q.Left[1], q.Left[0]})
		}
	}
	a.Unlike = stats.Differences(blocks).Interval(0.95).Estimate
	a.Blind = math.Abs(a.Unlike) <= mostUnlike
}

// placebosEach is how many placebos there have to be for each covariate.
const placebosEach = 10

// adjust takes off each ratio what covariates do, by placebos alone: they know nothing of the answer.
func (a *ProtocolAnalysis) adjust(covariates []string) {
	var y []float64
	var x [][]float64
	for _, q := range a.Quadruplets {
		for pair := range 2 {
			if q.Arm == Placebo && q.Out == "" {
				y, x = append(y, q.pairs[pair]), append(x, q.moved[pair])
			}
		}
	}
	n := min(len(covariates), len(y)/2/placebosEach)
	if n == 0 {
		return
	}
	for i := range x {
		x[i] = x[i][:n]
	}
	a.Coefficients = stats.Regress(y, x)
	if a.Coefficients == nil {
		return
	}
	a.Adjusted = covariates[:n]
	for i := range a.Quadruplets {
		q := &a.Quadruplets[i]
		off := 0.0
		for pair := range 2 {
			for k, c := range a.Coefficients {
				if k < len(q.moved[pair]) {
					off += c * q.moved[pair][k] / 2
				}
			}
		}
		q.Ratio = exp((q.pairs[0]+q.pairs[1])/2 - off)
	}
}

// kind of a quadruplet's ratio.
type kind int

const (
	adjusted kind = iota
	unadjusted
	unrejected // of all requests, not adjusted
)

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

// slow counts the requests of each onset that took longer than 99 of 100 alone at this demand.
func (a *ProtocolAnalysis) slow() {
	alone := map[float64][]int64{}
	for _, q := range a.Quadruplets {
		for i, p := range q.of.Periods {
			if q.invalid || q.queued {
				continue
			}
			if q.of.Arm == Placebo || !q.of.second(i) {
				first, last := bins(p.From, p.To, len(q.of.Bins))
				for _, b := range q.of.Bins[first:last] {
					alone[q.of.Demand] = append(alone[q.of.Demand], b.Response...)
				}
			}
		}
	}
	limits := map[float64]float64{}
	for demand, all := range alone {
		limits[demand] = p99(all)
	}
	for i := range a.Quadruplets {
		q := &a.Quadruplets[i]
		for n, p := range q.of.Periods {
			if !q.of.second(n) {
				continue
			}
			first, last := bins(p.From, p.To, len(q.of.Bins))
			for _, b := range q.of.Bins[first:last] {
				for _, us := range b.Response {
					q.excess -= 0.01 / 2
					if float64(us) > limits[q.of.Demand] {
						q.excess += 1. / 2
					}
				}
			}
		}
	}
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
			Fresh: i > 0 && !q.of.second(i-1),
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
		for _, who := range q.fault.culprits() {
			o.InForce = o.InForce || slices.ContainsFunc(p.Changed, func(c string) bool { return strings.HasPrefix(c, who+" ") })
		}
		a.Onsets = append(a.Onsets, o)
	}
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
		}
	}
	row.Reaction = delaysOf(delays, a.period)
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

// decide says what a hypothesis comes to.
func (a *ProtocolAnalysis) decide(h Hypothesis) Decided {
	d := Decided{Hypothesis: h, Word: Undecided}
	arm := func(q *Quadruple) bool { return q.Arm == h.Arm }
	var row ArmRow
	a.count(&row, func(o Onset) bool { return o.row.arm == h.Arm })
	switch h.Figure {
	case P99:
		a.decideP99(&d, arm)
	case Work:
		a.test(&d, a.works(arm))
	case Reaction:
		p := row.Reaction.P50
		if h.Percentile == 95 {
			p = row.Reaction.P95
		}
		d.within(p, row.Reaction)
	case Named:
		d.share(row.Named, row.Onsets)
	case Against:
		d.share(row.Innocent, row.Onsets)
	}
	if a.Look == 0 {
		d.Word = Undecided
		d.Why += "; not looked at yet"
	}
	return d
}

// decideP99 has a p99 shown only if it is so with rejection and without, and if the quadruplets that
// queued to the end count against it: an arm under which the tenant falls behind is not as good as
// alone.
func (a *ProtocolAnalysis) decideP99(d *Decided, arm func(*Quadruple) bool) {
	with, without := a.ratios(arm, adjusted), a.ratios(arm, unrejected)
	if a.Blind {
		a.test(d, stats.Ratios(with))
	} else {
		a.test(d, stats.Ratios(without))
		d.Why += "; without rejection, as that was not blind"
	}
	worst := []float64{1e9, 1}
	if d.Least != nil {
		worst[0] = 1e-9
	}
	var queued [][]float64
	for i := range a.Quadruplets {
		if q := &a.Quadruplets[i]; arm(q) && q.queued && !q.invalid {
			queued = append(queued, worst)
		}
	}
	if len(queued) > 0 {
		d.Why += fmt.Sprintf("; %d more queued to the end", len(queued))
	}
	if d.Word != Shown {
		return
	}
	for _, blocks := range [][][]float64{with, without} {
		if forIt, _ := d.chances(stats.Ratios(slices.Concat(blocks, queued))); forIt > a.Chance {
			d.Word = Undecided
			d.Why += "; not shown both with rejection and without, those that queued against it"
			return
		}
	}
}

// chances are the p-values of what was seen if the figure were just at its limit: for the hypothesis,
// and against it.
func (d *Decided) chances(p *stats.Paired) (forIt, against float64) {
	above, below := p.Beyond(d.limit())
	if d.Least != nil {
		return above, below
	}
	return below, above
}

// test is the sign-flip test, inverted at the limit.
func (a *ProtocolAnalysis) test(d *Decided, p *stats.Paired) {
	d.Interval = p.Unrejected(a.Chance)
	if d.Why = plain.Count(p.Blocks(), "quadruplet"); p.Blocks() == 0 {
		return
	}
	d.ForChance, d.AgainstChance = d.chances(p)
	switch {
	case d.ForChance <= a.Chance:
		d.Word = Shown
	case d.AgainstChance <= a.Chance:
		d.Word = Refuted
	}
	d.Why += fmt.Sprintf("; chance at the limit %.4f for it, %.4f against it, of %.4f to decide at look %d", d.ForChance, d.AgainstChance, a.Chance, max(a.Look, 1))
}

// within decides by the interval of a delay.
func (d *Decided) within(p Delay, all Delays) {
	d.Interval = stats.Interval{Confidence: 0.95, Rounds: all.N}
	if p.Estimate != nil {
		d.Interval.Estimate = *p.Estimate
		d.Interval.Low, d.Interval.High = d.Interval.Estimate, d.Interval.Estimate
		if p.Low != nil && p.High != nil {
			d.Interval.Low, d.Interval.High = *p.Low, *p.High
		}
	}
	d.Why = fmt.Sprintf("%d of %d onsets after a period alone had a remedy", all.Came, all.N)
	if all.N == 0 {
		return
	}
	shown, refuted := p.High != nil && *p.High <= d.limit(), p.Low != nil && *p.Low > d.limit()
	if d.Least != nil {
		shown, refuted = p.Low != nil && *p.Low >= d.limit(), p.High != nil && *p.High < d.limit()
	}
	switch {
	case shown:
		d.Word = Shown
	case refuted:
		d.Word = Refuted
	}
}

// share decides by the interval of a share.
func (d *Decided) share(k, n int) {
	low, high := stats.Share(k, n, 0.95)
	d.Interval = stats.Interval{Low: low, High: high, Confidence: 0.95, Rounds: n}
	if n > 0 {
		d.Interval.Estimate = float64(k) / float64(n)
	}
	d.Why = fmt.Sprintf("%d of %d onsets", k, n)
	switch {
	case n == 0:
	case d.Least != nil && low >= *d.Least, d.Most != nil && high <= *d.Most:
		d.Word = Shown
	case d.Least != nil && high < *d.Least, d.Most != nil && low > *d.Most:
		d.Word = Refuted
	}
}

// Recoveries is the pooled p99 of an arm's onsets by the time since, over a band of placebos.
type Recoveries struct {
	Arm    string  `json:"arm"`
	Fault  string  `json:"fault"`
	Demand float64 `json:"demand"`
	Onsets int     `json:"onsets"`
	// Curve is the p99 in microseconds of the requests due within half a second from each
	// instant, 50 ms apart; Low and High are the band: between them lie 95 of 100 sets of half
	// seconds of as many placebos. 0 without placebos.
	Curve []float64 `json:"curve"`
	Low   float64   `json:"low"`
	High  float64   `json:"high"`
	// Harmed says whether the curve was above the band, Recovered from when on, in seconds, it
	// was not above it for half a second; nil is not within the period.
	Harmed    bool     `json:"harmed"`
	Recovered *float64 `json:"recovered,omitempty"`
}

// placeboSets is how many sets of placebo onsets a band is of.
const placeboSets = 1000

// recover pools the onsets of each row. A placebo onset is the start of a period of a placebo.
func (a *ProtocolAnalysis) recover(r *ProtocolResult) {
	placebos, onsets := map[float64][]curve{}, map[rowKey][]curve{}
	for _, q := range a.Quadruplets {
		for n, p := range q.of.Periods {
			switch key := q.of.row(); {
			case q.invalid:
			case q.Arm == Placebo && !q.queued:
				placebos[key.demand] = append(placebos[key.demand], q.of.from(p))
			case q.Arm != Placebo && q.of.second(n):
				onsets[key] = append(onsets[key], q.of.from(p))
			}
		}
	}
	for _, row := range a.Arms {
		all := onsets[row.key()]
		rec := Recoveries{Arm: row.Arm, Fault: row.Fault, Demand: row.Demand, Onsets: len(all), Curve: halves(all)}
		if pool := placebos[row.Demand]; len(pool) > 0 && len(all) > 0 {
			rec.Low, rec.High = band(pool, len(all), r.Experiment.Seed)
			rec.judge()
		}
		a.Recoveries = append(a.Recoveries, rec)
	}
}

// from is the requests of a period from its start, or the onset.
func (q *Quadruplet) from(p Period) curve {
	first, last := bins(max(p.Onset, p.From), p.To, len(q.Bins))
	return curve{bins: q.Bins[first:last]}
}

// halves is the p99 of all requests within half a second from each bin on.
func halves(all []curve) (out []float64) {
	pool := merge(all)
	for i := 0; i+ahead <= len(pool.bins); i++ {
		out = append(out, pool.p99(i, i+ahead))
	}
	return out
}

// band is where the p99 of half a second of n placebos lies in 95 of 100 sets. Nothing begins in a
// placebo, so that any of its half seconds stands for any.
func band(placebos []curve, n int, seed uint64) (low, high float64) {
	random := rand.New(rand.NewPCG(seed, placeboSets))
	var seen []float64
	for range placeboSets {
		var set []int64
		for range n {
			c := placebos[random.IntN(len(placebos))]
			if last := len(c.bins) - ahead; last >= 0 {
				at := random.IntN(last + 1)
				for _, b := range c.bins[at : at+ahead] {
					set = append(set, b.Response...)
				}
			}
		}
		if v := p99(set); v > 0 {
			seen = append(seen, v)
		}
	}
	if len(seen) == 0 {
		return 0, 0
	}
	slices.Sort(seen)
	return seen[len(seen)*25/1000], seen[len(seen)*975/1000]
}

// judge says when the curve came back into the band, to stay for half a second.
func (rec *Recoveries) judge() {
	within := 0
	for i, v := range rec.Curve {
		if v > rec.High {
			rec.Harmed, within = true, 0
			continue
		}
		if within++; rec.Harmed && within == ahead && rec.Recovered == nil {
			at := float64(i+1-ahead) * binLength.Seconds()
			rec.Recovered = &at
		}
	}
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
