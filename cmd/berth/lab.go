package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/report"
)

// labFlags are the flags of berth lab.
type labFlags struct {
	preset, experiment, cpus    string
	scenarios                   []string
	rounds                      int
	duration, settle            time.Duration
	rate, demand                float64
	serviceTime                 time.Duration
	workingSet                  int64
	neighbour                   string
	intensity, threads          int
	seed                        uint64
	results, report, output     string
	clean, dryRun, unprivileged bool
}

func labCommand() *cobra.Command {
	var f labFlags
	cmd := &cobra.Command{
		Use:   "lab [flags] [isolation]",
		Short: "Measure what a noisy neighbour does to a service, and what isolation gives back",
		Long:  labHelp(),
		Example: `  berth lab                                        # about two minutes
  berth lab --neighbour spin --scenario idle       # one strategy against a tight loop
  berth lab --preset standard --report lab.html    # longer, with a page to read
  berth lab --dry-run                              # what would be run and written
  berth lab report results/20260101T120000Z-isolation/result.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.MaximumNArgs(1)(cmd, args); err != nil {
				return exitStatus{exitUsage, err}
			}
			return nil
		},
		ValidArgs: []string{"isolation"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runLab(cmd, args, f)
		},
	}
	f.register(cmd)
	cmd.AddCommand(labReportCommand(), labCompareCommand(), labGuardCommand())
	return cmd
}

func (f *labFlags) register(cmd *cobra.Command) {
	base := lab.IsolationExperiment()
	fs := cmd.Flags()
	fs.StringVar(&f.preset, "preset", "quick", "size: "+presetNames())
	fs.StringVar(&f.experiment, "experiment", "", "read the experiment from a YAML or JSON `file` (see --dry-run -o json)")
	fs.StringSliceVar(&f.scenarios, "scenario", nil, "run only these `scenarios` (and the baselines): "+strings.Join(scenarioNames(base), ", "))
	fs.IntVar(&f.rounds, "rounds", 0, "rounds of each scenario (default from the preset)")
	fs.DurationVar(&f.duration, "duration", 0, "measured time of one round (default from the preset)")
	fs.DurationVar(&f.settle, "settle", 0, "discarded time at the start of a round (default from the preset)")
	fs.Float64Var(&f.rate, "rate", 0, "requests per second (default chosen with the service time)")
	fs.DurationVar(&f.serviceTime, "service-time", 0, "CPU time of one request (default such that the tenant wants --demand)")
	fs.Float64Var(&f.demand, "demand", base.Tenant.Demand, "share of the shared CPUs that the tenant wants, 0-1")
	fs.Int64Var(&f.workingSet, "working-set", base.Tenant.WorkingSetBytes, "tenant's working set in bytes")
	fs.StringVar(&f.neighbour, "neighbour", base.Neighbour.Kernel, "neighbour's kernel: "+kernelNames())
	fs.IntVar(&f.intensity, "intensity", base.Neighbour.Intensity, "share of the time that the neighbour wants to work, in percent")
	fs.IntVar(&f.threads, "neighbour-threads", 0, "neighbour's threads (default one per shared CPU)")
	fs.StringVar(&f.cpus, "cpus", "", "CPUs that tenant and neighbour share, as a `list` such as 0-3 (default at most 8, whole cores)")
	fs.Uint64Var(&f.seed, "seed", base.Seed, "seed of arrivals and of the order of scenarios (default by the clock, and recorded)")
	fs.StringVar(&f.results, "results", "results", "`folder` for results; each run gets a folder of its own in it")
	fs.StringVar(&f.report, "report", "", "write an HTML report to `file`")
	fs.StringVarP(&f.output, "output", "o", "text", "what to print: text or json")
	fs.BoolVar(&f.clean, "clean", false, "only put back what a killed run left behind (as berth restore)")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print what would be run and written, and run nothing")
	fs.BoolVar(&f.unprivileged, "unprivileged", false, "use affinity, nice and SCHED_IDLE even where control groups could be used")
}

// experiment is what the flags ask for.
func (f *labFlags) build(cmd *cobra.Command) (lab.Experiment, error) {
	set := cmd.Flags().Changed
	e := lab.IsolationExperiment()
	if err := e.Use("quick"); err != nil {
		return e, err
	}
	if f.experiment != "" {
		if err := readExperiment(f.experiment, &e); err != nil {
			return e, err
		}
	}
	if set("preset") {
		if err := e.Use(f.preset); err != nil {
			return e, err
		}
	}
	if set("rounds") || set("duration") || set("settle") {
		e.Preset = "" // no longer what the preset stands for
	}
	for flag, apply := range map[string]func(){
		"rounds":            func() { e.Blocks = f.rounds },
		"duration":          func() { e.Window = lab.Duration(f.duration) },
		"settle":            func() { e.Settle = lab.Duration(f.settle) },
		"rate":              func() { e.Rate = f.rate },
		"service-time":      func() { e.Tenant.ServiceTime = lab.Duration(f.serviceTime) },
		"demand":            func() { e.Tenant.Demand = f.demand },
		"working-set":       func() { e.Tenant.WorkingSetBytes = f.workingSet },
		"neighbour":         func() { e.Neighbour.Kernel = f.neighbour },
		"intensity":         func() { e.Neighbour.Intensity = f.intensity },
		"neighbour-threads": func() { e.Neighbour.Threads = f.threads },
		"cpus":              func() { e.CPUs = f.cpus },
		"seed":              func() { e.Seed = f.seed },
	} {
		if set(flag) {
			apply()
		}
	}
	if set("scenario") {
		if err := e.Keep(f.scenarios); err != nil {
			return e, err
		}
	}
	return e, e.Validate()
}

// readExperiment reads a file over e: what the file does not say stays, but its
// scenarios are its own.
func readExperiment(path string, e *lab.Experiment) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("experiment: %w", err)
	}
	builtIn := e.Scenarios
	e.Scenarios = nil
	if err := yaml.UnmarshalStrict(text, e); err != nil {
		return fmt.Errorf("experiment %s: %w", path, err)
	}
	if e.Scenarios == nil {
		e.Scenarios = builtIn
	}
	return nil
}

func runLab(cmd *cobra.Command, args []string, f labFlags) error {
	if f.output != "text" && f.output != "json" {
		return exitStatus{exitUsage, fmt.Errorf("--output %q: text or json", f.output)}
	}
	if f.clean {
		r := restoring{root: rootDir(cmd), output: f.output, dryRun: f.dryRun}
		return r.giveBack(cmd.Context(), cmd.OutOrStdout())
	}
	if rootDir(cmd) != "/" {
		return exitStatus{exitUsage, errors.New("--root: the lab runs on the live host only")}
	}
	if len(args) == 1 && args[0] != "isolation" {
		return exitStatus{exitUsage, fmt.Errorf("experiment %q: the built-in one is isolation; others are read with --experiment FILE", args[0])}
	}
	e, err := f.build(cmd)
	if err != nil {
		return exitStatus{exitUsage, err}
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	opt := lab.Options{Exe: exe, Program: program(), Unprivileged: f.unprivileged}
	if f.dryRun {
		return previewLab(cmd.OutOrStdout(), e, opt, f.output)
	}
	if err := restoreFirst(cmd.ErrOrStderr()); err != nil {
		return err
	}
	if opt.Dir, err = lab.NewRunDir(f.results, e.Name, time.Now()); err != nil {
		return fmt.Errorf("results folder: %w", err)
	}
	bar := newProgressLine(cmd.ErrOrStderr())
	opt.Progress = bar.show
	result, err := lab.Run(cmd.Context(), e, opt)
	bar.finish()
	if result == nil || len(result.Rounds) == 0 {
		_ = os.RemoveAll(opt.Dir) // nothing was measured
		return interruptedOr(cmd.Context(), err)
	}
	return errors.Join(presentLab(cmd.OutOrStdout(), result, opt.Dir, f), interruptedOr(cmd.Context(), err))
}

// restoreFirst puts back what a killed run left, and says so if there was anything.
func restoreFirst(w io.Writer) error {
	root, err := kernel.Open("/")
	if err != nil {
		return err
	}
	report, err := kernel.Restore(root, journalDir("/"))
	if len(report.Items) > 0 {
		fmt.Fprintln(w, "putting back what a killed run left:")
		printRestored(w, report)
	}
	return err
}

// interruptedOr turns the error of a cancelled run into words and a status.
func interruptedOr(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	var left *lab.NotRestoredError
	if errors.As(err, &left) {
		return exitStatus{exitInterrupted, fmt.Errorf("interrupted; %w: run berth restore", left)}
	}
	return exitStatus{exitInterrupted, errors.New("interrupted; everything was put back")}
}

// presentLab prints a result and writes the report.
func presentLab(w io.Writer, result *lab.Result, dir string, f labFlags) error {
	analysis, err := lab.Analyse(result)
	if err != nil {
		return err
	}
	if f.output == "json" {
		return errors.Join(report.JSON(w, result, analysis), writePage(f.report, result, analysis))
	}
	if err := report.Text(w, result, analysis, textOptions(w)); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nresult:   %s\nrequests: %s\n", filepath.Join(dir, lab.ResultFile), filepath.Join(dir, lab.RequestsFile))
	if f.report == "" {
		fmt.Fprintf(w, "page:     berth lab report %s --report lab.html\n", filepath.Join(dir, lab.ResultFile))
		return nil
	}
	if err := writePage(f.report, result, analysis); err != nil {
		return err
	}
	fmt.Fprintf(w, "page:     %s\n", f.report)
	return nil
}

// writePage writes the HTML report, if one is wanted.
func writePage(path string, result *lab.Result, analysis *lab.Analysis) error {
	if path == "" {
		return nil
	}
	return writeHTML(path, result, analysis)
}

func previewLab(w io.Writer, e lab.Experiment, opt lab.Options, output string) error {
	p, err := lab.Plan(e, opt)
	if err != nil {
		return err
	}
	if output == "json" {
		text, err := json.MarshalIndent(p, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%s\n", text)
		return err
	}
	_, err = io.WriteString(w, p.String())
	return err
}

func program() lab.Program {
	version, commit := "devel", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if v := info.Main.Version; v != "" && v != "(devel)" {
			version = v
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	return lab.CurrentProgram(version, commit)
}

func scenarioNames(e lab.Experiment) []string {
	var names []string
	for _, s := range e.Scenarios {
		names = append(names, s.Name)
	}
	return names
}

func presetNames() string {
	var words []string
	for _, p := range lab.Presets() {
		words = append(words, fmt.Sprintf("%s (%s)", p.Name, p.About))
	}
	return strings.Join(words, ", ")
}

// neighbours are those that need no disk of their own.
func neighbours() []noise.Kernel {
	return slices.DeleteFunc(noise.Kernels(), func(k noise.Kernel) bool { return k.File })
}

func kernelNames() string {
	var names []string
	for _, k := range neighbours() {
		names = append(names, k.Name)
	}
	return strings.Join(names, ", ")
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func labHelp() string {
	var b strings.Builder
	b.WriteString(`Runs a small HTTP service (the tenant) beside a noisy neighbour on this machine,
under several isolation strategies, and says what each is worth: the tenant's
latency relative to running alone, and the work that the neighbour still gets done.

Load is open-loop: latency counts from the instant at which a request was due.
Every scenario runs once per block, in random order; the baseline runs twice, so
that the table shows what "no difference" looks like here. Nothing outside the
lab's own control groups is changed, and those are removed afterwards.

Scenarios:
`)
	for _, s := range lab.IsolationExperiment().Scenarios {
		fmt.Fprintf(&b, "  %-11s %s\n", s.Name, s.Means)
	}
	b.WriteString("\nNeighbours:\n")
	for _, k := range neighbours() {
		fmt.Fprintf(&b, "  %-11s %s\n", k.Name, k.Presses)
	}
	b.WriteString(`
Exit status: 0 measured; 1 error; 2 wrong usage; 130 interrupted (what was
measured by then is stored and shown).`)
	return b.String()
}
