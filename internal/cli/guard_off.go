package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
)

func guardOffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "off",
		Short: "Turn the agent's guard off, or restore what a killed one left",
		Long: `Restore the values that a killed guard left changed. A value that another writer has
changed since is left as it is. The guard of a running agent is turned off, and
restores everything, until its mode is set anew. Another guard that runs restores
everything itself when it is ended; then this names its process. berth restore does
the same, for everything that Berth changes.

Exit status: 0 if nothing was left or all of it was restored, 1 if a guard runs, or
something could not be restored, 2 for wrong usage.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := systemd.Open(rootDir(cmd))
			if err != nil {
				return err
			}
			asked, err := agentGuardOff(cmd)
			if err != nil {
				return err
			}
			if asked && !isJSON(cmd) {
				fmt.Fprintln(cmd.OutOrStdout(), "the agent's guard is off until its configuration changes; it has restored everything")
			}
			report, err := restoreGuard(root, guardDir(cmd), false)
			if report != nil && report.Kept {
				return errors.Join(err, fmt.Errorf("guard off: a guard is running%s: end it, and it restores everything", report.who()))
			}
			items := []kernel.Item{}
			if report != nil {
				items = append(items, report.Items...)
			}
			return errors.Join(err, show(cmd, items, func() string {
				if err == nil && len(items) == 0 && !asked {
					return "nothing to restore\n"
				}
				return restoredText(kernel.Report{Items: items})
			}))
		},
	}
	outputFlag(cmd, "text or json")
	socketFlag(cmd)
	return cmd
}

func guardStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say whether a guard runs, and which remedies are active",
		Long: `Say whether a guard that may act runs on this host, which workloads it helps, and
which remedies are active; or which values a killed one left.

Exit status: 0, 1 if that cannot be read, 2 for wrong usage.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := guardStatus(cmd)
			if err != nil {
				return err
			}
			return show(cmd, s, s.text)
		},
	}
	outputFlag(cmd, "text or json")
	socketFlag(cmd)
	return cmd
}

// guardDir is the state directory of the guard: beside that of the node.
func guardDir(cmd *cobra.Command) string {
	dir, _ := stateOf(cmd)
	return agent.GuardDir(dir)
}

// running describes a guard that may act, in a file for others to read.
type running struct {
	PID       int              `json:"pid"`
	Since     time.Time        `json:"since"`
	Mode      control.Mode     `json:"mode"`
	Sensitive []string         `json:"sensitive"`
	Active    []control.Action `json:"inForce"`
}

const runningName = "running.json"

func readRunning(dir string) (r running, ok bool) {
	text, err := kernel.ReadPrivateFile(filepath.Join(dir, runningName))
	return r, err == nil && json.Unmarshal(text, &r) == nil
}

// note writes what is active for others to read; it is no record to restore from.
func (g *guarding) note() {
	if g.dir == "" {
		return
	}
	now := running{PID: os.Getpid(), Since: g.began, Mode: control.Enforce, Sensitive: g.sensitive}
	if s := g.status(); s != nil {
		now.Active = s.Active
	}
	text, err := json.Marshal(now)
	if err == nil {
		err = kernel.ReplacePrivateFile(filepath.Join(g.dir, runningName), text)
	}
	if err != nil {
		g.complain(fmt.Sprintf("note the active remedies: %v", err))
	}
}

func (g *guarding) end() {
	if g.dir != "" {
		_ = os.Remove(filepath.Join(g.dir, runningName))
	}
}

// guardReport is the result of restoring from the guard's undo log.
type guardReport struct {
	Dir string `json:"dir"`
	// Kept is true if a guard runs, so that it was left alone.
	Kept bool `json:"kept,omitempty"`
	// PID, State and Program are that guard's process, state directory, and what it is.
	PID     int    `json:"pid,omitempty"`
	State   string `json:"state,omitempty"`
	Program string `json:"program,omitempty"`
	// Items are what was restored; if it was left alone, what is active.
	Items []kernel.Item `json:"items,omitempty"`
}

func (r *guardReport) who() string {
	if r.PID == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s, process %d, state directory %s)", cmp.Or(plain.Line(r.Program), "berth guard"), r.PID, plain.Line(r.State))
}

