package placetest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Benchmark measures one placement in the steady state: on a machine that holds
// the given number of workloads (as far as they fit), place one more, commit it
// and release it. Names are <policy>/<cpus>x<nodes>/<workloads>. request makes the
// i-th request; nil is Mix.
func Benchmark(b *testing.B, p place.Policy, request func(rng *rand.Rand, i int) place.Request) {
	if request == nil {
		request = Mix
	}
	for _, size := range []struct {
		form        string
		cpus, nodes int
	}{
		{"2s1n4l4c2t", 64, 2}, {"2s4n4l4c2t", 256, 8}, {"2s4n8l4c2t", 512, 8}, {"2s8n8l4c2t", 1024, 16},
	} {
		for _, workloads := range []int{250, 1000} {
			b.Run(fmt.Sprintf("%s/%dx%d/%d", p.Name(), size.cpus, size.nodes, workloads), func(b *testing.B) {
				s, rng := filled(b, p, size.form, workloads, request)
				requests := make([]place.Request, 64)
				for i := range requests {
					requests[i] = request(rng, i)
					requests[i].ID = fmt.Sprintf("new%d", i)
				}
				b.ReportAllocs()
				b.ResetTimer()
				refused := 0
				for i := range b.N {
					r := &requests[i%len(requests)]
					o, err := p.Place(s, r)
					if err != nil {
						refused++
						continue
					}
					if _, err := s.Commit(o); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(100*float64(refused)/float64(b.N), "%refused")
			})
		}
	}
}

// filled returns a state with workloads placed on a machine; one in eight is
// released again, so that there is room with holes.
func filled(b *testing.B, p place.Policy, form string, workloads int, request func(*rand.Rand, int) place.Request) (*place.State, *rand.Rand) {
	b.Helper()
	s, err := place.Start(p, Topology(b, form), place.Config{})
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range workloads {
		r := request(rng, i)
		r.ID = fmt.Sprintf("w%04d", i)
		o, err := place.Place(p, s, &r)
		if err != nil {
			continue
		}
		if s, err = s.Commit(o); err != nil {
			b.Fatal(err)
		}
	}
	n := 0
	for g := range s.Grants() {
		if n++; n%8 != 0 {
			continue
		}
		o, err := place.Release(p, s, g.ID)
		if err == nil {
			s, err = s.Commit(o)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return s, rng
}

// Topology indexes the machine of a short form.
func Topology(tb testing.TB, form string) *place.Topology {
	tb.Helper()
	m, err := machine.Short(form)
	if err != nil {
		tb.Fatal(err)
	}
	t, err := place.NewTopology(m)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// Mix returns requests as on a busy node: mostly small shared ones, some with 1
// to 8 own CPUs.
func Mix(rng *rand.Rand, i int) place.Request {
	r := place.Request{ID: fmt.Sprintf("w%04d", i), Namespace: fmt.Sprintf("ns%d", i%5)}
	switch dice := rng.IntN(20); {
	case dice < 2:
		r.Class, r.Milli = place.LSE, 2000*(1+rng.IntN(2))
	case dice < 6:
		r.Class, r.Milli = place.LSR, 1000*(1+rng.IntN(8))
	case dice < 14:
		r.Class, r.Milli = place.LS, 50+rng.IntN(200)
	default:
		r.Class = place.BE
	}
	if r.Class == place.LSE || r.Class == place.LSR {
		r.LimitMilli = r.Milli
	}
	return r
}

// BenchmarkRestart measures reinstating 1,000 saved workloads on 512 CPUs.
func BenchmarkRestart(b *testing.B, p place.Policy) {
	request := func(rng *rand.Rand, i int) place.Request {
		r := Mix(rng, i)
		if r.Class == place.LSE || r.Class == place.LSR {
			r.Milli, r.LimitMilli = 1000, 1000
		}
		if r.Class == place.LS {
			r.Milli = 100
		}
		return r
	}
	t := Topology(b, "2s4n8l4c2t")
	s, _ := filled(b, p, "2s4n8l4c2t", 1150, request)
	saved, conf := s.Save(), *s.Config()
	b.Run(fmt.Sprintf("%s/512x8/%d", p.Name(), len(saved.Grants)), func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			fresh, err := place.New(t, conf)
			if err == nil {
				_, err = fresh.Reinstate(saved)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
