package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sort"
	"strconv"
	"sync"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

func TestExplore2(t *testing.T) {
	if os.Getenv("EXPLORE2") == "" {
		t.Skip()
	}
	n, _ := strconv.Atoi(os.Getenv("EXPLORE2"))
	ps := []float64{50, 95, 99}
	for _, d := range designs() {
		for _, shift := range []float64{1, 1.15} {
			t0 := time.Now()
			nn := n
			if d.S == 10 {
				nn = n / 2
			}
			if d.S == 30 {
				nn = n / 10
			}
			cnt := map[string][]float64{}
			var mu sync.Mutex
			var wg sync.WaitGroup
			for g := 0; g < 2; g++ {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for e := g; e < nn; e += 2 {
						r := rand.New(rand.NewPCG(uint64(e), 9))
						c := &recorder{}
						const K = 7 // base, A', 5 scenarios
						rounds := make([][]Round, K)
						at := d.R*K/3 + r.IntN(d.R*K/3)
						slot := 0
						for b := 0; b < d.R; b++ {
							for _, k := range r.Perm(K) {
								sc := 1.0
								if slot >= at {
									sc = shift
								}
								slot++
								rounds[k] = append(rounds[k], d.q.round(r, c, d.S, sc))
							}
						}
						pools := make([]*pool, K)
						for k := range pools {
							pools[k] = newPool(rounds[k])
						}
						est := make([][]float64, K)
						se := make([][]float64, K)
						for k := 1; k < K; k++ {
							bs, e := bootlogs(r, pools[0], pools[k], ps, false, 500)
							est[k] = e
							for i := range ps {
								se[k] = append(se[k], sd(bs[i])*math.Sqrt(float64(d.R)/float64(d.R-1)))
							}
						}
						tq := func(conf float64) float64 {
							return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: float64(d.R - 1)}.Quantile(1 - (1-conf)/2)
						}
						t95, t99 := tq(.95), tq(.99)
						add := func(key string, i int, v bool) {
							mu.Lock()
							if cnt[key] == nil {
								cnt[key] = make([]float64, len(ps))
							}
							if v {
								cnt[key][i]++
							}
							mu.Unlock()
						}
						for i := range ps {
							fl, fh := math.Exp(est[1][i]-t95*se[1][i]), math.Exp(est[1][i]+t95*se[1][i])
							hw := (fh - fl) / 2
							reach := math.Abs(est[1][i]) + t95*se[1][i]
							hit := func(l, s float64, rule string) bool {
								rho := math.Exp(l)
								big := math.Abs(rho-1) > 0.1
								switch rule {
								case "z95":
									return math.Abs(l) > t95*s
								case "z95+10":
									return big && math.Abs(l) > t95*s
								case "A 2hw":
									return big && math.Abs(l) > t95*s && math.Abs(rho-1) > 2*hw
								case "B reach":
									return big && math.Abs(l) > t95*s && math.Abs(l) > reach
								case "C bonf":
									return big && math.Abs(l) > t99*s
								case "D bonf+reach":
									return big && math.Abs(l) > t99*s && math.Abs(l) > reach
								case "E bonf+2hw":
									return big && math.Abs(l) > t99*s && math.Abs(rho-1) > 2*hw
								}
								panic("")
							}
							for _, rule := range []string{"z95", "z95+10", "A 2hw", "B reach", "C bonf", "D bonf+reach", "E bonf+2hw"} {
								any := false
								for k := 2; k < K; k++ {
									any = any || hit(est[k][i], se[k][i], rule)
								}
								add(fmt.Sprintf("FWER %s", rule), i, any)
								add(fmt.Sprintf("single %s", rule), i, hit(est[2][i], se[2][i], rule))
								for _, eff := range []float64{1.3, 1.5, 2} {
									l := est[2][i] + math.Log(eff)
									add(fmt.Sprintf("power%.1f %s", eff, rule), i, hit(l, se[2][i], rule))
								}
							}
							for _, eff := range []float64{1, 1.05, 1.1, 1.2, 1 / 1.1} {
								l := est[2][i] + math.Log(eff)
								add(fmt.Sprintf("equiv at %.2f", eff), i, l-t95*se[2][i] > math.Log(.9) && l+t95*se[2][i] < math.Log(1.1))
							}
						}
					}
				}()
			}
			wg.Wait()
			fmt.Printf("== %s shift %v n=%d (%v)\n", d.name, shift, nn, time.Since(t0))
			keys := []string{}
			for k := range cnt {
				keys = append(keys, k)
			}
			sort.Strings(keys)
			for _, k := range keys {
				fmt.Printf("%-24s", k)
				for i := range ps {
					fmt.Printf(" %5.1f", 100*cnt[k][i]/float64(nn))
				}
				fmt.Println()
			}
		}
	}
}
