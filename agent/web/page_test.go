package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
)

// fakeAgent is an agent that a test simulates.
type fakeAgent struct {
	api.Node
	about   api.About
	machine api.Machine
	config  api.Config
	stats   api.Stats
	guard   api.Guard
	classes agent.ClassReport
	list    []agent.Workload
	err     error
}

func (p *fakeAgent) About(context.Context) (api.About, error)     { return p.about, p.err }
func (p *fakeAgent) Machine(context.Context) (api.Machine, error) { return p.machine, p.err }
func (p *fakeAgent) Config(context.Context) (api.Config, error)   { return p.config, p.err }
func (p *fakeAgent) Stats(context.Context) (api.Stats, error)     { return p.stats, p.err }
func (p *fakeAgent) Guard(context.Context) (api.Guard, error)     { return p.guard, p.err }
func (p *fakeAgent) ClassReport(context.Context) (agent.ClassReport, error) {
	return p.classes, p.err
}
func (p *fakeAgent) List(context.Context) ([]agent.Workload, error) { return p.list, p.err }
func (p *fakeAgent) server() api.Server {
	return api.Server{Node: p, View: p, History: api.NewHistory(100, 0)}
}
func (p *fakeAgent) Get(_ context.Context, id string) (agent.Workload, error) {
	for _, w := range p.list {
		if w.ID() == id {
			return w, p.err
		}
	}
	return agent.Workload{}, &place.NotHeldError{ID: id}
}

const hostile = `</script><img src=x onerror=alert(1)>" '&`

func set(list string) cpuset.Set { return cpuset.MustParse(list) }

// newFake fakes an agent of n workloads on a machine of a short form; the first owns CPUs 2 and 3.
func newFake(t testing.TB, form string, n int) *fakeAgent {
	t.Helper()
	m := fakekernel.Short(t, form)
	rate := 0.25
	p := &fakeAgent{about: api.About{Backend: "cgroup v2", Policy: "berth", PID: 7, Started: time.Unix(100, 0)}}
	p.machine = api.Machine{Machine: m, Config: place.Config{Allowed: m.Online, Reserved: set("0")}, Shared: m.Online.Minus(set("2-3"))}
	p.stats.Time = time.Unix(200, 0)
	for i := range n {
		id := fmt.Sprintf("%03d %s", i, hostile)
		class, own, cpus := place.LS, cpuset.Set{}, p.machine.Shared
		if i == 0 {
			class, own, cpus = place.LSR, set("2-3"), set("2-3")
		}
		request := place.Request{ID: id, Class: class}
		why := &place.Why{Decisions: []*place.Decision{{Name: "node", Candidates: []place.Candidate{{Name: "node 0"}}}}}
		p.machine.Owners = append(p.machine.Owners, api.Owner{ID: id, Class: class, Own: own, CPUs: cpus})
		p.list = append(p.list, agent.Workload{
			Spec: agent.Spec{Request: request}, CPUs: cpus, Since: time.Unix(150, 0),
			Grant: &place.Grant{ID: id, Own: own, Request: request, Why: why},
		})
		var figures []api.Figure
		for q := range watch.Frozen + 1 {
			f := api.Figure{Quantity: q, Value: 3}
			if q.Counter() {
				f.Rate = &rate
			}
			figures = append(figures, f)
		}
		p.stats.Workloads = append(p.stats.Workloads, api.Figures{ID: id, Figures: figures})
	}
	return p
}

