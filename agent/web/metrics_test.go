package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/pods"
)

// view is an agent that a test simulates.
type view struct {
	about   api.About
	machine api.Machine
	config  api.Config
	stats   api.Stats
	guard   api.Guard
	signals map[string]error
	classes agent.ClassReport
	err     error
}

func (v *view) About(context.Context) (api.About, error)     { return v.about, v.err }
func (v *view) Machine(context.Context) (api.Machine, error) { return v.machine, v.err }
func (v *view) Config(context.Context) (api.Config, error)   { return v.config, v.err }
func (v *view) Stats(context.Context) (api.Stats, error)     { return v.stats, v.err }
func (v *view) ClassReport(context.Context) (agent.ClassReport, error) {
	return v.classes, v.err
}
func (v *view) Guard(context.Context) (api.Guard, error) { return v.guard, v.err }
func (v *view) Signals() map[string]error                { return v.signals }

func unsupported(reason string) error {
	return &kernel.NotSupportedError{Feature: "it", Reason: reason, Remedy: "none"}
}

// testView is 8 CPUs on 2 nodes: web owns 2 CPUs, batch shares the rest.
func testView() *view {
	set := cpuset.MustParse
	return &view{
		about: api.About{
			Backend: "cgroup v2", Policy: "berth", Groups: 7, Waiting: []api.Waiting{{ID: "big"}},
			Crowded: []cgroupstat.Crowd{{Path: "user.slice/bob", UID: 1000, Seen: 3001, Kept: 2}},
		},
		config: api.Config{Loaded: time.Unix(1000, 0), Config: &config.NodeConfig{Classes: config.Classes{Net: &traffic.Config{}}}},
		classes: agent.ClassReport{Kinds: []agent.ClassSection{
			{Kind: agent.CacheClass, Classes: []agent.ClassUse{{Name: "gold", Workloads: []string{"web"}}, {Name: "bulk"}, {Name: "pod-a", Foreign: true}}},
			{Kind: agent.PowerClass, Classes: []agent.ClassUse{{Name: "performance", Workloads: []string{"web", "the shared CPUs"}, CPUs: cpuset.MustParse("0-5"), Levels: map[string]int{"the shared CPUs": 55}}}},
			{Kind: agent.NetClass, Classes: []agent.ClassUse{
				{Name: "bulk", Dropped: new(uint64(4)), Links: []agent.ClassLink{{Device: "eth0", Floor: 10e6, Ceiling: 50e6, Priority: 8, Dropped: new(uint64(17))}}},
				{Name: "idle", Dropped: new(uint64(0)), Links: []agent.ClassLink{{Device: "eth0", Ceiling: 10e6, Priority: 8, Dropped: new(uint64(0))}, {Device: "eth1", Ceiling: 10e6, Priority: 8}}},
				{Name: "unknown", Links: []agent.ClassLink{{Device: "eth0", Ceiling: 10e6, Priority: 8}}},
			}, Drops: []agent.WorkloadDrops{{Workload: "web", Packets: 3}, {Workload: "batch:a/b"}}},
		}},
		machine: api.Machine{
			Machine: &machine.Machine{Online: set("0-7"), Domains: []machine.Domain{
				{Kind: machine.Node, ID: 0, CPUs: set("0-3")}, {Kind: machine.Node, ID: 1, CPUs: set("4-7")},
			}},
			Config: place.Config{Allowed: set("0-7"), Reserved: set("0"), Floor: set("0-1")},
			Shared: set("0-3,6"),
			Owners: []api.Owner{
				{ID: "batch:a/b", Class: place.BE, CPUs: set("0-3,6")},
				{ID: "web", Class: place.LSE, Own: set("4-5"), Fence: set("7"), CPUs: set("4-5")},
			},
			Saved: place.Saved{Grants: []*place.Grant{
				{ID: "batch:a/b"}, {ID: "web", Request: place.Request{ID: "web", Milli: 1500}},
			}},
		},
		stats: api.Stats{Time: time.Unix(1001, 5e8), Workloads: []api.Figures{
			{ID: "batch:a/b", Figures: []api.Figure{{Quantity: watch.CPUTime, Value: 12.5}}},
			{ID: "web", Figures: figures()},
		}},
		guard:   guarding(),
		signals: map[string]error{"usage": nil, "memory": unsupported("there is no memory.current")},
	}
}

