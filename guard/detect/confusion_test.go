package detect_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

var update = flag.Bool("update", false, "write the golden files")

func newDetector(t testing.TB) *detect.Detector {
	t.Helper()
	d, err := detect.New(detect.Config{Machine: simMachine(), PeakBandwidth: simPeak})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range simWorkloads() {
		d.Track(w)
	}
	return d
}

func run(d *detect.Detector, batches [][]watch.Sample, ends []watch.Time) [][]detect.Finding {
	findings := make([][]detect.Finding, len(ends))
	for i, batch := range batches {
		d.Observe(batch)
		findings[i] = d.Judge(ends[i])
	}
	return findings
}

// answer is what a run came to: the resource of the first finding that comes up
// most often, and its suspect.
func answer(findings [][]detect.Finding) (string, string) {
	count := map[[2]string]int{}
	var best [2]string
	for _, now := range findings {
		if len(now) == 0 {
			continue
		}
		key := [2]string{now[0].Resource.String(), now[0].Suspect}
		if count[key]++; count[key] > count[best] {
			best = key
		}
	}
	if best[0] == "" {
		best[0] = "none"
	}
	return best[0], best[1]
}

func TestConfusion(t *testing.T) {
	t.Parallel()
	runs := 200
	if testing.Short() {
		runs = 20
	}
	var table strings.Builder
	for _, label := range troubles() {
		want := label.resource.String()
		if label.none {
			want = "none"
		}
		right, accused := 0, 0
		wrong := map[string]int{}
		for seed := range runs {
			batches, ends := simulate(label, uint64(seed))
			findings := run(newDetector(t), batches, ends)
			resource, suspect := answer(findings)
			if resource == want && suspect == label.suspect {
				right++
			} else {
				wrong[resource+" "+suspect]++
			}
			for _, now := range findings {
				for _, f := range now {
					if f.Suspect != "" && f.Suspect != label.suspect {
						accused++
					}
				}
			}
		}
		fmt.Fprintf(&table, "%-20s %-17s %5.1f %% right, %d wrong accusations %v\n", label.name, want, 100*float64(right)/float64(runs), accused, wrong)
		if float64(right) < 0.95*float64(runs) {
			t.Errorf("%s: %d of %d right, the others: %v", label.name, right, runs, wrong)
		}
		if accused > 0 {
			t.Errorf("%s: %d findings accuse the innocent", label.name, accused)
		}
	}
	t.Log("\n" + table.String())
	_ = os.Stdout
}
