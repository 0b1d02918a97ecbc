package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/place"
	"berth.dev/berth/watch/pods"
)

type adoptFlags struct {
	nodeFlags
	specFlags
	name, unit, group string
	pid               int
}

func adoptCommand() *cobra.Command {
	var f adoptFlags
	cmd := &cobra.Command{
		Use:   "adopt {--pid N | --unit UNIT | --cgroup PATH} [flags]",
		Short: "Give a process, a systemd unit or a control group that runs already CPUs and limits",
		Long: fmt.Sprintf(`Give a process, a systemd unit or a control group that runs already CPUs and limits,
as berth run gives them to a command. Nothing is restarted.

--pid moves the process, with those below it, into a control group of Berth's own.
--unit and --cgroup leave the processes where they are and change their group. A
process of a service or a container is not moved out of its group: name that.

The classes (LS is the default; docs/classes.md has all of their effects):
%s
berth release NAME --keep takes it all back, and leaves the processes running. What was
adopted with --pid is released as well when its last process has ended, by the agent or
the next berth command.

Exit status: 0, 1 if it was not adopted, 2 for wrong usage.`, classHelp()),
		Example: `  sudo berth adopt --pid 4711 --class BE                    # yields the CPU to all others
  sudo berth adopt --unit nginx.service --class LSR --cpus 2
  sudo berth adopt --cgroup batch --class BE --quota 2
  sudo berth release nginx.service --keep                   # as it was`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.nodeFlags.with(cmd, false, func(n node) error {
				w, err := f.adopt(cmd, n)
				if err != nil {
					return err
				}
				if !isJSON(cmd) && len(w.Notes) > 0 {
					fmt.Fprintln(cmd.ErrOrStderr(), "berth: warning:", plain.Line(strings.Join(w.Notes, "; ")))
				}
				return changed(cmd, &w)
			})
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&f.pid, "pid", 0, "`process` to adopt, with those below it")
	fs.StringVar(&f.unit, "unit", "", "systemd `unit` to adopt: a .service, .scope or .slice")
	fs.StringVar(&f.group, "cgroup", "", "`path` of a control group to adopt, as berth watch prints it")
	fs.StringVar(&f.name, "name", "", "name of the workload (default the unit, the path, or the program's name and process id)")
	f.specFlags.register(cmd)
	f.nodeFlags.register(cmd)
	outputFlag(cmd, "text or json")
	return cmd
}

func (f *adoptFlags) adopt(cmd *cobra.Command, n node) (w agent.Workload, err error) {
	given := 0
	for _, flag := range []string{"pid", "unit", "cgroup"} {
		if cmd.Flags().Changed(flag) {
			given++
		}
	}
	if given != 1 {
		return w, exitStatus{exitUsage, errors.New("adopt: one of --pid, --unit and --cgroup is needed (see 'berth adopt --help')")}
	}
	var spec agent.Spec
	if err := errors.Join(f.apply(cmd, &spec), f.validateCPUs(cmd, n)); err != nil {
		return w, err
	}
	switch {
	case f.unit != "":
		spec.Request.ID = f.unit
		var root *kernel.Root
		if root, err = systemd.Open(rootDir(cmd)); err == nil {
			spec.Group, err = systemd.ControlGroup(cmd.Context(), root, f.unit)
		}
	case f.group != "":
		if spec.Group = strings.Trim(f.group, "/"); spec.Group == "" {
			return w, exitStatus{exitUsage, fmt.Errorf("--cgroup %s: it is the root, and all processes of the host are below it: name a group in it, or a process (--pid)", plain.Shell(f.group))}
		}
		spec.Request.ID = spec.Group
	default:
		_, asked := n.(*api.Client) // an agent knows who may adopt what
		err = f.process(cmd, &spec, asked)
	}
	if err != nil {
		return w, err
	}
	spec.Request.ID = cmp.Or(f.name, spec.Request.ID)
	w, err = n.Place(cmd.Context(), spec)
	if is[*agent.MissingError](err) && f.group != "" {
		if root, openErr := systemd.Open(rootDir(cmd)); openErr == nil {
			if why := unreadable(root, f.group); why != "" {
				return w, fmt.Errorf("--cgroup %s: %s", plain.Shell(f.group), why)
			}
		}
	}
	if held, ok := errors.AsType[*place.HeldError](err); ok {
		name := plain.Shell(held.ID)
		return w, fmt.Errorf("%s has a place already: 'berth resize %s' changes it, 'berth release %s --keep' gives it back; --name gives another name", plain.Line(held.ID), name, name)
	}
	return w, err
}

