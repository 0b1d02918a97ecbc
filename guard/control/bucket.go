package control

import "time"

// bucket is a token bucket: it bounds how often something is done.
type bucket struct {
	tokens, size float64
	perSecond    float64
	at           time.Time
}

func newBucket(perMinute, size int, now time.Time) bucket {
	return bucket{tokens: float64(size), size: float64(size), perSecond: float64(perMinute) / 60, at: now}
}

// take takes a token; false without one.
func (b *bucket) take(now time.Time) bool {
	b.tokens = min(b.tokens+b.perSecond*max(now.Sub(b.at).Seconds(), 0), b.size)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
