package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// endTime is what commands get to end after SIGTERM, before they are killed.
const endTime = 10 * time.Second

// runFile places the commands of a file, all of them or none, and waits until they have
// ended. The code is that of the first that failed.
func (f *runFlags) runFile(cmd *cobra.Command) (code int, err error) {
	if _, err := f.live(cmd); err != nil {
		return 0, err
	}
	g, err := f.team(cmd)
	if err != nil {
		return 0, err
	}
	if f.dryRun {
		n, err := f.open(cmd, true)
		if err != nil {
			return 0, err
		}
		return 0, errors.Join(g.preview(cmd.Context(), n), n.Close())
	}
	return g.run(cmd.Context())
}

// team reads the file.
func (f *runFlags) team(cmd *cobra.Command) (*team, error) {
	spec := &cobra.Command{}
	(&specFlags{}).register(spec)
	var wrong error
	spec.Flags().VisitAll(func(flag *pflag.Flag) {
		if cmd.Flags().Changed(flag.Name) {
			wrong = fmt.Errorf("--%s and --file: what a command gets stands in the file", flag.Name)
		}
	})
	switch {
	case wrong != nil:
		return nil, wrong
	case f.name != "":
		return nil, errors.New("--name and --file: the names stand in the file")
	}
	var text []byte
	var err error
	if f.file == "-" {
		text, err = daemon.ReadText(cmd.InOrStdin(), "from standard input")
	} else {
		text, err = daemon.ReadFile(f.file)
	}
	if err != nil {
		return nil, err
	}
	has, err := f.size(cmd)
	if err != nil {
		return nil, err
	}
	b, err := config.ParseBundle(text, f.file, func(b *config.Bundle) error { return beyond(b, has) })
	if err != nil {
		return nil, err
	}
	g := &team{flags: f, cmd: cmd}
	var errs []error
	for i := range b.Workloads {
		c := &b.Workloads[i]
		path, err := lookUp(c.Command[0])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		m := &member{name: c.Name, path: path, argv: c.Command}
		m.spec = agent.Spec{Request: c.Request(c.Name), Limits: c.Limits.Cgroup(), Bandwidth: agent.Bandwidth{Limit: c.Bandwidth}}
		for kind, name := range c.ClassesOf() {
			m.spec.SetClass(agent.ClassKind(kind), name)
		}
		m.spec.Request.Group, m.spec.Request.Explain = b.Group, true
		g.members = append(g.members, m)
	}
	return g, errors.Join(errs...)
}