// guarding is a guard that helps web against batch, and knows of a victim that is no
// workload.
func guarding() api.Guard {
	return api.Guard{
		Mode: config.GuardEnforce, Workloads: map[string]string{"g/web": "web"},
		Status: &guard.Status{
			Windows: 100, Late: 2, LeftOut: 3, Probe: guard.Probe{Armed: true, Cost: 0.002},
			Findings: []detect.Finding{
				{Victim: "g/web", Resource: detect.CPU, Confidence: 0.4}, {Victim: "g/web", Resource: detect.CPU, Confidence: 0.8},
				{Victim: "other", Resource: detect.CPU, Confidence: 0.9}, {Victim: "g/web", Resource: detect.IO, Confidence: 0.5},
			},
			Active: []control.Action{{Remedy: detect.Weight}, {Remedy: detect.Weight, Group: "b"}},
		},
	}
}

// While no guard runs, nothing is said of what it sees.
func TestNoGuard(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{})
	r.view.guard = api.Guard{Mode: config.GuardOff}
	if got := r.lines("berth_guard_mode", "off"); !slices.Equal(got, []string{`berth_guard_mode{mode="off"} 1`}) {
		t.Errorf("mode: %q", got)
	}
	for _, name := range []string{"berth_guard_findings", "berth_guard_in_force", "berth_workload_suffering"} {
		if got := r.lines(name); len(got) > 0 {
			t.Errorf("%q", got)
		}
	}
}

// limited are workloads of which Berth limits something.
func limited(context.Context) ([]agent.Workload, error) {
	of := func(id string, l cgroup.Limits) agent.Workload {
		return agent.Workload{Spec: agent.Spec{Request: place.Request{ID: id}}, Limits: l}
	}
	sends := func(id string, l cgroup.Limits) agent.Workload {
		w := of(id, l)
		w.Spec.Bandwidth.Send, w.Spec.Bandwidth.Receive, w.Spec.P99Seconds = 8e6, 16e6, 0.02
		return w
	}
	return []agent.Workload{
		of("batch:a/b", cgroup.Limits{Quota: 50 * time.Millisecond, MemoryMax: cgroup.Unlimited, IOMax: []cgroup.IOMax{{Device: "8:0", ReadBPS: 1 << 20, WriteBPS: cgroup.Unlimited, WriteIOPS: 500}}}),
		sends("web", cgroup.Limits{Quota: 3 * time.Second, Period: time.Second, MemoryMax: 1 << 30, MemoryHigh: 1 << 29, PIDsMax: 99}), of("hidden", cgroup.Limits{PIDsMax: 1}),
	}, nil
}

// What Berth limits is shown; what it leaves as found, or takes away, is not.
func TestLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{List: limited})
	want := []string{
		`berth_workload_limit{class="BE",device="",resource="cpu",unit="cpus",workload="batch:a/b"} 0.5`,
		`berth_workload_limit{class="BE",device="8:0",resource="io_read",unit="bytes_per_second",workload="batch:a/b"} 1.048576e+06`,
		`berth_workload_limit{class="BE",device="8:0",resource="io_write",unit="operations_per_second",workload="batch:a/b"} 500`,
		`berth_workload_limit{class="LSE",device="",resource="cpu",unit="cpus",workload="web"} 3`,
		`berth_workload_limit{class="LSE",device="",resource="memory",unit="bytes",workload="web"} 1.073741824e+09`,
		`berth_workload_limit{class="LSE",device="",resource="memory_high",unit="bytes",workload="web"} 5.36870912e+08`,
		`berth_workload_limit{class="LSE",device="",resource="net_receive",unit="bytes_per_second",workload="web"} 2e+06`,
		`berth_workload_limit{class="LSE",device="",resource="net_send",unit="bytes_per_second",workload="web"} 1e+06`,
		`berth_workload_limit{class="LSE",device="",resource="pids",unit="threads",workload="web"} 99`,
	}
	if got := r.lines("berth_workload_limit"); !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	want = []string{`berth_workload_p99_limit_seconds{class="LSE",workload="web"} 0.02`}
	if got := r.lines("berth_workload_p99_limit_seconds"); !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	r = newRig(t, MetricsOptions{List: func(context.Context) ([]agent.Workload, error) { return nil, errors.New("no list") }})
	if _, err := r.registry.Gather(); err == nil || !strings.Contains(err.Error(), "no list") {
		t.Errorf("%v", err)
	}
}

