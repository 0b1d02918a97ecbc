package watch

import "math"

// Levels are the quantities of one subject by its last two ticks. Its zero value has
// none.
type Levels struct {
	values map[Quantity]float64
	series map[Quantity]*Series
}

// Tick takes in the values of an instant, which it keeps. A quantity that is not among
// them is missing.
func (l *Levels) Tick(at Time, values map[Quantity]float64) {
	if l.series == nil {
		l.series = map[Quantity]*Series{}
	}
	l.values = values
	for q := range values {
		if l.series[q] == nil {
			l.series[q] = NewSeries(q, 2)
		}
	}
	for q, s := range l.series {
		v, told := values[q]
		if !told {
			v = math.NaN()
		}
		_ = s.Add(at, v) // an instant that is not later than the last changes nothing
	}
}

// Value returns the value of the last tick; false if it is missing.
func (l *Levels) Value(q Quantity) (float64, bool) {
	v, ok := l.values[q]
	return v, ok
}

// Level returns the level between the last two ticks (Series); false without one.
func (l *Levels) Level(q Quantity) (float64, bool) {
	if s := l.series[q]; s != nil {
		return s.Level()
	}
	return 0, false
}
