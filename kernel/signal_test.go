package kernel

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"berth.dev/berth/internal/fakekernel"
)

// A tree that is not the live host reaches no real process, also where its files
// show the number of one.
func TestSignal(t *testing.T) {
	t.Parallel()
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Skip(err)
	}
	defer func() { _ = child.Wait() }()
	pid := child.Process.Pid
	dir := fakekernel.MemoryDir(t)
	if err := os.Symlink("/proc", filepath.Join(dir, "proc")); err != nil {
		t.Fatal(err)
	}
	plain, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	faked, _ := fake(t, fakekernel.V1())
	if err := plain.Signal(pid, syscall.SIGKILL); !errors.Is(err, ErrNotSupported) {
		t.Errorf("a directory: %v", err)
	}
	if err := faked.Signal(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("a fake kernel: %v", err)
	}
	if plain.IsLive() || faked.IsLive() {
		t.Error("a tree is taken for the live host")
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the child was signalled: %v", err)
	}
	live, err := Open("/")
	if err != nil || !live.IsLive() {
		t.Fatal(live, err)
	}
	if err := live.Signal(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}
