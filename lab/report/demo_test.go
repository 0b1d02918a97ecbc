package report

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
)

// playedDemo makes up a demonstration.
func playedDemo(t *testing.T) *lab.Measured {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 12))
	r := fakeHeader(12, 1)
	r.Experiment = lab.DemoSpec(12)
	r.Experiment.Neighbour.Threads = 2
	names := []string{lab.Baseline, lab.Unisolated, "idle", lab.Unisolated}
	for i, s := range r.Experiment.Scenarios {
		for block := range r.Experiment.Blocks {
			round := fakeRound(t, rng, names[i], 1, r.Setup.Rate)
			round.Block, round.Scenario, round.Started = block, s.Name, r.Started.Add(time.Duration(12*i+block)*time.Second)
			r.Rounds = append(r.Rounds, round)
		}
	}
	return measured(t, r)
}

func TestDemoGolden(t *testing.T) {
	t.Parallel()
	m := playedDemo(t)
	s := Demo(m, m.Tell())
	var text, page, picture bytes.Buffer
	if err := Text(&text, s, Options{Width: 80}); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/demo.txt", text.Bytes())
	if err := HTML(&page, s); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/demo.html", withoutData(page.Bytes()))
	checkPage(t, page.String())
	if err := SVG(&picture, s); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/demo.svg", picture.Bytes())
	if err := wellFormed(picture.String()); err != nil {
		t.Error(err)
	}
	if out := picture.String(); !strings.Contains(out, ".plot .line") || strings.Contains(out, "nav {") {
		t.Error("the picture has not the styles of plots alone")
	}
}

// The graph is higher where the p99 is, leaves room for what is to come, and is not wider
// than a terminal.
func TestGraph(t *testing.T) {
	t.Parallel()
	phases := []lab.Phase{{Name: "alone", Seconds: []lab.Second{{P99: 1000}, {P99: 1000}}}, {Name: "hog", Seconds: []lab.Second{{P99: 100000}}}, {Name: "hog as BE"}, {Name: "hog again"}}
	lines := strings.Split(Graph(phases, 12), "\n")
	if len(lines) != graphRows+3 {
		t.Fatalf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	bars := func(from, to int) (n int) {
		for _, line := range lines[:graphRows] {
			cells := []rune(line + strings.Repeat(" ", 80))
			n += strings.Count(string(cells[from:to]), "█")
		}
		return n
	}
	if alone, hog, later := bars(10, 11), bars(23, 24), bars(35, 70); alone >= hog || hog < graphRows-2 || later != 0 {
		t.Errorf("bars of %d, %d and %d in\n%s", alone, hog, later, strings.Join(lines, "\n"))
	}
	if Graph(nil, 12) != "" {
		t.Error("a graph of nothing")
	}
}
