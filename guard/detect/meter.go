package detect

import (
	"math"
	"slices"

	"berth.dev/berth/watch"
)

const (
	samples  = 12  // kept by quantity
	covered  = 0.5 // of a window must be known
	maxParts = 512 // meters of parts and antagonists of one subject

	maxAntagonists = 128 // of them, those of antagonists
)

// meter is the history of one quantity.
type meter struct {
	quantity watch.Quantity
	part     watch.Part
	by       string
	series   watch.Series
	// usual is the level while nobody suffered.
	usual Mean
	// pending are the levels of the last windows, which are not usual yet.
	pending []float64
}

// meters are the histories of one subject.
type meters struct {
	whole       [256]int16 // by quantity: its place in all, plus one
	all         []meter
	antagonists int  // in all
	new         bool // the subject started after a time in which nobody suffered
	// refused is when there was last no room for a antagonist; 0 is never.
	refused watch.Time
}

func (m *meters) add(s *watch.Sample, by string) {
	at := m.find(s.Quantity, s.Subject.Part, by)
	if at == nil {
		if at = m.make(s, by); at == nil {
			return
		}
	}
	// A late or repeated sample is refused.
	_ = at.series.Add(s.Time, s.Value)
}

func (m *meters) find(q watch.Quantity, part watch.Part, by string) *meter {
	if part == (watch.Part{}) && by == "" {
		if i := m.whole[q]; i > 0 {
			return &m.all[i-1]
		}
		return nil
	}
	for i := range m.all {
		if at := &m.all[i]; at.quantity == q && at.part == part && at.by == by {
			return at
		}
	}
	return nil
}

// make adds a meter; the antagonists of long ago give way to new ones. Where there is no
// room, only the whole includes the cost of an antagonist.
func (m *meters) make(s *watch.Sample, by string) *meter {
	made := meter{quantity: s.Quantity, part: s.Subject.Part, by: by, series: *watch.NewSeries(s.Quantity, samples)}
	if _, ok := queuePart(&made, ""); m.new && !ok {
		made.usual.N = enough // of nothing
	}
	at := len(m.all)
	if at >= maxParts || by != "" && m.antagonists >= maxAntagonists {
		at = slices.IndexFunc(m.all, func(old meter) bool {
			_, age, ok := old.series.Last(s.Time)
			return old.by != "" && ok && age > samples*watch.Second
		})
		if at < 0 {
			if by != "" {
				m.refused = s.Time
			}
			return nil
		}
		m.antagonists--
		m.all[at] = made
	} else {
		m.all = append(m.all, made)
	}
	if by != "" {
		m.antagonists++
	}
	if made.part == (watch.Part{}) && by == "" {
		m.whole[s.Quantity] = int16(at + 1)
	}
	return &m.all[at]
}

// level is the mean level of a whole quantity in a window; NaN where it is
// missing.
func (m *meters) level(q watch.Quantity, from, to watch.Time) float64 {
	i := m.whole[q]
	if i == 0 {
		return math.NaN()
	}
	return m.all[i-1].level(from, to)
}

// rate is the level of a whole quantity between its last two samples; NaN where one is
// missing.
func (m *meters) rate(q watch.Quantity) float64 {
	at := m.find(q, watch.Part{}, "")
	if at == nil {
		return math.NaN()
	}
	if v, ok := at.series.Level(); ok {
		return v
	}
	return math.NaN()
}

func (m *meter) level(from, to watch.Time) float64 {
	v, known := m.series.Mean(from, to)
	if known < covered {
		return math.NaN()
	}
	return v
}

// lately is the level in the window or, where that is missing, over the last ten; fresh says
// which.
func (m *meter) lately(from, to watch.Time) (v float64, fresh bool) {
	return m.latelySince(from, to, 0)
}

// latelySince is lately without what was before an instant.
func (m *meter) latelySince(from, to, since watch.Time) (v float64, fresh bool) {
	if v := m.level(from, to); !math.IsNaN(v) {
		return v, true
	}
	v, known := m.series.Mean(max(to-10*(to-from), since), to)
	if known == 0 {
		return math.NaN(), false
	}
	return v, false
}

// heldWindows is for how many windows what a group has of a cache is held: CPUs count fewer groups
// at a time than there may be, and the others have turns (resctrl.Turn), of five windows each.
const heldWindows = 40

// held is the level of what is told in turns: where it is missing in the window, its last value,
// unless that is too old, or not of after an instant.
func (m *meter) held(from, to, since watch.Time) (v float64, fresh bool) {
	if v := m.level(from, to); !math.IsNaN(v) {
		return v, true
	}
	if last, age, ok := m.series.Last(to); ok && age <= heldWindows*(to-from) && to-age > since {
		return last, false
	}
	return math.NaN(), false
}

// updateUsual takes the window into what is usual of a quantity by whose growth
// suspects are found, so many windows later: who grows is often felt only when
// there is nothing left.
func (m *meters) updateUsual(q watch.Quantity, from, to watch.Time, later int) {
	for i := range m.all {
		at := &m.all[i]
		if at.quantity != q {
			continue
		}
		if v := at.level(from, to); !math.IsNaN(v) {
			at.updateUsual(v, later)
		}
	}
}

// updateUsual takes in a level. The first are usual at once, as there is nothing yet to
// tell growth by.
func (m *meter) updateUsual(v float64, later int) {
	if m.usual.N >= enoughValues {
		m.pending = append(m.pending, v)
		if len(m.pending) <= later {
			return
		}
		v = m.pending[0]
		m.pending = slices.Delete(m.pending, 0, 1)
	}
	m.usual.add(v)
}

// discard forgets the levels of a quantity that are not usual yet: somebody suffers,
// perhaps from them.
func (m *meters) discard(q watch.Quantity) {
	for i := range m.all {
		if at := &m.all[i]; at.quantity == q {
			at.pending = at.pending[:0]
		}
	}
}

// growth is by how much a level is above what is usual; 0 if that is within three
// standard deviations, or not known.
func (m *meter) growth(level float64) float64 {
	if m.usual.N < enoughValues || level < m.usual.Mean+3*math.Sqrt(m.usual.Variance) {
		return 0
	}
	return level - m.usual.Mean
}

// sum adds up the levels of all parts of a kind; NaN if one is missing, or all.
func (m *meters) sum(q watch.Quantity, kind watch.PartKind, from, to watch.Time) float64 {
	sum := math.NaN()
	for i := range m.all {
		at := &m.all[i]
		if at.quantity != q || at.part.Kind != kind || at.by != "" {
			continue
		}
		v := at.level(from, to)
		if math.IsNaN(v) {
			return v
		}
		if math.IsNaN(sum) {
			sum = 0
		}
		sum += v
	}
	return sum
}
