// Package vmtest boots small guests with real kernels in QEMU, for tests: a
// machine of any topology, a Linux kernel, an initramfs whose PID 1 is vminit,
// and one command that runs in it. There is no network, and a disk only where the
// machine has one or the command is to run under systemd.
//
// Guests run without privileges. All CPUs of an emulated guest share one CPU of
// the host, so what a guest shows of latency, throughput and caches means nothing.
package vmtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Job is what a guest is to do.
type Job struct {
	Kernel Kernel
	// Init is the vminit program.
	Init string
	// Files maps names in the guest to files of the host. All are executable.
	Files map[string]string
	// Args is the command, Env what it gets beside PATH, HOME and TMPDIR.
	Args, Env []string
	// Modules are kernel modules to insert, in this order, where they are not
	// built in.
	Modules []string
	// Disk is an ext4 image with systemd, which then is PID 1 and runs the command
	// as a service once it is up; "" is no disk. What a guest writes is lost.
	Disk string
	// Boot is added to the kernel's command line.
	Boot string
	// Output gets what the command writes, as it comes; nil discards it.
	Output io.Writer
	// CPU is what QEMU may use of the host's CPUs, in whole seconds; 0 is five
	// minutes. It ends a guest that spins, and on a busy host no other.
	CPU time.Duration
	// Timeout ends a guest that waits for ever; 0 is half an hour of the host's time.
	Timeout time.Duration
}

// Result is how a guest ended that ran to its end.
type Result struct {
	// Exit is the command's exit status, or 128 more than the signal that ended it.
	Exit int
	// Console is what the kernel and vminit wrote.
	Console string
	// Boot is the host's time from the start of QEMU to the start of the command,
	// Elapsed that to QEMU's end.
	Boot, Elapsed time.Duration
	// CPU is what QEMU used of the host's CPUs.
	CPU time.Duration
	// Memory is what vminit saw of the guest's memory.
	Memory GuestMemory
}

// String tells what the guest took.
func (r *Result) String() string {
	return fmt.Sprintf("booted in %.1f s, ended after %.1f s; %.1f s of CPU; least free by node: %d KiB",
		r.Boot.Seconds(), r.Elapsed.Seconds(), r.CPU.Seconds(), r.Memory.Lowest)
}

// The ways a guest fails, as the cause of a GuestError.
var (
	ErrRefused = errors.New("QEMU did not start the guest")
	ErrSilent  = errors.New("guest ended before user space said anything")
	ErrPanic   = errors.New("guest kernel panicked")
	ErrTimeout = errors.New("guest hung")
	ErrKilled  = errors.New("QEMU was killed")
	ErrDied    = errors.New("guest ended without an exit status")
)

// GuestError says how a guest failed.
type GuestError struct {
	// Cause is one of this package's errors, or the context's.
	Cause error
	// Console and QEMU are the ends of what the guest's console and QEMU said.
	Console, QEMU string
}

func (e *GuestError) Error() string {
	s := e.Cause.Error()
	for _, part := range []struct{ name, text string }{{"console", e.Console}, {"QEMU", e.QEMU}} {
		if part.text != "" {
			s += "\n" + part.name + ": ..." + part.text
		}
	}
	return s
}

func (e *GuestError) Unwrap() error { return e.Cause }

// modules returns all that the guest inserts, in order: what the harness needs,
// what the machine does, what the job wants.
func modules(m Machine, job Job) []string {
	names := []string{"virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_console"}
	if len(m.MaxKHz) > 0 {
		names = append(names, "acpi-cpufreq")
	}
	if m.Disk != nil || job.Disk != "" {
		names = append(names, "virtio_blk")
	}
	if job.Disk != "" {
		names = append(names, "crc16", "mbcache", "jbd2", "ext4")
	}
	return append(names, job.Modules...)
}

// Run boots a guest, runs the job's command in it and waits until the guest is
// gone. A command that fails is a Result; a guest that fails is a *GuestError.
// QEMU ends with the context, and with this process however that ends.
func (k *Kit) Run(ctx context.Context, m Machine, job Job) (*Result, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("machine %s: %w", m.Name, err)
	}
	initrd, err := packInitrd(m, job)
	if err != nil {
		return nil, fmt.Errorf("pack initramfs: %w", err)
	}
	files := []*os.File{initrd}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if m.Disk != nil {
		disk, err := memoryFile("disk")
		if err != nil {
			return nil, err
		}
		files = append(files, disk)
		if err := disk.Truncate(int64(m.Disk.MiB) << 20); err != nil {
			return nil, fmt.Errorf("make the disk: %w", err)
		}
	}
	job.CPU = cmp.Or(job.CPU, 5*time.Minute)
	job.Timeout = cmp.Or(job.Timeout, 30*time.Minute)
	ctx, cancel := context.WithTimeoutCause(ctx, job.Timeout, ErrTimeout)
	defer cancel()
	// PDEATHSIG is sent when the thread that started QEMU ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.CommandContext(ctx, k.QEMU, k.arguments(m, job)...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(k.Libs, ":"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said tail
	cmd.Stdout, cmd.Stderr = &said, &said
	began := time.Now()
	h, err := start(cmd, files, job.Output)
	if err != nil {
		return nil, &GuestError{Cause: fmt.Errorf("%w: %w", ErrRefused, err)}
	}
	if err := limitCPU(cmd.Process.Pid, job.CPU); err != nil {
		cancel()
		return nil, errors.Join(err, cmd.Wait())
	}
	err = cmd.Wait()
	h.wait()
	elapsed, used := time.Since(began), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	if h.exit != nil {
		return &Result{Exit: *h.exit, Console: h.console.String(), Boot: h.started.Sub(began), Elapsed: elapsed, CPU: used, Memory: h.memory}, nil
	}
	cause := h.cause(ctx, err)
	if errors.Is(cause, ErrTimeout) {
		cause = fmt.Errorf("%w: ended after %.0f s of at most %.0f s, %.0f s of CPU of at most %.0f s",
			cause, elapsed.Seconds(), job.Timeout.Seconds(), used.Seconds(), job.CPU.Seconds())
	}
	return nil, &GuestError{Cause: cause, Console: h.console.String(), QEMU: said.String()}
}

