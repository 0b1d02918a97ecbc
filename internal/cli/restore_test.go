package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/agent"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// deadRun returns a tree whose cpu.weight a run has set from 100 to 10 before
// it died, and the file of its undo log.
func deadRun(t *testing.T, boot string) (dir, undoLog string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"proc/sys/kernel/random/boot_id": boot, "sys/cpu.weight": "100", "sys/cpu.max": "max 100000",
		"proc/self/mountinfo": "30 1 0:26 / /sys rw - cgroup2 cgroup2 rw",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	j, err := kernel.CreateUndoLog(root, filepath.Join(dir, "run/berth"), "berth lab")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Apply(root, kernel.Plan{{Path: "sys/cpu.weight", Value: "10"}, {Op: kernel.Mkdir, Path: "sys/lab"}}, j); err != nil {
		t.Fatal(err)
	}
	// A copy is not locked: the owner of the original lives.
	text, err := os.ReadFile(j.Path())
	if err != nil {
		t.Fatal(err)
	}
	undoLog = filepath.Join(dir, "run/berth/1-1.journal")
	if err := os.WriteFile(undoLog, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(j.Path()); err != nil {
		t.Fatal(err)
	}
	return dir, undoLog
}

func runRestore(args ...string) (code int, stdout, stderr string) {
	var out, errOut bytes.Buffer
	code = run(context.Background(), strings.NewReader(""), &out, &errOut, append([]string{"restore"}, args...))
	return code, out.String(), errOut.String()
}

func weightIn(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "sys/cpu.weight"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestRestore(t *testing.T) {
	t.Parallel()
	dir, undoLog := deadRun(t, "b1")

	code, out, _ := runRestore("--root", dir, "--dry-run")
	if want := "pending    rmdir /sys/lab\npending    echo 100 > /sys/cpu.weight\n"; code != 0 || out != want {
		t.Errorf("--dry-run: %d, %q, want %q", code, out, want)
	}
	if weightIn(t, dir) != "10" {
		t.Error("--dry-run changed something")
	}

	code, out, _ = runRestore("--root", dir)
	if want := "restored   rmdir /sys/lab\nrestored   echo 100 > /sys/cpu.weight\n"; code != 0 || out != want {
		t.Errorf("%d, %q, want %q", code, out, want)
	}
	if got := weightIn(t, dir); got != "100" {
		t.Errorf("cpu.weight %s, want 100", got)
	}
	if _, err := os.Stat(undoLog); err == nil {
		t.Error("the undo log is still there")
	}

	code, out, _ = runRestore("--root", dir)
	if code != 0 || out != "nothing to restore\n" {
		t.Errorf("again: %d, %q", code, out)
	}
}

func TestRestoreJSON(t *testing.T) {
	t.Parallel()
	dir, _ := deadRun(t, "b1")
	elsewhere := filepath.Join(t.TempDir(), "j")
	if err := os.Rename(filepath.Join(dir, "run/berth"), elsewhere); err != nil {
		t.Fatal(err)
	}
	code, out, _ := runRestore("--root", dir, "--undo-logs", elsewhere, "-o", "json")
	var report kernel.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if code != 0 || len(report.Items) != 2 || report.Items[1].Outcome != kernel.Restored ||
		report.Items[1].Original != "100" || report.Items[1].Owner.Program != "berth lab" {
		t.Errorf("%d, %+v", code, report)
	}
}

func TestRestoreExit(t *testing.T) {
	t.Parallel()
	put := func(t *testing.T, name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		prepare  func(t *testing.T, dir string)
		args     []string
		code     int
		out, err string // parts
		weight   string
	}{
		"someone else's value": {func(t *testing.T, dir string) { put(t, dir+"/sys/cpu.weight", "77\n") }, nil, 0,
			`restore /sys/cpu.weight: changed by another writer: is "77", not the "10" that Berth wrote`, "", "77"},
		"after a reboot": {func(t *testing.T, dir string) { put(t, dir+"/proc/sys/kernel/random/boot_id", "b2\n") }, nil, 0,
			"removed    the undo log of berth lab", "", "10"},
		"not removable": {func(t *testing.T, dir string) { put(t, dir+"/sys/lab/file", "") }, nil, 1,
			"failed     rmdir /sys/lab", "rmdir /sys/lab: directory not empty", "100"},
		"broken undo log": {func(t *testing.T, dir string) { put(t, dir+"/run/berth/2-2.journal", "nonsense\n") }, nil, 1,
			"restored   echo 100", "2-2.journal: line 1", "100"},
		"wrong output": {nil, []string{"-o", "xml"}, 2, "", "it is one of text, json", "10"},
		"wrong flag":   {nil, []string{"--no"}, 2, "", "berth restore --help", "10"},
		"an argument":  {nil, []string{"everything"}, 2, "", "everything", "10"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, _ := deadRun(t, "b1")
			if tt.prepare != nil {
				tt.prepare(t, dir)
			}
			code, out, errOut := runRestore(append([]string{"--root", dir}, tt.args...)...)
			if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(errOut, tt.err) {
				t.Errorf("%d\n%s\n%s\nwant %d, %q, %q", code, out, errOut, tt.code, tt.out, tt.err)
			}
			if got := weightIn(t, dir); got != tt.weight {
				t.Errorf("cpu.weight %s, want %s", got, tt.weight)
			}
		})
	}
}

func TestRestoreAlive(t *testing.T) {
	t.Parallel()
	dir, _ := deadRun(t, "b1")
	if code, _, _ := runRestore("--root", dir); code != 0 {
		t.Fatal(code)
	}
	root, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	j, err := kernel.CreateUndoLog(root, filepath.Join(dir, "run/berth"), "berth lab")
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if code, out, _ := runRestore("--root", dir); code != 0 || !strings.Contains(out, "alive      berth lab (process ") {
		t.Errorf("%d, %q", code, out)
	}
}

// TestRestoreNothing has a node that held nothing: no line is printed.
func TestRestoreNothing(t *testing.T) {
	t.Parallel()
	n := nodeReport{Events: []agent.Event{{Kind: agent.Restored, Text: "0 steps undone"}}}
	if n.text() != "" {
		t.Errorf("%q", n.text())
	}
}

// TestRestoreBesideAgent has an agent that has just started and waits for the lock
// of the books: the node is its own already.
func TestRestoreBesideAgent(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	keeper, err := kernel.OpenPrivateFile(filepath.Join(nodeDir(dir), "keeper"), os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	defer keeper.Close()
	if err := syscall.Flock(int(keeper.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := runRestore("--root", dir); code != exitOK || !strings.Contains(out, "an agent keeps it") ||
		!strings.Contains(out, "in use     3 workloads: api, batch, db; once the agent is stopped, berth restore --all releases them") {
		t.Errorf("status %d, %q, %s", code, out, errs)
	}
	if code, _, errs := runRestore("--root", dir, "--all"); code != exitError || !strings.Contains(errs, "another agent keeps it; end it first") {
		t.Errorf("--all: status %d, %s", code, errs)
	}
}

// A state directory that is named and not there is an error that names it, and is not made.
func TestMissingState(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	missing := filepath.Join(dir, "nowhere", "node")
	for _, args := range [][]string{
		{"restore"}, {"restore", "--all"}, {"ps"}, {"map"}, {"explain", "api"}, {"release", "api"},
		{"move", "api", "--cpuset", "1"}, {"resize", "api", "--cpus", "1"},
	} {
		_, errs, code := berth(t, append(args, "--root", dir, "--state", missing)...)
		if code != exitError || !strings.Contains(errs, missing) {
			t.Errorf("%v: status %d, %s", args, code, errs)
		}
		if _, err := os.Stat(filepath.Dir(missing)); err == nil {
			t.Fatalf("%v has made it", args)
		}
	}
	for _, flag := range []string{"--undo-logs", "--journal"} {
		if code, out, errs := runRestore("--root", dir, flag, missing); code != exitError || !strings.Contains(errs, missing) {
			t.Errorf("%s: status %d, %s%s", flag, code, out, errs)
		}
	}
	if code, out, errs := runRestore("--root", dir, "--undo-logs", dir, "--journal", missing); code != exitUsage || !strings.Contains(errs, "only one of them") {
		t.Errorf("both names: status %d, %s%s", code, out, errs)
	}
}

// A flag of text that is given and empty, as by an unset shell variable, is wrong usage.
func TestEmptyFlags(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	for _, args := range [][]string{
		{"restore", "--all", "--state", ""}, {"restore", "--undo-logs="}, {"restore", "--journal="}, {"ps", "--socket="}, {"ps", "--state="}, {"map", "--root="}, {"agent", "--config="},
		{"agent", "--socket="}, {"run", "--name=", "--", "true"}, {"run", "--confine=", "--", "true"}, {"move", "api", "--cpuset="}, {"move", "api", "--cpuset=1", "--mems="},
		{"explain", ""}, {"release", ""}, {"guard", "--sensitive="}, {"run", "--bind=", "--", "true"}, {"run", "--exclusive=", "--", "true"}, {"ps", "--interval="}, {"resize", "api", "--mems="}, {"diagnose", "--cgroup="}, {"config", "check", "-o", ""}, {"topo", "--machine="},
	} {
		want := exitUsage
		if args[0] == "run" {
			want = exitNotRun
		}
		if args[len(args)-1] != "--root=" {
			args = append(args[:1:1], append([]string{"--root", dir}, args[1:]...)...)
		}
		if out, errs, code := berth(t, args...); code != want || errs == "" || out != "" {
			t.Errorf("%v: status %d, %q, %q", args, code, out, errs)
		}
	}
}

// spoilLog changes the undo log of a host's node.
func spoilLog(t *testing.T, dir string, spoil func(header, rest string) string) {
	t.Helper()
	name := filepath.Join(nodeDir(dir), "ledger")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	header, rest, _ := strings.Cut(string(text), "\n")
	if err := os.WriteFile(name, []byte(spoil(header+"\n", rest)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A line of the undo log that cannot be read keeps new notes from being made. Restoring
// says so and gives back what the other lines tell.
func TestDamagedUndoLog(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	spoilLog(t, dir, func(header, rest string) string { return header + "spoiled\n" + rest })
	if out, errs, code := berth(t, "ps", "--root", dir, "--interval", "10ms"); code != exitOK || !strings.Contains(out, "api") || !strings.Contains(errs, "ledger: line 2") {
		t.Errorf("ps: status %d, %s%s", code, out, errs)
	}
	// What needs no note goes on, with a warning.
	if _, errs, code := berth(t, "resize", "--root", dir, "batch", "--memory", "64Mi"); code != exitOK || !strings.Contains(errs, "berth: failed: undo log ") || !strings.Contains(errs, "'berth restore --all'") {
		t.Errorf("resize: status %d, %s", code, errs)
	}
	code, out, errs := runRestore("--root", dir, "--all")
	if code != exitError || !strings.Contains(errs, "ledger: line 2") || !strings.Contains(out, "restored   ") {
		t.Errorf("restore: status %d, %s%s", code, out, errs)
	}
	if text, err := os.ReadFile(filepath.Join(nodeDir(dir), "ledger")); err != nil || !strings.Contains(string(text), "spoiled\n") {
		t.Errorf("the line is gone: %q, %v", text, err)
	}
}

// Of an undo log whose first line cannot be read, nothing can be given back. It stops
// everything but reading, which says so, and restoring, which keeps it under another name.
func TestUnreadableUndoLog(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--all"}} {
		dir := placedHost(t)
		spoilLog(t, dir, func(header, rest string) string { return "spoiled" + header + rest })
		for want, verbs := range map[int][][]string{
			exitOK:    {{"ps"}, {"map"}, {"explain", "api"}},
			exitError: {{"release", "api"}, {"move", "db", "--cpuset", "8"}, {"resize", "db", "--cpus", "1"}},
		} {
			for _, verb := range verbs {
				if _, errs, code := berth(t, append(verb, "--root", dir)...); code != want || !strings.Contains(errs, "'berth restore'") {
					t.Errorf("%v: status %d, %s", verb, code, errs)
				}
			}
		}
		aside := filepath.Join(nodeDir(dir), "ledger.unreadable")
		code, _, errs := runRestore(append(args, "--root", dir)...)
		if code != exitError || !strings.Contains(errs, "it is "+aside+" now") || strings.Contains(errs, "'berth restore'") {
			t.Errorf("restore %v: status %d, %s", args, code, errs)
		}
		if text, err := os.ReadFile(aside); err != nil || !strings.HasPrefix(string(text), "spoiled") {
			t.Errorf("restore %v: kept %q, %v", args, text, err)
		}
		if code, _, errs := runRestore("--root", dir); code != exitOK {
			t.Errorf("restore %v, again: status %d, %s", args, code, errs)
		}
	}
}

// TestRestoreBesideGuard has a guard that runs: its active values are listed, with its
// process, and that nothing of it was given back.
func TestRestoreBesideGuard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k, err := fakekernel.New(dir, fakekernel.V1())
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Mkdir("sys/fs/cgroup/cpu,cpuacct/batch"); err != nil {
		t.Fatal(err)
	}
	g, err := actuate.Open(actuate.Options{Root: kernel.NewRoot(dir, k), Dir: agent.GuardDir(nodeDir(dir))})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if code, out, errs := runRestore("--root", dir); code != exitOK || !strings.Contains(out, fmt.Sprintf("alive      the guard (berth guard, process %d, ", os.Getpid())) {
		t.Errorf("with no active value: status %d, %q, %s", code, out, errs)
	}
	if _, err := g.Apply(t.Context(), control.Action{Remedy: detect.Weight, Group: "batch", Limits: cgroup.Limits{Idle: cgroup.On}}); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runRestore("--root", dir)
	if code != exitError || !strings.Contains(out, "active     echo 1 > /sys/fs/cgroup/cpu,cpuacct/batch/cpu.idle #") || !strings.Contains(errs, fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("with an active value: status %d, %q, %s", code, out, errs)
	}
	name := filepath.Join(agent.GuardDir(nodeDir(dir)), "ledger")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, append([]byte("x"), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := runRestore("--root", dir); code != exitError || !strings.Contains(errs, name) {
		t.Errorf("with an undo log that cannot be read: status %d, %q, %s", code, out, errs)
	}
	if err := g.Close(); err != nil { // and once it has ended, it is set aside
		t.Fatal(err)
	}
	if err := os.WriteFile(name, append([]byte("x"), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := runRestore("--root", dir); code != exitError || !strings.Contains(errs, name+".unreadable-") {
		t.Errorf("set aside: status %d, %q, %s", code, out, errs)
	}
	if kept, err := filepath.Glob(name + ".unreadable-*"); err != nil || len(kept) != 1 {
		t.Errorf("kept: %v, %v", kept, err)
	}
	if code, out, errs := runRestore("--root", dir); code != exitOK {
		t.Errorf("after that: status %d, %q, %s", code, out, errs)
	}
}

// TestRestorePrintsNoControls has names in an undo log that would steer the terminal.
func TestRestorePrintsNoControls(t *testing.T) {
	t.Parallel()
	const steer = "\x1b]0;owned\x07\x1b[2J"
	for what, edit := range map[string]func(string) string{
		"program": func(s string) string { return s },
		"path":    func(s string) string { return strings.ReplaceAll(s, "sys/cpu.weight", "etc/"+inJSON(steer)) },
		"link":    func(s string) string { return strings.ReplaceAll(s, "sys/cpu.weight", "../"+inJSON(steer)) },
	} {
		dir, undoLog := deadRun(t, "b1")
		text, err := os.ReadFile(undoLog)
		if err != nil {
			t.Fatal(err)
		}
		// "rebooted" prints the program, and a refused note its path.
		changed := edit(strings.ReplaceAll(string(text), "berth lab", inJSON(steer)))
		if what == "program" {
			changed = strings.Replace(changed, `"boot":"b1"`, `"boot":"b0"`, 1)
		}
		if err := os.WriteFile(undoLog, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"--dry-run"}, nil} {
			_, out, errs := runRestore(append([]string{"--root", dir}, args...)...)
			if !strings.Contains(out+errs, "owned") || strings.ContainsAny(out+errs, "\x1b\x07") {
				t.Errorf("%s, %v: %q, %q", what, args, out, errs)
			}
		}
	}
}

// TestErrorsPrintNoControls has an error name what would steer the terminal.
func TestErrorsPrintNoControls(t *testing.T) {
	t.Parallel()
	_, _, errs := runRestore("--root", t.TempDir(), "--undo-logs", "/absent/\x1b[2J\x07owned")
	if !strings.Contains(errs, "owned") || strings.ContainsAny(errs, "\x1b\x07") {
		t.Errorf("%q", errs)
	}
}

// inJSON is text as it stands in JSON.
func inJSON(text string) string {
	data, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return strings.Trim(string(data), `"`)
}

// Restoring says which workloads keep their places, and how to release them.
func TestRestoreTellsWhatIsInUse(t *testing.T) {
	t.Parallel()
	root := placedHost(t)
	out, errs, code := berth(t, "restore", "--root", root)
	want := "in use     3 workloads: api, batch, db; berth restore --all releases them too\n"
	if code != exitOK || !strings.HasSuffix(out, want) || strings.Contains(out, "nothing") {
		t.Errorf("status %d: %s%s; want %q", code, out, errs, want)
	}
	if out, errs, code := berth(t, "restore", "--dry-run", "--all", "--root", root); code != exitOK || out != want {
		t.Errorf("--dry-run: status %d: %s%s; want %q", code, out, errs, want)
	}
}
