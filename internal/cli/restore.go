package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/place/policies"
)

func restoreCommand() *cobra.Command {
	var r restoring
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Restore every value and group that a killed run left behind",
		Long: `Restore every value and group that a killed run left behind.

A running berth writes each change to an undo log before it makes the change. Restore
reads the undo logs of runs that have ended, undoes what they did not undo themselves,
the last change first, and removes the logs. A value that another writer has changed
since is left as it is. A controller that other groups use by now stays enabled, and
its undo log is kept for a later restore; so is that of a cpuset which cannot be
emptied while it holds processes. The logs of living runs are left alone; those from
before a reboot are only removed. It can be called, and killed, at any time.

What a killed guard left active is restored first. A guard that runs is left alone
with its active remedies: they are listed, with its process, and the exit status is 1,
as nothing of it was restored. It restores everything itself when it is ended. The
node of berth run is restored as well: a change that was cut short is finished, and
workloads whose commands have ended are released. --all also releases workloads with
processes, and restores every value that Berth overwrote for them; their processes go
back to the groups that they came from. While an agent runs it keeps the node: stop
it first. What stays in force is listed; --dry-run lists it, too.

Undo logs are in /run/berth for root, and else in $XDG_RUNTIME_DIR/berth or
/tmp/berth-UID; under --root DIR, in DIR/run/berth.

Only what Berth changes is written: control groups, classes of resctrl, power settings of
CPUs, queues of network devices, and how processes are scheduled. An entry for any other
path is refused and kept. An undo log that another user owns, or could write to, is
refused as a whole.

Exit status: 0 if nothing was left or all of it was restored, 1 if something could
not be restored or read, or a guard runs that has active remedies, 2 for wrong usage.`,
		Example: `  sudo berth restore --dry-run    # what is left, and what stays in force
  sudo berth restore              # after a kill -9
  sudo berth restore --all        # stop using Berth: also what runs goes back`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.undo(cmd)
		},
	}
	cmd.Flags().StringVar(&r.logs, "undo-logs", "", "`directory` of the undo logs (default: see above)")
	cmd.Flags().StringVar(&r.logs, "journal", "", "the former name of --undo-logs")
	_ = cmd.Flags().MarkHidden("journal") // it is there
	exclusive(cmd, "undo-logs", "journal")
	cmd.Flags().String("state", "", "state directory of the node, if an agent's configuration names another (stateDir)")
	outputFlag(cmd, "text or json")
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "say what would be restored, and change nothing")
	cmd.Flags().BoolVar(&r.all, "all", false, "release the workloads of living commands, too")
	return cmd
}

type restoring struct {
	logs        string
	dryRun, all bool
	state       string // the node's directory
	named       bool   // it is not the usual one
}

type restoreReport struct {
	kernel.Report
	Node *nodeReport `json:"node,omitempty"`
	// Guard lists the values that a killed guard left.
	Guard *guardReport `json:"guard,omitempty"`
}

type nodeReport struct {
	Dir string `json:"dir"`
	// Kept is true if an agent keeps it, so that it was left alone.
	Kept   bool          `json:"kept,omitempty"`
	Events []agent.Event `json:"events,omitempty"`
	Items  []kernel.Item `json:"items,omitempty"`
	// InUse are the workloads that keep their CPUs and limits: they have processes, or an
	// agent keeps them.
	InUse []string `json:"inUse,omitempty"`
}

// undo restores the values that dead runs left, or previews that, and prints the report.
func (r *restoring) undo(cmd *cobra.Command) error {
	r.state, r.named = stateOf(cmd)
	root, err := systemd.Open(rootDir(cmd))
	if err != nil {
		return err
	}
	dir := r.logs
	if dir == "" {
		dir = root.RunDir()
	} else if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("restore: --undo-logs: %w", err)
	}
	restore := kernel.Restore
	if r.dryRun {
		restore = kernel.Preview
	}
	var report restoreReport
	var guardErr error
	report.Guard, guardErr = restoreGuard(root, guardDir(cmd), r.dryRun)
	report.Report, err = restore(root, dir)
	err = errors.Join(err, guardErr)
	if report.Guard != nil && report.Guard.Kept && len(report.Guard.Items) > 0 && !r.dryRun {
		err = errors.Join(err, fmt.Errorf("restore: a guard is running%s, and has %d active values: end it, and it restores them", report.Guard.who(), len(report.Guard.Items)))
	}
	var nodeErr error
	if r.dryRun {
		report.Node, nodeErr = r.look(cmd.Context(), root)
	} else {
		report.Node, nodeErr = r.node(cmd.Context(), root, report.Guard != nil)
	}
	if elsewhere := checkElsewhere(cmd, false); elsewhere != nil {
		nodeErr = errors.Join(nodeErr, fmt.Errorf("restore: %w", elsewhere))
	}
	err = errors.Join(err, nodeErr)
	return errors.Join(err, show(cmd, report, func() string {
		text := restoredText(report.Report)
		if report.Guard != nil {
			text += report.Guard.text()
		}
		if report.Node != nil {
			text += report.Node.text()
		}
		if err == nil && text == "" {
			return "nothing to restore\n"
		}
		return text
	}))
}

// node reaps the workloads of dead owners, or restores everything. Without a node, the
// report is nil; guarded is whether there is a guard in its place.
func (r *restoring) node(ctx context.Context, root *kernel.Root, guarded bool) (*nodeReport, error) {
	report := &nodeReport{Dir: r.state}
	if _, err := os.Stat(report.Dir); errors.Is(err, fs.ErrNotExist) {
		return r.lost(root, guarded)
	}
	// With Keep, an agent is found at once, and other commands are waited for.
	err := r.settle(ctx, report, agent.Options{
		Root: root, Dir: report.Dir, Keep: true,
		Events: func(e agent.Event) { report.Events = append(report.Events, e) },
	})
	if !is[*agent.BusyError](err) {
		return report, err
	}
	looked, lookErr := r.look(ctx, root)
	if report.Kept = true; looked != nil {
		report.InUse = looked.InUse
	}
	if r.all {
		lookErr = errors.Join(fmt.Errorf("restore: %w", err), lookErr)
	}
	return report, lookErr
}

