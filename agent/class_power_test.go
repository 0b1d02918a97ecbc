package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/place"
)

const cpus = "sys/devices/system/cpu"

func powerConfig() *power.Config {
	yes := false
	return &power.Config{
		Profiles: map[string]power.Profile{
			"steady": {Like: "performance", Min: "50%", IdleLatency: "10us", WakeLatency: "0us"},
			"eco":    {Governor: "powersave", Max: "40%", Boost: &yes},
			"full":   {Governor: "performance"},
		},
		Service: map[string]string{"LSE": "performance"},
	}
}

// powerHost has 8 CPUs of a driver, perPolicy of them with one clock.
func powerHost(t testing.TB, driver string, perPolicy int) *host {
	t.Helper()
	l := layouts()["v2"]
	p := fakekernel.PowerHosts()[driver]
	p.CPUs = 8
	if p.PerPolicy > 0 {
		p.PerPolicy = perPolicy
	}
	l.Power = &p
	h := newHost(t, l)
	h.opt.Classes.Power = powerConfig()
	return h
}

func powered(s Spec, name string) Spec {
	s.Classes = map[ClassKind]string{PowerClass: name}
	return s
}

// settings are the files of the CPUs.
func (h *host) settings() map[string]string {
	tree := h.tree()
	maps.DeleteFunc(tree, func(name, _ string) bool { return !strings.HasPrefix(name, cpus+"/") })
	return tree
}

func (h *host) changes(before map[string]string) (lines []string) {
	h.t.Helper()
	after := h.settings()
	for name, text := range after {
		if text != before[name] {
			lines = append(lines, strings.TrimPrefix(name, cpus+"/")+" "+strings.TrimSpace(text))
		}
	}
	slices.Sort(lines)
	return lines
}

// The CPUs that a workload owns have its profile, from when they are its own until they are
// not: those that change hands change theirs.
func TestPowerClasses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := powerHost(t, "intel_pstate", 1)
	before := h.settings()
	n := h.open()
	_, plan, err := n.Preview(ctx, spec("api", place.LSE, 2000, 9000100))
	if err != nil || !strings.Contains(plan.String(), "scaling_governor  # profile performance of api") {
		t.Errorf("preview: %v\n%s", err, plan)
	}
	w := h.place(n, spec("api", place.LSE, 2000, 9000100))
	var want []string
	for cpu := range w.Grant.Own.All() {
		want = append(want, fmt.Sprintf("cpu%d/power/energy_perf_bias 0", cpu),
			fmt.Sprintf("cpufreq/policy%d/energy_performance_preference performance", cpu), fmt.Sprintf("cpufreq/policy%d/scaling_governor performance", cpu))
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, h.changes(before)); diff != "" {
		t.Errorf("placed (-want +got):\n%s", diff)
	}
	if len(w.Notes) > 1 {
		t.Errorf("notes: %q", w.Notes)
	}
	h.repairsNothing(n, "again")
	moved, err := n.Move(ctx, "api", cpuset.MustParse("6-7"), cpuset.Set{})
	if err != nil {
		t.Fatal(err)
	}
	for i, cpu := range slices.Collect(w.Grant.Own.All()) {
		for j := range want {
			want[j] = strings.NewReplacer(fmt.Sprintf("cpu%d/", cpu), fmt.Sprintf("cpu%d/", 6+i), fmt.Sprintf("policy%d/", cpu), fmt.Sprintf("policy%d/", 6+i)).Replace(want[j])
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, h.changes(before)); diff != "" {
		t.Errorf("moved to %s (-want +got):\n%s", moved.Grant.Own, diff)
	}
	r, err := n.ClassReport(ctx)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(r.Kinds, func(s ClassSection) bool { return s.Kind == PowerClass })
	if c := r.Kinds[at].Classes[0]; c.Name != "performance" || !slices.Equal(c.Workloads, []string{"api"}) || c.Settings[0].Value != "6-7" || !c.InForce {
		t.Errorf("report: %+v", c)
	}
	h.release(n, "api")
	if diff := h.changes(before); len(diff) > 0 {
		t.Errorf("released: %q", diff)
	}
	if h.undoLog(n).Has(isPowerStep) {
		t.Error("the undo log still has settings of CPUs")
	}
}

