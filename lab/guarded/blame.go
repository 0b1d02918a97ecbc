package guarded

import (
	"time"

	"berth.dev/berth/lab"
)

const (
	// blameEvery is how often the simple baseline looks, blameOver over how many looks before it
	// takes the mean that a rise is against.
	blameEvery = 200 * time.Millisecond
	blameOver  = 5
	// blameRise is from which rise on it blames, in CPUs.
	blameRise = 0.2
)

// blame is the simple baseline that the guard has to beat: it blames the group whose CPU use
// rose most, and looks at nothing else.
type blame struct {
	suspects []lab.Role
	at       time.Duration
	used     map[lab.Role]float64
	rates    map[lab.Role][]float64 // of the looks before, the latest last
}

// look takes in the CPU time that the suspects have used by an instant, in seconds. It says whose
// use rose most against the looks before, and whether by enough.
func (b *blame) look(at time.Duration, used map[lab.Role]float64) (guilty lab.Role, rise float64, ok bool) {
	if b.used == nil || at <= b.at {
		b.at, b.used, b.rates = at, used, map[lab.Role][]float64{}
		return "", 0, false
	}
	for _, role := range b.suspects {
		rate := (used[role] - b.used[role]) / (at - b.at).Seconds()
		before, mean := b.rates[role], 0.0
		for _, r := range before {
			mean += r / float64(len(before))
		}
		if len(before) == blameOver && rate-mean > rise {
			guilty, rise = role, rate-mean
		}
		if len(before) == blameOver {
			before = before[1:]
		}
		b.rates[role] = append(before, rate)
	}
	b.at, b.used = at, used
	return guilty, rise, rise >= blameRise
}