func get(h http.Handler, method, target string, header ...string) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func TestHandler(t *testing.T) {
	t.Parallel()
	h := Handler(newFake(t, "1s2c", 1).server(), nil)
	for _, tc := range []struct {
		method, target string
		status         int
		kind, caching  string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8", "no-cache"},
		{"HEAD", "/", 200, "text/html; charset=utf-8", "no-cache"},
		{"GET", "/page.css", 200, "text/css; charset=utf-8", "no-cache"},
		{"GET", "/page.js", 200, "text/javascript; charset=utf-8", "no-cache"},
		{"GET", "/status.json", 200, "application/json", "no-store"},
		{"GET", "/status.json?after=12", 200, "application/json", "no-store"},
		{"GET", "/hour.json", 200, "application/json", "no-store"},
		{"GET", "/explanation.json?id=000+%3C/script%3E%3Cimg+src=x+onerror=alert(1)%3E%22+'%26", 200, "application/json", "no-store"},
		{"GET", "/status.json?after=-1", 400, "text/plain; charset=utf-8", ""},
		{"GET", "/status.json?after=x", 400, "text/plain; charset=utf-8", ""},
		{"GET", "/explanation.json?id=../x", 404, "text/plain; charset=utf-8", "no-store"},
		{"GET", "/explanation.json", 404, "text/plain; charset=utf-8", "no-store"},
		{"GET", "/page.go", 404, "text/plain; charset=utf-8", ""},
		{"GET", "/v1/workloads", 404, "text/plain; charset=utf-8", ""},
		{"POST", "/", 405, "text/plain; charset=utf-8", ""},
		{"PUT", "/status.json", 405, "text/plain; charset=utf-8", ""},
		{"DELETE", "/explanation.json?id=x", 405, "text/plain; charset=utf-8", ""},
	} {
		r := get(h, tc.method, tc.target)
		if r.StatusCode != tc.status || r.Header.Get("Content-Type") != tc.kind || tc.caching != "" && r.Header.Get("Cache-Control") != tc.caching {
			t.Errorf("%s %s is %d %q %q", tc.method, tc.target, r.StatusCode, r.Header.Get("Content-Type"), r.Header.Get("Cache-Control"))
		}
		csp := r.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none';") || strings.Contains(csp, "unsafe") || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s is not guarded: %v", tc.method, tc.target, r.Header)
		}
		if r.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s may be read by other sites", tc.method, tc.target)
		}
	}
}

func TestAssetsAreKept(t *testing.T) {
	t.Parallel()
	h := Handler(newFake(t, "1s2c", 0).server(), nil)
	for _, target := range []string{"/", "/page.css", "/page.js"} {
		tag := get(h, "GET", target).Header.Get("ETag")
		if got := get(h, "GET", target, "If-None-Match", tag).StatusCode; got != http.StatusNotModified {
			t.Errorf("%s with its own tag %s is %d", target, tag, got)
		}
		if got := get(h, "GET", target, "If-None-Match", `"other"`).StatusCode; got != http.StatusOK {
			t.Errorf("%s with another tag is %d", target, got)
		}
	}
}

func TestPageOfAgentThatCannotTell(t *testing.T) {
	t.Parallel()
	p := newFake(t, "1s2c", 0)
	p.err = errors.New("the disk is gone")
	r := get(Handler(p.server(), nil), "GET", "/status.json")
	if r.StatusCode != http.StatusInternalServerError {
		t.Errorf("the answer is %d", r.StatusCode)
	}
}

func statusFrom(t *testing.T, s api.Server, target string) (status Status) {
	t.Helper()
	r := get(Handler(s, nil), "GET", target)
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&status); err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	return status
}

