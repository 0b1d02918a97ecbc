package fakekernel

import (
	"strconv"
	"syscall"
)

// Signal ends a process of this kernel with SIGKILL; other signals do nothing. It
// reaches no process of the real one.
func (k *Kernel) Signal(pid int, sig syscall.Signal) error {
	if sig != syscall.SIGKILL {
		return nil
	}
	return k.Exit(strconv.Itoa(pid))
}
