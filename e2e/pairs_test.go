package e2e

import (
	"slices"
	"testing"

	"berth.dev/berth/internal/vmtest"
)

// TestPairs checks that every machine meets every kernel once, three of them only the
// kernel that runs what takes long.
func TestPairs(t *testing.T) {
	t.Parallel()
	kernels := []vmtest.Kernel{{Name: "6.1"}, {Name: thorough}, {Name: "7.3"}}
	guests := map[[2]string]int{}
	for _, p := range pairs(&vmtest.Kit{Kernels: kernels}) {
		guests[[2]string{p.kernel.Name, p.machine.Name}]++
	}
	for _, kernel := range kernels {
		for _, m := range machines() {
			want := 1
			if slices.Contains([]string{"128cpus", "l3-memory-only", "uneven"}, m.Name) && kernel.Name != thorough {
				want = 0
			}
			if got := guests[[2]string{kernel.Name, m.Name}]; got != want {
				t.Errorf("kernel %s, machine %s: %d guests, want %d", kernel.Name, m.Name, got, want)
			}
		}
	}
}