// undoLog is that of an open node.
func (h *host) undoLog(n *Node) *kernel.UndoLog {
	h.t.Helper()
	var log *kernel.UndoLog
	if err := n.with(context.Background(), func(b *nodeState) error { log = b.log; return nil }); err != nil {
		h.t.Fatal(err)
	}
	return log
}

// A profile that is asked for where it cannot be had is refused before anything is
// written; one that only follows from the class of service is left out, and a note says so.
func TestPowerClassRefused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for what, tc := range map[string]struct {
		driver string
		spec   Spec
		want   string
	}{
		"unknown":      {"intel_pstate", powered(spec("api", place.LSE, 1000, 0), "performence"), `did you mean "performance"`},
		"no CPUs":      {"intel_pstate", powered(spec("api", place.LS, 1000, 0), "performance"), "has no CPUs of its own"},
		"virtual":      {"virtual", powered(spec("api", place.LSE, 1000, 0), "performance"), "frequency scaling: not supported"},
		"no governor":  {"cppc_cpufreq", powered(spec("api", place.LSE, 1000, 0), "power"), "governor powersave: not supported"},
		"no cpuidle":   {"cppc_cpufreq", powered(spec("api", place.LSE, 1000, 0), "steady"), "idle states: not supported"},
		"no boost":     {"cppc_cpufreq", powered(spec("api", place.LSE, 1000, 0), "eco"), "not supported"},
		"other user's": {"intel_pstate", powered(spec("api", place.LSE, 1000, 0), "performance"), ""},
	} {
		h := powerHost(t, tc.driver, 1)
		before := h.settings()
		n := h.open()
		if tc.want == "" {
			if err := mayHave(WithCaller(ctx, Caller{UID: 1000}), "place", &tc.spec); err == nil {
				t.Error("another user may")
			}
			continue
		}
		if _, err := n.Place(ctx, tc.spec); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", what, err, tc.want)
		}
		if diff := h.changes(before); len(diff) > 0 {
			t.Errorf("%s: %q", what, diff)
		}
	}
	h := powerHost(t, "virtual", 1)
	n := h.open()
	w := h.place(n, spec("api", place.LSE, 1000, 0))
	if !slices.ContainsFunc(w.Notes, func(text string) bool {
		return strings.Contains(text, `power class "performance": the workload goes without: frequency scaling: not supported`)
	}) {
		t.Errorf("notes %q", w.Notes)
	}
}

// CPUs with one clock have the strongest of their wishes, and it is said.
func TestPowerClassShared(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := powerHost(t, "acpi-cpufreq", 4)
	before := h.settings()
	n := h.open()
	slow, fast := powered(spec("slow", place.LSE, 1000, 9000100), "power"), powered(spec("fast", place.LSE, 1000, 9000101), "performance")
	slow.CPUs, fast.CPUs = cpuset.MustParse("4-5"), cpuset.MustParse("6-7")
	slow.Request.Milli, fast.Request.Milli = 2000, 2000
	w := h.place(n, slow)
	if diff := h.changes(before); len(diff) > 0 { // CPUs 6-7 have no wish: they are not slowed down
		t.Errorf("slow alone: %q", diff)
	}
	if !slices.ContainsFunc(w.Notes, func(text string) bool {
		return strings.Contains(text, "its frequency governor is that of CPUs 6-7, too: the strongest wish counts")
	}) {
		t.Errorf("notes %q", w.Notes)
	}
	h.place(n, fast)
	if diff := cmp.Diff([]string{"cpufreq/policy4/scaling_governor performance"}, h.changes(before)); diff != "" {
		t.Errorf("both (-want +got):\n%s", diff)
	}
	s := powered(spec("fast", place.LSE, 2000, 0), "power")
	s.CPUs = fast.CPUs
	if _, err := n.Resize(ctx, s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"cpufreq/policy4/scaling_governor powersave"}, h.changes(before)); diff != "" {
		t.Errorf("both slow (-want +got):\n%s", diff)
	}
	h.release(n, "slow")
	h.release(n, "fast")
	if diff := h.changes(before); len(diff) > 0 {
		t.Errorf("released: %q", diff)
	}
}

