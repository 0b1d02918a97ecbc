package netlink

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// In calls do on a thread in a network namespace. The thread is do's alone and ends with it, so
// that no other code is ever in that namespace. An *os.SyscallError "setns" says that it could
// not be entered.
func In(namespace *os.File, do func() error) error {
	return apart(func() error {
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return do()
	})
}

// New makes a network namespace, which is there until the file is closed and no thread is in it. An
// *os.SyscallError "unshare" says that it could not be made.
func New() (made *os.File, err error) {
	err = apart(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		made, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return made, err
}

// apart calls do on a thread that is do's alone and ends with it. That is never the first one of the
// process: it would stay until the process ends, and its namespace with it, and it is what /proc/self shows.
func apart(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- apart(do) // on another thread, as this one is taken
			return
		}
		done <- do()
	}()
	return <-done
}
