package lab

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// settling is the quantile of response time of the requests due in each bin after the
// load began, over that of the requests due later than steady.
func settling(responses map[int][]float64, steady int, p float64) (at float64, ratios []float64) {
	var later []float64
	for bin, values := range responses {
		if bin >= steady {
			later = append(later, values...)
		}
	}
	at = rank(later, p)
	for bin := range steady {
		ratios = append(ratios, rank(responses[bin], p)/at)
	}
	return at, ratios
}

// rank is the nearest-rank quantile.
func rank(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return values[min(int(p*float64(len(values))), len(values)-1)]
}

func TestSettling(t *testing.T) {
	t.Parallel()
	at, ratios := settling(map[int][]float64{0: {9, 3, 6}, 1: {2, 4, 3}, 2: {2, 2, 1}, 3: {2, 4, 2}}, 2, 0.5)
	if diff := cmp.Diff([]float64{3, 1.5}, ratios); diff != "" || at != 2 {
		t.Errorf("at %g; -want +got:\n%s", at, diff)
	}
}

// TestSettled tabulates how long after a switch the tenant's figures are steady, from
// the requests of a run that discards nothing. It compares the published table with the stored
// run, or prints that of another one:
//
//	berth lab --settle 0s --duration 1s --rounds 16
//	BERTH_RESULT=results/… go test -run TestSettled -v ./lab
func TestSettled(t *testing.T) {
	t.Parallel()
	dir, file := os.Getenv("BERTH_RESULT"), ResultFile
	if dir == "" {
		dir, file = "../docs/measurements/results/settle", ResultFile+".gz"
	}
	result, err := ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	const steady = 8 // bins
	by, err := responses(filepath.Join(dir, RequestsFile), time.Duration(result.Experiment.Window))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, p := range []float64{0.5, 0.95} {
		for _, s := range result.Experiment.Scenarios {
			at, ratios := settling(by[s.Name], steady, p)
			fmt.Fprintf(&b, "| `%s` | p%g %.2f ms |", s.Name, 100*p, at)
			for _, ratio := range ratios {
				fmt.Fprintf(&b, " %.2f |", ratio)
			}
			b.WriteByte('\n')
		}
	}
	if page, err := os.ReadFile("../docs/measurements/lab-settle.md"); err != nil || file != ResultFile && !strings.Contains(string(page), b.String()) {
		t.Errorf("docs/measurements/lab-settle.md lacks the table below (%v)", err)
	}
	t.Logf("bins of %s, over the requests due after %s:\n%s", binLength, steady*binLength, &b)
}

// responses are the response times in ms of a stored run, by scenario and bin. What was not
// answered counts as the window is long.
func responses(path string, window time.Duration) (map[string]map[int][]float64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	lines := csv.NewReader(unzipped)
	lines.ReuseRecord = true
	by := map[string]map[int][]float64{}
	for {
		fields, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return by, nil
		}
		if err != nil {
			return nil, err
		}
		due, err := strconv.ParseInt(fields[3], 10, 64)
		if err != nil {
			continue // the header
		}
		done, err := strconv.ParseInt(fields[6], 10, 64)
		if err != nil {
			done = due + window.Nanoseconds()
		}
		name := strings.Clone(fields[1])
		if by[name] == nil {
			by[name] = map[int][]float64{}
		}
		bin := int(due / binLength.Nanoseconds())
		by[name][bin] = append(by[name][bin], float64(done-due)/1e6)
	}
}

// BenchmarkResume shows how fast a neighbour of two threads works again after it was
// stopped, and how fast it stops.
//
//	go test -run '^$' -bench Resume ./lab
func BenchmarkResume(b *testing.B) {
	bed := realBed(b)
	bed.Setup.Neighbour.Intensity = 100
	procs := &processes{bed: bed}
	if err := procs.startNeighbour(b.Context(), bed.Setup.Neighbour); err != nil {
		b.Fatal(err)
	}
	n := procs.neighbour
	defer func() { n.kill(); _ = n.counters.Close() }()
	var stopping, first time.Duration
	var share float64
	for b.Loop() {
		began := time.Now()
		if err := errors.Join(n.child.halt(), n.halted()); err != nil {
			b.Fatal(err)
		}
		stopping += time.Since(began)
		before := n.counters.Total()
		began = time.Now()
		if err := n.resume(); err != nil {
			b.Fatal(err)
		}
		for n.counters.Total() == before {
		}
		first += time.Since(began)
		time.Sleep(20*time.Millisecond - time.Since(began))
		early := n.counters.Total() - before
		began = time.Now()
		time.Sleep(100 * time.Millisecond)
		share += early / 20e-3 / ((n.counters.Total() - before - early) / time.Since(began).Seconds())
	}
	b.ReportMetric(float64(stopping.Microseconds())/float64(b.N), "µs-to-stop")
	b.ReportMetric(float64(first.Microseconds())/float64(b.N), "µs-to-work")
	b.ReportMetric(100*share/float64(b.N), "%-of-speed-in-20ms")
}

// BenchmarkReading shows what a bin costs: the host's counters, and what the lab used.
//
//	go test -run '^$' -bench Reading ./lab
func BenchmarkReading(b *testing.B) {
	bed := realBed(b)
	procs, err := bed.processes(b.Context(), bed.setupOf(Cell{}))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := procs.reading(); err != nil {
			b.Fatal(err)
		}
	}
}
