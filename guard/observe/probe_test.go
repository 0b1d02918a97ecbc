package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/runq"
)

// fakeProbe watches groups on paper.
type fakeProbe struct {
	watched []string
	refuses map[string]error // by path
	stale   string           // a path that has to be removed before it can be added
	armed   bool
	closed  bool
	fails   error // of reading
	noArm   error

	names    map[uint64]string
	noNames  error
	lookups  int
	snapshot runq.Snapshot
}

func (p *fakeProbe) Name(id uint64) (string, error) {
	p.lookups++
	if p.noNames != nil {
		return "", p.noNames
	}
	if name := p.names[id]; name != "" {
		return name, nil
	}
	return "", fs.ErrNotExist
}

func (p *fakeProbe) Add(path string) error {
	if err := p.refuses[path]; err != nil {
		return fmt.Errorf("watch group %s: %w", path, err)
	}
	if path == p.stale {
		return errors.New("another group has taken its place: remove it first")
	}
	if !slices.Contains(p.watched, path) {
		p.watched = append(p.watched, path)
	}
	return nil
}

func (p *fakeProbe) Remove(path string) error {
	if p.stale == path {
		p.stale = ""
		return nil
	}
	if !slices.Contains(p.watched, path) {
		return errors.New("not watched")
	}
	p.watched = slices.DeleteFunc(p.watched, func(w string) bool { return w == path })
	return nil
}

func (p *fakeProbe) Arm() error {
	p.armed = p.noArm == nil
	return p.noArm
}

func (p *fakeProbe) Disarm() error {
	p.armed = false
	return nil
}

func (p *fakeProbe) Read(s *runq.Snapshot) error {
	*s = p.snapshot
	return p.fails
}

func (p *fakeProbe) Close() error {
	p.armed, p.closed = false, true
	return nil
}

// A group that vanishes, is made anew or is refused as the probe is armed costs that
// group, not the probe.
func TestArm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		probe fakeProbe
		want  []string // watched
	}{
		"all there":      {fakeProbe{}, []string{"/a", "/b", "/c"}},
		"one vanished":   {fakeProbe{refuses: map[string]error{"/b": fs.ErrNotExist}}, []string{"/a", "/c"}},
		"one made anew":  {fakeProbe{stale: "/b"}, []string{"/a", "/b", "/c"}},
		"a map is full":  {fakeProbe{refuses: map[string]error{"/b": errors.New("no space left")}}, []string{"/a", "/c"}},
		"one crowded":    {fakeProbe{refuses: map[string]error{"/b": &runq.CrowdedError{Path: "/b"}}}, []string{"/a", "/c"}},
		"all of it gone": {fakeProbe{refuses: map[string]error{"/a": fs.ErrNotExist, "/b": fs.ErrNotExist, "/c": fs.ErrNotExist}}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := c.probe
			o := open(t, plant(t))
			o.queue = newQueue(&p, "")
			o.arm([]string{"a", "b", "c"})
			if o.noRun != nil || !p.armed || !slices.Equal(p.watched, c.want) {
				t.Errorf("armed %v, watches %v, want %v; %v", p.armed, p.watched, c.want, o.noRun)
			}
		})
	}
}

