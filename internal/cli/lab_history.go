package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/catalog"
	"berth.dev/berth/lab/report"
)

func labHistoryCommand() *cobra.Command {
	var page, kind string
	cmd := &cobra.Command{
		Use:   "history {DIR | RESULT...}",
		Short: "Show a series of stored results, with changes of level marked",
		Long: `Follows the runs of one experiment by the time when they began: its first figure (the p99,
where it has one) of the cell that the others are compared with, as berth lab's tenant
alone, and that of each other cell relative to it. A change of level is looked for in each
(8 runs are needed) and shown with what else changed in the same run: machine, kernel,
program, load, any setting.

DIR is a folder of results, as berth lab fills it. If they are of several experiments,
--experiment says which to follow; by default those of berth lab, if there are any.

Exit status: 0 shown; 1 error, or nothing to show; 2 wrong usage.`,
		Example: `  berth lab history results
  berth lab history results --experiment pinning
  berth lab history results --report history.html
  berth lab history docs/measurements/results/readme*.json.gz -o json`,
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			runs, left, err := readRuns(args, kind)
			if err != nil {
				return err
			}
			for _, other := range slices.Sorted(maps.Keys(left)) {
				fmt.Fprintf(cmd.ErrOrStderr(), "left out: %s of %s (--experiment %s)\n", plain.Count(left[other], "result"), other, other)
			}
			h, err := report.HistoryOf(runs)
			if err != nil {
				return err
			}
			sheet := h.Sheet()
			if word(cmd, "output") == "html" {
				return report.HTML(cmd.OutOrStdout(), sheet)
			}
			shown := labFolder{page: page}
			return shown.present(cmd, sheet, "", true)
		},
	}
	outputFlag(cmd, "what to print: text, json or html (the page)", "html")
	cmd.Flags().StringVar(&page, "report", "", "also write the page to `file`")
	cmd.Flags().StringVar(&kind, "experiment", "", "follow the results of this experiment, by its `name`")
	return cmd
}

// resultsIn are the names that results may have in a folder: in folders of their own, or files.
func resultsIn(folder string) (files []string, err error) {
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		name := filepath.Join(folder, e.Name())
		switch {
		case strings.HasSuffix(name, ".json"), strings.HasSuffix(name, ".json.gz"):
			files = append(files, name)
		case e.IsDir(), e.Type() == fs.ModeSymlink:
			files = append(files, filepath.Join(name, lab.ResultFile))
		}
	}
	return files, err
}

// readRuns reads the results that are named, or in a folder that is: of one experiment. left
// counts those of others.
func readRuns(args []string, kind string) (runs []report.Side, left map[string]int, err error) {
	files, folder := args, ""
	if info, err := os.Stat(args[0]); err == nil && info.IsDir() && len(args) == 1 && !exists(filepath.Join(args[0], lab.ResultFile)) {
		folder = args[0]
		if files, err = resultsIn(folder); err != nil {
			return nil, nil, err
		}
	}
	left = map[string]int{}
	kinds := map[string]string{} // of the files
	var unread error
	for _, file := range files {
		const none = "\x00" // the kind of no result: only the kind is read
		side, err := catalog.SideOf(file, none)
		switch {
		case errors.Is(err, catalog.ErrOther):
			kinds[file] = side.Kind
			left[side.Kind]++
		case folder == "", isUnreadable(err):
			return nil, nil, err
		default:
			unread = err // a file of something else, maybe
		}
	}
	if kind == "" {
		kind = mainKind(left)
	}
	if left[kind] == 0 {
		return nil, nil, noRuns(folder, kind, left, unread)
	}
	delete(left, kind)
	if folder == "" && len(left) > 0 {
		return nil, nil, exitStatus{exitUsage, fmt.Errorf("lab history: results of %s and of %s: want one experiment (--experiment)", kind, strings.Join(slices.Sorted(maps.Keys(left)), ", "))}
	}
	for _, file := range files {
		if kinds[file] != kind {
			continue
		}
		side, err := catalog.SideOf(file, kind)
		if err != nil {
			return nil, nil, err
		}
		runs = append(runs, side)
	}
	return runs, left, nil
}

// isUnreadable reports whether there is a file that cannot be read: it may be of the series.
func isUnreadable(err error) bool {
	return is[*fs.PathError](err) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
}

// mainKind is that which is followed unless told otherwise: berth lab's, or that of most results.
func mainKind(counts map[string]int) string {
	most := lab.IsolationSpec().Name
	if counts[most] > 0 {
		return most
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		if counts[kind] > counts[most] {
			most = kind
		}
	}
	return most
}

func noRuns(folder, kind string, there map[string]int, unread error) error {
	if len(there) > 0 {
		return exitStatus{exitUsage, fmt.Errorf("lab history: no result of %s; there are some of %s", kind, strings.Join(slices.Sorted(maps.Keys(there)), ", "))}
	}
	return errors.Join(fmt.Errorf("lab history: %s has no results of the lab; they are in folders of their own (results/TIME-isolation)", folder), unread)
}
