package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/watch"
)

// hogRecording is a recording of a minute in which batch/hog makes svc/web wait from
// the 20th second on, as the run-queue probe tells.
func hogRecording(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	began := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	h := observe.Header{Began: began, Groups: []observe.Group{{Path: "batch/hog"}, {Path: "svc/web", Name: "shop"}}}
	if err := observe.WriteHeader(&b, h); err != nil {
		t.Fatal(err)
	}
	var web, hog, waited float64
	for s := range 60 {
		web += 0.5
		if s >= 20 {
			hog, waited = hog+1.5, waited+0.6
		}
		at := watch.Time(s) * watch.Second
		var tick []watch.Sample
		add := func(group string, q watch.Quantity, v float64, by string) {
			subject := watch.Subject{}
			if group != "" {
				subject = watch.Subject{Scope: watch.Group, Name: group}
			}
			tick = append(tick, watch.Sample{Time: at, Subject: subject, Quantity: q, Value: v, By: by})
		}
		add("", watch.CPUTime, web+hog, "")
		add("", watch.Steal, 0, "")
		for group, used := range map[string]float64{"svc/web": web, "batch/hog": hog} {
			add(group, watch.CPUTime, used, "")
			add(group, watch.CPUThrottled, 0, "")
		}
		add("svc/web", watch.CPUWait, waited, "")
		add("svc/web", watch.Queued, waited, "")
		add("svc/web", watch.QueuedBy, waited, "batch/hog")
		if err := watch.Write(&b, tick); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(t.TempDir(), "hog.jsonl")
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestGuardReplay(t *testing.T) {
	t.Parallel()
	recording := hogRecording(t)
	args := []string{"guard", "--replay", recording, "--mode", "preview", "--sensitive", "shop"}
	out, code := runBerth(t, append(args, "--best-effort", "batch")...)
	if code != exitOK {
		t.Fatalf("status %d: %s", code, out)
	}
	var lines []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "12:00:") {
			lines = append(lines, line)
		}
	}
	if len(lines) < 2 || !strings.HasPrefix(lines[0], "12:00:2") || !strings.Contains(lines[0], "shop waits for CPUs that others use, because of batch/hog") {
		t.Fatalf("%s", out)
	}
	if !strings.Contains(lines[1], "would apply") || !strings.HasSuffix(lines[1], "  batch runs only when nobody else wants to, for shop\n") {
		t.Errorf("%s", lines[1])
	}
	if len(lines[0]) > 120 || strings.Contains(lines[0], "cpu_wait") {
		t.Errorf("without -v: %s", lines[0])
	}
	if out, _ := runBerth(t, append(args, "--best-effort", "batch", "-v")...); !strings.Contains(out, "weight batch: idle for shop (cpu) against batch/hog") || !strings.Contains(out, "% sure); ") {
		t.Errorf("with -v: %s", out)
	}
	// Nobody said that it may be squeezed.
	if out, code = runBerth(t, args...); code != exitOK || strings.Contains(out, "would apply") || !strings.Contains(out, "refused") {
		t.Errorf("without --best-effort: status %d: %s", code, out)
	}
	out, code = runBerth(t, append(args, "--best-effort", "batch/*", "-o", "json")...)
	if code != exitOK {
		t.Fatalf("status %d: %s", code, out)
	}
	var events []control.Event
	for line := range strings.Lines(out) {
		var o struct {
			Time    time.Time
			Finding json.RawMessage
			Event   *control.Event
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if o.Event != nil {
			events = append(events, *o.Event)
		}
	}
	if len(events) == 0 || events[0].Outcome != control.WouldApply || events[0].Victim != "shop" || events[0].Action.Group != "batch" {
		t.Errorf("events %v", events)
	}
}

// leftPipe is a pipe whose reader has left after some lines.
type leftPipe struct{ lines int }

func (p *leftPipe) Write(text []byte) (int, error) {
	if p.lines--; p.lines < 0 {
		return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
	}
	return len(text), nil
}

// A guard whose reader has left ends in order, and says why.
func TestGuardUnread(t *testing.T) {
	t.Parallel()
	for _, output := range []string{"text", "json"} {
		var errs bytes.Buffer
		args := []string{"guard", "--replay", hogRecording(t), "--mode", "preview", "--sensitive", "shop", "--best-effort", "batch", "-o", output}
		code := run(t.Context(), strings.NewReader(""), &leftPipe{lines: 1}, &errs, args)
		if code != exitError || !strings.Contains(errs.String(), "no reader") {
			t.Errorf("%s: status %d: %s", output, code, errs.String())
		}
	}
}

// runBerth runs berth in this process.
func runBerth(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	var b bytes.Buffer
	code = run(t.Context(), strings.NewReader(""), &b, &b, args)
	return b.String(), code
}

func TestGuardUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--mode", "kill"}, {"--outsiders", "kill"}, {"--outsiders", "idle", "--replay", "x"}, {"--probe", "perhaps"}, {"--window", "1ms"}, {"--for", "-1s"}, {"--sensitive", "["}, {"-o", "xml"},
		{"--replay", "x", "--mode", "enforce"}, {"surplus"},
	} {
		if out, code := runBerth(t, append([]string{"guard"}, args...)...); code != exitUsage {
			t.Errorf("%v: status %d: %s", args, code, out)
		}
	}
	if out, code := runBerth(t, "guard", "--replay", "/nowhere"); code != exitError {
		t.Errorf("no recording: status %d: %s", code, out)
	}
}

