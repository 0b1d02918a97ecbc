package api

import (
	"sync"
	"time"
)

// Freshness is for how long what the agent tells is told again without asking it.
const Freshness = time.Second

// Recent is a value that is made anew at most once in Freshness, however often it is
// asked for: so that any number of readers costs the agent as much as one. Its zero value
// is ready for use; Get may be called concurrently.
type Recent[T any] struct {
	mu    sync.Mutex
	made  time.Time
	value T
	err   error
}

// Get returns the value and the error that the last call of renew returned, or calls it.
func (r *Recent[T]) Get(renew func() (T, error)) (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made.IsZero() || time.Since(r.made) >= Freshness {
		r.value, r.err = renew()
		r.made = time.Now()
	}
	return r.value, r.err
}
