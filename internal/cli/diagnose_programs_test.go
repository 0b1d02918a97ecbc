package cli

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/watch"
)

// fakeProgram is a program of a recording that a test makes up: CPU time used and waited for
// per second. Throttled is the part of the periods in which the container's quota ran out.
type fakeProgram struct {
	name             string
	use, wait        float64
	throttled        float64
	from             int // the second in which it is told first
	group            bool
	called           string // the group's workload
	cpus             cpuset.Set
	stall, queue     float64
	queuedBy         string
	behind           []behindRow // more that had the CPU while it waited, by their part of the wait
	withoutSchedstat bool
}

// record writes a recording of a host with two CPUs of so many seconds.
func record(t *testing.T, seconds int, stall float64, of ...fakeProgram) string {
	t.Helper()
	file, err := os.Open(recording("hog"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	header, _, err := observe.ReadRecording(file)
	if err != nil {
		t.Fatal(err)
	}
	header.Groups, header.Signals = nil, []observe.Signal{
		{Name: observe.RunQueue, Of: "group in focus", Reason: "not run as root"}, {Name: "io", Of: "group", Reason: "no \x1b[2J groups"},
	}
	for _, p := range of {
		if p.group {
			header.Groups = append(header.Groups, observe.Group{Path: p.name, Name: p.called, CPUs: p.cpus})
		}
	}
	name := filepath.Join(t.TempDir(), "recording")
	to, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if err := observe.WriteHeader(to, header); err != nil {
		t.Fatal(err)
	}
	for i := range seconds + 1 {
		if err := watch.Write(to, recordSecond(i, stall, of)); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

func recordSecond(i int, stall float64, of []fakeProgram) (tick []watch.Sample) {
	now, s := watch.Time(i)*watch.Second, float64(i)
	add := func(subject watch.Subject, q watch.Quantity, v float64, by string) {
		tick = append(tick, watch.Sample{Time: now, Subject: subject, Quantity: q, Value: v, By: by})
	}
	host, all := 0.0, 0.0
	for _, p := range of {
		host += p.use
		if !p.group {
			all += p.use
		}
	}
	add(watch.Subject{}, watch.CPUTime, host*s, "")
	add(watch.Subject{}, watch.Steal, 0, "")
	for cpu := range 2 {
		add(watch.Subject{Part: watch.Part{Kind: watch.CPU, ID: cpu}}, watch.CPUTime, host/2*s, "")
	}
	add(watch.Subject{}, watch.CPUSome, stall*s, "")
	add(watch.Subject{Scope: watch.Process}, watch.CPUTime, all*s, "")
	for _, p := range of {
		if i < p.from {
			continue
		}
		subject := watch.Subject{Scope: watch.Process, Name: p.name}
		if p.group {
			subject.Scope = watch.Group
			add(subject, watch.CPUSome, p.stall*s, "")
		}
		if p.queue > 0 {
			add(subject, watch.QueueP99, p.queue, "")
			add(subject, watch.Queued, p.wait*s, "")
			if p.queuedBy != "" {
				add(subject, watch.QueuedBy, p.wait*s, p.queuedBy)
			}
			for _, b := range p.behind {
				add(subject, watch.QueuedBy, b.Share*p.wait*s, b.Name)
			}
		}
		add(subject, watch.CPUTime, p.use*s, "")
		if !p.withoutSchedstat {
			add(subject, watch.CPUWait, p.wait*s, "")
		}
		add(subject, watch.CPUPeriods, 10*s, "")
		add(subject, watch.CPUThrottledPeriods, 10*p.throttled*s, "")
	}
	return tick
}

const evilName = "\x1b[2J\u202ex\ny"

func TestDiagnosePrograms(t *testing.T) {
	t.Parallel()
	hog, web, evil := fakeProgram{name: "stress-ng-cpu", use: 1.4, wait: 0.6}, fakeProgram{name: "nginx", use: 0.35, wait: 0.9}, fakeProgram{name: evilName, use: 0.2, wait: 0.1}
	kernel := fakeProgram{name: "(kernel threads)", use: 0.04}
	idle := fakeProgram{name: "sshd", use: 0.001}
	batch, api := fakeProgram{name: "demo/batch", group: true, use: 1.3, wait: 2.7, stall: 1, queue: 0.012, queuedBy: "demo/api"},
		fakeProgram{name: "demo/api", group: true, use: 0.5, wait: 0.5, stall: 0.3, queue: 0.004, queuedBy: "demo/batch"}
	placed := fakeProgram{name: "berth/web", called: "shop/web", group: true, use: 0.001}
	starved, unknown := placed, placed
	starved.wait, starved.stall = 1, 0.99
	unknown.withoutSchedstat = true
	unit := fakeProgram{name: "system.slice/batch.service", group: true, use: 1.4, wait: 2, stall: 1}
	late := hog
	late.from = 9
	probed := web
	probed.queue, probed.queuedBy = 0.031, "process stress-ng-cpu"
	api.cpus = cpuset.MustOf(0)
	pinned, apart, beside := api, fakeProgram{name: "demo/apart", group: true, use: 0.8, wait: 0.05, cpus: cpuset.MustOf(1)}, fakeProgram{name: "demo/beside", group: true, use: 0.2, wait: 0.1, cpus: cpuset.MustOf(0)}
	pinned.use, pinned.wait, pinned.queue, pinned.stall = 0.1, 0.3, 0, 0.1
	outside := pinned
	outside.wait, outside.queue, outside.queuedBy, outside.stall = 0.4, 0.02, detect.Outside, 0.4
	// No part of its wait is an antagonist's; processes in no group have 54 % of it together, or 36 %.
	many := outside
	many.cpus, many.queuedBy = cpuset.Set{}, ""
	many.behind = []behindRow{{"demo/tenant", 0.37}, {"process go", 0.34}, {"process make", 0.15}, {detect.Outside, 0.05}, {"demo/beside", 0.09}}
	fewer := many
	fewer.behind = []behindRow{{"demo/tenant", 0.39}, {"process go", 0.22}, {"process make", 0.14}, {"demo/beside", 0.25}}
	beyond := many
	beyond.behind = []behindRow{{"demo/tenant", 0.37}, {detect.Outside, 0.38}, {"demo/beside", 0.25}}
	tenant, compiler, maker := fakeProgram{name: "demo/tenant", group: true, use: 0.55, wait: 0.5}, fakeProgram{name: "go", use: 0.86, wait: 0.4}, fakeProgram{name: "make", use: 0.1, wait: 0.1}
	low, small := beside, pinned
	low.use, small.use = 0.05, 0.04
	throttled := web
	throttled.throttled = 0.7
	for _, c := range []struct {
		golden  string
		seconds int
		stall   float64
		code    int
		args    []string
		of      []fakeProgram
	}{
		{"programs.txt", 20, 0.78, exitFindings, nil, []fakeProgram{kernel, hog, web, evil, idle}},
		{"programs.json", 20, 0.78, exitFindings, []string{"-o", "json"}, []fakeProgram{kernel, hog, web, idle}},
		{"probed.txt", 6, 0.78, exitFindings, nil, []fakeProgram{hog, probed}},
		{"programs-verbose.txt", 20, 0.78, exitFindings, []string{"-v"}, []fakeProgram{kernel, hog, web, evil, idle}},
		// The hog is not said to suffer because of whom it hurts, however the names sort.
		{"both.txt", 20, 0.9, exitFindings, nil, []fakeProgram{batch, api}},
		{"both-batch.txt", 20, 0.9, exitFindings, []string{"--sensitive", "/demo/batch"}, []fakeProgram{batch, api}},
		{"sensitive.txt", 20, 0.78, exitFindings, []string{"--sensitive", "process nginx"}, []fakeProgram{hog, web, evil}},
		{"sensitive-quiet.txt", 20, 0.78, exitFindings, []string{"--sensitive", "process sshd"}, []fakeProgram{hog, web, evil, idle}},
		// A process that waits is not idle; nor is one of which no wait is known.
		{"placed-quiet.txt", 6, 0.1, exitOK, []string{"shop/web"}, []fakeProgram{hog, placed}},
		{"placed-starved.txt", 6, 0.99, exitFindings, []string{"--sensitive", "shop/web"}, []fakeProgram{hog, starved}},
		{"placed-unknown.txt", 6, 0.1, exitOK, []string{"shop/web"}, []fakeProgram{hog, unknown}},
		{"one.txt", 20, 0.78, exitFindings, []string{"process nginx"}, []fakeProgram{hog, web, evil}},
		// Too short for a rule, but nobody is told that nothing is the matter.
		{"short.txt", 6, 0.78, exitFindings, nil, []fakeProgram{kernel, hog, web, idle}},
		{"short-quiet.txt", 6, 0.01, exitOK, nil, []fakeProgram{kernel, idle, {name: "nginx", use: 0.3, wait: 0.001}}},
		// A unit that takes the CPUs of a program is one to adopt, whether or not a rule is sure.
		{"unit.txt", 6, 0.78, exitFindings, []string{"--sensitive", "process nginx"}, []fakeProgram{unit, web}},
		{"unit-unasked.txt", 6, 0.78, exitFindings, nil, []fakeProgram{unit, web}},
		// Whoever matters is not the one to slow down, however much it uses.
		{"sensitive-busiest.txt", 6, 0.78, exitFindings, []string{"--sensitive", "process stress-ng-cpu"}, []fakeProgram{hog, web}},
		// The first line names nobody who takes little, or whose CPUs are others; nor is that one to wait.
		{"pinned.txt", 6, 0.9, exitFindings, []string{"--sensitive", "demo/api"}, []fakeProgram{pinned, apart, beside}},
		{"pinned-alone.txt", 6, 0.9, exitFindings, []string{"--sensitive", "demo/api"}, []fakeProgram{pinned, apart}},
		{"pinned-low.txt", 6, 0.9, exitFindings, []string{"--sensitive", "demo/api"}, []fakeProgram{small, apart, low}},
		// Nor one that is not said to be the reason.
		{"outside.txt", 20, 0.9, exitFindings, []string{"--sensitive", "demo/api"}, []fakeProgram{outside, beside}},
		// A group that had the CPU for less of the wait than programs in no group together is not the reason.
		{"many-programs.txt", 20, 0.9, exitFindings, []string{"--sensitive", "demo/api"}, []fakeProgram{many, tenant, compiler, maker, beside}},
		{"many-groups.txt", 20, 0.9, exitFindings, []string{"--sensitive", "demo/api"}, []fakeProgram{fewer, tenant, compiler, maker, beside}},
		{"many-outside.txt", 20, 0.9, exitFindings, []string{"--sensitive", "demo/api"}, []fakeProgram{beyond, tenant, compiler, maker, beside}},
		// A daemon that hardly runs is not the worst off.
		{"daemon.txt", 6, 0.78, exitFindings, nil, []fakeProgram{unit, {name: "nginx", use: 0.35, wait: 0.3}, {name: "crond", use: 0.001, wait: 0.02}}},
		{"nobody.txt", 6, 0.9, exitFindings, nil, nil},
		{"late.txt", 30, 0.78, exitFindings, nil, []fakeProgram{late, web}},
		{"container.txt", 20, 0.1, exitFindings, nil, []fakeProgram{throttled}},
		{"schedstat.txt", 20, 0.78, exitFindings, nil, []fakeProgram{{name: "a", use: 1.9, withoutSchedstat: true}, {name: "b", use: 0.1, withoutSchedstat: true}}},
	} {
		out, errs, code := berth(t, append([]string{"diagnose", "--replay", record(t, c.seconds, c.stall, c.of...)}, c.args...)...)
		if code != c.code || errs != "" {
			t.Errorf("%s: status %d, want %d: %s", c.golden, code, c.code, errs)
		}
		if strings.ContainsAny(out, "\x1b\u202e") {
			t.Errorf("%s: escape sequences of others:\n%q", c.golden, out)
		}
		golden.Check(t, "testdata/diagnose/"+c.golden, out)
	}
}

func TestWatchPrograms(t *testing.T) {
	t.Parallel()
	name := record(t, 3, 0.5, fakeProgram{name: "nginx", use: 0.3, wait: 0.2}, fakeProgram{name: evilName, use: 0.1}, fakeProgram{name: "demo/api", group: true, use: 0.2})
	out, errs, code := berth(t, "watch", "--replay", name, "--once")
	if code != exitOK || errs != "" {
		t.Fatalf("status %d: %s", code, errs)
	}
	golden.Check(t, "testdata/watch/programs.txt", out)
	if out, _, _ = berth(t, "watch", "--replay", name, "--once", "process nginx"); !strings.Contains(out, "process nginx     0.30") || strings.Contains(out, "api") {
		t.Errorf("of nginx alone:\n%s", out)
	}
}

func TestDiagnoseProgramsRefuses(t *testing.T) {
	t.Parallel()
	name := record(t, 6, 0.1, fakeProgram{name: "nginx", use: 0.3})
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"process apache"}, exitError, "the recording has no process of that name"},
		{[]string{"--sensitive", "apache"}, exitError, "no such control group, unit, workload or pod, and no process has that name"},
		{[]string{"--sensitive", "process apache"}, exitError, "the recording has no process of that name"},
		{[]string{"--sensitive", "a", "b"}, exitUsage, "--sensitive: it says which of all groups matter"},
		{[]string{"4194305"}, exitError, "no such control group"},
	} {
		out, errs, code := berth(t, append([]string{"diagnose", "--replay", name}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.says) || out != "" {
			t.Errorf("%v: status %d, %q, %q; want %d and %q", c.args, code, errs, out, c.code, c.says)
		}
	}
}

// A program that is told for the first time has a level by what it had used before.
func TestWatchNewProgram(t *testing.T) {
	t.Parallel()
	table := newWatchTable(&observe.Header{}, nil)
	web := watch.Sample{Subject: watch.Subject{Scope: watch.Process, Name: "web"}, Quantity: watch.CPUTime}
	before, now := web, web
	before.Time, now.Time, now.Value = watch.Second, 2*watch.Second, 0.5
	table.add([]watch.Sample{{Time: watch.Second}})
	table.add([]watch.Sample{{Time: 2 * watch.Second}, before, now})
	if got := table.groups["process web"].level(watch.CPUTime); got != 0.5 {
		t.Errorf("%v CPUs, want 0.5", got)
	}
}

// TestFind finds workloads by all names that users have for them.
func TestFind(t *testing.T) {
	t.Parallel()
	o := &observation{header: observe.Header{Groups: []observe.Group{
		{Path: "system.slice/nginx.service"}, {Path: "system.slice/docker-1.scope"}, {Path: "berth/api", Name: "api:v1"},
		{Path: "user.slice/app"}, {Path: "other.slice/app"}, {Path: "postgres.slice/a/b"},
	}}}
	for name, want := range map[string]string{
		"nginx": "system.slice/nginx.service", "nginx.service": "system.slice/nginx.service", "/system.slice/nginx.service": "system.slice/nginx.service",
		"api:v1": "berth/api", "docker-1": "system.slice/docker-1.scope", "postgres": "postgres.slice", "postgres.slice/a": "postgres.slice/a",
		"process nginx": "process nginx", "app": "", "ngin": "", "1": "", "service": "",
	} {
		got, err := o.find(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
}

// A name of a group that another user has chosen has no sequence of a terminal in an error.
func TestFindSaysNamesOfOthers(t *testing.T) {
	t.Parallel()
	dir := playedGroups(t, "a\x1b[2J", "b")
	for _, pid := range []string{"100", "101"} {
		fakekernel.Plant(t, filepath.Join(dir, "proc", pid, "comm"), "web\n")
	}
	host, err := observe.Open(observe.Config{Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	const want = `web: processes of that name are in 2 groups: a\u001b[2J, b; name one of them`
	if _, err := (&observation{host: host}).find("web"); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// spinner is a program of its own name that keeps a CPU busy until the test ends.
func spinner(t *testing.T, name string) {
	t.Helper()
	cmd := exec.Command(fakekernel.Shell(t, name), "-c", spinning)
	if err := fork.Start(cmd); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// Two busy processes in the test's own group are named, with what they use.
func TestDiagnoseProgramsLive(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("looks for seconds")
	}
	host, err := observe.Open(observe.Config{})
	if err != nil {
		t.Skip(err)
	}
	group, err := host.GroupOf(os.Getpid())
	if err := errors.Join(err, host.Close()); err != nil || group != "" {
		t.Skipf("this process is in a group of its own, %q: %v", group, err)
	}
	fakekernel.LockHost(t, fakekernel.Shared)
	names := []string{"berth-spin-one", "berth-spin-two"}
	for _, name := range names {
		spinner(t, name)
	}
	out, errs, _ := berth(t, "diagnose", "--for", "5s", "--probe=false", "--sensitive", names[0], "-o", "json")
	var d diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatal(errors.Join(err, errors.New(errs)))
	}
	if d.Sensitive != "process "+names[0] {
		t.Errorf("sensitive is %q", d.Sensitive)
	}
	for _, name := range names {
		i := slices.IndexFunc(d.Programs, func(p programRow) bool { return p.Name == name })
		if i < 0 || !(d.Programs[i].Used > 0.02) || !slices.Contains(d.Looked, "process "+name) {
			t.Errorf("%s is not told: %+v, looked at %q", name, d.Programs, d.Looked)
		}
	}
}
