package guarded

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"berth.dev/berth/guard"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// ProtocolSchema names the version of the format of a protocol's result file.
const ProtocolSchema = "berth.dev/lab-guard-protocol/v1"

// Protocol is what is to be shown, and how, as written before the first run: a data file of
// kind guard-protocol.
type Protocol struct {
	// Hypotheses are what is to be shown or refuted.
	Hypotheses []Hypothesis `json:"hypotheses"`
	// Blocks is how often each of the Quadruplets is run at most; in each block they have a
	// random order of their own.
	Blocks      int       `json:"blocks"`
	Quadruplets []Planned `json:"quadruplets"`
	// Looks are the numbers of blocks after which the p99 and the work kept may be decided,
	// ascending; the last one is Blocks. Error is the chance (0-1) of a false decision on
	// one side, over all looks.
	Looks []int   `json:"looks"`
	Error float64 `json:"error"`
	// Period is how long the neighbour is there or not, Washout which part of it from its
	// start is left out of the p99 and of the work kept, in every period alike.
	Period  lab.Duration `json:"period"`
	Washout lab.Duration `json:"washout"`
	// Learn is the time under load before the first quadruplet: the guard learns.
	Learn lab.Duration `json:"learn"`
	// Rest is for how long the tenant is alone before each quadruplet; 0 is a second. With a Rest,
	// it is the first onset of a quadruplet that counts for the reaction: the probe of the guard
	// may have come to rest before it.
	Rest lab.Duration `json:"rest,omitempty"`
	// Window is the guard's window without the run-queue probe, 0 what berth guard has by
	// default; Probe when the probe is armed.
	Window lab.Duration   `json:"window,omitempty"`
	Probe  guard.ProbeUse `json:"probe"`
	// Tenant is a service as for berth lab, "" the built-in one.
	Tenant string `json:"tenant,omitempty"`
	// Demand is the share (0-1) of the shared CPUs that the tenant wants, Rate in requests
	// per second; a Rate of 0 lets the lab choose it.
	Demand float64 `json:"demand"`
	Rate   float64 `json:"rate,omitempty"`
	CPUs   string  `json:"cpus,omitempty"`
	Reject Reject  `json:"reject"`
	// Covariates adjust the p99, in this order, by what placebos say they do to it: one for
	// every ten placebos.
	Covariates []string `json:"covariates,omitempty"`
	// Seed fixes arrivals and orders; 0 lets the clock choose.
	Seed uint64 `json:"seed,omitempty"`
}

// Hypothesis is a figure of an arm, and what it is to be.
type Hypothesis struct {
	// Figure is one of p99 (over alone), work (kept by the neighbour, 0-1), reaction (seconds
	// from an onset after a period alone to the first remedy against who is to blame), named (share of onsets
	// named rightly) and innocent (share of onsets with a remedy against who is not to blame).
	Figure string `json:"figure"`
	Arm    string `json:"arm"`
	// Percentile is that of the reaction, 50 or 95.
	Percentile float64 `json:"percentile,omitempty"`
	// Most or Least is the limit; the other is absent.
	Most  *float64 `json:"most,omitempty"`
	Least *float64 `json:"least,omitempty"`
}

// Planned is a quadruplet of each block: four periods, ABBA or BAAB by chance, of which those
// of A have the tenant alone.
type Planned struct {
	// Arm is what acts in the periods of B.
	Arm string `json:"arm"`
	// Fault is what the periods of B have; a placebo has none.
	Fault string `json:"fault,omitempty"`
	// Demand is another one than the protocol's; 0 is that.
	Demand float64 `json:"demand,omitempty"`
	// Times is how many of a block are of this kind; 0 is one.
	Times int `json:"times,omitempty"`
}

// name is that of a cell, without its number.
func (p Planned) name() string {
	name := p.Arm
	if p.Fault != "" {
		name += " " + p.Fault
	}
	if p.Demand != 0 {
		name += fmt.Sprintf(" at %g", p.Demand)
	}
	return name
}

