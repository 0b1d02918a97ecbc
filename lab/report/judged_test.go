package report

import (
	"bytes"
	"testing"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// madeUpJudged is four cells, one of which queued without end and one of which cannot be.
func madeUpJudged() Judged {
	j := Judged{
		Head: "limit", Reference: "none",
		Cells:   []JudgedCell{{"none", "no limit"}, {"half", "half a CPU"}, {"tight", "a tenth of a CPU"}, {"same", "as none"}, {"endless", ""}},
		Figures: []stats.Figure{lab.P50, lab.P99, lab.Throughput, {Name: "hit", Share: true, More: true}, {Name: "absent"}},
		Skipped: []lab.Skipped{{Scenario: "endless", Reason: "string: it has an end", Remedy: "knots"}},
	}
	wobble := []float64{1, 1.02, 0.97, 1.01, 0.99}
	for block := range 30 {
		for cell, times := range map[string]float64{"none": 1, "half": 3, "tight": 200, "same": 1} {
			w := wobble[(block*len(cell)+int(cell[0]))%5]
			s := stats.Sample{Cell: cell, Block: block, Bound: cell == "tight", Figures: map[string]float64{"p50": 900 * times * w, "p99": 4100 * times * w, "throughput": 1000 / times * w}}
			if cell != "tight" {
				s.Figures["hit"] = 0.9 - 0.01*times
			}
			j.Samples = append(j.Samples, s)
		}
	}
	j.Compared = stats.Compare(j.Samples, j.Figures, []stats.Versus{{Cell: "half", Against: "none"}, {Cell: "tight", Against: "none"}, {Cell: "same", Against: "none"}})
	return j
}

func TestJudged(t *testing.T) {
	t.Parallel()
	j := madeUpJudged()
	s := &Sheet{Title: "judged"}
	s.Add(Block{Table: j.Table()}, j.Comparisons())
	s.Page = func() Page {
		heat := HeatMap("heat", "Matrix", "p99 by limit and clients.", "limit", "clients", []string{"none", "half"}, []string{"1", "2", "4"}, []Field{
			{Row: 0, Column: 0, Text: "4.1 ms", Tip: "none, 1 client: 4.1 ms"}, {Row: 1, Column: 2, Text: "12 ms <&>", Shade: 1, Mood: Bad}, {Row: 1, Column: 0, Text: "a text that has no room", Shade: 0.5, Mood: Good},
		})
		return Page{Plots: []Plot{j.Ratios("ratios", "How p99 compares", lab.P99), heat}}
	}
	var text, page bytes.Buffer
	if err := Text(&text, s, Options{Width: 120}); err != nil {
		t.Fatal(err)
	}
	if err := HTML(&page, s); err != nil {
		t.Fatal(err)
	}
	golden(t, "judged.txt", text.Bytes())
	golden(t, "judged.html", page.Bytes())
}
