package sched

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/knob"
)

// fakeProcesses are processes that a test simulates: a directory tree and how threads are scheduled.
type fakeProcesses struct {
	kernel.Files
	dir string

	mu    sync.Mutex
	state map[int]State
	fails error // of each change
}

func newFake(t *testing.T) (*fakeProcesses, *kernel.Root) {
	t.Helper()
	dir := t.TempDir()
	root, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	p := &fakeProcesses{Files: root.Files, dir: dir, state: map[int]State{}}
	p.file(t, "proc/self/mountinfo", "20 1 0:20 / /proc rw - proc proc rw\n")
	p.file(t, "proc/sys/kernel/random/boot_id", "x\n")
	return p, Over(kernel.NewRoot(dir, p))
}

func (p *fakeProcesses) file(t *testing.T, name, text string) {
	t.Helper()
	name = filepath.Join(p.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// start has a process with threads, the first of which has its number.
func (p *fakeProcesses) start(t *testing.T, start string, tids ...int) {
	t.Helper()
	for _, tid := range tids {
		stat := fmt.Sprintf("%d (x) R 1%s %d 0 %s 0\n", tid, strings.Repeat(" 0", 15), len(tids), start)
		p.file(t, fmt.Sprintf("proc/%d/task/%d/stat", tids[0], tid), stat)
		if tid == tids[0] {
			p.file(t, fmt.Sprintf("proc/%d/stat", tid), stat)
		}
		p.mu.Lock()
		if _, ok := p.state[tid]; !ok {
			p.state[tid] = State{Affinity: cpuset.MustParse("0-3"), Policy: Other}
		}
		p.mu.Unlock()
	}
}

func (p *fakeProcesses) end(t *testing.T, pid int) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(p.dir, "proc", strconv.Itoa(pid))); err != nil {
		t.Fatal(err)
	}
}

func (p *fakeProcesses) GetScheduling(tid int) (State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.state[tid]
	if !ok {
		return s, unix.ESRCH
	}
	return s, nil
}

func (p *fakeProcesses) SetScheduling(tid int, a Attr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails != nil {
		return p.fails
	}
	s := p.state[tid]
	if a.Policy != Leave {
		s.Policy, s.Priority = a.Policy, a.Priority
	}
	if a.Nice != nil {
		s.Nice = *a.Nice
	}
	if !a.Affinity.IsEmpty() {
		s.Affinity = a.Affinity
	}
	p.state[tid] = s
	return nil
}

func settings(values map[string]string) knob.Settings {
	s := knob.Settings{}
	for name, v := range values {
		s[knob.ID{Knob: knob.Find(name)}] = v
	}
	return s
}

// A plan about a process is written, noted, and undone by the log after a kill: each thread
// has again what it had, those that started meanwhile have what the first had, and those that
// somebody else has changed are left alone.
func TestPlanOfAProcess(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		settings map[string]string
		written  func(State) State
	}{
		"policy": {map[string]string{"idle": "1"}, func(s State) State { s.Policy = Idle; return s }},
		"nice":   {map[string]string{"weight": "1"}, func(s State) State { s.Nice = 19; return s }},
		"cpus":   {map[string]string{"cpus": "2-3"}, func(s State) State { s.Affinity = cpuset.MustParse("2-3"); return s }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, root := newFake(t)
			p.start(t, "80", 7, 8, 9)
			p.state[8] = State{Affinity: cpuset.MustParse("1"), Policy: Batch, Nice: 3}
			p.state[9] = State{Affinity: cpuset.MustParse("0-3"), Policy: Other, Nice: 1}
			was := map[int]State{7: p.state[7], 8: p.state[8], 9: p.state[9]}
			plan, err := Process{7, "80"}.Plan(settings(tt.settings))
			if err != nil || len(plan) != 1 {
				t.Fatalf("%v, %v", plan, err)
			}
			file := filepath.Join(t.TempDir(), "log")
			log, err := kernel.OpenUndoLog(root, file, "test")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kernel.Apply(root, plan, log); err != nil {
				t.Fatal(err)
			}
			for tid := range was {
				if got, want := p.state[tid], tt.written(was[tid]); got != want {
					t.Errorf("thread %d: %+v, want %+v", tid, got, want)
				}
			}
			if err := log.Close(); err != nil { // killed: the notes stay
				t.Fatal(err)
			}
			p.start(t, "80", 7, 8, 9, 10)
			p.state[10] = tt.written(p.state[7]) // a new thread inherits
			foreign := State{Affinity: cpuset.MustParse("0"), Policy: FIFO, Priority: 5, Nice: 7}
			p.state[9] = foreign
			if log, err = kernel.OpenUndoLog(root, file, "test"); err != nil {
				t.Fatal(err)
			}
			items, err := log.Undo(func(kernel.Step) bool { return true })
			if err != nil || len(items) != 1 || items[0].Outcome != kernel.Restored {
				t.Errorf("%+v, %v", items, err)
			}
			for tid, want := range map[int]State{7: was[7], 8: was[8], 9: foreign, 10: was[7]} {
				if got := p.state[tid]; got != want {
					t.Errorf("restored: thread %d has %+v, want %+v", tid, got, want)
				}
			}
		})
	}
}