func TestStatus(t *testing.T) {
	t.Parallel()
	p := newFake(t, "1s2n2c2t", 2)
	p.config = api.Config{File: "/etc/n.yaml", Refused: "line 3", Pending: []string{"agent.socket"}}
	p.about.Waiting = []api.Waiting{{ID: "big", Reason: "too few CPUs"}}
	p.list[1].Notes = []string{"slower than asked"}
	s := p.server()
	for range 60 {
		s.History.Add(api.Event{Event: agent.Event{Kind: agent.Placed, ID: hostile}})
	}
	s.History.Add(api.Event{Event: agent.Event{Kind: api.Guarded, ID: "web", Text: "refused, in the words of the rules"}, Guard: &control.Event{
		Outcome: control.Refused, Victim: "web", Suspect: "batch", Skipped: []control.Skip{{Reason: "batch is LS"}},
	}})
	got := statusFrom(t, s, "/status.json")
	quarter, one, three := 0.25, 1.0, 3.0
	figures := Figures{CPU: &quarter, Throttled: &one, CPUPressure: &quarter, MemoryPressure: &quarter, IOPressure: &quarter, Memory: &three}
	want := []Workload{
		{Owner: api.Owner{ID: "000 " + hostile, Class: place.LSR, Own: set("2-3"), CPUs: set("2-3")}, Since: time.Unix(150, 0), Figures: figures},
		{Owner: api.Owner{ID: "001 " + hostile, Class: place.LS, CPUs: set("0-1,4-7")}, Since: time.Unix(150, 0), Notes: []string{"slower than asked"}, Figures: figures},
	}
	if diff := cmp.Diff(want, got.Workloads); diff != "" {
		t.Errorf("workloads (-want +got):\n%s", diff)
	}
	if len(got.Warnings) != 2 || len(got.Waiting) != 1 || got.File != "/etc/n.yaml" {
		t.Errorf("warnings %q, waiting %v, file %q", got.Warnings, got.Waiting, got.File)
	}
	if n := len(got.Events); n != maxEvents || got.Events[n-1].Seq != 61 || got.Events[n-1].Text != "refused: web against batch; batch is LS" {
		t.Errorf("there are %d events, the last of them %v", n, got.Events[max(0, n-1):])
	}
	later := statusFrom(t, s, "/status.json?after=59")
	if len(later.Events) != 2 || later.Events[0].Seq != 60 {
		t.Errorf("after 59 come %v", later.Events)
	}
}