// A record of an earlier version with two entries of one device costs nobody the figures: of each limit the
// last one is shown, as it is in force.
func TestLimitsOfDeviceTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{List: func(context.Context) ([]agent.Workload, error) {
		return []agent.Workload{{Spec: agent.Spec{Request: place.Request{ID: "batch:a/b"}}, Limits: cgroup.Limits{IOMax: []cgroup.IOMax{
			{Device: "8:0", ReadBPS: 1 << 20, ReadIOPS: 30}, {Device: "8:0", ReadBPS: 5 << 20, WriteBPS: 2 << 20},
		}}}}, nil
	}})
	want := []string{
		`berth_workload_limit{class="BE",device="8:0",resource="io_read",unit="bytes_per_second",workload="batch:a/b"} 5.24288e+06`,
		`berth_workload_limit{class="BE",device="8:0",resource="io_read",unit="operations_per_second",workload="batch:a/b"} 30`,
		`berth_workload_limit{class="BE",device="8:0",resource="io_write",unit="bytes_per_second",workload="batch:a/b"} 2.097152e+06`,
	}
	if got := r.lines("berth_workload_limit{"); !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	if got := r.lines("berth_agent_info{"); len(got) != 1 {
		t.Errorf("of the agent: %q", got)
	}
}

// figures has every figure that is shown, each with another value.
func figures() []api.Figure {
	all := []api.Figure{
		{Quantity: watch.Frozen, Value: 1}, // not shown
		{Quantity: watch.IORead, Part: watch.Part{Kind: watch.Device, ID: 2}, Value: 1000},
	}
	keys := slices.SortedFunc(maps.Keys(sources()), func(a, b source) int {
		return int(a.quantity)<<8 + int(a.part) - int(b.quantity)<<8 - int(b.part)
	})
	for i, k := range keys {
		part := watch.Part{Kind: k.part}
		if k.part != watch.Whole {
			part.ID = 1
		}
		all = append(all, api.Figure{Quantity: k.quantity, Part: part, Value: float64(i + 1)})
	}
	return all
}

func (h *hardware) Why(q watch.Quantity) error { return h.why[q] }

// hardware is counters that a test simulates: each sample tells more.
type hardware struct {
	samples []watch.Sample
	step    float64
	why     map[watch.Quantity]error
}

func (h *hardware) Sample(to []watch.Sample) []watch.Sample {
	for i := range h.samples {
		if h.samples[i].Quantity.Counter() {
			h.samples[i].Value += h.step * float64(i+1)
		}
	}
	return append(to, h.samples...)
}

func counters() *hardware {
	host := func(q watch.Quantity, kind watch.PartKind, id int) watch.Sample {
		return watch.Sample{Subject: watch.Subject{Part: watch.Part{Kind: kind, ID: id}}, Quantity: q}
	}
	h := &hardware{step: 100, samples: []watch.Sample{
		host(watch.LLCOccupancy, watch.Cache, 0), host(watch.LLCOccupancy, watch.Cache, 1),
		host(watch.BandwidthLocal, watch.Cache, 0), host(watch.Bandwidth, watch.Cache, 0),
		host(watch.Cycles, watch.CPU, 0), host(watch.Instructions, watch.CPU, 0),
		host(watch.EnergyPackages, watch.Whole, 0), host(watch.EnergyMemory, watch.Whole, 0),
	}}
	h.samples[0].Value, h.samples[1].Value = 4096, 8192
	return h
}

const pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=%d000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=%d000000\n"

