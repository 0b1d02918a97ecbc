package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strconv"
	"sync"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

type boot struct {
	two bool
	B   int
}

// resample weights
func draw(r *rand.Rand, p *pool, picks []int, w []int64, two bool) {
	clear(w)
	for _, k := range picks {
		lo, hi := p.first[k], p.first[k+1]
		n := hi - lo
		if two {
			for i := 0; i < n; i++ {
				w[lo+r.IntN(n)]++
			}
		} else {
			for i := lo; i < hi; i++ {
				w[i]++
			}
		}
	}
}

func bootlogs(r *rand.Rand, base, other *pool, ps []float64, two bool, B int) ([][]float64, []float64) {
	R := other.rounds()
	picks := make([]int, R)
	w := make([]int64, other.seconds)
	var wb []int64
	if base != nil {
		wb = make([]int64, base.seconds)
	}
	out := make([][]float64, len(ps))
	one := func() []float64 {
		res := make([]float64, len(ps))
		for i, pc := range ps {
			q, _ := other.quantile(pc, w)
			l := math.Log(max(q, 1))
			if base != nil {
				qb, _ := base.quantile(pc, wb)
				l -= math.Log(max(qb, 1))
			}
			res[i] = l
		}
		return res
	}
	for i := range w {
		w[i] = 1
	}
	for i := range wb {
		wb[i] = 1
	}
	est := one()
	for b := 0; b < B; b++ {
		for i := range picks {
			picks[i] = r.IntN(R)
		}
		draw(r, other, picks, w, two)
		if base != nil {
			draw(r, base, picks, wb, two)
		}
		for i, l := range one() {
			out[i] = append(out[i], l)
		}
	}
	return out, est
}

func sd(x []float64) float64 {
	var m, s float64
	for _, v := range x {
		m += v
	}
	m /= float64(len(x))
	for _, v := range x {
		s += (v - m) * (v - m)
	}
	return math.Sqrt(s / float64(len(x)-1))
}

func pctile(sorted []float64, a float64) float64 {
	i := a * float64(len(sorted)-1)
	lo := int(i)
	if lo >= len(sorted)-1 {
		return sorted[len(sorted)-1]
	}
	f := i - float64(lo)
	return sorted[lo]*(1-f) + sorted[lo+1]*f
}

type iv struct{ lo, hi float64 }

var methods = []string{"pct", "exp", "sdt", "sdtR", "basicE", "sdz"}

func ivs(est float64, bs []float64, R int) []iv {
	s := slices.Clone(bs)
	sort.Float64s(s)
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(R - 1)}.Quantile(0.975)
	f := math.Sqrt(float64(R) / float64(R-1))
	a := distuv.UnitNormal.CDF(-t * f)
	d := sd(bs)
	el, eh := pctile(s, a), pctile(s, 1-a)
	return []iv{
		{pctile(s, 0.025), pctile(s, 0.975)},
		{el, eh},
		{est - t*d, est + t*d},
		{est - t*f*d, est + t*f*d},
		{2*est - eh, 2*est - el},
		{est - 1.96*d, est + 1.96*d},
	}
}

type design struct {
	name string
	q    queue
	R, S int
}

func designs() []design {
	q1 := queue{rate: 1000, service: 400, stalls: 0.5, stall: 8000, roundShift: 0.03}
	q2 := queue{rate: 2000, service: 200, stalls: 0.5, stall: 8000, roundShift: 0.03}
	q2l := q2
	q2l.spread = 0.3
	q2c := q2
	q2c.stalls = 0.02
	q2s := q2
	q2s.stalls = 3
	q2r := q2
	q2r.roundShift = 0.1
	return []design{
		{"10x10 1k", q1, 10, 10},
		{"6x2 2k", q2, 6, 2},
		{"20x30 1k", q1, 20, 30},
		{"6x2 2k lognormal", q2l, 6, 2},
		{"6x2 2k calm", q2c, 6, 2},
		{"6x2 2k stormy", q2s, 6, 2},
		{"6x2 2k round10%", q2r, 6, 2},
	}
}

var explorePs = []float64{50, 95, 99, 99.9}

func truthOf(q queue, seconds, rounds int) []float64 {
	r := rand.New(rand.NewPCG(77, 1))
	c := &recorder{}
	var counts recorder
	var total int64
	for i := 0; i < rounds; i++ {
		for _, s := range q.round(r, c, seconds, 1).Seconds {
			for _, b := range s.buckets {
				v := int(b.value)
				shift := 0
				for v>>shift >= 2048 {
					shift++
				}
				counts.counts[shift<<10+v>>shift] += b.count
				counts.top = len(counts.counts)
			}
			total += s.total
		}
	}
	d := counts.take()
	var out []float64
	for _, p := range explorePs {
		v, _ := d.Quantile(p)
		out = append(out, v)
	}
	return out
}

func TestExplore(t *testing.T) {
	if os.Getenv("EXPLORE") == "" {
		t.Skip()
	}
	n, _ := strconv.Atoi(os.Getenv("EXPLORE"))
	for _, d := range designs() {
		t0 := time.Now()
		nn := n
		if d.S == 30 {
			nn = n / 8
		}
		if d.S == 10 {
			nn = n / 2
		}
		truth := truthOf(d.q, d.S, 40000/d.S)
		cov := map[string][]float64{}
		wid := map[string][]float64{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for g := 0; g < 2; g++ {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for e := g; e < nn; e += 2 {
					r := rand.New(rand.NewPCG(uint64(e), 9))
					c := &recorder{}
					var a, b []Round
					for i := 0; i < d.R; i++ {
						a = append(a, d.q.round(r, c, d.S, 1))
						b = append(b, d.q.round(r, c, d.S, 1))
					}
					pa, pb := newPool(a), newPool(b)
					for _, two := range []bool{true, false} {
						for _, ratio := range []bool{false, true} {
							bp := pb
							if !ratio {
								bp = nil
							}
							bs, est := bootlogs(r, bp, pa, explorePs, two, 600)
							for i := range explorePs {
								tl := math.Log(truth[i])
								if ratio {
									tl = 0
								}
								for m, v := range ivs(est[i], bs[i], d.R) {
									key := fmt.Sprintf("two=%-5v ratio=%-5v %-7s", two, ratio, methods[m])
									mu.Lock()
									if cov[key] == nil {
										cov[key] = make([]float64, len(explorePs))
										wid[key] = make([]float64, len(explorePs))
									}
									if v.lo <= tl && tl <= v.hi {
										cov[key][i]++
									}
									wid[key][i] += (v.hi - v.lo) / 2
									mu.Unlock()
								}
							}
						}
					}
				}
			}()
		}
		wg.Wait()
		fmt.Printf("== %s n=%d truth %v  (%v)\n", d.name, nn, truth, time.Since(t0))
		keys := []string{}
		for k := range cov {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			fmt.Printf("%s cov", k)
			for i := range explorePs {
				fmt.Printf(" %5.1f", 100*cov[k][i]/float64(nn))
			}
			fmt.Printf("   halfwidth")
			for i := range explorePs {
				fmt.Printf(" %.3f", wid[k][i]/float64(nn))
			}
			fmt.Println()
		}
	}
}
