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

// sleeper is a process that a goroutine starts which ends, and its thread with it.
func sleeper(t *testing.T, start func(*exec.Cmd) error) (ended chan error) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
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

func TestStartFails(t *testing.T) {
	if err := Start(exec.Command("/nonexistent")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
