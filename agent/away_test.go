package agent

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/place"
)

// away are files of units that systemd writes, as long as it is there.
type away struct {
	*fakekernel.Kernel
	h     *host
	gone  bool
	takes time.Duration // a try in vain
	tries int
	at    []time.Time // when they began
}

func (a *away) WriteFile(name, data string) error {
	if systemd.Asks(name) && a.gone {
		a.tries, a.at = a.tries+1, append(a.at, a.h.now)
		a.h.now = a.h.now.Add(a.takes)
		return &systemd.ConnectionError{Err: io.EOF}
	}
	return a.Kernel.WriteFile(name, data)
}

func (h *host) away() *away {
	a := &away{Kernel: h.k, h: h}
	h.files = a
	return a
}

// awayWorld is a world whose systemd can go away, and a node that keeps its records, for an agent.
func awayWorld(t *testing.T) (*world, *away, *Node) {
	t.Helper()
	w := newWorld(t, layouts()["v2"])
	w.opt.Keep, w.opt.Window = true, time.Hour // in which a fourth change by somebody else were one too many
	bus := w.away()
	return w, bus, w.open()
}

// unconfined checks that files of CPUs are as before.
func (w *world) unconfined(files []string) {
	w.t.Helper()
	for _, file := range files {
		got, want := strings.TrimSpace(w.tree()[file]), strings.TrimSpace(w.original[file])
		if got != want && (want != "" || got != "0-7") { // before Linux 7 one with processes cannot be made empty again
			w.t.Errorf("systemd is back: %s is %q, want %q", file, got, want)
		}
	}
}

// told is how often it was told that systemd cannot be asked.
func (a *away) told(h *host) (times int) {
	for _, e := range h.events {
		if e.Kind == Failed && strings.HasPrefix(e.Text, "systemd cannot be asked; ") && strings.HasSuffix(e.Text, "EOF") {
			times++
		}
	}
	return times
}

// While systemd cannot be asked, groups of its units stay as they are, and Berth's to set: others have
// their places, it is told once, and asked ever more rarely, until it answers.
func TestSystemdAway(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, bus, n := awayWorld(t)
	w.place(n, spec("batch", place.LS, 500, 0))
	has := func(group string) cpuset.Set {
		t.Helper()
		set, err := readSet(kernel.NewRoot("", w.k), w.cpusets+"/"+group+"/cpuset.cpus.effective")
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	bus.gone = true
	own := w.place(n, spec("api", place.LSE, 2000, 0)).Grant.Own
	if !has("system.slice").Overlaps(own) || !has("web.slice").Overlaps(own) || has("berth/batch").Overlaps(own) {
		t.Errorf("api has %s; system.slice %s, web.slice %s, batch %s", own, has("system.slice"), has("web.slice"), has("berth/batch"))
	}
	if bus.tries != 1 || bus.told(w.host) != 1 {
		t.Errorf("asked %d times, told %d times: %v", bus.tries, bus.told(w.host), w.events)
	}
	for range 20 {
		w.now = w.now.Add(5 * time.Second)
		if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
			t.Fatalf("repairs %v, %v", repairs, err)
		}
	}
	if want := 1 + 4; bus.tries != want || bus.told(w.host) != 1 { // after 5, 10, 20 and 40 s
		t.Errorf("asked %d times in 100 s, want %d; told %d times", bus.tries, want, bus.told(w.host))
	}
	bus.gone = false
	w.now = w.now.Add(lastAsk)
	if _, err := n.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	if has("system.slice").Overlaps(own) || has("web.slice").Overlaps(own) {
		t.Errorf("systemd is back: api has %s, system.slice %s, web.slice %s", own, has("system.slice"), has("web.slice"))
	}
	if kinds := w.kinds(); slices.Contains(kinds, Yielded) || bus.told(w.host) != 1 {
		t.Errorf("events %v", w.events)
	}
	bus.gone = true
	w.place(n, spec("db", place.LSE, 2000, 0))
	if bus.told(w.host) != 2 {
		t.Errorf("away anew: told %d times", bus.told(w.host))
	}
}

// What a unit's own error says of it counts as before: after some tries in vain it is left alone.
func TestSystemdRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, layouts()["v2"])
	w.opt.Keep = true
	w.files = unwilling{w.k, func(name string) bool { return name == w.cpusets+"/system.slice/"+cpusFile }}
	n := w.open()
	w.place(n, spec("batch", place.BE, 500, 0))
	w.place(n, spec("api", place.LSE, 2000, 0))
	if !slices.ContainsFunc(w.events, func(e Event) bool { return e.Kind == Failed && strings.Contains(e.Text, "it is left as it is") }) {
		t.Errorf("events %v", w.events)
	}
}