// look lists the workloads of a node, and changes nothing. Without a node, the report is nil.
func (r *restoring) look(ctx context.Context, root *kernel.Root) (*nodeReport, error) {
	if _, err := os.Stat(r.state); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	n, err := agent.NewReader(agent.Options{Root: root, Dir: r.state, Policies: policies.New})
	if err != nil {
		return nil, err
	}
	report := &nodeReport{Dir: r.state}
	err = report.list(ctx, n)
	return report, errors.Join(err, n.Close())
}

// list notes the workloads that are in use.
func (r *nodeReport) list(ctx context.Context, n node) error {
	placed, err := n.List(ctx)
	for i := range placed {
		r.InUse = append(r.InUse, placed[i].ID())
	}
	return err
}

// lost is about a state directory that is not there. One that was named is missed, unless
// a guard alone had it, but for a mark that it has left on the control groups, which giving
// everything back removes.
func (r *restoring) lost(root *kernel.Root, guarded bool) (*nodeReport, error) {
	if r.all && r.named {
		ok, err := agent.RemoveMark(agent.Options{Root: root, Dir: r.state})
		if err != nil {
			return nil, err
		}
		if ok {
			e := agent.Event{Time: time.Now(), Kind: agent.Dropped, Object: r.state, Text: "its node is gone: its mark was removed, and others may place"}
			return &nodeReport{Dir: r.state, Events: []agent.Event{e}}, nil
		}
	}
	if !r.named || guarded {
		return nil, nil
	}
	return nil, fmt.Errorf("restore: %w", noState(r.state))
}

// settle restores all values that it can. It sets aside an undo log of which no line can
// be read, and returns an error for it.
func (r *restoring) settle(ctx context.Context, report *nodeReport, opt agent.Options) error {
	err := r.settleNoted(ctx, report, opt)
	header, unreadable := errors.AsType[*kernel.HeaderError](err)
	if !unreadable {
		return err
	}
	to, asideErr := agent.SetAside(ctx, opt)
	if asideErr != nil || to == "" {
		return errors.Join(err, asideErr)
	}
	return errors.Join(lostLog(header, to), r.settleNoted(ctx, report, opt))
}

func lostLog(header *kernel.HeaderError, to string) error {
	return fmt.Errorf("restore: undo log %s: %w: it is %s now, and its entries were not restored: check by hand the values and groups that it lists, then delete it", header.File, header.Cause, to)
}

// settleNoted reaps the workloads of dead owners or, if --all is given, restores
// everything.
func (r *restoring) settleNoted(ctx context.Context, report *nodeReport, opt agent.Options) (err error) {
	if r.all {
		report.Items, err = agent.Restore(ctx, opt)
		return err
	}
	opt.Policies = policies.New
	n, err := lockNode(ctx, opt)
	if err != nil {
		return err
	}
	for _, e := range report.Events {
		if e.Kind == agent.Failed {
			err = errors.New("restore: not all could be restored: " + e.Text)
		}
	}
	return errors.Join(err, report.list(ctx, n), n.Close())
}

func (r *nodeReport) text() string {
	var b strings.Builder
	all := "berth restore --all releases them too"
	if r.Kept {
		fmt.Fprintf(&b, "alive      node %s: an agent keeps it, and releases workloads that have ended itself\n", plain.Line(r.Dir))
		all = "once the agent is stopped, berth restore --all releases them"
	}
	for _, e := range r.Events {
		if e.Kind != agent.Restored { // the items say it
			fmt.Fprintf(&b, "%-9s  %s%s: %s\n", e.Kind, plain.Line(e.ID), plain.Line(e.Object), plain.Line(e.Text))
		}
	}
	b.WriteString(restoredText(kernel.Report{Items: r.Items}))
	if n := len(r.InUse); n > 0 {
		fmt.Fprintf(&b, "in use     %s: %s; %s\n", plain.Count(n, "workload"), plain.Line(fewNames(r.InUse)), all)
	}
	return b.String()
}

func restoredText(r kernel.Report) string {
	var b strings.Builder
	for _, item := range r.Items {
		why := ""
		if item.Outcome == kernel.Untouched {
			why = " (as it was already)"
		}
		fmt.Fprintf(&b, "%-9s  %s%s\n", item.Outcome, plain.Line(undoing(item)), why)
		if item.Error != "" {
			fmt.Fprintf(&b, "           %s\n", plain.Line(item.Error))
		}
	}
	for _, o := range r.Stale {
		fmt.Fprintf(&b, "removed    the undo log of %s: written before the last boot\n", owner(o))
	}
	for _, o := range r.Alive {
		fmt.Fprintf(&b, "alive      %s: left alone\n", owner(o))
	}
	for _, o := range r.Foreign {
		fmt.Fprintf(&b, "foreign    %s: made under --root %s, left alone\n", owner(o), plain.Line(o.Root))
	}
	return b.String()
}

func undoing(item kernel.Item) string {
	s := item.Step
	switch s.Op {
	case kernel.Mkdir:
		return "rmdir " + plain.Shell("/"+s.Path)
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
		return plain.Line(o.Log)
	}
	return fmt.Sprintf("%s (process %d, since %s)", plain.Line(o.Program), o.PID, o.Started.Format("2006-01-02 15:04:05"))
}
