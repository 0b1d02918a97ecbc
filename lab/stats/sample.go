package stats

import (
	"fmt"
	"math"
	"strings"

	"gonum.org/v1/gonum/stat/distuv"
)

// Supported says whether the sample is large enough for the p-th percentile
// (0-100), and if not, what would make it so, as a clause ("needs 4 more
// rounds").
//
// Below p99.9 the pooled sample must be large enough for a distribution-free
// 95 % interval to exist: 6 requests for p50, 72 for p95, 368 for p99. From
// p99.9 on that is not enough, because what makes such a tail is rare: every
// round must have 10 requests beyond the quantile (10,000 for p99.9) and all
// together 100 (100,000). The maximum (100) is not a quantile of anything.
func Supported(rounds []Round, p float64) (ok bool, reason string) {
	if !(p > 0 && p < 100) {
		return false, fmt.Sprintf("p%g cannot be estimated from any sample", p)
	}
	each, pooled := required(p)
	total, shortest, seconds := int64(0), int64(math.MaxInt64), 0
	for _, r := range rounds {
		n := r.Requests()
		total += n
		shortest = min(shortest, n)
		seconds += len(r.Seconds)
	}
	if total == 0 {
		return false, "no requests"
	}
	var needs []string
	perSecond := float64(total) / float64(seconds)
	if shortest < each {
		needs = append(needs, fmt.Sprintf("rounds of %.0f s or more (%d requests each; the smallest has %d)",
			math.Ceil(float64(each)/perSecond), each, shortest))
	}
	if total < pooled {
		if len(needs) == 0 {
			more := math.Ceil(float64(pooled-total) / (float64(total) / float64(len(rounds))))
			needs = append(needs, fmt.Sprintf("%.0f more %s", more, plural(more, "round")))
		} else {
			needs = append(needs, fmt.Sprintf("%d requests in all, not %d", pooled, total))
		}
	}
	if len(needs) == 0 {
		return true, ""
	}
	return false, "needs " + strings.Join(needs, " and ")
}

// Pooled is the percentile (0-100) of all requests of rounds together; 0 if they are too few for it.
func Pooled(rounds []Round, p float64) float64 {
	if ok, _ := Supported(rounds, p); !ok {
		return 0
	}
	var all []Distribution
	for _, r := range rounds {
		all = append(all, r.Seconds...)
	}
	v, _ := Merge(all...).Quantile(p)
	return v
}

// required is how many requests the p-th percentile needs of each round and of
// all rounds together.
func required(p float64) (each, pooled int64) {
	tail := (100 - p) / 100
	if p >= 99.9 {
		// The tenth of a request undoes rounding: (100-99.9)/100 is not 0.001.
		return int64(math.Ceil(10/tail - 0.1)), int64(math.Ceil(100/tail - 0.1))
	}
	// The chance that all n requests lie on one side of the quantile is to be
	// at most 2.5 %.
	return 1, int64(math.Ceil(math.Log(0.025) / math.Log(max(p/100, tail))))
}

// AtLeast says whether the p-th percentile (0-100) is only a lower bound,
// because more than a share of 1 - p of the requests offered are censored:
// failed or unfinished, and recorded with the time they had waited by then.
// Where fewer are, the percentile is still no larger than the truth, which lies
// between it and the percentile that is higher by the censored share.
func AtLeast(censored, offered int, p float64) bool {
	return offered > 0 && float64(censored)/float64(offered) > (100-p)/100
}

// Share is the interval of Clopper and Pearson (1934) of a share seen k times in n.
func Share(k, n int, confidence float64) (low, high float64) {
	low, high = 0, 1
	if k > 0 {
		low = distuv.Beta{Alpha: float64(k), Beta: float64(n - k + 1)}.Quantile((1 - confidence) / 2)
	}
	if k < n {
		high = distuv.Beta{Alpha: float64(k + 1), Beta: float64(n - k)}.Quantile((1 + confidence) / 2)
	}
	return low, high
}

func plural(n float64, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
