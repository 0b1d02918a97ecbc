package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
)

// restoreCommand gives back what killed runs left.
func restoreCommand() *cobra.Command {
	var r restoring
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Give back every value and group that a killed run left behind",
		Long: `Give back every value and group that a killed run left behind.

A running berth notes in a journal what it is about to change. Restore reads
the journals of runs that are no longer alive, undoes what they did not undo
themselves, the last change first, and removes the journals. A value that
someone else has changed since is left as it is. A controller that other
groups use by now stays enabled, and its journal is kept for a later restore; so
is that of a cpuset which cannot be emptied while it holds processes. Journals of living runs are
left alone; those from before a reboot are only removed. It can be called, and
killed, at any time.

What a killed guard left in force is given back first. The node of berth run is
restored as well: a change that was cut short is finished, and the places of
commands that have ended are given back. --all takes away the places of living
ones, too, and every value that Berth overwrote for them; their processes go back to the groups that they came from. An agent that
runs keeps the node, and then only stopping it helps. --dry-run does not look at
the node.

Journals are in /run/berth for root, and else in $XDG_RUNTIME_DIR/berth or
/tmp/berth-UID; under --root DIR, in DIR/run/berth.

Exit status: 0 if nothing was left to give back or all of it was, 1 if
something could not be given back, 2 for wrong usage.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(r.output); err != nil {
				return err
			}
			r.root = rootDir(cmd)
			return r.giveBack(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&r.journals, "journal", "", "directory of the journals (default: see above)")
	cmd.Flags().StringVar(&r.state, "state", "", "state directory of the node, if an agent's configuration names another (stateDir)")
	outputFlag(cmd, &r.output)
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "say what would be given back, and change nothing")
	cmd.Flags().BoolVar(&r.all, "all", false, "take away the places of living commands, too")
	return cmd
}

// restoring says what to restore.
type restoring struct {
	root, journals, output string
	state                  string // the node's directory
	dryRun, all            bool
}

// restoreReport is what journals and node gave back.
type restoreReport struct {
	kernel.Report
	Node *nodeReport `json:"node,omitempty"`
	// Guard is what a killed guard left.
	Guard *guardReport `json:"guard,omitempty"`
}

// nodeReport is what became of the node.
type nodeReport struct {
	Dir string `json:"dir"`
	// Kept is true if an agent keeps it, so that it was left alone.
	Kept   bool          `json:"kept,omitempty"`
	Events []agent.Event `json:"events,omitempty"`
	Items  []kernel.Item `json:"items,omitempty"`
}

// giveBack restores what dead runs left, or says what it would, and prints the report.
func (r *restoring) giveBack(ctx context.Context, w io.Writer) error {
	root, err := systemd.Open(r.root)
	if err != nil {
		return err
	}
	dir := r.journals
	if dir == "" {
		dir = journalDir(root.Name())
	} else if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("restore: --journal: %w", err)
	}
	restore := kernel.Restore
	if r.dryRun {
		restore = kernel.Preview
	}
	var report restoreReport
	var guardErr error
	report.Guard, guardErr = restoreGuard(root, r.guardDir(root), r.dryRun)
	report.Report, err = restore(root, dir)
	err = errors.Join(err, guardErr)
	if !r.dryRun {
		var nodeErr error
		report.Node, nodeErr = r.node(ctx, root, report.Guard != nil)
		err = errors.Join(err, nodeErr)
	}
	if r.output == "json" {
		return errors.Join(err, writeJSON(w, report))
	}
	printRestored(w, report.Report)
	found := len(report.Items) + len(report.Stale) + len(report.Alive) + len(report.Foreign)
	if report.Guard != nil {
		found += report.Guard.print(w)
	}
	if report.Node != nil {
		found += printNode(w, report.Node)
	}
	if err == nil && found == 0 {
		fmt.Fprintln(w, "nothing to give back")
	}
	return err
}

// guardDir is the guard's state directory.
func (r *restoring) guardDir(root *kernel.Root) string {
	if r.state != "" {
		return guardDirOf(r.state)
	}
	return guardDirOf(nodeDir(root.Name()))
}

// node gives back what dead owners left, or everything. Without a node, the
// report is nil; guarded is whether there is a guard in its place.
func (r *restoring) node(ctx context.Context, root *kernel.Root, guarded bool) (*nodeReport, error) {
	report := &nodeReport{Dir: r.state}
	if report.Dir == "" {
		report.Dir = nodeDir(root.Name())
	}
	if _, err := os.Stat(report.Dir); errors.Is(err, fs.ErrNotExist) {
		return r.lost(root, guarded)
	}
	// With Keep, an agent is found at once, and other commands are waited for.
	err := r.settle(ctx, report, agent.Options{
		Root: root, Dir: report.Dir, Keep: true,
		Events: func(e agent.Event) { report.Events = append(report.Events, e) },
	})
	var busy *agent.BusyError
	if !errors.As(err, &busy) {
		return report, err
	}
	report.Kept = true
	if !r.all {
		return report, nil
	}
	return report, fmt.Errorf("restore: %w: stop it first", err)
}

// lost is about a state directory that is not there. One that was named is missed, unless
// a guard alone had it, but for a mark that it has left on the control groups, which giving
// everything back removes.
func (r *restoring) lost(root *kernel.Root, guarded bool) (*nodeReport, error) {
	if r.all && r.state != "" {
		ok, err := agent.Disclaim(agent.Options{Root: root, Dir: r.state})
		if err != nil {
			return nil, err
		}
		if ok {
			e := agent.Event{Time: time.Now(), Kind: agent.Dropped, Object: r.state, Text: "its node is gone: its mark was removed, and others may place"}
			return &nodeReport{Dir: r.state, Events: []agent.Event{e}}, nil
		}
	}
	if r.state == "" || guarded {
		return nil, nil
	}
	return nil, fmt.Errorf("restore: %w", noState(r.state))
}

// settle gives back what can be. A ledger of which nothing can be read is set aside,
// which is an error.
func (r *restoring) settle(ctx context.Context, report *nodeReport, opt agent.Options) error {
	err := r.settleNoted(ctx, report, opt)
	var header *kernel.HeaderError
	if !errors.As(err, &header) {
		return err
	}
	to, asideErr := agent.SetAside(ctx, opt)
	if asideErr != nil || to == "" {
		return errors.Join(err, asideErr)
	}
	lost := fmt.Errorf("restore: ledger %s: %w: it is %s now, and what it notes was not given back: check by hand the values and groups that it lists, then delete it", header.File, header.Cause, to)
	return errors.Join(lost, r.settleNoted(ctx, report, opt))
}

// settleNoted gives back what dead owners left or, also where that is in the way,
// everything.
func (r *restoring) settleNoted(ctx context.Context, report *nodeReport, opt agent.Options) (err error) {
	if r.all {
		report.Items, err = agent.Restore(ctx, opt)
		return err
	}
	n, err := lockNode(ctx, opt)
	if err != nil {
		return err
	}
	for _, e := range report.Events {
		if e.Kind == agent.Failed {
			err = errors.New("restore: not all could be given back: " + e.Text)
		}
	}
	return errors.Join(err, n.Close())
}

// printNode returns how many lines it has printed.
func printNode(w io.Writer, r *nodeReport) int {
	if r.Kept {
		fmt.Fprintf(w, "alive      node %s: an agent keeps it, and releases what is dead itself\n", r.Dir)
		return 1
	}
	printed := len(r.Items)
	for _, e := range r.Events {
		if e.Kind != agent.Restored { // the items say it
			fmt.Fprintf(w, "%-9s  %s%s: %s\n", e.Kind, onLine(e.ID), onLine(e.Object), onLine(e.Text))
			printed++
		}
	}
	printRestored(w, kernel.Report{Items: r.Items})
	return printed
}

// journalDir returns where runs under the given root keep their journals.
func journalDir(root string) string {
	if filepath.Clean(root) != "/" {
		return filepath.Join(root, "run/berth")
	}
	return kernel.JournalDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
}

func printRestored(w io.Writer, r kernel.Report) {
	for _, item := range r.Items {
		fmt.Fprintf(w, "%-9s  %s\n", item.Outcome, undoing(item))
		if item.Error != "" {
			fmt.Fprintf(w, "           %s\n", item.Error)
		}
	}
	for _, o := range r.Stale {
		fmt.Fprintf(w, "removed    the journal of %s: written before the last boot\n", owner(o))
	}
	for _, o := range r.Alive {
		fmt.Fprintf(w, "alive      %s: left alone\n", owner(o))
	}
	for _, o := range r.Foreign {
		fmt.Fprintf(w, "foreign    %s: made under --root %s, left alone\n", owner(o), o.Root)
	}
}

// undoing says what undoing a step is, as one would type it.
func undoing(item kernel.Item) string {
	s := item.Step
	switch s.Op {
	case kernel.Mkdir:
		return "rmdir /" + s.Path
	case kernel.Attach:
		return kernel.Step{Path: s.Back, Value: s.Value}.String()
	case kernel.Enable:
		var off []string
		for word := range strings.FieldsSeq(s.Value) {
			if word = strings.TrimPrefix(word, "+"); !slices.Contains(strings.Fields(item.Original), word) {
				off = append(off, "-"+word)
			}
		}
		return kernel.Step{Path: s.Path, Value: strings.Join(off, " ")}.String()
	}
	return kernel.Step{Path: s.Path, Value: item.Original}.String()
}

func owner(o kernel.Owner) string {
	if o.Program == "" {
		return o.Journal
	}
	return fmt.Sprintf("%s (process %d, since %s)", o.Program, o.PID, o.Started.Format("2006-01-02 15:04:05"))
}
