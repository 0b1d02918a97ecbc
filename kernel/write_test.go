package kernel

import (
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWriteOnceInterrupted has a signal interrupt a write before the kernel has taken anything,
// as one interrupts memory.limit_in_bytes: the value is written all the same. The file is a
// socket without room whose writes have a time limit, which no signal handler restarts (signal(7)).
func TestWriteOnceInterrupted(t *testing.T) {
	t.Parallel()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	far := os.NewFile(uintptr(fds[1]), "far end")
	defer far.Close()
	if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	full := 0
	for ; ; full++ {
		if err = unix.Send(fds[0], make([]byte, 1024), unix.MSG_DONTWAIT); err != nil {
			break
		}
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, unix.SIGUSR2)
	defer signal.Stop(heard)
	thread, done := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and ends with it
		thread <- unix.Gettid()
		done <- writeOnce(os.NewFile(uintptr(fds[0]), "near end"), "near end", "value")
	}()
	tid := <-thread
	began := time.Now()
	for signals := 0; signals < 3; { // while the thread waits
		p, err := ReadProcess(os.DirFS("/"), "self/task/"+strconv.Itoa(tid))
		if err != nil || time.Since(began) > time.Minute {
			t.Fatalf("the thread does not wait: %+v, %v", p, err)
		}
		if p.State != 'S' {
			time.Sleep(time.Millisecond)
			continue
		}
		if err := unix.Tgkill(os.Getpid(), tid, unix.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		<-heard
		signals++
	}
	buf := make([]byte, 2048)
	for range full {
		if _, err := far.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n, err := far.Read(buf); err != nil || string(buf[:n]) != "value" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
}
