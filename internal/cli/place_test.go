package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/proc"
)

// emptyHost is the host of placedHost without workloads.
func emptyHost(t *testing.T) (string, *fakekernel.Kernel, *machine.Machine) {
	t.Helper()
	return hostOf(t, "2s1n1l4c2t", "0-15", "0-1")
}

// hostOf is an empty host on cgroup v1 of a machine in its short form.
func hostOf(t *testing.T, short, cpus, mems string) (string, *fakekernel.Kernel, *machine.Machine) {
	t.Helper()
	dir := t.TempDir()
	l := fakekernel.V1()
	l.CPUs, l.Mems = cpus, mems
	k, err := fakekernel.New(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "proc/meminfo"), []byte("MemTotal: 4194304 kB\nMemAvailable: 4194304 kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := fakekernel.Short(t, short)
	sys, err := fakekernel.Sysfs(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "sys/devices")), os.CopyFS(dir, sys)); err != nil {
		t.Fatal(err)
	}
	return dir, k, m
}

// placedHost is a host of two sockets on cgroup v1, where files take any value,
// with three workloads. It returns its root.
func placedHost(t *testing.T) string {
	t.Helper()
	dir, k, m := emptyHost(t)
	n, err := agent.Open(t.Context(), agent.Options{
		Root: kernel.NewRoot(dir, k), Dir: nodeDir(dir), Machine: m,
		Now: func() time.Time { return time.Now().Add(-90 * time.Minute) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for i, s := range []agent.Spec{
		{Request: place.Request{ID: "api", Class: place.LSE, Milli: 4000, Explain: true}},
		{Request: place.Request{ID: "db", Class: place.LSR, Milli: 2000, Explain: true}, Limits: cgroup.Limits{MemoryMax: 1 << 30}},
		{Request: place.Request{ID: "batch", Class: place.BE, Explain: true}, Limits: cgroup.Limits{Quota: 50 * time.Millisecond, Period: 100 * time.Millisecond}},
	} {
		pid := []string{"100", "101", "102"}[i]
		if err := k.Start(pid); err != nil {
			t.Fatal(err)
		}
		s.PID = 100 + i
		if _, err := n.Place(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPlacedGolden(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	for name, args := range map[string][]string{
		"ps.txt":           {"ps", "--interval", "10ms"},
		"ps-wide.txt":      {"ps", "--interval", "10ms", "-o", "wide"},
		"status.txt":       {"status"},
		"explain.txt":      {"explain", "api"},
		"explain-be.txt":   {"explain", "batch"},
		"map.txt":          {"map"},
		"map.json":         {"map", "-o", "json"},
		"dry-run.txt":      {"run", "--dry-run", "--class", "LSE", "--cpus", "2", "--name", "new", "--", "true"},
		"dry-run-be.txt":   {"run", "--dry-run", "--class", "BE", "--quota", "150%", "--memory", "64Mi", "--name", "new", "--", "true"},
		"dry-run-mems.txt": {"run", "--dry-run", "--mems", "1", "--class", "LSR", "--cpus", "3", "--weight", "50", "--name", "new", "--", "true"},
	} {
		out, errs, code := berth(t, append(args[:1:1], append([]string{"--root", dir}, args[1:]...)...)...)
		if code != exitOK || errs != "" {
			t.Errorf("%s: status %d: %s", name, code, errs)
		}
		golden.Check(t, "testdata/placed/"+name, regexp.MustCompile(`1h3\dm`).ReplaceAllString(out, "AGE"))
	}
}

// Where Berth does nothing, status says what to do next.
func TestStatusOfNothing(t *testing.T) {
	t.Parallel()
	dir, _, _ := emptyHost(t)
	out, errs, code := berth(t, "status", "--root", dir)
	if code != exitOK || errs != "" || !strings.HasSuffix(out, "\nno workloads\n\nBerth does nothing here so far. To see which workload suffers, from what, because of which:\n  sudo berth diagnose\n") {
		t.Errorf("status %d: %s%s", code, out, errs)
	}
}

func TestPlacedJSON(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	out, errs, code := berth(t, "ps", "--root", dir, "--interval", "10ms", "-o", "json")
	var rows []psRow
	if err := json.Unmarshal([]byte(out), &rows); err != nil || code != exitOK || errs != "" || len(rows) != 3 {
		t.Fatalf("status %d, %v, %d rows: %s", code, err, len(rows), errs)
	}
	if r := rows[0]; r.ID() != "api" || r.CPUs.Len() != 4 || r.Usage.CPUStall != nil || r.Usage.Tasks == nil {
		t.Errorf("api: %+v", r)
	}
	out, _, _ = berth(t, "run", "--root", dir, "--dry-run", "-o", "json", "--class", "LSE", "--cpus", "2", "--name", "new", "--", "true")
	var draft struct {
		Workload agent.Workload `json:"workload"`
		Plan     kernel.Plan    `json:"plan"`
	}
	if err := json.Unmarshal([]byte(out), &draft); err != nil || draft.Workload.CPUs.Len() != 2 || len(draft.Plan) == 0 {
		t.Errorf("dry run: %v: %s", err, out)
	}
}

func TestPlacedRefuses(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"ps", "extra"}, 2, "extra"},
		{[]string{"ps", "-o", "xml"}, 2, "xml"},
		{[]string{"ps", "--interval", "1ns"}, 2, "interval"},
		{[]string{"map", "-o", "wide"}, 2, "wide"},
		{[]string{"explain"}, 2, "NAME"},
		{[]string{"explain", "a", "b"}, 2, "NAME"},
		{[]string{"explain", "none"}, 1, "none"},
		{[]string{"release", "none"}, 1, "none"},
		{[]string{"release", "api"}, 1, "release api: it still has processes [100]; --keep lets them run on, --kill ends them"},
		{[]string{"release", "api", "--keep", "--kill"}, 2, "only one of them"},
		{[]string{"adopt"}, 2, "one of --pid, --unit and --cgroup is needed"},
		{[]string{"adopt", "--pid", "100", "--unit", "a.service"}, 2, "one of --pid, --unit and --cgroup is needed"},
		{[]string{"adopt", "--pid", "-1"}, 2, "no process has that number"},
		{[]string{"adopt", "--pid", "31337"}, 1, "--pid 31337: there is no such process"},
		{[]string{"adopt", "--unit", "nginx.service"}, 1, "systemd does not run here"},
		{[]string{"adopt", "--cgroup", "/", "--class", "BE"}, 2, "--cgroup /: it is the root"},
		{[]string{"adopt", "--cgroup", "/none", "--class", "BE"}, 1, `group "none" is not there`},
		{[]string{"adopt", "--pid", "100", "--class", "LSE"}, 2, "say how many with --cpus"},
		{[]string{"move", "api"}, 2, "--cpuset"},
		{[]string{"move", "api", "--cpuset", "x"}, 2, "x"},
		{[]string{"move", "none", "--cpuset", "1"}, 1, "none"},
		{[]string{"move", "db", "--cpuset", "8,9,90"}, 1, "90"},
		{[]string{"resize", "none", "--cpus", "1"}, 1, "none"},
		{[]string{"resize", "api", "--cpus", "99"}, 1, "--cpus: 99 CPUs are asked for, and this host has 16"},
		{[]string{"resize", "api", "--cpus", "max"}, 2, "max"},
		{[]string{"resize", "api", "--quota", "1ns/1ms"}, 1, "quota"},
		{[]string{"resize", "api", "--memory", "900Ti"}, 1, "--memory: it is 900Ti, and this host has 4 GiB"},
		{[]string{"resize", "api", "--quota", "5000"}, 1, "--quota: it is the time of 5000 CPUs, and this host has 16"},
		{[]string{"run", "--dry-run", "--quota", "1700%", "--", "true"}, 125, "the time of 17 CPUs"},
		{[]string{"resize", "api", "--memory", "0"}, 2, "max"},
		{[]string{"resize", "api", "--weight", "0"}, 2, `--weight: "0" is not a share from 1 to 10000`},
		{[]string{"run", "--dry-run", "--io-weight", "0", "--", "true"}, 125, `--io-weight: "0" is not a share from 1 to 10000`},
		{[]string{"resize", "api", "--send", "1Mb"}, 2, `"1Mb" is no rate from 8kbit to 10Tbit`},
		{[]string{"resize", "api", "--receive", "1bit"}, 2, `"1bit" is no rate`},
		{[]string{"run", "--dry-run", "--send", "10Mbit", "--", "true"}, 125, "network classes: not supported: cgroup v2 is not mounted"},
		{[]string{"resize", "api", "--cpuset", ""}, 2, "it is empty"},
		{[]string{"resize", "api", "--mems", ""}, 2, "it is empty"},
		{[]string{"run", "--dry-run", "--cpuset", "", "--", "true"}, 125, "it is empty"},
		{[]string{"run", "--dry-run", "--mems", "0,7", "--", "true"}, 125, "--mems 0,7: memory nodes 7: not there; the host has 0-1"},
		{[]string{"run", "--dry-run", "--cpuset", "3,77", "--", "true"}, 125, "--cpuset 3,77: not there, or not for workloads (allowed): CPU 77; the host has CPUs 0-15 for them"},
		{[]string{"run", "-o", "json", "--", "true"}, 125, "--dry-run"},
		{[]string{"move", "db", "--cpuset", "8", "--mems", "7"}, 1, "memory nodes 7: not there; the host has 0-1"},
		{[]string{"resize", "db", "--mems", "7"}, 1, "memory nodes 7: not there; the host has 0-1"},
		{[]string{"resize", "api", "--policy", "nobody"}, 2, "nobody"},
		{[]string{"ps", "--socket", filepath.Join(dir, "none.sock")}, 1, "no agent"},
	} {
		out, errs, code := berth(t, append(tt.args[:1:1], append([]string{"--root", dir}, tt.args[1:]...)...)...)
		if code != tt.code || !strings.Contains(errs, tt.says) || out != "" {
			t.Errorf("%v: status %d, %q%q; want %d, %q", tt.args, code, out, errs, tt.code, tt.says)
		}
	}
}

// Each cause of a shortage of CPUs on a host with two has a text of its own: it names the
// rule, who has the CPU or the setting that keeps it.
func TestEachShortageHasItsText(t *testing.T) {
	t.Parallel()
	run := func(args ...string) []string {
		return append(append([]string{"run", "--dry-run"}, args...), "--", "true")
	}
	lse := func(id string) place.Request { return place.Request{ID: id, Class: place.LSE, Milli: 1000} }
	const floor = "CPU 0 stays shared, for workloads without CPUs of their own (floor, noFloor)"
	for name, c := range map[string]struct {
		conf   place.Config
		placed []place.Request
		args   []string
		want   string
	}{
		"floor and another's": {place.Config{}, []place.Request{lse("web")}, run("--class", "LSE", "--cpus", "1"), "1 asked, 0 available: " + floor + "; CPU 1 is exclusive to web"},
		"the shared pool": {
			place.Config{NoFloor: true}, []place.Request{lse("web"), {ID: "batch", Class: place.BE}}, run("--class", "LSE", "--cpus", "1"),
			"1 asked, 0 available: CPU 0 is exclusive to web; CPU 1 is shared by batch, which needs 1 CPU",
		},
		"reserved": {place.Config{Reserved: cpuset.MustOf(0)}, []place.Request{lse("web")}, run("--class", "LSE", "--cpus", "1"), "1 asked, 0 available: CPU 0 is reserved for the host (reserved); CPU 1 is exclusive to web"},
		"allowed":  {place.Config{Allowed: cpuset.MustOf(0)}, []place.Request{{ID: "batch", Class: place.BE}}, run("--class", "LSE", "--cpus", "1"), "1 asked, 0 available: CPU 1 is not for workloads (allowed); " + floor},
		"rounded":  {place.Config{}, nil, run("--class", "LSE", "--cpus", "1.5"), "2 asked, 1 available (1500m is rounded up to whole CPUs): " + floor},
		"machine":  {place.Config{}, nil, run("--class", "LSE", "--cpus", "4"), "--cpus: 4 CPUs are asked for, and this host has 2"},
		"move": {
			place.Config{NoFloor: true}, []place.Request{lse("web"), {ID: "batch", Class: place.BE}}, []string{"move", "batch", "--cpuset", "0"},
			"CPU 0 is exclusive to web",
		},
		"resize": {
			place.Config{}, []place.Request{lse("web"), {ID: "cache", Milli: 500}}, []string{"resize", "cache", "--class", "LSE", "--cpus", "1"},
			"1 asked, 0 available: " + floor + "; CPU 1 is exclusive to web",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, k, m := hostOf(t, "1s1n1l2c1t", "0-1", "0")
			n, err := agent.Open(t.Context(), agent.Options{Root: kernel.NewRoot(dir, k), Dir: nodeDir(dir), Machine: m, Settings: agent.Settings{Config: c.conf}})
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range c.placed {
				if err := k.Start(strconv.Itoa(100 + i)); err != nil {
					t.Fatal(err)
				}
				if _, err := n.Place(t.Context(), agent.Spec{Request: r, PID: 100 + i}); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			out, errs, code := berth(t, append(c.args[:1:1], append([]string{"--root", dir}, c.args[1:]...)...)...)
			if code == exitOK || out != "" || !strings.Contains(errs, c.want) {
				t.Errorf("status %d, %s%s\nwant %s", code, out, errs, c.want)
			}
		})
	}
}

func TestMoveAndResize(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	cpusOf := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, "sys/fs/cgroup/cpuset/berth", name, "cpuset.cpus"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	if out, errs, code := berth(t, "move", "db", "--root", dir, "--cpuset", "4-5"); code != 0 || out != "db runs on 4-5\n" {
		t.Errorf("move: %d, %s%s", code, out, errs)
	}
	if got := cpusOf("db"); got != "4-5" {
		t.Errorf("db is on %s", got)
	}
	if out, errs, code := berth(t, "resize", "api", "--root", dir, "--cpus", "2", "--quota", "1"); code != 0 {
		t.Errorf("resize: %d, %s%s", code, out, errs)
	}
	if got := cpuset.MustParse(cpusOf("api")); got.Len() != 2 {
		t.Errorf("api is on %s", got)
	}
	if out, _, _ := berth(t, "explain", "api", "--root", dir); !strings.Contains(out, "LSE, 2 CPU\n") || !strings.Contains(out, "quota 100ms/100ms") {
		t.Errorf("explain: %s", out)
	}
}

// TestExplained looks for the parts of an explanation; its words are the policy's.
func TestExplained(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	for _, args := range [][]string{
		{"explain", "--root", dir, "-v", "api"},
		{"run", "--root", dir, "--dry-run", "--explain", "--class", "LSE", "--cpus", "4", "--", "true"},
	} {
		out, errs, code := berth(t, args...)
		for _, part := range []string{"class         LSE, 4 CPU\n", "\nwhy\n  choose ", "chosen\n"} {
			if code != exitOK || !strings.Contains(out, part) {
				t.Errorf("%v: status %d, no %q in %s%s", args, code, part, out, errs)
			}
		}
	}
}

// TestCompletion has the names of workloads.
func TestCompletion(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	for _, verb := range []string{"explain", "release", "move", "resize"} {
		if out, _, _ := berth(t, "__complete", verb, "--root", dir, ""); !strings.HasPrefix(out, "api\nbatch\ndb\n") {
			t.Errorf("%s: %q", verb, out)
		}
	}
	if out, _, _ := berth(t, "__complete", "run", "--confine", "a", "--conf"); !strings.HasPrefix(out, "--confine\t") {
		t.Errorf("run --confine, again: %q", out)
	}
	if out, _, _ := berth(t, "__complete", "run", "--class", ""); !strings.HasPrefix(out, "LSE\nLSR\nLS\nBE\n") {
		t.Errorf("run --class: %q", out)
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]quota{
		"2": {200 * time.Millisecond, quotaPeriod}, "500m": {50 * time.Millisecond, quotaPeriod}, "2.5": {250 * time.Millisecond, quotaPeriod},
		"50%": {50 * time.Millisecond, quotaPeriod}, "12.5%": {12500 * time.Microsecond, quotaPeriod}, "400%": {400 * time.Millisecond, quotaPeriod},
		"200ms/100ms": {200 * time.Millisecond, 100 * time.Millisecond}, "5ms/10ms": {5 * time.Millisecond, 10 * time.Millisecond}, "max": {quota: cgroup.Unlimited},
	} {
		var q quota
		if err := q.UnmarshalText([]byte(text)); err != nil || q != want {
			t.Errorf("%q: %v, %v; want %v", text, q, err, want)
		}
	}
	if text := (quota{quota: 50 * time.Millisecond}).String(); text != "50ms/100ms" { // as a configuration has it
		t.Errorf("without a period: %s", text)
	}
	for _, text := range []string{"", "fast", "-1", "0", "0%", "500m%", "max%", "%", "1/2", "1ms/", "/1ms", "-1ms/1ms", "1ms/0s", "1 %"} {
		var q quota
		if err := q.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, q)
		}
	}
}

func TestMapColours(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	n, err := agent.Open(context.Background(), agent.Options{Root: openRoot(t, dir), Dir: nodeDir(dir)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	s, err := n.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plain, colour := newOwnerMap(s.Topology(), false).draw(s), newOwnerMap(s.Topology(), true).draw(s)
	if !strings.Contains(colour, "\x1b[1;31mA\x1b[0m") {
		t.Errorf("no red for LSE: %q", colour)
	}
	if stripped := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(colour, ""); stripped != plain {
		t.Errorf("in colour:\n%s\nplain:\n%s", stripped, plain)
	}
}

func openRoot(t *testing.T, dir string) *kernel.Root {
	t.Helper()
	root, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// waitingAgent is a node with an agent that has a workload without a place.
type waitingAgent struct{ node }

func (waitingAgent) About(context.Context) (api.About, error) {
	return api.About{Waiting: []api.Waiting{{
		ID: "web:\x1b[31m", Group: "web", Since: time.Now().Add(-200 * time.Second), Reason: "not enough CPUs: 1 asked, 0 available: CPU 1 is exclusive to api",
	}}}, nil
}

func (waitingAgent) List(context.Context) ([]agent.Workload, error) { return nil, nil }

func (waitingAgent) Get(_ context.Context, id string) (agent.Workload, error) {
	return agent.Workload{}, &place.NotHeldError{ID: id}
}

// namedNode is a node with workloads of these names.
type namedNode struct {
	node
	ids []string
}

func (n namedNode) List(context.Context) (all []agent.Workload, err error) {
	for _, id := range n.ids {
		all = append(all, agent.Workload{Spec: agent.Spec{Request: place.Request{ID: id}}, Grant: &place.Grant{}})
	}
	return all, nil
}

// A workload is found by its id, its entry in a configuration, or its unit without .service.
func TestWorkloadID(t *testing.T) {
	t.Parallel()
	n := namedNode{ids: []string{"nginx.service", "web:shop/web", "db", "db.service", "a.service", "a:b"}}
	for name, want := range map[string]string{"nginx": "nginx.service", "nginx.service": "nginx.service", "web": "web:shop/web", "db": "db"} {
		if id, err := workloadID(t.Context(), n, name); err != nil || id != want {
			t.Errorf("%s: %q, %v, want %q", name, id, err, want)
		}
	}
	for name, want := range map[string]string{
		"a": "a: it is the name of several workloads", "nginx.servise": "did you mean", "shop/web": "there is no such workload",
	} {
		if id, err := workloadID(t.Context(), n, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want %q", name, id, err, want)
		}
	}
}

// Who waits for a place is in ps and explain, with the reason.
func TestWaiting(t *testing.T) {
	t.Parallel()
	m, err := newMeters("/")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := listUsage(t.Context(), waitingAgent{}, m)
	if err != nil {
		t.Fatal(err)
	}
	want := `web:\u001b[31m waits for a place (3m20s): not enough CPUs: 1 asked, 0 available: CPU 1 is exclusive to api` + "\n"
	if text := psTable(rows, false, time.Now()); text != want {
		t.Errorf("%q, want %q", text, want)
	}
	w, err := getOrWaiting(t.Context(), waitingAgent{}, "web:\x1b[31m")
	if err != nil || w.State != agent.Waiting || waits(&w, time.Now())+"\n" != want {
		t.Errorf("%+v, %v", w, err)
	}
	var none *place.NotHeldError
	if _, err := getOrWaiting(t.Context(), waitingAgent{}, "other"); !errors.As(err, &none) {
		t.Errorf("another: %v", err)
	}
}

// The figures of a container are those of the group that its runtime made, not of all processes.
func TestUsageOfContainer(t *testing.T) {
	t.Parallel()
	const group = "kubepods.slice/kubepods-poda.slice/cri-containerd-1.scope"
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sys/fs/cgroup", group), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sys/fs/cgroup", group, "pids.current"), []byte("3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := &meters{root: root, host: &cgroup.Host{Hierarchies: []cgroup.Hierarchy{{Version: 2, Controllers: []string{cgroup.PIDs}, Dir: "sys/fs/cgroup"}}}}
	values, err := m.values(&agent.Workload{Backend: "nri", Group: group})
	if err != nil || values[watch.Tasks] != 3 {
		t.Errorf("it has %v tasks, want 3 (%v)", values[watch.Tasks], err)
	}
}

// What is no process of a workload is not adopted.
func TestAdoptRefuses(t *testing.T) {
	t.Parallel()
	stat := func(pid, flags int) *fstest.MapFile { // PF_KTHREAD is 0x200000
		return &fstest.MapFile{Data: fmt.Appendf(nil, "%d (a) S 1 0 0 0 0 %d%s 7\n", pid, flags, strings.Repeat(" 0", 12))}
	}
	root := fstest.MapFS{"proc/1/stat": stat(1, 0), "proc/2/stat": stat(2, 0x200000), "proc/10/stat": stat(10, 0)}
	for pid, want := range map[int]string{1: "all processes of the host are below it", 2: "a thread of the kernel", 10: ""} {
		err := adoptable(root, pid, true)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("process %d: %v, want %q", pid, err, want)
		}
	}
	if err := adoptable(root, 11, true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}
}

// A process of a service or a container is not taken out of its group.
func TestAdoptAsksForTheWhole(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("01", 32)
	for path, want := range map[string]string{
		"/":                            "",
		"/user.slice/session-3.scope":  "",
		"/system.slice/nginx.service":  "adopt that with --unit nginx.service",
		"/system.slice/a b.service":    "--unit 'a b.service'",
		"/system.slice/docker.service": "adopt that with --unit docker.service",
		"/user.slice/docker-build":     "",
		"/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope": "of the container /kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope:",
		"/docker/" + id: "--cgroup /docker/" + id,
		"/docker/" + id + "/system.slice/nginx.service":                        "--cgroup /docker/" + id,
		"/lxc.payload.web/init.scope":                                          "of the container /lxc.payload.web:",
		"/kubepods/besteffort/pod12345678-1111-2222-3333-123456789abc/sandbox": "pod12345678-1111-2222-3333-123456789abc/sandbox",
		"/system.slice/run-r8d7.scope":                                         "which ends when it leaves: adopt that with --cgroup /system.slice/run-r8d7.scope",
	} {
		root := fstest.MapFS{"proc/7/cgroup": {Data: []byte("1:name=systemd:/\n0::" + path + "\n")}}
		err := mayLeave(root, 7)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// The map has the numbers of the CPUs, their owners, and how busy they were since the last
// look, each below the other.
func TestMapIsNumbered(t *testing.T) {
	t.Parallel()
	m := fakekernel.Short(t, "1s1n2l6c2t")
	topology, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	s, err := place.New(topology, place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	drawing := newOwnerMap(topology, false)
	drawing.used = map[int]float64{0: 1, 12: 0, 1: 0.5}
	want := `
   node 0  CPU     0 12   1 13   2 14   3 15   4 16   5 17  |  6 18   7 19   8 20   9 21  10 22  11 23
           owner   :  .   .  .   .  .   .  .   .  .   .  .  |  .  .   .  .   .  .   .  .   .  .   .  .
           used    █  ▁   ▅                                 |
    used: from ▁ (idle) to █ (all of the time)
`
	got := regexp.MustCompile(`(?m) +$`).ReplaceAllString(drawing.draw(s), "")
	if !strings.Contains(got, want) {
		t.Errorf("map:\n%s\nwant in it:\n%s", got, want)
	}
}

func TestCPUUse(t *testing.T) {
	t.Parallel()
	dir := plant(t, map[string]string{"proc/stat": "cpu  0 0 0 0\ncpu0 100 0 100 800 0 0 0 0\ncpu1 10 0 0 90 0 0 0 0\n"})
	old, err := proc.ReadStat(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	use := cpuUse{last: old}
	if err := os.WriteFile(filepath.Join(dir, "proc/stat"), []byte("cpu  0 0 0 0\ncpu0 175 0 100 825 0 0 0 0\ncpu1 10 0 0 90 0 0 0 0\ncpu2 5 0 0 5 0 0 0 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if used := use.look(t.Context(), os.DirFS(dir)); len(used) != 1 || used[0] != 0.75 {
		t.Errorf("used %v, want CPU 0 at 0.75 only: CPU 1 has no new times, CPU 2 is new", used)
	}
	if used := (&cpuUse{}).look(t.Context(), os.DirFS(t.TempDir())); used != nil {
		t.Errorf("without proc/stat: %v", used)
	}
}

// All values of flags that are wrong are told at once, and a workload's entry names it.
func TestAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, errs, code := berth(t, "run", "--class", "lsee", "--weight", "0", "--quota", "x", "--io-weight", "10001", "--name", "", "--", "true")
	if code != exitNotRun {
		t.Errorf("status %d", code)
	}
	for _, want := range []string{`did you mean "LSE"?`, `--weight: "0" is not a share`, "--quota: ", `--io-weight: "10001"`, "--name: it is empty", "(see 'berth run --help')"} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q in %s", want, errs)
		}
	}
	_, errs, code = berth(t, "run", "--root", placedHost(t), "--dry-run", "--class", "LSE", "--memory", "0", "--quota", "99", "--cpuset", "77", "--", "true")
	for _, want := range []string{"--memory 0: not a limit", "--quota: it is the time of 99 CPUs", "--cpuset 77: not there"} {
		if code != exitNotRun || !strings.Contains(errs, want) {
			t.Errorf("status %d, no %q in %s", code, want, errs)
		}
	}
	for _, verb := range [][]string{{"explain"}, {"release"}, {"resize", "--cpus", "1"}, {"move", "--cpuset", "1"}} {
		_, errs, code = berth(t, append([]string{verb[0], "--root", placedHost(t), "apj"}, verb[1:]...)...)
		if code != exitError || !strings.Contains(errs, `apj: there is no such workload; did you mean "api"?`) {
			t.Errorf("%s: status %d: %s", verb[0], code, errs)
		}
	}
}

// What a command is to be near decides where berth run has it, and the kernel is told.
func TestRunNearDevicesAndHugePages(t *testing.T) {
	t.Parallel()
	dir, k, m := emptyHost(t)
	for node, pages := range []string{"16", "128"} {
		if err := k.Put(fmt.Sprintf("sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", node), pages); err != nil {
			t.Fatal(err)
		}
	}
	n, err := agent.Open(t.Context(), agent.Options{
		Root: kernel.NewRoot(dir, k), Dir: nodeDir(dir), Machine: m,
		Settings: agent.Settings{Config: place.Config{Devices: []place.Device{{Name: "nic0", Kind: "nic", Nodes: cpuset.MustOf(1)}}}},
	})
	if err == nil {
		err = k.Start("100")
	}
	if err == nil { // so that its settings are kept
		_, err = n.Place(t.Context(), agent.Spec{Request: place.Request{ID: "db", Class: place.LS}, PID: 100})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	far, near := cpuset.MustParse("0-3,8-11"), cpuset.MustParse("4-7,12-15")
	for _, tt := range []struct {
		args []string
		in   cpuset.Set
		err  string
	}{
		{nil, far, ""},
		{[]string{"--device", "nic0"}, near, ""},
		{[]string{"--device", "nic=1"}, near, ""},
		{[]string{"--hugepages", "2Mi=64Mi"}, near, ""},
		{[]string{"--hugepages", "2Mi=16Mi"}, far, ""},
		{[]string{"--device", "nic=2"}, cpuset.Set{}, `device "nic": 2 asked, the host has 1`},
		{[]string{"--device", "nic1"}, cpuset.Set{}, `device "nic1"`},
		{[]string{"--hugepages", "2Mi=1Gi"}, cpuset.Set{}, "not enough hugepages-2Mi: 1Gi asked"},
	} {
		args := append([]string{"run", "--root", dir, "--dry-run", "-o", "json", "--class", "LSR", "--cpus", "1"}, tt.args...)
		out, errs, code := berth(t, append(args, "--", "true")...)
		if tt.err != "" {
			if code == exitOK || !strings.Contains(errs, tt.err) {
				t.Errorf("%v: status %d: %q, want %q", tt.args, code, errs, tt.err)
			}
			continue
		}
		var draft struct {
			Workload agent.Workload `json:"workload"`
			Plan     kernel.Plan    `json:"plan"`
		}
		if err := json.Unmarshal([]byte(out), &draft); err != nil {
			t.Fatalf("%v: %v: %s%s", tt.args, err, out, errs)
		}
		if got := draft.Workload.CPUs; got.Len() != 1 || !tt.in.Contains(got) {
			t.Errorf("%v: CPUs %s, want one of %s", tt.args, got, tt.in)
		}
		told := slices.ContainsFunc(draft.Plan, func(s kernel.Step) bool {
			return strings.HasSuffix(s.Path, "/cpuset.cpus") && s.Value == draft.Workload.CPUs.String()
		})
		if !told {
			t.Errorf("%v: the kernel is not told: %v", tt.args, draft.Plan)
		}
	}
}
