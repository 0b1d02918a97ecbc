package sched

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
)

func sleeper(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

func get(t *testing.T, tid int) State {
	t.Helper()
	s, err := Get(tid)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSetAndUndo(t *testing.T) {
	t.Parallel()
	pid := sleeper(t)
	before := get(t, pid)
	first, ok := before.Affinity.First()
	if !ok {
		t.Fatal("a process without CPUs")
	}
	one, nice := cpuset.MustOf(first), before.Nice+1
	tests := map[string]struct {
		attr       Attr
		want       State
		privileged bool // to set or to undo
	}{
		"nothing":  {Attr{}, before, false},
		"affinity": {Attr{Affinity: one}, State{Affinity: one, Policy: Other, Nice: before.Nice}, false},
		"batch":    {Attr{Policy: Batch}, State{Affinity: before.Affinity, Policy: Batch, Nice: before.Nice}, false},
		"idle":     {Attr{Policy: Idle, Affinity: one}, State{Affinity: one, Policy: Idle, Nice: before.Nice}, false},
		"nice":     {Attr{Nice: &nice}, State{Affinity: before.Affinity, Policy: Other, Nice: nice}, true},
		"fifo":     {Attr{Policy: FIFO, Priority: 3}, State{Affinity: before.Affinity, Policy: FIFO, Priority: 3}, true},
		"rr":       {Attr{Policy: RR, Priority: 99}, State{Affinity: before.Affinity, Policy: RR, Priority: 99}, true},
	}
	for name, tt := range tests {
		undo, err := Set(pid, tt.attr)
		if tt.privileged && errors.Is(err, os.ErrPermission) {
			t.Logf("%s: not permitted here: %v", name, err)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := get(t, pid)
		if tt.attr.Policy.realTime() {
			got.Nice = 0
		}
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
		if err := undo(); err != nil {
			oneWay := tt.attr.Policy == Idle || tt.attr.Nice != nil
			if !oneWay || !errors.Is(err, os.ErrPermission) {
				t.Errorf("%s: undo: %v", name, err)
			}
			// The next case needs a process of its own.
			pid = sleeper(t)
			continue
		}
		if got := get(t, pid); got != before {
			t.Errorf("%s: after undo %+v, want %+v", name, got, before)
		}
	}
}

// A thread is changed, and none beside it.
func TestSetThread(t *testing.T) {
	t.Parallel()
	other, done := make(chan int), make(chan bool)
	defer close(done)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		other <- unix.Gettid()
		<-done
	}()
	beside := <-other
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := get(t, 0)
	undo, err := SetThread(0, Attr{Policy: Batch})
	if err != nil {
		t.Fatal(err)
	}
	if own, theirs := get(t, 0).Policy, get(t, beside).Policy; own != Batch || theirs != before.Policy {
		t.Errorf("%v, beside it %v, want SCHED_BATCH, %v", own, theirs, before.Policy)
	}
	if err := undo(); err != nil || get(t, 0) != before {
		t.Errorf("undone: %v, %v, want %v", err, get(t, 0), before)
	}
	if _, err := SetThread(0, Attr{Policy: FIFO}); err == nil || get(t, 0) != before {
		t.Errorf("SCHED_FIFO without a priority: %v, %v", err, get(t, 0))
	}
}

// TestAllThreads changes a process of several threads: this one's copy.
func TestAllThreads(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BERTH_TEST_THREADS=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		_ = cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	tids, err := threads(os.DirFS("/"), pid)
	if err != nil || len(tids) < 8 {
		t.Fatalf("Threads: %v, %v, want at least 8", tids, err)
	}
	undo, err := Set(pid, Attr{Policy: Batch})
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range tids {
		if got := get(t, tid); got.Policy != Batch {
			t.Errorf("thread %d: %v, want SCHED_BATCH", tid, got)
		}
	}
	// One thread is someone else's by now and stays.
	if err := setPolicy(tids[3], Idle, 0); err != nil {
		t.Fatal(err)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	for i, tid := range tids {
		want := Other
		if i == 3 {
			want = Idle
		}
		if got := get(t, tid); got.Policy != want {
			t.Errorf("thread %d after undo: %v, want %v", tid, got, want)
		}
	}
}

func TestMain(m *testing.M) {
	if os.Getenv("BERTH_TEST_THREADS") == "" {
		os.Exit(m.Run())
	}
	for range 8 {
		started := make(chan bool)
		go func() {
			runtime.LockOSThread()
			close(started)
			select {}
		}()
		<-started
	}
	os.Stdout.WriteString("x")
	os.Stdin.Read(make([]byte, 1))
}

func TestSetRefuses(t *testing.T) {
	t.Parallel()
	pid := sleeper(t)
	before := get(t, pid)
	nice := 20
	for name, a := range map[string]Attr{
		"no priority":      {Policy: FIFO},
		"priority beyond":  {Policy: RR, Priority: 100},
		"priority of none": {Policy: Other, Priority: 1},
		"deadline":         {Policy: Deadline},
		"no policy":        {Policy: 99},
		"nice beyond":      {Nice: &nice},
		"no such CPU":      {Affinity: cpuset.MustOf(cpuset.Limit - 1)},
	} {
		if _, err := Set(pid, a); err == nil || !strings.Contains(err.Error(), "set scheduling of process") {
			t.Errorf("%s: %v, want an error", name, err)
		}
		if got := get(t, pid); got != before {
			t.Errorf("%s: %+v, was %+v", name, got, before)
		}
	}
	if _, err := Set(1<<22+1, Attr{Policy: Batch}); !errors.Is(err, unix.ESRCH) {
		t.Errorf("no such process: %v", err)
	}
	if _, err := Get(1<<22 + 1); !errors.Is(err, unix.ESRCH) {
		t.Errorf("no such thread: %v", err)
	}
}

func TestUndoOfTheDead(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	undo, err := Set(cmd.Process.Pid, Attr{Policy: Batch})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	tests := []struct {
		what string
		err  error
		says string
	}{
		{"affinity 9", unix.EINVAL, "online"},
		{"nice -5", unix.EACCES, "CAP_SYS_NICE"},
		{"SCHED_FIFO 50", unix.EPERM, "RLIMIT_RTPRIO"},
		{"SCHED_FIFO 50", unix.ESRCH, ""},
	}
	for _, tt := range tests {
		err := explain(tt.what, os.Getpid(), tt.err)
		if !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.what) || !strings.Contains(err.Error(), tt.says) {
			if tt.what == "SCHED_FIFO 50" && strings.Contains(err.Error(), "cpu.rt_runtime_us") {
				continue // this test runs in a v1 cpu group
			}
			t.Errorf("%v, want %q", err, tt.says)
		}
	}
}

// TestRealTimeInGroup has a v1 cpu group, which gets no real-time run time
// under CONFIG_RT_GROUP_SCHED.
func TestRealTimeInGroup(t *testing.T) {
	t.Parallel()
	dir := fmt.Sprintf("/sys/fs/cgroup/cpu/berth-test-%d-sched", os.Getpid())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no v1 cpu group can be made here: %v", err)
	}
	defer func() {
		for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
			if os.Remove(dir) == nil {
				return
			}
		}
		t.Errorf("%s is left", dir)
	}()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if text, err := os.ReadFile(dir + "/cpu.rt_runtime_us"); err != nil || string(text) != "0\n" {
		t.Skipf("cpu.rt_runtime_us is %q (%v): no CONFIG_RT_GROUP_SCHED", text, err)
	}
	pid := cmd.Process.Pid
	if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
	_, err := Set(pid, Attr{Policy: FIFO, Priority: 1})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "cpu.rt_runtime_us of cgroup "+strings.TrimPrefix(dir, "/sys/fs/cgroup/cpu")+" is 0") {
		t.Errorf("Set: %v", err)
	}
}

func TestStateString(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]State{
		"SCHED_FIFO 50":      {Policy: FIFO, Priority: 50},
		"SCHED_OTHER":        {Policy: Other},
		"SCHED_OTHER nice 5": {Policy: Other, Nice: 5},
		"SCHED_IDLE":         {Policy: Idle, Nice: 5},
		"SCHED_DEADLINE":     {Policy: Deadline},
		"policy(99)":         {Policy: 99},
	} {
		if got := s.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