// The arms.
const (
	Alone   = "alone"     // the tenant by itself, the guard looking on
	Placebo = "placebo"   // nothing switches
	NoGuard = "unguarded" // nobody acts
	Blame   = "blame"     // whose CPU use rose most is set idle
	Hand    = "hand"      // who is to blame is set idle from the onset on
)

func arms() []string { return []string{Guarded, NoGuard, Hand, Blame, Placebo} }

// Reject says which bins of 50 ms leave, before anybody looks at their arm.
type Reject struct {
	// Lag of the generator, and Steal of the hypervisor in CPU time, beyond which a bin
	// leaves, and After how many bins after it.
	Lag   lab.Duration `json:"lag"`
	Steal lab.Duration `json:"steal"`
	After int          `json:"after"`
	// Most is the share (0-1) of a period beyond which its quadruplet leaves.
	Most float64 `json:"most"`
}

// The covariates.
const (
	Offered = "offered" // requests per second that were due
	Lag     = "lag"     // of the generator, mean of the bins' longest
	Steal   = "steal"   // CPU time that the hypervisor took per second
)

func covariates() []string { return []string{Offered, Lag, Steal} }

// The figures.
const (
	P99      = "p99"
	Work     = "work"
	Reaction = "reaction"
	Named    = "named"
	Against  = "innocent"
)

func figures() []string { return []string{P99, Work, Reaction, Named, Against} }

// DefaultProtocol is the shipped one: the primary question, in ten minutes.
func DefaultProtocol() Protocol {
	limit := func(v float64) *float64 { return &v }
	return Protocol{
		Hypotheses: []Hypothesis{
			{Figure: P99, Arm: Guarded, Most: limit(1.05)}, {Figure: Work, Arm: Guarded, Least: limit(0.97)},
			{Figure: Reaction, Arm: Guarded, Percentile: 50, Most: limit(0.2)},
		},
		Blocks: 3, Looks: []int{2, 3}, Error: 0.025,
		Quadruplets: []Planned{{Arm: Guarded, Fault: Hog, Times: 4}, {Arm: NoGuard, Fault: Hog}, {Arm: Hand, Fault: Hog}, {Arm: Blame, Fault: Hog}, {Arm: Placebo}},
		Period:      lab.Duration(5 * time.Second), Washout: lab.Duration(2 * time.Second), Learn: lab.Duration(12 * time.Second),
		Probe: guard.ProbeNeeded, Demand: 0.4,
		Reject:     Reject{Lag: lab.Duration(time.Millisecond), After: 3, Most: 1. / 3},
		Covariates: []string{Offered},
	}
}

// cells are the quadruplets of a block, each with a name of its own.
func (p Protocol) cells() (names []string, all []Planned) {
	for _, q := range p.Quadruplets {
		for n := range max(1, q.Times) {
			name := q.name()
			if n > 0 {
				name += fmt.Sprintf(" (%d)", n+1)
			}
			names, all = append(names, name), append(all, q)
		}
	}
	return names, all
}

const (
	// lead is for how long the load has run at least when a quadruplet begins.
	lead = time.Second
	// betweenQuadruplets is about what the lab needs from one to the next.
	betweenQuadruplets = 1500 * time.Millisecond
)

// Length is about how long the run takes if it is not decided before.
func (p Protocol) Length() time.Duration {
	const before = 6 * time.Second
	names, _ := p.cells()
	return before + time.Duration(p.Learn) + time.Duration(p.Blocks*len(names))*(4*time.Duration(p.Period)+p.rest()+betweenQuadruplets)
}

// rest is for how long the load has run when a quadruplet begins.
func (p Protocol) rest() time.Duration { return max(lead, time.Duration(p.Rest)) }

