package detect

import (
	"maps"
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
	silent   bool               // nor of mail after those seconds
	unknown  bool               // hog is not among the groups that were found
	known    int                // for so many seconds more one that was found late is
	bursts   bool               // hog uses as much in one second of ten
	grew     int                // hog has used as much for the last so many seconds
	lull     bool               // in the last short window but one the CPUs are not full
	stolen   int                // the short window, from 1 on, in which a CPU is stolen
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
	if !c.late && !c.unknown {
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
	waited, steal, silent := map[string]float64{}, 0.0, false
	short := func(window watch.Time, use, waits map[string]float64, busy float64) {
		now += window
		for who := range map[string]bool{"web": true, "hog": true, "mail": true} {
			used[who] += use[who] * window.Seconds()
			waited[who] += waits[who] * window.Seconds()
		}
		used[""] += busy * window.Seconds()
		waited[""] += (waits["web"] + waits["hog"] + waits["mail"]) * window.Seconds()
		samples := []watch.Sample{sample("", watch.CPUTime, "", used[""]), sample("", watch.Steal, "", steal)}
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
		if !silent {
			samples = append(samples, sample("mail", watch.CPUTime, "", used["mail"]))
		}
		if !c.unread {
			samples = append(samples, sample("hog", watch.CPUTime, "", used["hog"]))
		}
		d.Near().Observe(samples)
		found = d.Near().Judge(now)
	}
	calm := map[string]float64{"web": or(c.usual["web"], 0.8), "hog": or(c.usual["hog"], 0.1), "mail": or(c.usual["mail"], 0.1)}
	use := map[string]float64{"web": or(c.use["web"], 0.8), "hog": or(c.use["hog"], 1), "mail": or(c.use["mail"], 0.1)}
	for second := range max(seconds, 0) {
		much := maps.Clone(calm)
		if c.bursts && second%10 == 0 || seconds-second <= c.grew {
			much["hog"] = use["hog"]
		}
		for range 25 {
			short(near, much, map[string]float64{"web": 0.1, "hog": 0.001}, much["web"]+much["hog"]+much["mail"])
		}
		far := []watch.Sample{sample("mail", watch.CPUTime, "", used["mail"])}
		if !c.unknown && (!c.late || second >= seconds-1-c.known) {
			d.Track(hog)
			far = append(far, sample("hog", watch.CPUTime, "", used["hog"]))
		}
		d.Observe(far)
		d.Judge(now)
	}
	silent = c.silent
	waits := c.waits
	if waits == nil {
		waits = map[string]float64{"web": 0.1, "hog": 0.08}
	}
	windows := c.windows
	if windows == 0 {
		windows = 3
	}
	for i := range windows {
		busy := or(c.busy, 2)
		if c.lull && i == windows-2 {
			busy = 1.7
		}
		if i+1 == c.stolen {
			steal += near.Seconds()
		}
		short(near, use, waits, busy)
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
	one := taking{web: "0", usual: of(0.5, 0.05, 0.05), use: of(0.5, 0.45, 0.05), waits: of(0.1, 0.055, 0), windows: 6} // a CPU
	on := func(c taking, hog string, waits map[string]float64) taking {
		if c.hog = hog; waits != nil {
			c.waits = waits
		}
		return c
	}
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
		"full ones of the service itself":                 {taking{use: of(1.2, 0.7, 0.1), waits: of(0.1, 0.12, 0), windows: 6}, ""},
		"one that has used as much for a minute":          {taking{usual: of(0.8, 1, 0.1)}, ""},
		"half as much for a minute":                       {taking{usual: of(0.8, 0.51, 0.1), waits: of(0.1, 0.2, 0)}, ""},
		"less than half as much":                          {taking{usual: of(0.8, 0.49, 0.1), waits: of(0.1, 0.12, 0)}, "hog"},
		"in the idle class":                               {taking{yields: true}, ""},
		"less than another, which is not new":             {taking{usual: of(0.8, 0.1, 0.6), use: of(0.8, 0.55, 0.6)}, ""},
		"one of which nothing is read":                    {taking{unread: true}, ""},
		"one that was found after all were well":          {taking{late: true, usual: of(0.8, 1, 0.1)}, "hog"},
		"as its threads wait for each other":              {taking{waits: own}, "hog"},
		"as they do, and the service fills its CPUs":      {taking{waits: of(1.3, 0.01, 0), usual: of(1.1, 0.1, 0.1), use: of(1.2, 0.8, 0.1), busy: 2.2, windows: 6}, ""},
		"as they do, hardly longer than usual":            {taking{waits: of(0.12, 0.001, 0)}, ""},
		"as they do, and it has twice the work":           {taking{waits: own, usual: of(0.4, 0.1, 0.1)}, ""},
		"as they do, beside one that was always there":    {taking{waits: own, usual: of(0.8, 1, 0.1)}, ""},
		"as they do, and hog may have taken others' CPUs": {on(one, "", own), ""},
		"as they do, and hog has no others":               {on(one, "0", own), "hog"},
		"as they do, on all CPUs by name":                 {taking{waits: own, web: "0-1"}, "hog"},
		"as mail has the CPU, not hog":                    {taking{waits: of(0.1, 0.01, 0.15)}, ""},
		"of one CPU":                                      {on(one, "", nil), "hog"},
		"of one CPU, which it may not use":                {on(one, "1", nil), ""},
		"half as long, and less for what is new":          {taking{waits: of(0.1, 0.05, 0)}, ""},
		"less than 0.25 CPUs":                             {taking{web: "0", usual: of(0.5, 0.1, 0.2), use: of(0.5, 0.24, 0.2), waits: of(0.1, 0.065, 0), windows: 6}, ""},
		"0.25 CPUs":                                       {taking{web: "0", usual: of(0.5, 0.1, 0.2), use: of(0.5, 0.26, 0.2), waits: of(0.1, 0.065, 0), windows: 7}, "hog"},
		"less than 40 % of others' use":                   {taking{usual: of(1.15, 0.1, 0.1), use: of(1.15, 0.335, 0.33), waits: of(0.1, 0.11, 0), windows: 6}, ""},
		"40 % of it":                                      {taking{usual: of(1.15, 0.1, 0.1), use: of(1.15, 0.36, 0.3), waits: of(0.1, 0.11, 0), windows: 7}, "hog"},
		"most in the newest windows only":                 {taking{usual: of(0.8, 0.1, 0.9), use: of(0.7, 0.7, 0.6)}, ""},
		"more than the host is told to":                   {taking{use: of(0.8, 1.05, 0.1), busy: 1.81, windows: 9}, "hog"},
		"full ones but for a window":                      {taking{lull: true}, "hog"},
		"as nothing is read of another":                   {taking{silent: true, use: of(0.8, 1.05, 0.1)}, "hog"},
		"one that nobody has found":                       {taking{unknown: true}, "hog"},
		"one that nobody has, before all were well":       {taking{unknown: true, seconds: -1, windows: 6}, ""},
		"one that was found more than a minute ago":       {taking{late: true, known: 62, seconds: 130, usual: of(0.8, 1, 0.1)}, ""},
		"one of which less than a minute is known":        {taking{seconds: 20, usual: of(0.8, 1, 0.1)}, ""},
		"one that has used as much now and then":          {taking{bursts: true}, "hog"},
		"one that has used as much for half a minute":     {taking{grew: 30}, "hog"},
		"before a window in which time is stolen":         {taking{windows: 5, stolen: 4}, ""},
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
		if by := d.Near().byGroup["web"].takenBy(); by != c.accused {
			t.Errorf("%s: the windows say %q, want %q", name, by, c.accused)
		}
		if i < 0 {
			continue
		}
		f := found[i]
		if f.Share > 1 {
			t.Errorf("%s: a share of %g", name, f.Share)
		}
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
	if r, known := d.Near().RunDelay("web", "hog", 3); !known || !(math.Abs(r.UseShare-1/1.2) <= 1e-6) {
		t.Errorf("%+v: the hog uses 1 of 1.2 CPUs that others do", r)
	}
	if v := d.Near().useOf("hog", 0, 0); !math.IsNaN(v) {
		t.Errorf("it uses %g CPUs at a time of which nothing is known", v)
	}
	last := d.Near().byGroup["web"].to
	for name, s := range map[string]watch.Sample{
		"a program":       {Subject: watch.Subject{Scope: watch.Process, Name: "make"}, Quantity: watch.CPUTime},
		"part of a group": {Subject: watch.Subject{Scope: watch.Group, Name: "batch", Part: watch.Part{Kind: watch.CPU, ID: 1}}, Quantity: watch.CPUTime},
		"what it waits":   {Subject: watch.Subject{Scope: watch.Group, Name: "batch"}, Quantity: watch.CPUWait},
	} {
		s.Time, s.Value = last, 1
		if d.Near().Observe([]watch.Sample{s}); len(d.Near().uses) != 2 {
			t.Errorf("%s is taken for the use of a group: %v", name, slices.Sorted(maps.Keys(d.Near().uses)))
		}
	}
	d.Observe([]watch.Sample{{Time: last, Subject: watch.Subject{Scope: watch.Group, Name: "batch"}, Quantity: watch.CPUTime, Value: 1}})
	if len(d.uses) > 0 {
		t.Errorf("%v: by the windows of a second who is no workload is known", d.uses)
	}
	if d.Near().Judge(last + samples*near); len(d.Near().uses) != 2 {
		t.Error("forgotten too soon")
	}
	if d.Near().Judge(last + (samples+1)*near); len(d.Near().uses) > 0 {
		t.Errorf("%v is kept", d.Near().uses)
	}
}

// What is said against who has begun to take CPUs: what it has of others' use, and how long the service waits for
// what is new, or that its threads wait for each other.
func TestTakesEvidence(t *testing.T) {
	t.Parallel()
	for signal, c := range map[Signal]struct {
		taking
		value, share float64
	}{
		// Of the CPU time that others use over the last five windows, 0.7, 0.77 and 0.8.
		Imposed:    {taking{waits: map[string]float64{"web": 0.02, "hog": 0.08}}, 0.9 * 0.08 / 0.9, (0.28/0.4 + 0.46/0.6 + 0.64/0.8) / 3},
		SelfQueued: {taking{waits: map[string]float64{"web": 0.9, "hog": 0.01}}, 0.9 / 0.91, (0.28/0.4 + 0.46/0.6 + 0.64/0.8) / 3},
	} {
		_, found := c.judge(t)
		i := slices.IndexFunc(found, func(f Finding) bool { return f.Takes })
		if i < 0 {
			t.Fatalf("%v: %v", signal, found)
		}
		f := found[i]
		at := slices.IndexFunc(f.Evidence, func(e Evidence) bool { return e.Signal == signal })
		if at < 0 || math.Abs(f.Evidence[at].Value-c.value) > 1e-3 || math.Abs(f.Share-c.share) > 1e-3 {
			t.Errorf("%v: share %g, %+v; want %g and %g", signal, f.Share, f.Evidence, c.share, c.value)
		}
	}
}

// Of two that use as much one is named, always the same.
func TestTakerOfTwo(t *testing.T) {
	t.Parallel()
	d, _ := taking{use: map[string]float64{"web": 0.8, "hog": 0.6, "mail": 0.6}}.judge(t)
	for range 20 {
		if by := d.Near().takerOf(d.Near().byGroup["web"]); by.name != "hog" {
			t.Fatalf("%+v", by)
		}
	}
}

// What is waited for who has begun to take CPUs does not become usual.
func TestTakesIsNotUsual(t *testing.T) {
	t.Parallel()
	d, _ := taking{windows: 200, waits: map[string]float64{"web": 0.02, "hog": 0.08}}.judge(t)
	if at := d.Near().byGroup["web"].find(watch.QueuedBy, watch.Part{}, "hog"); at.usual.Mean > 0.002 {
		t.Errorf("%g s per second are usual", at.usual.Mean)
	}
}

// Whom a finding names if the windows tell of a group that has begun to take CPUs and of others: who is told by what it
// is waited for, if enough windows agree on it, else the taker.
func TestFindingsOfTakers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		agree    uint8
		suspects [lookBack]string
		suspect  string
		takes    bool
	}{
		"nobody else":           {0, [lookBack]string{}, "hog", true},
		"the same":              {0b111, [lookBack]string{"hog", "hog", "hog"}, "hog", true},
		"another":               {0b111, [lookBack]string{"mail", "mail", "mail"}, "mail", false},
		"another, in few":       {0b11, [lookBack]string{"mail", "mail"}, "hog", true},
		"one or another":        {0b111, [lookBack]string{"mail", "night", "mail"}, "hog", true},
		"somebody, nobody told": {0b111, [lookBack]string{}, "hog", true},
	} {
		w := &workload{Workload: Workload{Group: "web", Sensitive: true}, history: new([resources]history)}
		w.takes = history{agree: 0b111, suspects: [lookBack]string{"hog", "hog", "hog"}, shares: [lookBack]float64{0.5, 0.5, 0.5}}
		w.history[CPU] = history{agree: c.agree, suspects: c.suspects}
		found := w.findings(nil)
		if len(found) != 1 || found[0].Resource != CPU || found[0].Suspect != c.suspect || found[0].Takes != c.takes {
			t.Errorf("%s: %+v, want %q, takes %v", name, found, c.suspect, c.takes)
		}
	}
}
