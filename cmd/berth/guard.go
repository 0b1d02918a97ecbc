package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/guard"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/place"
)

func guardCommand() *cobra.Command {
	f := guardFlags{}
	cmd := &cobra.Command{
		Use:   "guard",
		Short: "Help sensitive workloads against noisy neighbours",
		Long: `Help sensitive workloads against noisy neighbours: say which one suffers, from
what and because of which neighbour (the antagonist) and, if it may, slow that one
down, measure whether that helped, and revert it when it is no longer needed.

  --mode observe   says what it finds (the default)
  --mode preview   also says what it would do, and changes nothing
  --mode enforce   does it: one change at a time, the cheapest and most reversible
                   first, reverted if the victim does not get better

It helps Berth's own workloads of the classes LS, LSE and LSR, and groups that a
--sensitive glob names. It acts on best-effort work only: Berth's own (BE), groups
that --best-effort names, and groups that yield already: cpu.idle, v1 cpu.shares 2,
or Kubernetes' best-effort pods. A glob names a group, or all groups in it: 'batch',
'kubepods/*'.
--protect is for groups that must never be changed, whatever their class.

A group yields at the level where its path and the victim's part, so the guard acts
on a group of several only if all of them are best effort.

Whenever it ends, by Ctrl-C, SIGTERM, --for or an error, it restores everything. After
a kill, berth guard off, the next berth guard or berth restore does. Only one guard
that may act runs on a host.

As root it arms the run-queue probe while it is needed (eBPF programs that run at every
context switch): then a neighbour on the CPU is found after three windows of 100 ms,
without it after 13 windows of --window at the earliest. docs/guard.md has the rules,
the remedies, and the cost.

Exit status: 0 at the end of --for or after a signal, 1 if the host cannot be read or
something could not be restored, 2 for wrong usage.`,
		Example: `  berth guard --sensitive 'web.slice/*' --for 10m
  berth guard --mode preview --sensitive web --best-effort batch
  berth guard --mode enforce --sensitive web --best-effort 'batch/*' --protect batch/backup
  berth watch --record bad-day.jsonl; berth guard --replay bad-day.jsonl --sensitive web
  berth guard status
  berth guard off`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.mode, "mode", "observe", "observe, preview or enforce")
	fl.StringArrayVar(&f.sensitive, "sensitive", nil, "help groups that match this `glob`; may be repeated")
	fl.StringArrayVar(&f.bestEffort, "best-effort", nil, "groups that match this `glob` may be slowed down; may be repeated")
	fl.StringArrayVar(&f.protect, "protect", nil, "never act on groups that match this `glob`; may be repeated")
	fl.DurationVar(&f.length, "for", 0, "end after this `time`; 0 is never")
	fl.DurationVar(&f.window, "window", time.Second, "judge once in this `time`; 100ms while the probe is armed")
	fl.StringVar(&f.probe, "probe", "needed", "when to arm the run-queue probe: needed, always or never")
	fl.StringVar(&f.replay, "replay", "", "judge a recording in this `file` instead of this host; nothing is changed")
	outputFlag(cmd, &f.output, "text or json")
	completeWords(cmd, "mode", "observe", "preview", "enforce")
	completeWords(cmd, "probe", "needed", "always", "never")
	socketFlag(cmd)
	cmd.AddCommand(guardOffCommand(), guardStatusCommand())
	return cmd
}

// guardFlags are the flags of berth guard.
type guardFlags struct {
	mode, probe, replay, output    string
	sensitive, bestEffort, protect []string
	length, window                 time.Duration
}

func (f *guardFlags) validate() error {
	var errs []error
	if !slices.Contains([]string{"observe", "preview", "enforce"}, f.mode) {
		errs = append(errs, fmt.Errorf("--mode %q: not observe, preview or enforce", f.mode))
	}
	if !slices.Contains([]string{"needed", "always", "never"}, f.probe) {
		errs = append(errs, fmt.Errorf("--probe %q: not needed, always or never", f.probe))
	}
	if f.replay != "" && f.mode == "enforce" {
		errs = append(errs, errors.New("--replay: a recording can be previewed, not enforced"))
	}
	if f.length < 0 {
		errs = append(errs, fmt.Errorf("--for %s: negative", f.length))
	}
	if f.window < guard.FastWindow || f.window > time.Minute {
		errs = append(errs, fmt.Errorf("--window %s: not 100ms to 1m", f.window))
	}
	for _, glob := range slices.Concat(f.sensitive, f.bestEffort, f.protect) {
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			errs = append(errs, fmt.Errorf("glob %q: not valid", glob))
		}
	}
	if len(errs) > 0 {
		return exitStatus{exitUsage, errors.Join(errs...)}
	}
	return nil
}

