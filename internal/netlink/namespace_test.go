package netlink

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What is done apart is never done by the first thread, which would not end.
func TestApart(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for range 2000 {
		first := false
		if err := apart(func() error { first = unix.Gettid() == unix.Getpid(); return failed }); err != failed {
			t.Fatal(err)
		}
		if first {
			t.Fatal("on the first thread")
		}
	}
}

// A namespace that was made is entered, and left: /proc/self goes on showing that of the process.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	const self, thread = "/proc/self/ns/net", "/proc/thread-self/ns/net"
	before, err := os.Readlink(self)
	if err != nil {
		t.Skip(err)
	}
	seen := map[string]bool{before: true}
	for range 20 {
		made, err := New()
		if e, ok := errors.AsType[*os.SyscallError](err); ok && e.Syscall == "unshare" && errors.Is(err, syscall.EPERM) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		var in string
		err = In(made, func() (err error) { in, err = os.Readlink(thread); return err })
		if err != nil || seen[in] {
			t.Errorf("in %q, %v, of %v", in, err, seen)
		}
		seen[in] = true
		defer made.Close() // until the end: its number is not used again
	}
	if after, err := os.Readlink(self); err != nil || after != before {
		t.Errorf("this process is in %s, %v, was in %s", after, err, before)
	}
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if e, ok := errors.AsType[*os.SyscallError](In(file, func() error { return nil })); !ok || e.Syscall != "setns" {
		t.Errorf("in no namespace: %v", e)
	}
}