// The shared pool and the reserved CPUs have profiles as long as the agent's configuration says
// so, without any workload, too.
func TestPowerClassPools(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := powerHost(t, "amd-pstate-epp", 1)
	h.opt.Keep = true
	h.opt.Config.Reserved = cpuset.MustParse("0")
	h.opt.Classes.Power.Shared, h.opt.Classes.Power.Reserved = "balance-power", "power"
	before := h.settings()
	n := h.open()
	has := func(cpu int, want string) {
		t.Helper()
		if got := h.file(fmt.Sprintf("%s/cpufreq/policy%d/energy_performance_preference", cpus, cpu)); got != want {
			t.Errorf("CPU %d: %s, want %s", cpu, got, want)
		}
	}
	has(0, "power")
	has(1, "balance_power")
	w := h.place(n, spec("api", place.LSE, 2000, 9000100))
	for cpu := range w.Grant.Own.All() {
		has(cpu, "performance")
	}
	h.release(n, "api")
	for cpu := 1; cpu < 8; cpu++ {
		has(cpu, "balance_power")
	}
	h.repairsNothing(n, "again")
	// A configuration without gives them back.
	opt := h.options()
	opt.Classes.Power = nil
	next, _, err := n.Revise(ctx, Revision{Options: opt}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if diff := h.changes(before); len(diff) > 0 {
		t.Errorf("revised: %q", diff)
	}
}

// Profiles change with the time of day, which is no drift, and an event says so.
func TestPowerClassSchedule(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := powerHost(t, "amd-pstate-epp", 1)
	h.opt.Keep = true
	h.opt.Classes.Power.Shared = "balance-power"
	h.opt.Classes.Power.Schedules = []power.Schedule{{From: "22:00", To: "06:00", Shared: "power", Service: map[string]string{"LSE": "none"}}}
	at := func(hour int) { h.now = time.Date(2026, 11, 23, hour, 30, 0, 0, time.Local) }
	at(21)
	before := h.settings()
	n := h.open()
	w := h.place(n, spec("api", place.LSE, 2000, 9000100))
	for _, step := range []struct {
		hour        int
		shared, api string
		events      int
	}{
		{21, "balance_power", "performance", 0}, {22, "power", "balance_performance", 1}, {23, "power", "balance_performance", 1}, {6, "balance_power", "performance", 2},
	} {
		at(step.hour)
		h.repairsNothing(n, fmt.Sprintf("%d:30", step.hour))
		for cpu := range 8 {
			want := step.shared
			if w.Grant.Own.Has(cpu) {
				want = step.api
			}
			if got := h.file(fmt.Sprintf("%s/cpufreq/policy%d/energy_performance_preference", cpus, cpu)); got != want {
				t.Errorf("%d:30: CPU %d has %s, want %s", step.hour, cpu, got, want)
			}
		}
		events := 0
		for _, e := range h.events {
			if e.Kind == Changed && strings.HasPrefix(e.Text, "power profiles by the time of day: shared ") {
				events++
			}
		}
		if events != step.events {
			t.Errorf("%d:30: %d events, want %d", step.hour, events, step.events)
		}
	}
	n.Close()
	if _, err := Restore(ctx, h.options()); err != nil {
		t.Error(err)
	}
	if diff := h.changes(before); len(diff) > 0 {
		t.Errorf("restored: %q", diff)
	}
}

// A change by the time of day that fails is not done: the next comparison tries it again, and
// tells it as what it is.
func TestPowerClassScheduleFails(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := powerHost(t, "amd-pstate-epp", 1)
	h.opt.Keep = true
	h.opt.Classes.Power.Schedules = []power.Schedule{{From: "22:00", To: "06:00", Shared: "power"}}
	h.now = time.Date(2026, 11, 23, 21, 30, 0, 0, time.Local)
	n := h.open()
	if _, err := n.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	h.now = h.now.Add(time.Hour)
	const limit = cpus + "/cpufreq/policy7/scaling_min_freq"
	was := h.file(limit)
	if err := h.k.Put(limit, "nonsense"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reconcile(ctx); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Fatalf("with nonsense: %v", err)
	}
	if err := h.k.Put(limit, was); err != nil {
		t.Fatal(err)
	}
	h.repairsNothing(n, "again")
	if got := h.file(cpus + "/cpufreq/policy1/energy_performance_preference"); got != "power" {
		t.Errorf("CPU 1 has %s", got)
	}
	if !slices.ContainsFunc(h.events, func(e Event) bool { return e.Kind == Changed }) {
		t.Errorf("events: %v", h.events)
	}
}

// What another program writes is repaired, and left to it if it insists: then the rest of the
// profile is what the drivers admit.
func TestPowerClassYields(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := powerHost(t, "intel_pstate", 1)
	n := h.open()
	w := h.place(n, powered(spec("api", place.LSE, 2000, 9000100), "balance-power"))
	first, _ := w.Grant.Own.First()
	governor := fmt.Sprintf("%s/cpufreq/policy%d/scaling_governor", cpus, first)
	for time := 1; time <= 4; time++ {
		if err := h.k.WriteFile(governor, "performance"); err != nil { // as tuned does
			t.Fatal(err)
		}
		repairs, err := n.Reconcile(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(repairs) == 0 {
			t.Errorf("time %d: nothing is noticed", time)
		}
		if slices.ContainsFunc(repairs, func(r Repair) bool { return r.Path == governor && r.Yielded }) {
			break
		}
		if got := h.file(governor); got != "powersave" {
			t.Errorf("time %d: governor %s", time, got)
		}
	}
	h.repairsNothing(n, "yielded")
	if got := h.file(governor); got != "performance" {
		t.Errorf("governor %s, want that of the other program", got)
	}
	h.release(n, "api")
	if got := h.file(governor); got != "performance" {
		t.Errorf("released: governor %s, want that of the other program", got)
	}
	if other := strings.Replace(governor, fmt.Sprint("policy", first), fmt.Sprint("policy", first+1), 1); h.file(other) != "powersave" {
		t.Errorf("released: governor of CPU %d %s", first+1, h.file(other))
	}
}

// A CPU that goes offline loses its settings, and gets those of its profile when it is back.
func TestPowerClassOffline(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := powerHost(t, "intel_pstate", 1)
	before := h.settings()
	n := h.open()
	s := powered(spec("api", place.LSE, 2000, 9000100), "steady")
	s.CPUs = cpuset.MustParse("2-3")
	h.place(n, s)
	placed := h.changes(before)
	for _, online := range []string{"0-2,4-7", "0-7"} {
		if err := h.k.SetOnline(online); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Reconcile(ctx); err != nil {
			t.Errorf("online %s: %v", online, err)
		}
	}
	if diff := cmp.Diff(placed, h.changes(before)); diff != "" {
		t.Errorf("back online (-want +got):\n%s", diff)
	}
	h.release(n, "api")
	if diff := h.changes(before); len(diff) > 0 {
		t.Errorf("released: %q", diff)
	}
}

// A CPU that is offline when its workload is released gets back what it had once it is there.
func TestPowerClassReleasedOffline(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for driver, profile := range map[string]string{"intel_pstate": "steady", "amd-pstate-epp, boost by policy": "eco"} {
		h := powerHost(t, driver, 1)
		before := h.settings()
		n := h.open()
		s := powered(spec("api", place.LSE, 2000, 9000100), profile)
		s.CPUs = cpuset.MustParse("2-3")
		h.place(n, s)
		if err := h.k.SetOnline("0-2,4-7"); err != nil {
			t.Fatal(err)
		}
		h.release(n, "api")
		if err := h.k.SetOnline("0-7"); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
		if diff := h.changes(before); len(diff) > 0 {
			t.Errorf("%s, back online: %q", driver, diff)
		}
	}
}

// Killed before and after each change of files, amid placing, changing profiles, moving and
// releasing, restoring gives all CPUs what they had.
func TestPowerClassKilled(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"intel_pstate", "amd-pstate-epp, boost by policy"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			step := 1
			if testing.Short() {
				step = 7
			}
			killedAtEach(t, step, 50, func(f *fate) bool {
				h := powerHost(t, driver, 1)
				h.opt.Classes.Power.Shared = "power"
				before := h.settings()
				alive := h.restoredAfter(f, func(n *Node) {
					h.throughProfiles(n, powered(spec("api", place.LSE, 1000, 9000100), "steady"), "6", "eco", "full", "balance-power")
				})
				if diff := cmp.Diff(before, h.settings()); diff != "" {
					t.Errorf("(-before +restored):\n%s", diff)
				}
				return alive
			})
		})
	}
}

