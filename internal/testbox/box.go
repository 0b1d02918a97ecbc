// Package testbox runs tests in a machine of their own, as root: with mount, PID, network, IPC,
// host name and control group namespaces, and file systems in memory over some
// directories. The box sees a sub-group of each hierarchy of control groups of the host as
// its root. All processes of a box die with the test that made it, also if that is killed,
// and the sub-groups are removed then; mounts and other groups of the host are not touched.
//
// A test binary that makes boxes calls Main first of all: it is itself the first program
// of a box, and what removes the groups.
package testbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// env tells a process of a test binary what it is for.
const env = "BERTH_TEST_BOX"

// The stages of a process of a box.
const (
	enter  = "enter"  // moves into the groups
	first  = "init"   // makes the file systems, starts the program, reaps
	inside = "inside" // the program, and what it starts
	remove = "remove" // outside: removes the groups after the maker's end
)

// Spec says what a box has.
type Spec struct {
	// Group is the name of the sub-group, which no other box may have.
	Group string
	// Tmpfs are directories that are empty in the box, and in memory. Mode is theirs.
	Tmpfs map[string]os.FileMode
	// Files are copied into Tmpfs: the path in the box, and the file outside.
	Files map[string]string
	// Program is what runs in the box, "" this test binary; Dir is where.
	Program, Dir string
	// Addresses are given to lo beside 127.0.0.1.
	Addresses []string
}

// job is what a stage is told.
type job struct {
	Stage string
	Spec  Spec
	Own   map[string]string // by mount point: the group below which that of the box is
}

// Box is a box that has its groups.
type Box struct {
	job     job
	remover *exec.Cmd
	hold    io.Closer // the remover waits for its end
	errors  *strings.Builder
}

// Inside reports whether this process runs in a box.
func Inside() bool { return jobOf().Stage == inside }

func jobOf() (j job) {
	if text := os.Getenv(env); text != "" {
		if err := json.Unmarshal([]byte(text), &j); err != nil {
			fmt.Fprintln(os.Stderr, "testbox:", err)
			os.Exit(1)
		}
	}
	return j
}

// A box enters by the first thread of its process: only that one's parent death signal outlives
// exec, and only here is main certain to run on it.
func init() {
	if jobOf().Stage == enter {
		runtime.LockOSThread()
	}
}

// Main does the work of the stages of a box; in other processes it returns.
func Main() {
	var err error
	switch j := jobOf(); j.Stage {
	case enter:
		err = j.enter()
	case first:
		err = j.first()
	case remove:
		_, _ = io.Copy(io.Discard, os.Stdin)
		var all []Hierarchy
		if all, err = Hierarchies(); err == nil {
			err = removeGroups(all, j.Spec.Group)
		}
		if err == nil {
			os.Exit(0)
		}
	default:
		return
	}
	fmt.Fprintln(os.Stderr, "testbox:", err)
	os.Exit(1)
}

// Make makes the groups of a box, which Remove removes.
func Make(s Spec) (*Box, error) {
	all, err := Hierarchies()
	if err != nil {
		return nil, err
	}
	b := &Box{job: job{Spec: s, Own: map[string]string{}}, errors: &strings.Builder{}}
	for _, h := range all {
		b.job.Own[h.At] = h.own
	}
	b.remover = exec.Command("/proc/self/exe")
	if b.remover.Env, err = b.job.env(remove); err != nil {
		return nil, err
	}
	b.remover.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends this test does not end it
	b.remover.Stderr = b.errors
	if b.hold, err = b.remover.StdinPipe(); err != nil {
		return nil, err
	}
	if err := b.remover.Start(); err != nil {
		return nil, err
	}
	if err := makeGroups(all, s.Group); err != nil {
		return nil, errors.Join(err, b.Remove())
	}
	return b, nil
}