func (f *guardFlags) run(cmd *cobra.Command) (err error) {
	if err := f.validate(); err != nil {
		return err
	}
	var opt guard.Options
	if err := opt.Control.Mode.UnmarshalText([]byte(f.mode)); err != nil {
		return err
	}
	opt.Window = f.window
	opt.Control.Protected = globs(f.protect)
	opt.Probe = map[string]guard.ProbeUse{"needed": guard.ProbeNeeded, "always": guard.ProbeAlways, "never": guard.ProbeNever}[f.probe]
	g := &guarding{flags: f, cmd: cmd, began: time.Now()}
	closing, err := g.open(&opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closing()) }()
	if opt.Sensors != nil {
		if err := g.check(cmd.Context(), &opt); err != nil {
			return err
		}
	}
	opt.Found, opt.Repeat, opt.Acted = g.found, time.Minute, g.acted
	opt.Failed = func(err error) { fmt.Fprintf(cmd.ErrOrStderr(), "berth: %v\n", plain.Line(err.Error())) }
	if g.runner, err = guard.New(opt); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	g.stop = stop
	ignoreSIGPIPE()
	if f.length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.length)
		defer cancel()
	}
	g.begin(opt.Control.Mode)
	defer g.end()
	err = g.runner.Run(ctx)
	g.summary()
	var unread *unreadError
	if errors.As(context.Cause(ctx), &unread) {
		err = errors.Join(err, unread)
	}
	return err
}

// globs are without the slashes around them.
func globs(all []string) []string {
	var trimmed []string
	for _, glob := range all {
		trimmed = append(trimmed, strings.Trim(glob, "/"))
	}
	return trimmed
}

// globbed reports whether one of the globs names a group or one that it lies in.
func globbed(all []string, group string) bool {
	return slices.ContainsFunc(globs(all), func(glob string) bool { return kernel.Covers(glob, group) })
}

// guarding is one run of berth guard.
type guarding struct {
	flags   *guardFlags
	cmd     *cobra.Command
	sensors *guard.Host
	runner  *guard.Runner
	header  observe.Header // of a recording; of a host its names of workloads
	dir     string         // of the state, "" where nothing is changed
	began   time.Time
	stop    context.CancelCauseFunc
	// findings counts the printed ones, sensitive names the workloads that it looks after.
	findings  int
	sensitive []string
}

// open opens the recording or the host.
func (g *guarding) open(opt *guard.Options) (closing func() error, err error) {
	if g.flags.replay != "" {
		o, err := openReplay(g.flags.replay)
		if err != nil {
			return nil, err
		}
		g.header, opt.Replay, opt.Began, opt.Machine = o.header, o.ticks, o.header.Began, o.header.Machine
		opt.Workloads = g.recorded
		return o.close, nil
	}
	var act actuate.Options
	if opt.Control.Mode != control.Observe {
		if act.Root, err = systemd.Open(rootDir(g.cmd)); err != nil {
			return nil, err
		}
	}
	if opt.Control.Mode == control.Enforce {
		act.Dir = guardDir(g.cmd)
	}
	live, left, err := guard.OpenLive(rootDir(g.cmd), act)
	for _, item := range left {
		fmt.Fprintf(g.cmd.ErrOrStderr(), "berth: a killed guard left: %s  %s\n", item.Outcome, plain.Line(undoing(item)))
	}
	if err != nil {
		return nil, err
	}
	g.sensors, g.dir, opt.Workloads = live.Host, act.Dir, g.workloads
	live.Guard(opt)
	if m, err := liveMachine(g.cmd); err == nil {
		opt.Machine = m
	}
	return live.Close, nil
}

