package kernel

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestPriorityText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"none": 0, "idle": 3 << 13, "realtime/0": 1 << 13, "best-effort/7": 2<<13 | 7} {
		n, err := ParsePriority(text)
		if err != nil || n != want || priorityText(n) != text {
			t.Errorf("%s: %d, %v, %s", text, n, err, priorityText(n))
		}
	}
	for _, text := range []string{"", "best-effort", "best-effort/8", "best-effort/-1", "best-effort/07", "idle/0", "none/1", "low", "realtime/"} {
		if n, err := ParsePriority(text); err == nil {
			t.Errorf("%q: %d", text, n)
		}
	}
	for name, tid := range map[string]int{"proc/12/ioprio": 12, "proc/0/ioprio": 0, "proc/self/ioprio": 0, "x/proc/12/ioprio": 0, "proc/12/stat": 0, "proc/1/task/2/ioprio": 0} {
		if got, ok := PriorityOf(name); ok != (tid != 0) || ok && got != tid {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
}

// A class of a kernel to come is not taken for one that there is.
func TestPriorityOfLaterKernel(t *testing.T) {
	t.Parallel()
	for _, class := range []int{4, 5, 7} {
		text := priorityText(class<<13 | 2)
		if n, err := ParsePriority(text); err == nil {
			t.Errorf("class %d is %q, which is %d", class, text, n)
		}
	}
}

func FuzzParsePriority(f *testing.F) {
	for _, seed := range []string{"idle", "best-effort/4", "realtime/9", "none/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParsePriority(text); err == nil && priorityText(n) != strings.TrimSpace(text) {
			t.Errorf("%q is %d, which is %s", text, n, priorityText(n))
		}
	})
}

// A priority is written, read back, noted and undone as a file is, also by whoever finds the
// log; a thread that has ended meanwhile is gone, and one of its number is left alone.
func TestPriorityOfProcess(t *testing.T) {
	t.Parallel()
	root, err := Open("/")
	if err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	pid := sleep.Process.Pid
	name, start := PriorityFile(pid), root.startTime(strconv.Itoa(pid))
	step := Step{Path: name, Value: "best-effort/6", Start: start}
	before, _, err := root.Shows(step)
	if err != nil {
		t.Fatal(err)
	}
	log, err := OpenUndoLog(root, filepath.Join(t.TempDir(), "log"), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := Apply(root, Plan{step, {Path: name, Value: "idle", Start: start}}, log); err != nil {
		t.Fatal(err)
	}
	if now, same, err := root.Shows(Step{Path: name, Value: "idle"}); !same {
		t.Fatalf("priority: %q, %v", now, err)
	}
	other := Step{Path: name, Value: "idle", Start: start + "1"}
	if _, err := Apply(root, Plan{other}, nil); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("another thread of the number: %v", err)
	}
	if _, err := Apply(root, Plan{{Path: name, Value: "low", Start: start}}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no priority: %v", err)
	}
	items, err := log.Undo(func(Step) bool { return true })
	if now, _, _ := root.Shows(step); err != nil || now != before || len(items) != 1 || items[0].Outcome != Restored {
		t.Errorf("undone: %v, %v; it is %q, was %q", items, err, now, before)
	}
	if _, err := Apply(root, Plan{step}, log); err != nil {
		t.Fatal(err)
	}
	_ = sleep.Process.Kill()
	_ = sleep.Wait()
	if items, err := log.Undo(func(Step) bool { return true }); err != nil || len(items) != 1 || items[0].Outcome != Gone {
		t.Errorf("of a process that has ended: %v, %v", items, err)
	}
	if _, _, err := root.Shows(step); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a process that has ended: %v", err)
	}
}

// A thread that has ended, and whose number another one has by now, is neither changed nor
// given anything back; what the other one had is noted anew.
func TestPriorityOfAnother(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	start := func(at, priority string) {
		t.Helper()
		put("proc/12/stat", "12 (x) S"+strings.Repeat(" 0", 18)+" "+at+"\n")
		put("proc/12/ioprio", priority+"\n")
	}
	put("proc/sys/kernel/random/boot_id", "boot\n")
	put("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	log, err := OpenUndoLog(root, filepath.Join(t.TempDir(), "log"), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	shows := func(want string) {
		t.Helper()
		if got, err := root.read(PriorityFile(12)); err != nil || got != want {
			t.Errorf("it is %q, %v; want %q", got, err, want)
		}
	}
	for _, c := range []struct{ at, priority string }{{"100", "none"}, {"200", "best-effort/1"}} {
		start(c.at, c.priority)
		if _, err := Apply(root, Plan{{Path: PriorityFile(12), Value: "idle", Start: c.at}}, log); err != nil {
			t.Fatal(err)
		}
	}
	if items, err := log.Undo(func(s Step) bool { return s.Start == "100" }); err != nil || len(items) != 1 || items[0].Outcome != Gone {
		t.Errorf("of the one that has ended: %v, %v", items, err)
	}
	shows("idle")
	if items, err := log.Undo(func(Step) bool { return true }); err != nil || len(items) != 1 || items[0].Outcome != Restored {
		t.Errorf("of the other one: %v, %v", items, err)
	}
	shows("best-effort/1")
}

// What hints at the length of a thread's operations is kept (Linux 6.5).
func TestPriorityHints(t *testing.T) {
	t.Parallel()
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	pid, name := sleep.Process.Pid, PriorityFile(sleep.Process.Pid)
	const hinted = 2<<13 | 3<<3 | 4 // best-effort/4, with a hint
	if _, _, errno := syscall.Syscall(syscall.SYS_IOPRIO_SET, whoProcess, uintptr(pid), hinted); errno != 0 {
		t.Skipf("the kernel has no hints: %v", errno)
	}
	if err := writePriority(name, pid, "best-effort/7"); err != nil {
		t.Fatal(err)
	}
	if n, err := getPriority(name, pid); err != nil || n != 2<<13|3<<3|7 {
		t.Errorf("it is %#x, %v", n, err)
	}
	if text, err := readPriority(name, pid); err != nil || string(text) != "best-effort/7\n" {
		t.Errorf("text %q, %v", text, err)
	}
}
