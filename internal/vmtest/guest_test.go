package vmtest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// openKit returns the kit and a job without a command, or skips.
func openKit(t *testing.T) (*Kit, Job) {
	t.Helper()
	if os.Getenv("BERTH_TEST_E2E") == "" {
		t.Skip("guests run where BERTH_TEST_E2E is set: make e2e")
	}
	kit, err := Open("../../.cache/e2e")
	if err != nil {
		t.Skipf("no kit: make e2e-fetch (%v)", err)
	}
	kernel, ok := kit.Kernel("6.12")
	if !ok {
		t.Fatal("the kit has no kernel 6.12")
	}
	vminit, err := Build(t.Context(), t.TempDir(), "internal/vmtest/vminit", false)
	if err != nil {
		t.Fatal(err)
	}
	return kit, Job{Kernel: kernel, Init: vminit, Files: map[string]string{"/bin/sh": kit.Busybox}}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	kit, job := openKit(t)
	for _, tc := range []struct {
		script, output string
		exit           int
	}{
		{"echo $WORD; exit 7", "hello\n", 7},
		{"kill -9 $$", "", 128 + 9},
	} {
		var output bytes.Buffer
		job := job
		job.Args, job.Env, job.Output = []string{"/bin/sh", "-c", tc.script}, []string{"WORD=hello"}, &output
		result, err := kit.Run(t.Context(), Machine{}, job)
		if err != nil {
			t.Fatal(err)
		}
		if result.Exit != tc.exit || output.String() != tc.output {
			t.Errorf("%s: exit status %d and output %q, want %d and %q", tc.script, result.Exit, output.String(), tc.exit, tc.output)
		}
	}
}

// TestFailures breaks guests in each way and expects to be told.
func TestFailures(t *testing.T) {
	t.Parallel()
	kit, job := openKit(t)
	for _, tc := range []struct {
		name    string
		breakIt func(*Kit, *Machine, *Job)
		want    error
		console string
	}{
		{"panic", func(_ *Kit, _ *Machine, j *Job) {
			j.Args = []string{"/bin/sh", "-c", "echo c > /proc/sysrq-trigger"}
		}, ErrPanic, "sysrq"},
		{"spin", func(_ *Kit, _ *Machine, j *Job) {
			j.Args = []string{"/bin/sh", "-c", "while :; do :; done"}
			j.CPU = 5 * time.Second
		}, ErrTimeout, ""},
		{"hang", func(_ *Kit, _ *Machine, j *Job) {
			j.Args = []string{"/bin/sh", "-c", "sleep 1000"}
			j.Timeout = 5 * time.Second
		}, ErrTimeout, ""},
		{"silent", func(_ *Kit, _ *Machine, j *Job) {
			// Another PID 1, which powers off at once.
			j.Files["/bin/poweroff"] = j.Files["/bin/sh"]
			j.Boot = "rdinit=/bin/poweroff -- -f"
		}, ErrSilent, ""},
		{"died", func(_ *Kit, _ *Machine, j *Job) {
			j.Args = []string{"/bin/sh", "-c", "poweroff -f"}
		}, ErrDied, ""},
		{"no such command", func(_ *Kit, _ *Machine, j *Job) {
			j.Args = []string{"/bin/absent"}
		}, ErrDied, "no such file"},
		{"QEMU refuses", func(k *Kit, _ *Machine, _ *Job) {
			k.Firmware = []string{"/absent"}
		}, ErrRefused, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			kit, m, job := *kit, Machine{}, job
			job.Files = maps.Clone(job.Files)
			job.Args = []string{"/bin/sh", "-c", "exit 0"}
			tc.breakIt(&kit, &m, &job)
			result, err := kit.Run(t.Context(), m, job)
			var guest *GuestError
			if !errors.Is(err, tc.want) || !errors.As(err, &guest) {
				t.Fatalf("Run = %+v, %v; want %v", result, err, tc.want)
			}
			if !strings.Contains(guest.Console, tc.console) {
				t.Errorf("console %q, want %q in it", guest.Console, tc.console)
			}
		})
	}
}

// TestKilled kills QEMU from outside.
func TestKilled(t *testing.T) {
	t.Parallel()
	kit, job := openKit(t)
	job.Args = []string{"/bin/sh", "-c", "echo ready; sleep 1000"}
	// The name of the image tells this guest from those of parallel tests.
	job.Kernel.Image = link(t, job.Kernel.Image)
	job.Output = writerFunc(func([]byte) {
		for _, pid := range children(t, os.Getpid(), job.Kernel.Image) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	if _, err := kit.Run(t.Context(), Machine{}, job); !errors.Is(err, ErrKilled) {
		t.Errorf("Run = %v, want %v", err, ErrKilled)
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	kit, job := openKit(t)
	ctx, cancel := context.WithCancel(t.Context())
	job.Args = []string{"/bin/sh", "-c", "echo ready; sleep 1000"}
	job.Output = writerFunc(func([]byte) { cancel() })
	if _, err := kit.Run(ctx, Machine{}, job); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v, want %v", err, context.Canceled)
	}
}

// TestQEMUDiesWithTest kills a test process that runs a guest and expects the
// guest's QEMU to be gone.
func TestQEMUDiesWithTest(t *testing.T) {
	t.Parallel()
	if image := os.Getenv("VMTEST_VICTIM"); image != "" {
		kit, job := openKit(t)
		job.Kernel.Image, job.Args = image, []string{"/bin/sh", "-c", "sleep 1000"}
		kit.Run(t.Context(), Machine{}, job)
		return
	}
	_, job := openKit(t)
	image := link(t, job.Kernel.Image)
	victim := exec.Command(os.Args[0], "-test.run=^TestQEMUDiesWithTest$")
	victim.Env = append(os.Environ(), "VMTEST_VICTIM="+image, "TMPDIR="+t.TempDir()) // a killed test leaves its own
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var qemu []int
	for len(qemu) == 0 {
		time.Sleep(10 * time.Millisecond)
		if t.Context().Err() != nil {
			return
		}
		qemu = children(t, victim.Process.Pid, image)
	}
	victim.Process.Kill()
	victim.Wait()
	for syscall.Kill(qemu[0], 0) == nil && state(qemu[0]) != "Z" {
		time.Sleep(10 * time.Millisecond) // to the test's own timeout
	}
}

// link returns another name of a file, whose directory is this test's own.
func link(t *testing.T, file string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "vmlinuz")
	if err := os.Symlink(file, name); err != nil {
		t.Fatal(err)
	}
	return name
}

// children returns the child processes of a process whose command line holds arg.
func children(t *testing.T, parent int, arg string) []int {
	t.Helper()
	lists, err := filepath.Glob("/proc/" + strconv.Itoa(parent) + "/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may be gone
		for _, field := range strings.Fields(string(text)) {
			cmdline, _ := os.ReadFile("/proc/" + field + "/cmdline")
			if pid, err := strconv.Atoi(field); err == nil && bytes.Contains(cmdline, []byte(arg)) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// state returns a process's state, as in proc(5), "" where it is gone.
func state(pid int) string {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(text), ") ")
	first, _, _ := strings.Cut(rest, " ")
	return first
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
