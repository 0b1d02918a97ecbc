// Package program runs what the lab did not write: a user's own program as tenant or
// neighbour, and the servers that it knows by name. It starts them, waits until they
// answer, fills them, halts them, and ends them with all their children. It leaves places
// in the kernel and load to others.
package program

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// Config is what a keeper's parent sends on its standard input.
type Config struct {
	// Before are commands that have to succeed first, one after the other; Argv is the
	// program. It runs as User if the keeper may choose, in Dir.
	Before [][]string `json:"before,omitempty"`
	Argv   []string   `json:"argv"`
	Dir    string     `json:"dir,omitempty"`
	User   string     `json:"user,omitempty"`
	// Stop is the signal that asks the first process to end, which ends the others; 0
	// sends SIGTERM to all of them.
	Stop syscall.Signal `json:"stop,omitempty"`
	// Repeat starts the program again whenever its first process ends with status 0.
	Repeat bool `json:"repeat,omitempty"`
	// Remove is a folder that is removed with the program.
	Remove string `json:"remove,omitempty"`
}

// Started is the one line that the keeper prints once the program runs.
type Started struct {
	PID int `json:"pid"`
}

// How long processes may take to end when they are asked to, before they are killed.
const (
	stopWithin = 4 * time.Second
	killWithin = 10 * time.Second
	lookEvery  = 10 * time.Millisecond
)

// StopLimit is how long a keeper takes to end, at most.
const StopLimit = stopWithin + killWithin + time.Second

// Keep is the keeper's process. It reads a Config (one line of JSON), starts the program,
// prints Started (one line of JSON), and ends it with all its descendants, whatever group
// or session they have made for themselves, when the input ends (the parent is gone) or
// ctx is done. That is a normal end. The end of the program is an error. What the program
// prints goes to standard error.
func Keep(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("keeper: no configuration: %w", err)
	}
	var c Config
	if err := json.Unmarshal(line, &c); err != nil {
		return fmt.Errorf("keeper: configuration: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, lines) // its end is all that matters
		cancel()
	}()
	// The kernel kills the program when the thread that started it ends (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keeper: %w", os.NewSyscallError("prctl", err))
	}
	k := keeper{Config: c, children: make(chan os.Signal, 1)}
	signal.Notify(k.children, syscall.SIGCHLD)
	defer signal.Stop(k.children)
	err = k.run(ctx, out)
	err = errors.Join(err, k.end())
	if c.Remove != "" {
		err = errors.Join(err, os.RemoveAll(c.Remove))
	}
	return err
}

// keeper is a program under way.
type keeper struct {
	Config
	children chan os.Signal
	pid      int // of the program's first process, 0 once it has ended
}

func (k *keeper) run(ctx context.Context, out io.Writer) error {
	for _, argv := range k.Before {
		if err := k.start(argv); err != nil {
			return err
		}
		if ended, err := k.wait(ctx, false); err != nil || !ended {
			return err
		}
	}
	for first := true; ; first = false {
		if err := k.start(k.Argv); err != nil {
			return err
		}
		if first {
			if err := json.NewEncoder(out).Encode(Started{k.pid}); err != nil {
				return fmt.Errorf("keeper: print: %w", err)
			}
		}
		ended, err := k.wait(ctx, !k.Repeat)
		switch {
		case err != nil || !ended:
			return err
		case !k.Repeat:
			return errors.New("it ended with status 0")
		}
	}
}

