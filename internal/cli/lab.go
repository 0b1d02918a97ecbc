package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/benchmark"
	"berth.dev/berth/lab/catalog"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
	"berth.dev/berth/lab/report"
)

// labFlags are the flags of berth lab but those that bindLab binds.
type labFlags struct {
	preset, experiment          string
	resource                    string
	scenarios                   []string
	clean, dryRun, unprivileged bool
	limit                       time.Duration
	until                       narrowness
	more                        string // the run to be continued
	labFolder
	programs labProgramFlags
}

func labCommand() *cobra.Command {
	var f labFlags
	cmd := &cobra.Command{
		Use:   "lab [flags] [isolation]",
		Short: "Measure what a noisy neighbour does to a service, and what isolation brings",
		Long:  labHelp(),
		Example: `  berth lab                                        # about two minutes
  berth lab --neighbour spin --scenario idle       # one strategy against a tight loop
  berth lab --preset standard --report lab.html    # longer, with a page to read
  berth lab --resource memory                      # page cache, as a backup job takes it
  berth lab --resource io                          # a slow disk that both read
  berth lab --resource net                         # a link that the neighbour fills
  berth lab --tenant redis                         # a real server, started with a configuration of the lab's
  berth lab --tenant './api --port 9000' --probe http://127.0.0.1:9000/item/{1-100} --neighbour 'make -j8'
  berth lab --tenant postgres --exec 'psql -h 127.0.0.1 -p {port} -U berth -c "SELECT 1" postgres' --duration 5s
  berth lab --tenant redis --exec 'redis-benchmark -p {port} -t get -n 20000 --csv' --figures redis-benchmark
  berth lab --unit nginx.service --probe http://127.0.0.1/   # what runs already, left as it is
  berth lab --dry-run                              # what would be run and written
  berth lab --for 10m --until 10%                  # until every interval of p99 is within ±10 %
  berth lab --continue results/20260101T120000Z-isolation --for 4m
  berth lab --resume results/20260101T120000Z-isolation
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
	cmd.AddCommand(labReportCommand(), labCompareCommand(), labProbeCommand(), labTabulateCommand(), labHistoryCommand(), labGuardCommand(), labListCommand(), labShowCommand(), labRunCommand())
	return cmd
}

func (f *labFlags) register(cmd *cobra.Command) {
	base := lab.IsolationSpec()
	fs := cmd.Flags()
	fs.StringVar(&f.preset, "preset", "quick", "size: "+presetNames())
	fs.StringVar(&f.resource, "resource", string(lab.CPU), "what tenant and neighbour compete for: "+resourceNames()+"; each has strategies of its own")
	fs.StringVar(&f.experiment, "experiment", "", "read the experiment from a YAML or JSON `file` (see --dry-run -o json)")
	fs.StringSliceVar(&f.scenarios, "scenario", nil, "run only these `scenarios` (and the baselines): "+strings.Join(scenarioNames(base), ", ")+"; or those of the resource")
	bindLab(fs, &base)
	f.programs.register(fs)
	fs.DurationVar(&f.limit, "for", 0, "run as many rounds as fit into this `time`, calibration included (default from the preset)")
	fs.Var(&f.until, "until", "end when the interval of every ratio of p99 is as narrow as `±10%`, at the latest after --for (default 15m)")
	fs.StringVar(&f.more, "continue", "", "add rounds to the complete run in `folder`: as many as fit into --for (default 2m), or --rounds")
	f.labFolder.register(cmd)
	fs.BoolVar(&f.clean, "clean", false, "only restore what a killed run left behind (as berth restore)")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print what would be run and written, and run nothing")
	fs.BoolVar(&f.unprivileged, "unprivileged", false, "use affinity, nice and SCHED_IDLE even where control groups could be used")
}

// bindLab has flags set the fields of e, whose values are their defaults.
func bindLab(fs *pflag.FlagSet, e *lab.Spec) {
	duration := func(to *lab.Duration, name, help string) {
		fs.DurationVar((*time.Duration)(to), name, time.Duration(*to), help)
	}
	fs.IntVar(&e.Blocks, "rounds", e.Blocks, "rounds of each scenario (default from the preset)")
	duration(&e.Window, "duration", "measured time of one round (default from the preset)")
	duration(&e.Settle, "settle", "discarded time at the start of a round (default from the preset)")
	fs.Float64Var(&e.Rate, "rate", e.Rate, "requests per second (default chosen with the service time)")
	duration(&e.Tenant.ServiceTime, "service-time", "CPU time of one request (default such that the tenant wants --demand)")
	fs.Float64Var(&e.Tenant.Demand, "demand", e.Tenant.Demand, "share of the shared CPUs that the tenant wants, 0-1")
	fs.Int64Var(&e.Tenant.WorkingSetBytes, "working-set", e.Tenant.WorkingSetBytes, "tenant's working set in bytes")
	bindTenant(fs, &e.Tenant)
	fs.IntVar(&e.Neighbour.Intensity, "intensity", e.Neighbour.Intensity, "share of the time that the neighbour wants to work, in percent")
	fs.IntVar(&e.Neighbour.Threads, "neighbour-threads", e.Neighbour.Threads, "neighbour's threads (default four per shared CPU; those of other resources have their own number)")
	fs.Var(&e.Limits, "slo", "limits of response time, as in p99=20ms,p50=2ms: in how many rounds each scenario met them")
	fs.StringVar(&e.CPUs, "cpus", e.CPUs, "CPUs that tenant and neighbour share, as a `list` such as 0-3 (default at most 8, whole cores)")
	awake := fs.VarPF(optional{&e.Awake}, "awake", "", "keep idle CPUs from sleeping during the run; they take power meanwhile (default on a virtual machine, whose hypervisor takes milliseconds to wake them up, where permitted)")
	awake.NoOptDefVal = "true"
	fs.Uint64Var(&e.Seed, "seed", e.Seed, "seed of arrivals and of the order of scenarios (default by the clock, and recorded)")
}

// setAgain sets the flags of the command line on another binding of the flags.
func setAgain(cmd *cobra.Command, bind func(*pflag.FlagSet)) (err error) {
	again := pflag.NewFlagSet("", pflag.ContinueOnError)
	bind(again)
	cmd.Flags().Visit(func(set *pflag.Flag) {
		to := again.Lookup(set.Name)
		if to == nil {
			return
		}
		text := set.Value.String()
		if list, no := cmd.Flags().GetStringSlice(set.Name); no == nil {
			text = strings.Join(list, ",")
		}
		err = errors.Join(err, to.Value.Set(text))
	})
	return err
}

// build returns the experiment that the flags ask for.
func (f *labFlags) build(cmd *cobra.Command) (lab.Spec, error) {
	set := cmd.Flags().Changed
	e, err := lab.IsolationOf(lab.Resource(f.resource))
	if err != nil {
		return e, err
	}
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
		e.Preset, e.For = "", 0 // no longer those of the preset
	}
	if err := setAgain(cmd, func(fs *pflag.FlagSet) { bindLab(fs, &e) }); err != nil {
		return e, err
	}
	if err := f.programs.apply(cmd, &e); err != nil {
		return e, err
	}
	if set("scenario") {
		if err := e.Keep(f.scenarios); err != nil {
			return e, err
		}
	}
	limit := f.limit
	if set("until") {
		e.Until = float64(f.until)
		if !set("for") {
			limit = longestUntil
		}
	}
	if set("for") && limit <= 0 {
		return e, fmt.Errorf("--for %s: want a time such as 2m", limit)
	}
	if limit > 0 {
		e.Preset = ""
		if e.For = lab.Duration(limit); !set("rounds") {
			e.Fill(limit)
		}
	}
	if e.Tenant.Figures != "" {
		told := benchmark.Of(e).Experiment
		if set("rounds") {
			told.Blocks = e.Blocks
		}
		if set("settle") {
			told.Settle = e.Settle
		}
		e = told
	}
	return e, e.Validate()
}

// longestUntil is how long a run goes on at most that is to decide, unless told otherwise.
const longestUntil = 15 * time.Minute

// defaultMore is how long a run is continued unless told otherwise.
const defaultMore = 2 * time.Minute

// moreRounds is how many are to be added to a run, 0 for as many as fit.
func (f *labFlags) moreRounds(cmd *cobra.Command) int {
	n, err := cmd.Flags().GetInt("rounds")
	if err != nil || !cmd.Flags().Changed("rounds") {
		return 0
	}
	return n
}

// optional is a flag that is true, false, or left to the lab.
type optional struct{ to **bool }

// String writes the flag's value.
func (o optional) String() string {
	if o.to == nil || *o.to == nil {
		return ""
	}
	return strconv.FormatBool(**o.to)
}

// Type names the flag's kind of value.
func (o optional) Type() string { return "bool" }

// Set reads "true" or "false".
func (o optional) Set(text string) error {
	on, err := strconv.ParseBool(text)
	if err == nil {
		*o.to = &on
	}
	return err
}

// narrowness is the flag --until: 0.1 for ±10 %.
type narrowness float64

// String writes the flag's value.
func (n *narrowness) String() string {
	if *n == 0 {
		return ""
	}
	return fmt.Sprintf("±%g%%", float64(*n)*100)
}

// Type names the flag's kind of value.
func (n *narrowness) Type() string { return "percent" }

// Set reads "±10%" or "10%".
func (n *narrowness) Set(text string) error {
	number, ok := strings.CutSuffix(strings.TrimPrefix(text, "±"), "%")
	percent, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !ok || err != nil || !(percent > 0 && percent < 1000) {
		return errors.New("want a percentage such as ±10%")
	}
	*n = narrowness(percent / 100)
	return nil
}

// readExperiment reads a file over e: fields that the file does not have stay, but its
// scenarios replace those of e.
func readExperiment(path string, e *lab.Spec) error {
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
	if f.more != "" && f.resume != "" {
		return exitStatus{exitUsage, errors.New("--continue adds rounds to a complete run, --resume ends one that is not: want one of the two")}
	}
	if err := f.check(cmd, "unprivileged"); err != nil {
		return err
	}
	if f.clean {
		r := restoring{dryRun: f.dryRun}
		return r.undo(cmd)
	}
	if err := onLiveHost(cmd); err != nil {
		return err
	}
	if len(args) == 1 && args[0] != "isolation" {
		if _, err := catalog.Find(args[0]); err == nil {
			return exitStatus{exitUsage, fmt.Errorf("lab %q: an experiment is run by 'berth lab run %s'", args[0], args[0])}
		}
		return exitStatus{exitUsage, fmt.Errorf("lab %q: no such command%s (see 'berth lab --help'; 'berth lab list' has the experiments)", args[0], nearestVerb(cmd, args[0]))}
	}
	e, err := f.build(cmd)
	if err != nil {
		return exitStatus{exitUsage, err}
	}
	if e.Tenant.Figures != "" && !f.dryRun && f.resume == "" && f.more == "" {
		return f.runBenchmark(cmd, e)
	}
	if f.dryRun {
		return previewLab(cmd, e, lab.Options{Unprivileged: f.unprivileged})
	}
	limit, rounds := f.limit, f.moreRounds(cmd)
	if f.more != "" {
		f.resume = f.more
		if filepath.Base(f.more) == lab.ResultFile {
			f.resume = filepath.Dir(f.more)
		}
		if limit == 0 && rounds == 0 {
			limit = defaultMore
		}
	}
	var result *lab.Result
	dir, err := f.run(cmd, e.Name, func(ctx context.Context, opt lab.Options) (measured bool, err error) {
		opt.Unprivileged = f.unprivileged
		switch {
		case f.more != "":
			result, err = lab.ContinueIsolate(ctx, rounds, limit, float64(f.until), opt)
		case f.resume != "":
			result, err = lab.ResumeIsolate(ctx, opt)
		default:
			fmt.Fprintf(cmd.ErrOrStderr(), "%s, about %s\n", e.Name, e.Length().Round(time.Second))
			result, err = lab.Isolate(ctx, e, opt)
		}
		return result != nil && len(result.Rounds) > 0, err
	})
	if result == nil || len(result.Rounds) == 0 {
		return err
	}
	m, wrong := lab.Measure(result)
	if wrong != nil {
		return errors.Join(err, wrong)
	}
	m.Path = dir
	a := m.Analyse()
	return errors.Join(f.present(cmd, report.Isolation(m, a), dir, result.Complete), err)
}

// runBenchmark runs the experiment of a benchmark that tells its own figures.
func (f *labFlags) runBenchmark(cmd *cobra.Command, e lab.Spec) error {
	x := benchmark.Default()
	x.Experiment = e
	fmt.Fprintf(cmd.ErrOrStderr(), "%s, about %s\n", e.Name, e.Length().Round(time.Second))
	run := labRunFlags{unprivileged: f.unprivileged, labFolder: f.labFolder}
	run.resumes = "berth lab run"
	return run.measure(cmd, x, x.Experiment.Name)
}

func previewLab(cmd *cobra.Command, e lab.Spec, opt lab.Options) error {
	p, err := lab.Plan(e, opt)
	if err != nil {
		return err
	}
	return show(cmd, p, p.String)
}

func thisProgram() lab.Program {
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
	return lab.Program{Version: version, Commit: commit, Go: runtime.Version()}
}

func scenarioNames(e lab.Spec) []string {
	var names []string
	for _, s := range e.Scenarios {
		names = append(names, s.Name)
	}
	return names
}

func resourceNames() string {
	var names []string
	for _, r := range lab.Resources() {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}

func presetNames() string {
	var words []string
	for _, p := range lab.Presets() {
		words = append(words, fmt.Sprintf("%s (%s)", p.Name, p.About))
	}
	return strings.Join(words, ", ")
}

// neighbours are those that need nothing of their own.
func neighbours() []noise.Kernel {
	return slices.DeleteFunc(noise.Kernels(), func(k noise.Kernel) bool { return k.File || k.Link })
}

func kernelNames() string {
	var names []string
	for _, k := range neighbours() {
		names = append(names, k.Name)
	}
	return strings.Join(names, ", ")
}

func labHelp() string {
	var b strings.Builder
	b.WriteString(`Runs a small HTTP service (the tenant) beside a noisy neighbour on this machine,
under several isolation strategies, and says what each is worth: the tenant's
latency relative to running alone, and the work that the neighbour still gets done.

Load is open-loop: latency counts from the instant at which a request was due.
Rounds are short and many. Every scenario runs once per block, in random order; the
tenant runs alone twice, so that the table shows what "no difference" looks like here.
Nothing outside the lab's own control groups is changed, and those are removed
afterwards.

Scenarios:
`)
	for _, r := range lab.Resources() {
		if r != lab.CPU {
			fmt.Fprintf(&b, "and with --resource %s, besides the baselines:\n", r)
		}
		e, _ := lab.IsolationOf(r)
		for _, s := range e.Known() {
			if s.Neighbour || r == lab.CPU {
				fmt.Fprintf(&b, "  %-11s %s\n", s.Name, s.Means)
			}
		}
	}
	b.WriteString("\nServers that --tenant knows by name:\n")
	for _, s := range program.Servers() {
		fmt.Fprintf(&b, "  %-11s %s\n", s.Name, s.About)
	}
	b.WriteString("\nNeighbours:\n")
	for _, k := range neighbours() {
		fmt.Fprintf(&b, "  %-11s %s\n", k.Name, k.Presses)
	}
	b.WriteString(`
A program of your own stands for the tenant with --tenant COMMAND and --probe URL, for
the neighbour with --neighbour COMMAND. With --exec COMMAND a request is a run of that
command, which starts when it is due, in the tenant's place, and fails by its exit status;
with --figures that is a benchmark, whose own report is read. What runs already is
measured with --pid, --unit or --cgroup: only the neighbour is started, and "pinned"
confines only that. Passwords come from the environment (PGPASSWORD, REDISCLI_AUTH).

Exit status: 0 measured; 1 error; 2 wrong usage; 130 interrupted (what was
measured by then is stored and shown; --resume goes on with it).`)
	return b.String()
}
