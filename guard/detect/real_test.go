package detect_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

// recorded reads a recording as one batch per instant.
func recorded(t testing.TB, name string) (batches [][]watch.Sample, ends []watch.Time) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s, err := range watch.Read(f) {
		if err != nil {
			t.Fatal(err)
		}
		if n := len(ends); n == 0 || ends[n-1] != s.Time {
			ends = append(ends, s.Time)
			batches = append(batches, nil)
		}
		batches[len(batches)-1] = append(batches[len(batches)-1], s)
	}
	return batches, ends
}

// recordedHost is a detector for the recordings.
func recordedHost(t testing.TB) *detect.Detector {
	t.Helper()
	m, err := machine.Short("1s2c")
	if err != nil {
		t.Fatal(err)
	}
	d, err := detect.New(detect.Config{Machine: m})
	if err != nil {
		t.Fatal(err)
	}
	d.Track(detect.Workload{Group: "victim", Sensitive: true})
	d.Track(detect.Workload{Group: "hog"})
	return d
}

// The recordings are of a virtual machine with two CPUs that other work kept
// busy too. Something happens after 12 s.
func TestRecordings(t *testing.T) {
	t.Parallel()
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			batches, ends := recorded(t, s.name)
			var got strings.Builder
			for i, findings := range run(recordedHost(t), batches, ends) {
				for _, f := range findings {
					text := f.String()
					if i < len(ends)-1 {
						text, _, _ = strings.Cut(text, "\n")
					}
					fmt.Fprintf(&got, "%.0f s: %s\n", (ends[i] - ends[0]).Seconds(), text)
				}
			}
			golden.Check(t, "testdata/"+s.name+".txt", got.String())
		})
	}
}
