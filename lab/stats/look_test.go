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
		"bad/alone": Worse, "bad/none": Better, "bad/best": Worse, "bad/good": Inconclusive,
	}
	for name, tc := range map[string]struct {
		change map[string]Verdict
		want   []string
	}{
		"usual":                             {nil, []string{"bad", "none"}},
		"said the other way about":          {map[string]Verdict{"bad/best": "", "best/bad": Better}, []string{"bad", "none"}},
		"nobody is beaten":                  {map[string]Verdict{"bad/best": Inconclusive}, []string{"none"}},
		"as good as alone is decided":       {map[string]Verdict{"bad/alone": Equivalent}, []string{"bad", "none"}},
		"beaten, but not decided":           {map[string]Verdict{"bad/alone": Inconclusive}, []string{"none"}},
		"not decided against no isolation":  {map[string]Verdict{"bad/none": Inconclusive}, nil},
		"invalid is not decided":            {map[string]Verdict{"good/none": Invalid}, []string{"bad"}},
		"no isolation against alone is not": {map[string]Verdict{"none/alone": Inconclusive}, []string{"bad"}},
	} {
		got := Settled([]string{"best", "good", "bad"}, "alone", "none", func(scenario, against string) Verdict {
			if v, ok := tc.change[scenario+"/"+against]; ok {
				return v
			}
			return usual[scenario+"/"+against]
		})
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	without := Settled([]string{"best", "bad"}, "alone", "", func(scenario, against string) Verdict {
		if against == "none" {
			t.Error("asked for no isolation, which is not there")
		}
		return usual[scenario+"/"+against]
	})
	if !slices.Equal(without, []string{"bad"}) {
		t.Errorf("without no isolation: %v", without)
	}
}
