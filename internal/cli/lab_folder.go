package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
)

// labFolder is where a run of the lab is stored, and how it is shown.
type labFolder struct {
	results, resume, page string
	// resumes is the command that goes on with a run, where that is not the one that began it.
	resumes string
}

func (f *labFolder) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.results, "results", "results", "`folder` for results; each run gets a folder of its own in it")
	fs.StringVar(&f.resume, "resume", "", "go on with the run in `folder`, which was interrupted or killed: finished rounds are kept")
	fs.StringVar(&f.page, "report", "", "write an HTML report to `file`")
	outputFlag(cmd, "what to print: text or json")
}

// check refuses, with --resume and --continue, whatever would ask for another
// experiment: all flags but those named and the common ones, and how long it goes on.
func (f *labFolder) check(cmd *cobra.Command, free ...string) error {
	free = append(free, "resume", "output", "report")
	says := "a run is resumed as it was begun"
	more := cmd.Flags().Changed("continue")
	if more {
		free, says = append(free, "continue", "rounds", "for", "until"), "a run is continued as it was begun"
	}
	var err error
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if (more || f.resume != "") && cmd.LocalFlags().Lookup(flag.Name) != nil && !slices.Contains(free, flag.Name) {
			err = exitStatus{exitUsage, fmt.Errorf("--%s: %s", flag.Name, says)}
		}
	})
	return err
}

func onLiveHost(cmd *cobra.Command) error {
	if rootDir(cmd) != "/" {
		return exitStatus{exitUsage, errors.New("--root: the lab runs on the live host only")}
	}
	return nil
}

// run has an experiment measured in a folder of its own, or in that of the run to be
// resumed. A new folder in which nothing was measured is removed.
func (f *labFolder) run(cmd *cobra.Command, name string, measure func(context.Context, lab.Options) (measured bool, err error)) (dir string, err error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if err := restoreFirst(cmd.ErrOrStderr()); err != nil {
		return "", err
	}
	bar := newProgressLine(cmd.ErrOrStderr())
	opt := lab.Options{Exe: exe, Program: thisProgram(), Dir: f.resume, Progress: bar.show}
	if f.resume == "" {
		if opt.Dir, err = lab.NewRunDir(f.results, name, time.Now()); err != nil {
			return "", fmt.Errorf("results folder: %w (--results names another)", err)
		}
	}
	measured, err := measure(cmd.Context(), opt)
	bar.finish()
	if !measured && f.resume == "" {
		_ = os.RemoveAll(opt.Dir)
	}
	return opt.Dir, interruptedOr(cmd.Context(), err)
}

// present prints a result, writes its page, and says where it is stored. dir is "" for
// a result that was read.
func (f *labFolder) present(cmd *cobra.Command, s *report.Sheet, dir string, complete bool) error {
	w := cmd.OutOrStdout()
	if f.page != "" {
		if err := writePage(f.page, s); err != nil {
			return err
		}
	}
	if isJSON(cmd) {
		return report.JSON(w, s.Document)
	}
	if err := report.Text(w, s, textOptions(w)); err != nil || dir == "" {
		return err
	}
	fmt.Fprintf(w, "\nresult:   %s\n", filepath.Join(dir, lab.ResultFile))
	if requests := filepath.Join(dir, lab.RequestsFile); exists(requests) {
		fmt.Fprintf(w, "requests: %s\n", requests)
	}
	if !complete {
		fmt.Fprintf(w, "go on:    %s --resume %s\n", cmp.Or(f.resumes, cmd.CommandPath()), dir)
	} else if f.resumes == "" && cmd.Flags().Lookup("continue") != nil {
		fmt.Fprintf(w, "more:     %s --continue %s --for 4m\n", cmd.CommandPath(), dir)
	}
	fmt.Fprintf(w, "page:     %s\n", cmp.Or(f.page, fmt.Sprintf("berth lab report %s --report lab.html", filepath.Join(dir, lab.ResultFile))))
	return nil
}

// restoreFirst restores the values that a killed run left, and prints them.
func restoreFirst(w io.Writer) error {
	root, err := kernel.Open("/")
	if err != nil {
		return err
	}
	report, err := kernel.Restore(root, root.RunDir())
	if len(report.Items) > 0 {
		fmt.Fprintln(w, "restoring what a killed run left:")
		fmt.Fprint(w, restoredText(report))
	}
	return err
}

// interruptedOr turns the error of a cancelled run into words and a status.
func interruptedOr(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	if left, ok := errors.AsType[*lab.NotRestoredError](err); ok {
		return exitStatus{exitInterrupted, fmt.Errorf("interrupted; %w: run berth restore", left)}
	}
	return exitStatus{exitInterrupted, errors.New("interrupted; everything was restored")}
}
