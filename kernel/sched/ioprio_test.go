package sched

import (
	"errors"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/kernel"
)

func TestPriorityText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"none": 0, "idle": 3 << 13, "realtime/0": 1 << 13, "best-effort/7": 2<<13 | 7} {
		n, err := ParseIOPriority(text)
		if err != nil || n != want || ioText(n) != text {
			t.Errorf("%s: %d, %v, %s", text, n, err, ioText(n))
		}
	}
	for _, text := range []string{"", "best-effort", "best-effort/8", "best-effort/-1", "best-effort/07", "idle/0", "none/1", "low", "realtime/"} {
		if n, err := ParseIOPriority(text); err == nil {
			t.Errorf("%q: %d", text, n)
		}
	}
	for name, tid := range map[string]int{"proc/12@7/sched.io": 12, "proc/0@7/sched.io": 0, "proc/12/sched.io": 0, "x/proc/12@7/sched.io": 0, "proc/12@7/sched.nice": 0, "proc/12@x/sched.io": 0} {
		if got, ok := IOPriorityOf(name); ok != (tid != 0) || ok && got != tid {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
}

// A class of a kernel to come is not taken for one that there is.
func TestPriorityOfLaterKernel(t *testing.T) {
	t.Parallel()
	for _, class := range []int{4, 5, 7} {
		text := ioText(class<<13 | 2)
		if n, err := ParseIOPriority(text); err == nil {
			t.Errorf("class %d is %q, which is %d", class, text, n)
		}
	}
}

func FuzzParseIOPriority(f *testing.F) {
	for _, seed := range []string{"idle", "best-effort/4", "realtime/9", "none/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseIOPriority(text); err == nil && ioText(n) != strings.TrimSpace(text) {
			t.Errorf("%q is %d, which is %s", text, n, ioText(n))
		}
	})
}

// A priority is written, read back, noted and undone as a file is, also by whoever finds the
// log; a thread that has ended meanwhile is gone, and one of its number is left alone.
func TestIOPriorityOfProcess(t *testing.T) {
	t.Parallel()
	live, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	root := Over(live)
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	pid := sleep.Process.Pid
	name := IOPriorityFile(pid, started(pid))
	step := kernel.Step{Path: name, Value: "best-effort/6"}
	before, _, err := root.Shows(step)
	if err != nil {
		t.Fatal(err)
	}
	log, err := kernel.OpenUndoLog(root, filepath.Join(t.TempDir(), "log"), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := kernel.Apply(root, kernel.Plan{step, {Path: name, Value: "idle"}}, log); err != nil {
		t.Fatal(err)
	}
	if now, same, err := root.Shows(kernel.Step{Path: name, Value: "idle"}); !same {
		t.Fatalf("priority: %q, %v", now, err)
	}
	if n, err := ioPriority(pid); err != nil || n&^ioHints != 3<<13 {
		t.Errorf("the kernel has %x, %v, want idle", n, err)
	}
	other := kernel.Step{Path: IOPriorityFile(pid, started(pid)+"1"), Value: "idle"}
	if _, err := kernel.Apply(root, kernel.Plan{other}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another thread of the number: %v", err)
	}
	if _, err := kernel.Apply(root, kernel.Plan{{Path: name, Value: "low"}}, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no priority: %v", err)
	}
	all := func(kernel.Step) bool { return true }
	items, err := log.Undo(all)
	if now, _, _ := root.Shows(step); err != nil || now != before || len(items) != 1 || items[0].Outcome != kernel.Restored {
		t.Errorf("undone: %v, %v; it is %q, was %q", items, err, now, before)
	}
	if _, err := kernel.Apply(root, kernel.Plan{step}, log); err != nil {
		t.Fatal(err)
	}
	_ = sleep.Process.Kill()
	_ = sleep.Wait()
	if items, err := log.Undo(all); err != nil || len(items) != 1 || items[0].Outcome != kernel.Gone {
		t.Errorf("of a process that has ended: %v, %v", items, err)
	}
	if _, _, err := root.Shows(step); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a process that has ended: %v", err)
	}
}

// A thread that has ended, and whose number another one has by now, is neither changed nor
// given anything back; what the other one had is noted anew.
func TestIOPriorityOfAnother(t *testing.T) {
	t.Parallel()
	p, root := newFake(t)
	log, err := kernel.OpenUndoLog(root, filepath.Join(t.TempDir(), "log"), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	const first, second = "100", "200"
	for _, c := range []struct{ start, priority string }{{first, "none"}, {second, "best-effort/1"}} {
		p.start(t, c.start, 12)
		p.file(t, "proc/12/ioprio", c.priority+"\n")
		if _, err := kernel.Apply(root, kernel.Plan{{Path: IOPriorityFile(12, c.start), Value: "idle"}}, log); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(want string) {
		t.Helper()
		if now, _, err := root.Shows(kernel.Step{Path: IOPriorityFile(12, second)}); err != nil || now != want {
			t.Errorf("it is %q, %v; want %q", now, err, want)
		}
	}
	if log.Wrote(IOPriorityFile(12, first), "idle") || !log.Wrote(IOPriorityFile(12, second), "idle") {
		t.Error("what was written is not of the thread that there is now")
	}
	items, err := log.Undo(func(s kernel.Step) bool { return s.Path == IOPriorityFile(12, first) })
	if err != nil || len(items) != 1 || items[0].Outcome != kernel.Gone {
		t.Errorf("of the one that has ended: %v, %v", items, err)
	}
	shows("idle")
	items, err = log.Undo(func(kernel.Step) bool { return true })
	if err != nil || len(items) != 1 || items[0].Outcome != kernel.Restored {
		t.Errorf("of the other one: %v, %v", items, err)
	}
	shows("best-effort/1")
}

// What hints at the length of a thread's operations is kept (Linux 6.5).
func TestIOPriorityHints(t *testing.T) {
	t.Parallel()
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	pid := sleep.Process.Pid
	const hinted = 2<<13 | 3<<3 | 4 // best-effort/4, with a hint
	if _, _, errno := syscall.Syscall(syscall.SYS_IOPRIO_SET, whoProcess, uintptr(pid), hinted); errno != 0 {
		t.Skipf("the kernel has no hints: %v", errno)
	}
	live, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	root, name := Over(live), IOPriorityFile(pid, started(pid))
	if err := root.WriteFile(name, "best-effort/7\n"); err != nil {
		t.Fatal(err)
	}
	if n, err := ioPriority(pid); err != nil || n != 2<<13|3<<3|7 {
		t.Errorf("it is %#x, %v", n, err)
	}
	if text, err := fs.ReadFile(root.FS(), name); err != nil || string(text) != "best-effort/7\n" {
		t.Errorf("text %q, %v", text, err)
	}
}
