package services

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/lab"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	call := func(to string) [][]Call { return [][]Call{{{To: to}}} }
	for name, tc := range map[string]struct {
		change func(*Spec)
		want   string // "" for none
	}{
		"as it comes":       {func(*Spec) {}, ""},
		"one service":       {func(e *Spec) { e.Services = e.Services[:1] }, "services: 1: want 2 to 16"},
		"too many":          {func(e *Spec) { e.Services = make([]Service, 17) }, "services: 17"},
		"a cycle":           {func(e *Spec) { e.Services[9].Steps = call("catalogue") }, "catalogue calls cache calls catalogue: a request would never end"},
		"itself":            {func(e *Spec) { e.Services[5].Steps = call("currency") }, "currency calls currency"},
		"back to the first": {func(e *Spec) { e.Services[6].Steps = call("gateway") }, "gateway calls ads calls gateway"},
		"misspelt":          {func(e *Spec) { e.Services[3].Steps = call("cahce") }, `services: cart: steps: no service "cahce"; did you mean "cache"?`},
		"nobody calls":      {func(e *Spec) { e.Services[2].Name, e.Services[0].Steps = "alone", call("catalogue") }, "services: alone: nobody calls it"},
		"twice":             {func(e *Spec) { e.Services[3].Name = "cache" }, `name "cache"`},
		"comma":             {func(e *Spec) { e.Services[7].Name = "a,b" }, `name "a,b"`},
		"an hour of CPU":    {func(e *Spec) { e.Services[1].CPU = lab.Duration(time.Hour) }, "services: catalogue: cpu: 1h0m0s: want 1µs to 100ms"},
		"no CPU":            {func(e *Spec) { e.Services[1].CPU = 0 }, "cpu: 0s"},
		"no memory":         {func(e *Spec) { e.Services[1].WorkingSetBytes = 0 }, "workingSetBytes: 0"},
		"all memory":        {func(e *Spec) { e.Services[1].WorkingSetBytes = 1 << 50 }, "workingSetBytes: 1125899906842624"},
		"empty step":        {func(e *Spec) { e.Services[1].Steps = [][]Call{{}} }, "step 1: want a call"},
		"a wall of calls": {func(e *Spec) {
			e.Services[1].Steps = append(e.Services[1].Steps, slices.Repeat([]Call{{To: "cache"}}, 63))
		}, "step 3: want a call at least, and at most 64"},
		"share":    {func(e *Spec) { e.Services[1].Steps[1][0].Share = 2 }, "database: share 2"},
		"no share": {func(e *Spec) { e.Services[1].Steps[1][0].Share = math.NaN() }, "share NaN"},
		"times":    {func(e *Spec) { e.Services[1].Steps[1][0].Times = 1000 }, "times 1000"},
		"a storm of calls": {func(e *Spec) {
			e.Services[0].Steps[0][0].Times = 50
			e.Services[1].Steps[0][0].Times = 50
		}, "calls for each request: want at most 200"},
		"no placements":       {func(e *Spec) { e.Placements = nil }, "placements: none"},
		"placement twice":     {func(e *Spec) { e.Placements[1].Name = "no rule" }, `name "no rule"`},
		"three parts":         {func(e *Spec) { e.Placements[2].Parts = 3 }, "placements: node: parts: 3"},
		"parts of nothing":    {func(e *Spec) { e.Placements[2].Over = "" }, `over: ""`},
		"over without parts":  {func(e *Spec) { e.Placements[0].Over = Nodes }, `over: "nodes"`},
		"over sockets":        {func(e *Spec) { e.Placements[2].Over = "sockets" }, `over: "sockets"`},
		"pairs of one part":   {func(e *Spec) { e.Placements[2].Pairs = Together }, "pairs, first: want one of them"},
		"neither":             {func(e *Spec) { e.Placements[3].Pairs = "" }, "pairs, first: want one of them"},
		"both":                {func(e *Spec) { e.Placements[3].First = []string{"cart"} }, "pairs, first: want one of them"},
		"pairs":               {func(e *Spec) { e.Placements[3].Pairs = "near" }, `pairs: "near"`},
		"first":               {func(e *Spec) { e.Placements[3].Pairs, e.Placements[3].First = "", []string{"crat"} }, `first: "crat"`},
		"first is all":        {func(e *Spec) { e.Placements[3].Pairs, e.Placements[3].First = "", e.serviceNames() }, "not all"},
		"first, as it may be": {func(e *Spec) { e.Placements[3].Pairs, e.Placements[3].First = "", []string{"cart", "ads"} }, ""},
		"neighbour":           {func(e *Spec) { e.Placements[2].Neighbour = "there" }, `neighbour: "there"`},
		"nowhere else":        {func(e *Spec) { e.Placements[0].Neighbour = Elsewhere }, "neighbour: elsewhere is the second part"},
		"unknown pair":        {func(e *Spec) { e.Compare = []Pair{{"half", "hlaf"}} }, "compare: half with hlaf"},
		"pair of one":         {func(e *Spec) { e.Compare = []Pair{{"half", "half"}} }, "compare: half with half"},
		"demand":              {func(e *Spec) { e.Demand = 0 }, "demand: 0"},
		"rate":                {func(e *Spec) { e.Rate = math.Inf(1) }, "rate"},
		"weight":              {func(e *Spec) { e.Weight = 20_000 }, "weight: 20000"},
		"blocks":              {func(e *Spec) { e.Blocks = 0 }, "rounds: 0"},
		"window":              {func(e *Spec) { e.Window = lab.Duration(time.Millisecond) }, "duration: 1ms"},
		"kernel":              {func(e *Spec) { e.Neighbour.Kernel = "spni" }, "spni"},
		"cpus":                {func(e *Spec) { e.CPUs = "0-" }, "cpus"},
	} {
		e := Default()
		tc.change(&e)
		err := e.Validate()
		if (tc.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// All that is wrong is said at once.
func TestValidateAll(t *testing.T) {
	t.Parallel()
	e := Default()
	e.Services[1].CPU, e.Services[2].WorkingSetBytes, e.Placements[2].Parts = 0, 0, 7
	err := e.Validate()
	for _, want := range []string{"catalogue: cpu", "recommendations: workingSetBytes", "node: parts: 7"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

// The run takes about as long as it says: longer where services start anew in each round.
func TestLength(t *testing.T) {
	t.Parallel()
	x := New()
	flat, two := x.Length(played(t, "2c")), x.Length(played(t, "2s4c"))
	if flat < 4*time.Minute || flat > 6*time.Minute || two <= flat || two > 10*time.Minute {
		t.Errorf("%s on one node, %s on two", flat, two)
	}
	if x.Experiment.For = lab.Duration(time.Minute); x.Length(played(t, "2c")) != time.Minute {
		t.Errorf("%s, want what it may take", x.Length(played(t, "2c")))
	}
}

// A round is long enough for a p99 at the rate that the lab chose, and as asked for at a rate
// that the user gave.
func TestLengthen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		given, rate float64
		want        time.Duration
	}{{0, 1000, 2 * time.Second}, {0, 65, 2 * time.Second}, {0, 13, 10 * time.Second}, {13, 13, 2 * time.Second}} {
		x := New()
		x.Experiment.Rate, x.Setup.Rate = tc.given, tc.rate
		if x.lengthen(); time.Duration(x.Experiment.Window) != tc.want {
			t.Errorf("%g requests/s: %s, want %s", tc.rate, x.Experiment.Window, tc.want)
		}
	}
}