// playedGroups is a simulated tree of groups with a process each.
func playedGroups(t *testing.T, groups ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	k, err := fakekernel.New(dir, fakekernel.V2())
	if err != nil {
		t.Fatal(err)
	}
	for i, group := range groups {
		pid := strconv.Itoa(100 + i)
		if err := errors.Join(k.Mkdir("sys/fs/cgroup/"+group), k.Start(pid), k.WriteFile("sys/fs/cgroup/"+group+"/cgroup.procs", pid)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "proc/stat"), []byte("cpu 1 2 3 4\ncpu0 1 2 3 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestGuardTellsUnmatchedGlobs says which globs name nothing.
func TestGuardTellsUnmatchedGlobs(t *testing.T) {
	t.Parallel()
	dir := playedGroups(t, "web", "batch")
	out, _ := runBerth(t, "guard", "--root", dir, "--for", "1ms", "--sensitive", "web", "--best-effort", "bat?h", "--protect", "backup", "--protect", "web")
	if !strings.Contains(out, "--protect backup: names no control group with processes so far") || strings.Count(out, "so far") != 1 {
		t.Errorf("it says:\n%s", out)
	}
}

// TestGuardLeft restores what a guard left in a tree that a test simulates.
func TestGuardLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := fakekernel.New(dir, fakekernel.V2()); err != nil {
		t.Fatal(err)
	}
	for verb, want := range map[string]string{"off": "nothing to restore", "status": "no remedy is active"} {
		if out, code := runBerth(t, "guard", verb, "--root", dir); code != exitOK || !strings.Contains(out, want) {
			t.Errorf("%s: status %d: %s", verb, code, out)
		}
	}
}

// guardHost is groups of this host's v1 controllers with somebody who wants a little
// CPU time, and somebody who wants all of it.
type guardHost struct {
	top   string
	state string
	tool  string // a group for berth itself
}

var guardTrees = []string{"cpu", "cpuacct", "cpuset"}

func newGuardHost(t *testing.T, more ...string) *guardHost {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to make groups in the host's v1 hierarchies")
	}
	for _, tree := range guardTrees {
		if _, err := os.Stat("/sys/fs/cgroup/" + tree + "/cgroup.procs"); err != nil {
			t.Skipf("needs the v1 controller %s at /sys/fs/cgroup/%s", tree, tree)
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/cpu/cpu.idle"); err != nil {
		t.Skip("needs cpu.idle (Linux 5.15)")
	}
	fakekernel.LockHost(t, fakekernel.Alone)
	g := &guardHost{top: fmt.Sprintf("berth-guard-test-%d", os.Getpid()), state: filepath.Join(t.TempDir(), "node")}
	g.tool = g.top + "/tool"
	groups := []string{g.top, g.tool, g.top + "/web", g.top + "/batch", g.top + "/batch/hog"}
	for _, group := range more {
		groups = append(groups, g.top+"/"+group)
	}
	for _, group := range groups {
		for _, tree := range guardTrees {
			dir := filepath.Join("/sys/fs/cgroup", tree, group)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				waitFor(t, "group "+group+" is removed", func() bool { return os.Remove(dir) == nil })
			})
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile("/sys/fs/cgroup/cpuset/" + file)
			if err != nil {
				t.Fatal(err)
			}
			g.write(t, "cpuset/"+group+"/"+file, strings.TrimSpace(string(text)))
		}
	}
	// What else runs on the host must not be the neighbour, nor keep the guard waiting.
	g.write(t, "cpu/"+g.top+"/cpu.shares", "30000")
	g.write(t, "cpu/"+g.tool+"/cpu.shares", "10240")
	g.write(t, "cpu/"+g.top+"/batch/cpu.shares", "2000")
	// Nor may it keep the test from seeing what the guard does for a second.
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); slices.Contains(strings.Split(fields[1], ","), "cpu") {
			t.Cleanup(func() { g.write(t, "cpu"+fields[2]+"/cgroup.procs", fmt.Sprint(os.Getpid())) })
			g.write(t, "cpu/"+g.tool+"/cgroup.procs", fmt.Sprint(os.Getpid()))
		}
	}
	return g
}

