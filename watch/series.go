package watch

import (
	"errors"
	"iter"
	"math"
)

// ErrOrder says that a sample is not later than the one before.
var ErrOrder = errors.New("not later than the last sample")

// Series is the bounded history of one quantity of one subject.
//
// Between two samples lies an interval with one level: for a counter its
// increase per second; for a gauge the later value. An interval that ends in a
// missing sample, follows one, or in which a counter went back (its subject was
// made anew) has no level. Nothing is made up for it: it counts as not covered.
type Series struct {
	points     []point // a ring: the oldest is at next once it is full
	next, size int32
	counter    bool
}

type point struct {
	at    Time
	value float64 // NaN: missing
}

// NewSeries returns a series of a quantity that keeps the last size samples, 2
// at least.
func NewSeries(q Quantity, size int) *Series {
	return &Series{counter: q.Counter(), size: int32(max(size, 2))}
}

// Add appends a sample. One that is not later than the last is refused with
// ErrOrder. A value that is not finite counts as missing: there should have been one.
func (s *Series) Add(at Time, value float64) error {
	if math.IsInf(value, 0) {
		value = math.NaN()
	}
	if n := len(s.points); n > 0 && at <= s.point(n-1).at {
		return ErrOrder // as it is: a caller that reads a quantity twice at once gets it each time
	}
	p := point{at, value}
	if len(s.points) < int(s.size) {
		s.points = append(s.points, p)
		return nil
	}
	s.points[s.next] = p
	s.next = (s.next + 1) % s.size
	return nil
}

// point returns the i-th oldest.
func (s *Series) point(i int) point { return s.points[(int(s.next)+i)%len(s.points)] }

// Last returns the latest value that is not missing and how old it is at now;
// false without one. A reader of levels calls a series stale when age
// exceeds its sampling interval by too much.
func (s *Series) Last(now Time) (value float64, age Time, ok bool) {
	for i := len(s.points) - 1; i >= 0; i-- {
		if p := s.point(i); !math.IsNaN(p.value) {
			return p.value, now - p.at, true
		}
	}
	return 0, 0, false
}

// Level returns the level of the last interval; false if it has none.
func (s *Series) Level() (level float64, ok bool) {
	if n := len(s.points); n > 1 {
		return s.level(s.point(n-2), s.point(n-1))
	}
	return 0, false
}

// level is that of the interval between two samples.
func (s *Series) level(a, b point) (level float64, ok bool) {
	switch {
	case math.IsNaN(a.value) || math.IsNaN(b.value):
		return 0, false
	case !s.counter:
		return b.value, true
	case b.value < a.value:
		return 0, false
	}
	return (b.value - a.value) / (b.at - a.at).Seconds(), true
}

// levels yields each level between from and to with the seconds for which it
// held there.
func (s *Series) levels(from, to Time) iter.Seq2[float64, float64] {
	return func(yield func(level, seconds float64) bool) {
		first := len(s.points) - 1 // of those that end after from
		for first > 1 && s.point(first-1).at > from {
			first--
		}
		for i := max(first, 1); i < len(s.points); i++ {
			a, b := s.point(i-1), s.point(i)
			overlap := (min(b.at, to) - max(a.at, from)).Seconds()
			level, ok := s.level(a, b)
			if overlap <= 0 || !ok {
				continue
			}
			if !yield(level, overlap) {
				return
			}
		}
	}
}

// Mean returns the mean level between from and to, weighted by time: for a
// counter its increase per second, for a gauge its mean value. Covered is the
// share of that time, 0 to 1, about which the series knows; where it is 0 there
// is no mean, and 0 is returned.
func (s *Series) Mean(from, to Time) (mean, covered float64) {
	var sum, seconds float64
	for level, held := range s.levels(from, to) {
		sum += level * held
		seconds += held
	}
	if seconds == 0 {
		return 0, 0
	}
	return sum / seconds, seconds / (to - from).Seconds()
}