// Validate says what is wrong, naming the field.
func (p Protocol) Validate() error {
	names, _ := p.cells()
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{p.Blocks < 1 || p.Blocks > 1000, fmt.Sprintf("blocks: %d: want 1 to 1000", p.Blocks)},
		{len(names) < 1 || len(names) > 64, fmt.Sprintf("quadruplets: %d in a block: want 1 to 64", len(names))},
		{!slices.IsSorted(p.Looks) || len(p.Looks) == 0 || p.Looks[0] < 1 || p.Looks[len(p.Looks)-1] != p.Blocks, fmt.Sprintf("looks: %v: want ascending numbers of blocks, the last one %d", p.Looks, p.Blocks)},
		{len(slices.Compact(slices.Clone(p.Looks))) != len(p.Looks), fmt.Sprintf("looks: %v: one is there twice", p.Looks)},
		{!(p.Error > 0 && p.Error < 0.5), fmt.Sprintf("error: %g: want more than 0 and less than 0.5", p.Error)},
		{time.Duration(p.Period) < time.Second || time.Duration(p.Period) > time.Minute, fmt.Sprintf("period: %s: want 1s to 1m", p.Period)},
		{p.Washout < 0 || p.Washout > p.Period/2, fmt.Sprintf("washout: %s: want 0 to half a period", p.Washout)},
		{time.Duration(p.Learn) < 2*lead || time.Duration(p.Learn) > time.Hour, fmt.Sprintf("learn: %s: want 2s to 1h", p.Learn)},
		{p.Rest < 0 || time.Duration(p.Rest) > 10*time.Minute, fmt.Sprintf("rest: %s: want 0 to 10m", p.Rest)},
		{p.Window != 0 && (time.Duration(p.Window) < guard.LeastWindow || time.Duration(p.Window) > 5*time.Second), fmt.Sprintf("window: %s: want 100ms to 5s", p.Window)},
		{!slices.Contains(guard.ProbeUses(), p.Probe), fmt.Sprintf("probe: %q: want one of %v", p.Probe, guard.ProbeUses())},
		{p.Reject.Lag <= 0 || p.Reject.Steal < 0 || p.Reject.After < 0, "reject: want a lag of more than 0, and neither steal nor after below 0"},
		{!(p.Reject.Most > 0 && p.Reject.Most <= 1), fmt.Sprintf("reject.most: %g: want more than 0 and at most 1", p.Reject.Most)},
	} {
		if rule.broken {
			return errors.New("experiment: " + rule.says)
		}
	}
	for _, q := range p.Quadruplets {
		if err := q.validate(); err != nil {
			return fmt.Errorf("experiment: quadruplets: %w", err)
		}
	}
	for _, h := range p.Hypotheses {
		if err := h.validate(p); err != nil {
			return fmt.Errorf("experiment: hypotheses: %w", err)
		}
	}
	for _, c := range p.Covariates {
		if err := oneOf("covariate", c, covariates()); err != nil {
			return fmt.Errorf("experiment: covariates: %w", err)
		}
	}
	return validateBase(p.base())
}

// oneOf says what was meant where a word is not one of those that there are.
func oneOf(what, word string, all []string) error {
	if slices.Contains(all, word) {
		return nil
	}
	return fmt.Errorf("%s %q: not one of %s%s", what, word, strings.Join(all, ", "), strictyaml.Nearest(word, all))
}

func (q Planned) validate() error {
	if err := oneOf("arm", q.Arm, arms()); err != nil {
		return err
	}
	if q.Times < 0 || q.Demand < 0 || q.Demand > 1 {
		return fmt.Errorf("%s: want times of 0 or more, and a demand of 0 to 1", q.Arm)
	}
	if q.Arm == Placebo {
		if q.Fault != "" {
			return fmt.Errorf("placebo with fault %s: nothing may switch in a placebo", q.Fault)
		}
		return nil
	}
	if err := oneOf("fault", q.Fault, FaultNames()); err != nil {
		return err
	}
	if q.Fault == Reclaim || q.Fault == IO {
		return fmt.Errorf("fault %s: it needs a tenant of its own, and here tenants live on: use berth lab guard --faults %s", q.Fault, q.Fault)
	}
	return nil
}

