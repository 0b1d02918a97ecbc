package report

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// footnotes collects remarks on rows; rows with the same remark share a mark.
type footnotes struct {
	measured *lab.Measured
	texts    []string
	general  []string // without a mark
}

// superscripts mark remarks: letters, so that two marks need no space between
// them. From the last on remarks share it.
var superscripts = []rune("ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")

func superscript(i int) string { return string(superscripts[min(i, len(superscripts)-1)]) }

// of returns the marks of the row's remarks, adding those that are new.
func (f *footnotes) of(row lab.Row) string {
	marks := ""
	for _, text := range remarks(row, f.measured) {
		i := slices.Index(f.texts, text)
		if i < 0 {
			i = len(f.texts)
			f.texts = append(f.texts, text)
		}
		marks += superscript(i)
	}
	for _, q := range row.Quantiles {
		f.once(quantileName(q.P)+" not given: ", q.Reason)
		switch bound(row, q) {
		case "≤":
			f.once("≤ upper bound, as the machine held up the generator, too: ", q.AtMost)
		case "≈":
			f.once("≈ lower bound of some requests and upper bound of others, as the machine held up the generator, too: ", q.AtMost)
		}
	}
	return marks
}

// once adds a note about all rows with the first of its reasons.
func (f *footnotes) once(about, why string) {
	if why != "" && !slices.ContainsFunc(f.general, func(note string) bool { return strings.HasPrefix(note, about) }) {
		f.general = append(f.general, about+why)
	}
}

func (f *footnotes) lines() []string {
	var lines []string
	for i, text := range f.texts {
		lines = append(lines, superscript(i)+" "+text)
	}
	return append(lines, f.general...)
}

// remarks are what a reader of the row must know beside its figures.
func remarks(row lab.Row, m *lab.Measured) []string {
	var out []string
	if row.Saturated {
		out = append(out, "saturated: responses came more slowly than requests were due, so latency grows with the length of the round and every figure is a lower bound")
	} else if q, _ := quantileOf(row, 99); q.AtLeast {
		out = append(out, "requests failed or never finished: from the marked percentile on, figures are lower bounds")
	}
	if bad := row.Rounds - row.Valid; bad > 0 && row.Valid > 0 {
		out = append(out, fmt.Sprintf("%d of %s left out: %s", bad, plain.Count(row.Rounds, "round"), whyLeftOut(m, row.Scenario)))
	}
	if row.TenantThrottled > 0 {
		out = append(out, fmt.Sprintf("the tenant itself was throttled for %s ms/s", digits3(row.TenantThrottled*1e3)))
	}
	if row.Verdict == stats.Inconclusive || row.Verdict == stats.Invalid {
		text := row.Verdict.Against("alone")
		if row.Why != "" {
			text += ": " + row.Why
		}
		if row.MoreRounds > 0 {
			text += fmt.Sprintf("; about %s more would decide", plain.Count(row.MoreRounds, "block"))
		}
		out = append(out, text)
	}
	return out
}
