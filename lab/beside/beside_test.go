package beside

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
)

// played is a machine of an lscpu table, with memory on its nodes, all but those in without.
func played(t *testing.T, table string, without ...int) *machine.Machine {
	t.Helper()
	m, err := sysfs.Lscpu(table)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.Domains {
		if d := &m.Domains[i]; d.Kind == machine.Node && !slices.Contains(without, d.ID) {
			d.Bytes = 1 << 30
		}
	}
	return m
}

// CPU, core, socket, node, L3.
const (
	flat  = "0,0,0,0,0\n1,1,0,0,0\n"
	one   = "0,0,0,0,0\n1,0,0,0,0\n"
	smt8  = "0,0,0,0,0\n1,1,0,0,0\n2,2,0,0,0\n3,3,0,0,0\n4,0,0,0,0\n5,1,0,0,0\n6,2,0,0,0\n7,3,0,0,0\n"
	nodes = "0,0,0,0,0\n1,1,0,0,0\n2,2,0,0,0\n3,3,0,0,0\n4,4,1,1,1\n5,5,1,1,1\n6,6,1,1,1\n7,7,1,1,1\n"
)

func set(t *testing.T, list string) cpuset.Set {
	t.Helper()
	s, err := cpuset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	type want [4]string
	for _, tc := range []struct {
		name, table, free string
		without           []int
		smt, cache, numa  want // "" first: not here
	}{
		{name: "two cores", table: flat, free: "0-1", cache: want{"0", "1", ""}},
		{name: "two threads", table: one, free: "0-1", smt: want{"0", "1", ""}},
		{name: "threads", table: smt8, free: "0-7", smt: want{"0-1", "4-5", "2-3"}, cache: want{"0-1,4-5", "2-3,6-7", ""}},
		{name: "threads, a core of which one is left", table: smt8, free: "0,2-7", smt: want{"0", "4", "2"}, cache: want{"0,4-5", "2-3,6-7", ""}},
		{name: "nodes", table: nodes, free: "0-7", cache: want{"0-1", "2-3", "4-5"}, numa: want{"0-3", "0-1,4-5", "0", "1"}},
		{name: "nodes, one CPU each", table: nodes, free: "3-4", numa: want{"3", "", "0", "1"}},
		{name: "nodes, odd", table: nodes, free: "1-4", cache: want{"1", "2-3", "4"}, numa: want{"1-2", "1,4", "0", "1"}},
		{name: "memory on one", table: nodes, free: "0-7", without: []int{1}, cache: want{"0-1", "2-3", "4-5"}},
		{name: "CPUs of the second alone", table: nodes, free: "4-7", cache: want{"4-5", "6-7", ""}, numa: want{"4-7", "", "1", "0"}},
	} {
		m, free := played(t, tc.table, tc.without...), set(t, tc.free)
		check := func(what string, wanted want, err error, got ...cpuset.Set) {
			t.Helper()
			if wanted == (want{}) {
				if !errors.Is(err, kernel.ErrNotSupported) {
					t.Errorf("%s, %s: %v, want that it is not here", tc.name, what, err)
				}
				return
			}
			var texts want
			for i, s := range got {
				texts[i] = s.String()
			}
			if diff := cmp.Diff(wanted, texts); diff != "" || err != nil {
				t.Errorf("%s, %s: %v (-want +got)\n%s", tc.name, what, err, diff)
			}
		}
		s, err := smtPlacesOf(m, free)
		check("smt", tc.smt, err, s.first, s.siblings, s.others)
		c, err := cachePlacesOf(m, free)
		check("cache", tc.cache, err, c.tenant, c.beside, c.away)
		n, err := numaPlacesOf(m, free)
		check("numa", tc.numa, err, n.cpus, n.split, n.own, n.other)
	}
}

func TestResidency(t *testing.T) {
	t.Parallel()
	x := NUMA()
	x.Residency = []Residency{{remote, map[int]int64{0: 1, 1: 9}, cpuset.MustOf(1)}, {local, map[int]int64{1: 5}, cpuset.MustOf(0)}}
	for cell, want := range map[string]float64{remote: 0.9, local: 0, split: -1} {
		share, ok := x.there(cell)
		if ok != (want >= 0) || ok && math.Abs(share-want) > 1e-9 {
			t.Errorf("%s: %g, %v", cell, share, ok)
		}
	}
}

