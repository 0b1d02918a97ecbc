package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
)

// berthProcess is berth as a process of its own, on this host.
func berthProcess(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command("/proc/self/exe", args...)
	c.Env = append(os.Environ(), runsBerth+"=1")
	if os.Getuid() != 0 {
		c.Env = append(c.Env, "XDG_RUNTIME_DIR="+t.TempDir())
	}
	return c
}

// needsHost skips a test that places with a node of its own where another one has
// the host's tree: that of an agent, or of commands that run.
func needsHost(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes and makes control groups")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: others have a tree of their own")
	}
	fakekernel.LockHost(t, fakekernel.Alone)
	state := filepath.Join(t.TempDir(), "none")
	var out []byte
	var err error
	for range 30 { // until those that keep what other tests ran are done
		if out, err = berthProcess(t, "run", "--state", state, "--dry-run", "--", "true").CombinedOutput(); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil || !strings.Contains(string(out), "\ngroup ") {
		t.Skipf("needs the host's control groups to itself: %v: %s", err, out)
	}
}

// needsNode skips a test where commands cannot be placed.
func needsNode(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes and, as root, makes control groups")
	}
	fakekernel.LockHost(t, fakekernel.Shared)
	if out, err := berthProcess(t, "run", "-q", "--", "true").CombinedOutput(); err != nil {
		t.Skipf("this host does not place commands: %v: %s", err, out)
	}
}

// needsGroups skips a test where there are no control groups for commands.
func needsGroups(t *testing.T) {
	t.Helper()
	needsNode(t)
	out, err := berthProcess(t, "run", "--dry-run", "--", "true").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\ngroup ") {
		t.Skipf("needs control groups: %s", out)
	}
}

// workloadName is unique on this host.
func workloadName(t *testing.T) string {
	return fmt.Sprintf("%s-%d", filepath.Base(t.Name()), os.Getpid())
}

