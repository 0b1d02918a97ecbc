package predict

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/kube/batch"
)

const gib = 1 << 30

var begin = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// run is so many samples of CPU time, one a minute.
type run struct {
	n     int
	milli int64
}

func fill(runs ...run) *model {
	m, now := &model{}, begin
	for _, r := range runs {
		for range r.n {
			now = now.Add(Every)
			m.add(now, batch.Amount{Milli: r.milli})
		}
	}
	return m
}

// top is what a peak is told as where all samples are the same.
func top(s *scale, value int64) int64 { return int64(math.Round(s.end(s.bucket(value)))) }

func TestPeak(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		m    *model
		want int64
	}{
		"nothing":                          {&model{}, 0},
		"no use":                           {fill(run{10, 0}), 25},
		"one value":                        {fill(run{100, 500}), 539}, // 25 x (1.05^15 - 1) / 0.05
		"4 % are above the quantile":       {fill(run{96, 100}, run{4, 2000}), top(cpu, 100)},
		"6 % are not":                      {fill(run{94, 100}, run{6, 2000}), top(cpu, 2000)},
		"two half-lives leave a quarter":   {fill(run{720, 2000}, run{1440, 100}), top(cpu, 2000)},
		"five half-lives leave 3 %":        {fill(run{720, 2000}, run{3600, 100}), top(cpu, 100)},
		"more than the last bucket begins": {fill(run{1, math.MaxInt64}), int64(math.Round(cpu.end(cpu.buckets - 1)))},
		"less than nothing":                {fill(run{1, -5}), 25},
	} {
		if got := c.m.peak().Milli; got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	// The clock is set back: the sample counts as one of now, and those after it as of later.
	m := fill(run{100, 100})
	seen, back := m.seen, begin.Add(-time.Hour)
	m.add(back, batch.Amount{Milli: 100})
	m.add(back.Add(Every), batch.Amount{Milli: 100})
	if m.seen != seen+Every || m.peak().Milli != top(cpu, 100) {
		t.Errorf("seen for %s, before %s", m.seen, seen)
	}
}

// A peak is no less than the quantile of the samples by their weights, and above it by no more
// than its bucket is wide.
func TestQuantile(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 18))
		s := cpu
		if seed%2 == 1 {
			s = memory
		}
		type sample struct {
			value int64
			at    time.Time
		}
		m, now, samples := &model{}, begin, []sample(nil)
		for range 1 + random.IntN(400) {
			now = now.Add(time.Duration(random.IntN(60)) * time.Minute)
			v := int64(math.Exp(random.Float64() * math.Log(s.end(s.buckets-2))))
			m.add(now, batch.Amount{Milli: v, Memory: v})
			samples = append(samples, sample{v, now})
		}
		slices.SortFunc(samples, func(a, b sample) int { return cmp.Compare(a.value, b.value) })
		weight := func(at time.Time) float64 { return math.Exp2(-float64(now.Sub(at)) / float64(s.half)) }
		total := 0.0
		for _, one := range samples {
			total += weight(one.at)
		}
		at := func(quantile float64) (value int64) {
			sum := 0.0
			for _, one := range samples {
				value = one.value
				if sum += weight(one.at); sum >= quantile*total {
					break
				}
			}
			return value
		}
		got := m.peak().Milli
		if s == memory {
			got = m.peak().Memory
		}
		low, high := at(s.quantile-0.01), at(s.quantile+0.001) // weights that are next to nothing are left out
		if got+1 < low || float64(got) > 1.05*float64(high)+s.first+1 {
			t.Errorf("seed %d: %d, and the quantile of %d samples is from %d to %d", seed, got, len(samples), low, high)
		}
	}
}

// prod makes a prod pod that requests 4 CPUs and 8 GiB.
func prod(uid string, milli, bytes int64) Pod {
	return Pod{UID: uid, Pod: batch.Pod{Request: batch.Amount{Milli: 4000, Memory: 8 * gib}, Used: &batch.Amount{Milli: milli, Memory: bytes}}}
}

var (
	node   = batch.Amount{Milli: 64_000, Memory: 256 * gib}
	system = batch.Amount{Milli: 500, Memory: gib}
)

// learn has a predictor look at pods for a time, each minute.
func learn(p *Predictor, from time.Time, d time.Duration, pods ...Pod) time.Time {
	now := from
	for ; now.Sub(from) <= d; now = now.Add(Every) {
		p.Learn(now, system, pods)
	}
	return now
}

