package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// world is a simulated machine whose disturbances go on through all rounds of an experiment, and the tenant on it: first
// come first served by one or more servers.
type world struct {
	name     string
	servers  int
	rate     float64 // requests per second
	demand   float64 // share of the servers that the tenant needs
	pareto   float64 // index of the service times; 0: see spread
	spread   float64 // of the log of service times; 0: exponential
	stalls   float64 // of the whole machine, per second
	stall    float64 // mean length, ms, exponential unless stallTail
	tail     float64 // Pareto index of a stall's length; 0: exponential
	storm    float64 // stalls come in storms of this mean length, s; 0: all the time
	storms   float64 // seconds from storm to storm
	foreign  float64 // share of the time in which others work
	burst    float64 // mean length of such a time, s
	drift    float64 // rise of service times over the experiment
	walk     float64 // standard deviation of the log speed, correlated over 40 s
	wave     float64 // amplitude of a sine of the period of a block
	period   float64 // of the wave, s
	duration float64 // of the experiment, s
}

// worlds are those of the simulations.
func worlds() []world {
	tenant := world{servers: 2, rate: 1000, demand: 0.4}
	var out []world
	add := func(name string, change func(*world)) {
		w := tenant
		w.name = name
		change(&w)
		out = append(out, w)
	}
	stalls := func(w *world) { w.stalls, w.stall = 0.5, 12 }
	add("undisturbed", func(*world) {})
	add("even service (log-normal 0.3)", func(w *world) { w.spread = 0.3 })
	add("Pareto service, index 2.1", func(w *world) { w.pareto = 2.1 })
	add("stalls", stalls)
	add("stalls, 1 server", func(w *world) { w.servers, w.stalls, w.stall = 1, 0.5, 8 })
	add("stalls, demand 0.58", func(w *world) { stalls(w); w.demand = 0.58 })
	add("stalls in storms, 15 s per 100 s", func(w *world) { stalls(w); w.storm, w.storms = 15, 100 })
	add("stalls in storms, 3 s per 20 s", func(w *world) { stalls(w); w.storm, w.storms = 3, 20 })
	add("Pareto stalls, index 1.4", func(w *world) { stalls(w); w.tail = 1.4 })
	add("drift +25 %, walk 5 %", func(w *world) { w.drift, w.walk = 0.25, 0.05 })
	add("wave 12 %", func(w *world) { w.wave = 0.12 })
	add("foreign work 15 %, 2 s", func(w *world) { w.foreign, w.burst = 0.15, 2 })
	add("foreign work 30 %, 2 s", func(w *world) { w.foreign, w.burst = 0.3, 2 })
	add("foreign work 15 %, 10 s, demand 0.58", func(w *world) { w.foreign, w.burst, w.demand = 0.15, 10, 0.58 })
	add("foreign work 15 %, storms, drift, walk", func(w *world) {
		stalls(w)
		w.foreign, w.burst, w.storm, w.storms, w.drift, w.walk = 0.15, 2, 3, 20, 0.15, 0.05
	})
	return out
}

// cell is the resolution of a world's disturbances in seconds.
const cell = 0.0005

// life is a world from its beginning to its end.
type life struct {
	world
	r     *rand.Rand
	speed [][]float32 // by server and cell
	free  []float64   // when each server is, s
	still []bool      // by bin: the machine stood still in it
}

// bin is the resolution, in seconds, at which a stall is seen by its steal time and the generator's lag.
const bin = 0.05

