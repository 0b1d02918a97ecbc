package guarded

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
)

// The page of a protocol is a file, its plots and all: of arms that helped little, well and not at
// all, with an innocent that was named, an onset in which nobody was, and a quadruplet that does not
// count.
func TestProtocolPage(t *testing.T) {
	t.Parallel()
	r := madeUp(shortProtocol(), 3, map[string]float64{Guarded: 1.5, NoGuard: 20, Hand: 1.2, Blame: 2})
	r.Header = fake().Header
	r.Skipped, r.Schema = nil, ProtocolSchema
	onset := 0
	for i := range r.Quadruplets {
		q := &r.Quadruplets[i]
		q.Started = r.Started.Add(time.Duration(i) * 13 * time.Second)
		if q.Arm != Guarded {
			continue
		}
		for n := range q.Periods {
			p := &q.Periods[n]
			if p.Arm == Alone {
				continue
			}
			switch onset++; onset {
			case 1: // nobody is named
			case 2:
				p.Findings = []Finding{found(0.3, detect.CPU, lab.Bystander)}
			default:
				p.Findings = []Finding{found(0.3, detect.CPU, lab.Neighbour)}
			}
		}
	}
	for b := 25; b < 60; b++ {
		r.Quadruplets[1].Machine[b].Steal = 0.01
	}
	var got bytes.Buffer
	if err := report.HTML(&got, ProtocolSheet(r, AnalyseProtocol(r))); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/protocol.html", got.Bytes())
	// What the file must show, whoever wrote it last.
	for _, what := range []string{
		">1.5", "of 24 onsets", "does not count: ",
		`id="ratios`, `id="faults`, `id="spreads`, `id="confusion`, `id="meanwhile`,
	} {
		if !strings.Contains(got.String(), what) {
			t.Errorf("the page lacks %q", what)
		}
	}
}

// What to do next depends on what was shown.
func TestProtocolAct(t *testing.T) {
	t.Parallel()
	const enforced, seen = "berth guard --mode enforce --sensitive SERVICE --best-effort GROUP", "berth guard --mode preview --sensitive SERVICE --best-effort GROUP"
	for _, tc := range []struct {
		words []Word
		open  bool // the run is not complete
		want  string
	}{
		{[]Word{Shown, Shown}, false, "Do it: " + enforced},
		{[]Word{Shown, Undecided, Shown}, false, "To decide the other 1 of 3, run a copy of the protocol with more blocks (berth lab show guard-protocol prints one). Do it: berth lab run FILE"},
		{[]Word{Undecided, Refuted}, false, "Read what the guard would do before it may. Do it: " + seen},
		{nil, false, "State hypotheses in a copy of the protocol (berth lab show guard-protocol prints one). Do it: berth lab run FILE"},
		{[]Word{Shown}, true, "The run is not complete. Do it: berth lab run --resume FOLDER"},
	} {
		r, a := &ProtocolResult{}, &ProtocolAnalysis{}
		r.Complete = !tc.open
		for _, w := range tc.words {
			a.Verdicts = append(a.Verdicts, Decided{Word: w})
		}
		if got := strings.Join(a.act(r), " "); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.words, got, tc.want)
		}
	}
}
