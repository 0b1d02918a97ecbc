package guarded

import (
	"fmt"
	"math"
	"slices"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

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

// part is what one of the four periods of a quadruplet comes to.
type part struct {
	log, whole float64   // p99: the logarithm of that of what was not rejected; of all requests
	moved      []float64 // the covariates
	share      float64   // of the bins used
	queued     bool      // so many were not answered that the p99 is not known
	empty      bool      // no request is left
}

func (q *Quadruplet) part(p Protocol, out []bool, first, last int) (of part) {
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
	if last > first {
		of.share = float64(n) / float64(last-first)
	}
	of.queued, of.empty = stats.AtLeast(unanswered, len(all), 99), len(kept) == 0
	of.log, of.whole = math.Log(p99(kept)), p99(all)
	for _, name := range p.Covariates {
		of.moved = append(of.moved, covariate(name, q, first, last, len(all)))
	}
	return of
}

// quadruple takes a quadruplet's figures. What is rejected is so before anybody asks for its arm.
func quadruple(q *Quadruplet, p Protocol) Quadruple {
	fault, _ := FaultNamed(q.Fault)
	washout := time.Duration(p.Washout).Seconds()
	s := Quadruple{Cell: q.Cell, Block: q.Block, Arm: q.Arm, Out: q.late(washout), fault: fault, of: q}
	s.invalid = s.Out != ""
	out := p.Reject.rejected(q.Machine)
	var parts [4]part
	var left, used [2]float64
	for i, period := range q.Periods {
		first, last := bins(period.From+washout, period.To, len(q.Bins))
		of := q.part(p, out, first, last)
		parts[i] = of
		side := 0
		if q.second(i) {
			side = 1
		}
		left[side] += of.share / 2
		if of.queued {
			if s.queued = true; !s.invalid {
				s.Out = queuedWords
			}
		}
		if of.share < 1-p.Reject.Most && s.Out == "" {
			s.Out = fmt.Sprintf("%.0f %% of period %d were disturbed", 100*(1-of.share), i+1)
		}
		if of.empty && s.Out == "" {
			s.Out = fmt.Sprintf("period %d has no requests", i+1)
		}
		used[side] += work(fault, q, period, washout) / 2
		s.others[side] += q.others(first, last) / 2
	}
	s.Left, s.Work, s.P99 = left[:], used[1], []float64{0, 0}
	if len(q.Periods) < 4 {
		s.Out, s.invalid = "it has no four periods", true
		return s
	}
	s.compare(parts)
	return s
}

// compare takes the ratios of B over A, each period with the one beside it.
func (s *Quadruple) compare(parts [4]part) {
	q := s.of
	for pair := range 2 {
		b, alone := 2*pair, 2*pair+1
		if !q.second(b) {
			b, alone = alone, b
		}
		s.pairs[pair] = parts[b].log - parts[alone].log
		s.RatioAll += (math.Log(parts[b].whole) - math.Log(parts[alone].whole)) / 2
		s.excess += q.slower(q.Periods[b], parts[alone].whole) / 2
		s.P99[0] += parts[alone].log / 2
		s.P99[1] += parts[b].log / 2
		for i, moved := range parts[b].moved {
			s.moved[pair] = append(s.moved[pair], moved-parts[alone].moved[i])
		}
	}
	s.P99 = []float64{exp(s.P99[0]), exp(s.P99[1])}
	s.Ratio, s.RatioAll = exp((s.pairs[0]+s.pairs[1])/2), exp(s.RatioAll)
}

// unanswered is how many requests were not answered when so much time was over from the bin's start
// on: at least, as it is not known when in the bin each was due.
func (b Bin) unanswered(left time.Duration) int {
	at, _ := slices.BinarySearch(b.Response, left.Microseconds())
	return max(b.Censored, len(b.Response)-at)
}

// slower is how many requests of a whole period took longer than a limit in microseconds, beyond one in 100.
func (q *Quadruplet) slower(p Period, limit float64) (n float64) {
	first, last := bins(p.From, p.To, len(q.Bins))
	for _, b := range q.Bins[first:last] {
		within, _ := slices.BinarySearch(b.Response, int64(limit)+1)
		n += float64(len(b.Response)-within) - 0.01*float64(len(b.Response))
	}
	return n
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

// covariate is a period's value of a covariate. What is offered is the schedule's alone; lag and steal can
// be moved by the neighbour, and taking them off takes a part of the effect off.
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
	if n := min(len(covariates), len(y)/2/placebosEach); n > 0 {
		a.adjustBy(y, x, covariates[:n])
	}
}

// adjustBy has contrasts of which nothing is known but that nobody acted say what covariates do: log
// ratios, and by how much the covariates differ.
func (a *ProtocolAnalysis) adjustBy(y []float64, x [][]float64, covariates []string) {
	for i := range x {
		x[i] = x[i][:len(covariates)]
	}
	if a.Coefficients = stats.Regress(y, x); a.Coefficients == nil {
		return
	}
	a.Adjusted = covariates
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
