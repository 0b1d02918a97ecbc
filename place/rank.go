package place

import (
	"cmp"
	"strconv"
)

// Rank orders candidates: lower is better, compared from the first integer on.
// Unused places stay zero.
type Rank [10]int

// Compare returns -1 where r is better than o, 1 where it is worse, else 0.
func (r *Rank) Compare(o *Rank) int {
	for i := range r {
		if r[i] != o[i] {
			return cmp.Compare(r[i], o[i])
		}
	}
	return 0
}

// Choice is one decision among candidates 0 to Count-1.
type Choice struct {
	// Name says which choice it is, Criteria name the integers of the rank.
	Name     string
	Criteria []string
	Count    int
	Among    []int16 // the candidates to look at; nil is all
	// Fits drops a candidate by saying why it cannot hold the request; "" keeps
	// it. Nil keeps all.
	Fits func(i int) string
	// Rank ranks a candidate; nil ranks all alike.
	Rank func(i int) Rank
	// Tie is the number that decides between equal ranks, as a rule the lowest
	// CPU; nil takes the candidate's own number.
	Tie func(i int) int
	// Label names a candidate, for Why only; nil is its number.
	Label func(i int) string
}

// Best returns the candidate of the lowest rank, -1 if none fits. With a why it
// adds the decision to it.
func (c *Choice) Best(why *Why) int {
	best, bestTie := -1, 0
	var bestRank Rank
	d := why.decision(c.Name, c.Criteria)
	n := c.Count
	if c.Among != nil {
		n = len(c.Among)
	}
	for i := range n {
		if c.Among != nil {
			i = int(c.Among[i])
		}
		if c.Fits != nil {
			if reason := c.Fits(i); reason != "" {
				d.drop(c.label(d, i), reason)
				continue
			}
		}
		var rank Rank
		if c.Rank != nil {
			rank = c.Rank(i)
		}
		tie := i
		if c.Tie != nil {
			tie = c.Tie(i)
		}
		d.add(c.label(d, i), &rank)
		order := -1
		if best >= 0 {
			order = rank.Compare(&bestRank)
		}
		if order < 0 || order == 0 && tie < bestTie {
			best, bestTie, bestRank = i, tie, rank
			d.leads()
		}
	}
	d.close()
	return best
}

func (c *Choice) label(d *Decision, i int) string {
	if d == nil {
		return ""
	}
	if c.Label == nil {
		return "candidate " + strconv.Itoa(i)
	}
	return c.Label(i)
}
