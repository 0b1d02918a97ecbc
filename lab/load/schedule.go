package load

import (
	"math/rand/v2"
	"time"
)

// stream separates the schedule's random numbers from others of the same seed.
const stream = 0x6c6f6164 // "load"

// Schedule returns the instants at which requests are due, in nanoseconds after
// the origin, in order, all less than length: a Poisson process of the given
// mean rate per second. It depends on nothing but its arguments, and a longer
// schedule begins with the shorter one.
func Schedule(rate float64, seed uint64, length time.Duration) []int64 {
	random := rand.New(rand.NewPCG(seed, stream))
	mean := float64(time.Second) / rate
	due := make([]int64, 0, int(rate*length.Seconds()*1.05)+64)
	for t := int64(0); ; {
		// Each gap is rounded by itself, so the sum is exact on every machine.
		gap := float64(random.ExpFloat64() * mean)
		if gap >= float64(int64(length)-t) {
			return due
		}
		if t += int64(gap); t >= int64(length) {
			return due
		}
		due = append(due, t)
	}
}