// limitCPU has the kernel send SIGXCPU once a process has used so much CPU time,
// and SIGKILL if that does not end it.
func limitCPU(pid int, most time.Duration) error {
	seconds := uint64(most.Seconds())
	limit := unix.Rlimit{Cur: seconds, Max: seconds + 10}
	if err := unix.Prlimit(pid, unix.RLIMIT_CPU, &limit, nil); err != nil {
		return fmt.Errorf("limit the CPU time of QEMU: %w", err)
	}
	return nil
}

// host is the host's end of a guest.
type host struct {
	readers sync.WaitGroup
	console tail
	started time.Time // zero before
	exit    *int
	memory  GuestMemory
}

// pipeBytes is the most that users may have by default (fs.pipe-max-size).
const pipeBytes = 1 << 20

// start starts QEMU with the pipes that it writes to, and files, from initrdFD on.
func start(cmd *exec.Cmd, files []*os.File, output io.Writer) (*host, error) {
	if output == nil {
		output = io.Discard
	}
	h := &host{}
	// In the order of the file numbers.
	readers := []func(io.Reader){
		func(r io.Reader) { io.Copy(&h.console, r) },
		func(r io.Reader) { io.Copy(output, r) },
		h.readReports,
	}
	var ends []*os.File
	defer func() {
		for _, f := range ends {
			f.Close()
		}
	}()
	for _, read := range readers {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		ends = append(ends, w)
		// What QEMU cannot write by the time the guest powers off is lost: the pipe has room
		// for it where this process gets no CPU for a while. A user with many pipes may get
		// less.
		_, _ = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipeBytes)
		cmd.ExtraFiles = append(cmd.ExtraFiles, w)
		h.readers.Go(func() {
			defer r.Close()
			read(r)
			io.Copy(io.Discard, r) // QEMU must not block if a reader gives up
		})
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, files...)
	return h, cmd.Start()
}

func (h *host) wait() { h.readers.Wait() }

func (h *host) readReports(r io.Reader) {
	reports := json.NewDecoder(r)
	for {
		var report GuestReport
		if err := reports.Decode(&report); err != nil {
			return
		}
		if report.Started {
			h.started = time.Now()
		}
		if report.Exit != nil {
			h.exit = report.Exit
		}
		if report.Memory != nil {
			h.memory = *report.Memory
		}
	}
}

// cause tells why a guest that left no exit status ended. err is QEMU's.
func (h *host) cause(ctx context.Context, err error) error {
	signal := syscall.Signal(0)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		signal = exit.Sys().(syscall.WaitStatus).Signal()
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case signal == syscall.SIGXCPU:
		return ErrTimeout
	case strings.Contains(h.console.String(), "Kernel panic"):
		return ErrPanic
	case signal != 0:
		return fmt.Errorf("%w: %w", ErrKilled, err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case h.started.IsZero():
		return ErrSilent
	}
	return ErrDied
}

// copied are the files that a job finds on its disk.
func (j Job) copied() []string {
	if j.Disk == "" {
		return nil
	}
	return append([]string{InitFile, JobFile, MachineFile}, slices.Sorted(maps.Keys(j.Files))...)
}

// memoryFile makes a file in memory, of which nothing is left behind however this process ends.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// packInitrd makes the initramfs.
func packInitrd(m Machine, job Job) (_ *os.File, err error) {
	initrd, err := memoryFile("initrd")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			initrd.Close()
		}
	}()
	a := &archive{w: initrd}
	for name, data := range map[string]any{
		JobFile:     GuestJob{Args: job.Args, Env: job.Env, Copy: job.copied()},
		MachineFile: m,
	} {
		text, err := json.Marshal(data)
		if err != nil {
			return nil, err
		}
		a.file(name, text)
	}
	for name, table := range m.tables() {
		a.file(name, table)
	}
	files := map[string]string{InitFile: job.Init}
	for i, name := range modules(m, job) {
		file, ok, err := job.Kernel.module(name)
		if err != nil {
			return nil, err
		}
		if ok {
			files[fmt.Sprintf("%s/%02d-%s", ModulesDir, i, filepath.Base(file))] = file
		}
	}
	for name, file := range job.Files {
		files[name] = file
	}
	for name, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		a.file(name, data)
	}
	return initrd, a.close()
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-tailBytes):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.ToValidUTF8(t.buf, []byte("?")))
}