func status(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled():
		return 128 + int(exit.Sys().(syscall.WaitStatus).Signal())
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

func TestRunStatus(t *testing.T) {
	t.Parallel()
	needsNode(t)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("exit 9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "script")
	syscall.ForkLock.RLock() // a child of another test that had the file open to write would make it busy
	err := os.WriteFile(script, []byte("exit 9\n"), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args []string
		want int
		says string
	}{
		"0":                {[]string{"--", "true"}, 0, ""},
		"the command's":    {[]string{"--", "sh", "-c", "exit 7"}, 7, ""},
		"a signal":         {[]string{"--", "sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		"without --":       {[]string{"sh", "-c", "exit 3"}, 3, ""},
		"a script":         {[]string{"--", script}, 9, ""},
		"not found":        {[]string{"--", "no-such-command"}, 127, "not found"},
		"not there":        {[]string{"--", "/no/such/command"}, 127, "not found"},
		"not executable":   {[]string{"--", plain}, 126, "permission denied"},
		"a directory":      {[]string{"--", "/"}, 126, "/"},
		"no command":       {nil, 125, "COMMAND"},
		"wrong flag":       {[]string{"--no-such-flag", "--", "true"}, 125, "--no-such-flag"},
		"wrong class":      {[]string{"--class", "XL", "--", "true"}, 125, "XL"},
		"wrong quota":      {[]string{"--quota", "fast", "--", "true"}, 125, "fast"},
		"refused":          {[]string{"--class", "LSE", "--cpus", "99999", "--", "true"}, 125, "CPUs"},
		"nothing to own":   {[]string{"--class", "LSE", "--", "true"}, 125, "--cpus"},
		"no such CPU":      {[]string{"--cpuset", "9000", "--", "true"}, 125, "9000"},
		"system":           {[]string{"--class", "SYSTEM", "--", "true"}, 125, "SYSTEM"},
		"not on this host": {[]string{"--root", t.TempDir(), "--", "true"}, 125, "--root"},
	} {
		// Not in parallel: who waits for the host may have all slots, and the host is taken.
		t.Run(name, func(t *testing.T) {
			out, err := berthProcess(t, append([]string{"run", "-q"}, tt.args...)...).CombinedOutput()
			if got := status(err); got != tt.want || !strings.Contains(string(out), tt.says) || tt.says == "" && tt.want < 125 && len(out) > 0 {
				t.Errorf("status %d, %q; want %d, %q", got, out, tt.want, tt.says)
			}
		})
	}
}

// TestRunIsTransparent compares what a command finds with and without berth run.
func TestRunIsTransparent(t *testing.T) {
	t.Parallel()
	needsNode(t)
	show := `cat; pwd; umask; ulimit -a; env | grep -v XDG_RUN | sort; ls -l /proc/self/fd | wc -l;` +
		` grep -E '^(Sig[BICP]|Shd|Uid|Gid|Groups|Cap|NoNewPrivs)' /proc/self/status; cut -d' ' -f5,6 /proc/$$/stat >&2; jobs; exit 5`
	try := func(args ...string) (int, string, string) {
		c := berthProcess(t, append([]string{"run", "-q", "--"}, "true")...)
		c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c", `trap '' HUP INT; exec "$@"`, "sh"}, args...)
		c.Stdin = strings.NewReader("in\n")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		var out, errs bytes.Buffer
		c.Stdout, c.Stderr = &out, &errs
		err := c.Run()
		return status(err), out.String(), errs.String()
	}
	code, out, errs := try("sh", "-c", show)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	gotCode, gotOut, gotErrs := try(exe, "run", "-q", "--", "sh", "-c", show)
	if code != gotCode || out != gotOut || len(strings.Fields(errs)) != len(strings.Fields(gotErrs)) {
		t.Errorf("status %d, %q, %q\nwithout berth run %d, %q, %q", gotCode, gotOut, gotErrs, code, out, errs)
	}
}

// TestInterrupted waits for the lock of the books when Ctrl-C comes.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	lock, err := os.Open(filepath.Join(nodeDir(dir), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := run(ctx, strings.NewReader(""), &out, &errs, []string{"release", "--root", dir, "api"})
	if code != exitInterrupted || !strings.HasPrefix(errs.String(), "berth: lock node "+nodeDir(dir)) {
		t.Errorf("status %d, %q", code, errs.String())
	}
}

// TestRunInPlace has a command whose first instructions read where it is.
func TestRunInPlace(t *testing.T) {
	t.Parallel()
	needsNode(t)
	out, err := berthProcess(t, "run", "-q", "--cpuset", "0", "--", "grep", "Cpus_allowed_list", "/proc/self/status").CombinedOutput()
	if err != nil || strings.Join(strings.Fields(string(out)), " ") != "Cpus_allowed_list: 0" {
		t.Errorf("%v: %s", err, out)
	}
}

// waitFor polls until ok, or fails.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain: %s", what)
}

// TestRunManyAtOnce has twenty commands that want a CPU of their own, over and
// over until they get one; a directory per CPU tells of two at once.
func TestRunManyAtOnce(t *testing.T) {
	t.Parallel()
	needsGroups(t)
	const many = 20
	dir := t.TempDir()
	script := `cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
mkdir "$0/$cpus" || exit 50
sleep 0.02
rmdir "$0/$cpus"; echo "$cpus"`
	results := make(chan string, many)
	for i := range many {
		name := fmt.Sprintf("%s-%d", workloadName(t), i)
		go func() {
			for range 1000 {
				out, err := berthProcess(t, "run", "-q", "--class", "LSE", "--cpus", "1", "--name", name, "--", "sh", "-c", script, dir).CombinedOutput()
				if status(err) == exitNotRun && strings.Contains(string(out), "not enough CPUs") {
					time.Sleep(20 * time.Millisecond)
					continue
				}
				results <- fmt.Sprintf("%d %s", status(err), out)
				return
			}
			results <- "never got a CPU"
		}()
	}
	for range many {
		result := <-results
		if cpu, ok := strings.CutPrefix(strings.TrimSpace(result), "0 "); !ok || cpuset.MustParse(cpu).Len() != 1 {
			t.Error(result)
		}
	}
}

// startReady starts berth, and returns once its command says "ready".
func startReady(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := berthProcess(t, args...)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRunLeavesNothing kills a command and looks for what is left.
func TestRunLeavesNothing(t *testing.T) {
	t.Parallel()
	needsGroups(t)
	name := workloadName(t)
	c := startReady(t, "run", "-q", "--name", name, "--", "sh", "-c", "sleep 1000 & echo ready; wait")
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	gone := func() bool {
		text, err := berthProcess(t, "explain", name).CombinedOutput()
		return status(err) == exitError && strings.Contains(string(text), "there is no such workload")
	}
	if gone() {
		t.Error("the place went while a process was in it")
	}
	if out, err := berthProcess(t, "release", "--kill", name).CombinedOutput(); err != nil {
		t.Errorf("release: %v: %s", err, out)
	}
	if !gone() {
		t.Error("the place is still there")
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/berth*/" + name); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRunKillsWhatIsLeft(t *testing.T) {
	t.Parallel()
	needsGroups(t)
	name := workloadName(t)
	out, err := berthProcess(t, "run", "-q", "--kill-left", "--name", name, "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	waitFor(t, "the process that was left has ended", func() bool {
		_, err := os.Stat("/proc/" + strings.TrimSpace(string(out)) + "/root")
		return err != nil
	})
}

// TestRunRestored kills a command and its keeper, and has berth restore clean up.
func TestRunRestored(t *testing.T) {
	t.Parallel()
	needsGroups(t)
	name := workloadName(t)
	c := startReady(t, "run", "-q", "--class", "BE", "--name", name, "--", "sh", "-c", "echo ready; exec sleep 1000")
	keeper := keeperOf(t, name)
	if err := errors.Join(syscall.Kill(keeper, syscall.SIGKILL), c.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	text, err := berthProcess(t, "restore").CombinedOutput()
	if err != nil {
		t.Errorf("restore: %v: %s", err, text)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/berth*/" + name); len(left) > 0 {
		t.Errorf("left: %v; restore said %s", left, text)
	}
}

// TestRunKeepsNothingOpen has a keeper whose caller has a file open, as with a lock
// or a pipe to a logger: it must not outlive the command there.
func TestRunKeepsNothingOpen(t *testing.T) {
	t.Parallel()
	needsNode(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "held"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	name := workloadName(t)
	c := berthProcess(t, "run", "-q", "--name", name, "--", "sh", "-c", "echo ready; exec sleep 1000")
	c.ExtraFiles = []*os.File{file}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	holds := func(pid int) bool {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil || len(fds) == 0 {
			t.Fatalf("files of process %d: %v", pid, err)
		}
		return slices.ContainsFunc(fds, func(fd string) bool {
			to, _ := os.Readlink(fd)
			return to == file.Name()
		})
	}
	if !holds(c.Process.Pid) {
		t.Error("the command does not have the file")
	}
	if holds(keeperOf(t, name)) {
		t.Error("the keeper has the file, too")
	}
}

// keeperOf finds the process that keeps a workload.
func keeperOf(t *testing.T, name string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), "__keep\x00--fork=false\x00") && strings.Contains(string(text), "\x00"+name+"\x00") {
			pid, err := strconv.Atoi(strings.Split(file, "/")[2])
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("no process keeps %s", name)
	return 0
}

// TestRunUnprivileged has a user without any rights to control groups.
func TestRunUnprivileged(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to become nobody")
	}
	needsNode(t)
	const nobody = 65534
	dir, err := os.MkdirTemp("", "berth-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	as := func(args ...string) *exec.Cmd {
		c := berthProcess(t, args...)
		c.Dir, c.Env = "/", append(c.Env, "XDG_RUNTIME_DIR="+dir)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return c
	}
	var out, errs bytes.Buffer
	c := as("run", "--cpuset", "0", "--class", "BE", "--memory", "1Gi", "--", "cat", "/proc/self/status")
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	if err != nil || !strings.Contains(out.String(), "\nCpus_allowed_list:\t0\n") {
		t.Errorf("%v: %s%s", err, out.String(), errs.String())
	}
	if lines := strings.Split(strings.TrimSpace(errs.String()), "\n"); len(lines) != 1 ||
		!strings.HasPrefix(lines[0], "berth: warning: by CPU affinity") || !strings.Contains(lines[0], "not in force") {
		t.Errorf("warnings: %q", lines)
	}
	if text, err := as("ps").CombinedOutput(); err != nil {
		t.Errorf("ps: %v: %s", err, text)
	}
}

// pseudoTerminal is one until the test ends: what a program writes to its side, the terminal reads.
func pseudoTerminal(t *testing.T) (terminal, side *os.File) {
	t.Helper()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { terminal.Close() })
	fd := int(terminal.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	side, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { side.Close() })
	return terminal, side
}

// An error that has a name of somebody else's choice has no sequence that a terminal obeys.
func TestErrorOnTerminal(t *testing.T) {
	t.Parallel()
	terminal, side := pseudoTerminal(t)
	const name = "/no\x1b[2J\x1b[31m\rsuch"
	code := run(t.Context(), strings.NewReader(""), side, side, []string{"guard", "--replay", name})
	seen := expectOn(t, terminal, "no such file")
	if code != exitError || !strings.Contains(seen, `/no\u001b[2J\u001b[31m such`) || strings.Contains(seen, "\x1b") {
		t.Errorf("status %d: %q", code, seen)
	}
}

// TestRunOnTerminal stops, continues and interrupts a command as a shell's user
// does.
func TestRunOnTerminal(t *testing.T) {
	t.Parallel()
	needsNode(t)
	terminal, side := pseudoTerminal(t)
	// Field 5 is the process group, 8 that of the terminal's foreground.
	c := berthProcess(t, "run", "-q", "--", "sh", "-c", `trap 'echo interrupted; exit 42' INT
test -t 0 && test -t 1 && test "$(cut -d' ' -f5 /proc/$$/stat)" = "$(cut -d' ' -f8 /proc/$$/stat)" && echo foreground
while :; do sleep 0.05; done`)
	c.Stdin, c.Stdout, c.Stderr = side, side, side
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	expectOn(t, terminal, "foreground")
	state := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))[0]
	}
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it stops", func() bool { return state() == "T" })
	if err := c.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it goes on", func() bool { return state() != "T" })
	if _, err := terminal.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	expectOn(t, terminal, "interrupted")
	if got := status(c.Wait()); got != 42 {
		t.Errorf("status %d, want 42", got)
	}
}

