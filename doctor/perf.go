package doctor

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HardwareCounter opens a cycle counter on the calling thread, user mode only,
// and closes it again (perf_event_open(2)). The error is ENOENT or EOPNOTSUPP
// where the kernel has no PMU, EACCES or EPERM where perf_event_paranoid or a
// filter forbids it.
func HardwareCounter() error {
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_HARDWARE,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config: unix.PERF_COUNT_HW_CPU_CYCLES,
		Bits:   unix.PerfBitDisabled | unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv,
	}
	fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("perf_event_open: %w", err)
	}
	return unix.Close(fd)
}
