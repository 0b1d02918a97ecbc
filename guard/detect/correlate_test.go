package detect

import (
	"math"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/watch"
)

// Who is named by correlation, at each limit: where the wait is 1.7 times what stands out in every window a
// group that uses as much in each has a correlation of 1-1/1.7, 0.412. With a calm
// window of ten it is 0.321, and would be 0.371 if that one did not count.
func TestCorrelated(t *testing.T) {
	t.Parallel()
	type group struct {
		name string
		use  float64 // in every window; NaN in the last one if silent
		cpus string
		last float64
	}
	hog := group{name: "hog", use: 1, last: 1}
	for name, tc := range map[string]struct {
		excess  float64
		windows int
		calm    int // of them, in which nothing stood out
		groups  []group
		named   string
		share   float64
		known   bool // some use it together, and nobody most of it
	}{
		"enough":                 {1.7, 10, 0, []group{hog}, "hog", 1, false},
		"hardly correlates":      {1.53, 10, 0, []group{hog}, "", 0, false},
		"too few windows":        {1.7, 9, 0, []group{hog}, "", 0, false},
		"calm while it ran":      {1.7, 10, 1, []group{hog}, "", 0, false},
		"it hardly runs":         {1.7, 10, 0, []group{{name: "hog", use: 0.24, last: 0.24}}, "", 0, false},
		"another hardly runs":    {1.7, 10, 0, []group{hog, {name: "mail", use: 0.24, last: 0.24}}, "hog", 1, false},
		"on other CPUs":          {1.7, 10, 0, []group{{name: "hog", use: 1, last: 1, cpus: "2-3"}}, "", 0, false},
		"the greater of two":     {1.7, 10, 0, []group{hog, {name: "mail", use: 1.4, last: 1.4}}, "mail", 1.4 / 2.4, false},
		"three alike":            {1.7, 10, 0, []group{hog, {name: "mail", use: 1, last: 1}, {name: "new", use: 1, last: 1}}, "", 0, true},
		"one that is silent now": {1.7, 10, 0, []group{hog, {name: "mail", use: 1, last: math.NaN()}}, "", 0, false},
	} {
		d, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		d.Track(Workload{Group: "web", Sensitive: true, CPUs: cpuset.MustParse("0-1")})
		w := d.byGroup["web"]
		for i := range tc.windows {
			x := tc.excess
			if i < tc.calm {
				x = 0.5
			}
			w.excess.add(x)
		}
		for _, g := range tc.groups {
			cpus := cpuset.Set{}
			if g.cpus != "" {
				cpus = cpuset.MustParse(g.cpus)
			}
			d.Track(Workload{Group: g.name, CPUs: cpus})
			s := d.byGroup[g.name]
			s.add(&watch.Sample{Subject: subjectOf(g.name), Quantity: watch.CPUTime}, "")
			for range tc.windows {
				s.uses.add(g.use)
			}
			s.value[CPUUse] = g.last
		}
		if c, _ := d.correlated(w); c.name != tc.named || math.Abs(c.share-tc.share) > 1e-9 {
			t.Errorf("%s: %+v, want %q with %g", name, c, tc.named, tc.share)
		}
		w.value[CPUUse], w.value[Imposed] = 1, math.NaN()
		if got, want := d.ownWaits(w), tc.named == "" && !tc.known; got != want {
			t.Errorf("%s: it waits as always: %v, want %v", name, got, want)
		}
	}
}
