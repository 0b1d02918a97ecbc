// Command vminit is PID 1 of vmtest's guests. It mounts what a host has, brings
// up loopback and CPUs, inserts modules, runs one command and reports its exit status.
// Where the job has a disk it hands over to the systemd on it, which starts it
// again as a service for the command.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/vmtest"
)

func main() {
	run := asPID1
	if os.Getpid() != 1 {
		run = asService
	}
	if err := run(); err != nil {
		fmt.Println("vminit:", err)
	}
	if _, err := os.Stat(vmtest.Marker); err != nil && os.Getpid() != 1 {
		os.Exit(1) // not a guest: nothing to power off
	}
	unix.Sync()
	// Returns only on error; then PID 1 ends and the kernel panics, which the
	// host sees.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func asPID1() error {
	if err := mountAll(); err != nil {
		return err
	}
	job, err := readJob()
	if err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := onlineCPUs(); err != nil {
		return err
	}
	if err := insertModules(); err != nil {
		return err
	}
	if job.Copy != nil {
		return startSystemd(job)
	}
	return serve(job)
}

func asService() error {
	if _, err := os.Stat(vmtest.Marker); err != nil {
		return errors.New("neither PID 1 nor under it: vminit powers the machine off, so it runs in a guest only")
	}
	job, err := readJob()
	if err != nil {
		return err
	}
	return serve(job)
}

// serve runs the job's command and reports to the host.
func serve(job vmtest.GuestJob) error {
	out, result, err := openPorts()
	if err != nil {
		return err
	}
	reports := json.NewEncoder(result)
	if err := reports.Encode(vmtest.GuestReport{Started: true}); err != nil {
		return err
	}
	memory, err := watchMemory()
	if err != nil {
		return err
	}
	exit, err := runCommand(job, out)
	if err != nil {
		return err
	}
	seen, err := memory()
	if err != nil {
		return err
	}
	return reports.Encode(vmtest.GuestReport{Exit: &exit, Memory: seen})
}

// watchMemory looks at the free memory of the nodes until what it returns is called, which
// tells what was seen.
func watchMemory() (told func() (*vmtest.GuestMemory, error), err error) {
	text, err := os.ReadFile(vmtest.MachineFile)
	if err != nil {
		return nil, err
	}
	var machine vmtest.Machine
	if err := json.Unmarshal(text, &machine); err != nil {
		return nil, fmt.Errorf("%s: %w", vmtest.MachineFile, err)
	}
	// Both are opened now: the command may put another root over them.
	sys, err := os.OpenRoot("/sys")
	if err != nil {
		return nil, err
	}
	log, err := vmtest.OpenKernelLog()
	if err != nil {
		return nil, err
	}
	var again <-chan time.Time
	if !machine.VirtualTime {
		again = time.Tick(500 * time.Millisecond)
	}
	var seen vmtest.GuestMemory
	end, ended := make(chan struct{}), make(chan error, 1)
	look := func() error {
		for {
			if err := seen.Look(sys.FS()); err != nil {
				return fmt.Errorf("look at the guest's memory: %w", err)
			}
			select {
			case <-again:
			case <-end:
				return seen.Look(sys.FS())
			}
		}
	}
	go func() { ended <- look() }()
	return func() (*vmtest.GuestMemory, error) {
		close(end)
		if err := <-ended; err != nil {
			return nil, err
		}
		lines, err := log()
		seen.Shortages = vmtest.Shortages(lines)
		return &seen, err
	}, nil
}

func mountAll() error {
	optional := []string{"debugfs", "tracefs", "bpf", "resctrl"} // not in every kernel
	for _, m := range []struct{ kind, dir string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"devpts", "/dev/pts"},
		{"tmpfs", "/dev/shm"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"},
		{"cgroup2", "/sys/fs/cgroup"}, {"debugfs", "/sys/kernel/debug"}, {"tracefs", "/sys/kernel/tracing"},
		{"bpf", "/sys/fs/bpf"}, {"resctrl", "/sys/fs/resctrl"},
	} {
		// Below /sys the kernel made the directory, or the file system is absent.
		if !strings.HasPrefix(m.dir, "/sys/") {
			if err := os.MkdirAll(m.dir, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil && !slices.Contains(optional, m.kind) {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	return os.WriteFile(vmtest.Marker, nil, 0o444)
}

// loopbackUp brings up the one network interface that there is.
func loopbackUp() error {
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	defer unix.Close(fd)
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	return nil
}

func readJob() (vmtest.GuestJob, error) {
	var job vmtest.GuestJob
	text, err := os.ReadFile(vmtest.JobFile)
	if err != nil {
		return job, err
	}
	return job, json.Unmarshal(text, &job)
}

// insertModules inserts the modules that the host put there, in the order of their names.
func insertModules() error {
	names, err := filepath.Glob(vmtest.ModulesDir + "/*")
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := insert(name); err != nil {
			return fmt.Errorf("insert %s: %w", name, err)
		}
	}
	return nil
}

func insert(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	flags := 0
	if !strings.HasSuffix(name, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	return unix.FinitModule(int(file.Fd()), "", flags)
}

// openPorts opens the virtio-serial ports.
func openPorts() (out, result *os.File, err error) {
	if out, err = awaitPort(vmtest.OutPort); err != nil {
		return nil, nil, err
	}
	result, err = awaitPort(vmtest.ResultPort)
	return out, result, err
}

// awaitPort opens a port, which appears some time after its driver.
func awaitPort(name string) (*os.File, error) {
	const tries, pause = 6000, 10 * time.Millisecond
	for range tries {
		port, err := openPort(name)
		if !errors.Is(err, os.ErrNotExist) {
			return port, err
		}
		time.Sleep(pause)
	}
	return nil, fmt.Errorf("open virtio port %s: %w", name, os.ErrNotExist)
}

// openPort finds a port by its name.
func openPort(name string) (*os.File, error) {
	files, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(string(text)) == name {
			return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(file)), os.O_WRONLY, 0)
		}
	}
	return nil, fmt.Errorf("open virtio port %s: %w", name, os.ErrNotExist)
}

// onlineCPUs brings up the CPUs that maxcpus=1 left: far sooner than the kernel
// does at boot when many CPUs share one of the host's.
func onlineCPUs() error {
	files, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/online")
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := os.WriteFile(file, []byte("1"), 0); err != nil {
			return fmt.Errorf("bring up CPU: %w", err)
		}
	}
	return nil
}

// runCommand runs the job's command and reaps orphans that end before it. It
// returns its exit status, 128 more than the signal where one ended it.
func runCommand(job vmtest.GuestJob, out *os.File) (int, error) {
	cmd := exec.Command(job.Args[0], job.Args[1:]...)
	cmd.Env = append([]string{"PATH=/bin:/sbin", "HOME=/", "TMPDIR=/tmp", "GOMAXPROCS=2"}, job.Env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, fmt.Errorf("wait for %s: %w", job.Args[0], err)
		case pid != cmd.Process.Pid:
			continue
		case status.Signaled():
			return 128 + int(status.Signal()), nil
		}
		return status.ExitStatus(), nil
	}
}
