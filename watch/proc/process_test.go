package proc

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
)

// The first thread of the process stays the main goroutine's: it cannot end, as those of tests do that change a
// thread, and /proc/self tells of it.
func init() { runtime.LockOSThread() }

// statLine is a process with 1.5 s user, 0.25 s system, and children of 2 s and 30 ms.
func statLine(comm string) string {
	return "42 (" + comm + ") S 1 42 42 0 -1 4194560 100 0 0 0 150 25 200 3 20 0 1 0 5000 1000 200\n"
}

func TestProcessCPU(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	stat := file(statLine("x")) // 1.75 s
	for _, tc := range []struct {
		name    string
		fsys    fstest.MapFS
		want    time.Duration
		wantErr string
	}{
		{name: "threads are finer", want: 1_751_000_007, fsys: fstest.MapFS{
			"proc/42/stat": stat, "proc/42/task/42/schedstat": file("1751000000 5 2\n"), "proc/42/task/43/schedstat": file("7 5 2\n")}},
		{name: "threads have ended", want: 1750 * time.Millisecond, fsys: fstest.MapFS{
			"proc/42/stat": stat, "proc/42/task/42/schedstat": file("1000 5 2\n")}},
		{name: "no schedstat", want: 1750 * time.Millisecond, fsys: fstest.MapFS{
			"proc/42/stat": stat, "proc/42/task/42/comm": file("x")}},

		{name: "gone", fsys: fstest.MapFS{}, wantErr: "list threads of process 42"},
		{name: "gone in between", fsys: fstest.MapFS{"proc/42/task/42/schedstat": file("1 2 3\n")}, wantErr: "read process 42"},
		{name: "empty schedstat", fsys: fstest.MapFS{"proc/42/stat": stat, "proc/42/task/42/schedstat": file("")}, wantErr: `parsing ""`},
		{name: "bad schedstat", fsys: fstest.MapFS{"proc/42/stat": stat, "proc/42/task/42/schedstat": file("x 2 3")}, wantErr: "invalid syntax"},
		{name: "negative schedstat", fsys: fstest.MapFS{"proc/42/stat": stat, "proc/42/task/42/schedstat": file("-1 2 3")}, wantErr: `parsing "-1"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, children, err := ProcessCPU(tc.fsys, 42)
			checkError(t, err, tc.wantErr)
			if got != tc.want || err == nil && children != 2030*time.Millisecond {
				t.Errorf("ProcessCPU = %d, %d, want %d and 2.03 s", got, children, tc.want)
			}
		})
	}
}

// lateFS fails like /proc does when a process ends between open and read.
type lateFS struct{ fstest.MapFS }

func (lateFS) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.ESRCH}
}

func TestRunDelay(t *testing.T) {
	t.Parallel()
	fsys := fstest.MapFS{
		"proc/7/task/7/schedstat": {Data: []byte("5000 300 9\n")},
		"proc/7/task/8/schedstat": {Data: []byte("1000 40 2\n")},
		"proc/8/task/8/comm":      {Data: []byte("old kernel\n")},
		"proc/9/task/9/schedstat": {Data: []byte("1 -2 3\n")},
	}
	if got, ok, err := RunDelay(fsys, 7); got != 340 || !ok || err != nil {
		t.Errorf("two threads: %d, %v, %v; want 340 ns", got, ok, err)
	}
	if got, ok, err := RunDelay(fsys, 8); got != 0 || ok || err != nil {
		t.Errorf("no schedstat: %d, %v, %v; want not ok", got, ok, err)
	}
	if _, _, err := RunDelay(fsys, 9); err == nil || !strings.Contains(err.Error(), "task/9/schedstat") {
		t.Errorf("negative time: %v, want an error that names the file", err)
	}
	if _, _, err := RunDelay(fsys, 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v, want fs.ErrNotExist", err)
	}
}

func TestProcessGone(t *testing.T) {
	t.Parallel()
	for name, fsys := range map[string]fs.FS{"no directory": fstest.MapFS{}, "ESRCH": lateFS{}} {
		if _, _, err := ProcessCPU(fsys, 42); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: ProcessCPU = %v, want fs.ErrNotExist", name, err)
		}
	}
}

// A thread that ended stays in the process's figure.
func TestProcessCPUOfEndedThread(t *testing.T) {
	t.Parallel()
	fsys := os.DirFS("/")
	if _, err := fs.Stat(fsys, "proc/self/task"); err != nil {
		t.Skipf("no /proc here: %v", err)
	}
	before, _, err := ProcessCPU(fsys, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		done <- spinThread(60 * time.Millisecond)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	after, _, err := ProcessCPU(fsys, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if got := after - before; got < 30*time.Millisecond {
		t.Errorf("60 ms of a thread that has ended show as %v", got)
	}
}

// spinThread uses that much CPU time on the calling thread.
func spinThread(cpu time.Duration) error {
	const thread = 1 // RUSAGE_THREAD
	var start, now syscall.Rusage
	if err := syscall.Getrusage(thread, &start); err != nil {
		return err
	}
	for {
		if err := syscall.Getrusage(thread, &now); err != nil {
			return err
		}
		if now.Utime.Nano()+now.Stime.Nano()-start.Utime.Nano()-start.Stime.Nano() >= int64(cpu) {
			return nil
		}
	}
}
