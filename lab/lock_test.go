package lab

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOneLabAtATime(t *testing.T) {
	dir := t.TempDir()
	first, err := lockMachine(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockMachine(dir); err == nil || !strings.Contains(err.Error(), "another berth lab") {
		t.Errorf("second lock: %v, want it refused", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lockMachine(dir)
	if err != nil {
		t.Fatalf("after the first ended: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// The name by which labs of several users see each other may be taken by any
// process of the host: a lab starts all the same, and says so.
func TestSquattedName(t *testing.T) {
	squatter, err := net.Listen("unix", sharedName)
	if err != nil {
		t.Skipf("a lab runs on this machine: %v", err)
	}
	lock, err := lockMachine(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(lock.other, "another user's") {
		t.Errorf("it says %q of the other lab", lock.other)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
	if err := squatter.Close(); err != nil {
		t.Fatal(err)
	}
	lock, err = lockMachine(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if lock.other != "" {
		t.Errorf("with nobody beside it: %q", lock.other)
	}
}

// A lock file that others could open, or that is another file, is not believed.
func TestLockFileOfOthers(t *testing.T) {
	for name, make := range map[string]func(file string) error{
		"open to others": func(file string) error { return os.WriteFile(file, nil, 0o644) },
		"a link":         func(file string) error { return os.Symlink("/dev/null", file) },
	} {
		dir := t.TempDir()
		if err := make(filepath.Join(dir, lockName)); err != nil {
			t.Fatal(err)
		}
		if _, err := lockMachine(dir); err == nil || !strings.Contains(err.Error(), lockName) {
			t.Errorf("%s: %v, want it refused by name", name, err)
		}
	}
}
