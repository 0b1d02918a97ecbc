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
	texts   []string
	general []string // without a mark
}

// superscripts mark remarks: letters, so that two marks need no space between
// them. From the last on remarks share it.
const superscripts = "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ"

func superscript(i int) string {
	marks := []rune(superscripts)
	return string(marks[min(i, len(marks)-1)])
}

// of returns the marks of the row's remarks, adding those that are new.
func (f *footnotes) of(row lab.Row) string {
	var marks []string
	for _, text := range remarks(row) {
		i := slices.Index(f.texts, text)
		if i < 0 {
			i = len(f.texts)
			f.texts = append(f.texts, text)
		}
		marks = append(marks, superscript(i))
	}
	for _, q := range row.Quantiles {
		text := quantileName(q.P) + " not given: " + q.Reason
		if q.Reason != "" && !slices.Contains(f.general, text) {
			f.general = append(f.general, text)
		}
	}
	return strings.Join(marks, "")
}

// remarks are what a reader of the row must know beside its figures.
func remarks(row lab.Row) []string {
	var out []string
	if row.Saturated {
		out = append(out, "saturated: responses came more slowly than requests were due, so latency grows with the length of the round and every figure is a lower bound")
	} else if q, _ := quantileOf(row, 99); q.AtLeast {
		out = append(out, "requests failed or never finished: from the marked percentile on, figures are lower bounds")
	}
	if bad := row.Rounds - row.Valid; bad > 0 && row.Valid > 0 {
		out = append(out, fmt.Sprintf("%d of %s left out as invalid", bad, plain.Count(row.Rounds, "round")))
	}
	if row.TenantThrottled > 0 {
		out = append(out, fmt.Sprintf("the tenant itself was throttled for %s ms/s", digits3(row.TenantThrottled*1e3)))
	}
	switch row.Verdict {
	case stats.Inconclusive:
		text := clause("inconclusive", row.Why)
		if row.MoreRounds > 0 {
			text += fmt.Sprintf("; about %s more would decide", plain.Count(row.MoreRounds, "round"))
		}
		out = append(out, text)
	case stats.Invalid:
		out = append(out, clause("invalid", row.Why))
	}
	return out
}

func clause(word, why string) string {
	if why == "" {
		return word
	}
	return word + ": " + why
}

func (f *footnotes) write(s *Sheet) {
	if len(f.texts)+len(f.general) == 0 {
		return
	}
	s.b.WriteString("\n")
	for i, text := range f.texts {
		f.line(s, "", superscript(i)+" "+text)
	}
	for _, text := range f.general {
		f.line(s, "  ", text)
	}
}

func (f *footnotes) line(s *Sheet, head, text string) {
	lines := plain.Wrap(plain.Line(text), s.o.width()-2)
	s.b.WriteString(s.o.paint(faint, head+strings.Join(lines, "\n  ")) + "\n")
}