// A figure that is not told is absent, and so is throttling without quota.
func TestFiguresAbsent(t *testing.T) {
	t.Parallel()
	zero, one := 0.0, 1.0
	for _, tc := range []struct {
		name string
		in   []api.Figure
		want Figures
	}{
		{name: "none"},
		{name: "first reading", in: []api.Figure{{Quantity: watch.CPUTime, Value: 9}}},
		{name: "idle", in: []api.Figure{{Quantity: watch.CPUTime, Rate: &zero}}, want: Figures{CPU: &zero}},
		{name: "a part", in: []api.Figure{{Quantity: watch.CPUTime, Part: watch.Part{Kind: watch.CPU}, Rate: &one}}},
		{name: "no quota", in: []api.Figure{{Quantity: watch.CPUPeriods, Rate: &zero}, {Quantity: watch.CPUThrottledPeriods, Rate: &zero}}},
		{name: "no periods", in: []api.Figure{{Quantity: watch.CPUThrottledPeriods, Rate: &one}}},
		{name: "quota", in: []api.Figure{{Quantity: watch.CPUPeriods, Rate: &one}, {Quantity: watch.CPUThrottledPeriods, Rate: &zero}}, want: Figures{Throttled: &zero}},
	} {
		if diff := cmp.Diff(tc.want, figuresOf(tc.in)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

func TestBoxes(t *testing.T) {
	t.Parallel()
	crossed := &machine.Machine{Online: set("0-4"), Domains: []machine.Domain{
		{Kind: machine.Node, CPUs: set("0-1")}, {Kind: machine.Node, ID: 1, CPUs: set("2-3")},
		{Kind: machine.L3, CPUs: set("1-2")},
	}}
	short := func(form string) *machine.Machine {
		m := fakekernel.Short(t, form)
		return m
	}
	sets := func(lists ...string) (all []cpuset.Set) {
		for _, l := range lists {
			all = append(all, set(l))
		}
		return all
	}
	for _, tc := range []struct {
		name string
		m    *machine.Machine
		want []Box
	}{
		{"2 CPUs", short("1s2c"), []Box{{Names: []string{"socket 0", "node 0", "L3 0"}, Cores: sets("0", "1")}}},
		{"2 nodes", short("1s2n1c2t"), []Box{{Names: []string{"socket 0"}, Boxes: []Box{
			{Names: []string{"node 0", "L3 0"}, Cores: sets("0,2")}, {Names: []string{"node 1", "L3 0"}, Cores: sets("1,3")}, // one L3, cut
		}}}},
		{"nothing told", &machine.Machine{Online: set("0-1")}, []Box{{Names: []string{}, Cores: sets("0", "1")}}},
		{"crossing", crossed, []Box{
			{Names: []string{"node 0"}, Boxes: []Box{{Names: []string{"L3 0"}, Cores: sets("1")}, {Names: []string{}, Cores: sets("0")}}},
			{Names: []string{"node 1"}, Boxes: []Box{{Names: []string{"L3 0"}, Cores: sets("2")}, {Names: []string{}, Cores: sets("3")}}},
			{Names: []string{}, Cores: sets("4")},
		}},
	} {
		if diff := cmp.Diff(tc.want, boxesOf(tc.m)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// Every CPU is drawn once, whatever the machine.
func TestBoxesHaveEveryCPUOnce(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"1s1c2t", "2s4n4c2t", "2n2s8c", "1s3l5c2t", "8s2n2l8c2t"} {
		m := fakekernel.Short(t, form)
		var cpus []int
		var count func([]Box)
		count = func(boxes []Box) {
			for _, b := range boxes {
				count(b.Boxes)
				for _, c := range b.Cores {
					cpus = append(cpus, c.Slice()...)
				}
			}
		}
		count(boxesOf(m))
		slices.Sort(cpus)
		if diff := cmp.Diff(m.Online.Slice(), cpus); diff != "" {
			t.Errorf("%s (-want +got):\n%s", form, diff)
		}
	}
}

// The page loads nothing from elsewhere, has nothing inline, and makes no markup of
// texts.
func TestAssets(t *testing.T) {
	t.Parallel()
	size := 0
	for name, bad := range map[string]string{
		"page.html": `style=|<style|\son\w+=|https?:|//|<script>|javascript:`,
		"page.css":  `url\(|@import|https?:`,
		"page.js":   `innerHTML|outerHTML|insertAdjacent|document\.write|eval|new Function|DOMParser|setTimeout\("|method:`,
	} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		size += len(text)
		if at := regexp.MustCompile(bad).FindIndex(text); at != nil {
			t.Errorf("%s has %q", name, text[at[0]:min(len(text), at[1]+20)])
		}
	}
	t.Logf("the assets have %d bytes", size)
}

// Fields that the script reads are those of Status and what it holds.
func TestScriptKnowsTheFields(t *testing.T) {
	t.Parallel()
	script, err := assets.ReadFile("page.js")
	if err != nil {
		t.Fatal(err)
	}
	p := newFake(t, "1s2n2c2t", 1)
	p.config = api.Config{File: "f", Refused: "x"}
	p.stats.Time = time.Unix(1, 0)
	p.about.Waiting = []api.Waiting{{ID: "w", Reason: "r"}}
	p.machine.Machine.Name, p.machine.Machine.Model = "n", "m"
	p.machine.Machine.Offline, p.machine.Machine.Isolated = set("99"), set("1")
	p.machine.Owners[0].Fence, p.machine.Owners[0].Lent = set("1"), true
	p.list[0].Mems, p.list[0].Notes = set("0"), []string{"n"}
	s := p.server()
	s.History.Add(api.Event{Event: agent.Event{Kind: agent.Placed, ID: "i", Object: "o", Text: "t"}, By: &api.Origin{Kind: api.ByClient, Peer: &api.Peer{PID: 1}}})
	status, err := statusOf(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	status.Machine.Load = map[int]float64{0: 0.5}
	for what, value := range map[string]any{
		"past": Past{}, "point": Point{time.Unix(1, 0), new(float64), new(float64)}, "mark": Mark{},
		"s": status, "m": status.Machine, "w": status.Workloads[0], "e": status.Events[0], "b": status.Machine.Boxes[0],
	} {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		for field := range fields {
			if !regexp.MustCompile(`[.{" ]` + field + `\b`).Match(script) {
				t.Errorf("the script does not read %q of %s", field, what)
			}
		}
	}
}

// BenchmarkStatus measures one refresh of the page, without what the agent's node
// takes to tell: 250 workloads with all figures, 512 CPUs.
func BenchmarkStatus(b *testing.B) {
	s := newFake(b, "2s4n2l16c2t", 250).server()
	b.ReportAllocs()
	size, before := 0, cpuTime(b)
	for b.Loop() {
		snap, err := snapshotOf(b.Context(), s, nil) // as for the first reader in a second
		if err != nil {
			b.Fatal(err)
		}
		size = len(snap.text(0))
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(size), "bytes/answer")
}
