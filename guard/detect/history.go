package detect

import (
	"math/bits"
	"slices"

	"berth.dev/berth/watch"
)

// history is what the last windows said about one resource.
type history struct {
	agree     uint8 // a bit per window, the newest lowest
	suspects  [lookBack]string
	shares    [lookBack]float64
	strengths [lookBack]float64 // of the symptom, in windows that agree
	against   [lookBack]float64 // of what speaks against the suspect, likewise
	last      verdict
}

// verdict is what one window says about one resource.
type verdict struct {
	suspect  string
	share    float64
	own      bool // it is the victim's own doing
	evidence []Evidence
	missing  []Signal
	probed   bool    // the run-queue probe tells of the suspect
	most     float64 // limits the strength against the suspect to what it has done; 0 does not
}

// shift makes room for the bit of a new window.
func shift(bits uint8) uint8 { return bits << 1 & (1<<lookBack - 1) }

func (h *history) shift() {
	h.agree = shift(h.agree)
	copy(h.suspects[1:], h.suspects[:])
	copy(h.shares[1:], h.shares[:])
	copy(h.strengths[1:], h.strengths[:])
	copy(h.against[1:], h.against[:])
}

// file notes that the window agrees with a verdict.
func (w *workload) file(r Resource, v verdict) {
	h := &w.history[r]
	h.agree |= 1
	h.suspects[0], h.shares[0], h.last = v.suspect, v.share, v
	h.strengths[0] = w.strength(r)
	if h.against[0] = h.strengths[0]; v.most > 0 {
		h.against[0] = min(h.against[0], v.most)
	}
}

// clear forgets all that was said about resources: something else explains it.
func (w *workload) clear(of ...Resource) {
	for _, r := range of {
		w.history[r].agree = 0
	}
}

// findings appends what enough windows agree on; last what others do without being
// told who.
func (w *workload) findings(to []Finding) []Finding {
	var untold []Finding
	for r := range w.history {
		h, takes := &w.history[r], Resource(r) == CPU
		if takes {
			takes = w.takenBy() != ""
		}
		if bits.OnesCount8(h.agree) < agree && !takes {
			continue
		}
		suspect, agreeing, share := h.accused()
		if takes && suspect == "" {
			h = &w.takes
			suspect, agreeing, share = h.accused()
		}
		f := Finding{
			Time: w.to, Victim: w.Group, Suspect: suspect, Resource: Resource(r), Agreeing: agreeing, Windows: w.seen, Share: share,
			Confidence: float64(agreeing+1) / float64(w.seen+2) * share,
			Evidence:   slices.Clone(h.last.evidence), Missing: slices.Clone(h.last.missing), Takes: takes && suspect == w.takenBy(),
		}
		if suspect != h.last.suspect {
			f.Evidence = slices.DeleteFunc(f.Evidence, func(e Evidence) bool {
				return Name(e.Subject) != w.Group && e.Subject.Scope != watch.Host
			})
		}
		if !InNoGroup(suspect) {
			f.Remedies = RemediesFor(f.Resource, h.last.own)
		}
		if by := f.Resource; suspect == "" && !h.last.own && (by == CPU || by == Memory || by == IO || by == Network) {
			untold = append(untold, f)
		} else {
			to = append(to, f)
		}
	}
	return append(to, untold...)
}

// accused returns the suspect on whom enough windows agree, how many do, and its
// mean share in them. If they do not agree on one, it is nobody, with them all.
func (h *history) accused() (suspect string, agreeing int, share float64) {
	for i, s := range h.suspects {
		if h.agree>>i&1 == 0 || s == "" {
			continue
		}
		n, sum := 0, 0.0
		for j, other := range h.suspects {
			if h.agree>>j&1 == 1 && other == s {
				n, sum = n+1, sum+h.shares[j]
			}
		}
		if n >= agree {
			return s, n, sum / float64(n)
		}
	}
	return "", bits.OnesCount8(h.agree), 1
}