func (r *guardReport) text() string {
	if !r.Kept {
		return restoredText(kernel.Report{Items: r.Items})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "alive      the guard%s: left alone\n", r.who())
	for _, item := range r.Items {
		fmt.Fprintf(&b, "active     %s\n", plain.Line(item.Step.String()))
	}
	return b.String()
}

// restoreGuard restores the values that a killed guard left, or previews that. Without a
// guard's directory the report is nil.
func restoreGuard(root *kernel.Root, dir string, dry bool) (*guardReport, error) {
	_, none := os.Stat(dir)
	report := &guardReport{Dir: dir}
	if dry {
		notes, by, err := actuate.Look(actuate.Options{Root: root, Dir: dir})
		if errors.Is(err, kernel.ErrNotSupported) {
			return nil, nil
		}
		report.Kept, report.PID, report.State, report.Program, report.Items = by.PID != 0, by.PID, by.Dir, by.Program, notes
		if !report.Kept {
			slices.Reverse(report.Items)
		}
		if errors.Is(none, fs.ErrNotExist) && !report.Kept && err == nil {
			return nil, nil
		}
		return report, err
	}
	if errors.Is(none, fs.ErrNotExist) {
		return nil, nil
	}
	h, err := actuate.Open(actuate.Options{Root: root, Dir: dir})
	busy, isBusy := errors.AsType[*actuate.BusyError](err)
	header, unreadable := errors.AsType[*kernel.HeaderError](err)
	switch {
	case isBusy:
		report.Kept, report.PID, report.State, report.Program = true, busy.PID, busy.Dir, busy.Program
		report.Items, _, err = actuate.Look(actuate.Options{Root: root, Dir: dir})
		return report, err
	case errors.Is(err, kernel.ErrNotSupported):
		return nil, nil // no groups: nothing can be active
	case unreadable:
		// No process writes to it, nor can a guard start: no lock is needed.
		to := fmt.Sprintf("%s.unreadable-%d", header.File, time.Now().UnixNano())
		if err := os.Rename(header.File, to); err != nil {
			return report, err
		}
		return report, lostLog(header, to)
	case err != nil:
		return report, err
	}
	report.Items, err = h.Restore()
	if err == nil {
		_ = os.Remove(filepath.Join(dir, runningName))
	}
	return report, errors.Join(err, h.Close())
}

// guardState is the output of berth guard status.
type guardState struct {
	Running *running `json:"running,omitempty"`
	// Elsewhere is a guard that has another state directory, or has told nothing yet.
	Elsewhere *guardReport `json:"elsewhere,omitempty"`
	// Left lists the values that a killed guard left.
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
		if s.Running = &r; r.PID != report.PID {
			s.Running, s.Elsewhere = nil, report
		}
	} else if report != nil {
		s.Left = report.Items
	}
	err = withAgent(cmd, func(c *api.Client) error {
		g, err := c.Guard(cmd.Context())
		s.Agent = &g
		return err
	})
	if s.Elsewhere != nil && s.Agent != nil && s.Agent.Mode == config.GuardEnforce {
		s.Elsewhere = nil // it is the agent's
	}
	return s, err
}

// none reports whether no guard runs, and none left anything.
func (s *guardState) none() bool {
	return s.Agent == nil && s.Running == nil && s.Elsewhere == nil && len(s.Left) == 0
}

func (s *guardState) text() string {
	var b strings.Builder
	if s.Agent != nil {
		b.WriteString(agentGuardText(s.Agent))
	}
	switch {
	case s.Agent != nil && s.Agent.Mode == config.GuardEnforce && s.Agent.Status != nil:
	case s.Elsewhere != nil:
		fmt.Fprintf(&b, "another guard that may act runs%s\n", s.Elsewhere.who())
	case s.Running != nil:
		fmt.Fprintf(&b, "a guard runs (%v): process %d, since %s, helps %s\n",
			s.Running.Mode, s.Running.PID, s.Running.Since.Format(time.DateTime), plain.Line(fewNames(s.Running.Sensitive)))
		activeText(&b, s.Running.Active, plain.Line)
	case len(s.Left) > 0:
		b.WriteString("no guard runs, and one that was killed left these values; berth guard off restores the originals:\n")
		for _, item := range s.Left {
			fmt.Fprintf(&b, "  %s\n", plain.Line(item.Step.String()))
		}
	default:
		if s.Agent == nil || s.Agent.Status == nil {
			b.WriteString("no guard runs that may act, and no remedy is active\n")
		}
	}
	return b.String()
}
