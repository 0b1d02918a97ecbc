package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth.dev/berth/guard"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/guarded"
)

// labGuardFlags are the flags of berth lab guard but those that bindGuard binds.
type labGuardFlags struct {
	show     string
	protocol string
	short    bool
	labFolder
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
  berth lab guard --protocol                    # the one that comes with Berth
  berth lab guard --protocol my.yaml            # a copy of what berth lab show guard-protocol prints
  berth lab guard --show results/20260101T120000Z-guard
  berth lab guard --resume results/20260101T120000Z-guard`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.protocol == shippedProtocol && len(args) == 1 {
				f.protocol = args[0]
				return nil
			}
			return argumentCount(0)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.protocol != "" {
				return f.runProtocol(cmd)
			}
			return f.run(cmd)
		},
	}
	d := guarded.Default()
	fs := cmd.Flags()
	bindGuard(fs, &d)
	fs.BoolVar(&f.short, "short", false, "one run of hog and quota each, no steady state")
	fs.StringVar(&f.protocol, "protocol", "", "run what a `file` of kind guard-protocol states, and nothing else (without a file "+shippedProtocol+")")
	fs.Lookup("protocol").NoOptDefVal = shippedProtocol
	f.labFolder.register(cmd)
	fs.StringVar(&f.show, "show", "", "show a stored `result` again, and run nothing")
	return cmd
}

// bindGuard has flags set the fields of e, whose values are their defaults.
func bindGuard(fs *pflag.FlagSet, e *guarded.Spec) {
	for _, d := range []struct {
		to         *lab.Duration
		name, help string
	}{
		{&e.Learn, "learn", "time under load before the earliest onset"},
		{&e.Last, "last", "how long a fault lasts"},
		{&e.Quiet, "quiet", "how long the fault quiet lasts (default as --last)"},
		{&e.Window, "window", "the guard's window without the run-queue probe, at least 100ms"},
		{&e.Steady, "steady", "measured time of a round in steady state"},
	} {
		fs.DurationVar((*time.Duration)(d.to), d.name, time.Duration(*d.to), d.help)
	}
	fs.StringSliceVar(&e.Faults, "faults", e.Faults, "inject these `faults`, or none: "+strings.Join(guarded.FaultNames(), ", "))
	fs.IntVar(&e.Runs, "runs", e.Runs, "runs of each fault")
	fs.StringVar((*string)(&e.Probe), "probe", string(e.Probe), "when the run-queue probe is armed: always (true), needed, eager, or never (false)")
	fs.Float64Var(&e.Demand, "demand", e.Demand, "share of the shared CPUs that the tenant wants, 0-1")
	fs.Float64Var(&e.Rate, "rate", e.Rate, "requests per second (default 1000)")
	fs.Float64Var(&e.MaxOthers, "max-others", e.MaxOthers, "share of the shared CPUs that processes outside of the run may take for it to count, 0-1")
	fs.StringVar(&e.CPUs, "cpus", e.CPUs, "CPUs that all share, as a `list` such as 0-3 (default at most 8, whole cores)")
	fs.IntVar(&e.Weight, "weight", e.Weight, "CPU weight of the run's groups together against all else on the host, 1-10000 (default the usual 100)")
	fs.IntVar(&e.Blocks, "blocks", e.Blocks, "blocks of the comparison in steady state, 0 for none")
	fs.Uint64Var(&e.Seed, "seed", e.Seed, "seed of arrivals, onsets and order (default by the clock, and recorded)")
}

// build returns the experiment that the flags ask for.
func (f *labGuardFlags) build(cmd *cobra.Command) (guarded.Spec, error) {
	e := guarded.Default()
	if f.short {
		e = guarded.Short()
	}
	if err := setAgain(cmd, func(fs *pflag.FlagSet) { bindGuard(fs, &e) }); err != nil {
		return e, err
	}
	switch e.Probe {
	case "true":
		e.Probe = guard.ProbeAlways
	case "false":
		e.Probe = guard.ProbeNever
	}
	if slices.Equal(e.Faults, []string{"none"}) {
		e.Faults = nil
	}
	return e, e.Validate()
}

// shippedProtocol is the one that comes with Berth.
const shippedProtocol = "guard-protocol"

// runProtocol runs what a protocol states. A flag that would change that is refused.
func (f *labGuardFlags) runProtocol(cmd *cobra.Command) error {
	var err error
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if cmd.LocalFlags().Lookup(flag.Name) != nil && !slices.Contains([]string{"protocol", "results", "report", "output"}, flag.Name) {
			err = exitStatus{exitUsage, fmt.Errorf("--%s: a protocol states what is run: change a copy of it, or use berth lab run", flag.Name)}
		}
	})
	if err != nil {
		return err
	}
	run := labRunFlags{labFolder: f.labFolder}
	run.resumes = "berth lab run"
	k, _, _, err := run.open([]string{f.protocol})
	if err == nil && k.Name != shippedProtocol {
		err = exitStatus{exitUsage, fmt.Errorf("--protocol %s: it is of kind %s: want %s", f.protocol, k.Name, shippedProtocol)}
	}
	if err != nil {
		return err
	}
	return run.run(cmd, []string{f.protocol})
}

func (f *labGuardFlags) run(cmd *cobra.Command) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	if f.show != "" {
		result, err := guarded.ReadFile(f.show)
		if err != nil {
			return err
		}
		return f.analyse(cmd, result, "")
	}
	if err := onLiveHost(cmd); err != nil {
		return err
	}
	e, err := f.build(cmd)
	if err != nil {
		return exitStatus{exitUsage, err}
	}
	var result *guarded.Result
	dir, err := f.labFolder.run(cmd, "guard", func(ctx context.Context, opt lab.Options) (measured bool, err error) {
		if f.resume != "" {
			result, err = guarded.Resume(ctx, opt)
		} else {
			result, err = guarded.Run(ctx, e, opt)
		}
		return result != nil && result.Measured(), err
	})
	switch {
	case result != nil && result.Measured():
		return errors.Join(f.analyse(cmd, result, dir), err)
	case err == nil:
		return errors.New("lab guard: this host can have none of the faults: " + skippedFaults(result))
	}
	return err
}

// analyse presents what a result comes to.
func (f *labGuardFlags) analyse(cmd *cobra.Command, r *guarded.Result, dir string) error {
	a, err := guarded.Analyse(r)
	if err != nil {
		return err
	}
	return f.present(cmd, guarded.Sheet(r, a), dir, r.Complete)
}

func skippedFaults(r *guarded.Result) string {
	var why []string
	for _, s := range r.Skipped {
		why = append(why, s.Scenario+": "+s.Reason)
	}
	return strings.Join(why, "; ")
}

func labGuardHelp() string {
	var b strings.Builder
	b.WriteString(`Runs the lab's tenant under open-loop load and lets the guard help it, in mode
enforce. Again and again, at random instants, something happens that is known:

`)
	for _, f := range guarded.Faults() {
		what := "to be named: " + f.Truth.String()
		if f.None {
			what = "nothing to be named"
		}
		if f.Decoy && !f.None {
			what += ", and no group suspected"
		}
		fmt.Fprintf(&b, "  %-11s %s (%s)\n", f.Name, f.Means, what)
	}
	b.WriteString(`
What the guard names and does is compared with that: a confusion matrix, the times
from the onset to the finding, to the remedy, and to the tenant's p99 being back
under 1.2 times what it was, remedies against groups that did nothing, and a timeline
per run. Then the tenant alone is compared with the tenant beside a neighbour that
saturates every CPU, guarded and not, in blocks as by berth lab.

With --protocol a file says before the first run what is to be shown, by which figures,
how often and what is rejected: berth lab show guard-protocol prints the one that comes
with Berth. --resume of such a run is berth lab run --resume.

It needs control groups of its own, and acts on nothing outside of them. They are
removed afterwards; what a killed run left, the next one or berth restore removes.

Exit status: 0 measured; 1 error; 2 wrong usage; 130 interrupted (what was
measured by then is stored and shown; --resume goes on with it).`)
	return b.String()
}
