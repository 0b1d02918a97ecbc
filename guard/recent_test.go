package guard

import (
	"testing"

	"berth.dev/berth/watch"
)

// What a group uses of late is known once two windows have read it, is that of 200 ms, and is forgotten when it is
// read no more.
func TestRecent(t *testing.T) {
	t.Parallel()
	r, batch := recent{}, watch.Subject{Scope: watch.Group, Name: "batch"}
	const window = watch.Time(FastWindow)
	read := func(now watch.Time, used float64, more ...watch.Sample) {
		r.observe(append(more, watch.Sample{Time: now, Subject: batch, Quantity: watch.CPUTime, Value: used}))
	}
	about := func(got *float64, want float64) {
		t.Helper()
		if got == nil || *got < want-1e-9 || *got > want+1e-9 {
			t.Errorf("%v, want %v", got, want)
		}
	}
	for i, used := range []float64{5, 5.04} {
		now := watch.Second + watch.Time(i)*window
		read(now, used)
		if got := r.use("batch", now); got != nil {
			t.Errorf("known after %d windows: %v", i, *got)
		}
	}
	now := watch.Second + 2*window
	of := batch
	of.Part = watch.Part{Kind: watch.CPU}
	read(now, 5.08, watch.Sample{Time: now, Subject: of, Quantity: watch.CPUTime, Value: 99},
		watch.Sample{Time: now, Subject: watch.Subject{}, Quantity: watch.CPUTime, Value: 99},
		watch.Sample{Time: now, Subject: batch, Quantity: watch.CPUWait, Value: 99})
	about(r.use("batch", now), 1)
	for range 5 { // it pauses
		now += window
		read(now, 5.08)
	}
	about(r.use("batch", now), 0)
	read(now+window, 5.12)
	about(r.use("batch", now+window), 0.2)
	read(now+2*window, 1) // made anew
	read(now+3*window, 1.04)
	about(r.use("batch", now+3*window), 0.5) // by two of the four windows that tell
	if got := r.use("mail", now); got != nil {
		t.Errorf("of a group that was not read: %v", *got)
	}
	r.observe([]watch.Sample{{Time: now + 9*window, Quantity: watch.CPUTime}})
	if len(r) != 0 {
		t.Errorf("%v is kept of groups that are read no more", r)
	}
}
