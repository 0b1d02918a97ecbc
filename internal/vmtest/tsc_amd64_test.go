package vmtest

import (
	"testing"
	"time"
)

// TestTSC measures the counter from outside: however long this process is
// interrupted, the frequency is between the two that it then finds.
func TestTSC(t *testing.T) {
	t.Parallel()
	const tolerance = 0.01
	before := time.Now()
	ticks := rdtsc()
	after := time.Now()
	got := float64(tscKHz())
	before2 := time.Now()
	ticks2 := rdtsc()
	after2 := time.Now()
	kHz := float64(ticks2-ticks) / 1000
	lowest, highest := kHz/after2.Sub(before).Seconds(), kHz/before2.Sub(after).Seconds()
	if got < lowest*(1-tolerance) || got > highest*(1+tolerance) {
		t.Errorf("%.0f kHz, want %.0f to %.0f", got, lowest, highest)
	}
}
