package stats_test

import (
	"fmt"

	"berth.dev/berth/lab/stats"
)

// steadily is a round of one second with the latencies from, from+1, ... µs.
func steadily(from, n int64) stats.Round {
	h := stats.NewHistogram()
	for i := range n {
		if err := h.RecordValue(from + i); err != nil {
			panic(err)
		}
	}
	text, err := stats.Encode(h)
	if err != nil {
		panic(err)
	}
	second, err := stats.Decode(text)
	if err != nil {
		panic(err)
	}
	return stats.Round{Seconds: []stats.Distribution{second}}
}

func Example() {
	var baseline, again, noisy []stats.Round
	for block := range int64(6) {
		baseline = append(baseline, steadily(200+block, 1000))
		again = append(again, steadily(202+block%3, 1000))
		noisy = append(noisy, steadily(800+90*block, 1000))
	}
	p99 := stats.Quantiles(noisy, []float64{99}, stats.Options{})[0]
	floor := stats.Ratio(baseline, again, 99, stats.Options{})
	ratio := stats.Ratio(baseline, noisy, 99, stats.Options{})
	judged := stats.Judge(ratio, &floor, 5)
	fmt.Printf("p99 %.0f µs (%.0f to %.0f)\n", p99.Estimate, p99.Low, p99.High)
	fmt.Printf("%.2f × baseline (%.2f to %.2f): %s\n", ratio.Estimate, ratio.Low, ratio.High, judged.Verdict)
	fmt.Println(judged.Why)
	// Output:
	// p99 2189 µs (1919 to 2235)
	// 1.84 × baseline (1.69 to 1.99): worse
	// 1.69 times the baseline at least; the baseline against itself is 1.00 (1.00 to 1.00)
}
