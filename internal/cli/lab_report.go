package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/catalog"
	"berth.dev/berth/lab/report"
)

func labReportCommand() *cobra.Command {
	var limits lab.Limits
	var page string
	cmd := &cobra.Command{
		Use:   "report RESULT.json",
		Short: "Show a stored result again: as a table, a page, JSON or CSV",
		Long: `Shows what a stored result comes to, from the file alone: nothing is run and no
network is used. RESULT.json may be the folder of a run, or packed (RESULT.json.gz).`,
		Example: `  berth lab report results/20260101T120000Z-isolation
  berth lab report result.json --report lab.html
  berth lab report results/20260101T120000Z-isolation --slo p99=20ms
  berth lab report result.json -o csv > rounds.csv
  berth lab report result.json.gz -o svg > picture.svg`,
		Args: argumentCount(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sheet, err := readSheet(args[0], limits)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			switch word(cmd, "output") {
			case "html":
				return report.HTML(w, sheet)
			case "svg":
				return report.SVG(w, sheet)
			case "csv":
				return sheet.File(report.RoundsFile, w)
			}
			shown := labFolder{page: page}
			return shown.present(cmd, sheet, "", true)
		},
	}
	outputFlag(cmd, "what to print: text, json, html, csv, or svg (the first plot)", "html", "csv", "svg")
	cmd.Flags().StringVar(&page, "report", "", "also write the page to `file`")
	cmd.Flags().Var(&limits, "slo", "limits of response time, as in p99=20ms, in place of those of the run")
	return cmd
}

func labCompareCommand() *cobra.Command {
	var page string
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Compare two stored results: what changed from A to B",
		Long: `Compares two stored results of the same experiment, whichever that is: did a change
help, is this machine like that one? Every figure of every cell that both have is compared.

What counts is the effect within each run: the cell's ratio to what the experiment compares
it with (for berth lab the tenant alone). So a machine that is faster as a whole does not
look like better isolation. Of the reference itself the plain figure is compared: that
says whether the machines are alike.

Whatever differs between the two runs (machine, kernel, backend, rate, any setting) is
listed as a warning: it may be what a change comes from. Two runs of the same thing differ
by more than the rounds of one run show: a difference that matters is worth a second pair.

A and B are result files, packed or not, or folders of runs.

Exit status: 0 compared; 1 error, different experiments, or nothing in common; 2 wrong usage.`,
		Example: `  berth lab compare results/20260101T120000Z-isolation results/20260102T120000Z-isolation
  berth lab compare before/result.json after/result.json -o json
  berth lab compare here.json.gz there.json.gz --report compared.html`,
		Args: argumentCount(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := catalog.Side(args[0])
			if err != nil {
				return err
			}
			b, err := catalog.Side(args[1])
			if err != nil {
				return err
			}
			c, err := report.Compare(a, b)
			if err != nil {
				return err
			}
			if word(cmd, "output") == "html" {
				return report.HTML(cmd.OutOrStdout(), c.Sheet())
			}
			shown := labFolder{page: page}
			return shown.present(cmd, c.Sheet(), "", true)
		},
	}
	outputFlag(cmd, "what to print: text, json or html (the page)", "html")
	cmd.Flags().StringVar(&page, "report", "", "also write the page to `file`")
	return cmd
}

func labTabulateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tabulate RESULT.json...",
		Short: "Tabulate stored results of one experiment: what was decided in how many",
		Long: `Counts, over stored results of the same experiment, in how many runs each comparison
of the p99 was decided how, how far the runs' ratios lie apart, and how wide their
intervals are.

Exit status: 0 tabulated; 1 error; 2 wrong usage.`,
		Example: `  berth lab tabulate results/default-*/*-isolation`,
		Args:    arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var runs []report.Analysed
			for _, path := range args {
				run, err := readAnalysed(path)
				if err != nil {
					return err
				}
				runs = append(runs, run)
			}
			t, w := report.Tabulate(runs), cmd.OutOrStdout()
			if isJSON(cmd) {
				return report.JSON(w, t)
			}
			return report.Text(w, t.Sheet(), textOptions(w))
		},
	}
	outputFlag(cmd, "what to print: text or json")
	return cmd
}

// argumentCount is cobra.ExactArgs, arguments a check of arguments, with the exit status of wrong usage.
func argumentCount(n int) cobra.PositionalArgs { return arguments(cobra.ExactArgs(n)) }

func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return exitStatus{exitUsage, fmt.Errorf("%w (see '%s --help')", err, cmd.CommandPath())}
		}
		return nil
	}
}

// readSheet reads a stored result of any experiment. Limits, if there are any, take the
// place of its own.
func readSheet(path string, limits lab.Limits) (*report.Sheet, error) {
	_, x, err := catalog.Load(path)
	if err != nil {
		return nil, err
	}
	if isolation, ok := x.(*catalog.Isolation); ok {
		if isolation.Experiment.Name == lab.DemoName {
			m, err := lab.Measure(&isolation.Result)
			if err != nil {
				return nil, fmt.Errorf("analyse %s: %w", path, err)
			}
			return report.Demo(m, m.Tell()), nil
		}
		m, a, err := measure(&isolation.Result, path, limits)
		if err != nil {
			return nil, err
		}
		return report.Isolation(m, a), nil
	}
	if limits != nil {
		return nil, exitStatus{exitUsage, errors.New("--slo: only results of berth lab have limits")}
	}
	return x.Sheet()
}

func readResult(path string, limits lab.Limits) (*lab.Measured, *lab.Analysis, error) {
	r, err := lab.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	return measure(r, path, limits)
}

func measure(r *lab.Result, path string, limits lab.Limits) (*lab.Measured, *lab.Analysis, error) {
	if limits != nil {
		r.Experiment.Limits = limits
	}
	m, err := lab.Measure(r)
	if err != nil {
		return nil, nil, fmt.Errorf("analyse %s: %w", path, err)
	}
	if folder, ok := strings.CutSuffix(path, "/"+lab.ResultFile); ok {
		m.Path = folder
	} else if info, err := os.Stat(path); err == nil && info.IsDir() {
		m.Path = path
	}
	return m, m.Analyse(), nil
}

func readAnalysed(path string) (report.Analysed, error) {
	m, a, err := readResult(path, nil)
	return report.Analysed{Name: path, Result: m, Analysis: a}, err
}

// textOptions are the layout for w: its width and colours if it is a terminal.
func textOptions(w io.Writer) report.Options {
	width, color := terminal(w)
	return report.Options{Width: min(width, 120), Color: color}
}

// writePage writes the page to a file, which it replaces in one step.
func writePage(path string, s *report.Sheet) error {
	err := kernel.ReplaceFile(path, func(w io.Writer) error { return report.HTML(w, s) })
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
