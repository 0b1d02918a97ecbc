package place

import (
	"fmt"
	"strings"
)

// Why explains a grant: the decisions that led to it, in order.
type Why struct {
	Decisions []*Decision `json:"decisions"`
}

// Decision is one choice among candidates.
type Decision struct {
	Name       string      `json:"name"`
	Criteria   []string    `json:"criteria,omitempty"` // of the ranks; lower is better
	Candidates []Candidate `json:"candidates"`
	// Chosen is the position of the winner in Candidates, -1 if no candidate fitted.
	Chosen int `json:"chosen"`
}

// Candidate is one alternative of a Decision.
type Candidate struct {
	Name string `json:"name"`
	Rank []int  `json:"rank,omitempty"`
	// Lost says why the candidate lost: a criterion with both values, "tie", or why
	// it cannot hold the request; "" for the winner.
	Lost string `json:"lost,omitempty"`
}

// NewWhy returns an empty explanation if the request asks for one, else nil.
func NewWhy(r *Request) *Why {
	if !r.Explain {
		return nil
	}
	return &Why{}
}

// Note adds a decision without alternatives, such as a rule that applied.
func (w *Why) Note(format string, args ...any) {
	if w != nil {
		w.Decisions = append(w.Decisions, &Decision{Name: fmt.Sprintf(format, args...), Chosen: -1})
	}
}

// decision adds a decision; nil if w is. It copies the texts, so that a choice without
// explanation stays off the heap.
func (w *Why) decision(name string, criteria []string) *Decision {
	if w == nil {
		return nil
	}
	d := &Decision{Name: strings.Clone(name), Chosen: -1}
	for _, c := range criteria {
		d.Criteria = append(d.Criteria, strings.Clone(c))
	}
	w.Decisions = append(w.Decisions, d)
	return d
}

func (d *Decision) drop(name, reason string) {
	if d != nil {
		d.Candidates = append(d.Candidates, Candidate{Name: name, Lost: reason})
	}
}

func (d *Decision) add(name string, rank *Rank) {
	if d != nil {
		d.Candidates = append(d.Candidates, Candidate{Name: name, Rank: append([]int{}, rank[:len(d.Criteria)]...)})
	}
}

func (d *Decision) leads() {
	if d != nil {
		d.Chosen = len(d.Candidates) - 1
	}
}

// close records why each loser lost.
func (d *Decision) close() {
	if d == nil || d.Chosen < 0 {
		return
	}
	winner := d.Candidates[d.Chosen].Rank
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if i == d.Chosen || c.Lost != "" {
			continue
		}
		c.Lost = "tie"
		for k := range winner {
			if c.Rank[k] != winner[k] {
				c.Lost = fmt.Sprintf("%s: %d > %d", d.Criteria[k], c.Rank[k], winner[k])
				break
			}
		}
	}
}

// String writes one line per decision and, indented, one per candidate.
func (w *Why) String() string {
	if w == nil {
		return ""
	}
	var b strings.Builder
	for _, d := range w.Decisions {
		b.WriteString(d.Name)
		if len(d.Criteria) > 0 {
			fmt.Fprintf(&b, " by %s", strings.Join(d.Criteria, ", "))
		}
		b.WriteByte('\n')
		for i, c := range d.Candidates {
			mark, tail := " ", c.Lost
			if i == d.Chosen {
				mark, tail = "*", "chosen"
			}
			if c.Rank != nil {
				tail = fmt.Sprint(c.Rank, " ", tail)
			}
			fmt.Fprintf(&b, "  %s %s %s\n", mark, c.Name, tail)
		}
	}
	return b.String()
}
