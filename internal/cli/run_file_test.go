package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
	"berth.dev/berth/machine/sysfs"
)

// bundle is a file of commands: of each its name, a line of shell, and further fields.
func bundle(t *testing.T, workloads ...[3]string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("workloads:\n")
	for _, w := range workloads {
		fmt.Fprintf(&b, "- name: %s\n  command: [sh, -c, %s]\n", w[0], strconv.Quote(w[1]))
		if w[2] != "" {
			fmt.Fprintf(&b, "  %s\n", w[2])
		}
	}
	name := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(name, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// holds reports whether berth ps names a workload.
func holds(t *testing.T, name string) bool {
	t.Helper()
	out, err := berthProcess(t, "ps").CombinedOutput()
	if err != nil {
		t.Fatalf("ps: %v: %s", err, out)
	}
	return strings.Contains(string(out), name)
}

func TestRunFileStatus(t *testing.T) {
	t.Parallel()
	needsNode(t)
	a, b := workloadName(t)+"a", workloadName(t)+"b"
	second := filepath.Join(t.TempDir(), "second")
	afterSecond := fmt.Sprintf("until [ -s %[1]s ]; do sleep 0.01; done; while kill -0 $(cat %[1]s); do sleep 0.01; done 2>/dev/null; sleep 0.2; ", second)
	for name, c := range map[string]struct {
		first, second string
		args          []string
		want          int
		says          string
	}{
		"all well":            {"echo one", "echo two", nil, 0, a + " has ended with status 0"},
		"the first to fail":   {afterSecond + "exit 3", "echo $$ > " + second + "; exit 7", []string{"-k"}, 7, b + " has ended with status 7"},
		"usage of a command":  {"exit 2", "true", nil, 2, ""},
		"a signal":            {"kill -KILL $$", "true", nil, 137, ""},
		"one ends the others": {"exit 4", "exec sleep 1000", nil, 4, "the others are ended, as " + a + " failed"},
		"one lets them go on": {"exit 4", "sleep 0.3; echo went on", []string{"--keep-going"}, 4, "went on"},
	} {
		began := time.Now()
		out, err := berthProcess(t, append([]string{"run", "--file", bundle(t, [3]string{a, c.first}, [3]string{b, c.second})}, c.args...)...).CombinedOutput()
		if status(err) != c.want || !strings.Contains(string(out), c.says) || time.Since(began) > time.Minute {
			t.Errorf("%s: status %d, want %d with %q:\n%s", name, status(err), c.want, c.says, out)
		}
		if holds(t, a) || holds(t, b) {
			t.Fatalf("%s: a workload is left", name)
		}
	}
}

// A file of which one command has no place runs none.
func TestRunFileAllOrNone(t *testing.T) {
	t.Parallel()
	needsGroups(t)
	a, b, ran := workloadName(t)+"a", workloadName(t)+"b", filepath.Join(t.TempDir(), "ran")
	host, err := sysfs.Live("/")
	if err != nil {
		t.Fatal(err)
	}
	asked := host.Online.Len() // not those of this process, which may use fewer
	file := bundle(t, [3]string{a, "touch " + ran}, [3]string{b, "touch " + ran, fmt.Sprintf("class: LSE\n  cpus: %d", asked)})
	out, err := berthProcess(t, "run", "-f", file).CombinedOutput()
	if want := fmt.Sprintf("workload %q, which is placed with 1 more or not at all: not enough CPUs: %d asked", b, asked); status(err) != exitNotRun || !strings.Contains(string(out), want) {
		t.Errorf("status %d: %s", status(err), out)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a command ran, though another had no place")
	}
	if holds(t, a) || holds(t, b) {
		t.Error("a workload is left")
	}
}

// Each command is in its place from its first instruction on, and what a signal ends is
// released, with what it started.
func TestRunFileInterrupted(t *testing.T) {
	t.Parallel()
	needsGroups(t)
	a, b, dir := workloadName(t)+"a", workloadName(t)+"b", t.TempDir()
	c := berthProcess(t, "run", "-f", bundle(t,
		[3]string{a, "cat /proc/self/cgroup > " + dir + "/a; sleep 1000 & trap '' TERM; echo $! > " + dir + "/child; wait; sleep 0.1", "class: BE"},
		[3]string{b, "cat /proc/self/cgroup > " + dir + "/b; exec sleep 1000", "class: LS"}))
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() }) // where the test gave up
	read := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(dir, name))
		return strings.TrimSpace(string(text))
	}
	waitFor(t, "both run", func() bool { return read("child") != "" && read("b") != "" })
	if !strings.Contains(read("a"), "/berth-idle/"+a) || !strings.Contains(read("b"), "/berth/"+b) {
		t.Errorf("they were in %s\nand %s", read("a"), read("b"))
	}
	child, err := strconv.Atoi(read("child"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the first signal has ended who does not ignore it", func() bool { return strings.Contains(read("out"), b+" has ended with status 143") })
	_ = c.Process.Signal(syscall.SIGTERM) // the second kills who ignores the first
	if err := c.Wait(); status(err) != exitInterrupted || !strings.Contains(read("out"), a+" has ended with status 137") {
		t.Errorf("status %d: %s", status(err), read("out"))
	}
	waitFor(t, "what "+a+" started has ended", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root", child))
		return err != nil
	})
	if holds(t, a) || holds(t, b) {
		t.Errorf("a workload is left: %s", read("out"))
	}
}