// Who asks for a unit's group gets the error at once, and what she has already stays hers.
func TestSystemdAwayOfWorkload(t *testing.T) {
	t.Parallel()
	const group = "web.slice"
	ctx := context.Background()
	w, bus, n := awayWorld(t)
	asks := spec("web", place.LSR, 2000, 0)
	asks.Group, asks.Limits = group, cgroup.Limits{Weight: 50}
	bus.gone = true
	w.place(n, spec("api", place.LSE, 1000, 0))
	if bus.told(w.host) != 1 {
		t.Fatalf("events %v", w.events)
	}
	for range 2 { // that others wait is no reason not to try
		if _, err := n.Place(ctx, asks); !isAway(err) {
			t.Fatalf("placed while systemd is away: %v", err)
		}
	}
	bus.gone = false
	has := w.place(n, asks).CPUs
	if _, err := n.Reconcile(ctx); err != nil { // what waited is set
		t.Fatal(err)
	}
	w.events = nil
	cpus, weight := w.cpusets+"/"+group+"/"+cpusFile, w.cpusets+"/"+group+"/cpu.weight"
	bus.gone = true
	for i := range 10 {
		err := w.k.WriteFile(weight, "77")
		if i > 0 {
			err = errors.Join(err, w.k.WriteFile(cpus, "0-7"))
		}
		if err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(lastAsk)
		if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
			t.Fatalf("repairs %v, %v", repairs, err)
		}
	}
	if bus.told(w.host) != 1 || slices.ContainsFunc(w.events, func(e Event) bool { return strings.Contains(e.Text, "goes without") }) {
		t.Errorf("told %d times: %v", bus.told(w.host), w.events)
	}
	bus.gone = false
	w.now = w.now.Add(lastAsk)
	if _, err := n.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	if w.file(cpus) != has.String() || w.file(weight) != "50" {
		t.Errorf("systemd is back: CPUs %s, weight %s; want %s, 50", w.file(cpus), w.file(weight), has)
	}
}

