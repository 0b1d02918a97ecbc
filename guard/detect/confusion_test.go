package detect_test

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

var runs = flag.Int("runs", 1, "simulated runs per label")

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

// tally is what the runs of one label came to.
type tally struct {
	right, accused, first int // first is no figure where nothing is to be found
	answers               map[string]int
}

// tallyRuns simulates a label. First counts the windows from the onset to the
// first right finding, of the runs that are right.
func tallyRuns(t testing.TB, label trouble, noise float64) tally {
	sum := tally{answers: map[string]int{}}
	for seed := range *runs {
		batches, ends := simulate(label, uint64(seed), noise)
		findings := run(newDetector(t), batches, ends)
		resource, suspect := answer(findings)
		sum.answers[strings.TrimSpace(resource+" "+suspect)]++
		if resource == label.want() && suspect == label.suspect {
			sum.right++
			sum.first += slices.IndexFunc(findings, func(now []detect.Finding) bool { return len(now) > 0 && label.fits(now[0]) }) - simQuiet + 1
		}
		for _, f := range slices.Concat(findings...) {
			if f.Suspect != "" && f.Suspect != label.suspect {
				sum.accused++
			}
		}
	}
	return sum
}

func (t trouble) want() string {
	if t.none {
		return "none"
	}
	return t.resource.String()
}

func (t trouble) fits(f detect.Finding) bool {
	return !t.none && f.Resource == t.resource && f.Suspect == t.suspect
}

// TestConfusion holds the detector to its word: of each label at least 95 % are
// told rightly, and nobody innocent is accused. The table in docs/guard.md is that
// of -runs 200 -v.
func TestConfusion(t *testing.T) {
	t.Parallel()
	for _, label := range troubles() {
		got := tallyRuns(t, label, 1)
		t.Logf("| %s | %s | %d of %d | %.1f | %v |", label.name, label.want(), got.right, *runs, float64(max(got.first, 0))/float64(max(got.right, 1)), got.answers)
		if float64(got.right) < 0.95*float64(*runs) {
			t.Errorf("%s: %d of %d right, answers %v", label.name, got.right, *runs, got.answers)
		}
		if got.accused > 0 {
			t.Errorf("%s: %d findings accuse the innocent", label.name, got.accused)
		}
	}
}

// TestNoise shows how the detector fares when all signals vary more from window
// to window: it may miss more, but must not accuse the innocent.
func TestNoise(t *testing.T) {
	t.Parallel()
	for _, noise := range []float64{2, 4} {
		if *runs == 1 && noise > 2 {
			continue
		}
		right, accused, all := 0, 0, 0
		for _, label := range troubles() {
			got := tallyRuns(t, label, noise)
			right, accused, all = right+got.right, accused+got.accused, all+*runs
			if got.right < *runs {
				t.Logf("noise ×%g: %s: %v", noise, label.name, got.answers)
			}
		}
		t.Logf("noise ×%g: %d of %d right, %d accusations of the innocent", noise, right, all, accused)
		if accused > 0 && noise < 4 { // at 4, pressure at rest often is above what counts
			t.Errorf("noise ×%g: %d findings accuse the innocent", noise, accused)
		}
	}
}

// TestConfidence: of the findings of a confidence, at least that part is right.
func TestConfidence(t *testing.T) {
	t.Parallel()
	var right, all [10]int
	for _, label := range troubles() {
		for seed := range *runs {
			batches, ends := simulate(label, uint64(1000+seed), 2)
			for _, now := range run(newDetector(t), batches, ends) {
				for _, f := range now {
					bin := min(int(10*f.Confidence), 9)
					all[bin]++
					if label.fits(f) {
						right[bin]++
					}
				}
			}
		}
	}
	for bin, n := range all {
		if n == 0 {
			continue
		}
		t.Logf("| %.1f to %.1f | %d | %.1f %% |", float64(bin)/10, float64(bin+1)/10, n, 100*float64(right[bin])/float64(n))
		if n >= 20 && float64(right[bin])/float64(n) < float64(bin)/10 {
			t.Errorf("confidence %.1f: %d of %d right", float64(bin)/10, right[bin], n)
		}
	}
}