// A group that was left out can leave the focus.
func TestDropUnwatched(t *testing.T) {
	t.Parallel()
	n, err := Open(Config{Root: plant(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	n.queue, n.armed = newQueue(&fakeProbe{refuses: map[string]error{"/batch": fs.ErrNotExist}}, ""), true
	for _, focus := range [][]string{{"batch"}, {}} {
		if err := n.Focus(focus); err != nil || n.Probe() != nil && n.noRun != nil {
			t.Errorf("focus on %v: %v, %v", focus, err, n.noRun)
		}
	}
}

// A probe that cannot be read any more, as one that costs too much, is closed, and neither read nor armed again.
func TestProbeFails(t *testing.T) {
	t.Parallel()
	p := &fakeProbe{}
	counted := &countingProbe{fakeProbe: p}
	o := open(t, plant(t))
	o.queue = newQueue(counted, "")
	o.focus = map[string]*Readers{"web": o.site.Open("web", cpuset.Set{}, nil)}
	for _, on := range []bool{true, true, false, false, true} {
		if err := o.Arm(on); err != nil || p.armed != on {
			t.Errorf("armed %v, want %v; %v", p.armed, on, err)
		}
	}
	if counted.added != 2 {
		t.Errorf("the group was added %d times, want once each time that the probe was armed", counted.added)
	}
	p.fails = &runq.CostError{Share: 0.1, Limit: 0.01}
	var dear *runq.CostError
	if _, err := o.TickNear(watch.Second, nil); !errors.As(err, &dear) || !p.closed {
		t.Errorf("closed %v; %v", p.closed, err)
	}
	if _, err := o.TickNear(2*watch.Second, nil); err != nil {
		t.Errorf("it is read again: %v", err)
	}
	if err := o.Arm(true); !errors.As(err, &dear) || p.armed {
		t.Errorf("armed %v; %v", p.armed, err)
	}
	if err := o.Probe(); !errors.As(err, &dear) || !o.Probes("web") || o.ProbeCost() != 0 {
		t.Errorf("%v; cost %v", err, o.ProbeCost())
	}
}

// One that cannot be armed is closed, and is not tried again.
func TestNoArm(t *testing.T) {
	t.Parallel()
	p := &fakeProbe{noArm: errors.New("no room")}
	o := open(t, plant(t))
	o.queue = newQueue(p, "")
	for range 2 {
		if err := o.Arm(true); !errors.Is(err, p.noArm) || !p.closed || o.queue != nil {
			t.Errorf("closed %v, kept %v; %v", p.closed, o.queue != nil, err)
		}
	}
	if samples, err := o.TickNear(watch.Second, nil); err != nil || len(samples) == 0 {
		t.Errorf("%v: %v", samples, err)
	}
}

// What cannot be looked up is told, and tried again by the next reading; it counts as others' until then.
func TestNamesFail(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := errors.Join(os.Mkdir(root+"/a", 0o755), os.Mkdir(root+"/b", 0o755)); err != nil {
		t.Fatal(err)
	}
	p := &fakeProbe{names: map[uint64]string{3: "/a", 4: "/b"}, noNames: errors.New("broken")}
	q := newQueue(p, root)
	p.snapshot = runq.Snapshot{Groups: []runq.Group{{Path: "/web", ID: 2, Added: time.Unix(1, 0), Shares: shares(3, 4)}}}
	if _, err := q.read(watch.Second, 0, nil); err != nil || p.lookups != 1 {
		t.Errorf("%d lookups, %v", p.lookups, err)
	}
	if err := q.tell(); !errors.Is(err, p.noNames) {
		t.Errorf("told %v", err)
	}
	if err := q.tell(); err != nil {
		t.Errorf("told twice: %v", err)
	}
	if w := q.waits["/web"]; len(w) != 1 || w[Others] == nil || w[Others].seconds != 2 {
		t.Errorf("%v, want both among others", w)
	}
	p.noNames = nil
	p.snapshot = runq.Snapshot{Groups: []runq.Group{{Path: "/web", ID: 2, Added: time.Unix(1, 0), Shares: []runq.Share{
		{Culprit: 3, Wait: 3 * time.Second}, {Culprit: 4, Wait: time.Second}, {Culprit: 5, Wait: time.Second}, // that one has ended
	}}}}
	if _, err := q.read(2*watch.Second, watch.Second, nil); err != nil || q.tell() != nil {
		t.Fatal(err)
	}
	if w := q.waits["/web"][Ended]; w == nil || w.seconds != 1 {
		t.Errorf("who has ended cost %+v, want 1 s", w)
	}
	if w := q.waits["/web"]; w["a"] == nil || w["a"].seconds != 2 || w[Others].seconds != 2 {
		t.Errorf("%v, want 2 s for a from now on", w)
	}
	before := p.lookups
	if _, err := q.read(3*watch.Second, 2*watch.Second, nil); err != nil || p.lookups > before {
		t.Errorf("%d lookups of names that are known, %v", p.lookups-before, err)
	}
}

// A group that is refused is told once, and tried again later; the others are watched
// all the time.
func TestRefusedIsTriedAgain(t *testing.T) {
	t.Parallel()
	p := &fakeProbe{refuses: map[string]error{"/crowd": &runq.CrowdedError{Path: "/crowd"}}}
	n, err := Open(Config{Root: plant(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	n.queue = newQueue(p, "")
	n.focus = map[string]*Readers{"crowd": n.site.Open("crowd", cpuset.Set{}, nil), "web": n.site.Open("web", cpuset.Set{}, nil)}
	if err := n.Arm(true); err != nil || n.Probes("crowd") || !n.Probes("web") {
		t.Errorf("%v, tells of crowd: %v, of web: %v", err, n.Probes("crowd"), n.Probes("web"))
	}
	tick := func(now watch.Time) error {
		_, err := n.TickNear(now, nil)
		if !p.armed || !slices.Contains(p.watched, "/web") {
			t.Errorf("at %v: armed %v, watches %v", now, p.armed, p.watched)
		}
		return err
	}
	var crowded *runq.CrowdedError
	if err := tick(watch.Second); !errors.As(err, &crowded) {
		t.Errorf("it is not told: %v", err)
	}
	if err := tick(retry + 2*watch.Second); err != nil {
		t.Errorf("told again: %v", err)
	}
	p.refuses = nil
	if err := tick(retry + 3*watch.Second); err != nil || n.Probes("crowd") {
		t.Errorf("tried again at once: %v", err)
	}
	if err := tick(2*retry + 2*watch.Second); err != nil || !n.Probes("crowd") {
		t.Errorf("not tried again: %v", err)
	}
}

// A group that is made anew while the probe is armed is watched again by the next look for new groups.
func TestMadeAnewWhileArmed(t *testing.T) {
	t.Parallel()
	p := &countingProbe{fakeProbe: &fakeProbe{}}
	o := open(t, plant(t))
	o.queue, o.armed = newQueue(p, ""), true
	if err := o.Focus([]string{"a.slice/api"}); err != nil {
		t.Fatal(err)
	}
	tick := func(now watch.Time, added int) {
		t.Helper()
		p.added = 0
		if _, err := o.Tick(now, nil); err != nil || p.added != added {
			t.Errorf("at %v: the group is added %d times, want %d; %v", time.Duration(now), p.added, added, err)
		}
	}
	tick(watch.Second, 1)
	p.stale = "/a.slice/api"
	tick(2*watch.Second, 0) // it is looked for now and then only
	tick(watch.Second+rescan, 2)
	if p.stale != "" {
		t.Errorf("%s is another group by now, and still not watched", p.stale)
	}
}

// A group that cannot be opened does not keep others out of focus, and is tried again by the next call.
func TestFocusOnOneFails(t *testing.T) {
	t.Parallel()
	root := plant(t)
	o := open(t, root)
	dir := filepath.Join(root, cgroupDir, "a-loop")
	if err := os.Symlink("a-loop", dir); err != nil {
		t.Fatal(err)
	}
	groups := []string{"a-loop", "b.slice"}
	if err := o.Focus(groups); !errors.Is(err, syscall.ELOOP) || o.focus["a-loop"] != nil || o.focus["b.slice"] == nil {
		t.Errorf("in focus are %q; %v", sortedKeys(o.focus), err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	write(t, root, map[string]string{cgroupDir + "a-loop/cpu.stat": "usage_usec 1000\n"})
	if err := o.Focus(groups); err != nil || o.focus["a-loop"] == nil {
		t.Errorf("in focus are %q; %v", sortedKeys(o.focus), err)
	}
}

// share are culprits with the same wait each, by id.
func shares(ids ...uint64) (all []runq.Share) {
	for _, id := range ids {
		all = append(all, runq.Share{Culprit: runq.Culprit(id), Wait: time.Second})
	}
	return all
}

// However many culprits a group has, those that are kept apart, the names that are
// remembered and those that one reading looks up are bounded, and no wait is lost.
func TestManyCulprits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	p := &fakeProbe{names: map[uint64]string{}}
	q := newQueue(p, root)
	sum := func(samples []watch.Sample) (sum float64, names int) {
		for _, s := range samples {
			if s.Quantity == watch.QueuedBy && s.Time != 0 {
				sum += s.Value
				names++
			}
		}
		return sum, names
	}
	const rounds, each = 20, 100
	wait := 0.
	for round := range rounds {
		var ids []uint64
		for i := range each {
			id := uint64(1000*round + i + 10)
			p.names[id] = fmt.Sprintf("/g%d", id)
			if err := os.Mkdir(root+p.names[id], 0o755); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		// Those of the round before are culprits no more: the group is watched anew.
		p.snapshot = runq.Snapshot{Groups: []runq.Group{{Path: "/web", ID: 2, Added: time.Unix(int64(round), 0), Shares: shares(ids...)}}}
		p.lookups = 0
		now := watch.Time(round+1) * watch.Second / 2
		samples, err := q.read(now, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		wait += each
		if sum, names := sum(samples); sum != wait || names > maxCulprits {
			t.Errorf("round %d: %v s by %d names, want all %v s by %d at most", round, sum, names, wait, maxCulprits)
		}
		if p.lookups > maxLookups || len(q.names) > each {
			t.Errorf("round %d: %d lookups, %d names", round, p.lookups, len(q.names))
		}
	}
	// Once they have been silent for long they give way.
	p.names[1] = "/new"
	if err := os.Mkdir(root+"/new", 0o755); err != nil {
		t.Fatal(err)
	}
	p.snapshot = runq.Snapshot{Groups: []runq.Group{{Path: "/web", ID: 2, Added: time.Unix(99, 0), Shares: shares(1)}}}
	if _, err := q.read(100*watch.Second, 99*watch.Second, nil); err != nil {
		t.Fatal(err)
	}
	if w := q.waits["/web"]["new"]; w == nil || w.seconds != 1 {
		t.Errorf("a new culprit has no place: %v", q.waits["/web"])
	}
	p.snapshot = runq.Snapshot{}
	if _, err := q.read(101*watch.Second, 100*watch.Second, nil); err != nil || len(q.names)+len(q.waits) != 0 {
		t.Errorf("%d names, %d victims are kept of nobody", len(q.names), len(q.waits))
	}
}

// Where culprits have found no room in the kernel, their wait is that of others, and
// the group is watched anew, but not all the time.
func TestDroppedWait(t *testing.T) {
	t.Parallel()
	p := &fakeProbe{watched: []string{"/web"}}
	q := newQueue(p, t.TempDir())
	adds := &countingProbe{fakeProbe: p}
	q.probe = adds
	for i := range 5 {
		p.snapshot = runq.Snapshot{Groups: []runq.Group{{Path: "/web", ID: 2, Dropped: runq.Share{Wait: time.Duration(i) * time.Second}}}}
		if _, err := q.read(watch.Time(i+1)*watch.Second, watch.Time(i)*watch.Second, nil); err != nil {
			t.Fatal(err)
		}
	}
	if w := q.waits["/web"][Others]; w == nil || w.seconds != 4 || adds.added != 1 {
		t.Errorf("others cost %+v, want 4 s; watched anew %d times, want once", w, adds.added)
	}
	for i := range 2 {
		p.snapshot = runq.Snapshot{Groups: []runq.Group{{Path: "/web", ID: 2, Dropped: runq.Share{Wait: time.Duration(5+i) * time.Second}}}}
		if _, err := q.read(2*watch.Second+retry+watch.Time(i)*watch.Second, 5*watch.Second, nil); err != nil {
			t.Fatal(err)
		}
	}
	if adds.added != 2 {
		t.Errorf("watched anew %d times, want a second time after %v", adds.added, time.Duration(retry))
	}
}

// countingProbe counts how often groups are added.
type countingProbe struct {
	*fakeProbe
	added int
}

func (p *countingProbe) Add(path string) error {
	p.added++
	return p.fakeProbe.Add(path)
}

// Several times a second only the groups in focus are read; what a full tick has read at
// the same time is told twice, and read once.
func TestTickNear(t *testing.T) {
	t.Parallel()
	root := plant(t)
	o := open(t, root)
	if err := errors.Join(o.Closely([]string{"a.slice/api"}), o.Focus([]string{"a.slice/api"})); err != nil {
		t.Fatal(err)
	}
	used := func(samples []watch.Sample, err error) map[string]float64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, s := range samples {
			if s.Quantity == watch.CPUTime && s.Subject.Part == (watch.Part{}) {
				got[s.Subject.Name] = s.Value
			}
		}
		return got
	}
	if got := used(o.Tick(watch.Second, nil)); got["a.slice/api"] != 3 || got["b.slice"] != 0.5 {
		t.Fatalf("%v", got)
	}
	write(t, root, map[string]string{cgroupDir + "a.slice/api/cpu.stat": "usage_usec 4000000\n"})
	for i, want := range []float64{3, 4} {
		now := watch.Second + watch.Time(i)*100*watch.Millisecond
		if got := used(o.TickNear(now, nil)); got["a.slice/api"] != want || got[""] != 1 || len(got) != 2 {
			t.Errorf("at %v: %v, want %v of the group, and the host", now, got, want)
		}
	}
	if err := os.RemoveAll(root + "/" + cgroupDir + "a.slice/api"); err != nil {
		t.Fatal(err)
	}
	if err := o.remove("a.slice/api"); err != nil {
		t.Fatal(err)
	}
	if got := used(o.TickNear(2*watch.Second, nil)); len(got) != 1 {
		t.Errorf("a group that is gone tells %v", got)
	}
}

// Several times a second it is told, too, how long the threads of a group in focus wait, and nothing else of what is
// read of it once a second.
func TestTickNearReadsRunDelay(t *testing.T) {
	t.Parallel()
	root := plantHardware(t)
	write(t, root, map[string]string{
		cgroupDir + "a.slice/api/cgroup.threads": "7\n",
		"proc/7/schedstat":                       "1000000000 2500000000 3\n",
		"proc/self/schedstat":                    "0 0 0\n",
		"proc/7/stat":                            "7 (api) S 1 1 1 0 -1 0 0 0 0 0 5 0 0 0 20 0 1 0 5 0 0\n",
	})
	o := open(t, root)
	if err := o.Focus([]string{"a.slice/api"}); err != nil {
		t.Fatal(err)
	}
	for i, wait := range []string{"2500000000", "2750000000"} {
		write(t, root, map[string]string{"proc/7/schedstat": "1000000000 " + wait + " 3\n"})
		now := watch.Time(i+1) * 40 * watch.Millisecond
		samples, err := o.TickNear(now, nil)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(samples, func(s watch.Sample) bool { return s.Quantity == watch.Frequency || s.Quantity == watch.LLCOccupancy }) {
			t.Errorf("%v", samples)
		}
		want := watch.Sample{Time: now, Subject: subject("a.slice/api"), Quantity: watch.CPUWait, Value: 0.25}
		if i > 0 && !slices.Contains(samples, want) {
			t.Errorf("%v tell nothing of %v", samples, want)
		}
	}
}

// Of the groups for which one in focus waits longest the CPU use is read as often as that one's, and for a while
// after it has waited for them.
func TestTickNearReadsSuspects(t *testing.T) {
	t.Parallel()
	root := plant(t)
	for i, group := range []string{"little", "more", "most"} {
		write(t, root, map[string]string{cgroupDir + group + "/cpu.stat": fmt.Sprintf("usage_usec %d000000\n", i+1)})
	}
	o := open(t, root)
	if err := o.Focus([]string{"a.slice/api"}); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Tick(watch.Second, nil); err != nil {
		t.Fatal(err)
	}
	p := &fakeProbe{names: map[uint64]string{2: "/a.slice/api", 3: "/little", 4: "/more", 5: "/most", 6: "/unknown", 7: "/"}}
	o.queue, o.armed = newQueue(p, filepath.Join(root, cgroupDir)), true
	now := watch.Second
	tick := func(wait map[uint64]time.Duration, want ...string) {
		t.Helper()
		g := runq.Group{Path: "/a.slice/api", ID: 2, Added: time.Unix(1, 0)}
		for id, wait := range wait {
			g.Shares = append(g.Shares, runq.Share{Culprit: runq.Culprit(id), Wait: wait})
		}
		p.snapshot = runq.Snapshot{Groups: []runq.Group{g}}
		now += 100 * watch.Millisecond
		samples, err := o.TickNear(now, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range samples {
			if s.Quantity == watch.CPUTime && s.Subject.Scope == watch.Group && s.Subject.Name != "a.slice/api" {
				got = append(got, fmt.Sprint(s.Subject.Name, " ", s.Value))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("at %v: %v, want %v", now, got, want)
		}
	}
	waits := map[uint64]time.Duration{2: time.Second, 3: 1 * time.Millisecond, 4: 2 * time.Millisecond, 5: 4 * time.Millisecond, 6: time.Second, 7: time.Second}
	tick(waits, "more 2", "most 3")
	write(t, root, map[string]string{cgroupDir + "most/cpu.stat": "usage_usec 3050000\n"})
	waits[3] += 5 * time.Millisecond
	tick(waits, "little 1", "more 2", "most 3.05")
	for range 3 {
		tick(waits, "little 1", "more 2", "most 3.05")
	}
	tick(waits, "little 1")
	tick(waits)
	for id, more := range map[uint64]time.Duration{3: 1, 4: 2, 5: 3} { // what was waited before does not count
		waits[id] += more * time.Millisecond
	}
	tick(waits, "more 2", "most 3.05")
	waits[4] += time.Millisecond
	tick(waits, "more 2", "most 3.05")
	if err := o.remove("more"); err != nil {
		t.Fatal(err)
	}
	tick(waits, "most 3.05")
}

// A group that is refused is tried again after a while, anew if it may have been made anew, and forgotten after that
// once it is not watched; one that has just gone is not refused.
func TestWatch(t *testing.T) {
	t.Parallel()
	p := &countingProbe{fakeProbe: &fakeProbe{refuses: map[string]error{
		"/full": errors.New("no space left"), "/crowd": &runq.CrowdedError{Path: "/crowd"}, "/gone": fs.ErrNotExist,
	}}}
	q := newQueue(p, "")
	for i, step := range []struct {
		now     watch.Time
		groups  []string
		added   int // calls
		news    int
		refused []string
	}{
		{0, []string{"full"}, 2, 1, []string{"full"}},
		{retry - 1, []string{"full"}, 0, 0, []string{"full"}},
		{retry, []string{"full"}, 2, 0, []string{"full"}},
		{2*retry - 1, nil, 0, 0, []string{"full"}},
		{2 * retry, nil, 0, 0, nil},
		{2 * retry, []string{"crowd"}, 1, 1, []string{"crowd"}},
		{3 * retry, []string{"gone"}, 2, 0, nil},
	} {
		p.added, q.news = 0, nil
		q.watch(step.groups, step.now)
		if got := sortedKeys(q.refused); p.added != step.added || len(q.news) != step.news || !slices.Equal(got, step.refused) {
			t.Errorf("step %d: %d calls, told %v, refused %q; want %+v", i, p.added, q.news, got, step)
		}
	}
}

// The culprit that has cost nothing for longest gives way to a new one.
func TestOldestGivesWay(t *testing.T) {
	t.Parallel()
	waits := map[string]*wait{}
	for i := range maxCulprits - 1 {
		waits[fmt.Sprint("g", i)] = &wait{grown: watch.Time(maxCulprits-i) * watch.Millisecond}
	}
	oldest := fmt.Sprint("g", maxCulprits-2)
	if as, isNew := waitOf(waits, "new", idle+watch.Second); as != "new" || !isNew || waits[oldest] != nil || len(waits) != maxCulprits-1 {
		t.Errorf("%s, new %v; %s has its place: %v", as, isNew, oldest, waits[oldest] != nil)
	}
}
