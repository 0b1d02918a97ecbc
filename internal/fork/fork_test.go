package fork

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// The first thread of the process is that of the main goroutine: a goroutine of a test that ends ends its thread.
func init() { runtime.LockOSThread() }

// fromFirst is a parent that began to serve on the first thread.
var fromFirst = &Parent{make(chan func())}

func TestMain(m *testing.M) {
	fromFirst.serve(make(chan struct{}))
	os.Exit(m.Run())
}

// sleeper is a process that a goroutine starts which ends, and its thread with it.
func sleeper(t *testing.T, start func(*exec.Cmd) error) (ended chan error) {
	t.Helper()
	cmd := exec.Command("sleep", "3600")
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		started <- start(cmd)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return ended
}

// killed reports whether a process was killed.
func killed(err error) bool {
	var status *exec.ExitError
	return errors.As(err, &status) && status.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// A process outlives the thread of the goroutine that started it, and ends with the thread that forked it.
func TestStart(t *testing.T) {
	p := NewParent()
	ofParent, ofProcess := sleeper(t, p.Start), sleeper(t, Start)
	// Without a thread that stays, the kernel kills it.
	direct := sleeper(t, func(cmd *exec.Cmd) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd.Start()
	})
	ends := func(name string, ended chan error) {
		t.Helper()
		select {
		case err := <-ended:
			if !killed(err) {
				t.Errorf("%s ended by %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s lives", name)
		}
	}
	ends("what another thread forked", direct)
	if len(ofParent)+len(ofProcess) > 0 {
		t.Error("a process ended with the thread of its starter")
	}
	p.Close()
	ends("a parent's process", ofParent)
	if len(ofProcess) > 0 {
		t.Error("a process ended that was to live as long as this one")
	}
}

// Go never ends the first thread of a process, nor would the kernel kill what that has forked before the process ends.
func TestNotOnTheFirstThread(t *testing.T) {
	var thread int
	if err := fromFirst.Do(func() error { thread = syscall.Gettid(); return nil }); err != nil || thread == os.Getpid() {
		t.Errorf("it forks on thread %d of process %d, %v", thread, os.Getpid(), err)
	}
}

func TestStartFails(t *testing.T) {
	if err := Start(exec.Command("/nonexistent")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