// process has a spec adopt --pid.
func (f *adoptFlags) process(cmd *cobra.Command, spec *agent.Spec, asked bool) error {
	if f.pid <= 0 {
		return exitStatus{exitUsage, fmt.Errorf("--pid %d: no process has that number", f.pid)}
	}
	root := os.DirFS(rootDir(cmd))
	name, err := fs.ReadFile(root, fmt.Sprintf("proc/%d/comm", f.pid))
	if err == nil {
		err = adoptable(root, f.pid, asked)
	}
	if err == nil {
		err = mayLeave(root, f.pid)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("there is no such process")
	}
	if err != nil {
		return fmt.Errorf("--pid %d: %w", f.pid, err)
	}
	spec.Request.ID = fmt.Sprintf("%s-%d", strings.TrimSpace(string(name)), f.pid)
	spec.PID, spec.Descendants, spec.Owner = f.pid, true, agent.Owner{PID: f.pid}
	return nil
}

// adoptable refuses what is no process of a workload: the host's first one, below which all
// run, and the kernel's own threads; and, unless an agent is asked, that of another user.
func adoptable(root fs.FS, pid int, asked bool) error {
	p, err := kernel.ReadProcess(root, strconv.Itoa(pid))
	if err != nil {
		return err
	}
	switch {
	case pid == 1:
		return errors.New("all processes of the host are below it: name the one that you mean")
	case p.Kernel:
		return errors.New("it is a thread of the kernel, which the kernel places itself")
	case asked || os.Geteuid() == 0:
		return nil
	}
	uids, err := kernel.ReadUIDs(root, pid)
	if err == nil && uids[0] != os.Geteuid() {
		err = fmt.Errorf("it is a process of user %d: adopt it as that user, or as root", uids[0])
	}
	return err
}

// mayLeave refuses to move a process out of the group of a service or a container: who owns
// the group would lose sight of it.
func mayLeave(root fs.FS, pid int) error {
	members, err := cgroup.ReadMembership(root, strconv.Itoa(pid))
	if err != nil {
		return err
	}
	for _, m := range members {
		container, inContainer := containerAround(m.Path)
		switch {
		case inContainer:
			return fmt.Errorf("it is of the container %s: adopt that with --cgroup %s", plain.Line(container), plain.Shell(container))
		case strings.HasSuffix(m.Path, ".scope") && !strings.HasPrefix(path.Base(m.Path), "session-"):
			return fmt.Errorf("it is of the scope %s, which ends when it leaves: adopt that with --cgroup %s", plain.Line(m.Path), plain.Shell(m.Path))
		case strings.HasSuffix(m.Path, ".service"):
			unit := path.Base(m.Path)
			return fmt.Errorf("it is of the service %s: adopt that with --unit %s", plain.Line(unit), plain.Shell(unit))
		}
	}
	return nil
}

// containerAround returns the group of the outermost container that a group is, or lies in. In a group of the
// kubelet's that looks like no container's, it is that group.
func containerAround(group string) (container string, ok bool) {
	pod := false
	for i, c := range group + "/" {
		if c != '/' {
			continue
		}
		if _, is := pods.ContainerOf(group[:i]); is {
			return group[:i], true
		}
		pod = pod || pods.Parse(group[:i]).Level != pods.None
	}
	return group, pod
}