// check refuses a guard without a sensitive workload.
func (g *guarding) check(ctx context.Context, opt *guard.Options) error {
	all, err := opt.Workloads(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(w guard.Workload) bool { return w.Sensitive }) {
		if len(g.flags.sensitive) > 0 {
			return exitStatus{exitUsage, fmt.Errorf("--sensitive %s: no such control group", strings.Join(g.flags.sensitive, ", "))}
		}
		return exitStatus{exitUsage, errors.New("there is no sensitive workload: name control groups with --sensitive, or start workloads by berth run --class LS")}
	}
	if err := g.tellUnmatched(); err != nil {
		return err
	}
	if opt.Control.Mode != control.Enforce {
		return nil
	}
	if c, err := dial(g.cmd); err == nil && c != nil {
		fmt.Fprintln(g.cmd.ErrOrStderr(), "berth: an agent keeps this host: it repairs changes by other writers in its own groups, this guard's too")
		return c.Close()
	}
	return nil
}

// tellUnmatched says which globs name no group with processes now: a typing error in --protect is
// not to be found out by what happens.
func (g *guarding) tellUnmatched() error {
	groups, err := g.sensors.Groups()
	if err != nil {
		return err
	}
	named := func(group string) []string { return []string{group, shownName(&g.header, group)} }
	for _, f := range []struct {
		flag  string
		globs []string
	}{{"sensitive", g.flags.sensitive}, {"best-effort", g.flags.bestEffort}, {"protect", g.flags.protect}} {
		for _, glob := range f.globs {
			matches := func(group string) bool {
				return slices.ContainsFunc(named(group), func(name string) bool { return globbed([]string{glob}, name) })
			}
			if !slices.ContainsFunc(groups, matches) {
				fmt.Fprintf(g.cmd.ErrOrStderr(), "berth: --%s %s: names no control group with processes so far\n", f.flag, plain.Line(glob))
			}
		}
	}
	return nil
}

// workloads returns the workloads of this host.
func (g *guarding) workloads(ctx context.Context) ([]guard.Workload, error) {
	records, err := recordedWorkloads(ctx, g.cmd, g.sensors)
	if err != nil {
		return nil, err
	}
	groups, err := g.sensors.Groups()
	if err != nil {
		return nil, err
	}
	for _, glob := range globs(g.flags.sensitive) { // a group that has others below it must be named in full
		dir := cmp.Or(glob, ".")
		if g.sensors.Has(glob) && !slices.ContainsFunc(groups, func(group string) bool { return kernel.Within(group, dir) }) {
			groups = append(groups, glob)
		}
	}
	g.header.Groups = nil
	all := map[string]guard.Workload{}
	for group, r := range records {
		g.header.Groups = append(g.header.Groups, observe.Group{Path: group, Name: r.name})
		all[group] = guard.Workload{Group: group, Class: r.class, Sensitive: r.class.Traits().Sensitive}
	}
	return g.classes(all, groups), nil
}

// recorded returns the workloads of a recording.
func (g *guarding) recorded(context.Context) ([]guard.Workload, error) {
	var groups []string
	for _, group := range g.header.Groups {
		groups = append(groups, group.Path)
	}
	return g.classes(map[string]guard.Workload{}, groups), nil
}

// classes adds what the flags say of groups.
func (g *guarding) classes(all map[string]guard.Workload, groups []string) []guard.Workload {
	for _, group := range groups {
		w, known := all[group]
		w.Group = group
		name := shownName(&g.header, group)
		sensitive := globbed(g.flags.sensitive, group) || globbed(g.flags.sensitive, name)
		best := globbed(g.flags.bestEffort, group) || globbed(g.flags.bestEffort, name)
		switch {
		case sensitive:
			w.Sensitive = true
			if w.Class == place.BE {
				w.Class = place.LS
			}
		case best:
			w.Class, w.Sensitive = place.BE, false
		case !known:
			continue
		}
		all[group] = w
	}
	var list []guard.Workload
	g.sensitive = nil
	for _, group := range sortedGroups(all) {
		list = append(list, all[group])
		if all[group].Sensitive {
			g.sensitive = append(g.sensitive, shownName(&g.header, group))
		}
	}
	return list
}

// found prints a finding when it is new, and once a minute while it lasts.
func (g *guarding) found(all []detect.Finding) {
	for _, f := range all {
		now := g.now(f)
		g.findings++
		f = named(&g.header, f)
		if g.flags.output == "json" {
			g.line(struct {
				Time    time.Time      `json:"time"`
				Finding detect.Finding `json:"finding"`
			}{now, f})
			continue
		}
		what, _, _ := strings.Cut(f.String(), "\n")
		if f.Suspect == detect.Outside {
			what += ", which nothing can be done to: start them in a group of their own"
		}
		var seen []string
		for _, e := range f.Evidence {
			seen = append(seen, e.Subject.String()+": "+e.String())
		}
		g.print(now, "found", fmt.Sprintf("%s (sure: %.0f %%): %s", what, 100*f.Confidence, strings.Join(seen, "; ")))
	}
}

