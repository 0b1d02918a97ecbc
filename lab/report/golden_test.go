package report

import (
	"bytes"
	"regexp"
	"testing"
	"time"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
)

var dataAddress = regexp.MustCompile(`href="data:[^"]*"`)

// withoutData removes the downloads from a page: their content is tested apart.
func withoutData(page []byte) []byte {
	return dataAddress.ReplaceAll(page, []byte(`href="data:"`))
}

// poorCases are results that are not what a report hopes for.
func poorCases(t *testing.T) map[string]*lab.Result {
	empty := fakeResult(t, 0)
	empty.Complete = false
	empty.Finished = time.Time{}
	one := fakeResult(t, 1)
	one.Rounds = one.Rounds[:1]
	one.Complete = false
	invalid := fakeResult(t, 2)
	for i := range invalid.Rounds {
		invalid.Rounds[i].Invalid = "generator lag p99 is 4.1 ms, more than a tenth of the response time"
	}
	silent := fakeResult(t, 1)
	for i := range silent.Rounds {
		silent.Rounds[i].Load.Seconds, silent.Rounds[i].Probes, silent.Rounds[i].Seconds = nil, nil, 0
	}
	return map[string]*lab.Result{
		"zero": {}, "empty": empty, "oneround": one, "invalid": invalid, "silent": silent,
		"sixblocks": fakeResult(t, 6), // of before there were short rounds: too few for a verdict
	}
}

func TestPoorResults(t *testing.T) {
	t.Parallel()
	for name, r := range poorCases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text, page, doc, table bytes.Buffer
			m, shown := measured(t, r), side(t, name, r)
			a := m.Analyse()
			s := Isolation(m, a)
			if err := Text(&text, s, Options{}); err != nil {
				t.Fatal(err)
			}
			golden.Check(t, "testdata/poor_"+name+".txt", text.Bytes())
			if err := HTML(&page, s); err != nil {
				t.Fatal(err)
			}
			checkPage(t, page.String())
			if bytes.Contains(page.Bytes(), []byte("NaN")) || bytes.Contains(page.Bytes(), []byte("Inf")) {
				t.Error("the page has NaN or Inf in it")
			}
			if err := JSON(&doc, NewDocument(r, a)); err != nil {
				t.Fatal(err)
			}
			if err := s.Files[2].Write(&table); err != nil {
				t.Fatal(err)
			}
			if _, err := Compare(shown, shown); err == nil && name != "oneround" && name != "sixblocks" {
				t.Error("comparison of nothing with nothing: no error")
			}
		})
	}
}
