package stats

import (
	"math"
	"math/bits"
	"math/rand/v2"
)

// queue is the simulated tenant of reference runs: Poisson arrivals at one
// server that now and then stalls altogether, and rounds that differ a little
// from one another.
type queue struct {
	rate       float64 // requests per second
	service    float64 // mean service time, µs (exponential)
	stalls     float64 // per second
	stall      float64 // mean length, µs (exponential)
	roundShift float64 // standard deviation of the log of a round's speed
	spread     float64 // >0: lognormal service with this log-sd instead of exponential
}

// round simulates one round of the given number of seconds, every latency
// multiplied by scale.
func (q queue) round(r *rand.Rand, c *recorder, seconds int, scale float64) Round {
	const settle = 200_000 // µs, not recorded
	speed := math.Exp(q.roundShift * r.NormFloat64())
	round := Round{Seconds: make([]Distribution, 0, seconds)}
	gap := 1e6 / q.rate
	end := settle + float64(seconds)*1e6
	var free float64
	stallAt, stallLen := r.ExpFloat64()*1e6/q.stalls, r.ExpFloat64()*q.stall
	for due := r.ExpFloat64() * gap; due < end; due += r.ExpFloat64() * gap {
		start := max(due, free)
		var work float64
		if q.spread > 0 {
			work = q.service * speed * math.Exp(q.spread*r.NormFloat64()-q.spread*q.spread/2)
		} else {
			work = r.ExpFloat64() * q.service * speed
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
		c.add((done - due) * scale)
	}
	for len(round.Seconds) < seconds {
		round.Seconds = append(round.Seconds, c.take())
	}
	return round
}

// recorder counts latencies in the buckets of NewHistogram, as an array that is
// used again for every second: what Compact would give, in a tenth of the time
// (TestRecorder).
type recorder struct {
	counts [17408]int64
	top    int // one past the highest index in use
}

func (c *recorder) add(us float64) {
	v := int(min(us, highest))
	shift := max(0, bits.Len(uint(v))-11)
	i := shift<<10 + v>>shift
	c.counts[i]++
	c.top = max(c.top, i+1)
}

// take returns what was recorded, and empties the recorder.
func (c *recorder) take() Distribution {
	var d Distribution
	for i, n := range c.counts[:c.top] {
		if n == 0 {
			continue
		}
		shift := max(0, i>>10-1)
		v := int64(i - shift<<10)
		d.buckets = append(d.buckets, bucket{value: (v+1)<<shift - 1, count: n})
		d.total += n
		c.counts[i] = 0
	}
	c.top = 0
	return d
}
