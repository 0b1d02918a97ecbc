package cli

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/kernel"
)

// agentHome is a directory with a configuration for an agent of a test's own.
func agentHome(t *testing.T, more string) (dir, config, socket string) {
	t.Helper()
	dir = t.TempDir()
	config, socket = filepath.Join(dir, "node.yaml"), filepath.Join(dir, "s")
	text := fmt.Sprintf("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\nagent: {stateDir: %s/state, socket: %s, metrics: \"off\"}\n%s", dir, socket, more)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, config, socket
}

func TestAgentRefuses(t *testing.T) {
	t.Parallel()
	_, bad, _ := agentHome(t, "nonsense: 1\n")
	_, open, _ := agentHome(t, "")
	text, err := os.ReadFile(open)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(open, bytes.ReplaceAll(text, []byte(`"off"`), []byte(`"0.0.0.0:9750"`)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want int
		says string
	}{
		"an argument":      {[]string{"x"}, exitUsage, ""},
		"unknown flag":     {[]string{"--nonsense"}, exitUsage, "--nonsense"},
		"log format":       {[]string{"--log-format", "xml"}, exitUsage, "it is one of text, json"},
		"no file":          {[]string{"--config", "/no/such/file"}, exitError, "no such file"},
		"bad file":         {[]string{"--config", bad}, exitError, "nonsense: unknown field"},
		"bad file, dry":    {[]string{"--dry-run", "--config", bad}, exitError, "nonsense: unknown field"},
		"for all to see":   {[]string{"--config", open}, exitError, "agent.network"},
		"root is not here": {[]string{"--root", "/no/such/dir"}, exitError, "/no/such/dir"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			code := run(t.Context(), strings.NewReader(""), &out, &errs, append([]string{"agent"}, tc.args...))
			if code != tc.want || !strings.Contains(errs.String(), tc.says) {
				t.Errorf("status %d, %q; want %d and %q", code, errs.String(), tc.want, tc.says)
			}
		})
	}
}

// agentProcess starts an agent as a process of its own and waits until it is ready. It skips where another
// guard that acts has the groups of this host: no agent starts beside one.
func agentProcess(t *testing.T, socket string, args ...string) *exec.Cmd {
	t.Helper()
	c := berthProcess(t, append([]string{"agent"}, args...)...)
	var errs bytes.Buffer
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	waitFor(t, "the agent is ready", func() bool {
		if p, err := kernel.ReadProcess(os.DirFS("/"), strconv.Itoa(c.Process.Pid)); err != nil || p.Ended() {
			err := c.Wait() // from now on errs is whole
			if strings.Contains(errs.String(), "another guard that may act is running") {
				t.Skipf("needs the host's control groups to itself: %s", &errs)
			}
			t.Fatalf("the agent has ended: %v: %s", err, &errs)
		}
		_, err := os.Stat(socket)
		return err == nil
	})
	return c
}

// TestAgentOnThisHost kills, restarts and ends an agent that keeps a group of the
// host's v1 controllers. It is not parallel: its state is not that of berth run.
func TestAgentOnThisHost(t *testing.T) {
	needsHost(t)
	cpusets, err := filepath.Glob("/sys/fs/cgroup/cpuset/cpuset.cpus")
	if err != nil || len(cpusets) == 0 || os.Getuid() != 0 {
		t.Skip("needs root and cgroup v1: a cpuset hierarchy in /sys/fs/cgroup/cpuset")
	}
	name := strings.ToLower(workloadName(t))
	for _, controller := range []string{"cpu", "cpuacct", "memory", "blkio", "pids", "cpuset"} {
		dir := filepath.Join("/sys/fs/cgroup", controller, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			t.Skipf("needs to make a group: %v", err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
	}
	shares := func() string {
		text, err := os.ReadFile("/sys/fs/cgroup/cpu/" + name + "/cpu.shares")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	before := shares()
	dir, config, socket := agentHome(t, fmt.Sprintf("workloads: [{name: w, match: {cgroup: /%s}, class: BE, limits: {weight: 50}}]\n", name))
	is := func(want string) { t.Helper(); waitFor(t, "shares of "+want, func() bool { return shares() == want }) }

	first := agentProcess(t, socket, "--config", config)
	is("512")
	out, err := berthProcess(t, "agent", "--config", config, "--socket", filepath.Join(dir, "other")).CombinedOutput()
	if status(err) != exitError || !strings.Contains(string(out), fmt.Sprintf("another agent keeps it: process %d;", first.Process.Pid)) {
		t.Errorf("a second agent: %v: %s", err, out)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	is("512")

	// A restart goes on, and a signal leaves all in place.
	second := agentProcess(t, socket, "--config", config)
	waitFor(t, "it answers", func() bool {
		out, err := berthProcess(t, "explain", "--socket", socket, "w:"+name).CombinedOutput()
		return err == nil && strings.Contains(string(out), name)
	})
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	is("512")

	third := agentProcess(t, socket, "--config", config, "--restore-on-exit")
	if err := third.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := third.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	is(before)

	// After a kill -9, restoring the node is enough.
	fourth := agentProcess(t, socket, "--config", config)
	is("512")
	if err := fourth.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = fourth.Wait()
	if _, err := agent.Restore(t.Context(), agent.Options{Dir: filepath.Join(dir, "state")}); err != nil {
		t.Error(err)
	}
	is(before)
}

// What the machine's counters cannot be had for is in the log, a line for each.
func TestWebNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	_, err = webHandler(root, dir, slog.New(slog.NewTextHandler(&log, nil)))(t.Context(), api.Server{Node: new(agent.Node), History: api.NewHistory(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"hardware counters: not supported: the root directory is not", "monitoring by resctrl: "} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%q is in the log %d times, want once:\n%s", want, n, &log)
		}
	}
}