// now is the time of a finding: that of the recording, if there is one.
func (g *guarding) now(f detect.Finding) time.Time {
	if g.flags.replay != "" {
		return g.header.Began.Add(time.Duration(f.Time))
	}
	return time.Now()
}

func (g *guarding) acted(e control.Event) {
	if g.flags.replay == "" {
		g.note()
	} else {
		e.Time = e.Time.UTC()
	}
	e.Victim, e.Suspect = shownName(&g.header, e.Victim), shownName(&g.header, e.Suspect)
	if g.flags.output == "json" {
		g.line(struct {
			Time  time.Time     `json:"time"`
			Event control.Event `json:"event"`
		}{e.Time, e})
		return
	}
	text := strings.TrimSpace(strings.TrimPrefix(e.String(), e.Outcome.String()))
	for _, c := range e.Changes {
		text += fmt.Sprintf("; %s: %s -> %s", c.Path, c.From, c.To)
	}
	g.print(e.Time, strings.ReplaceAll(e.Outcome.String(), "_", " "), text)
}

func (g *guarding) print(at time.Time, word, text string) {
	_, err := fmt.Fprintf(g.cmd.OutOrStdout(), "%s  %-11s  %s\n", at.Format("15:04:05.0"), word, plain.Line(text))
	g.heard(err)
}

// line prints one object.
func (g *guarding) line(v any) {
	enc := json.NewEncoder(g.cmd.OutOrStdout())
	enc.SetEscapeHTML(false)
	g.heard(enc.Encode(v))
}

// unreadError ends a guard whose output has no reader any more: head(1) may have gone, or the
// terminal.
type unreadError struct{ err error }

func (e *unreadError) Error() string {
	return fmt.Sprintf("guard: it has ended, as its output has no reader: %v", e.err)
}

func (e *unreadError) Unwrap() error { return e.err }

// heard ends the guard if the reader of its output is gone.
func (g *guarding) heard(err error) {
	if errors.Is(err, syscall.EPIPE) {
		g.stop(&unreadError{err})
	}
}

// begin prints the workloads that are looked after, and notes this process for others.
func (g *guarding) begin(mode control.Mode) {
	if g.flags.output == "text" && g.flags.replay == "" {
		fmt.Fprintf(g.cmd.ErrOrStderr(), "guarding %s (%v); Ctrl-C ends it\n", plain.Line(fewNames(g.sensitive)), mode)
	}
	g.note()
}

// fewNames joins names, the first few.
func fewNames(names []string) string {
	const few = 5
	if len(names) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
	return strings.Join(names, ", ")
}

// summary says in text mode what a run came to.
func (g *guarding) summary() {
	if g.flags.output != "text" {
		return
	}
	s := g.runner.Status()
	fmt.Fprintf(g.cmd.ErrOrStderr(), "%d windows, %d of them late; %d sensitive groups beside %d more; %d findings\n", s.Windows, s.Late, len(s.Sensitive), s.Others, g.findings)
	if s.Probe.Reason != "" && g.flags.replay == "" {
		fmt.Fprintf(g.cmd.ErrOrStderr(), "without the run-queue probe: %s\n", plain.Line(s.Probe.Reason))
	}
}

// record is what Berth's records say of a workload.
type record struct {
	name  string
	class place.Class
}

// recordedWorkloads returns Berth's workloads by their groups; none where there is no
// node.
func recordedWorkloads(ctx context.Context, cmd *cobra.Command, host *guard.Host) (map[string]record, error) {
	n, err := (&nodeFlags{}).read(cmd)
	if err != nil {
		return nil, err
	}
	all, err := n.List(ctx)
	records := map[string]record{}
	for i := range all {
		for _, dir := range all[i].Dirs {
			if group, ok := host.Path(dir); ok {
				records[group] = record{all[i].ID(), all[i].Spec.Request.Class}
			}
		}
	}
	return records, errors.Join(err, n.Close())
}