// What is given back while systemd is away is told once, asked ever more rarely, and given back once it answers,
// whether or not another workload is left.
func TestReleaseSystemdAway(t *testing.T) {
	t.Parallel()
	for _, others := range []bool{true, false} {
		ctx := context.Background()
		w, bus, n := awayWorld(t)
		if others {
			w.place(n, spec("batch", place.LS, 500, 0))
		}
		w.place(n, spec("api", place.LSE, 2000, 0))
		files := []string{w.cpusets + "/system.slice/" + cpusFile, w.cpusets + "/web.slice/" + cpusFile}
		confined := map[string]string{}
		has := func(tree map[string]string, file string) string { return strings.TrimSpace(tree[file]) }
		for _, file := range files {
			if confined[file] = has(w.tree(), file); confined[file] == has(w.original, file) {
				t.Fatalf("%s is not confined", file)
			}
		}
		bus.gone, w.events = true, nil
		if err := n.Release(ctx, "api", WhenEmpty); err != nil {
			t.Fatal(err)
		}
		for range 3 { // these do not wait for systemd
			w.place(n, spec("other", place.BE, 500, 0))
			if err := n.Release(ctx, "other", WhenEmpty); err != nil {
				t.Fatal(err)
			}
		}
		if bus.tries != 1 || bus.told(w.host) != 1 {
			t.Errorf("others %v: asked %d times, told %d times", others, bus.tries, bus.told(w.host))
		}
		for range 20 {
			w.now = w.now.Add(5 * time.Second)
			if _, err := n.Reconcile(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if want := 1 + 4; bus.tries != want { // after 5, 10, 20 and 40 s
			t.Errorf("others %v: asked %d times in 100 s, want %d", others, bus.tries, want)
		}
		for _, e := range w.events {
			if e.Kind == Failed && !strings.HasPrefix(e.Text, "systemd cannot be asked; ") || bus.told(w.host) != 1 {
				t.Errorf("others %v: event %v", others, e)
			}
		}
		for file, want := range confined {
			if got := has(w.tree(), file); got != want {
				t.Errorf("others %v: %s is %q while systemd is away, want %q", others, file, got, want)
			}
		}
		bus.gone = false
		w.now = w.now.Add(lastAsk)
		if _, err := n.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
		w.unconfined(files)
		if n.held.isDirty() || n.refused.asking.Failing() {
			t.Errorf("others %v: dirty %v, waits %v", others, n.held.isDirty(), n.refused.asking.Failing())
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Once nothing is to be asked of systemd any more, nobody waits for it: the next who asks it does so at once.
func TestSystemdAwayOfNoUse(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, bus, n := awayWorld(t)
	w.place(n, spec("batch", place.LS, 500, 0))
	bus.gone = true
	w.place(n, spec("api", place.LSE, 2000, 0))
	if err := n.Release(ctx, "api", WhenEmpty); err != nil || bus.told(w.host) != 1 {
		t.Fatalf("told %d times, %v", bus.told(w.host), err)
	}
	w.now = w.now.Add(lastAsk)
	if _, err := n.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	w.place(n, spec("api", place.LSE, 2000, 0))
	if bus.told(w.host) != 2 {
		t.Errorf("away anew: told %d times", bus.told(w.host))
	}
}

// A systemd that hangs has the node wait at least twice as long as the try took.
func TestSystemdHangs(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, bus, n := awayWorld(t)
	bus.takes = time.Minute
	w.place(n, spec("batch", place.LS, 500, 0))
	bus.gone = true
	w.place(n, spec("api", place.LSE, 2000, 0))
	for range 200 {
		w.now = w.now.Add(5 * time.Second)
		if _, err := n.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if len(bus.at) < 3 {
		t.Fatalf("asked at %v", bus.at)
	}
	for i, at := range bus.at[1:] {
		if rest := at.Sub(bus.at[i].Add(bus.takes)); rest < 2*bus.takes {
			t.Errorf("asked again after %v, want at least %v", rest, 2*bus.takes)
		}
	}
}

// Of several settings of a unit that are given back, one shows that systemd is away: the others wait.
func TestUndoSystemdAway(t *testing.T) {
	t.Parallel()
	const group = "web.slice"
	w, bus, n := awayWorld(t)
	asks := spec("web", place.LS, 500, 0)
	asks.Group, asks.Limits = group, cgroup.Limits{Weight: 50, Quota: 50 * time.Millisecond}
	w.place(n, asks)
	weight := w.cpusets + "/" + group + "/cpu.weight"
	if w.file(weight) != "50" {
		t.Fatalf("weight %s", w.file(weight))
	}
	c := &Transition{
		Log: n.held.log, away: func(err error) bool { return n.away(err, n.refused.now()) },
		waits: func(file string) bool { return n.waits(file, false) }, answered: n.refused.asking.Done,
	}
	limits := func(s kernel.Step) bool { return path.Dir(s.Path) == path.Dir(weight) }
	bus.gone = true
	if _, err := c.undo(c.Log.Undo, limits); !isAway(err) || bus.tries != 1 || bus.told(w.host) != 1 {
		t.Errorf("asked %d times, told %d times, %v", bus.tries, bus.told(w.host), err)
	}
	bus.gone = false
	n.refused.asking.Done()
	if _, err := c.undo(c.Log.Undo, limits); err != nil || w.file(weight) != webWeight {
		t.Errorf("systemd is back: weight %s, want %s, %v", w.file(weight), webWeight, err)
	}
}

// To restore everything asks a systemd that is away once, restores all that is not its units', and says
// what waits for it; the next restore asks it again at once.
func TestRestoreSystemdAway(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, bus, n := awayWorld(t)
	w.place(n, spec("batch", place.LS, 500, 0))
	w.place(n, spec("api", place.LSE, 2000, 0))
	files := []string{w.cpusets + "/system.slice/" + cpusFile, w.cpusets + "/web.slice/" + cpusFile}
	for range 2 {
		bus.gone, bus.tries = true, 0
		items, err := n.Restore(ctx)
		if !isAway(err) || bus.tries != 1 {
			t.Errorf("asked %d times, %v", bus.tries, err)
		}
		outcomes := map[string]kernel.Outcome{}
		for _, i := range items {
			if _, twice := outcomes[i.Step.Path]; twice {
				t.Errorf("/%s is told twice", i.Step.Path)
			}
			outcomes[i.Step.Path] = i.Outcome
		}
		for _, file := range files {
			if got, is := outcomes[file]; !is || got != kernel.Pending {
				t.Errorf("%s: %v, %v", file, got, is)
			}
		}
		if _, ok := w.tree()[w.cpusets+"/berth/api/"+cpusFile]; ok {
			t.Error("Berth's own groups are left")
		}
	}
	bus.gone = false
	if _, err := n.Restore(ctx); err != nil {
		t.Fatal(err)
	}
	w.unconfined(files)
}
