package stats

import (
	"slices"
	"testing"
)

// A strategy goes that is decided and beaten; no isolation goes when nobody needs it any more.
func TestSettled(t *testing.T) {
	t.Parallel()
	usual := map[string]Verdict{
		"none/alone": Worse,
		"best/alone": Worse, "best/none": Better,
		"good/alone": Worse, "good/none": Better, "good/best": Inconclusive,
		"bad/alone": Worse, "bad/none": Better, "bad/best": Inconclusive, "bad/good": Inconclusive,
	}
	ratios := map[string]Interval{ // those of other cases end with their name
		"good/best": {Estimate: 1.2, Low: 0.9, High: 1.6}, "bad/best": {Estimate: 2, Low: 1.1, High: 4}, "bad/good": {Estimate: 1.6, Low: 0.8, High: 3},
		"good/best reversed": {Estimate: 1.2, Low: 0.9, High: 1.6}, "best/bad reversed": {Estimate: 0.5, Low: 0.25, High: 0.9},
		"bad/best close": {Estimate: 2, Low: 0.9, High: 4},
		"bad/best few":   {Estimate: 2, Low: 2, High: 2},
	}
	for name, tc := range map[string]struct {
		ratio  string
		change map[string]Verdict
		want   []string
	}{
		"usual":                             {"", nil, []string{"bad", "none"}},
		"said the other way about":          {" reversed", nil, []string{"bad", "none"}},
		"nobody is beaten":                  {" close", nil, []string{"none"}},
		"too few blocks for an interval":    {" few", nil, []string{"none"}},
		"as good as alone is decided":       {"", map[string]Verdict{"bad/alone": Equivalent}, []string{"bad", "none"}},
		"beaten, but not decided":           {"", map[string]Verdict{"bad/alone": Inconclusive}, []string{"none"}},
		"not decided against no isolation":  {"", map[string]Verdict{"bad/none": Inconclusive}, nil},
		"invalid is not decided":            {"", map[string]Verdict{"good/none": Invalid}, []string{"bad"}},
		"no isolation against alone is not": {"", map[string]Verdict{"none/alone": Inconclusive}, []string{"bad"}},
	} {
		got := Settled([]string{"best", "good", "bad"}, "alone", "none", func(scenario, against string) (Verdict, Interval) {
			pair := scenario + "/" + against
			v, ok := tc.change[pair]
			if !ok {
				v = usual[pair]
			}
			return v, ratios[pair+tc.ratio]
		})
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	without := Settled([]string{"best", "bad"}, "alone", "", func(scenario, against string) (Verdict, Interval) {
		if against == "none" {
			t.Error("asked for no isolation, which is not there")
		}
		return usual[scenario+"/"+against], ratios[scenario+"/"+against]
	})
	if !slices.Equal(without, []string{"bad"}) {
		t.Errorf("without no isolation: %v", without)
	}
}