// play is a view of a design of which each cell's figures are times those of the reference,
// with noise, and in bad blocks ten times as slow.
func play(x *Experiment, seed uint64, blocks int, times map[string]float64, work map[string]float64, bad float64) *view {
	r := rand.New(rand.NewPCG(seed, 4))
	v := &view{Experiment: x, measured: &lab.Measured{Result: &lab.Result{}}, Judged: report.Judged{Reference: x.design.cells[0].name, Figures: x.design.figures}}
	for block := range blocks {
		level := math.Exp(0.3 * r.NormFloat64())
		for _, c := range x.design.cells {
			p99 := 5000 * level * times[c.name] * math.Exp(0.12*r.NormFloat64())
			if r.Float64() < bad {
				p99 *= 10
			}
			f := map[string]float64{"p50": p99 / 5, "p95": p99 / 2, "p99": p99, lab.CPUPerRequest.Name: p99 / 5e6}
			if w := work[c.name]; w > 0 {
				f[lab.Work.Name] = 1e6 * w * math.Exp(0.02*r.NormFloat64())
			}
			v.Samples = append(v.Samples, stats.Sample{Cell: c.name, Block: block, Figures: f})
		}
	}
	var family []stats.Versus
	for _, c := range x.design.cells[1:] {
		family = append(family, stats.Versus{Cell: c.name, Against: v.Reference})
	}
	v.Compared = stats.Compare(v.Samples, x.design.figures, append(family, x.design.versus...))
	return v
}

// What quick says is false in one of twenty runs at most, in worlds with bad blocks too, and
// it says what there is to say in most.
func TestQuickSaysNothingFalse(t *testing.T) {
	t.Parallel()
	const runs = 150
	for name, tc := range map[string]struct {
		times, work map[string]float64
		bad         float64
		wrong       []string // what is false there
		right       string   // what is to be said in most runs; "" for nothing
	}{
		"nothing differs": {map[string]float64{alone: 1, nothing: 1, weighted: 1, idle: 1}, map[string]float64{nothing: 1, weighted: 1, idle: 1}, 0.1, []string{"costs your p99 ×", "no harm", "cheapest cure", "cures are"}, ""},
		"idle is better":  {map[string]float64{alone: 1, nothing: 10, weighted: 5, idle: 2}, map[string]float64{nothing: 1, weighted: 0.9, idle: 0.8}, 0.05, []string{"no harm", "nothing here", "cure here is weighted (", "idle takes less"}, "cure here is idle ("},
		"they are alike":  {map[string]float64{alone: 1, nothing: 10, weighted: 2, idle: 2}, map[string]float64{nothing: 1, weighted: 0.9, idle: 0.5}, 0.05, []string{"no harm", "nothing here", "cure here is idle (", "idle takes less"}, "weighted takes less from the hog"},
		"nothing helps":   {map[string]float64{alone: 1, nothing: 10, weighted: 10, idle: 10}, map[string]float64{nothing: 1, weighted: 0.9, idle: 0.8}, 0.05, []string{"cheapest cure", "cures are", "nothing here"}, "costs your p99 ×"},
		"it is no hog":    {map[string]float64{alone: 1, nothing: 1, weighted: 1, idle: 1}, map[string]float64{nothing: 1, weighted: 1, idle: 1}, 0, []string{"costs your p99 ×", "cheapest cure", "cures are"}, ""},
	} {
		wrong, right := 0, 0
		for seed := range uint64(runs) {
			says := quickWords(play(Quick(), seed, 13, tc.times, tc.work, tc.bad))[0]
			if slices.ContainsFunc(tc.wrong, func(w string) bool { return strings.Contains(says, w) }) {
				wrong++
			}
			if tc.right != "" && strings.Contains(says, tc.right) {
				right++
			}
		}
		// Of 150 runs that are false with a chance of 5 %, more than 14 are in one of 100.
		if wrong > 14 {
			t.Errorf("%s: false in %d of %d runs", name, wrong, runs)
		}
		if tc.right != "" && 2*right < runs {
			t.Errorf("%s: said in %d of %d runs", name, right, runs)
		}
		t.Logf("%s: false in %d, right in %d of %d", name, wrong, right, runs)
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		x           *Experiment
		times, work map[string]float64
		want        []string
	}{
		{Pinning(), map[string]float64{alone: 1, shared: 6, spread: 3, pinned: 1.5}, map[string]float64{shared: 1, spread: 0.8, pinned: 0.7}, []string{"On shared cores", "Cores of its own help: p99", "Keeping the neighbour to a part of the cores helps"}},
		{Pinning(), map[string]float64{alone: 1, shared: 2, spread: 2, pinned: 6}, map[string]float64{shared: 1, spread: 1, pinned: 1}, []string{"Cores of its own make it worse here"}},
		{SMT(), map[string]float64{siblingIdle: 1, siblingBusy: 2, otherCores: 1, bothThreads: 1.6}, nil, []string{"A busy sibling thread costs p99 ×", "It is the sibling"}},
		{SMT(), map[string]float64{siblingIdle: 1, siblingBusy: 1, otherCores: 1, bothThreads: 1}, nil, []string{"Whether that is the sibling's doing"}},
		{Cache(), map[string]float64{alone: 1, quietBeside: 1, sameCache: 2, otherCache: 1}, nil, []string{"below the same cache, costs p99 ×", "It takes cache or memory bandwidth"}},
		{NUMA(), map[string]float64{local: 1, split: 1, remote: 2}, nil, []string{"was not measured: 0 %"}},
	} {
		says := strings.Join(tc.x.design.words(play(tc.x, 1, 40, tc.times, tc.work, 0)), "\n")
		for _, want := range tc.want {
			if !strings.Contains(says, want) {
				t.Errorf("%s of %v lacks %q:\n%s", tc.x.design.name, tc.times, want, says)
			}
		}
	}
	// Even a result without a round, or with an overloaded reference, has words.
	for _, x := range []*Experiment{Quick(), Pinning(), NUMA(), SMT(), Cache()} {
		if says := x.design.words(play(x, 1, 0, nil, nil, 0)); len(says) != 1 || !strings.HasPrefix(says[0], "Nothing can be said") {
			t.Errorf("%s without rounds: %q", x.design.name, says)
		}
		v := play(x, 1, 20, map[string]float64{}, nil, 0)
		for i := range v.Samples {
			v.Samples[i].Bound = true
		}
		if says := x.design.words(v); len(says) != 1 || !strings.HasPrefix(says[0], "Nothing can be said: even") {
			t.Errorf("%s overloaded: %q", x.design.name, says)
		}
	}
}

