package place

import "slices"

// Cover looks for the fewest positions, such as NUMA nodes, that together have
// enough of every resource.
type Cover struct {
	// Need is the amount of each resource, Has the amount at each position:
	// Has[position][resource].
	Need []int64
	Has  [][]int64
	// Rank orders sets of the same width (rising positions; do not keep the
	// slice); nil ranks all alike. Ties end in the lowest positions.
	Rank func(set []int) Rank
	// Least is the smallest width to consider; 0 is 1.
	Least int
	// Most is the largest width to consider; 0 is all positions.
	Most int
}

// coverSteps bounds the search at each width. 16 positions take fewer.
const coverSteps = 1 << 17

// Best returns the best set of the smallest width that suffices, nil if all
// positions together do not. Widths rise from a lower bound that sums give, and
// branches that cannot reach the need are cut, so that up to 16 positions are
// always searched to the end. Beyond, the search may run out of steps: then
// exact is false, and the set suffices but is the best one seen, or one filled
// greedily, whose width may not be the smallest.
func (c *Cover) Best() (set []int, exact bool) {
	s := coverSearch{Cover: c, steps: coverSteps}
	least := s.bound()
	if least == 0 {
		return nil, true
	}
	most := len(c.Has)
	if c.Most > 0 {
		most = min(most, c.Most)
	}
	for width := max(least, c.Least); width <= most; width++ {
		s.width, s.steps = width, coverSteps
		s.sum = make([]int64, len(c.Need))
		s.walk(0, make([]int, 0, width))
		if s.best != nil {
			return slices.Clone(s.best), s.steps > 0 // a copy keeps c off the heap
		}
		if s.steps <= 0 {
			break
		}
	}
	if s.steps > 0 {
		return nil, true
	}
	if set = c.greedy(); len(set) > most {
		set = nil
	}
	return set, false
}

type coverSearch struct {
	*Cover
	width, steps int
	best         []int
	bestRank     Rank
	sum          []int64
	// top[resource][from] is the amounts of the positions from there on, largest first, summed up
	top [][][]int64
}

// bound returns the smallest width that every single resource allows; 0 if all
// positions together have too little.
func (s *coverSearch) bound() int {
	n := len(s.Has)
	width := min(1, n)
	s.top = make([][][]int64, len(s.Need))
	for r, need := range s.Need {
		s.top[r] = make([][]int64, n+1)
		var sorted []int64
		for from := n; from >= 0; from-- {
			if from < n {
				at, _ := slices.BinarySearchFunc(sorted, s.Has[from][r], func(a, b int64) int {
					if a > b {
						return -1
					}
					return 1
				})
				sorted = slices.Insert(sorted, at, s.Has[from][r])
			}
			sums := make([]int64, len(sorted)+1)
			for i, x := range sorted {
				sums[i+1] = sums[i] + x
			}
			s.top[r][from] = sums
		}
		w, _ := slices.BinarySearch(s.top[r][0], need)
		if w > n {
			return 0
		}
		width = max(width, w)
	}
	return width
}

// walk extends the set by positions from the given one on.
func (s *coverSearch) walk(from int, set []int) {
	if s.steps--; s.steps <= 0 {
		return
	}
	left := s.width - len(set)
	if left > len(s.Has)-from {
		return
	}
	for r, need := range s.Need {
		if s.sum[r]+s.top[r][from][left] < need {
			return
		}
	}
	if left == 0 {
		s.offer(set)
		return
	}
	for pos := from; pos <= len(s.Has)-left; pos++ {
		for r := range s.sum {
			s.sum[r] += s.Has[pos][r]
		}
		s.walk(pos+1, append(set, pos))
		for r := range s.sum {
			s.sum[r] -= s.Has[pos][r]
		}
	}
}

func (s *coverSearch) offer(set []int) {
	var rank Rank
	if s.Rank != nil {
		rank = s.Rank(set)
	}
	if s.best == nil || rank.Compare(&s.bestRank) < 0 {
		s.best, s.bestRank = slices.Clone(set), rank
	}
}

// greedy adds the position that brings the need closest until it is reached.
func (c *Cover) greedy() []int {
	left := slices.Clone(c.Need)
	var set []int
	for slices.ContainsFunc(left, func(n int64) bool { return n > 0 }) {
		best, bestGain := -1, 0.0
		for pos := range c.Has {
			gain := 0.0
			for r, need := range left {
				if need > 0 {
					gain += float64(min(need, c.Has[pos][r])) / float64(need)
				}
			}
			if gain > bestGain && !slices.Contains(set, pos) {
				best, bestGain = pos, gain
			}
		}
		if best < 0 {
			return nil
		}
		set = append(set, best)
		for r := range left {
			left[r] -= c.Has[best][r]
		}
	}
	slices.Sort(set)
	return set
}
