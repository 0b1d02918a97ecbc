package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/kernel"
)

// restoreCommand gives back what killed runs left.
func restoreCommand() *cobra.Command {
	var dir, output string
	var dryRun bool
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

Journals are in /run/berth for root, and else in $XDG_RUNTIME_DIR/berth or
/tmp/berth-UID; under --root DIR, in DIR/run/berth.

Exit status: 0 if nothing was left to give back or all of it was, 1 if
something could not be given back, 2 for wrong usage.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return exitStatus{exitUsage, fmt.Errorf("output %q: not text or json", output)}
			}
			return giveBack(cmd.OutOrStdout(), rootDir(cmd), dir, output, dryRun)
		},
	}
	cmd.Flags().StringVar(&dir, "journal", "", "directory of the journals (default: see above)")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be given back, and change nothing")
	return cmd
}

// giveBack restores what dead runs left, or says what it would, and prints the report.
func giveBack(w io.Writer, rootDir, dir, output string, dryRun bool) error {
	root, err := kernel.Open(rootDir)
	if err != nil {
		return err
	}
	if dir == "" {
		dir = journalDir(root.Name())
	}
	restore := kernel.Restore
	if dryRun {
		restore = kernel.Preview
	}
	report, err := restore(root, dir)
	if output == "json" {
		text, jsonErr := json.MarshalIndent(report, "", "  ")
		if jsonErr != nil {
			return jsonErr
		}
		fmt.Fprintln(w, string(text))
		return err
	}
	printRestored(w, report)
	if err == nil && len(report.Items)+len(report.Stale)+len(report.Alive)+len(report.Foreign) == 0 {
		fmt.Fprintln(w, "nothing to give back")
	}
	return err
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
