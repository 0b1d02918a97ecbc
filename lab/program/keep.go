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
	"slices"
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
	// Repeat starts the program again whenever its first process ends with status 0. Copies of
	// it run at once; 0 is 1, and no other goes without Repeat.
	Repeat bool `json:"repeat,omitempty"`
	Copies int  `json:"copies,omitempty"`
	// Exec is a command that is run for each request, once the program runs.
	Exec *Exec `json:"exec,omitempty"`
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
	k.exec = 0 // its end is no error any more
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
	first    []int // the first process of each copy of the program, while it runs
	exec     int   // the process that serves Exec; 0 for none
}

func (k *keeper) run(ctx context.Context, out io.Writer) (err error) {
	for _, argv := range k.Before {
		if err := k.begin(argv); err != nil {
			return err
		}
		if ended, err := k.wait(ctx, false); err != nil || ended == 0 {
			return err
		}
	}
	for range max(k.Copies, 1) {
		if err := k.begin(k.Argv); err != nil {
			return err
		}
	}
	if k.Exec != nil {
		if k.exec, err = k.start(k.Exec.argv(), false); err != nil {
			return err
		}
	}
	if err := json.NewEncoder(out).Encode(Started{k.first[0]}); err != nil {
		return fmt.Errorf("keeper: print: %w", err)
	}
	for {
		ended, err := k.wait(ctx, !k.Repeat)
		switch {
		case err != nil || ended == 0:
			return err
		case !k.Repeat:
			return errors.New("it ended with status 0")
		}
		for range ended {
			if err := k.begin(k.Argv); err != nil {
				return err
			}
		}
	}
}

// begin starts the program, or what comes before it.
func (k *keeper) begin(argv []string) error {
	pid, err := k.start(argv, true)
	if err == nil {
		k.first = append(k.first, pid)
	}
	return err
}

// start starts a command: one of the program's in its folder and as its user.
func (k *keeper) start(argv []string, its bool) (pid int, err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if its {
		cmd.Dir = k.Dir
	}
	if its && k.User != "" && os.Geteuid() == 0 {
		if cmd.SysProcAttr.Credential, err = credentialOf(k.User); err != nil {
			return 0, err
		}
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
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

// wait waits for the end of a first process and, if others, of those that it has left
// behind, as a daemon does, and says how many first ones have ended; 0 means that it was
// called off. It is an error if one ends with another status than 0.
func (k *keeper) wait(ctx context.Context, others bool) (ended int, err error) {
	for {
		n, status, _, err := k.reap()
		ended += n
		switch {
		case err != nil:
			return 0, err
		case status != 0:
			return 0, errors.New(statusText(status))
		case ended > 0 && !others:
			return ended, nil
		case ended > 0:
			left, err := k.own()
			if err != nil || len(left) == 0 {
				return ended, err
			}
		}
		select {
		case <-k.children:
		case <-ctx.Done():
			return 0, nil
		}
	}
}

// reap takes the status of all children that have ended: how many of them are first
// processes, and the status of one that failed. More says that there are others: a process
// whose threads have not all ended looks ended, but cannot be reaped.
func (k *keeper) reap() (ended int, status syscall.WaitStatus, more bool, err error) {
	for {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &s, syscall.WNOHANG, nil)
		switch at := slices.Index(k.first, pid); {
		case err == syscall.EINTR:
		case err != nil && err != syscall.ECHILD:
			return 0, 0, false, os.NewSyscallError("wait4", err)
		case pid <= 0:
			return ended, status, err == nil, nil
		case at >= 0:
			k.first = slices.Delete(k.first, at, at+1)
			ended++
			if s != 0 {
				status = s
			}
		case pid == k.exec:
			k.exec = 0
			return 0, 0, false, fmt.Errorf("the process that runs %q: %s", k.Exec.Command, statusText(s))
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

// own are those of them that the program has left, and not the runs of a command.
func (k *keeper) own() ([]int, error) {
	all, err := k.left()
	if err != nil || k.exec == 0 {
		return all, err
	}
	runs, err := Below(k.exec)
	return slices.DeleteFunc(all, func(pid int) bool { return pid == k.exec || slices.Contains(runs, pid) }), err
}

// end ends all processes below the keeper.
func (k *keeper) end() error {
	asked := false
	for began := time.Now(); time.Since(began) < stopWithin+killWithin; {
		_, _, more, err := k.reap()
		if err != nil || !more {
			return err
		}
		left, err := k.left()
		if err != nil {
			return err
		}
		switch {
		case time.Since(began) >= stopWithin || k.Stop != 0 && asked && len(k.first) == 0:
			sendTo(left, syscall.SIGKILL)
		case asked:
		case k.Stop != 0 && len(k.first) > 0:
			sendTo(k.first, k.Stop)
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
// error. Copies are those that the keeper has run again and again, 0 for none: it would start
// one anew that has just ended, so Halt waits until all are there. Go on with Resume.
func Halt(keeper, copies int, limit time.Duration) error {
	stopped, still := map[int]bool{}, false // whether all that were found had stopped before this look
	for began := time.Now(); ; time.Sleep(200 * time.Microsecond) {
		all, err := Below(keeper)
		if err != nil {
			return err
		}
		rest, firsts := 0, 0
		for _, pid := range all {
			if !stopped[pid] {
				sendTo([]int{pid}, syscall.SIGSTOP)
				stopped[pid], still = true, false // it was started by one that has stopped since
			}
			switch {
			case !halted(pid):
				rest++
			case copies > 0 && isFirst(pid, keeper):
				firsts++
			}
		}
		if still && rest == 0 && (firsts >= copies || slices.ContainsFunc(all, func(pid int) bool { return starting(pid, keeper) })) {
			return nil // all are there, or one has stopped before exec, and the keeper starts nothing meanwhile
		}
		still = rest == 0
		if time.Since(began) > limit {
			if still {
				return fmt.Errorf("%d of %d copies run after %s", firsts, copies, limit)
			}
			return fmt.Errorf("%d processes have not stopped after %s", rest, limit)
		}
	}
}

// isFirst reports whether a process, which has not ended, is one that the keeper started: in a
// group of its own.
func isFirst(pid, keeper int) bool {
	p, err := kernel.ReadProcess(os.DirFS("/"), strconv.Itoa(pid))
	group, err2 := unix.Getpgid(pid)
	return errors.Join(err, err2) == nil && !p.Ended() && p.Parent == keeper && group == pid
}

// halted reports whether no thread of a process runs: each has stopped, has ended, or sleeps until a
// child that has stopped goes on, as vfork has its caller wait for exec.
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
		if err == nil && t.State != 'T' && t.State != 't' && !t.Ended() && (t.State != 'D' || !hasHaltedChild(pid)) {
			return false
		}
	}
	return true
}

// starting reports whether a process has yet to become what the keeper starts: it is the keeper's
// own program, before exec.
func starting(pid, keeper int) bool {
	is, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	was, err2 := os.Readlink(fmt.Sprintf("/proc/%d/exe", keeper))
	return errors.Join(err, err2) == nil && is == was
}

func hasHaltedChild(pid int) bool {
	below, err := Below(pid)
	return err == nil && slices.ContainsFunc(below, halted)
}

// Resume has the processes below a keeper go on.
func Resume(keeper int) error {
	all, err := Below(keeper)
	sendTo(all, syscall.SIGCONT)
	return err
}