// throughProfiles has a workload placed, given other profiles, moved and released.
func (h *host) throughProfiles(n *Node, s Spec, to string, profiles ...string) {
	h.t.Helper()
	ctx := context.Background()
	h.place(n, s)
	s.PID = 0
	for _, name := range profiles {
		s.SetClass(PowerClass, name)
		if _, err := n.Resize(ctx, s); err != nil {
			h.t.Fatal(err)
		}
	}
	_, err := n.Move(ctx, s.Request.ID, cpuset.MustParse(to), cpuset.Set{})
	if err == nil {
		err = n.Release(ctx, s.Request.ID, Keep)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// After any sequence of placing, changing, moving and releasing, CPUs without an owner have
// their original values, those with one what their profile says, and nothing is left to do.
func TestPowerClassProperties(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for driver, l := range fakekernel.PowerHosts() {
		for seed := range uint64(6) {
			t.Run(fmt.Sprint(driver, seed), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(seed, 1))
				h := powerHost(t, driver, 1+int(seed%2))
				if l.PerPolicy == 0 {
					h.opt.Classes.Power.Service = nil
				}
				before := h.settings()
				n := h.open()
				names := append(h.opt.Classes.Power.Names(), "none")
				for range 25 {
					id := []string{"a", "b", "c"}[rng.IntN(3)]
					s := spec(id, []place.Class{place.LSE, place.LSR}[rng.IntN(2)], 1000*(1+rng.IntN(2)), 0)
					s.SetClass(PowerClass, names[rng.IntN(len(names))])
					var err error
					switch rng.IntN(4) {
					case 0:
						_, err = n.Place(ctx, s)
					case 1:
						_, err = n.Resize(ctx, s)
					case 2:
						_, err = n.Move(ctx, id, cpuset.MustOf(rng.IntN(8)), cpuset.Set{})
					case 3:
						err = n.Release(ctx, id, Kill)
					}
					if _, ok := errors.AsType[*kernel.StepError](err); ok {
						t.Fatalf("refused by the kernel: %v", err)
					}
					h.unowned(n, before)
					h.now = h.now.Add(time.Hour)
					if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
						t.Fatalf("left to do: %v, %v", repairs, err)
					}
				}
				for _, id := range []string{"a", "b", "c"} {
					_ = n.Release(ctx, id, Kill)
				}
				if diff := h.changes(before); len(diff) > 0 {
					t.Errorf("all released: %q", diff)
				}
				if h.undoLog(n).Has(isPowerStep) {
					t.Error("the undo log still has settings of CPUs")
				}
			})
		}
	}
}

