package detect_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/watch"
)

// cpusTenant and cpusHog are the groups of the recordings of TestGuardOnManyCPUs (e2e): the short windows of a tenant
// that has a thread on each of its CPUs, alone and three times beside a neighbour, with which nothing is done.
const cpusTenant, cpusHog = "guarded/services/web", "guarded/batch/jobs/hog"

// cpusRecording is one of them.
type cpusRecording struct {
	observe.Header
	ticks  [][]watch.Sample
	beside []bool // by tick: the tenant waits for the neighbour
	onsets []int  // ticks at which it begins to
}

// readRecording reads a recording.
func readRecording(t *testing.T, file string) (h observe.Header, all [][]watch.Sample) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, ticks, err := observe.ReadRecording(f)
	if err != nil {
		t.Fatal(err)
	}
	for tick, err := range ticks {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tick)
	}
	return h, all
}

func readCPUs(t *testing.T, file string) (r cpusRecording) {
	t.Helper()
	h, ticks := readRecording(t, file)
	r.Header = h
	waited, last := 0.0, -watch.Second
	for _, tick := range ticks {
		waits := false
		for _, s := range tick {
			if s.Quantity == watch.QueuedBy && s.By == cpusHog && s.Time == tick[0].Time {
				waits, waited = s.Value > waited+0.001, s.Value
			}
		}
		if waits {
			if tick[0].Time-last >= watch.Second {
				r.onsets = append(r.onsets, len(r.ticks))
			}
			last = tick[0].Time
		}
		r.ticks, r.beside = append(r.ticks, tick), append(r.beside, waits)
	}
	if len(r.onsets) != 3 {
		t.Fatalf("%s: %d onsets, want 3", file, len(r.onsets))
	}
	return r
}

// named has a new detector judge the ticks from one on, and returns in which the neighbour is named.
func (r *cpusRecording) named(t *testing.T, from int) (named []bool) {
	t.Helper()
	d, err := detect.New(detect.Config{Machine: r.Machine, Near: 40 * watch.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range r.Groups {
		d.Track(detect.Workload{Group: g.Path, CPUs: g.CPUs, Sensitive: g.Path == cpusTenant})
	}
	for _, tick := range r.ticks[from:] {
		d.Near().Observe(tick)
		is := false
		for _, f := range d.Near().Judge(tick[0].Time) {
			if is = is || f.Suspect == cpusHog && f.Resource == detect.CPU; f.Suspect != "" && f.Suspect != cpusHog {
				t.Errorf("at %.2f s: %v", tick[0].Time.Seconds(), f)
			}
		}
		named = append(named, is)
	}
	return named
}

// TestOnManyCPUs has a neighbour that spins on each CPU make the threads of a tenant wait for it and, as they have
// half of the CPUs then, for each other. Each time that it begins it is named within ten windows, and in nearly
// all from then on. So it is if the run-queue probe is armed a second later, when nothing is known of before.
func TestOnManyCPUs(t *testing.T) {
	t.Parallel()
	const soon, late = 10, 25 // windows
	for _, file := range []string{"testdata/cpus-4.jsonl.gz"} {
		r := readCPUs(t, file)
		check := func(t *testing.T, from int, named []bool) {
			windows, right := 0, 0
			for i := from + soon; i < len(r.ticks) && r.beside[i]; i++ {
				windows++
				if named[i] {
					right++
				}
			}
			first := slices.Index(named[from:from+windows+soon], true)
			t.Logf("from %.2f s on: first named in window %d, then in %d of %d", r.ticks[from][0].Time.Seconds(), first, right, windows)
			if first < 0 || first > soon || windows < 25 || right < windows*9/10 {
				t.Errorf("from %.2f s on: first named in window %d, then in %d of %d windows; want %d at most, and nine of ten",
					r.ticks[from][0].Time.Seconds(), first, right, windows, soon)
			}
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			named := r.named(t, 0)
			if early := slices.Index(named[:r.onsets[0]], true); early >= 0 {
				t.Errorf("named in window %d, before the neighbour begins", early)
			}
			for _, onset := range r.onsets {
				check(t, onset, named)
			}
		})
		t.Run(filepath.Base(file)+"/late", func(t *testing.T) {
			t.Parallel()
			for _, onset := range r.onsets {
				from := onset + late
				check(t, from, append(make([]bool, from), r.named(t, from)...))
			}
		})
	}
}