// expectOn reads from a terminal until a word comes, and returns what it has read.
func expectOn(t *testing.T, terminal *os.File, word string) string {
	t.Helper()
	if err := terminal.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Logf("no deadline: %v", err)
	}
	var seen []byte
	for !bytes.Contains(seen, []byte(word)) {
		buf := make([]byte, 256)
		n, err := terminal.Read(buf)
		if seen = append(seen, buf[:n]...); err != nil {
			t.Fatalf("waiting for %q: %v after %q", word, err, seen)
		}
	}
	return string(seen)
}

// elsewhere is what a node says that may not place beside another one, such as that of a kubelet
// in a group of its own.
const elsewhere = "another node gives their CPUs away"

// Not parallel: what it is about is that the host has one node.
func TestRunBesideAnotherState(t *testing.T) {
	needsHost(t)
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	name := workloadName(t)
	first := berthProcess(t, "run", "--state", a, "-q", "--name", name, "--", "sh", "-c", "echo placed; exec sleep 600")
	var refusal bytes.Buffer
	first.Stderr = &refusal
	placed, err := first.StdoutPipe()
	if err == nil {
		err = first.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Process.Kill(); _ = first.Wait() })
	if _, err := placed.Read(make([]byte, 7)); err != nil {
		err := first.Wait()
		if strings.Contains(refusal.String(), elsewhere) {
			t.Skipf("needs the host's control groups to itself: %s", &refusal)
		}
		t.Fatalf("the first: %v: %s", err, &refusal)
	}
	for _, args := range [][]string{{"--state", b}, {"--state", b, "--dry-run"}} {
		out, err := berthProcess(t, append(append([]string{"run"}, args...), "--", "true")...).CombinedOutput()
		if status(err) != exitNotRun || !strings.Contains(string(out), strconv.Quote(a)) {
			t.Errorf("run %v: %v: %s", args, err, out)
		}
	}
	if out, err := berthProcess(t, "release", "--state", a, "--kill", name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := berthProcess(t, "run", "-q", "--state", b, "--", "true").CombinedOutput(); err != nil {
		if text := string(out); strings.Contains(text, elsewhere) && !strings.Contains(text, strconv.Quote(a)) {
			t.Skipf("needs the host's control groups to itself: %s", out)
		}
		t.Errorf("once the other holds nothing: %v: %s", err, out)
	}
	waitFor(t, "it is released", func() bool {
		out, _ := berthProcess(t, "ps", "--state", b, "--interval", "10ms").CombinedOutput()
		return strings.Contains(string(out), "no workloads")
	})
	out, err := berthProcess(t, "ps", "--state", b, "--socket", filepath.Join(b, "s")).CombinedOutput()
	if status(err) != exitUsage {
		t.Errorf("both state and socket: %v: %s", err, out)
	}
}
