package detect_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/watch"
)

// A mutation spoils a stream as a host may: batches are what comes in before
// each window is judged.
type mutation struct {
	name  string
	spoil func(r *rand.Rand, batches [][]watch.Sample)
}

func each(keep func(r *rand.Rand, s *watch.Sample) bool) func(*rand.Rand, [][]watch.Sample) {
	return func(r *rand.Rand, batches [][]watch.Sample) {
		for i := range batches {
			batches[i] = slices.DeleteFunc(batches[i], func(s watch.Sample) bool { return !keep(r, &s) })
		}
	}
}

func mutations() []mutation {
	worthless := []float64{math.NaN(), math.Inf(1), -1, 0}
	return []mutation{
		{"drop", each(func(r *rand.Rand, _ *watch.Sample) bool { return r.Float64() > 0.2 })},
		{"drop windows", func(r *rand.Rand, batches [][]watch.Sample) {
			for i := range batches {
				if r.Float64() < 0.3 {
					batches[i] = nil
				}
			}
		}},
		{"drop a quantity for good", func(r *rand.Rand, batches [][]watch.Sample) {
			gone := watch.Quantity(r.IntN(int(watch.Frozen) + 1))
			each(func(_ *rand.Rand, s *watch.Sample) bool { return s.Quantity != gone })(r, batches)
		}},
		{"drop a group from some time on", func(r *rand.Rand, batches [][]watch.Sample) {
			gone, from := []string{"api", "batch", "mail", "web"}[r.IntN(4)], r.IntN(len(batches))
			each(func(_ *rand.Rand, s *watch.Sample) bool { return s.Subject.Name != gone && s.By != gone })(r, batches[from:])
		}},
		{"delay", func(r *rand.Rand, batches [][]watch.Sample) {
			for i := len(batches) - 2; i >= 0; i-- {
				for j := len(batches[i]) - 1; j >= 0; j-- {
					if r.Float64() < 0.1 {
						batches[i+1] = append(batches[i+1], batches[i][j])
						batches[i] = slices.Delete(batches[i], j, j+1)
					}
				}
			}
		}},
		{"repeat and shuffle", func(r *rand.Rand, batches [][]watch.Sample) {
			for i := range batches {
				batches[i] = append(batches[i], batches[i][:len(batches[i])/2]...)
				r.Shuffle(len(batches[i]), func(a, b int) { batches[i][a], batches[i][b] = batches[i][b], batches[i][a] })
			}
		}},
		{"worthless values", func(r *rand.Rand, batches [][]watch.Sample) {
			for _, batch := range batches {
				for j := range batch {
					if r.Float64() < 0.05 {
						batch[j].Value = worthless[r.IntN(len(worthless))]
					}
				}
			}
		}},
		{"counters reset", func(r *rand.Rand, batches [][]watch.Sample) {
			type key struct {
				s  watch.Subject
				q  watch.Quantity
				by string
			}
			lost := map[key]float64{}
			for _, batch := range batches {
				for j := range batch {
					s := &batch[j]
					if !s.Quantity.Counter() {
						continue
					}
					k := key{s.Subject, s.Quantity, s.By}
					if r.Float64() < 0.05 {
						lost[k] = s.Value
					}
					s.Value -= lost[k]
				}
			}
		}},
	}
}

// TestMutations spoils streams: whatever is missing, nobody innocent is accused,
// and what is nobody else's doing is not blamed on anyone.
func TestMutations(t *testing.T) {
	t.Parallel()
	for i, m := range mutations() {
		right, wrong, all := 0, 0, 0
		for j, label := range troubles() {
			if *runs == 1 && (i+j)%4 > 0 {
				continue // a sample of them, to be quick
			}
			for seed := range *runs {
				batches, ends := simulate(label, uint64(seed), 1)
				m.spoil(rand.New(rand.NewPCG(uint64(seed), 7)), batches)
				findings := run(newDetector(t), batches, ends)
				found := slices.Concat(findings...)
				bad := func(f detect.Finding) bool { return f.Suspect != "" && f.Suspect != label.suspect }
				if i := slices.IndexFunc(found, bad); i >= 0 {
					wrong++
					t.Logf("%s, %s, seed %d: %s", m.name, label.name, seed, found[i])
				}
				resource, suspect := answer(findings)
				all++
				if resource == label.want() && suspect == label.suspect {
					right++
				}
			}
		}
		t.Logf("| %s | %.0f %% | %d |", m.name, 100*float64(right)/float64(all), wrong)
		if wrong > 0 {
			t.Errorf("%s: the innocent are accused in %d of %d runs", m.name, wrong, all)
		}
	}
}

// FuzzObserve feeds anything: it must not panic, and what it says must be sound.
func FuzzObserve(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	f.Add([]byte("any old bytes will do, as long as there are some of them"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := newDetector(t)
		groups := []string{"", "api", "batch", "nobody", "api/below"}
		values := []float64{0, 1, 1e-9, 1e18, math.MaxFloat64, math.NaN(), math.Inf(-1), -5}
		now := watch.Time(0)
		for len(data) >= 6 {
			s := watch.Sample{
				Time:     now - watch.Time(data[0]%3)*watch.Second,
				Subject:  watch.Subject{Scope: watch.Scope(data[1] % 4), Name: groups[int(data[1]/4)%len(groups)], Part: watch.Part{Kind: watch.PartKind(data[2] % 6), ID: int(data[2] / 6)}},
				Quantity: watch.Quantity(data[3]) % (watch.Frozen + 1),
				Value:    values[int(data[4])%len(values)] * float64(data[5]),
				By:       groups[int(data[4]/8)%len(groups)],
			}
			data = data[6:]
			d.Observe([]watch.Sample{s})
			now += watch.Second / 4
			check(t, d.Judge(now))
		}
		if !d.Sound() {
			t.Error("a mean that was learnt is no finite number from zero on")
		}
	})
}

func check(t *testing.T, findings []detect.Finding) {
	t.Helper()
	for _, f := range findings {
		if !(f.Confidence > 0 && f.Confidence < 1) || !(f.Share > 0 && f.Share <= 1) || f.Agreeing < 3 || f.Agreeing > f.Windows ||
			len(f.Evidence) == 0 || f.Victim == "" || f.Suspect == f.Victim || f.String() == "" {
			t.Errorf("%+v", f)
		}
		for _, e := range f.Evidence {
			if math.IsNaN(e.Value) || math.IsNaN(e.Threshold) {
				t.Errorf("%v: evidence %+v", f.Resource, e)
			}
		}
	}
}

// TestSilentSuspect takes the samples of the neighbour away that does it, from the
// start or just before: nobody else is named in its place.
func TestSilentSuspect(t *testing.T) {
	t.Parallel()
	i := slices.IndexFunc(troubles(), func(label trouble) bool { return label.name == "disk" })
	for _, from := range []int{0, simQuiet - 2} {
		for seed := range 8 {
			batches, ends := simulate(troubles()[i], uint64(seed), 1)
			each(func(_ *rand.Rand, s *watch.Sample) bool { return s.Subject.Name != "batch" })(nil, batches[from:])
			for _, f := range slices.Concat(run(newDetector(t), batches, ends)...) {
				if f.Suspect != "" {
					t.Fatalf("silent from window %d, seed %d: %v", from, seed, f)
				}
			}
		}
	}
}
