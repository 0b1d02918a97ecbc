package desired

// Instant is a time in nanoseconds, of any clock that does not go back; a difference of
// two is a span.
type Instant = int64

// Rule says when a value that somebody else keeps changing is theirs. Each time that
// Berth's value is found changed counts; within the Window, Limit times it is put back,
// and the next time it is yielded: left as it is until it is forgotten.
type Rule struct {
	Limit  int
	Window Instant
}

// Drift counts how often somebody else has changed a file, or a setting of a group: a K.
// The zero value has counted nothing.
type Drift[K comparable] struct {
	Rule
	found   map[K][]Instant
	yielded map[K]bool
}

// Found counts that somebody else has changed k. It returns how often that was within the
// window, and whether k is theirs.
func (d *Drift[K]) Found(k K, now Instant) (count int, yielded bool) {
	if d.found == nil {
		d.found, d.yielded = map[K][]Instant{}, map[K]bool{}
	}
	recent := d.found[k][:0]
	for _, at := range d.found[k] {
		if now-at <= d.Window {
			recent = append(recent, at)
		}
	}
	d.found[k] = append(recent, now)
	count = len(d.found[k])
	if count > d.Limit {
		d.yielded[k] = true
	}
	return count, d.yielded[k]
}

// Yielded reports whether k is somebody else's.
func (d *Drift[K]) Yielded(k K) bool { return d.yielded[k] }

// AllYielded calls f with each K that is somebody else's, in no order, until f is false.
func (d *Drift[K]) AllYielded(f func(K) bool) {
	for k := range d.yielded {
		if !f(k) {
			return
		}
	}
}

// Forget starts the count of k anew.
func (d *Drift[K]) Forget(k K) {
	delete(d.found, k)
	delete(d.yielded, k)
}

// Retry says when a change that was refused is tried again: after First, and after twice
// as long each time, up to Last. The zero value but for these two has nothing to try.
type Retry struct {
	First, Last Instant
	wait, at    Instant
	failing     bool
}

// Failed notes that the change was refused.
func (r *Retry) Failed(now Instant) {
	r.wait = min(max(2*r.wait, r.First), r.Last)
	r.failing, r.at = true, now+r.wait
}

// Done notes that the change was made.
func (r *Retry) Done() { r.failing, r.wait, r.at = false, 0, 0 }

// Failing reports whether the last try was refused, and Due whether it is time for another.
func (r *Retry) Failing() bool        { return r.failing }
func (r *Retry) Due(now Instant) bool { return r.failing && now >= r.at }
