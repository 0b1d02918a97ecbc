package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/vmtest"
)

// berth runs the program to its end.
func berth(t *testing.T, args ...string) (output string, exit int) {
	t.Helper()
	cmd := exec.Command("/bin/berth", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	exit = cmd.ProcessState.ExitCode()
	if exit != 0 {
		t.Logf("berth %s: %v\n%s", strings.Join(args, " "), cmd.ProcessState, &stderr)
	}
	if exit < 0 { // by a signal: the kernel may know why
		log, err := vmtest.KernelLog()
		t.Logf("the kernel's last words (%v):\n%s", err, strings.Join(log[max(0, len(log)-30):], "\n"))
	}
	return string(text), exit
}

// ps are the workloads that the program lists.
func ps(t *testing.T) map[string]agent.Workload {
	t.Helper()
	text, exit := berth(t, "ps", "-o", "json", "--interval", "10ms")
	var list []agent.Workload
	if err := json.Unmarshal([]byte(text), &list); err != nil || exit != 0 {
		t.Fatalf("berth ps: exit status %d, %v", exit, err)
	}
	all := map[string]agent.Workload{}
	for _, w := range list {
		all[w.ID()] = w
	}
	return all
}

// TestRun runs commands on own CPUs, two of them at once, kills them and what
// would have given their places back, and has berth restore do so.
func TestRun(t *testing.T) {
	onlyOn(t, "server-order")
	onlyThorough(t)
	h := newHost(t)
	h.opt.Dir = agent.StateDir(0, "")
	before := h.cpus("system.slice")
	names := []string{"api", "db"}
	commands := map[string]*exec.Cmd{}
	for _, name := range names {
		commands[name] = h.start(exec.Command("/bin/berth", "run", "--class", "LSE", "--cpus", "2", "--name", name,
			"--confine", "system.slice", "--", "/bin/guest.test", "-test.run=^TestChild$"))
	}
	all := ps(t)
	var own cpuset.Set
	for _, name := range names {
		w := all[name]
		if w.CPUs.Len() != 2 || w.CPUs != h.cpus(w.Group) || w.CPUs != allowed(t, commands[name].Process.Pid) || own.Overlaps(w.CPUs) {
			t.Errorf("%s: listed with CPUs %s, its group has %s, its process %s; %s are taken",
				name, w.CPUs, h.cpus(w.Group), allowed(t, commands[name].Process.Pid), own)
		}
		own = own.Union(w.CPUs)
	}
	if got, want := h.cpus("system.slice"), before.Minus(own); got != want {
		t.Errorf("system.slice is on %s, want %s", got, want)
	}
	for want, command := range map[int][]string{0: {"/bin/berth", "help"}, 2: {"/bin/berth", "ps", "--nonsense"}, 127: {"/bin/absent"}} {
		if _, exit := berth(t, append([]string{"run", "--class", "BE", "--"}, command...)...); exit != want {
			t.Errorf("%s: exit status %d, want %d", command, exit, want)
		}
	}
	for _, keeper := range processes(t, "__keep") {
		if err := syscall.Kill(keeper, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	for _, cmd := range commands {
		cmd.Process.Kill()
		cmd.Wait()
	}
	text, exit := berth(t, "restore")
	for _, name := range names {
		if exit != 0 || !strings.Contains(text, " "+name+": ") {
			t.Errorf("berth restore: %s is not released, exit status %d\n%s", name, exit, text)
		}
	}
	if all := ps(t); len(all) > 0 {
		t.Errorf("restored, but there is %v", all)
	}
	if got := h.cpus("system.slice"); got != before {
		t.Errorf("restored, but system.slice is on %s", got)
	}
}

// start starts a command that says when it is ready, and waits for that. It ends
// with the test.
func (h *host) start(cmd *exec.Cmd) *exec.Cmd {
	h.t.Helper()
	cmd.Env = append(os.Environ(), childEnv+"=sleep")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		h.t.Fatalf("%s: %v", cmd, err)
	}
	return cmd
}

// processes are those with an argument.
func processes(t *testing.T, argument string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may have ended
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && bytes.Contains(text, []byte("\x00"+argument+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestAgent has the agent place a group that appears, go on after a restart, and
// give everything back where it is told to.
func TestAgent(t *testing.T) {
	onlyOn(t, "server-order")
	h := newHost(t)
	h.opt.Dir = agent.StateDir(0, "")
	before := h.settings()
	file := filepath.Join(t.TempDir(), "node.yaml")
	text := `apiVersion: berth.dev/v1alpha1
kind: NodeConfig
confine: [/system.slice]
workloads:
- {name: api, match: {cgroup: /system.slice/api.service}, class: LSE, cpus: 2}
agent: {metrics: "off"}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	running := h.agent("--config", file)
	plan, err := h.base.Child("system.slice/api.service").Create()
	undo := h.apply(t, plan, err)
	pid := h.child(t, h.base.Child("system.slice/api.service"), "sleep")
	await(t, func() bool { return allowed(t, pid).Len() == 2 })
	own := allowed(t, pid)
	await(t, func() bool { return h.cpus("system.slice/sshd.service") == h.online().Minus(own) })
	h.end(running)
	if got := allowed(t, pid); got != own {
		t.Errorf("the agent has ended: on %s, was on %s", got, own)
	}
	running = h.agent("--config", file, "--restore-on-exit")
	if all := ps(t); len(all) != 1 || allowed(t, pid) != own {
		t.Errorf("the agent is back: %v, the process may use %s", all, allowed(t, pid))
	}
	h.end(running)
	if got := allowed(t, pid); got != h.online() {
		t.Errorf("given back: on %s, want %s", got, h.online())
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return h.text(t, "system.slice/api.service", "cgroup.procs") == "" })
	if err := undo(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, h.widened(before, h.settings())); diff != "" {
		t.Errorf("given back (-before +after):\n%s", diff)
	}
}

// agent starts the agent and waits until it answers.
func (h *host) agent(args ...string) *exec.Cmd {
	h.t.Helper()
	cmd := exec.Command("/bin/berth", append([]string{"agent"}, args...)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	await(h.t, func() bool {
		_, err := os.Stat("/run/berth/agent.sock")
		return err == nil
	})
	return cmd
}

// end ends the agent as a service manager does.
func (h *host) end(cmd *exec.Cmd) {
	h.t.Helper()
	err := cmd.Process.Signal(syscall.SIGTERM)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		h.t.Errorf("the agent: %v", err)
	}
}

// await waits until something is so.
func await(t *testing.T, so func() bool) {
	t.Helper()
	for range 6000 {
		if so() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("it did not come about")
}