// Where somebody else has given the first thread back what it had, the others still are.
func TestHalfUndone(t *testing.T) {
	t.Parallel()
	p, root := newFake(t)
	p.start(t, "80", 7, 8)
	was := p.state[7]
	log, err := kernel.OpenUndoLog(root, filepath.Join(t.TempDir(), "log"), "test")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Process{7, "80"}.Plan(settings(map[string]string{"idle": "1"}))
	if err == nil {
		_, err = kernel.Apply(root, plan, log)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.state[7] = was
	items, err := log.Undo(func(kernel.Step) bool { return true })
	if err != nil || len(items) != 1 || items[0].Outcome != kernel.Restored || p.state[7] != was || p.state[8] != was {
		t.Errorf("%+v, %v; threads have %+v, want %+v", items, err, p.state, was)
	}
}

// Another process that has the number by now is never touched.
func TestReusedNumber(t *testing.T) {
	t.Parallel()
	p, root := newFake(t)
	p.start(t, "80", 7)
	log, err := kernel.OpenUndoLog(root, filepath.Join(t.TempDir(), "log"), "test")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Process{7, "80"}.Plan(settings(map[string]string{"idle": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Apply(root, plan, log); err != nil {
		t.Fatal(err)
	}
	p.end(t, 7)
	p.start(t, "99", 7) // idle as the other was
	items, err := log.Undo(func(kernel.Step) bool { return true })
	if err != nil || len(items) != 1 || items[0].Outcome != kernel.Gone {
		t.Errorf("undone: %+v, %v, want it gone", items, err)
	}
	if _, err := kernel.Apply(root, plan, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("apply: %v, want that there is no such process", err)
	}
	if err := root.WriteFile("proc/7@80/sched.nice", "5"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("write: %v, want that there is no such process", err)
	}
	if got := p.state[7]; got.Policy != Idle || got.Nice != 0 {
		t.Errorf("the other process has %+v", got)
	}
}

func TestFilesRefuse(t *testing.T) {
	t.Parallel()
	p, root := newFake(t)
	p.start(t, "80", 7)
	for name, text := range map[string]string{
		"policy": "SCHED_NONE", "policy ": "", "policy  ": "SCHED_FIFO:x", "policy   ": "SCHED_FIFO", "nice": "20", "nice ": "x", "cpus": "x", "cpus ": "0 8@1=",
	} {
		if err := root.WriteFile("proc/7@80/sched."+strings.TrimSpace(name), text); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s %q: %v, want EINVAL", name, text, err)
		}
	}
	p.fails = unix.EPERM
	plan, _ := Process{7, "80"}.Plan(settings(map[string]string{"idle": "1"}))
	if _, err := kernel.Apply(root, plan, nil); !errors.Is(err, unix.EPERM) {
		t.Errorf("%v, want EPERM", err)
	}
	if plan, err := (Process{7, "80"}).Plan(settings(map[string]string{"memoryHigh": "1"})); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a process has no memory.high, but there is a plan: %v, %v", plan, err)
	}
	for _, name := range []string{"proc/7/sched.nice", "proc/7@80/stat", "proc/-7@80/sched.nice", "proc/7@x/sched.nice", "sys/7@80/sched.nice", "proc/7@80/a/sched.nice"} {
		if p, ok := Of(name); ok {
			t.Errorf("%s is of %+v", name, p)
		}
	}
}

// TestLiveProcess does it to a real process.
func TestLiveProcess(t *testing.T) {
	t.Parallel()
	live, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	root := Over(live)
	pid := sleeper(t)
	is, err := kernel.ReadProcess(live.FS(), strconv.Itoa(pid))
	if err != nil {
		t.Fatal(err)
	}
	before := get(t, pid)
	plan, err := Process{pid, is.Start}.Plan(settings(map[string]string{"idle": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	undo, err := kernel.Apply(root, plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := get(t, pid); got.Policy != Idle {
		t.Errorf("%+v, want SCHED_IDLE", got)
	}
	if err := undo(); err != nil && !errors.Is(err, os.ErrPermission) { // without RLIMIT_NICE there is no way back
		t.Error(err)
	} else if got := get(t, pid); err == nil && got != before {
		t.Errorf("undone: %+v, want %+v", got, before)
	}
}
