package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
)

// Exit statuses of berth run before the command has begun, as of env, nice and
// timeout; after that, the status is the command's.
const (
	exitNotRun     = 125 // berth itself failed, or was used wrongly
	exitCannotExec = 126
	exitNotFound   = 127
)

type runFlags struct {
	nodeFlags
	specFlags
	name, file                                  string
	explain, dryRun, killLeft, quiet, keepGoing bool
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] {-- COMMAND [ARG...] | --file FILE}",
		Short: "Run a command on CPUs and memory nodes of its own, under a class and limits",
		Long: fmt.Sprintf(`Run a command on CPUs and memory nodes of its own, under a class and limits.

Berth places itself and then becomes COMMAND, as nice does. So
COMMAND has this process's id, terminal and standard streams from its first
instruction on, gets its signals, and its exit status is that of berth run.

The classes (LS is the default; docs/classes.md has all of their effects):
%sA --weight takes the place of the cpu.idle of class BE.

Exclusive CPUs are free of every other workload of Berth; other processes of the
host are kept off them by --confine only. Weights and I/O weights hold between
workloads of Berth; against the rest of the host these count as one. A user's own
best effort yields within the same delegated group only, and berth run says so.

The workload is released when its last process has ended; --kill-left kills the
processes that COMMAND leaves behind. A hidden process (berth __keep) releases it;
if that is killed, the next berth command does.

Without the right to use control groups, berth run sets the CPU affinity instead
and says so: the processes could change that themselves, and there are no
limits. The placement then ends with COMMAND.

--file runs several commands, which are placed in one change or not at all. FILE is
YAML, each command with the fields of a workload of a NodeConfig (docs/nodeconfig.md):

  workloads:
  - {name: api, class: LSE, cpus: 2, command: [./api, --port, "80"]}
  - {name: batch, class: BE, command: [make, -j8], limits: {quota: 500m}}

examples/shop.yaml is one with comments, docs/run-file-schema.json the schema for editors.
berth run stays with them. When one fails the others are ended: SIGTERM, and SIGKILL
after 10 s; --keep-going lets them run on. Ctrl-C and SIGTERM end all, at once if they
come twice. The places are released as their commands end. The commands have no
standard input. If berth run itself is killed, they run on, as one in the background does.

Exit status: that of COMMAND, with --file that of the first command that failed, 128 and
the signal's number if a signal ended it; 125 if berth itself failed or was used wrongly,
126 if COMMAND cannot be executed, 127 if it is not found.`, classHelp()),
		Example: `  berth run --class LSE --cpus 4 -- ./api             # four exclusive CPUs on whole cores
  berth run --class BE --quota 50% -- make -j8        # while no other group wants the CPU, at most half of one
  berth run --class LSE --cpus 2 --confine '*' -- ./api   # and keep all other groups off
  berth run --class LSR --cpus 2 --explain --dry-run -- ./api
  berth run --file shop.yaml                          # several commands, all placed or none`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case f.file != "" && len(args) > 0:
				return exitStatus{exitNotRun, errors.New("run: a COMMAND and --file: the commands stand in the file")}
			case f.file == "" && f.keepGoing:
				return exitStatus{exitNotRun, errors.New("run: --keep-going is for --file")}
			case f.file == "" && len(args) == 0:
				return exitStatus{exitNotRun, errors.New("run: a COMMAND is needed (see 'berth run --help')")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exitStatus{exitNotRun, fmt.Errorf("%w%s (see 'berth run --help')", err, nearestFlag(cmd, err))}
	})
	fs := cmd.Flags()
	fs.SetInterspersed(false)
	f.specFlags.register(cmd)
	f.nodeFlags.register(cmd)
	fs.StringVarP(&f.file, "file", "f", "", "run the commands of this `file`, placed as a whole; - reads standard input")
	fs.BoolVarP(&f.keepGoing, "keep-going", "k", false, "with --file, let the other commands run on when one fails")
	fs.StringVar(&f.name, "name", "", "name of the workload (default the command's name and process id)")
	fs.BoolVar(&f.explain, "explain", false, "say what it gets and why, on standard error, before it runs")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print what it would get and what would be written, and run nothing")
	fs.BoolVar(&f.killLeft, "kill-left", false, "when COMMAND ends, kill the processes that it leaves behind")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "no warnings")
	outputFlag(cmd, "what --dry-run prints: text or json")
	return cmd
}

