package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sort"
	"strconv"
	"testing"
)

func TestExplore3(t *testing.T) {
	if os.Getenv("EXPLORE3") == "" {
		t.Skip()
	}
	n, _ := strconv.Atoi(os.Getenv("EXPLORE3"))
	base := queue{rate: 2000, service: 200, stalls: 0.5, stall: 8000, roundShift: 0.03}
	storm := base
	storm.stalls = 3
	busy := base
	busy.service = 350
	cases := []struct {
		name string
		a, b queue
		R, S int
	}{
		{"storm/base 6x2", storm, base, 6, 2},
		{"busy/base 6x2", busy, base, 6, 2},
		{"busy/base 10x10", busy, base, 10, 10},
		{"storm/base 10x10", storm, base, 10, 10},
		{"base/base 3x2", base, base, 3, 2},
		{"base/base 4x2", base, base, 4, 2},
		{"base/base 6x5", base, base, 6, 5},
		{"base/base 6x1", base, base, 6, 1},
	}
	for _, d := range cases {
		nn := n
		if d.S == 10 {
			nn = n / 3
		}
		ta, tb := truthOf(d.a, d.S, 30000/d.S), truthOf(d.b, d.S, 30000/d.S)
		cov := map[string][]float64{}
		low := map[string][]float64{}
		for e := 0; e < nn; e++ {
			r := rand.New(rand.NewPCG(uint64(e), 9))
			c := &recorder{}
			var a, b []Round
			for i := 0; i < d.R; i++ {
				a = append(a, d.a.round(r, c, d.S, 1))
				b = append(b, d.b.round(r, c, d.S, 1))
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
						tl := math.Log(ta[i])
						if ratio {
							tl -= math.Log(tb[i])
						}
						for m, v := range ivs(est[i], bs[i], d.R) {
							key := fmt.Sprintf("two=%-5v ratio=%-5v %-7s", two, ratio, methods[m])
							if cov[key] == nil {
								cov[key] = make([]float64, len(explorePs))
								low[key] = make([]float64, len(explorePs))
							}
							if v.lo <= tl && tl <= v.hi {
								cov[key][i]++
							}
							if tl < v.lo {
								low[key][i]++
							}
						}
					}
				}
			}
		}
		fmt.Printf("== %s n=%d truth %v / %v\n", d.name, nn, ta, tb)
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
			fmt.Printf("   truth below")
			for i := range explorePs {
				fmt.Printf(" %4.1f", 100*low[k][i]/float64(nn))
			}
			fmt.Println()
		}
	}
}
