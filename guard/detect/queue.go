package detect

import (
	"iter"
	"math"

	"berth.dev/berth/watch"
)

// measureQueue splits what the workload waits for a CPU, if the parts of its wait make
// up the whole: what one antagonist lacks must not be the others' guilt. The parts of itself
// and of others are of what is beyond the usual for its CPU use, and 0 where it waits
// hardly more than that, whoever has the CPU now that was another's before.
func (w *workload) measureQueue() {
	w.value[RunQueueP99] = w.level(watch.QueueP99, w.from, w.to)
	w.queued = queued{whole: w.level(watch.Queued, w.from, w.to)}
	q := &w.queued
	use := w.value[CPUUse]
	var level, grown [signals]float64
	sum, net, more := 0.0, 0.0, 0.0
	for at, part := range w.queue() {
		v := at.level(w.from, w.to)
		if !(v >= 0) {
			continue
		}
		beyond := w.beyond(at, v)
		sum += v
		net += v - w.usually(at)
		more += beyond
		level[part] += v
		grown[part] += beyond
		if at.quantity == watch.QueuedBy && part == ForeignQueued && at.by != Outside {
			q.byGroups += beyond
		}
	}
	if rest := q.whole - sum; rest > 0 && w.refused != 0 && w.refused > w.from {
		sum += rest // behind antagonists for which there was no room
		net += rest
		more += rest
		q.byGroups += rest
		level[ForeignQueued] += rest
		grown[ForeignQueued] += rest
	}
	if math.IsNaN(use) || math.IsNaN(q.whole) || sum < 0.9*q.whole {
		return
	}
	q.foreign, q.grown, q.net = level[ForeignQueued], more, max(net, 0)
	w.value[Imposed] = 0
	if q.net >= leastWait {
		w.value[Imposed] = w.imposed(grown[ForeignQueued])
	}
	if q.whole < leastWait {
		return
	}
	w.value[IdleQueued], w.value[ThrottledQueued] = level[IdleQueued]/sum, level[ThrottledQueued]/sum
	w.value[SelfQueued], w.value[ForeignQueued] = 0, 0
	if q.net >= max(leastWait, leastGrowth*q.whole) {
		w.value[SelfQueued], w.value[ForeignQueued] = grown[SelfQueued]/more, grown[ForeignQueued]/more
	}
}

// imposed is a part of the wait beyond the usual as a share of run delay and run time.
func (w *workload) imposed(beyond float64) float64 {
	return min(beyond, w.queued.net) / (w.queued.whole + w.value[CPUUse])
}

// queued is the wait for a CPU in one window, as the run-queue probe tells, in threads.
type queued struct {
	whole    float64
	foreign  float64 // behind others
	grown    float64 // the parts that are beyond the usual
	byGroups float64 // of that, behind other groups
	net      float64 // the whole beyond the usual
}

// queuePart says to which part of a group's wait a meter belongs.
func queuePart(at *meter, group string) (Signal, bool) {
	switch at.quantity {
	case watch.QueuedBy:
		if at.by == group {
			return SelfQueued, true
		}
		return ForeignQueued, true
	case watch.QueuedKernel:
		return ForeignQueued, true
	case watch.QueuedIdle:
		return IdleQueued, true
	case watch.QueuedThrottled:
		return ThrottledQueued, true
	}
	return 0, false
}

// queue yields the meters of the parts of the workload's wait.
func (w *workload) queue() iter.Seq2[*meter, Signal] {
	return func(yield func(*meter, Signal) bool) {
		for i := range w.all {
			if part, ok := queuePart(&w.all[i], w.Group); ok && !yield(&w.all[i], part) {
				return
			}
		}
	}
}

// usually is the level of waiting that is usual for the CPU use of the window, given
// what is usual for the usual use; 0 where that is not known.
func (w *workload) usually(at *meter) float64 {
	if at.usual.N < enoughValues || !(w.usualUse.Mean > 0) {
		return 0
	}
	return at.usual.Mean * w.value[CPUUse] / w.usualUse.Mean
}

// beyond is by how much a level of waiting is above the usual.
func (w *workload) beyond(at *meter, level float64) float64 { return max(level-w.usually(at), 0) }

// asUsual says whether a level of waiting is within three standard deviations of the
// usual.
func (w *workload) asUsual(at *meter, level float64) bool {
	if usual := w.usually(at); usual > 0 {
		return level < usual+3*math.Sqrt(at.usual.Variance)*usual/at.usual.Mean
	}
	return false
}

// updateUsualQueue takes the window into the baseline of each part of the run delay.
func (w *workload) updateUsualQueue() {
	use := w.value[CPUUse]
	if math.IsNaN(use) || math.IsNaN(w.value[Imposed]) {
		return
	}
	w.usualUse.add(w.usualUse.clip(use))
	for at := range w.queue() {
		if v := at.level(w.from, w.to); !math.IsNaN(v) {
			if most := at.usual.Mean + max(3*math.Sqrt(at.usual.Variance), leastWait); at.usual.learnt() {
				v = min(v, most)
			}
			at.usual.add(v)
		}
	}
}

// forgetQueue has the usual parts of the wait learnt anew.
func (w *workload) forgetQueue() {
	w.usualUse = Mean{}
	for at := range w.queue() {
		at.usual = Mean{}
	}
}