// Where SIGHUP is ignored, as below nohup(1), it does not end the commands.
func TestRunFileHangup(t *testing.T) {
	t.Parallel()
	needsNode(t)
	name, dir := workloadName(t), t.TempDir()
	file := bundle(t, [3]string{name, fmt.Sprintf("touch %[1]s/runs; until [ -e %[1]s/end ]; do sleep 0.01; done", dir)})
	c := ignoringHangup(t, "run", "-f", file)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() }) // where the test gave up
	waitFor(t, "the command runs", func() bool { _, err := os.Stat(dir + "/runs"); return err == nil })
	if !ignoresHangup(t, c) {
		t.Error("it does not ignore SIGHUP any more")
	}
	if err := errors.Join(c.Process.Signal(syscall.SIGHUP), os.WriteFile(dir+"/end", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil || !strings.Contains(out.String(), name+" has ended with status 0") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// ignoringHangup is berthProcess below a shell that ignores SIGHUP.
func ignoringHangup(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := berthProcess(t, args...)
	c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh", exe}, args...)
	return c
}

// ignoresHangup reports whether a process ignores SIGHUP, the first signal of proc_pid_status(5).
func ignoresHangup(t *testing.T, c *exec.Cmd) bool {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nSigIgn:")
	mask, err := strconv.ParseUint(strings.Fields(rest)[0], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return mask&1 != 0
}

func TestRunFileDryRun(t *testing.T) {
	t.Parallel()
	needsGroups(t)
	a, b := workloadName(t)+"a", workloadName(t)+"b"
	file := bundle(t, [3]string{a, "false", "class: BE"}, [3]string{b, "false"})
	out, err := berthProcess(t, "run", "-f", file, "--dry-run", "-o", "json").Output()
	var got struct {
		Workloads []agent.Workload
		Plan      kernel.Plan
	}
	if jsonErr := json.Unmarshal(out, &got); err != nil || jsonErr != nil || len(got.Workloads) != 2 || got.Workloads[1].ID() != b || len(got.Plan) == 0 {
		t.Fatalf("%v, %v: %s", err, jsonErr, out)
	}
	out, err = berthProcess(t, "run", "-f", file, "--dry-run", "--explain").Output()
	for _, want := range []string{"workload  " + a, "workload  " + b, "why", "\nwrites\n", a + "/cpuset.cpus"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, want %q: %s", err, want, out)
		}
	}
	if holds(t, a) {
		t.Error("a dry run placed something")
	}
}

// What is wrong with a file is said at once, before anything starts.
func TestRunFileErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "shop.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		text string
		args []string
		want int
		says []string
	}{
		"all at once": {"workloads:\n- {name: a, class: LSE}\n- {name: a, command: ['true'], cpu: 2, match: {cgroup: /x}, group: g}\n", nil, exitNotRun, []string{
			":2: workloads[0].command: is missing: the program and its arguments", ":2: workloads[0].cpus: is missing: class LSE has CPUs of its own",
			`workloads[1].name: there are two workloads "a"`, `workloads[1].cpu: `, `did you mean "cpus"?`, "workloads[1].match: is for a NodeConfig", "workloads[1].group: is one of the whole file",
		}},
		"amounts": {"workloads:\n- {name: a, command: ['true'], cpus: 2000}\n- {name: b, command: ['true'], limits: {quota: 2000, memoryMax: 900Ti}}\n", nil, exitNotRun, []string{
			":2: workloads[0].cpus: 2000 CPUs are asked for, and this host has", ":3: workloads[1].limits.quota: it is the time of 2000 CPUs", ":3: workloads[1].limits.memoryMax: it is 900Ti, and this host has",
		}},
		"no such programs": {"workloads: [{name: a, command: [no-such-program]}, {name: b, command: [nor-this]}]", nil, exitNotFound, []string{"run no-such-program: not found", "run nor-this: not found"}},
		"empty":            {"", nil, exitNotRun, []string{"workloads: is missing"}},
		"no such program":  {"workloads: [{name: a, command: [no-such-program]}]", nil, exitNotFound, []string{"run no-such-program: not found"}},
		"flags":            {"workloads: [{name: a, command: ['true']}]", []string{"--cpus", "2"}, exitNotRun, []string{"--cpus and --file: what a command gets stands in the file"}},
		"name":             {"workloads: [{name: a, command: ['true']}]", []string{"--name", "x"}, exitNotRun, []string{"--name and --file"}},
		"a command":        {"workloads: [{name: a, command: ['true']}]", []string{"--", "true"}, exitNotRun, []string{"a COMMAND and --file"}},
		"output":           {"workloads: [{name: a, command: ['true']}]", []string{"-o", "json"}, exitNotRun, []string{"--output: it is what --dry-run prints"}},
	} {
		write(c.text)
		out, code := runBerth(t, append([]string{"run", "-f", file}, c.args...)...)
		for _, says := range c.says {
			if code != c.want || !strings.Contains(out, says) {
				t.Errorf("%s: status %d, want %d with %q:\n%s", name, code, c.want, says, out)
			}
		}
	}
	endless := "workloads: [{name: a, command: [no-such-program]}]\n" + strings.Repeat("#\n", 4<<20/2)
	var out strings.Builder
	code := run(t.Context(), strings.NewReader(endless), &out, &out, []string{"run", "-f", "-"})
	if code != exitNotRun || !strings.Contains(out.String(), "read configuration from standard input: more than 4194304 bytes") {
		t.Errorf("longer than what is read: status %d: %s", code, out.String())
	}
	if out, code := runBerth(t, "run", "-f", filepath.Join(dir, "none")); code != exitNotRun || !strings.Contains(out, "no such file") {
		t.Errorf("no file: status %d: %s", code, out)
	}
	if out, code := runBerth(t, "run", "-k", "--", "true"); code != exitNotRun || !strings.Contains(out, "--keep-going is for --file") {
		t.Errorf("no file: status %d: %s", code, out)
	}
}