func hostFiles(switches int) fstest.MapFS {
	file := func(format string, args ...any) *fstest.MapFile {
		return &fstest.MapFile{Data: fmt.Appendf(nil, format, args...)}
	}
	return fstest.MapFS{
		"proc/stat":           file("cpu  1 0 1 1 0 0 0 0 0 0\ncpu0 1 0 1 1 0 0 0 0 0 0\nctxt %d\n", switches),
		"proc/pressure/cpu":   file(pressure, 5, 4),
		"proc/self/mountinfo": file("90 20 0:90 / /sys/fs/resctrl rw - resctrl resctrl rw\n"),

		"sys/fs/resctrl/schemata":               file("L3:0=7ff\nMB:0=100\n"),
		"sys/fs/resctrl/berth-gold/schemata":    file("L3:0=00f\nMB:0= 50\n"),
		"sys/fs/resctrl/pod-a/schemata":         file("L3:0=001\nMB:0=100\n"),
		"sys/fs/resctrl/info/L3/num_closids":    file("16\n"),
		"sys/fs/resctrl/info/L3/cbm_mask":       file("7ff\n"),
		"sys/fs/resctrl/info/MB/num_closids":    file("8\n"),
		"sys/fs/resctrl/info/MB/min_bandwidth":  file("10\n"),
		"sys/fs/resctrl/info/MB/bandwidth_gran": file("10\n"),

		"proc/pressure/memory": file(pressure, 3, 2),
		"proc/pressure/io":     file(pressure, 9, 8),
	}
}

// A group of resctrl that another program calls like a class of Berth's is told apart from it.
func TestCacheClassesOfOneName(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{})
	files := hostFiles(1000)
	for _, name := range []string{"gold", "DEFAULT"} {
		files["sys/fs/resctrl/"+name+"/schemata"] = &fstest.MapFile{Data: []byte("L3:0=010\nMB:0=100\n")}
	}
	r.root.FS = files
	want := map[string]string{"DEFAULT": "11", "gold": "4", "pod-a": "1", "/gold": "1", "/DEFAULT": "1"}
	for name, ways := range want {
		if lines := r.lines("berth_llc_ways{", `cache_class="`+name+`"`); len(lines) != 1 || !strings.HasSuffix(lines[0], " "+ways) {
			t.Errorf("%s: %q, want %s ways", name, lines, ways)
		}
	}
}

// clock is one that a test sets.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

// files is a file tree that a test changes, and counts the reads of.
type files struct {
	fs.FS
	reads int
}

func (f *files) Open(name string) (fs.File, error) {
	f.reads++
	return f.FS.Open(name)
}

type rig struct {
	*Metrics
	t     testing.TB
	view  *view
	root  *files
	clock *clock
}

func newRig(t testing.TB, opt MetricsOptions) *rig {
	t.Helper()
	r := &rig{t: t, view: testView(), root: &files{FS: hostFiles(1000)}, clock: &clock{time.Unix(2000, 0)}}
	opt.Root, opt.Now = r.root, r.clock.now
	r.Metrics = NewMetrics(r.view, opt)
	return r
}

// scrape asks the handler and returns the answer.
func (r *rig) scrape() (text string, status int) {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String(), w.Code
}

// lines are those of a scrape that have all the parts, without comments.
func (r *rig) lines(parts ...string) []string {
	r.t.Helper()
	text, status := r.scrape()
	if status != http.StatusOK {
		r.t.Fatalf("status %d: %s", status, text)
	}
	var found []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// full is a rig of which the second scrape shows every family.
func full(t testing.TB) *rig {
	t.Helper()
	r := newRig(t, MetricsOptions{Hardware: counters(), List: limited, PodEvents: func() map[string]uint64 { return map[string]uint64{"sent": 3, "dropped": 1} }})
	r.observe(agent.Event{Kind: agent.Placed, Took: 4 * time.Millisecond})
	r.observe(agent.Event{Kind: agent.Refused, Err: &place.CPUsError{Asked: 9, Available: 5}})
	r.guarded(&control.Event{Outcome: control.Kept, Action: &control.Action{Remedy: detect.Weight}})
	r.guarded(&control.Event{Outcome: control.GaveUp})
	r.guarded(&control.Event{Outcome: control.Spared}) // no step
	r.scrape()
	r.clock.Time = r.clock.Add(2 * time.Second)
	r.root.FS = hostFiles(3000)
	return r
}

// The whole answer, but for what the process itself costs.
func TestScrape(t *testing.T) {
	t.Parallel()
	text, status := full(t).scrape()
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, text)
	}
	var got strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "process_") {
			got.WriteString(line)
		}
	}
	golden.Check(t, "testdata/scrape.txt", got.String())
	if !strings.Contains(text, "process_cpu_seconds_total") || !strings.Contains(text, "process_resident_memory_bytes") {
		t.Error("what the agent itself costs is missing")
	}
}

