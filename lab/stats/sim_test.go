package stats

import (
	"math"
	"math/rand/v2"
)

// queue is the simulated tenant: Poisson arrivals at a single server that now
// and then stalls altogether, and rounds that differ a little from one another.
type queue struct {
	rate       float64 // requests per second
	service    float64 // mean service time, µs
	spread     float64 // of the log of service times (lognormal); 0: exponential
	stalls     float64 // per second, Poisson
	stall      float64 // mean length, µs, exponential
	roundShift float64 // standard deviation of the log of a round's service times
}

// round simulates one round of the given number of seconds, after settling.
func (q queue) round(r *rand.Rand, c *recorder, seconds int) Round {
	const settle = 200_000 // µs, not recorded
	speed := math.Exp(q.roundShift * r.NormFloat64())
	round := Round{Seconds: make([]Distribution, 0, seconds)}
	gap := 1e6 / q.rate
	end := settle + float64(seconds)*1e6
	var free float64
	stallAt, stallLen := r.ExpFloat64()*1e6/q.stalls, r.ExpFloat64()*q.stall
	for due := r.ExpFloat64() * gap; due < end; due += r.ExpFloat64() * gap {
		start := max(due, free)
		work := q.service * speed
		if q.spread > 0 {
			work *= math.Exp(q.spread*r.NormFloat64() - q.spread*q.spread/2)
		} else {
			work *= r.ExpFloat64()
		}
		done := start + work
		for stallAt < done {
			if until := stallAt + stallLen; stallAt <= start {
				start = max(start, until)
				done = start + work
			} else {
				done += stallLen
			}
			stallAt += r.ExpFloat64()*1e6/q.stalls + stallLen
			stallLen = r.ExpFloat64() * q.stall
		}
		free = done
		if due < settle {
			continue
		}
		for due >= settle+float64(len(round.Seconds)+1)*1e6 {
			round.Seconds = append(round.Seconds, c.take())
		}
		c.add(done-due, 1)
	}
	for len(round.Seconds) < seconds {
		round.Seconds = append(round.Seconds, c.take())
	}
	return round
}

// recorder counts latencies in an array that is used again for every second:
// what Compact gives, in a tenth of the time.
type recorder struct {
	counts [slots]int64
	top    int // one past the highest slot in use
}

func (c *recorder) add(us float64, n int64) {
	i := slot(int64(us))
	c.counts[i] += n
	c.top = max(c.top, i+1)
}

// take returns what was recorded, and empties the recorder.
func (c *recorder) take() Distribution {
	var d Distribution
	for i, n := range c.counts[:c.top] {
		if n > 0 {
			d.buckets = append(d.buckets, bucket{slot: i, count: n})
			d.total += n
			c.counts[i] = 0
		}
	}
	c.top = 0
	return d
}

// scaled is the round with every latency multiplied by factor.
func (c *recorder) scaled(round Round, factor float64) Round {
	out := Round{Seconds: make([]Distribution, len(round.Seconds))}
	for i, d := range round.Seconds {
		for _, b := range d.buckets {
			c.add(float64(valueOf(b.slot))*factor, b.count)
		}
		out.Seconds[i] = c.take()
	}
	return out
}
