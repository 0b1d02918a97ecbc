package replay_test

import (
	"fmt"
	"strings"
	"testing"

	"berth.dev/berth/machine"
	"berth.dev/berth/replay"
)

// BenchmarkRun replays many workloads, most of which share CPUs, with all that a report says.
func BenchmarkRun(b *testing.B) {
	var t strings.Builder
	t.WriteString("machine: 2s2n16c2t\npolicy: berth\nsteps:\n")
	for i := range 20_000 {
		fmt.Fprintf(&t, "- {place: p%d, class: %s, cpus: %s}\n", i, []string{"LS", "LSR", "BE"}[i%3], []string{"100m", "1", "200m"}[i%3])
	}
	s, err := replay.Parse(t.String(), replay.Loader{Machine: machine.Short})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for range b.N {
		if _, err := s.Run("berth"); err != nil {
			b.Fatal(err)
		}
	}
}
