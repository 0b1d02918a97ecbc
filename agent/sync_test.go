package agent

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/place"
)

// withoutSync is set in the process in which fsync(2) fails.
const withoutSync = "BERTH_TEST_WITHOUT_SYNC"

// Nothing waits for a disk, as all that is on record is void after a reboot: where fsync(2)
// fails, workloads are placed and released. A seccomp filter has it fail, in a process of its
// own.
func TestNothingIsSynced(t *testing.T) {
	t.Parallel()
	if os.Getenv(withoutSync) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNothingIsSynced$", "-test.v")
		cmd.Env = append(os.Environ(), withoutSync+"=1")
		out, err := cmd.CombinedOutput()
		switch {
		case strings.Contains(string(out), "--- SKIP"):
			t.Skipf("%s", out)
		case err != nil || !strings.Contains(string(out), "--- PASS: TestNothingIsSynced"):
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	ctx := context.Background()
	h := newHost(t, fakekernel.V1())
	n := h.neighbour(t, "a")
	if err := refuseSync(); err != nil {
		t.Skipf("needs a seccomp filter: %v", err)
	}
	f, err := os.Create(n.opt.Dir + "/synced")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("fsync does not fail: %v", err)
	}
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	if all, err := n.List(ctx); err != nil || len(all) != 1 {
		t.Errorf("there are %v, %v", all, err)
	}
	if err := n.Release(ctx, "api", Kill); err != nil {
		t.Error(err)
	}
}

// refuseSync has fsync(2) fail with EIO in all threads of this process, for good.
func refuseSync() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}

// What a crash of the machine leaves of records that were not on the disk yet is void after
// the reboot, and stops nothing; in the same boot it does.
func TestTornByACrashOfTheMachine(t *testing.T) {
	t.Parallel()
	for _, rebooted := range []bool{true, false} {
		h := v2(t)
		n := h.open()
		h.place(n, spec("api", place.LSE, 2000, 9000100))
		n.Close()
		for _, name := range []string{"api" + recordExt, batchFile} {
			if err := os.WriteFile(n.path(name), make([]byte, 100), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if rebooted {
			if err := h.k.Put("proc/sys/kernel/random/boot_id", "another\n"); err != nil {
				t.Fatal(err)
			}
		}
		next, err := Open(t.Context(), h.options())
		if (err == nil) != rebooted {
			t.Errorf("rebooted %v: opened: %v", rebooted, err)
		}
		if err != nil {
			continue
		}
		if all, err := next.List(t.Context()); err != nil || len(all) > 0 {
			t.Errorf("there are %v, %v", all, err)
		}
		h.place(next, spec("web", place.LSE, 2000, 9000101))
		next.Close()
	}
}

func (n *Node) path(name string) string { return store{dir: n.opt.Dir}.path(name) }
