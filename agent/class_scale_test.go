package agent

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/place"
)

// loaded is a host whose shared pool, CPUs 0 to 7 but 0, follows its load; CPU 0 is reserved.
type loaded struct {
	*host
	n     *Node
	ticks [8][2]int // of each CPU: busy, idle
}

func scaleHost(t testing.TB, driver string) *loaded {
	t.Helper()
	h := &loaded{host: powerHost(t, driver, 1)}
	h.opt.Keep = true
	h.opt.Config.Reserved = cpuset.MustParse("0")
	h.opt.Classes.Power.Profiles["thrifty"] = power.Profile{Scale: &power.Scale{Busy: 50, Floor: "2GHz", Hold: "6s"}}
	h.opt.Classes.Power.Shared, h.opt.Classes.Power.Reserved = "thrifty", "power"
	h.stat(0)
	return h
}

// stat has a window pass in which CPU 3 was busy, in percent, and the others half of that.
func (h *loaded) stat(busy int) {
	h.t.Helper()
	text, total := "", [2]int{}
	for cpu := range h.ticks {
		part := busy / 2
		if cpu == 3 {
			part = busy
		}
		h.ticks[cpu][0] += 2 * part
		h.ticks[cpu][1] += 200 - 2*part
		total[0] += h.ticks[cpu][0]
		total[1] += h.ticks[cpu][1]
		text += fmt.Sprintf("cpu%d %d 0 0 %d\n", cpu, h.ticks[cpu][0], h.ticks[cpu][1])
	}
	if err := h.k.Put("proc/stat", fmt.Sprintf("cpu %d 0 0 %d\n%s", total[0], total[1], text)); err != nil {
		h.t.Fatal(err)
	}
	h.now = h.now.Add(power.ScaleEvery)
}

// window has a window pass and the node look at it.
func (h *loaded) window(busy int) {
	h.t.Helper()
	h.stat(busy)
	if err := h.n.Scale(context.Background()); err != nil {
		h.t.Fatal(err)
	}
}

func (h *loaded) limit(cpu int) string {
	h.t.Helper()
	return h.file(fmt.Sprintf("%s/cpufreq/policy%d/scaling_max_freq", cpus, cpu))
}