// run becomes the command; it returns only if that did not come about.
func (f *runFlags) run(cmd *cobra.Command, argv []string) error {
	code := 0
	var err error
	if f.file != "" {
		code, err = f.runFile(cmd)
	} else {
		err = f.place(cmd, argv)
	}
	if code != 0 {
		return exitStatus{code, err}
	}
	status, ok := errors.AsType[exitStatus](err)
	switch {
	case errors.Is(err, context.Canceled):
		return exitStatus{exitInterrupted, errors.New("interrupted")}
	case err == nil || ok && status.code != exitUsage:
		return err
	}
	return exitStatus{exitNotRun, err}
}

func (f *runFlags) place(cmd *cobra.Command, argv []string) error {
	live, err := f.live(cmd)
	if err != nil {
		return err
	}
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	var spec agent.Spec
	wrong := f.apply(cmd, &spec)
	pid := os.Getpid()
	spec.Request.ID = f.name
	if f.name == "" {
		spec.Request.ID = fmt.Sprintf("%s-%d", filepath.Base(argv[0]), pid)
	}
	if live {
		spec.PID, spec.Owner = pid, agent.Owner{PID: pid}
	}
	n, err := f.open(cmd, f.dryRun)
	if err != nil {
		return err
	}
	err = errors.Join(wrong, f.validateCPUs(cmd, n))
	switch {
	case err != nil:
	case f.dryRun:
		err = f.preview(cmd, n, spec)
	default:
		err = f.begin(cmd, n, spec, path, argv)
	}
	return errors.Join(err, n.Close())
}

// live reports whether it is about the live host, and refuses flags that are for --dry-run.
func (f *runFlags) live(cmd *cobra.Command) (bool, error) {
	if cmd.Flags().Changed("output") && !f.dryRun {
		return false, errors.New("--output: it is what --dry-run prints; a command that runs has its own output")
	}
	live := filepath.Clean(rootDir(cmd)) == "/"
	if !live && !f.dryRun {
		return false, errors.New("--root: commands run on the live host only; --dry-run says what would be")
	}
	return live, nil
}

func (f *runFlags) begin(cmd *cobra.Command, n node, spec agent.Spec, path string, argv []string) error {
	if err := startReaper(cmd, f, spec.Request.ID); err != nil {
		return err
	}
	w, err := n.Place(cmd.Context(), spec)
	if err != nil {
		return err
	}
	f.announce(cmd.ErrOrStderr(), &w)
	// From here on signals are the command's: those that came before count.
	signal.Reset()
	if err := cmd.Context().Err(); err != nil {
		return exitStatus{exitInterrupted, errors.New("interrupted")}
	}
	return become(path, argv)
}

// announce prints explanation and warnings before the command runs.
func (f *runFlags) announce(out io.Writer, w *agent.Workload) {
	if f.explain {
		_, _ = io.WriteString(out, explanation(w, nil, true))
		return
	}
	if f.quiet {
		return
	}
	if len(w.Notes) > 0 {
		fmt.Fprintln(out, "berth: warning:", plain.Line(strings.Join(w.Notes, "; ")))
	}
}

// lookUp finds a command as execvp does.
func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound):
		return "", exitStatus{exitNotFound, fmt.Errorf("run %s: not found", name)}
	}
	return "", exitStatus{exitCannotExec, fmt.Errorf("run %s: %w", name, errors.Unwrap(err))}
}

// preview prints the result that a run would have.
func (f *runFlags) preview(cmd *cobra.Command, n node, spec agent.Spec) error {
	w, plan, err := n.Preview(cmd.Context(), spec)
	if err != nil {
		return err
	}
	return show(cmd, struct {
		Workload agent.Workload `json:"workload"`
		Plan     kernel.Plan    `json:"plan"`
	}{w, plan}, func() string {
		text := explanation(&w, nil, f.explain)
		if len(plan) > 0 {
			text += "\nwrites\n" + plan.String()
		}
		return text
	})
}
