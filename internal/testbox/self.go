package testbox

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/fork"
)

// T is what a test gives: a *testing.T.
type T interface {
	Helper()
	Name() string
	Context() context.Context
	Cleanup(func())
	Log(...any)
	Errorf(string, ...any)
	Fatal(...any)
	Skip(...any)
}

// Self is this test binary once more, in a role that an environment variable names, and in new
// namespaces (CLONE_NEWNET, ...). fork.Start starts it.
func Self(t T, variable, role string, namespaces uintptr, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), variable+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	cmd.Stderr = os.Stderr
	return cmd
}

// Again runs the test that calls in new namespaces, in a role, and comes to what that comes to. It
// is skipped where there can be none.
func Again(t T, variable, role string, namespaces uintptr) {
	t.Helper()
	cmd := Self(t, variable, role, namespaces, "-test.run=^"+t.Name()+"$", "-test.v")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := fork.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	switch {
	case errors.Is(err, syscall.EPERM):
		t.Skip("no namespaces: ", err)
	case err != nil:
		t.Errorf("%v\n%s", err, &out)
	case strings.Contains(out.String(), "--- SKIP"):
		t.Skip(out.String())
	}
	t.Log(out.String())
}

// Start starts a process, which ends with the test, and returns what it says after its first line,
// which it waits for.
func Start(t T, cmd *exec.Cmd) *bufio.Scanner {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = fork.Start(cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	said := bufio.NewScanner(out)
	if !said.Scan() {
		t.Fatal("the process ended")
	}
	return said
}

// Group makes a control group, as a path without the first slash, which is removed when the test
// and its processes have ended. Where there can be none the test is skipped.
func Group(t T, dir string) {
	t.Helper()
	if err := os.Mkdir("/"+dir, 0o755); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { RemoveGroup(t, "/"+dir) })
}

// RemoveGroup removes a control group of a test by its directory, if it is there, with the groups and the processes
// in it: a process leaves some time after it was killed, later still in a group that is idle, and the children of a
// shell outlive it.
func RemoveGroup(t T, dir string) {
	t.Helper()
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			RemoveGroup(t, filepath.Join(dir, e.Name()))
		}
	}
	var err error
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if err = os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		pids, _ := os.ReadFile(dir + "/cgroup.procs")
		for text := range strings.FieldsSeq(string(pids)) {
			if pid, err := strconv.Atoi(text); err == nil && pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	t.Errorf("left behind: %v", err)
}