func (g *guardHost) write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile("/sys/fs/cgroup/"+file, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

func (g *guardHost) read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("/sys/fs/cgroup/cpu/" + g.top + "/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// start runs a command in a group until the test ends.
func (g *guardHost) start(t *testing.T, group string, cmd *exec.Cmd) {
	t.Helper()
	// The shell joins the group before it becomes the command.
	script := ""
	for _, tree := range guardTrees {
		script += "echo $$ > /sys/fs/cgroup/" + tree + "/" + group + "/cgroup.procs && "
	}
	program := cmd.Path
	if self, err := os.Executable(); err == nil && program == "/proc/self/exe" {
		program = self
	}
	cmd.Args = append([]string{"sh", "-c", script + `exec "$@"`, "sh", program}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	if err := fork.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

const (
	modest = `while :; do i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; sleep 0.01; done`
	greedy = `while :; do :; done`
)

// TestGuardOnThisHost guards a group of this host against a neighbour that spins: the
// neighbour's side yields, and has what it had when the guard ends, and when it was
// killed and somebody else restores.
func TestGuardOnThisHost(t *testing.T) {
	g := newGuardHost(t)
	for range 2 {
		g.start(t, g.top+"/web", exec.Command("sh", "-c", modest))
	}
	for range 3 {
		g.start(t, g.top+"/batch/hog", exec.Command("sh", "-c", greedy))
	}
	args := []string{"guard", "--state", g.state, "--mode", "enforce", "--sensitive", g.top + "/web", "--best-effort", g.top + "/batch"}
	for _, c := range []struct {
		name string
		end  syscall.Signal
		back []string
	}{
		{"interrupted", syscall.SIGINT, nil},
		{"without a terminal", syscall.SIGHUP, nil},
		{"killed", syscall.SIGKILL, []string{"guard", "off"}},
		{"killed again", syscall.SIGKILL, []string{"restore"}},
	} {
		if c.end == syscall.SIGHUP && signal.Ignored(syscall.SIGHUP) {
			t.Logf("%s: left out: SIGHUP is ignored here, as below nohup(1)", c.name)
			continue
		}
		var out bytes.Buffer
		cmd := berthProcess(t, args...)
		cmd.Stdout, cmd.Stderr = &out, &out
		g.start(t, g.tool, cmd)
		yields := func() bool { return g.read(t, "batch/cpu.idle") == "1" }
		for until := time.Now().Add(2 * time.Minute); !yields() && time.Now().Before(until); {
			time.Sleep(50 * time.Millisecond)
		}
		if !yields() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // from now on out is whole
			if strings.Contains(out.String(), "another guard that may act is running") {
				t.Skipf("%s: needs the host's control groups to itself: %s", c.name, out.String())
			}
			t.Fatalf("%s: the neighbour does not yield: %s", c.name, out.String())
		}
		if status, err := berthProcess(t, "guard", "status", "--state", g.state).CombinedOutput(); err != nil || !strings.Contains(string(status), "a guard runs") {
			t.Errorf("%s: status: %v: %s", c.name, err, status)
		}
		if text, err := berthProcess(t, "guard", "off", "--state", g.state).CombinedOutput(); status(err) != exitError {
			t.Errorf("%s: off while it runs: %v: %s", c.name, err, text)
		}
		if err := cmd.Process.Signal(c.end); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		if c.back == nil && err != nil {
			t.Errorf("%s: %v: %s", c.name, err, out.String())
		}
		if c.back != nil {
			if idle := g.read(t, "batch/cpu.idle"); idle != "1" {
				t.Errorf("%s: cpu.idle is %s before anybody gives it back", c.name, idle)
			}
			if text, err := berthProcess(t, append(c.back, "--state", g.state)...).CombinedOutput(); err != nil || !strings.Contains(string(text), "cpu.idle") {
				t.Errorf("%s: %v: %v: %s", c.name, c.back, err, text)
			}
		}
		idle, shares, inner := g.read(t, "batch/cpu.idle"), g.read(t, "batch/cpu.shares"), g.read(t, "batch/hog/cpu.idle")
		if idle != "0" || shares != "2000" || inner != "0" {
			t.Errorf("%s: afterwards cpu.idle is %s, cpu.shares %s, and %s inside: %s", c.name, idle, shares, inner, out.String())
		}
		left, _ := filepath.Glob(filepath.Join(filepath.Dir(g.state), "guard", "*"))
		if len(left) > 0 {
			t.Errorf("%s: left behind: %v", c.name, left)
		}
	}
}
