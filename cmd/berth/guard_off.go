package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
)

func guardOffCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "off",
		Short: "Turn the agent's guard off, or give back what a killed one left in force",
		Long: `Give back what a killed guard left in force, as it was before. A value that someone
else has changed since is left as it is. The guard of an agent that runs is turned off, and
gives everything back, until its mode is set anew. Another guard that runs gives
everything back itself when it is ended; then this says which process it is. berth
restore does the same, for everything that Berth changes.

Exit status: 0 if nothing was left to give back or all of it was, 1 if a guard runs, or
something could not be given back, 2 for wrong usage.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			root, err := systemd.Open(rootDir(cmd))
			if err != nil {
				return err
			}
			asked, err := agentGuardOff(cmd)
			if err != nil {
				return err
			}
			if asked && output != "json" {
				fmt.Fprintln(cmd.OutOrStdout(), "the agent's guard is off until its configuration changes; it has given everything back")
			}
			report, err := restoreGuard(root, guardDir(cmd), false)
			if report != nil && report.Kept {
				return errors.Join(err, fmt.Errorf("guard off: a guard is running%s: end it, and it gives everything back", report.who()))
			}
			items := []kernel.Item{}
			if report != nil {
				items = append(items, report.Items...)
			}
			if output == "json" {
				return errors.Join(err, writeJSON(cmd.OutOrStdout(), items))
			}
			printRestored(cmd.OutOrStdout(), kernel.Report{Items: items})
			if err == nil && len(items) == 0 && !asked {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing to give back")
			}
			return err
		},
	}
	outputFlag(cmd, &output)
	completeWords(cmd, "output", "text", "json")
	socketFlag(cmd)
	return cmd
}

func guardStatusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether a guard runs, and what is in force",
		Long: `Say whether a guard that may act runs on this host, whom it looks after, and what
it has in force; or what a killed one left.

Exit status: 0, 1 if that cannot be read, 2 for wrong usage.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			s, err := guardStatus(cmd)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), s)
			}
			s.print(cmd.OutOrStdout())
			return nil
		},
	}
	outputFlag(cmd, &output)
	completeWords(cmd, "output", "text", "json")
	socketFlag(cmd)
	return cmd
}

// guardDir is the state directory of the guard: beside that of the node.
func guardDir(cmd *cobra.Command) string {
	if dir, named := stateOf(cmd); named {
		return guardDirOf(dir)
	}
	return guardDirOf(nodeDir(rootDir(cmd)))
}

// guardDirOf is that of the guard beside a node's.
func guardDirOf(node string) string {
	if filepath.Base(node) == "node" {
		return filepath.Join(filepath.Dir(node), "guard")
	}
	return filepath.Clean(node) + "-guard"
}

// running is what a guard that may act notes about itself, for others to read.
type running struct {
	PID       int              `json:"pid"`
	Since     time.Time        `json:"since"`
	Mode      control.Mode     `json:"mode"`
	Sensitive []string         `json:"sensitive"`
	InForce   []control.Action `json:"inForce"`
}

const runningName = "running.json"

func readRunning(dir string) (r running, ok bool) {
	text, err := os.ReadFile(filepath.Join(dir, runningName))
	return r, err == nil && json.Unmarshal(text, &r) == nil
}

// note writes what is in force for others to read; it is no record to restore from.
func (g *guarding) note() {
	if g.dir == "" {
		return
	}
	s := g.runner.Status()
	text, err := json.Marshal(running{os.Getpid(), g.began, s.Mode, g.sensitive, s.InForce})
	if err == nil {
		name := filepath.Join(g.dir, runningName)
		if err = os.WriteFile(name+".new", text, 0o600); err == nil {
			err = os.Rename(name+".new", name)
		}
	}
	if err != nil {
		fmt.Fprintf(g.cmd.ErrOrStderr(), "berth: note what is in force: %v\n", err)
	}
}

func (g *guarding) end() {
	if g.dir != "" {
		_ = os.Remove(filepath.Join(g.dir, runningName))
	}
}

// guardReport is what became of the guard's ledger.
type guardReport struct {
	Dir string `json:"dir"`
	// Kept is true if a guard runs, so that it was left alone.
	Kept  bool          `json:"kept,omitempty"`
	PID   int           `json:"pid,omitempty"`
	Items []kernel.Item `json:"items,omitempty"`
}

