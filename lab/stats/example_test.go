package stats_test

import (
	"fmt"

	"berth.dev/berth/lab/stats"
)

func Example() {
	// The p99 of 25 blocks in ms: of a scenario, of the baseline, and of the baseline again.
	var blocks [][]float64
	for i := range 25 {
		drift := 1 + float64(i)/50
		blocks = append(blocks, []float64{drift * float64(15+i%5), drift * float64(9+i%3), drift * float64(9+(i+1)%4)})
	}
	judged := stats.Ratios(blocks).Judge(64)
	fmt.Printf("%.2f × (%.2f to %.2f): %s, %s\n", judged.Estimate, judged.Low, judged.High, judged.Verdict, judged.Why)
	// Output:
	// 1.66 × (1.59 to 1.75): worse, 1.59 times at least
}
