package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
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

// needsNode skips a test where commands cannot be placed.
func needsNode(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes and, as root, makes control groups")
	}
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
	if err := os.WriteFile(script, []byte("exit 9\n"), 0o700); err != nil {
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
	for range 600 {
		if ok() {
			return
		}
		time.Sleep(50 * time.Millisecond)
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

// TestRunLeavesNothing kills a command and looks for what is left.
func TestRunLeavesNothing(t *testing.T) {
	t.Parallel()
	needsGroups(t)
	name := workloadName(t)
	c := berthProcess(t, "run", "-q", "--name", name, "--", "sh", "-c", "sleep 1000 & echo ready; wait")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	gone := func() bool {
		text, err := berthProcess(t, "explain", name).CombinedOutput()
		return status(err) == exitError && strings.Contains(string(text), "holds nothing")
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
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/berth/" + name); len(left) > 0 {
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
