package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/watch"
)

// exitFindings is the status of berth diagnose when something is the matter.
const exitFindings = 3

func diagnoseCommand() *cobra.Command {
	f := diagnoseOptions{}
	cmd := &cobra.Command{
		Use:   "diagnose [WORKLOAD | GROUP]",
		Short: "Say which workload suffers on this host, from what, and because of which",
		Long: `Say which workload suffers on this host, from what, because of which
antagonist, how sure that is, on what evidence, and what would help. It needs no
agent and changes nothing: it reads the kernel's counters once a second and judges
them by the rules of docs/guard.md. Without a name it judges all control groups that
use CPU time; a group with others below it is judged if it is named.

As root it arms the run-queue probe, eBPF programs that run at every context switch
until it ends (see docs/watch.md); --probe=false does without. With fewer rights it
has fewer signals, and lists the missing ones.

Interrupted, it judges the samples read so far.

Exit status: 0 if nothing is found, 3 if something is, 1 if the host or the recording
cannot be read, 2 for wrong usage.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exitStatus{exitUsage, fmt.Errorf("diagnose: one name at most, not %d", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.observe.register(cmd, true)
	cmd.Flags().DurationVar(&f.length, "for", 30*time.Second, "`time` to look")
	cmd.Flags().IntVar(&f.pid, "pid", 0, "look at the control group of this `process`")
	cmd.Flags().StringVar(&f.group, "cgroup", "", "look at the control group with this `path`, below the mount point")
	outputFlag(cmd, &f.output, "text or json")
	exclusive(cmd, "pid", "cgroup")
	exclusive(cmd, "pid", "replay")
	return cmd
}

// diagnoseOptions are the flags of berth diagnose.
type diagnoseOptions struct {
	observe observeFlags
	length  time.Duration
	pid     int
	group   string
	output  string
}

func (f *diagnoseOptions) run(cmd *cobra.Command, args []string) (err error) {
	if f.length < 5*time.Second {
		return exitStatus{exitUsage, fmt.Errorf("--for %s: at least 5s", f.length)}
	}
	if len(args) == 1 && (f.pid != 0 || f.group != "") {
		return exitStatus{exitUsage, errors.New("a name, --pid or --cgroup: one of them")}
	}
	o, err := f.observe.open(cmd)
	if err != nil {
		return err
	}
	defer func() {
		if e := o.close(); e != nil {
			err = errors.Join(err, e)
		}
	}()
	target, err := f.target(o, args)
	if err != nil {
		return err
	}
	ticks, err := f.collect(cmd, o, target)
	if err != nil {
		return err
	}
	signals, err := o.signals()
	if err != nil {
		return err
	}
	d, err := diagnose(&o.header, ticks, target)
	if err != nil {
		return err
	}
	d.missing(signals)
	if f.output == "json" {
		err = writeJSON(cmd.OutOrStdout(), d)
	} else {
		_, err = io.WriteString(cmd.OutOrStdout(), d.text())
	}
	if err == nil && len(d.Findings) > 0 {
		return exitStatus{code: exitFindings}
	}
	return err
}

// target is the group that is asked about, "" for all.
func (f *diagnoseOptions) target(o *observation, args []string) (string, error) {
	name := f.group
	switch {
	case f.pid != 0:
		group, err := o.groupOf(f.pid)
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("diagnose process %d: there is no such process", f.pid)
		}
		if err == nil && group == "" {
			err = fmt.Errorf("diagnose process %d: it is in the root control group, which is not told from the host; move it to a group of its own", f.pid)
		}
		return group, err
	case len(args) == 1:
		name = args[0]
	case name == "":
		return "", nil
	}
	group, ok := groupName(&o.header, name)
	if !ok {
		return "", fmt.Errorf("diagnose %s: no such control group or workload", name)
	}
	return group, nil
}

// collect reads for as long as asked, or until it is interrupted; a recording to
// its end.
func (f *diagnoseOptions) collect(cmd *cobra.Command, o *observation, target string) ([][]watch.Sample, error) {
	if target != "" {
		if err := o.focus([]string{target}); err != nil {
			return nil, err
		}
	}
	table := newWatchTable(&o.header, nil)
	progress := newSamplingLine(cmd.ErrOrStderr(), f.length, f.observe.replay == "")
	defer progress.finish()
	var all [][]watch.Sample
	for samples, err := range o.ticks {
		if err != nil {
			return nil, err
		}
		all = append(all, samples)
		table.add(samples)
		if len(all) == 2 && target == "" {
			if err := o.focus(table.busiest(observe.MaxFocus)); err != nil {
				return nil, err
			}
		}
		at := time.Duration(table.now)
		progress.show(at)
		if f.observe.replay == "" && at >= f.length {
			break
		}
	}
	return all, nil
}

// samplingLine says how long reading will last: one line rewritten on a terminal,
// one line elsewhere.
type samplingLine struct {
	w          io.Writer
	length     time.Duration
	tty, shown bool
	off        bool
}

func newSamplingLine(w io.Writer, length time.Duration, on bool) *samplingLine {
	return &samplingLine{w: w, length: length, tty: isTerminal(w), off: !on}
}

func (l *samplingLine) show(at time.Duration) {
	switch {
	case l.off:
	case l.tty:
		fmt.Fprintf(l.w, "\r\x1b[Klooking: %.0f of %.0f s", at.Seconds(), l.length.Seconds())
	case !l.shown:
		fmt.Fprintf(l.w, "looking for %s\n", l.length)
	}
	l.shown = true
}

func (l *samplingLine) finish() {
	if l.tty && l.shown && !l.off {
		fmt.Fprint(l.w, "\r\x1b[K")
	}
}

// printed is a finding whose names fit in a line of text each.
func printed(f detect.Finding) detect.Finding {
	f.Victim, f.Suspect = plain.Line(f.Victim), plain.Line(f.Suspect)
	f.Evidence = slices.Clone(f.Evidence)
	for i := range f.Evidence {
		f.Evidence[i].Subject.Name = plain.Line(f.Evidence[i].Subject.Name)
	}
	return f
}

// text says it all in plain words.
func (d *diagnosis) text() string {
	var b strings.Builder
	what := fmt.Sprintf("%d control groups that used CPU time", len(d.Looked))
	if d.Target != "" {
		what = plain.Line(d.Target)
	}
	fmt.Fprintf(&b, "Looked at %s for %.0f s, beside %d more. Means, but for P99 and MEMORY:\n\n%s", what, d.Seconds, d.Others, d.overview)
	if len(d.Findings) == 0 {
		b.WriteString("\nNothing found.\n")
		if d.Windows < correlatedAfter && d.lacksProbe() {
			fmt.Fprintf(&b, "Without the run-queue probe a neighbour on the CPU is named after %d s at the earliest.\n", correlatedAfter)
		}
	}
	for _, f := range d.Findings {
		fmt.Fprintf(&b, "\n%s  found: in %d of %d windows\n", printed(f.Finding).String(), f.Found, d.Windows)
	}
	if judged := d.judged(); len(judged) > 0 {
		fmt.Fprintf(&b, "\nJudged by all signals: %s.\n", strings.Join(judged, ", "))
	}
	for i, gap := range d.Gaps {
		if i == 0 {
			b.WriteString("Judged by fewer signals, or not at all:\n")
		}
		words := make([]string, len(gap.Missing))
		for i, s := range gap.Missing {
			words[i] = s.Words()
		}
		fmt.Fprintf(&b, "  %s, without %s\n", strings.ReplaceAll(gap.Resource.String(), "_", " "), strings.Join(words, ", "))
	}
	for i, s := range d.Missing {
		if i == 0 {
			b.WriteString("Signals that are not there:\n")
		}
		fmt.Fprintf(&b, "  %s (%s): %s", s.Name, s.Of, plain.Line(s.Reason))
		if s.Remedy != "" {
			fmt.Fprintf(&b, "; %s", plain.Line(s.Remedy))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// correlatedAfter is the number of windows that guard/detect needs to name a
// neighbour by correlation: ten for that, and three that agree.
const correlatedAfter = 13

func (d *diagnosis) lacksProbe() bool {
	return slices.ContainsFunc(d.Missing, func(s observe.Signal) bool { return s.Name == observe.RunQueue })
}

// judged are the resources about which everything is known.
func (d *diagnosis) judged() []string {
	var words []string
	for _, r := range detect.Resources() {
		if !slices.ContainsFunc(d.Gaps, func(g detect.Gap) bool { return g.Resource == r }) {
			words = append(words, strings.ReplaceAll(r.String(), "_", " "))
		}
	}
	return words
}
