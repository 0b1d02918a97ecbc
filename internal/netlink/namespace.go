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
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		err := os.NewSyscallError("setns", unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET))
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}