func (h *loaded) scaled() (texts []string) {
	for _, e := range h.events {
		if e.Kind == Scaled {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

// The clock of the shared pool follows its busiest CPU within its bounds; those of others stay,
// comparing finds nothing, and everything is given back.
func TestPowerScale(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := scaleHost(t, "intel_pstate")
	before := h.settings()
	h.n = h.open()
	api := spec("api", place.LSE, 2000, 9000100) // its CPUs have their own profile
	api.CPUs = cpuset.MustParse("6-7")
	h.place(h.n, api)
	for i, step := range []struct {
		busy int
		want string // kHz, of 3.7 GHz
	}{
		{90, "3700000"}, {20, "3700000"}, {36, "3700000"}, {10, "2775000"}, // 0.36 of it, twice: 75 percent
		{10, "2775000"}, {10, "2775000"}, {10, "2000000"}, // the floor
		{60, "2405000"}, {100, "3700000"},
	} {
		h.window(step.busy)
		if got := h.limit(3); got != step.want {
			t.Errorf("window %d, %d%% busy: %s kHz, want %s", i, step.busy, got, step.want)
		}
		if h.limit(0) != "3700000" || h.limit(6) != "3700000" {
			t.Errorf("window %d: the reserved CPU has %s kHz, that of api %s", i, h.limit(0), h.limit(6))
		}
		h.repairsNothing(h.n, fmt.Sprintf("window %d", i))
	}
	want := []string{"75% of the highest clock by their load, after 100%", "50% of the highest clock by their load, after 75%", "65% of the highest clock by their load, after 50%", "100% of the highest clock by their load, after 65%"}
	if got := h.scaled(); len(got) != len(want) {
		t.Errorf("events %q", got)
	} else {
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("event %q, want %q", got[i], want[i])
			}
		}
	}
	h.release(h.n, "api")
	h.n.Close()
	if _, err := Restore(ctx, h.options()); err != nil {
		t.Error(err)
	}
	if diff := h.changes(before); len(diff) > 0 {
		t.Errorf("restored: %q", diff)
	}
}

// CPUs that a workload takes from the pool have their limit back, and those that it gives back
// the pool's.
func TestPowerScaleHandsOver(t *testing.T) {
	t.Parallel()
	h := scaleHost(t, "intel_pstate")
	h.n = h.open()
	for range 4 {
		h.window(10)
	}
	s := powered(spec("api", place.LSE, 2000, 9000100), "full")
	s.CPUs = cpuset.MustParse("4-5")
	h.place(h.n, s)
	w := h.place(h.n, spec("batch", place.BE, 0, 9000101))
	const note = `power class "thrifty" of the shared CPUs follows their load: they need 50% of the highest clock now`
	if !slices.Contains(w.Notes, note) {
		t.Errorf("notes %q", w.Notes)
	}
	if w, err := h.n.Get(context.Background(), "api"); err != nil || slices.Contains(w.Notes, note) {
		t.Errorf("api: notes %q, %v", w.Notes, err)
	}
	if h.limit(3) != "2000000" || h.limit(4) != "3700000" {
		t.Errorf("placed: the pool has %s kHz, api %s", h.limit(3), h.limit(4))
	}
	h.release(h.n, "api")
	if h.limit(4) != "2000000" {
		t.Errorf("released: %s kHz", h.limit(4))
	}
	if got := h.levels(t); got != "map[the shared CPUs:50]" {
		t.Errorf("report: %s", got)
	}
}

// levels are those of the report.
func (h *loaded) levels(t *testing.T) string {
	r, err := h.n.ClassReport(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Kinds {
		for _, c := range s.Classes {
			if c.Name == "thrifty" {
				return fmt.Sprint(c.Levels)
			}
		}
	}
	return "no thrifty"
}

// A limit that another program changes is repaired, left to it if it insists, and then what the
// pool does is still measured at the limit that there is.
func TestPowerScaleYields(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := scaleHost(t, "intel_pstate")
	h.n = h.open()
	const file = cpus + "/cpufreq/policy3/scaling_max_freq"
	for range 4 {
		h.window(10)
	}
	for range 4 {
		if err := h.k.WriteFile(file, "3000000"); err != nil {
			t.Fatal(err)
		}
		if _, err := h.n.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
	}
	h.window(55) // of 3 GHz, twice: 3.3 of 3.7 GHz
	if h.limit(3) != "3000000" || h.limit(2) != "3330000" {
		t.Errorf("left to another program: %s kHz; of another CPU %s, want 3330000", h.limit(3), h.limit(2))
	}
}

// Nothing is measured, and nothing changes, where no pool scales, no driver does, or no agent
// is there; what cannot be written is tried again.
func TestPowerScaleNot(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for what, change := range map[string]func(h *loaded){
		"no pool":  func(h *loaded) { h.opt.Classes.Power.Shared = "power" },
		"no agent": func(h *loaded) { h.opt.Keep = false },
	} {
		h := scaleHost(t, "intel_pstate")
		change(h)
		h.n = h.open()
		h.place(h.n, spec("api", place.LSE, 1000, 9000100))
		before := h.settings()
		for range 5 {
			h.window(10)
		}
		if diff := h.changes(before); len(diff) > 0 || len(h.scaled()) > 0 {
			t.Errorf("%s: %q, %q", what, diff, h.scaled())
		}
	}
	h := scaleHost(t, "virtual")
	h.n = h.open()
	for range 5 {
		h.window(10)
	}
	lacks := 0
	for _, e := range h.events {
		if strings.Contains(e.Text, "the shared CPUs have no power profile: power profile thrifty: frequency scaling: not supported") {
			lacks++
		}
	}
	if lacks != 1 || len(h.scaled()) > 0 {
		t.Errorf("virtual: events %v", h.events)
	}
	h = scaleHost(t, "intel_pstate")
	h.n = h.open()
	for range 3 {
		h.window(10)
	}
	const broken = cpus + "/cpufreq/policy7/scaling_min_freq"
	was := h.file(broken)
	if err := h.k.Put(broken, "nonsense"); err != nil {
		t.Fatal(err)
	}
	h.stat(10)
	if err := h.n.Scale(ctx); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("with nonsense: %v", err)
	}
	if h.limit(3) != "3700000" || len(h.scaled()) > 0 {
		t.Errorf("failed: %s kHz, events %q", h.limit(3), h.scaled())
	}
	if err := h.k.Put(broken, was); err != nil {
		t.Fatal(err)
	}
	h.window(10)
	if h.limit(3) != "2000000" || len(h.scaled()) != 1 {
		t.Errorf("tried again: %s kHz, events %q", h.limit(3), h.scaled())
	}
}

// Killed before and after each change of files while the limits go down and up, restoring gives
// all CPUs what they had.
func TestPowerScaleKilled(t *testing.T) {
	t.Parallel()
	killedAtEach(t, 1, 40, func(f *fate) bool {
		h := scaleHost(t, "intel_pstate")
		before := h.settings()
		alive := h.restoredAfter(f, func(n *Node) {
			h.n = n
			for _, busy := range []int{10, 10, 10, 10, 80, 10, 10, 10} {
				h.window(busy)
			}
		})
		if diff := cmp.Diff(before, h.settings()); diff != "" {
			t.Errorf("(-before +restored):\n%s", diff)
		}
		return alive
	})
}

// A window in which nothing changes.
func BenchmarkPowerScale(b *testing.B) {
	h := scaleHost(b, "intel_pstate")
	h.n = h.open()
	h.window(10)
	for b.Loop() {
		h.now = h.now.Add(time.Nanosecond)
		if err := h.n.Scale(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// A file that refuses costs the pool that, and nobody else; what was refused is tried again in the
// next window. A new clock touches nothing but clocks, and goes with the agent.
func TestPowerScaleRefused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := scaleHost(t, "intel_pstate")
	refused := ""
	h.files = unwilling{h.k, func(name string) bool { return refused != "" && strings.HasSuffix(name, refused) }}
	h.n = h.open()
	named := spec(sharedPool, place.LSE, 1000, 9000100) // who has the name of the pool is not the pool
	named.CPUs = cpuset.MustParse("7")
	w := h.place(h.n, named)
	i := slices.IndexFunc(w.Dirs, func(dir string) bool {
		_, err := fs.Stat(h.k.FS(), dir+"/cpuset.cpus")
		return err == nil
	})
	for range 4 {
		h.window(10)
	}
	if got := h.limit(3); got != "2000000" || h.limit(7) != "3700000" {
		t.Fatalf("CPU 3 has %s kHz, that of the workload %s", got, h.limit(7))
	}
	group := w.Dirs[i] + "/cpuset.cpus"
	if err := h.k.WriteFile(group, "6-7"); err != nil {
		t.Fatal(err)
	}
	h.window(60)
	if got := h.file(group); h.limit(3) != "2405000" || got != "6-7" {
		t.Errorf("CPU 3 has %s kHz, and the CPUs of a workload were repaired: %s", h.limit(3), got)
	}
	refused = "policy3/scaling_max_freq"
	told := len(h.scaled())
	h.window(100)
	if h.limit(3) != "2405000" || len(h.scaled()) != told {
		t.Errorf("refused: CPU 3 has %s kHz, told %v", h.limit(3), h.scaled()[told:])
	}
	refused = ""
	h.window(100)
	if h.limit(3) != "3700000" || h.limit(4) != "3700000" || len(h.scaled()) != told+1 {
		t.Errorf("tried again: CPU 3 has %s kHz, CPU 4 %s, told %v", h.limit(3), h.limit(4), h.scaled()[told:])
	}
	for range 4 {
		h.window(10)
	}
	if err := h.n.StopScaling(ctx); err != nil || h.limit(3) != "3700000" {
		t.Errorf("stopped: CPU 3 has %s kHz, %v", h.limit(3), err)
	}
}
