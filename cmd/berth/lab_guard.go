package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/guarded"
	"berth.dev/berth/lab/report"
)

// labGuardFlags are the flags of berth lab guard.
type labGuardFlags struct {
	faults                []string
	runs, blocks, weight  int
	learn, last, quiet    time.Duration
	window, steady        time.Duration
	probe, cpus           string
	demand, maxOthers     float64
	rate                  float64
	seed                  uint64
	results, output, show string
	short                 bool
}

func labGuardCommand() *cobra.Command {
	var f labGuardFlags
	cmd := &cobra.Command{
		Use:   "guard [flags]",
		Short: "Measure how good the guard is: inject known disturbances and let it act",
		Long:  labGuardHelp(),
		Example: `  berth lab guard                               # about a quarter of an hour
  berth lab guard --short                       # well below a minute
  berth lab guard --probe=false --faults hog --runs 10 --blocks 0
  berth lab guard --faults quiet --quiet 10m --runs 1 --blocks 0
  berth lab guard --show results/20260101T120000Z-guard`,
		Args: argumentCount(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	d := guarded.Default()
	fs := cmd.Flags()
	fs.StringSliceVar(&f.faults, "faults", d.Faults, "inject these `faults`, or none: "+strings.Join(guarded.FaultNames(), ", "))
	fs.IntVar(&f.runs, "runs", d.Runs, "runs of each fault")
	fs.DurationVar(&f.learn, "learn", time.Duration(d.Learn), "time under load before the earliest onset")
	fs.DurationVar(&f.last, "last", time.Duration(d.Last), "how long a fault lasts")
	fs.DurationVar(&f.quiet, "quiet", time.Duration(d.Quiet), "how long the fault quiet lasts (default as --last)")
	fs.DurationVar(&f.window, "window", time.Duration(d.Window), "the guard's window without the run-queue probe, at least 100ms")
	fs.StringVar(&f.probe, "probe", string(d.Probe), "when the run-queue probe is armed: always (true), needed, or never (false)")
	fs.Float64Var(&f.demand, "demand", d.Demand, "share of the shared CPUs that the tenant wants, 0-1")
	fs.Float64Var(&f.rate, "rate", 0, "requests per second (default 1000)")
	fs.Float64Var(&f.maxOthers, "max-others", d.MaxOthers, "share of the shared CPUs that processes outside of the run may take for it to count, 0-1")
	fs.StringVar(&f.cpus, "cpus", "", "CPUs that all share, as a `list` such as 0-3 (default at most 8, whole cores)")
	fs.IntVar(&f.weight, "weight", 0, "CPU weight of the run's groups together against all else on the host, 1-10000 (default the usual 100)")
	fs.IntVar(&f.blocks, "blocks", d.Blocks, "blocks of the comparison in steady state, 0 for none")
	fs.DurationVar(&f.steady, "steady", time.Duration(d.Steady), "measured time of a round in steady state")
	fs.Uint64Var(&f.seed, "seed", 0, "seed of arrivals, onsets and order (default by the clock, and recorded)")
	fs.BoolVar(&f.short, "short", false, "one run of hog and quota each, no steady state")
	fs.StringVar(&f.results, "results", "results", "`folder` for results; each run gets a folder of its own in it")
	fs.StringVarP(&f.output, "output", "o", "text", "what to print: text or json")
	fs.StringVar(&f.show, "show", "", "show a stored `result` again, and run nothing")
	return cmd
}

func (f *labGuardFlags) build(cmd *cobra.Command) (guarded.Experiment, error) {
	e := guarded.Default()
	if f.short {
		e = guarded.Short()
	}
	for flag, apply := range map[string]func(){
		"faults":     func() { e.Faults = f.faults },
		"runs":       func() { e.Runs = f.runs },
		"learn":      func() { e.Learn = lab.Duration(f.learn) },
		"last":       func() { e.Last = lab.Duration(f.last) },
		"quiet":      func() { e.Quiet = lab.Duration(f.quiet) },
		"window":     func() { e.Window = lab.Duration(f.window) },
		"probe":      func() { e.Probe = probeUse(f.probe) },
		"demand":     func() { e.Demand = f.demand },
		"rate":       func() { e.Rate = f.rate },
		"max-others": func() { e.MaxOthers = f.maxOthers },
		"cpus":       func() { e.CPUs = f.cpus },
		"weight":     func() { e.Weight = f.weight },
		"blocks":     func() { e.Blocks = f.blocks },
		"steady":     func() { e.Steady = lab.Duration(f.steady) },
		"seed":       func() { e.Seed = f.seed },
	} {
		if cmd.Flags().Changed(flag) {
			apply()
		}
	}
	if slices.Equal(e.Faults, []string{"none"}) {
		e.Faults = nil
	}
	return e, e.Validate()
}

func probeUse(flag string) guarded.ProbeUse {
	switch flag {
	case "true":
		return guarded.ProbeAlways
	case "false":
		return guarded.ProbeNever
	}
	return guarded.ProbeUse(flag)
}

func (f *labGuardFlags) run(cmd *cobra.Command) error {
	if f.output != "text" && f.output != "json" {
		return exitStatus{exitUsage, fmt.Errorf("--output %q: text or json", f.output)}
	}
	if f.show != "" {
		result, err := guarded.ReadFile(f.show)
		if err != nil {
			return err
		}
		return f.present(cmd.OutOrStdout(), result, "")
	}
	if rootDir(cmd) != "/" {
		return exitStatus{exitUsage, errors.New("--root: the lab runs on the live host only")}
	}
	e, err := f.build(cmd)
	if err != nil {
		return exitStatus{exitUsage, err}
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if err := restoreFirst(cmd.ErrOrStderr()); err != nil {
		return err
	}
	opt := lab.Options{Exe: exe, Program: program()}
	if opt.Dir, err = lab.NewRunDir(f.results, "guard", time.Now()); err != nil {
		return fmt.Errorf("results folder: %w", err)
	}
	bar := newProgressLine(cmd.ErrOrStderr())
	opt.Progress = bar.show
	result, err := guarded.Run(cmd.Context(), e, opt)
	bar.finish()
	if result == nil || len(result.Runs) == 0 && result.Steady == nil {
		_ = os.RemoveAll(opt.Dir) // nothing was measured
		if err == nil {
			return errors.New("lab guard: this host can have none of the faults: " + skippedFaults(result))
		}
		return interruptedOr(cmd.Context(), err)
	}
	return errors.Join(f.present(cmd.OutOrStdout(), result, opt.Dir), interruptedOr(cmd.Context(), err))
}

func skippedFaults(r *guarded.Result) string {
	var why []string
	for _, s := range r.Skipped {
		why = append(why, s.Scenario+": "+s.Reason)
	}
	return strings.Join(why, "; ")
}

// present prints a result; dir is where it was stored, "" for one that was read.
func (f *labGuardFlags) present(w io.Writer, r *guarded.Result, dir string) error {
	a, err := guarded.Analyse(r)
	if err != nil {
		return err
	}
	if f.output == "json" {
		return json.NewEncoder(w).Encode(guarded.NewReport(r, a))
	}
	o := textOptions(w)
	if err := guarded.Text(w, r, a, o.Width); err != nil {
		return err
	}
	if a.Steady != nil {
		fmt.Fprint(w, "\nIn steady state:\n\n")
		if err := report.Text(w, r.Steady, a.Steady, o); err != nil {
			return err
		}
	}
	if a.Kept != nil {
		fmt.Fprintf(w, "\nGuarded, the neighbour has %.1f %% of the CPU time that the tenant leaves.\n", 100**a.Kept)
	}
	if dir != "" {
		fmt.Fprintf(w, "\nresult:   %s\nrequests: %s\n", filepath.Join(dir, lab.ResultFile), filepath.Join(dir, lab.RequestsFile))
	}
	return nil
}

func labGuardHelp() string {
	var b strings.Builder
	b.WriteString(`Runs the lab's tenant under open-loop load and lets the guard look after it, in mode
enforce. Again and again, at random instants, something happens that is known:

`)
	for _, f := range guarded.Faults() {
		what := "to be named: " + f.Truth.String()
		if f.None {
			what = "nothing to be named"
		}
		if f.Decoy && !f.None {
			what += ", and nobody accused"
		}
		fmt.Fprintf(&b, "  %-11s %s (%s)\n", f.Name, f.Means, what)
	}
	b.WriteString(`
What the guard names and does is compared with that: a confusion matrix, the times
from the onset to the finding, to the remedy, and to the tenant's p99 being back
under 1.2 times what it was, remedies against groups that did nothing, and a timeline
per run. Then the tenant alone is compared with the tenant beside a neighbour that
saturates every CPU, guarded and not, in blocks as by berth lab.

It needs control groups of its own, and acts on nothing outside of them. They are
removed afterwards; what a killed run left, the next one or berth restore removes.

Exit status: 0 measured; 1 error; 2 wrong usage; 130 interrupted (what was
measured by then is stored and shown).`)
	return b.String()
}
