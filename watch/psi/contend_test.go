package psi

import (
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// contend makes two threads compete for the first CPU that this process may use.
func contend(t *testing.T) (stop func()) {
	t.Helper()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Skip(err)
	}
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	var done atomic.Bool
	for range 2 {
		go func() {
			runtime.LockOSThread() // not unlocked: the thread ends with its affinity
			unix.SchedSetaffinity(0, &one)
			for !done.Load() {
			}
		}()
	}
	return func() { done.Store(true) }
}