// On a Kubernetes node each series of a workload says which container it is of, and what is
// none has the labels empty.
func TestPodLabels(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{Pod: func(id string) (n pods.Name, ok bool) {
		if id == "web" {
			return pods.Name{Namespace: "shop", Pod: "db-0", Container: "postgres"}, true
		}
		return n, false
	}})
	for _, want := range []string{`class="LSE",container="postgres",namespace="shop",pod="db-0",`, `container="",namespace="",pod="",workload="batch:a/b"`} {
		if found := r.lines("berth_workload_", want); len(found) < 3 {
			t.Errorf("%d series have %s", len(found), want)
		}
	}
	for _, line := range r.lines("berth_workload_") {
		if !strings.Contains(line, `,pod="`) {
			t.Errorf("no pod: %s", line)
		}
	}
	strict := prometheus.NewPedanticRegistry()
	if err := strict.Register(r.Metrics); err != nil {
		t.Fatal(err)
	}
	if _, err := strict.Gather(); err != nil {
		t.Error(err)
	}
}

// What is collected is what is described.
func TestDescribed(t *testing.T) {
	t.Parallel()
	strict := prometheus.NewPedanticRegistry()
	if err := strict.Register(full(t).Metrics); err != nil {
		t.Fatal(err)
	}
	if _, err := strict.Gather(); err != nil {
		t.Error(err)
	}
}

func TestLint(t *testing.T) {
	t.Parallel()
	text, _ := full(t).scrape()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// gathered are the families that can be, by name.
func gathered(t testing.TB) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := full(t).registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range all {
		byName[f.GetName()] = f
	}
	return byName
}

// Every family has a figure, its type is what its name says, and its labels are
// few.
func TestFamilies(t *testing.T) {
	t.Parallel()
	all := gathered(t)
	for _, f := range families(false) {
		if all[f.name] == nil {
			t.Errorf("nothing shows %s", f.name)
		}
	}
	labels := []string{"workload", "class", "node", "cache", "mode", "resource", "type", "event", "kind", "reason", "scope", "signal", "direction", "backend", "policy", "remedy", "outcome", "cache_class", "unit", "name", "network_class", "device", "pool"}
	for name, f := range all {
		if got, want := f.GetType() == dto.MetricType_COUNTER, strings.HasSuffix(name, "_total"); got != want {
			t.Errorf("%s is a %v", name, f.GetType())
		}
		for _, pair := range f.Metric[0].Label {
			if !slices.Contains(labels, pair.GetName()) {
				t.Errorf("%s has label %q", name, pair.GetName())
			}
		}
	}
}

// The unit of a quantity is the one that the name of its family ends in.
func TestUnits(t *testing.T) {
	t.Parallel()
	for src, target := range sources() {
		name := strings.TrimSuffix(target.family, "_total")
		if src.quantity.Counter() == (name == target.family) {
			t.Errorf("%v is shown as %s: counter or not?", src.quantity, target.family)
		}
		for unit, suffix := range map[watch.Unit]string{watch.Seconds: "_seconds", watch.Bytes: "_bytes"} {
			if (src.quantity.Unit() == unit) != strings.HasSuffix(name, suffix) {
				t.Errorf("%v in %v is shown as %s", src.quantity, src.quantity.Unit(), target.family)
			}
		}
	}
}

