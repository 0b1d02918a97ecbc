package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
)

func labHistoryCommand() *cobra.Command {
	var page string
	cmd := &cobra.Command{
		Use:   "history {DIR | RESULT.json...}",
		Short: "Show a series of stored results, with changes of level marked",
		Long: `Follows the runs of one experiment by the time when they began: the p99 of the tenant
alone, and each scenario's p99 relative to that. A change of level is looked for in
each (8 runs are needed) and shown with what else changed in the same run: machine,
kernel, program, load.

DIR is a folder of results, as berth lab fills it; results of other experiments in it
are left out.

Exit status: 0 shown; 1 error, or nothing to show; 2 wrong usage.`,
		Example: `  berth lab history results
  berth lab history results --report history.html
  berth lab history docs/measurements/results/readme*.json.gz -o json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.MinimumNArgs(1)(cmd, args); err != nil {
				return exitStatus{exitUsage, fmt.Errorf("%w (see '%s --help')", err, cmd.CommandPath())}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			runs, err := readRuns(args)
			if err != nil {
				return err
			}
			sheet := report.HistoryOf(runs).Sheet()
			if word(cmd, "output") == "html" {
				return report.HTML(cmd.OutOrStdout(), sheet)
			}
			shown := labFolder{page: page}
			return shown.present(cmd, sheet, "", true)
		},
	}
	outputFlag(cmd, "what to print: text, json or html (the page)", "html")
	cmd.Flags().StringVar(&page, "report", "", "also write the page to `file`")
	return cmd
}

// readRuns reads the results of the isolation experiment that are named, or in a folder that
// is.
func readRuns(args []string) ([]report.Side, error) {
	files, folder := args, ""
	if info, err := os.Stat(args[0]); err == nil && info.IsDir() && len(args) == 1 {
		if _, err := os.Stat(filepath.Join(args[0], lab.ResultFile)); errors.Is(err, os.ErrNotExist) {
			folder = args[0]
			if files, err = filepath.Glob(filepath.Join(folder, "*", lab.ResultFile)); err != nil {
				return nil, err
			}
			for _, pattern := range []string{"*.json", "*.json.gz"} {
				more, err := filepath.Glob(filepath.Join(folder, pattern))
				if err != nil {
					return nil, err
				}
				files = append(files, more...)
			}
		}
	}
	var runs []report.Side
	for _, file := range files {
		if folder != "" && !isIsolation(file) {
			continue
		}
		run, err := readSide(file)
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("lab history: %s has no results of berth lab; they are in folders of their own (results/TIME-isolation)", folder)
	}
	return runs, nil
}

// isIsolation says whether a file is a result of the isolation experiment.
func isIsolation(file string) bool {
	text, err := lab.ReadStored(file)
	if err != nil {
		return false
	}
	r := new(lab.Result)
	return lab.Decode(text, lab.Schema, r) == nil && r.Experiment.Name == lab.IsolationSpec().Name
}