// beyond says which amounts of a file the host does not have.
func beyond(b *config.Bundle, has config.Size) error {
	var errs []error
	for i := range b.Workloads {
		for _, e := range b.Workloads[i].Beyond(has) {
			e.Field = fmt.Sprintf("workloads[%d].%s", i, e.Field)
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}

// size is what the host has.
func (f *nodeFlags) size(cmd *cobra.Command) (has config.Size, err error) {
	n, err := f.open(cmd, true)
	if err != nil {
		return has, err
	}
	s, err := n.State(cmd.Context())
	if err = errors.Join(err, n.Close()); err != nil {
		return has, err
	}
	return sizeOf(cmd, s), nil
}

func sizeOf(cmd *cobra.Command, s *place.State) config.Size {
	memory, _ := kernel.ReadMemory(os.DirFS(rootDir(cmd))) // what is not known bounds nothing
	return config.Size{CPUs: s.Topology().Online().Len(), Memory: memory.Total}
}

// team are the commands of a file.
type team struct {
	flags   *runFlags
	cmd     *cobra.Command
	members []*member
	stopped bool // they were sent a signal to end
}

// member is one of them, and its process.
type member struct {
	name, path string
	argv       []string
	spec       agent.Spec
	process    *exec.Cmd
	start      *os.File // a byte on it has the process become the command
	over       bool
}

func (g *team) specs() (all []agent.Spec) {
	for _, m := range g.members {
		all = append(all, m.spec)
	}
	return all
}

func (g *team) run(ctx context.Context) (code int, err error) {
	signals := make(chan os.Signal, 2) // the second one counts, too, if it comes before the first is looked at
	signal.Notify(signals, endSignals()...)
	defer signal.Stop(signals)
	ended := make(chan *member, len(g.members))
	for _, m := range g.members {
		if err = g.prepare(m); err != nil {
			break
		}
		go func() { _ = m.process.Wait(); ended <- m }() // its state tells
	}
	if err == nil {
		err = g.place(ctx)
	}
	if err == nil {
		err = ctx.Err() // signals that came before there were commands
	}
	for _, m := range g.members {
		if m.start == nil {
			continue
		}
		if err == nil {
			_, _ = m.start.Write([]byte{1}) // one that was killed meanwhile has ended
		}
		_ = m.start.Close()
	}
	if err != nil {
		for _, m := range g.members {
			if m.start != nil {
				<-ended
			}
		}
		return 0, err
	}
	code = g.watch(signals, ended)
	g.cmd.SetContext(context.WithoutCancel(ctx)) // what a signal ended is to be given back
	return code, g.release(g.cmd.Context())
}

// preview prints what a run would come to.
func (g *team) preview(ctx context.Context, n node) error {
	all, plan, err := n.PreviewTogether(ctx, g.specs())
	if err != nil {
		return err
	}
	return show(g.cmd, struct {
		Workloads []agent.Workload `json:"workloads"`
		Plan      kernel.Plan      `json:"plan"`
	}{all, plan}, func() string {
		var parts []string
		for i := range all {
			parts = append(parts, explanation(&all[i], nil, g.flags.explain))
		}
		if len(plan) > 0 {
			parts = append(parts, "writes\n"+plan.String())
		}
		return strings.Join(parts, "\n")
	})
}

// prepare starts the process that is to be a command, and that waits for it to be placed.
func (g *team) prepare(m *member) error {
	args, err := nodeArgs(g.cmd)
	if err != nil {
		return err
	}
	ready, told, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	wait, start, err := os.Pipe()
	if err != nil {
		return errors.Join(err, told.Close())
	}
	args = append(append([]string{"__start"}, args...), fmt.Sprintf("--kill-left=%t", g.flags.killLeft), "--", m.name, m.path)
	m.process = exec.Command("/proc/self/exe", append(args, m.argv...)...)
	m.process.ExtraFiles = []*os.File{told, wait}
	m.process.Stdout, m.process.Stderr = direct(g.cmd.OutOrStdout()), direct(g.cmd.ErrOrStderr())
	err = m.process.Start()
	_ = told.Close() // the process has it
	_ = wait.Close()
	if err == nil {
		if _, err = ready.Read(make([]byte, 1)); err != nil {
			_ = start.Close()
			err = errors.Join(err, m.process.Wait())
		}
	} else {
		_ = start.Close()
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", m.name, err)
	}
	m.start = start
	m.spec.PID = m.process.Process.Pid
	m.spec.Owner = agent.Owner{PID: m.spec.PID}
	return nil
}

// direct is the file that a writer writes to, so that a command has that itself.
func direct(w io.Writer) io.Writer {
	if f, ok := fileOf(w); ok {
		return f
	}
	return w
}

// place places all processes, or none.
func (g *team) place(ctx context.Context) error {
	n, err := g.flags.open(g.cmd, false)
	if err != nil {
		return err
	}
	all, err := n.PlaceTogether(ctx, g.specs())
	if err = errors.Join(err, n.Close()); err != nil {
		return err
	}
	var said []string
	for i := range all {
		w := &all[i]
		for _, note := range w.Notes {
			if note = strings.ReplaceAll(note, " "+w.Grant.Own.String()+":", ":"); !slices.Contains(said, note) { // the same for all
				said = append(said, note)
			}
		}
		if g.flags.explain {
			g.say(explanation(w, nil, true))
		} else {
			g.tell(fmt.Sprintf("%s runs on %s", w.ID(), list(w.CPUs)))
		}
	}
	if len(said) > 0 && !g.flags.explain {
		g.tell("warning: " + strings.Join(said, "; "))
	}
	return nil
}

func (g *team) say(text string) { _, _ = io.WriteString(g.cmd.ErrOrStderr(), text) }

// tell prints a line about the commands.
func (g *team) tell(text string) {
	if !g.flags.quiet {
		g.say("berth: " + plain.Line(text) + "\n")
	}
}

// watch waits until all commands have ended. A signal, or a command that fails, ends the
// others; a second signal kills them. The status is that of the signal, or of the first
// command that failed.
func (g *team) watch(signals chan os.Signal, ended chan *member) (status int) {
	var kill <-chan time.Time
	interrupted := false
	for left := len(g.members); left > 0; {
		select {
		case m := <-ended:
			m.over = true
			left--
			code := statusOf(m.process.ProcessState)
			g.tell(fmt.Sprintf("%s has ended with status %d", m.name, code))
			if code == 0 || status != 0 {
				continue
			}
			status = code
			if left > 0 && !g.flags.keepGoing {
				g.tell(fmt.Sprintf("the others are ended, as %s failed (--keep-going lets them run on)", m.name))
				g.signal(syscall.SIGTERM)
				kill = time.After(endTime)
			}
		case s := <-signals:
			if interrupted {
				g.kill()
				continue
			}
			interrupted, status = true, 128+int(s.(syscall.Signal))
			g.signal(syscall.SIGTERM)
			kill = time.After(endTime)
		case <-kill:
			g.kill()
		}
	}
	return status
}

// statusOf is the exit status that a shell would show.
func statusOf(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}

// signal sends a signal to the commands that are left.
func (g *team) signal(s os.Signal) {
	g.stopped = true
	for _, m := range g.members {
		if !m.over {
			_ = m.process.Process.Signal(s) // it may have ended meanwhile
		}
	}
}

// kill kills the commands that are left.
func (g *team) kill() {
	g.tell("killing what has not ended")
	g.signal(syscall.SIGKILL)
}

// release gives the places back. What commands leave behind keeps its place, unless all were
// told to end, or with --kill-left.
func (g *team) release(ctx context.Context) error {
	n, err := g.flags.open(g.cmd, false)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range g.members {
		leaving := agent.WhenEmpty
		if g.flags.killLeft || g.stopped {
			leaving = agent.Kill
		}
		w, err := n.Get(ctx, m.name)
		if is[*place.NotHeldError](err) || err == nil && w.Spec.Owner.PID != m.spec.PID {
			continue // the process that waited for its end was faster
		}
		err = release(ctx, n, m.name, leaving)
		occupied, ok := errors.AsType[*agent.OccupiedError](err)
		switch {
		case is[*place.NotHeldError](err):
		case ok:
			g.tell(fmt.Sprintf("%s has left processes %v, which keep its place until they end ('berth release %s --kill' ends them)", m.name, occupied.PIDs, m.name))
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errors.Join(errs...), n.Close())
}

// childStartCommand is the process of a command until it is placed.
func childStartCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:    "__start ID PATH ARG...",
		Short:  "Wait to be placed, and become a command (started by berth run --file)",
		Hidden: true,
		Args:   cobra.MinimumNArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			ready, start := os.NewFile(3, "descriptor 3"), os.NewFile(4, "descriptor 4")
			for _, file := range []*os.File{ready, start} {
				syscall.CloseOnExec(int(file.Fd()))
			}
			if err := startReaper(cmd, &f, args[0]); err != nil {
				return err
			}
			if _, err := ready.Write([]byte{1}); err != nil {
				return err
			}
			if n, _ := start.Read(make([]byte, 1)); n == 0 {
				return exitStatus{code: exitNotRun} // there is no place for it: its parent says why
			}
			return become(args[1], args[2:])
		},
	}
	cmd.Flags().BoolVar(&f.killLeft, "kill-left", false, "kill the processes that the command leaves behind")
	socketFlag(cmd)
	return cmd
}

// become has this process become a command.
func become(path string, argv []string) error {
	signal.Reset()
	err := syscall.Exec(path, argv, os.Environ())
	if errors.Is(err, syscall.ENOEXEC) { // a script without #!, as shells and execvp do
		err = syscall.Exec("/bin/sh", append([]string{"sh", path}, argv[1:]...), os.Environ())
	}
	return exitStatus{exitCannotExec, fmt.Errorf("run %s: %w", path, err)}
}
