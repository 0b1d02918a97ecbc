package api

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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

// An agent that has a socket and does not answer, as one that was stopped, is not waited
// for without end; who stops waiting before has his own reason.
func TestDialSilent(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(openDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := dialWithin(t.Context(), socket, time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "has not answered within 1ms") {
		t.Errorf("silent: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dialWithin(ctx, socket, time.Millisecond); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "answered") {
		t.Errorf("cancelled: %v", err)
	}
}