// The series of a workload that is gone are gone, too, however long its figures stay.
func TestReleasedWorkloadVanishes(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{})
	if len(r.lines(`workload="web"`)) == 0 {
		t.Fatal("web is not shown")
	}
	r.view.machine.Owners = r.view.machine.Owners[:1]
	if got := r.lines(`workload="web"`); len(got) != 0 {
		t.Errorf("after its release: %q", got)
	}
}

// Without hardware, pressure and a first reading nothing stands for them.
func TestAbsentIsNotZero(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{})
	r.root.FS = fstest.MapFS{}
	r.view.stats = api.Stats{}
	r.clock.Time = r.clock.Add(time.Hour)
	for _, name := range []string{"node_ipc", "node_llc", "node_memory", "node_context", "node_pressure", "berth_last_sample_timestamp_seconds", "berth_workload_cpu_seconds"} {
		if got := r.lines(name); len(got) > 0 {
			t.Errorf("%q", got)
		}
	}
	for _, want := range []string{
		`berth_signal_available{reason="this agent has no reader of them",scope="node",signal="llc occupancy"} 0`,
		`berth_signal_available{reason="there is no memory.current",scope="workload",signal="memory"} 0`,
		`berth_signal_available{reason="",scope="workload",signal="usage"} 1`,
	} {
		if !slices.Contains(r.lines("berth_signal_available"), want) {
			t.Errorf("not told: %s\n%s", want, strings.Join(r.lines("berth_signal_available"), "\n"))
		}
	}
	if got := r.lines("berth_signal_available", `signal="cpu pressure"`, "} 0"); len(got) != 1 || strings.Contains(got[0], `reason=""`) {
		t.Errorf("no pressure: %q", got)
	}
}

// Hardware that tells a part is shown in part, with the reason for the rest.
func TestHardwareInPart(t *testing.T) {
	t.Parallel()
	hw := counters()
	hw.why = map[watch.Quantity]error{watch.Cycles: unsupported("there is no PMU"), watch.LLCOccupancy: unsupported("not shown")}
	hw.samples = slices.DeleteFunc(hw.samples, func(s watch.Sample) bool {
		return s.Quantity == watch.BandwidthLocal || s.Quantity == watch.Cycles
	})
	r := newRig(t, MetricsOptions{Hardware: hw})
	r.scrape()
	r.clock.Time = r.clock.Add(time.Second)
	want := []string{`node_memory_bandwidth_bytes_per_second{direction="any"} 300`}
	if diff := cmp.Diff(want, r.lines("node_memory_bandwidth")); diff != "" {
		t.Error(diff)
	}
	if got := r.lines("node_ipc "); len(got) > 0 {
		t.Errorf("%q without cycles", got)
	}
	want = []string{`berth_signal_available{reason="there is no PMU",scope="node",signal="instructions per cycle"} 0`}
	if diff := cmp.Diff(want, r.lines("instructions per cycle")); diff != "" {
		t.Error(diff)
	}
}

// A reader that fails is the reason for all that is missing.
func TestHardwareFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	why := map[watch.Quantity]error{watch.LLCOccupancy: broken, watch.Bandwidth: broken, watch.Cycles: broken, watch.Instructions: broken}
	r := newRig(t, MetricsOptions{Hardware: &hardware{why: why}})
	r.scrape()
	for _, signal := range []string{"llc occupancy", "memory bandwidth", "instructions per cycle"} {
		want := []string{`berth_signal_available{reason="broken",scope="node",signal="` + signal + `"} 0`}
		if diff := cmp.Diff(want, r.lines(signal)); diff != "" {
			t.Error(diff)
		}
	}
}

// A counter that goes back has no rate.
func TestCounterGoesBack(t *testing.T) {
	t.Parallel()
	r := full(t)
	r.root.FS = hostFiles(10)
	if got := r.lines("node_context_switches_per_second "); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// However often somebody scrapes, the host is read once in an interval.
func TestScrapesDoNotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{})
	r.scrape()
	reads := r.root.reads
	for range 10 {
		r.scrape()
	}
	if r.root.reads != reads || reads == 0 {
		t.Errorf("%d reads after 1 scrape, %d after 11", reads, r.root.reads)
	}
	r.clock.Time = r.clock.Add(time.Second)
	if r.scrape(); r.root.reads == reads {
		t.Error("not read again after the interval")
	}
}

func TestWorkloadsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{})
	r.workloads = 1
	if got := r.lines(`workload="batch`); len(got) > 0 {
		t.Errorf("one beyond the bound has %q", got)
	}
	if len(r.lines(`workload="web"`)) == 0 {
		t.Error("the workload of the best class is not shown")
	}
	want := []string{"berth_hidden_workloads 1"}
	if diff := cmp.Diff(want, r.lines("berth_hidden_workloads")); diff != "" {
		t.Error(diff)
	}
}

func TestNameThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{})
	r.view.machine.Owners[1].ID = "web\xff"
	if got := r.lines("berth_workload_exclusive_cpus", `web\\xff`); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

func TestNoNUMA(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{})
	r.view.machine.Machine.Domains = nil
	if diff := cmp.Diff([]string{`berth_free_cpus{node=""} 3`}, r.lines("berth_free_cpus")); diff != "" {
		t.Error(diff)
	}
}

func TestAgentThatCannotTell(t *testing.T) {
	t.Parallel()
	r := newRig(t, MetricsOptions{})
	r.view.err = errors.New("the records cannot be read")
	text, status := r.scrape()
	if status != http.StatusInternalServerError || !strings.Contains(text, "the records cannot be read") {
		t.Errorf("status %d: %s", status, text)
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, MetricsOptions{})
		h := api.NewHistory(4, 1)
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error)
		h.Add(api.Event{Event: agent.Event{Kind: api.Started}})
		go func() { done <- r.Follow(ctx, h) }()
		synctest.Wait()
		h.Add(api.Event{Event: agent.Event{Kind: agent.Repaired}})
		synctest.Wait()
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		for _, want := range []string{
			`berth_events_total{kind="started"} 1`, `berth_events_total{kind="repaired"} 1`, `berth_events_total{kind="failed"} 0`,
		} {
			if got := r.lines(want); len(got) != 1 {
				t.Errorf("%s: got %q", want, r.lines("berth_events_total"))
			}
		}
	})
}

// BenchmarkScrape is a scrape with 250 workloads of 14 figures each, as text.
func BenchmarkScrape(b *testing.B) {
	r := newRig(b, MetricsOptions{})
	r.view.machine.Owners, r.view.stats.Workloads = nil, nil
	quantities := []watch.Quantity{
		watch.CPUTime, watch.CPUPeriods, watch.CPUThrottledPeriods, watch.CPUThrottled, watch.CPUBursts, watch.CPUBurstTime,
		watch.CPUSome, watch.CPUFull, watch.Memory, watch.CPUWait, watch.SwitchesInvoluntary, watch.Tasks, watch.PageFaults, watch.MajorFaults,
	}
	for i := range 250 {
		id := fmt.Sprintf("web:kubepods.slice/pod%d", i)
		r.view.machine.Owners = append(r.view.machine.Owners, api.Owner{ID: id, Class: place.LS, CPUs: cpuset.MustParse("0-3")})
		w := api.Figures{ID: id}
		for j, q := range quantities {
			w.Figures = append(w.Figures, api.Figure{Quantity: q, Value: float64(i*j) / 7})
		}
		r.view.stats.Workloads = append(r.view.stats.Workloads, w)
	}
	for _, encoding := range []string{"identity", "gzip"} {
		b.Run(encoding, func(b *testing.B) {
			b.ReportAllocs()
			var body bytes.Buffer
			before := cpuTime(b)
			for b.Loop() {
				body.Reset()
				w := httptest.NewRecorder()
				w.Body = &body
				q := httptest.NewRequest(http.MethodGet, "/metrics", nil)
				q.Header.Set("Accept-Encoding", encoding)
				r.Handler().ServeHTTP(w, q) // one that has not been asked in this second
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(body.Len()), "B/scrape")
		})
	}
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
