package detect

import (
	"math"
	"math/bits"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

// taking is a host of two CPUs that web shares with hog and mail, in short windows of 40 ms after seconds of what is
// usual. All figures are per second.
type taking struct {
	usual    map[string]float64 // CPUs that each uses at first; a tenth if it is not told
	windows  int                // short ones after that; 0 is 3
	use      map[string]float64 // CPUs that each uses in these; web 0.8, hog 1, mail 0.1
	busy     float64            // CPUs that are busy; 0 is 2
	waits    map[string]float64 // for whom web waits; itself 0.1, hog 0.08
	yields   bool               // hog is in the idle class
	late     bool               // hog is found once all are well
	seconds  int                // of what is usual; 0 is 70
	unread   bool               // of hog nothing is read with the short windows
	web, hog string             // CPUs that they may use; "" is both, of all
}

const near = 40 * watch.Millisecond

func (c taking) judge(t *testing.T) (d *Detector, found []Finding) {
	t.Helper()
	m, err := machine.Short("1s1n2c1t")
	if err != nil {
		t.Fatal(err)
	}
	d, err = New(Config{Machine: m, Near: near})
	if err != nil {
		t.Fatal(err)
	}
	or := func(v, other float64) float64 {
		if v == 0 {
			return other
		}
		return v
	}
	cpus := func(s string) cpuset.Set {
		if s == "" {
			return cpuset.Set{}
		}
		return cpuset.MustParse(s)
	}
	d.Track(Workload{Group: "web", Sensitive: true, CPUs: cpus(c.web)})
	hog := Workload{Group: "hog", CPUs: cpus(c.hog), Yields: c.yields}
	d.Track(Workload{Group: "mail"})
	if !c.late {
		d.Track(hog)
	}
	used := map[string]float64{}
	seconds := c.seconds
	if seconds == 0 {
		seconds = 70
	}
	now := watch.Time(0)
	sample := func(group string, q watch.Quantity, by string, v float64) watch.Sample {
		if group == "" {
			return watch.Sample{Time: now, Quantity: q, Value: v}
		}
		return watch.Sample{Time: now, Subject: watch.Subject{Scope: watch.Group, Name: group}, Quantity: q, By: by, Value: v}
	}
	waited := map[string]float64{}
	short := func(window watch.Time, use, waits map[string]float64, busy float64) {
		now += window
		for who := range map[string]bool{"web": true, "hog": true, "mail": true} {
			used[who] += use[who] * window.Seconds()
			waited[who] += waits[who] * window.Seconds()
		}
		used[""] += busy * window.Seconds()
		waited[""] += (waits["web"] + waits["hog"] + waits["mail"]) * window.Seconds()
		samples := []watch.Sample{sample("", watch.CPUTime, "", used[""]), sample("", watch.Steal, "", 0)}
		for cpu := range 2 {
			s := sample("", watch.CPUTime, "", used[""]/2)
			s.Subject.Part = watch.Part{Kind: watch.CPU, ID: cpu}
			samples = append(samples, s)
		}
		samples = append(samples, sample("web", watch.CPUTime, "", used["web"]), sample("web", watch.Queued, "", waited[""]), sample("web", watch.CPUWait, "", waited[""]))
		for _, who := range []string{"web", "hog", "mail"} {
			samples = append(samples, sample("web", watch.QueuedBy, who, waited[who]))
		}
		for _, q := range []watch.Quantity{watch.QueuedKernel, watch.QueuedIdle, watch.QueuedThrottled, watch.CPUPeriods, watch.CPUThrottledPeriods, watch.CPUThrottled} {
			samples = append(samples, sample("web", q, "", 0))
		}
		samples = append(samples, sample("mail", watch.CPUTime, "", used["mail"]))
		if !c.unread {
			samples = append(samples, sample("hog", watch.CPUTime, "", used["hog"]))
		}
		d.Near().Observe(samples)
		found = d.Near().Judge(now)
	}
	calm := map[string]float64{"web": or(c.usual["web"], 0.8), "hog": or(c.usual["hog"], 0.1), "mail": or(c.usual["mail"], 0.1)}
	for second := range seconds {
		for range 25 {
			short(near, calm, map[string]float64{"web": 0.1, "hog": 0.001}, calm["web"]+calm["hog"]+calm["mail"])
		}
		far := []watch.Sample{sample("mail", watch.CPUTime, "", used["mail"])}
		if !c.late || second == seconds-1 {
			d.Track(hog)
			far = append(far, sample("hog", watch.CPUTime, "", used["hog"]))
		}
		d.Observe(far)
		d.Judge(now)
	}
	use := map[string]float64{"web": or(c.use["web"], 0.8), "hog": or(c.use["hog"], 1), "mail": or(c.use["mail"], 0.1)}
	waits := c.waits
	if waits == nil {
		waits = map[string]float64{"web": 0.1, "hog": 0.08}
	}
	windows := c.windows
	if windows == 0 {
		windows = 3
	}
	for range windows {
		short(near, use, waits, or(c.busy, 2))
	}
	return d, found
}

// Whom the near detector accuses of having begun to take a service's CPUs, by value.
func TestTakes(t *testing.T) {
	t.Parallel()
	of := func(web, hog, mail float64) map[string]float64 {
		return map[string]float64{"web": web, "hog": hog, "mail": mail}
	}
	own := of(0.9, 0.01, 0)
	for name, c := range map[string]struct {
		taking
		accused string
	}{
		"by what it is waited for, that is no symptom":    {taking{}, "hog"},
		"half as long, and more":                          {taking{waits: of(0.1, 0.053, 0)}, "hog"},
		"less than half as long as a symptom":             {taking{waits: of(0.1, 0.045, 0)}, ""},
		"as the service waits less for itself":            {taking{waits: of(0.02, 0.08, 0)}, "hog"},
		"two windows":                                     {taking{windows: 2}, ""},
		"CPUs that are not full":                          {taking{busy: 1.79}, ""},
		"full ones that the idle class fills":             {taking{use: of(0.8, 0.89, 0.1)}, ""},
		"full ones by the groups":                         {taking{use: of(0.8, 0.91, 0.1)}, "hog"},
		"full ones of the service itself":                 {taking{use: of(1.2, 0.7, 0.1), waits: of(0.1, 0.12, 0)}, ""},
		"one that has used as much for a minute":          {taking{usual: of(0.8, 1, 0.1)}, ""},
		"half as much for a minute":                       {taking{usual: of(0.8, 0.51, 0.1), waits: of(0.1, 0.2, 0)}, ""},
		"less than half as much":                          {taking{usual: of(0.8, 0.49, 0.1), waits: of(0.1, 0.12, 0)}, "hog"},
		"in the idle class":                               {taking{yields: true}, ""},
		"less than another, which is not new":             {taking{usual: of(0.8, 0.1, 0.6), use: of(0.8, 0.55, 0.6)}, ""},
		"one of which nothing is read":                    {taking{unread: true}, ""},
		"one that was found after all were well":          {taking{late: true, usual: of(0.8, 1, 0.1)}, "hog"},
		"as its threads wait for each other":              {taking{waits: own}, "hog"},
		"as they do, and the service fills its CPUs":      {taking{waits: of(1.3, 0.01, 0), usual: of(1.1, 0.1, 0.1), use: of(1.2, 0.8, 0.1), busy: 2.2}, ""},
		"as they do, and it has twice the work":           {taking{waits: own, usual: of(0.4, 0.1, 0.1)}, ""},
		"as they do, beside one that was always there":    {taking{waits: own, usual: of(0.8, 1, 0.1)}, ""},
		"as they do, and hog may have taken others' CPUs": {taking{waits: own, web: "0"}, ""},
	} {
		d, found := c.judge(t)
		i := slices.IndexFunc(found, func(f Finding) bool { return f.Resource == CPU && f.Takes })
		accused := ""
		if i >= 0 {
			accused = found[i].Suspect
		}
		if accused != c.accused {
			t.Errorf("%s: %q, want %q; %+v", name, accused, c.accused, found)
		}
		if i < 0 {
			continue
		}
		f := found[i]
		if w := d.Near().byGroup["web"]; bits.OnesCount8(w.history[CPU].agree) >= agree {
			continue // it is accused by its wait, too
		}
		for _, e := range f.Evidence {
			if e.Value < e.Threshold {
				t.Errorf("%s: %v", name, e)
			}
		}
		if last := f.Evidence[len(f.Evidence)-1]; last.Subject.Name != accused || last.Signal != UseShare || f.Share != last.Value && math.Abs(f.Share-last.Value) > 0.2 {
			t.Errorf("%s: %+v", name, f)
		}
		if s, _ := d.Near().Symptom("web", CPU); s.Evident != 0 {
			t.Errorf("%s: evident %g, by fewer windows than make a finding", name, s.Evident)
		}
	}
}

// One is not accused any more once the newest window does not say so.
func TestTakenBy(t *testing.T) {
	t.Parallel()
	for agree, want := range map[uint8]string{0b111: "hog", 0b1110: "", 0b11: ""} {
		w := &workload{}
		w.takes = history{agree: agree, suspects: [lookBack]string{"hog", "hog", "hog", "hog", "hog"}}
		if got := w.takenBy(); got != want {
			t.Errorf("%b: %q, want %q", agree, got, want)
		}
	}
	w := &workload{}
	w.takes = history{agree: 0b1111, suspects: [lookBack]string{"mail", "hog", "hog", "hog"}}
	if got := w.takenBy(); got != "" {
		t.Errorf("%q, though the newest window accuses another", got)
	}
}

// The CPU time of suspects is known for the share that is expected of a wait, and forgotten when it is read no more.
func TestUsesOfSuspects(t *testing.T) {
	t.Parallel()
	d, _ := taking{}.judge(t)
	if r, known := d.Near().RunDelay("web", "hog", 3); !known || math.Abs(r.UseShare-1/1.2) > 1e-6 {
		t.Errorf("%+v: the hog uses 1 of 1.2 CPUs that others do", r)
	}
	d.Near().forgetUses(d.Near().byGroup["web"].to + samples*near)
	if len(d.Near().uses) == 0 {
		t.Error("forgotten too soon")
	}
	if d.Near().forgetUses(d.Near().byGroup["web"].to + (samples+1)*near); len(d.Near().uses) > 0 {
		t.Errorf("%v is kept", d.Near().uses)
	}
}
