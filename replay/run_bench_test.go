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
	for _, n := range []int{5_000, 10_000, 20_000} {
		var t strings.Builder
		t.WriteString("machine: 2s2n16c2t\npolicy: berth\nsteps:\n")
		for i := range n {
			fmt.Fprintf(&t, "- {place: p%d, class: %s, cpus: %s}\n", i, []string{"LS", "LSR", "BE"}[i%3], []string{"100m", "1", "200m"}[i%3])
		}
		s, err := replay.Parse(t.String(), replay.Loader{Machine: machine.Short})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for range b.N {
				if _, err := s.Run("berth"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
