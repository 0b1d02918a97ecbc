package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/catalog"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
)

// listed is an experiment as berth lab list shows it.
type listed struct {
	Name     string       `json:"name"`
	Question string       `json:"question"`
	Takes    lab.Duration `json:"takes"` // on this machine, with the default settings
	Needs    string       `json:"needs,omitempty"`
	// Lacks says why this machine can have nothing of it.
	Lacks string `json:"lacks,omitempty"`
	Verb  string `json:"verb,omitempty"`
}

func labListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the experiments: what each answers, how long it takes, what it needs",
		Long: `Lists the experiments that come with Berth: the question that each answers, about how
long it takes on this machine, what it needs, and whether this machine has that.

berth lab show NAME prints an experiment's data file, berth lab run NAME runs it.`,
		Args: argumentCount(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := sysfs.Live(rootDir(cmd))
			if err != nil {
				return err
			}
			all := listAll(m)
			return show(cmd, all, func() string { return listText(all) })
		},
	}
	outputFlag(cmd, "what to print: text or json")
	return cmd
}

func listAll(m *machine.Machine) []listed {
	var all []listed
	for _, k := range catalog.Kinds() {
		l := listed{Name: k.Name, Question: k.Question, Takes: lab.Duration(k.New().Length(m)), Needs: k.Needs, Verb: k.Verb}
		if err := k.Here(m); err != nil {
			l.Lacks = reason(err)
		}
		all = append(all, l)
	}
	return all
}

// reason is what is missing, and what would help, without the words around it.
func reason(err error) string {
	missing, ok := errors.AsType[*kernel.NotSupportedError](err)
	if !ok {
		return err.Error()
	}
	text := missing.Reason
	if missing.Remedy != "" {
		text += " (" + missing.Remedy + ")"
	}
	return text
}

func listText(all []listed) string {
	rows := [][]string{{"NAME", "TAKES", "QUESTION"}}
	for _, l := range all {
		takes := about(time.Duration(l.Takes))
		if l.Lacks != "" {
			takes = "–"
		}
		rows = append(rows, []string{l.Name, takes, l.Question})
		if l.Lacks != "" {
			rows = append(rows, []string{"", "", "not here: " + l.Lacks})
		} else if l.Needs != "" {
			rows = append(rows, []string{"", "", "needs " + l.Needs})
		}
	}
	var b strings.Builder
	plain.Columns(&b, rows)
	b.WriteString("\nRun one: berth lab run NAME. Copy one, to change it: berth lab show NAME > my.yaml\n")
	return b.String()
}

// about rounds a length of time for people.
func about(d time.Duration) string {
	switch tens := d.Round(10 * time.Second); {
	case d.Round(time.Second) < time.Minute:
		return d.Round(time.Second).String()
	case d < 10*time.Minute && tens%time.Minute != 0:
		return fmt.Sprintf("%d min %d s", tens/time.Minute, tens%time.Minute/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

func labShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Print an experiment's data file, to copy and change",
		Long: `Prints the data file of an experiment that comes with Berth: YAML, with what each
field means. A copy runs with berth lab run FILE.yaml. What a file leaves out keeps its
default; a misspelt field is an error.`,
		Example: `  berth lab show isolation > my.yaml
  berth lab run my.yaml`,
		Args:              argumentCount(1),
		ValidArgsFunction: completeKinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := catalog.Find(args[0])
			if err != nil {
				return exitStatus{exitUsage, err}
			}
			text, err := k.File()
			if err == nil {
				_, err = cmd.OutOrStdout().Write(text)
			}
			return err
		},
	}
}

func completeKinds(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, k := range catalog.Kinds() {
		names = append(names, k.Name+"\t"+k.Question)
	}
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return names, cobra.ShellCompDirectiveDefault
}

// labRunFlags are the flags of berth lab run.
type labRunFlags struct {
	limit, seed, price string
	set                []string
	unprivileged       bool
	labFolder
}

