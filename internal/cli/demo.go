package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
)

type demoFlags struct {
	seconds      int
	page, cpus   string
	store        string
	unprivileged bool
}

func demoCommand() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo [flags]",
		Short: "Show in a minute what a noisy neighbour does to a service, and what protection does about it",
		Long: `Plays a story on this machine, in four parts of equal length: a small service alone; a
hog beside it that wants all CPUs; the hog in the idle class, as berth run --class BE
has it; the hog as before. The graph shows the service's p99 in every second. It ends
with the commands that do the same to a hog of your own, and says so if protection did
not help here.

Service, hog and load are processes of berth's own. Nothing else on the machine is
changed, and nothing is left: Ctrl-C ends it at any time. The machine is busy for its
length. Root gives control groups; without root the hog's threads are put into
SCHED_IDLE instead.

What each protection is worth on this machine is measured by berth lab.

Exit status: 0 shown, whatever came of it; 1 error; 2 wrong usage; 130 interrupted.`,
		Example: `  berth demo
  berth demo --report demo.html       # and as a page
  berth demo --seconds 20             # parts of 20 s each`,
		Args: argumentCount(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.IntVar(&f.seconds, "seconds", 12, "length of each of the four parts, 3 to 120 s")
	fs.StringVar(&f.cpus, "cpus", "", "CPUs that service and hog share, as a `list` such as 0-3 (default at most 8, whole cores)")
	fs.StringVar(&f.page, "report", "", "also write the page to `file`")
	fs.StringVar(&f.store, "result", "", "also store what was measured in `file`, which berth lab report shows again")
	fs.BoolVar(&f.unprivileged, "unprivileged", false, "use affinity, nice and SCHED_IDLE even where control groups could be used")
	outputFlag(cmd, "what to print: text, json or html (the page)", "html")
	return cmd
}

func (f *demoFlags) run(cmd *cobra.Command) (err error) {
	if err := onLiveHost(cmd); err != nil {
		return err
	}
	if f.seconds < 3 || f.seconds > 120 {
		return exitStatus{exitUsage, fmt.Errorf("--seconds %d: want 3 to 120", f.seconds)}
	}
	spec := lab.DemoSpec(f.seconds)
	spec.CPUs = f.cpus
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if err := restoreFirst(cmd.ErrOrStderr()); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "berth-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	g := newLiveGraph(cmd.ErrOrStderr(), spec)
	fmt.Fprintf(cmd.ErrOrStderr(), "demo, about %s; Ctrl-C ends it and leaves nothing\n", spec.Length().Round(time.Second))
	opt := lab.Options{Exe: exe, Program: thisProgram(), Dir: dir, Unprivileged: f.unprivileged, Progress: g.progress}
	result, err := lab.Demo(cmd.Context(), spec, opt, g.second)
	g.finish()
	if err != nil {
		return interruptedOr(cmd.Context(), err)
	}
	if f.store != "" {
		if err := lab.WriteFile(f.store, result); err != nil {
			return err
		}
	}
	m, err := lab.Measure(result)
	if err != nil {
		return err
	}
	sheet := report.Demo(m, m.Tell())
	if word(cmd, "output") == "html" {
		return report.HTML(cmd.OutOrStdout(), sheet)
	}
	shown := labFolder{page: f.page}
	return shown.present(cmd, sheet, "", true)
}

// liveGraph shows a story as it goes on: on a terminal as the graph, elsewhere as a line
// for each part.
type liveGraph struct {
	w      io.Writer
	tty    bool
	phases []lab.Phase
	names  []string // the scenarios of phases
	room   int      // seconds of each
	lines  int      // on the terminal
}

func newLiveGraph(w io.Writer, spec lab.Spec) *liveGraph {
	g := &liveGraph{w: w, tty: isTerminal(w), room: spec.Blocks}
	for _, s := range spec.Scenarios {
		g.names = append(g.names, s.Name)
		g.phases = append(g.phases, lab.Phase{Name: s.Means, Neighbour: s.Neighbour, Protected: s.Isolation != (lab.Isolation{})})
	}
	return g
}

func (g *liveGraph) progress(p lab.Progress) {
	i := slices.Index(g.names, p.Scenario)
	switch {
	case g.tty && p.Phase == "calibrate":
		g.show("making the service ready: " + p.Scenario + "\n")
	case !g.tty && i >= 0 && len(g.phases[i].Seconds) == 0:
		fmt.Fprintf(g.w, "%s: %d s\n", g.phases[i].Name, g.room)
	}
}

// second adds one to the graph.
func (g *liveGraph) second(s lab.Second) {
	if i := slices.Index(g.names, s.Phase); i >= 0 {
		g.phases[i].Seconds = append(g.phases[i].Seconds, s)
	}
	if g.tty {
		g.show(report.Graph(g.phases, g.room))
	}
}

// show takes the place of what was shown before.
func (g *liveGraph) show(text string) {
	up := ""
	if g.lines > 0 {
		up = fmt.Sprintf("\x1b[%dA", g.lines)
	}
	g.lines = strings.Count(text, "\n")
	fmt.Fprint(g.w, up, "\x1b[J", text)
}

// finish leaves nothing of it: the report has the graph.
func (g *liveGraph) finish() {
	if g.tty {
		g.show("")
	}
}