func TestBill(t *testing.T) {
	t.Parallel()
	b := bill{Bill: report.Bill{Reserved: 2, Of: 8, Used: 0.5}, kept: stats.Interval{Estimate: 0.8, Low: 0.5, High: 1.1}, price: 200}
	if got, want := b.words(), "The bill: 2 of 8 CPUs are reserved, and 75 % of that lies idle. The neighbour does 80 % of what it does on shared cores: the same work takes 25 more machines for every 100 (0 to 100), 50.00 for each of the 100."; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	b.kept = stats.Interval{}
	if got := b.words(); strings.Contains(got, "machines") {
		t.Error(got)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Experiment){
		"nodePrice: -1":  func(x *Experiment) { x.Experiment.NodePrice = -1 },
		"weight: 20000":  func(x *Experiment) { x.Experiment.Weight = 20000 },
		"demand":         func(x *Experiment) { x.Experiment.Demand = 3 },
		"duration: 10ms": func(x *Experiment) { x.Experiment.Window = 10_000_000 },
	} {
		x := Pinning()
		if err := x.Validate(); err != nil {
			t.Error(err)
		}
		if change(x); x.Validate() == nil || !strings.Contains(x.Validate().Error(), want) {
			t.Errorf("%v, want %q", x.Validate(), want)
		}
	}
	x := Quick()
	if x.Experiment.NodePrice = 3; x.Validate() == nil {
		t.Error("quick has no bill")
	}
	if x = Quick(); x.Validate() != nil {
		t.Error(x.Validate())
	}
	if x.Experiment.Weight = 301; x.Validate() == nil || !strings.Contains(x.Validate().Error(), "at most 300") {
		t.Errorf("a heavy hog: %v", x.Validate())
	}
}
