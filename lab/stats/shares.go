package stats

// firstShare is what the first figure of a comparison has of its chance of a false verdict.
const firstShare = 0.7

// Shares shares out what one comparison has of the chance of a false verdict over its figures, in a fixed order: 0.7 to
// the first, by which people decide, and the rest evenly. What a decided figure had goes on to the next one (the fallback
// procedure: Wiens 2003; strong control: Wiens and Dmitrienko 2005), so that nothing is paid for what is plain.
type Shares struct {
	comparisons int // of the run, looks included
	figures     int
	judged      int
	has, spare  float64
}

// NewShares are those of one of so many comparisons, by so many figures.
func NewShares(comparisons, figures int) *Shares {
	return &Shares{comparisons: comparisons, figures: figures}
}

// Judge judges the next figure. It is decided if its verdict is; a verdict that is taken back later was paid for.
func (s *Shares) Judge(p *Paired) Judgement {
	share := 1.0
	if s.figures > 1 {
		share = (1 - firstShare) / float64(s.figures-1)
		if s.judged == 0 {
			share = firstShare
		}
	}
	s.judged++
	s.has = share + s.spare
	j := p.Judge(float64(s.comparisons) / s.has)
	s.spare = 0
	if j.Verdict != Inconclusive && j.Verdict != Invalid {
		s.spare = s.has
	}
	return j
}
