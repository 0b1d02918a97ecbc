package fakekernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/machine"
)

// MemoryDir makes a directory in memory if the host can, so that syncing does not wait for a disk. It goes with the
// test.
func MemoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "berth-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Plant writes a file, with the directories above it.
func Plant(t testing.TB, file, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Short is the machine of a short form (machine.Short).
func Short(t testing.TB, form string) *machine.Machine {
	t.Helper()
	m, err := machine.Short(form)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Use is how a test uses the control groups of the real host.
type Use int

const (
	// Shared is beside other tests: with groups of its own, or with the host's usual node.
	Shared Use = syscall.LOCK_SH
	// Alone is with a node or a guard of its own for the host's whole tree, or with groups
	// that outweigh all others.
	Alone Use = syscall.LOCK_EX
)

// hostWait is how long LockHost waits: less than go test lets a package run (10 minutes).
const hostWait = 5 * time.Minute

// LockHost waits until a test may use the control groups of the real host, which it then
// may until it ends. Tests of all packages of one user take the same lock, in this process
// and in others. A test that waited for 5 minutes is skipped. A test calls LockHost once,
// after t.Parallel, and before it makes its groups: they are removed before the lock is
// given back. Its subtests are not parallel: they would wait for those who wait for it.
func LockHost(t testing.TB, use Use) {
	t.Helper()
	name := filepath.Join(os.TempDir(), fmt.Sprintf("berth-test-%d", os.Getuid()))
	until := time.Now().Add(hostWait)
	// A test waits for its turn first, so that tests that share the host do not keep one
	// that needs it alone waiting by taking turns.
	turn := flock(t, name+".turn", Alone, until)
	defer turn.Close()
	host := flock(t, name+".lock", use, until)
	t.Cleanup(func() { host.Close() })
}

func flock(t testing.TB, name string, use Use, until time.Time) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for {
		switch err := syscall.Flock(int(f.Fd()), int(use)|syscall.LOCK_NB); {
		case err == nil:
			return f
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			f.Close()
			t.Fatalf("lock %s: %v", name, err)
		case time.Now().After(until):
			f.Close()
			t.Skipf("other tests have had the host's control groups for %v: %s is locked", hostWait, name)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Shell returns a copy of bash under a name of its own: a process of it has that name. A
// test without bash is skipped.
func Shell(t testing.TB, name string) (path string) {
	t.Helper()
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	text, err := os.ReadFile(shell)
	path = filepath.Join(t.TempDir(), name)
	if err == nil {
		syscall.ForkLock.RLock() // a child of another test that had the file open to write would make it busy
		err = os.WriteFile(path, text, 0o755)
		syscall.ForkLock.RUnlock()
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