// unowned checks that settings of CPUs that nobody owns are as before.
func (h *host) unowned(n *Node, before map[string]string) {
	h.t.Helper()
	s, err := n.State(context.Background())
	if err != nil {
		h.t.Fatal(err)
	}
	host, err := power.Read(h.k.FS())
	if err != nil {
		h.t.Fatal(err)
	}
	after := h.settings()
	var touched cpuset.Set // with CPUs that have one clock with them
	touched = s.Owned()
	for _, p := range host.Policies {
		if p.CPUs.Overlaps(s.Owned()) {
			touched = touched.Union(p.CPUs)
		}
	}
	for cpu := range 8 {
		if touched.Has(cpu) {
			continue
		}
		for name, text := range after {
			own := strings.HasPrefix(name, fmt.Sprintf("%s/cpu%d/", cpus, cpu)) || strings.HasPrefix(name, fmt.Sprintf("%s/cpufreq/policy%d/", cpus, cpu))
			if own && text != before[name] {
				h.t.Fatalf("CPU %d has no owner: %s is %q, was %q", cpu, name, text, before[name])
			}
		}
	}
}

// A host that scales no clock has no power classes, and says why.
func TestPowerClassesLack(t *testing.T) {
	t.Parallel()
	host := fstest.MapFS{
		"proc/self/mountinfo":                                        {},
		"sys/devices/system/cpu/online":                              {Data: []byte("0-1\n")},
		"sys/devices/system/cpu/possible":                            {Data: []byte("0-1\n")},
		"sys/devices/system/cpu/present":                             {Data: []byte("0-1\n")},
		"sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us": {Data: []byte("0\n")},
		"sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us": {Data: []byte("0\n")},
	}
	r, err := ReportClasses(host, ClassConfig{}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Kinds {
		if s.Kind == PowerClass && !strings.Contains(s.Reason, "no driver scales the clock of CPUs 0-1") {
			t.Errorf("%+v", s)
		}
	}
}
