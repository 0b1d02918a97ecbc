package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent/config"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel/systemd"
)

// Exit statuses of berth config.
const (
	exitInvalid = 3 // check: a file is not valid
	exitDiffers = 3 // diff: there are changes
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check, preview and apply a NodeConfig, and take it back",
		Long: `Check, preview and apply a NodeConfig, the agent's configuration, and take it back.
docs/nodeconfig.md describes the file.

  check FILE      what is wrong with it, and what this host cannot do
  preview FILE    what the running agent would do under it
  apply FILE      have it in force, all of it or nothing
  history         the last ten that were in force
  rollback        the one before, or any of those, in force again
  diff OLD NEW    what differs between two files`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownVerb(cmd, args[0])
			}
			return exitStatus{exitUsage, errors.New("config: check, preview, apply, history, rollback or diff is needed (see 'berth config --help')")}
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(configCheckCommand(), configPreviewCommand(), configApplyCommand(), configHistoryCommand(), configRollbackCommand(), configDiffCommand())
	return cmd
}

func configCheckCommand() *cobra.Command {
	var anywhere bool
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Say all that is wrong with a NodeConfig, by line and field",
		Long: `Say all that is wrong with a NodeConfig, by line and field, and what an agent of this
user could not do of it on this host: CPUs, users and limits that it does not have, and
files that it would refuse. --anywhere looks at the file only, as for another host.

Exit status: 0 all valid, 1 a file could not be read, 2 wrong usage, 3 a file is
not valid.`,
		Example: `  berth config check /etc/berth/node.yaml
  berth config check --anywhere next.yaml    # for another host`,
		Args: fileArgs(1, 1<<10),
		RunE: func(cmd *cobra.Command, args []string) error {
			return checkConfigs(cmd, args, anywhere)
		},
	}
	cmd.Flags().BoolVar(&anywhere, "anywhere", false, "leave out what this host cannot do")
	outputFlag(cmd, "text or json")
	return cmd
}

// fileArgs accepts so many files.
func fileArgs(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return exitStatus{exitUsage, fmt.Errorf("%s: %s named (see '%s --help')", cmd.Name(), plain.Count(len(args), "file"), cmd.CommandPath())}
		}
		return nil
	}
}

// configReport is the result of checking one file, a line of JSON.
type configReport struct {
	File   string        `json:"file"`
	Valid  bool          `json:"valid"`
	Errors []configError `json:"errors,omitempty"`
	// Warnings are of a valid one.
	Warnings []config.Warning `json:"warnings,omitempty"`
}

type configError struct {
	Line  int    `json:"line,omitempty"`
	Field string `json:"field,omitempty"`
	Error string `json:"error"`
}

func checkConfigs(cmd *cobra.Command, files []string, anywhere bool) error {
	var checks []func(*config.NodeConfig) error
	if !anywhere {
		root, err := systemd.Open(rootDir(cmd))
		if err != nil {
			return err
		}
		onHost, err := daemon.CheckHost(daemon.Options{Root: root})
		if err != nil {
			return err
		}
		checks = append(checks, onHost)
	}
	var unread []error
	invalid := 0
	for _, file := range files {
		data, err := daemon.ReadFile(file)
		if err != nil {
			unread = append(unread, err)
			continue
		}
		c, err := config.Parse(data, file, checks...)
		if !anywhere {
			if alien := daemon.CheckFile(file); alien != nil {
				err = errors.Join(err, &strictyaml.Error{File: file, Err: fmt.Errorf("an agent of this user refuses it: %w", alien)})
			}
		}
		if err != nil {
			invalid++
		}
		if err := reportConfig(cmd, file, c, err); err != nil {
			return err
		}
	}
	switch {
	case len(unread) > 0:
		return errors.Join(unread...)
	case invalid > 0:
		return exitStatus{code: exitInvalid}
	}
	return nil
}

// reportConfig writes the result of Parse for a file.
func reportConfig(cmd *cobra.Command, file string, c *config.NodeConfig, invalid error) error {
	out := cmd.OutOrStdout()
	if isJSON(cmd) {
		r := configReport{File: file, Valid: invalid == nil}
		for _, e := range strictyaml.Errors(invalid) {
			r.Errors = append(r.Errors, configError{e.Line, e.Field, e.Err.Error()})
		}
		if invalid == nil {
			r.Warnings = c.Warnings()
		}
		return json.NewEncoder(out).Encode(r)
	}
	if invalid != nil {
		_, err := fmt.Fprintln(out, invalid)
		return err
	}
	rows := [][]string{{"    WORKLOAD", "CLASS", "LIMITS"}}
	for i := range c.Workloads {
		w := &c.Workloads[i]
		rows = append(rows, []string{"    " + w.Name, w.Class.String(), dash(limitsOf(c, w))})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: valid: policy %s, %s\n", plain.Line(file), c.Policy.Name, plain.Count(len(c.Workloads), "workload"))
	if len(rows) > 1 {
		plain.Columns(&b, rows)
	}
	for _, w := range c.Warnings() {
		fmt.Fprintf(&b, "    warning: %s\n", plain.Line(w.String()))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// limitsOf returns the limits of a workload by its configuration and its class.
func limitsOf(c *config.NodeConfig, w *config.Workload) string {
	spec := daemon.SpecOf(c, w, w.Name)
	limits := spec.Settings()
	return limitsText(&limits)
}

// limitsChanged says which workloads that two configurations have come to other limits.
func limitsChanged(old, changed *config.NodeConfig) (lines []string) {
	for i := range changed.Workloads {
		w := &changed.Workloads[i]
		j := slices.IndexFunc(old.Workloads, func(o config.Workload) bool { return o.Name == w.Name })
		if j < 0 {
			continue
		}
		was, is := dash(limitsOf(old, &old.Workloads[j])), dash(limitsOf(changed, w))
		if was != is {
			lines = append(lines, fmt.Sprintf("so the limits of %s are: %s; before: %s", w.Name, is, was))
		}
	}
	return lines
}

func configDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [OLD] NEW",
		Short: "Show what a NodeConfig would change from another, or from the defaults",
		Long: `Show in words what the NodeConfig NEW would change from OLD or, without it, from
the defaults, field by field. Workloads go by name.

Exit status: 0 nothing differs, 1 a file could not be read or is not valid,
2 wrong usage, 3 there are changes.`,
		Example: `  berth config diff /etc/berth/node.yaml next.yaml`,
		Args:    fileArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return diffConfigs(cmd, args)
		},
	}
	outputFlag(cmd, "text or json")
	return cmd
}

func diffConfigs(cmd *cobra.Command, files []string) error {
	configs := []*config.NodeConfig{config.Default()}
	for _, file := range files {
		c, err := daemon.ReadConfig(file)
		if err != nil {
			return err
		}
		configs = append(configs, c)
	}
	n := len(configs)
	changes, err := config.Diff(configs[n-2], configs[n-1])
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	for _, c := range changes {
		if isJSON(cmd) {
			err = json.NewEncoder(out).Encode(c)
		} else {
			_, err = fmt.Fprintln(out, plain.Line(c.String()))
		}
		if err != nil {
			return err
		}
	}
	if !isJSON(cmd) {
		for _, line := range limitsChanged(configs[n-2], configs[n-1]) {
			fmt.Fprintln(out, line)
		}
	}
	if len(changes) > 0 {
		return exitStatus{code: exitDiffers}
	}
	return nil
}
