package vmtest

import "time"

// rdtsc reads the processor's time-stamp counter.
func rdtsc() uint64

// tscKHz measures the frequency of the host's time-stamp counter, in kHz.
func tscKHz() int {
	const window = 20 * time.Millisecond
	began := time.Now()
	at, ticks := readTSC(began)
	time.Sleep(window)
	at2, ticks2 := readTSC(began)
	return int(float64(ticks2-ticks) / (at2 - at).Seconds() / 1000)
}

// readTSC reads the time since epoch and the counter at once: of several readings
// the one that took the shortest, and so was not interrupted.
func readTSC(epoch time.Time) (at time.Duration, ticks uint64) {
	const tries = 100
	least := time.Duration(1<<63 - 1)
	for range tries {
		before := time.Since(epoch)
		now := rdtsc()
		if took := time.Since(epoch) - before; took < least {
			least, at, ticks = took, before, now
		}
	}
	return at, ticks
}
