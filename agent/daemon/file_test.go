package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/agent/daemon"
)

// A file without an end is refused.
func TestReadEndless(t *testing.T) {
	t.Parallel()
	if _, err := daemon.ReadConfig("/dev/zero"); err == nil || !strings.Contains(err.Error(), "name the right file") {
		t.Errorf("read /dev/zero: %v", err)
	}
}

// A pipe is read to its end; one that nobody writes to is not waited for.
func TestReadPipe(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Skipf("needs a named pipe: %v", err)
	}
	if text, err := daemon.ReadFile(name); len(text) > 0 || err != nil {
		t.Errorf("nobody writes: %q, %v", text, err)
	}
	pipe, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	reader, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // keeps what is in it
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	const want = "kind: NodeConfig\n"
	if _, err := pipe.WriteString(want); err != nil {
		t.Fatal(err)
	}
	if err := pipe.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := daemon.ReadFile(name); string(text) != want || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
}
