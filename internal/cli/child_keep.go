package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// startReaper starts the process that releases the workload once this process, which
// will be the command, has ended. The command must not find a child that it does not
// know of, so the reaper is a grandchild whose parent ends at once. When startReaper
// returns, the reaper watches.
func startReaper(cmd *cobra.Command, f *runFlags, id string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	args, err := nodeArgs(cmd)
	if err != nil {
		return err
	}
	c := reaperCommand(append(args, "--kill-left="+strconv.FormatBool(f.killLeft), "--", id, strconv.Itoa(os.Getpid())), w)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = c.Run()
	w.Close()
	if err == nil {
		_, err = r.Read(make([]byte, 1))
	}
	if err != nil {
		return fmt.Errorf("start the process that gives the place back: %w", err)
	}
	return nil
}

// reaperCommand is this program as a reaper that says on a pipe, its descriptor
// 3, when it watches.
func reaperCommand(args []string, ready *os.File) *exec.Cmd {
	c := exec.Command("/proc/self/exe", append([]string{"__keep"}, args...)...)
	c.Dir, c.ExtraFiles = "/", []*os.File{ready}
	return c
}

func childKeepCommand() *cobra.Command {
	var k reaper
	var fork bool
	cmd := &cobra.Command{
		Use:    "__keep ID PID",
		Short:  "Give the place of a command back when it has ended (started by berth run)",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			k.ready = os.NewFile(3, "descriptor 3")
			if fork {
				if err := closeOthersOnExec(k.ready); err != nil {
					return err
				}
				return reaperCommand(append([]string{"--fork=false"}, os.Args[2:]...), k.ready).Start()
			}
			k.id = args[0]
			if k.pid, err = strconv.Atoi(args[1]); err != nil {
				return err
			}
			k.open = func() (node, error) { return (&nodeFlags{}).open(cmd, false) }
			return k.keep(context.WithoutCancel(cmd.Context()))
		},
	}
	socketFlag(cmd)
	cmd.Flags().BoolVar(&fork, "fork", true, "start the reaper and end")
	cmd.Flags().BoolVar(&k.killLeft, "kill-left", false, "kill the processes that are left")
	return cmd
}

// closeOthersOnExec closes, in the reaper, the files that the caller of berth run has
// open, such as a lock or the end of a pipe.
func closeOthersOnExec(keep *os.File) error {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err == nil && fd > 2 && fd != int(keep.Fd()) {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

type reaper struct {
	open     func() (node, error)
	ready    *os.File
	id       string
	pid      int
	killLeft bool
}

func (k *reaper) keep(ctx context.Context) error {
	// Stopping a service signals all its processes, and this one is needed after.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	fd, err := unix.PidfdOpen(k.pid, 0)
	if err != nil {
		return err
	}
	// Fails if the process has ended meanwhile, and the id may be another's.
	if _, err := k.ready.Write([]byte{1}); err != nil {
		return err
	}
	k.ready.Close()
	watched := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(watched, -1); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return k.release(ctx)
}

// How often a reaper looks whether processes that were left behind have ended.
const (
	keepFirst = 20 * time.Millisecond
	keepMost  = time.Second
)

// release releases the workload once it has no processes.
func (k *reaper) release(ctx context.Context) error {
	for wait := keepFirst; ; wait = min(2*wait, keepMost) {
		dirs, err := k.try(ctx)
		if !is[*agent.OccupiedError](err) && !is[*agent.StuckError](err) {
			return err
		}
		for time.Sleep(wait); hasProcesses(dirs); time.Sleep(wait) {
			wait = min(2*wait, keepMost)
		}
	}
}

// try releases the workload if it is still the one of the process.
func (k *reaper) try(ctx context.Context) (dirs []string, err error) {
	n, err := k.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	w, err := n.Get(ctx, k.id)
	if is[*place.NotHeldError](err) || err == nil && w.Spec.Owner.PID != k.pid {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	leaving := agent.WhenEmpty
	if k.killLeft {
		leaving = agent.Kill
	}
	return w.Dirs, release(ctx, n, k.id, leaving)
}

// hasProcesses reports whether a group, a directory relative to /, has processes.
func hasProcesses(dirs []string) bool {
	if len(dirs) == 0 {
		return false
	}
	has, err := kernel.HasProcs(os.DirFS("/"), dirs[0])
	return err == nil && has
}