func labRunCommand() *cobra.Command {
	var f labRunFlags
	cmd := &cobra.Command{
		Use:   "run [flags] NAME|FILE.yaml",
		Short: "Run an experiment, by its name or from a data file",
		Long: `Runs an experiment that comes with Berth (berth lab list), or one from a data file: a
copy of what berth lab show NAME prints, changed as you like. It says beforehand how
long that takes, and what it comes to first in words, then in figures.

Every run is stored in a folder of its own, as it goes. berth lab report FOLDER shows
it again. Ctrl-C ends a run: what was measured is kept and shown, everything is as it
was, and --resume FOLDER goes on with it. So does --resume after a crash.

Exit status: 0 measured; 1 error; 2 wrong usage, a bad data file; 130 interrupted.`,
		Example: `  berth lab run isolation
  berth lab run my.yaml --results /var/tmp/lab
  berth lab run isolation --for 5m --set tenant.demand=0.3
  berth lab run --resume results/20260101T120000Z-isolation`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.resume == "" {
				return argumentCount(1)(cmd, args)
			}
			return argumentCount(0)(cmd, args)
		},
		ValidArgsFunction: completeKinds,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.limit, "for", "", "begin nothing that would end after this `time`, as --set for=TIME")
	fs.StringVar(&f.seed, "seed", "", "fix what is drawn by chance, as --set seed=`N`")
	fs.StringVar(&f.price, "node-price", "", "put a `price` on the machines that pinning takes, as --set nodePrice=PRICE")
	fs.StringArrayVar(&f.set, "set", nil, "change a `field=value` of the data file; may be repeated")
	fs.BoolVar(&f.unprivileged, "unprivileged", false, "use affinity, nice and SCHED_IDLE even where control groups could be used")
	f.labFolder.register(cmd)
	return cmd
}

// open returns the experiment that the arguments ask for, with its kind and a name for its folder.
func (f *labRunFlags) open(args []string) (k catalog.Kind, x catalog.Experiment, name string, err error) {
	if f.resume != "" {
		if filepath.Base(f.resume) == lab.ResultFile {
			f.resume = filepath.Dir(f.resume)
		}
		k, x, err = catalog.Load(f.resume)
		return k, x, "", err
	}
	usage := func(err error) error { return exitStatus{exitUsage, err} }
	name = args[0]
	if strings.ContainsAny(name, "./") {
		text, err := os.ReadFile(name)
		if err != nil {
			return k, nil, "", usage(fmt.Errorf("experiment: %w", err))
		}
		if k, x, err = catalog.Parse(text, name); err != nil {
			return k, nil, "", usage(fieldErrors(err))
		}
		name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	} else if k, err = catalog.Find(name); err == nil {
		x = k.New()
	} else {
		return k, nil, "", usage(err)
	}
	sets := slices.Clone(f.set)
	for field, value := range map[string]string{"for": f.limit, "seed": f.seed, "nodePrice": f.price} {
		if value != "" {
			sets = append(sets, field+"="+value)
		}
	}
	for _, set := range sets {
		field, value, ok := strings.Cut(set, "=")
		if !ok {
			return k, nil, "", usage(fmt.Errorf("--set %s: want field=value", set))
		}
		if err := catalog.Set(x, field, value); err != nil {
			return k, nil, "", usage(fmt.Errorf("experiment %s: %w", k.Name, err))
		}
	}
	if err := x.Validate(); err != nil {
		return k, nil, "", usage(err)
	}
	return k, x, name, nil
}

// fieldErrors are all that is wrong with a data file, a line each.
func fieldErrors(err error) error {
	var lines []string
	for _, e := range strictyaml.Errors(err) {
		lines = append(lines, e.Error())
	}
	if len(lines) == 0 {
		return err
	}
	return errors.New(strings.Join(lines, "\n"))
}

func (f *labRunFlags) run(cmd *cobra.Command, args []string) error {
	if err := errors.Join(onLiveHost(cmd), f.check(cmd, "unprivileged")); err != nil {
		return err
	}
	k, x, name, err := f.open(args)
	if err != nil {
		return err
	}
	m, err := sysfs.Live(rootDir(cmd))
	if err != nil {
		return err
	}
	if err := k.Here(m); err != nil {
		return fmt.Errorf("experiment %s: %w", k.Name, err)
	}
	if f.resume == "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s about %s\n", k.Name, k.Question, about(x.Length(m)))
	} else if x.Head().Complete {
		return exitStatus{exitUsage, fmt.Errorf("--resume %s: the run is complete; show it with berth lab report", f.resume)}
	}
	return f.measure(cmd, x, name)
}

// measure runs an experiment, or goes on with it, and shows what it came to.
func (f *labRunFlags) measure(cmd *cobra.Command, x catalog.Experiment, name string) error {
	dir, err := f.labFolder.run(cmd, name, func(ctx context.Context, opt lab.Options) (bool, error) {
		opt.Unprivileged = f.unprivileged
		err := x.Run(ctx, opt)
		return stored(opt.Dir), err
	})
	if !stored(dir) {
		return err
	}
	sheet, wrong := x.Sheet()
	if wrong != nil {
		return errors.Join(err, fmt.Errorf("what was measured is in %s: %w", dir, wrong))
	}
	return errors.Join(f.present(cmd, sheet, dir, x.Head().Complete), err)
}

// stored says whether a run has a result.
func stored(dir string) bool { return dir != "" && exists(filepath.Join(dir, lab.ResultFile)) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