func TestReclaimable(t *testing.T) {
	t.Parallel()
	raised := func(s *scale, values ...int64) (sum int64) {
		for _, v := range values {
			sum += top(s, v)
		}
		return sum + sum*10/100
	}
	a, b := prod("a", 1000, 2*gib), prod("b", 2000, gib)
	with := func(p Pod, change func(*Pod)) Pod { change(&p); return p }
	// Of both pods at once 3 CPUs and 3 GiB are used, and half a CPU and 1 GiB by the system.
	both := batch.Amount{Milli: 8000 - raised(cpu, 3000, 500), Memory: 16*gib - raised(memory, 3*gib, gib)}
	for name, c := range map[string]struct {
		settings Settings
		learnt   time.Duration
		before   []Pod // that are learnt of
		now      []Pod
		node     batch.Amount
		want     batch.Amount
	}{
		"a day is not over":       {Settings{}, 23 * time.Hour, []Pod{a, b}, []Pod{a, b}, node, batch.Amount{}},
		"all at once":             {Settings{}, 25 * time.Hour, []Pod{a, b}, []Pod{a, b}, node, both},
		"a shorter start":         {Settings{ColdStart: time.Hour}, time.Hour, []Pod{a, b}, []Pod{a, b}, node, both},
		"no pods":                 {Settings{}, 25 * time.Hour, nil, nil, node, batch.Amount{}},
		"a pod that is new":       {Settings{}, 25 * time.Hour, []Pod{a}, []Pod{a, b}, node, batch.Amount{Milli: 4000 - raised(cpu, 1000), Memory: 8*gib - raised(memory, 2*gib)}},
		"one that is being ended": {Settings{}, 25 * time.Hour, []Pod{a, b}, []Pod{a, with(b, func(p *Pod) { p.Ending = true })}, node, batch.Amount{Milli: 4000 - raised(cpu, 3000, 500), Memory: 8*gib - raised(memory, 3*gib, gib)}},
		"mid and batch pods":      {Settings{}, 25 * time.Hour, []Pod{with(a, func(p *Pod) { p.Kind = batch.Mid }), with(b, func(p *Pod) { p.Kind = batch.Batch })}, []Pod{with(a, func(p *Pod) { p.Kind = batch.Mid }), with(b, func(p *Pod) { p.Kind = batch.Batch })}, node, batch.Amount{}},
		"more is requested than there is": {
			Settings{}, 25 * time.Hour, []Pod{a, b}, []Pod{a, b}, batch.Amount{Milli: 5000, Memory: 6 * gib},
			batch.Amount{Milli: 5000 - raised(cpu, 3000, 500), Memory: 6*gib - raised(memory, 3*gib, gib)},
		},
		"an LSE pod has its CPUs, used or not": {
			Settings{}, 25 * time.Hour, []Pod{a, with(b, func(p *Pod) { p.LSE = true })}, []Pod{a, with(b, func(p *Pod) { p.LSE = true })}, node,
			batch.Amount{Milli: 4000 - raised(cpu, 1000, 500), Memory: both.Memory},
		},
		"a pod without figures": {
			Settings{}, 25 * time.Hour, []Pod{a, with(b, func(p *Pod) { p.Used = nil })}, []Pod{a, b}, node,
			batch.Amount{Milli: 4000 - raised(cpu, 1000), Memory: 8*gib - raised(memory, 2*gib)},
		},
		"used up":        {Settings{}, 25 * time.Hour, []Pod{prod("a", 5000, 9*gib)}, []Pod{a}, node, batch.Amount{}},
		"another margin": {Settings{Margin: 100}, 25 * time.Hour, []Pod{a, b}, []Pod{a, b}, node, batch.Amount{Milli: 8000 - 2*(top(cpu, 3000)+top(cpu, 500)), Memory: 16*gib - 2*(top(memory, 3*gib)+top(memory, gib))}},
	} {
		p := New(c.settings)
		now := learn(p, begin, c.learnt, c.before...)
		got := p.Reclaimable(now, c.node, c.now)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	// Two pods that are never busy at the same time: all at once they need less, and what each may
	// need for itself counts.
	p := New(Settings{ColdStart: time.Hour})
	now := begin
	for i := range 200 {
		now = now.Add(Every)
		one, other := int64(2000), int64(0)
		if i%2 == 1 {
			one, other = other, one
		}
		p.Learn(now, batch.Amount{}, []Pod{prod("a", one, 0), prod("b", other, 0)})
	}
	if got, want := p.Reclaimable(now, node, []Pod{a, b}).Milli, 8000-2*raised(cpu, 2000); got != want {
		t.Errorf("in turns: %d, want %d", got, want)
	}
}

// What is reclaimable is never more than is requested, or than there is, and more use never makes
// it more.
func TestReclaimableBounds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 19))
		little, more := New(Settings{ColdStart: time.Hour}), New(Settings{ColdStart: time.Hour})
		pods := make([]Pod, 1+random.IntN(5))
		var requests batch.Amount
		for i := range pods {
			pods[i] = prod(fmt.Sprint(i), 0, 0)
			pods[i].Request = batch.Amount{Milli: random.Int64N(8000), Memory: random.Int64N(16 * gib)}
			pods[i].LSE, pods[i].Ending = random.IntN(5) == 0, random.IntN(5) == 0
			requests = plus(requests, pods[i].Request)
		}
		capacity := batch.Amount{Milli: random.Int64N(32_000), Memory: random.Int64N(64 * gib)}
		now := begin
		for range 90 {
			now = now.Add(Every)
			times := make([]Pod, len(pods))
			for i := range pods {
				used := batch.Amount{Milli: random.Int64N(4000), Memory: random.Int64N(8 * gib)}
				pods[i].Used = &used
				times[i] = pods[i]
				times[i].Used = &batch.Amount{Milli: used.Milli + random.Int64N(1000), Memory: used.Memory + random.Int64N(gib)}
			}
			little.Learn(now, system, pods)
			more.Learn(now, plus(system, batch.Amount{Milli: random.Int64N(100), Memory: random.Int64N(gib)}), times)
		}
		got, less := little.Reclaimable(now, capacity, pods), more.Reclaimable(now, capacity, pods)
		if got.Milli < 0 || got.Memory < 0 || smaller(got, smaller(requests, capacity)) != got || smaller(less, got) != less {
			t.Errorf("seed %d: %+v, with more use %+v, of %+v requested and %+v", seed, got, less, requests, capacity)
		}
	}
}