func (h Hypothesis) validate(p Protocol) error {
	if err := oneOf("figure", h.Figure, figures()); err != nil {
		return err
	}
	if err := oneOf("arm", h.Arm, arms()); err != nil {
		return err
	}
	switch {
	case (h.Most == nil) == (h.Least == nil):
		return fmt.Errorf("%s of %s: want either most or least", h.Figure, h.Arm)
	case h.Figure == Reaction && h.Percentile != 50 && h.Percentile != 95:
		return fmt.Errorf("reaction of %s: percentile %g: want 50 or 95", h.Arm, h.Percentile)
	case h.Figure != Reaction && h.Percentile != 0:
		return fmt.Errorf("%s of %s: percentile %g: only a reaction has one", h.Figure, h.Arm, h.Percentile)
	case h.Figure == P99 && h.limit() <= 0:
		return fmt.Errorf("p99 of %s: limit %g: a ratio is more than 0", h.Arm, h.limit())
	}
	n := 0
	for _, q := range p.Quadruplets {
		if q.Arm == h.Arm {
			n += p.Blocks * max(1, q.Times)
		}
	}
	if n == 0 {
		return fmt.Errorf("%s of %s: no quadruplet has this arm", h.Figure, h.Arm)
	}
	if h.Arm == Placebo && h.Figure != P99 && h.Figure != Work {
		return fmt.Errorf("%s of %s: a placebo has no onset", h.Figure, h.Arm)
	}
	return h.enough(p, n)
}

// mostPlanned is up to how many quadruplets it is tried whether they would be enough.
const mostPlanned = 4096

// enough refuses a hypothesis that so many quadruplets cannot show, however good the figure is.
func (h Hypothesis) enough(p Protocol, quadruplets int) error {
	const confidence = 0.95
	least := 0.0
	if h.Figure == P99 || h.Figure == Work {
		var shares []float64
		for _, look := range p.Looks {
			shares = append(shares, float64(look)/float64(p.Blocks))
		}
		bounds := stats.OBrienFleming(shares, p.Error)
		least = bounds[len(bounds)-1]
	}
	can := func(n int) bool {
		switch h.Figure {
		case Reaction: // one onset of each quadruplet is after a period of A
			low, high := stats.QuantileRanks(n, h.Percentile/100, confidence)
			return h.Most != nil && high <= n || h.Least != nil && low >= 1
		case Named, Against:
			_, none := stats.Share(0, 2*n, confidence)
			all, _ := stats.Share(2*n, 2*n, confidence)
			return h.Most != nil && none <= *h.Most || h.Least != nil && all >= *h.Least
		}
		return math.Pow(0.5, float64(n)) <= least // all signs agree
	}
	if can(quadruplets) {
		return nil
	}
	if !can(mostPlanned) {
		return fmt.Errorf("%s: no number of quadruplets can show that", h)
	}
	needs := quadruplets + sort.Search(mostPlanned-quadruplets, func(n int) bool { return can(quadruplets + n) })
	return fmt.Errorf("%s: %d quadruplets cannot show that: %d can; raise blocks or times", h, quadruplets, needs)
}

// limit is what the figure is to be at most, or at least.
func (h Hypothesis) limit() float64 {
	if h.Most != nil {
		return *h.Most
	}
	return *h.Least
}

// String is "p99 of guarded at most 1.05".
func (h Hypothesis) String() string {
	name, side, unit := h.Figure, "at most", ""
	if h.Least != nil {
		side = "at least"
	}
	switch h.Figure {
	case P99:
		name, unit = "p99 over alone", " times"
	case Work:
		name = "work kept by the neighbour"
	case Reaction:
		name, unit = fmt.Sprintf("reaction, percentile %g", h.Percentile), " s"
	case Named:
		name = "share of onsets named rightly"
	case Against:
		name = "share of onsets with a remedy against the innocent"
	}
	return fmt.Sprintf("%s: %s, %s %g%s", h.Arm, name, side, h.limit(), unit)
}

// base is what the lab is asked for.
func (p Protocol) base() lab.Spec {
	base := lab.IsolationSpec()
	base.Name, base.CPUs, base.Seed = "guard-protocol", p.CPUs, p.Seed
	base.Blocks, base.Settle, base.Window = p.Blocks, lab.Duration(lead), 4*p.Period
	base.Tenant.Service = cmp.Or(p.Tenant, base.Tenant.Service)
	base.Tenant.Demand, base.Rate, base.ThreadsPerCPU = p.Demand, p.Rate, 1
	return base
}
