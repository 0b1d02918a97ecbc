package detect_test

import (
	"testing"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// TestBesideOutsiders judges a recording of docs/measurements/guard-d3.md's scene, in windows of 100 ms: nginx, which
// wrk asks for all it can answer, beside two processes in no group that spin, on two CPUs. After 15 s stress-ng starts
// in a sibling of nginx's group, with a thread for each CPU, and 0.6 s later cpu.idle of that group is set by hand.
// Until then nobody is named but who is in no group. Then stress-ng's group is, before it is in the idle class, and not
// any more once it is.
func TestBesideOutsiders(t *testing.T) {
	t.Parallel()
	const window, idle, forgotten = 100 * watch.Millisecond, 600 * watch.Millisecond, 500 * watch.Millisecond
	const web, batch = "berth-d3/web", "berth-d3/batch"
	h, ticks := readRecording(t, "testdata/d3.jsonl.gz")
	d, err := detect.New(detect.Config{Machine: h.Machine, Near: window})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range h.Groups {
		d.Track(detect.Workload{Group: g.Path, CPUs: g.CPUs, Sensitive: g.Path == web})
	}
	var onset, judged, first watch.Time
	used, after, still, most, mean := 0.0, 0, 0, 0.0, 0.0
	for _, tick := range ticks {
		now := tick[0].Time
		for _, s := range tick {
			if s.Quantity == watch.CPUTime && s.Subject.Name == batch {
				if onset == 0 && s.Value-used > 0.02 && used > 0 {
					onset = now
				}
				used = s.Value
			}
		}
		d.Near().Observe(tick)
		named := false
		for _, f := range d.Near().Judge(now) {
			named = named || f.Resource == detect.CPU && f.Suspect == batch
			if f.Suspect != "" && f.Suspect != batch && !detect.InNoGroup(f.Suspect) || f.Suspect == batch && onset == 0 {
				t.Errorf("at %.2f s: %v", now.Seconds(), f)
			}
		}
		if d.Observe(tick); now-judged >= watch.Second {
			d.Judge(now)
			judged = now
		}
		if onset == 0 {
			continue
		}
		r, known := d.Near().RunDelay(web, batch, 3)
		if !known {
			t.Errorf("at %.2f s: the run delay is not known", now.Seconds())
		}
		if named && first == 0 {
			first = now - onset
		}
		switch since := now - onset; {
		case since <= idle:
			most = max(most, r.Suspect)
		case since >= idle+forgotten:
			after, mean = after+1, mean+r.Suspect
			if named {
				still++
			}
		}
	}
	mean /= float64(after)
	t.Logf("named after %.2f s, and in %d of %d windows later; nginx waits for it %.2f s for each that it runs, then %.3f", first.Seconds(), still, after, most, mean)
	if onset == 0 || first == 0 || first > idle {
		t.Errorf("it begins at %.2f s, and is named %.2f s later, want within %.1f s", onset.Seconds(), first.Seconds(), idle.Seconds())
	}
	if after < 100 || still > 0 {
		t.Errorf("it is named in %d of %d windows in which it is in the idle class", still, after)
	}
	if most < 0.5 || mean > most/10 {
		t.Errorf("nginx waits for it %g s for each that it runs, and %g s once it is in the idle class", most, mean)
	}
}