func TestForget(t *testing.T) {
	t.Parallel()
	p := New(Settings{})
	now := learn(p, begin, 10*time.Minute, prod("a", 1000, gib), prod("b", 1000, gib))
	now = learn(p, now, 25*time.Minute, prod("a", 1000, gib))
	if len(p.pods) != 2 {
		t.Errorf("%d pods, and b was there a moment ago", len(p.pods))
	}
	now = learn(p, now, 10*time.Minute, prod("a", 1000, gib))
	if len(p.pods) != 1 || p.pods["a"] == nil {
		t.Errorf("%d pods are kept", len(p.pods))
	}
	// After half a day without figures, those that are still there keep what they have.
	now = learn(p, now.Add(12*time.Hour), 0, prod("a", 1000, gib))
	if m := p.pods["a"]; m == nil || m.seen < 45*time.Minute {
		t.Errorf("a was learnt anew: %+v", m)
	}
	learn(p, now.Add(25*time.Hour), 0, prod("a", 1000, gib))
	if m := p.pods["a"]; m == nil || m.seen != 0 {
		t.Errorf("a is not learnt anew after a day without figures: %+v", m)
	}
	var many []Pod
	for i := range maxPods + 100 {
		many = append(many, prod(fmt.Sprint("many", i), 1, 1))
	}
	p.Learn(now, system, many)
	if len(p.pods) > maxPods {
		t.Errorf("%d pods are kept", len(p.pods))
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	p := New(Settings{})
	pods := []Pod{prod("a", 1000, 2*gib), prod("b", 300, gib)}
	now := learn(p, begin, 25*time.Hour, pods...)
	learnt, err := p.Text()
	if err != nil {
		t.Fatal(err)
	}
	q := New(Settings{})
	if err := q.Restore(now, learnt); err != nil {
		t.Fatal(err)
	}
	if got, want := q.Reclaimable(now, node, pods), p.Reclaimable(now, node, pods); got != want || want == (batch.Amount{}) {
		t.Errorf("after a restart %+v, before %+v", got, want)
	}
	if err := q.Restore(now.Add(-time.Hour), learnt); err != nil { // the clock was set back
		t.Error(err)
	}
	if text, err := New(Settings{}).Text(); err != nil || New(Settings{}).Restore(now, text) != nil {
		t.Errorf("of nothing: %s, %v", text, err)
	}
	good := string(learnt)
	for name, c := range map[string]struct{ text, want string }{
		"no text":         {"", "EOF"},
		"cut off":         {good[:len(good)/2], "EOF"},
		"another version": {strings.Replace(good, `"version":2`, `"version":1`, 1), "version 1: want 2"},
		"a field":         {strings.Replace(good, `"prod"`, `"prods"`, 1), "prods"},
		"no model":        {`{"version":2,"pods":{"x":null}}`, `pod "x": nothing`},
		"no samples":      {`{"version":2,"pods":{"x":{}}}`, `pod "x": samples of 0 s`},
		"of the future":   {strings.ReplaceAll(good, `"last":"2026`, `"last":"2027`), ErrClock.Error()},
		"seen too long":   {`{"version":2,"prod":{"last":"2026-03-01T00:00:00Z","seenSeconds":9000000000}}`, "samples of 9000000000 s"},
		"seen too little": {`{"version":2,"prod":{"last":"2026-03-01T00:00:00Z","seenSeconds":-1}}`, "samples of -1 s"},
		"a bucket":        {`{"version":2,"prod":{"last":"2026-03-01T00:00:00Z","cpu":{"100000":1}}}`, "bucket 100000"},
		"a weight":        {`{"version":2,"prod":{"last":"2026-03-01T00:00:00Z","memory":{"1":-1}}}`, "bucket 1: -1"},
		"a large weight":  {`{"version":2,"prod":{"last":"2026-03-01T00:00:00Z","memory":{"1":90000000000}}}`, "bucket 1: 90000000000"},
		"too long":        {strings.Repeat(" ", MaxText+1), "longer than 32 MiB"},
		"too many pods":   {`{"version":2,"pods":{` + strings.Join(slices.Collect(names(maxPods+1)), ",") + `}}`, "2001 pods"},
	} {
		before := q.Reclaimable(now, node, pods)
		if err := q.Restore(now, []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if q.Reclaimable(now, node, pods) != before {
			t.Errorf("%s: something was taken", name)
		}
	}
}

func names(n int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for i := range n {
			if !yield(fmt.Sprintf(`"%d":null`, i)) {
				return
			}
		}
	}
}

// Nothing is predicted of few samples, however long ago the first was, and of those that are too old.
func TestColdStart(t *testing.T) {
	t.Parallel()
	pods := []Pod{prod("a", 1000, gib)}
	for name, c := range map[string]struct {
		learnt  time.Duration // without a break
		off     time.Duration // then
		again   time.Duration // then
		predict bool
	}{
		"a day":                              {25 * time.Hour, 0, 0, true},
		"a short restart":                    {25 * time.Hour, 10 * time.Minute, 0, true},
		"a restart in the first day":         {20 * time.Hour, 10 * time.Minute, 5 * time.Hour, true},
		"ten minutes, and half a day off":    {10 * time.Minute, 12 * time.Hour, 12 * time.Hour, false},
		"ten minutes, and a day off":         {10 * time.Minute, 24 * time.Hour, time.Minute, false},
		"ten minutes, and then two days":     {10 * time.Minute, 24 * time.Hour, 25 * time.Hour, true},
		"one sample of a wrong clock":        {0, 50 * 365 * 24 * time.Hour, 10 * time.Minute, false},
		"a week off":                         {25 * time.Hour, 7 * 24 * time.Hour, 0, false},
		"ten minutes after a week off":       {25 * time.Hour, 7 * 24 * time.Hour, 10 * time.Minute, false},
		"a clock that is a week behind then": {25 * time.Hour, -7 * 24 * time.Hour, 10 * time.Minute, false},
	} {
		p := New(Settings{})
		now := learn(p, begin, c.learnt, pods...).Add(c.off)
		text, err := p.Text()
		if err != nil {
			t.Fatal(err)
		}
		q := New(Settings{}) // after a restart; p is one whose meter failed
		if c.off >= 0 {      // else it is refused
			if err := q.Restore(now, text); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for _, p := range []*Predictor{p, q} {
			if c.again > 0 {
				learn(p, now, c.again, pods...)
			}
			got := p.Reclaimable(now.Add(c.again), node, pods)
			if (got != batch.Amount{}) != c.predict {
				t.Errorf("%s: %+v is reclaimable", name, got)
			}
		}
	}
}

func FuzzRestore(f *testing.F) {
	p := New(Settings{})
	learn(p, begin, time.Hour, prod("a", 1000, gib))
	text, err := p.Text()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		q := New(Settings{ColdStart: time.Minute})
		now, pods := begin.Add(2*time.Hour), []Pod{prod("a", 1000, gib)}
		if q.Restore(now, text) != nil {
			return
		}
		q.Learn(now, system, pods)
		if got := q.Reclaimable(now, node, pods); smaller(got, pods[0].Request) != got || got.Milli < 0 || got.Memory < 0 {
			t.Errorf("%+v", got)
		}
		if _, err := q.Text(); err != nil {
			t.Error(err)
		}
	})
}
