package api

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// A socket of another user is not asked, even if its answers look right.
func TestClientBelievesOnlyRootAndItself(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to listen as another user")
	}
	const stranger = 65534
	dir, err := os.MkdirTemp("", "berth-peer-") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := listenAs(stranger, socket)
	if err != nil {
		t.Skipf("cannot listen as user %d: %v", stranger, err)
	}
	defer l.Close()
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second) // it never answers
	defer stop()
	_, err = Dial(ctx, socket)
	var refused *PeerError
	if !errors.As(err, &refused) || refused.UID != stranger || refused.Socket != socket {
		t.Errorf("dialled: %v", err)
	}
}

// listenAs listens as another user, whose name the kernel keeps with the socket. The
// thread that became that user ends with its goroutine.
func listenAs(uid int, socket string) (l net.Listener, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			err = errno
			return
		}
		l, err = net.Listen("unix", socket)
	}()
	<-done
	return l, err
}