// Remove removes the groups of a box; its processes have ended, or are ending.
func (b *Box) Remove() error {
	if err := errors.Join(b.hold.Close(), b.remover.Wait()); err != nil {
		return fmt.Errorf("remove the groups of %s: %w\n%s", b.job.Spec.Group, err, b.errors)
	}
	return nil
}

// Command is the box's program with arguments. It dies with the thread that starts it, to
// which the caller is locked.
func (b *Box) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	var err error
	cmd.Env, err = b.job.env(enter)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd, err
}

func (j job) env(stage string) ([]string, error) {
	j.Stage = stage
	text, err := json.Marshal(j)
	return append(os.Environ(), env+"="+string(text)), err
}

func (j job) setenv(stage string) error {
	all, err := j.env(stage)
	if err != nil {
		return err
	}
	_, text, _ := strings.Cut(all[len(all)-1], "=")
	return os.Setenv(env, text)
}

// enter moves this process into the groups of the box and makes them the roots that it
// sees. It goes on as first.
func (j job) enter() error {
	all, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		h.own = j.Own[h.At]
		dir := h.dir(j.Spec.Group)
		if h.Kind == "cgroup2" && h.At == "/sys/fs/cgroup" {
			// On v2 a group either holds processes or divides its controllers.
			dir = path.Join(dir, "init")
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path.Join(dir, "cgroup.procs"), []byte("0\n"), 0); err != nil {
			return err
		}
	}
	if err := syscall.Unshare(syscall.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare control groups: %w", err)
	}
	if err := j.setenv(first); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// first makes the file systems of the box, runs the program and reaps what dies.
func (j job) first() error {
	all, err := Hierarchies()
	if err != nil {
		return err
	}
	program := j.Spec.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	if err := j.mount(all); err != nil {
		return err
	}
	if err := network(j.Spec.Addresses); err != nil {
		return err
	}
	if err := j.setenv(inside); err != nil {
		return err
	}
	child, err := syscall.ForkExec(program, os.Args, &syscall.ProcAttr{Dir: j.Spec.Dir, Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case pid == child && status.Exited():
			os.Exit(status.ExitStatus())
		case pid == child:
			return fmt.Errorf("the test ended by %v", status.Signal())
		}
	}
}

func (j job) mount(all []Hierarchy) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// In this mount namespace only: the host's own stay mounted.
	if err := syscall.Unmount("/sys/fs/cgroup", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's control groups: %w", err)
	}
	texts := map[string][]byte{}
	for to, from := range j.Spec.Files {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		texts[to] = text
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	tmpfs := map[string]os.FileMode{"/sys/fs/cgroup": 0o755}
	for at, mode := range j.Spec.Tmpfs {
		tmpfs[at] = mode
	}
	for at, mode := range tmpfs {
		if err := syscall.Mount("tmpfs", at, "tmpfs", 0, fmt.Sprintf("mode=%o", mode)); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	for to, text := range texts {
		if err := os.WriteFile(to, text, 0o755); err != nil {
			return err
		}
	}
	for _, h := range all {
		if err := os.MkdirAll(h.At, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(h.Kind, h.At, h.Kind, 0, h.Options); err != nil {
			return fmt.Errorf("mount %s: %w", h.At, err)
		}
	}
	return nil
}

// network sets lo up and gives it addresses.
func network(addresses []string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo := func(name string, request uint, set func(*unix.Ifreq) error) error {
		req, err := unix.NewIfreq(name)
		if err == nil {
			err = set(req)
		}
		if err == nil {
			err = unix.IoctlIfreq(fd, request, req)
		}
		if err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
		return nil
	}
	up := func(req *unix.Ifreq) error { req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }
	if err := lo("lo", unix.SIOCSIFFLAGS, up); err != nil {
		return err
	}
	for i, address := range addresses {
		ip, err := netip.ParseAddr(address)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("lo:%d", i+1)
		if err := lo(name, unix.SIOCSIFADDR, func(req *unix.Ifreq) error { return req.SetInet4Addr(ip.AsSlice()) }); err != nil {
			return err
		}
	}
	return nil
}
