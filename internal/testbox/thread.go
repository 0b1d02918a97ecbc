package testbox

import (
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// As runs do on a thread whose effective user is another one, by number, and ends the thread. It takes root.
func As(uid int, do func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()              // and never unlocked: the thread ends with this
		if unix.Gettid() == unix.Getpid() { // the first one cannot end, and /proc/self tells of it
			defer runtime.UnlockOSThread()
			err = As(uid, do)
		} else if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			err = errno
		} else {
			err = do()
		}
	}()
	<-done
	return err
}

// DialAs connects to a Unix socket as another user.
func DialAs(uid int, socket string) (c net.Conn, err error) {
	err = As(uid, func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) // it blocks, so this thread connects
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), socket)
		defer f.Close()
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err == nil {
			c, err = net.FileConn(f)
		}
		return err
	})
	return c, err
}
