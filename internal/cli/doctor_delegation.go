package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/doctor"
	"berth.dev/berth/kernel"
)

// Exit statuses of "doctor delegation".
const (
	exitNotApplied    = 3
	exitAbsent        = 4
	exitCustomised    = 5
	exitNotApplicable = 6
)

func delegationCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delegation",
		Short: "Let ordinary users divide their share of CPUs, memory and I/O (systemd drop-in)",
		Long: `Manage the drop-in that makes systemd delegate the controllers cpu, cpuset, io,
memory and pids to every user's manager (user@.service), so that ordinary users
can isolate their own work, rootless containers included:

  /` + doctor.DelegationPath + `

A drop-in that another writer changed is never touched.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(checkCommand(), verifyCommand(), enableCommand(), disableCommand())
	return cmd
}

func inspectDelegation(dir string) (doctor.Delegation, error) {
	fsys, err := openTree(dir)
	if err != nil {
		return doctor.Delegation{}, err
	}
	v2, err := doctor.UnifiedMount(fsys)
	if err != nil {
		return doctor.Delegation{}, err
	}
	return doctor.InspectDelegation(fsys, v2)
}

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Explain what is delegated, by which files, and what is not",
		Long: `Explain what is delegated, by which files, and what user managers really have.

Exit status: 0 whatever came out; 1 it could not be examined; 2 wrong usage.
For an exit status per state, use verify.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := inspectDelegation(rootDir(cmd))
			if err != nil {
				return err
			}
			return show(cmd, s, func() string { return explain(screenOf(cmd.OutOrStdout()), s) })
		},
	}
	outputFlag(cmd, "text or json")
	return cmd
}

func explain(on screen, s doctor.Delegation) string {
	pairs := [][2]string{
		{"why", s.Reason},
		{"remedy", s.Remedy},
		{"drop-in", fmt.Sprintf("/%s: %s", s.Path, s.File)},
		{"wanted", strings.Join(s.Wanted, " ")},
		{"configured", orNone(s.Configured)},
	}
	for _, source := range s.Sources {
		for _, value := range source.Values {
			pairs = append(pairs, [2]string{"", "/" + source.Path + ": Delegate=" + value})
		}
	}
	if s.Running {
		pairs = append(pairs, [2]string{"offered", orNone(s.Offered) + " (cgroup v2)"})
	}
	for _, m := range s.Managers {
		text := m.Unit + " has " + orNone(m.Controllers)
		if len(m.Missing) > 0 {
			text += ", lacks " + strings.Join(m.Missing, " ")
		}
		pairs = append(pairs, [2]string{"observed", text})
	}
	return fmt.Sprintf("delegation: %s\n", s.State) + on.lines(pairs)
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, " ")
}

func verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Print the state in one line and exit by it, for scripts",
		Long: `Print the state in one line and exit by it.

Exit status: 0 applied; 1 it could not be examined; 2 wrong usage;
3 installed but not yet applied; 4 absent; 5 customised; 6 not applicable.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := inspectDelegation(rootDir(cmd))
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "delegation: %s: %s\n", s.State, s.Reason); err != nil {
				return err
			}
			code, other := map[doctor.DelegationState]int{
				doctor.DelegationInstalled: exitNotApplied, doctor.DelegationAbsent: exitAbsent,
				doctor.DelegationCustomised: exitCustomised, doctor.DelegationNotApplicable: exitNotApplicable,
			}[s.State]
			if other {
				return exitStatus{code: code}
			}
			return nil
		},
	}
}

func enableCommand() *cobra.Command {
	return changeCommand(&cobra.Command{
		Use:   "enable",
		Short: "Install the drop-in and reload systemd",
		Long: `Install the drop-in and, on the live host, run systemctl daemon-reload.

Exit status: 0 installed or nothing to do; 1 it could not be done (not root,
for example); 2 wrong usage; 5 refused, another writer changed the drop-in;
6 not applicable: no systemd, or no controllers in cgroup v2.`,
	}, doctor.Delegation.Enable)
}

func disableCommand() *cobra.Command {
	return changeCommand(&cobra.Command{
		Use:   "disable",
		Short: "Remove Berth's drop-in, if it is unchanged, and reload systemd",
		Long: `Remove Berth's own unchanged drop-in, and its directory where Berth made it and
nothing else is in it. On the live host, run systemctl daemon-reload.

Exit status: 0 removed or nothing to do; 1 it could not be done; 2 wrong usage;
5 refused, another writer changed the drop-in.`,
	}, doctor.Delegation.Disable)
}

func changeCommand(cmd *cobra.Command, decide func(doctor.Delegation) (doctor.DelegationChange, error)) *cobra.Command {
	var dryRun bool
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		root, out := rootDir(cmd), cmd.OutOrStdout()
		s, err := inspectDelegation(root)
		if err != nil {
			return err
		}
		change, err := decide(s)
		if err != nil {
			return refusal(err)
		}
		if dryRun || change.Nothing != "" {
			_, err := io.WriteString(out, preview(change))
			return err
		}
		if err := change.Apply(root); err != nil {
			return refusal(err)
		}
		fmt.Fprintln(out, describe(change, "wrote", "made", "removed"))
		text, err := tellSystemd(cmd.Context(), root, s.Running)
		fmt.Fprint(out, text)
		return err
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done")
	return cmd
}

// refusal gives an error of a change its exit status and, where rights are
// missing, the remedy.
func refusal(err error) error {
	switch {
	case errors.Is(err, doctor.ErrDelegationCustomised):
		return exitStatus{exitCustomised, err}
	case errors.Is(err, kernel.ErrNotSupported):
		return exitStatus{exitNotApplicable, err}
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (run it with sudo)", err)
	}
	return err
}

// preview says what the effect of a change would be.
func preview(c doctor.DelegationChange) string {
	if c.Nothing != "" {
		return fmt.Sprintf("nothing to do: %s\n", c.Nothing)
	}
	text := "would " + describe(c, "write", "make", "remove") + "\n"
	for line := range strings.Lines(c.Text) {
		text += "  " + line
	}
	return text
}

// describe puts a change into words, with verbs of the wanted tense.
func describe(c doctor.DelegationChange, write, makes, remove string) string {
	switch {
	case c.Text == "" && c.RemoveDir:
		return remove + " /" + c.Path + " and, if nothing else is in it, its directory"
	case c.Text == "":
		return remove + " /" + c.Path
	case c.MakeDir:
		return write + " /" + c.Path + " and " + makes + " its directory"
	}
	return write + " /" + c.Path
}

// tellSystemd makes a running systemd read its files again, or says how to, and
// then says how things stand.
func tellSystemd(ctx context.Context, root string, running bool) (string, error) {
	if !isLive(root) || !running {
		return "next: on the running host, systemctl daemon-reload, then log out and in again\n", nil
	}
	if out, err := exec.CommandContext(ctx, "systemctl", "daemon-reload").CombinedOutput(); err != nil {
		return fmt.Sprintf("systemctl daemon-reload: %v %s\nnext: run it by hand, then log out and in again\n", err, strings.TrimSpace(string(out))), nil
	}
	s, err := inspectDelegation(root)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("systemctl daemon-reload: done\ndelegation: %s: %s\n", s.State, s.Reason)
	if s.Remedy != "" {
		text += fmt.Sprintf("next: %s\n", s.Remedy)
	}
	return text, nil
}