// start starts a command.
func (k *keeper) start(argv []string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = k.Dir, os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if k.User != "" && os.Geteuid() == 0 {
		credential, err := credentialOf(k.User)
		if err != nil {
			return err
		}
		cmd.SysProcAttr.Credential = credential
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	k.pid = cmd.Process.Pid
	return nil
}

func credentialOf(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user %s: %w", name, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// wait waits for the end of the first process and, if that succeeds, of those that it has
// left behind, as a daemon does; false means that it was called off.
func (k *keeper) wait(ctx context.Context, others bool) (ended bool, err error) {
	for {
		status, _, err := k.reap()
		switch {
		case err != nil:
			return false, err
		case k.pid == 0 && status != 0:
			return true, fmt.Errorf("%s", statusText(status))
		case k.pid == 0 && !others:
			return true, nil
		case k.pid == 0:
			left, err := k.left()
			if err != nil || len(left) == 0 {
				return true, err
			}
		}
		select {
		case <-k.children:
		case <-ctx.Done():
			return false, nil
		}
	}
}

// reap takes the status of all children that have ended, and returns that of the first
// process if it is among them. More says that there are others: a process whose threads
// have not all ended looks ended, but cannot be reaped.
func (k *keeper) reap() (status syscall.WaitStatus, more bool, err error) {
	for {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &s, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil && err != syscall.ECHILD:
			return 0, false, os.NewSyscallError("wait4", err)
		case pid <= 0:
			return status, err == nil, nil
		case pid == k.pid:
			k.pid, status = 0, s
		}
	}
}

func statusText(s syscall.WaitStatus) string {
	if s.Signaled() {
		return "killed by " + unix.SignalName(s.Signal())
	}
	return "exit status " + strconv.Itoa(s.ExitStatus())
}

// left are the processes below the keeper.
func (k *keeper) left() ([]int, error) {
	return Below(os.Getpid())
}

// end ends all processes below the keeper.
func (k *keeper) end() error {
	asked := false
	for began := time.Now(); time.Since(began) < stopWithin+killWithin; {
		_, more, err := k.reap()
		if err != nil || !more {
			return err
		}
		left, err := k.left()
		if err != nil {
			return err
		}
		switch {
		case time.Since(began) >= stopWithin || k.Stop != 0 && asked && k.pid == 0:
			sendTo(left, syscall.SIGKILL)
		case asked:
		case k.Stop != 0 && k.pid != 0:
			sendTo([]int{k.pid}, k.Stop)
			sendTo(left, syscall.SIGCONT)
		default:
			sendTo(left, syscall.SIGTERM)
			sendTo(left, syscall.SIGCONT)
		}
		asked = true
		select {
		case <-k.children:
		case <-time.After(lookEvery):
		}
	}
	left, err := k.left()
	return errors.Join(err, fmt.Errorf("processes %v do not end", left))
}

// sendTo signals processes; one that is gone needs no signal.
func sendTo(pids []int, s syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, s)
	}
}

// Below are the processes below one, which have not ended.
func Below(pid int) ([]int, error) {
	proc := os.DirFS("/")
	all, err := kernel.Descendants(proc, pid)
	if err != nil {
		return nil, err
	}
	var living []int
	for _, p := range all[1:] {
		if state, err := kernel.ReadProcess(proc, strconv.Itoa(p)); err == nil && !state.Ended() {
			living = append(living, p)
		}
	}
	return living, nil
}

// Halt stops all processes below a keeper (SIGSTOP), those included that they start
// meanwhile; it returns when every thread has stopped, after limit at the latest with an
// error. Go on with Resume.
func Halt(keeper int, limit time.Duration) error {
	stopped := map[int]bool{}
	for began := time.Now(); ; time.Sleep(200 * time.Microsecond) {
		all, err := Below(keeper)
		if err != nil {
			return err
		}
		rest := 0
		for _, pid := range all {
			if !stopped[pid] {
				sendTo([]int{pid}, syscall.SIGSTOP)
				stopped[pid] = true
			}
			if !halted(pid) {
				rest++
			}
		}
		if rest == 0 {
			return nil
		}
		if time.Since(began) > limit {
			return fmt.Errorf("%d processes have not stopped after %s", rest, limit)
		}
	}
}

// halted reports whether no thread of a process runs: each has stopped, or ended.
func halted(pid int) bool {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return true // it has ended
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, thread.Name()))
		if err != nil {
			continue // it has ended
		}
		t, err := kernel.ParseProcess(stat)
		if err == nil && t.State != 'T' && t.State != 't' && !t.Ended() {
			return false
		}
	}
	return true
}

// Resume has the processes below a keeper go on.
func Resume(keeper int) error {
	all, err := Below(keeper)
	sendTo(all, syscall.SIGCONT)
	return err
}