func (w world) live(r *rand.Rand) *life {
	n := int(w.duration/cell) + 1
	l := &life{world: w, r: r, free: make([]float64, w.servers), still: make([]bool, int(w.duration/bin)+2)}
	all := make([]float32, n)
	level, phase := 0.0, r.Float64()*2*math.Pi
	if w.walk > 0 {
		level = w.walk * r.NormFloat64()
	}
	const step = 200 // cells between changes of the level
	for i := range all {
		if i%step == 0 && w.walk > 0 {
			keep := math.Exp(-step * cell / 40)
			level = keep*level + w.walk*math.Sqrt(1-keep*keep)*r.NormFloat64()
		}
		at := float64(i) * cell
		slow := level + w.drift*at/w.duration
		if w.wave > 0 {
			slow += w.wave * math.Sin(phase+2*math.Pi*at/w.period)
		}
		all[i] = float32(math.Exp(-slow))
	}
	during := func(share, mean float64, f func(from, to float64)) {
		if share <= 0 {
			return
		}
		for at := -r.ExpFloat64() * mean; at < w.duration; {
			long := r.ExpFloat64() * mean
			f(at, at+long)
			at += long + r.ExpFloat64()*mean*(1-share)/share
		}
	}
	stalls := func(from, to, rate float64) {
		for at := from + r.ExpFloat64()/rate; at < to; at += r.ExpFloat64() / rate {
			long := r.ExpFloat64() * w.stall
			if w.tail > 0 {
				long = w.stall * (w.tail - 1) / w.tail * math.Pow(1-r.Float64(), -1/w.tail)
			}
			for i := max(0, int(at/cell)); i < min(n, int((at+long/1000)/cell)+1); i++ {
				all[i] = 0
				l.still[int(float64(i)*cell/bin)] = true
			}
		}
	}
	switch {
	case w.storm > 0:
		during(w.storm/w.storms, w.storm, func(from, to float64) { stalls(from, to, w.stalls*w.storms/w.storm) })
	case w.stalls > 0:
		stalls(0, w.duration, w.stalls)
	}
	for range w.servers {
		l.speed = append(l.speed, slices.Clone(all))
	}
	during(w.foreign, w.burst, func(from, to float64) {
		for s := range 1 + r.IntN(w.servers) {
			for i := max(0, int(from/cell)); i < min(n, int(to/cell)); i++ {
				l.speed[s][i] /= 2
			}
		}
	})
	return l
}

// serve returns when a server has done work (s) that it begins at an instant.
func (l *life) serve(server int, at, work float64) float64 {
	speeds := l.speed[server]
	for i := int(at / cell); i < len(speeds); i++ {
		end := float64(i+1) * cell
		if v := float64(speeds[i]); v > 0 {
			if did := (end - at) * v; did >= work {
				return at + work/v
			} else {
				work -= did
			}
		}
		at = end
	}
	return at + work
}

// treatment is what a scenario does to the tenant.
type treatment struct {
	times  float64 // multiplies every latency; 0: 1
	varies float64 // standard deviation of the log of a factor of every latency, another one in each round
	slower float64 // multiplies service times; 0: 1
	late   float64 // share of requests that wait for lateBy
	lateBy float64 // mean, ms
	fails  float64 // share of rounds in which service takes failBy times as long
	failBy float64
}

// arrivals are the instants at which a block's rounds get requests, s from the start of a round.
func (w world) arrivals(r *rand.Rand, long float64) (due []float64) {
	for at := r.ExpFloat64() / w.rate; at < long; at += r.ExpFloat64() / w.rate {
		due = append(due, at)
	}
	return due
}

// round runs one round from an instant on, and returns the latencies (µs, ascending) of the requests due after settling:
// of all, and of those that are calm, not due in a bin with a stall nor in the next three; and the end, with nothing left
// to do.
func (l *life) round(t treatment, at, settle float64, due []float64) (all, calm []float64, end float64) {
	mean := l.demand * float64(l.servers) / l.rate
	slower := max(t.slower, 1)
	if t.fails > 0 && l.r.Float64() < t.fails {
		slower *= t.failBy
	}
	times := max(t.times, 1)
	if t.varies > 0 {
		times *= math.Exp(t.varies * l.r.NormFloat64())
	}
	for _, d := range due {
		arrived := at + d
		server := 0
		for s := range l.free {
			if l.free[s] < l.free[server] {
				server = s
			}
		}
		work := mean * slower
		switch {
		case l.pareto > 0:
			work *= (l.pareto - 1) / l.pareto * math.Pow(1-l.r.Float64(), -1/l.pareto)
		case l.spread > 0:
			work *= math.Exp(l.spread*l.r.NormFloat64() - l.spread*l.spread/2)
		default:
			work *= l.r.ExpFloat64()
		}
		done := l.serve(server, max(arrived, l.free[server]), work)
		l.free[server] = done
		end = max(end, done)
		if t.late > 0 && l.r.Float64() < t.late {
			done += l.r.ExpFloat64() * t.lateBy / 1000
		}
		if d >= settle {
			us := 1e6 * (done - arrived) * times
			all = append(all, us)
			if !l.stood(arrived) {
				calm = append(calm, us)
			}
		}
	}
	slices.Sort(all)
	slices.Sort(calm)
	return all, calm, end
}

// rank is a percentile of ascending values, by nearest rank.
func rank(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, max(0, int(math.Ceil(p/100*float64(len(sorted))))-1))]
}

// stood reports whether the machine stood still in the bin of an instant or in one of the three before.
func (l *life) stood(at float64) bool {
	i := min(int(at/bin), len(l.still)-1)
	return slices.Contains(l.still[max(0, i-3):i+1], true)
}