func (r *guardReport) who() string {
	if r.PID == 0 {
		return ""
	}
	return fmt.Sprintf(" (process %d)", r.PID)
}

// print returns how many lines it has printed.
func (r *guardReport) print(w io.Writer) int {
	if r.Kept {
		fmt.Fprintf(w, "alive      the guard%s: left alone\n", r.who())
		return 1
	}
	printRestored(w, kernel.Report{Items: r.Items})
	return len(r.Items)
}

// restoreGuard gives back what a killed guard left, or says what it would. Without a
// guard's directory the report is nil.
func restoreGuard(root *kernel.Root, dir string, dry bool) (*guardReport, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	report := &guardReport{Dir: dir}
	h, err := actuate.Open(actuate.Options{Root: root, Dir: dir})
	var busy *actuate.BusyError
	switch {
	case errors.As(err, &busy):
		report.Kept = true
		if r, ok := readRunning(dir); ok {
			report.PID = r.PID
		}
		return report, nil
	case errors.Is(err, kernel.ErrNotSupported):
		return nil, nil // no groups: nothing can be in force
	case err != nil:
		return report, err
	}
	if dry {
		report.Items = h.Notes()
		slices.Reverse(report.Items)
		return report, h.Close()
	}
	report.Items, err = h.Restore()
	if err == nil {
		_ = os.Remove(filepath.Join(dir, runningName))
	}
	return report, errors.Join(err, h.Close())
}

// guardState is what berth guard status says.
type guardState struct {
	Running *running `json:"running,omitempty"`
	// Left is what a killed guard left.
	Left []kernel.Item `json:"left,omitempty"`
	// Agent is where the guard of the agent stands, if one runs.
	Agent *api.Guard `json:"agent,omitempty"`
}

func guardStatus(cmd *cobra.Command) (*guardState, error) {
	s := &guardState{}
	root, err := systemd.Open(rootDir(cmd))
	if err != nil {
		return nil, err
	}
	dir := guardDir(cmd)
	report, err := restoreGuard(root, dir, true)
	if err != nil {
		return nil, err
	}
	if report != nil && report.Kept {
		r, _ := readRunning(dir)
		s.Running = &r
	} else if report != nil {
		s.Left = report.Items
	}
	s.Agent, err = agentGuard(cmd)
	if s.Running != nil && s.Running.PID == 0 && s.Agent != nil && s.Agent.Mode == config.GuardEnforce {
		s.Running = nil // it is the agent's
	}
	return s, err
}

func (s *guardState) print(w io.Writer) {
	if s.Agent != nil {
		printAgentGuard(w, s.Agent)
	}
	switch {
	case s.Agent != nil && s.Agent.Mode == config.GuardEnforce && s.Agent.Status != nil:
	case s.Running != nil && s.Running.PID == 0:
		fmt.Fprintln(w, "a guard is starting or ending")
	case s.Running != nil:
		fmt.Fprintf(w, "a guard runs (%v): process %d, since %s, looks after %s\n",
			s.Running.Mode, s.Running.PID, s.Running.Since.Format(time.DateTime), onLine(fewNames(s.Running.Sensitive)))
		for _, a := range s.Running.InForce {
			fmt.Fprintf(w, "  in force: %s, for %s\n", onLine(a.String()), onLine(a.Victim))
		}
		if len(s.Running.InForce) == 0 {
			fmt.Fprintln(w, "  nothing is in force")
		}
	case len(s.Left) > 0:
		fmt.Fprintln(w, "no guard runs, and one that was killed left this in force; berth guard off gives it back:")
		for _, item := range s.Left {
			fmt.Fprintf(w, "  %s\n", item.Step)
		}
	default:
		fmt.Fprintln(w, "no guard runs that may act, and nothing is in force")
	}
}

// liveMachine is the hardware, if it can be read.
func liveMachine(cmd *cobra.Command) (*machine.Machine, error) {
	m, err := sysfs.Live(rootDir(cmd))
	if err != nil {
		return nil, err
	}
	return m, m.Validate()
}

func sortedGroups(all map[string]guard.Workload) []string { return slices.Sorted(maps.Keys(all)) }
