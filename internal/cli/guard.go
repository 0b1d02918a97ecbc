package cli

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

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
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
  --mode enforce   does it: one change at a time, first one by which the neighbour
                   yields (cpu.idle), then limits; one that does not help is reverted,
                   yielding only once a trial without it shows that

It helps Berth's own workloads of the classes LS, LSE and LSR, and what --sensitive
names. It acts on best-effort work only: Berth's own (BE), what --best-effort names,
and groups that yield already: cpu.idle, v1 cpu.shares 2, or Kubernetes' best-effort
pods. --protect is for groups that must never be changed, whatever their class. Processes
in no group, at the root of the tree, are reported; --outsiders says what may be done to
those that use most: never to threads of the kernel, nor to what the host depends on.

These flags take a systemd unit (nginx.service, or nginx), the path of a control group
with all groups in it, a glob of such paths or units ('kubepods/*', 'web-*.service'),
a workload of Berth's, a pod of this Kubernetes node or a container of one
(NAMESPACE/POD, NAMESPACE/POD/CONTAINER, 'shop/db-*'), a process id, or the name of a
program. Globs, pods and units that end in .service, .scope or .slice are looked for again
and again: they may start later, or anew. A process or a program stands for the group in
which it is at the start.

A group yields at the level where its path and the victim's part, so the guard acts
on a group of several only if all of them are best effort.

Whenever it ends, by Ctrl-C, SIGTERM, SIGHUP (the terminal is gone), --for or an error,
it restores everything. After a kill, berth guard off, the next berth guard or berth
restore does. Only one guard that may act runs on a host.

As root it arms the run-queue probe while it is needed (eBPF programs that run at every
context switch): then a neighbour on the CPU is found after three windows of 40 ms,
without it after 13 windows of --window at the earliest. docs/guard.md has the rules,
the remedies, and the cost.

Exit status: 0 at the end of --for or after a signal, 1 if the host cannot be read or
something could not be restored, 2 for wrong usage.`,
		Example: `  berth guard --sensitive nginx.service --for 10m
  berth guard --mode preview --sensitive web --best-effort batch
  berth guard --mode enforce --sensitive web --best-effort 'batch/*' --protect batch/backup
  berth guard --mode enforce --sensitive shop/db-0
  berth watch --record bad-day.jsonl; berth guard --replay bad-day.jsonl --sensitive web
  berth guard status
  berth guard off`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fl := cmd.Flags()
	wordFlag(cmd, "mode", "", "observe, preview or enforce", "observe", "preview", "enforce")
	fl.StringArrayVar(&f.sensitive, "sensitive", nil, "help this `subject`: a unit, group, glob, workload, process or program; may be repeated")
	fl.StringArrayVar(&f.bestEffort, "best-effort", nil, "this `subject`, named likewise, may be slowed down; may be repeated")
	fl.StringArrayVar(&f.protect, "protect", nil, "never act on this `subject`, named likewise; may be repeated")
	fl.StringSliceVar(&f.outsiders, "outsiders", nil, "what may be done to processes in no group: `ways` of idle (SCHED_IDLE), nice and affinity, with commas")
	fl.DurationVar(&f.length, "for", 0, "end after this `time`; 0 is never")
	fl.DurationVar(&f.window, "window", time.Second, "judge once in this `time`; 40ms while the probe is armed")
	wordFlag(cmd, "probe", "", "when to arm the run-queue probe: needed, eager (sooner, at 2 % of a CPU), always or never", "needed", "eager", "always", "never")
	fl.StringVar(&f.replay, "replay", "", "judge a recording in this `file`, plain or compressed by gzip, instead of this host; nothing is changed")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "also the evidence, the values that are written, and the remedies that were not taken")
	outputFlag(cmd, "text or json")
	socketFlag(cmd)
	cmd.AddCommand(guardOffCommand(), guardStatusCommand())
	return cmd
}

// guardFlags are the flags of berth guard.
type guardFlags struct {
	mode, probe, replay            string
	verbose                        bool
	sensitive, bestEffort, protect []string
	outsiders                      []string
	length, window                 time.Duration
}

// validate refuses what cannot be, and trims the slashes around globs.
func (f *guardFlags) validate() error {
	var errs []error
	if f.replay != "" && f.mode == "enforce" {
		errs = append(errs, errors.New("--replay: a recording can be previewed, not enforced"))
	}
	if f.length < 0 {
		errs = append(errs, fmt.Errorf("--for %s: negative", f.length))
	}
	if f.window < guard.LeastWindow || f.window > time.Minute {
		errs = append(errs, fmt.Errorf("--window %s: not 100ms to 1m", f.window))
	}
	for _, use := range f.outsiders {
		if !slices.Contains(config.GuardOutsiderUses(), config.GuardOutsiders(use)) {
			errs = append(errs, fmt.Errorf("--outsiders %q: not idle, nice or affinity", use))
		}
	}
	if len(f.outsiders) > 0 && f.replay != "" {
		errs = append(errs, errors.New("--outsiders: a recording has no processes to act on"))
	}
	for _, globs := range [][]string{f.sensitive, f.bestEffort, f.protect} {
		for i, glob := range globs {
			if _, err := path.Match(glob, ""); err != nil || glob == "" {
				errs = append(errs, fmt.Errorf("glob %q: not valid", glob))
			}
			globs[i] = strings.Trim(glob, "/")
		}
	}
	if len(errs) > 0 {
		return exitStatus{exitUsage, errors.Join(errs...)}
	}
	return nil
}

func (f *guardFlags) run(cmd *cobra.Command) (err error) {
	f.mode, f.probe = word(cmd, "mode"), word(cmd, "probe")
	if err := f.validate(); err != nil {
		return err
	}
	g := &guarding{flags: f, cmd: cmd, began: time.Now()}
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	g.stop = stop
	ignoreSIGPIPE()
	if f.length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.length)
		defer cancel()
	}
	if f.replay != "" {
		err = g.replay(ctx)
	} else {
		err = g.guard(ctx)
	}
	if cause := context.Cause(ctx); errors.Is(cause, syscall.EPIPE) {
		err = errors.Join(err, cause)
	}
	return err
}

// config is what the flags say.
func (f *guardFlags) config() *config.NodeConfig {
	c := config.Default()
	c.Protected = f.protect
	c.Guard.Mode, c.Guard.Probe = config.GuardMode(f.mode), config.GuardProbe(f.probe)
	c.Guard.Sensitive, c.Guard.BestEffort = f.sensitive, f.bestEffort
	for _, use := range f.outsiders {
		c.Guard.Outsiders = append(c.Guard.Outsiders, config.GuardOutsiders(use))
	}
	return c
}

// guard guards this host, as an agent does.
func (g *guarding) guard(ctx context.Context) (err error) {
	root, err := systemd.Open(rootDir(g.cmd))
	if err != nil {
		return err
	}
	host, err := guard.OpenHost(rootDir(g.cmd))
	if err != nil {
		return err
	}
	groups, err := groupsOf(g.cmd, host)
	if err == nil {
		g.subjects = &observation{header: observe.Header{Groups: groups}, host: host}
		err = g.resolve()
	}
	if err != nil {
		return errors.Join(err, host.Close())
	}
	o := daemon.GuardOptions{
		Root: root, Dir: guardDir(g.cmd), Program: "berth guard", Sensors: func() (daemon.Sensors, error) { return host, nil },
		Window: g.flags.window, Repeat: time.Minute, Workloads: g.workloads, Record: g.record,
	}
	o.Machine, _ = liveMachine(g.cmd)
	if g.service, err = daemon.NewGuard(o); err != nil {
		return errors.Join(err, host.Close())
	}
	if g.flags.mode == "enforce" {
		g.dir = o.Dir
	}
	if err := g.service.Open(g.flags.config()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.service.Close()) }()
	if err := g.check(ctx, host); err != nil {
		return err
	}
	if !isJSON(g.cmd) {
		fmt.Fprintf(g.cmd.ErrOrStderr(), "guarding %s (%s); Ctrl-C ends it\n", plain.Line(fewNames(g.sensitive)), g.flags.mode)
	}
	g.note()
	defer g.end()
	err = g.service.Run(ctx)
	if s := g.status(); s != nil {
		g.summary(s)
	}
	return err
}

// replay judges a recording.
func (g *guarding) replay(ctx context.Context) (err error) {
	o, err := openReplay(g.flags.replay)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	g.header, g.subjects = o.header, o
	if err := g.resolve(); err != nil {
		return err
	}
	opt := guard.Options{
		Replay: o.ticks, Began: o.header.Began, Machine: o.header.Machine, Workloads: g.recorded, Window: g.flags.window, Repeat: time.Minute,
		Found: func(all []detect.Finding) {
			for i := range all {
				g.found(g.header.Began.Add(time.Duration(all[i].Time)), all[i])
			}
		},
		Acted: func(e control.Event) {
			e.Time = e.Time.UTC()
			g.acted(e)
		},
		Failed: func(err error) { g.complain(err.Error()) },
	}
	opt.Control.Protected = g.flags.protect
	if err := opt.Control.Mode.UnmarshalText([]byte(g.flags.mode)); err != nil {
		return err
	}
	runner, err := guard.New(opt)
	if err != nil {
		return err
	}
	err = runner.Run(ctx)
	s := runner.Status()
	g.summary(&s)
	return err
}

// guarding is one run of berth guard.
type guarding struct {
	flags   *guardFlags
	cmd     *cobra.Command
	service *daemon.Guard  // nil for a recording
	header  observe.Header // of a recording
	// subjects finds what a name means.
	subjects *observation
	dir      string // of the state, "" where nothing is changed
	began    time.Time
	stop     context.CancelCauseFunc
	// findings counts the printed ones, sensitive names the workloads that it looks after.
	findings  int
	sensitive []string
}

// name is a workload in a group, or the group.
func (g *guarding) name(group string) string {
	if g.service != nil {
		return cmp.Or(g.service.Name(group), group)
	}
	return shownName(&g.header, group)
}

// status is where the guard stands, nil if it has not begun.
func (g *guarding) status() *guard.Status {
	s, _ := g.service.Guard(g.cmd.Context()) // it has no errors without an agent
	return s.Status
}

// check refuses a guard without a sensitive workload.
func (g *guarding) check(ctx context.Context, host *guard.Host) error {
	all, err := g.service.Workloads(ctx)
	if err != nil {
		return err
	}
	for _, w := range all {
		if w.Sensitive {
			g.sensitive = append(g.sensitive, g.name(w.Group))
		}
	}
	if len(g.sensitive) == 0 {
		for _, group := range g.flags.sensitive {
			root, err := kernel.Open(rootDir(g.cmd))
			if err != nil {
				return err
			}
			if where := unreadable(root, group); where != "" {
				return exitStatus{exitUsage, fmt.Errorf("--sensitive %s: %s", group, where)}
			}
		}
		if len(g.flags.sensitive) > 0 {
			return exitStatus{exitUsage, fmt.Errorf("--sensitive %s: no such control group, unit, workload or pod, and no process has that name%s", strings.Join(g.flags.sensitive, ", "), g.near(g.flags.sensitive[0]))}
		}
		return exitStatus{exitUsage, errors.New("there is no sensitive workload: name control groups with --sensitive, or start workloads by berth run --class LS")}
	}
	if err := g.tellUnmatched(host); err != nil {
		return err
	}
	if g.dir == "" {
		return nil
	}
	_ = withAgent(g.cmd, func(*api.Client) error { // one that does not answer keeps nothing
		g.complain("an agent keeps this host: it repairs changes by other writers in its own groups, this guard's too")
		return nil
	})
	return nil
}

// workloads returns Berth's workloads on this host; none where there is no node. They are
// another version each time.
func (g *guarding) workloads(ctx context.Context, since int) (all []agent.Workload, version int, err error) {
	all, err = listWorkloads(ctx, g.cmd)
	return all, since + 1, err
}

// recorded returns the workloads of a recording.
func (g *guarding) recorded(context.Context) ([]guard.Workload, error) {
	var groups []string
	known := map[string]guard.Workload{}
	for _, group := range g.header.Groups {
		groups = append(groups, group.Path)
		protects := func(glob string) bool { return kernel.Covers(glob, group.Name) }
		if group.Pod != nil && slices.ContainsFunc(g.flags.protect, protects) {
			known[group.Path] = guard.Workload{Group: group.Path, Protected: true}
		}
	}
	roles := guard.Roles{Sensitive: g.flags.sensitive, BestEffort: g.flags.bestEffort}
	return roles.Assign(known, groups, g.name), nil
}

// record prints an event.
func (g *guarding) record(e api.Event) {
	switch {
	case e.Finding != nil:
		g.found(e.Time, *e.Finding)
	case e.Guard != nil:
		g.note()
		g.acted(*e.Guard)
	case e.Err != nil:
		g.complain(e.Err.Error())
	default:
		g.complain(e.Text)
	}
}

func (g *guarding) complain(text string) {
	fmt.Fprintf(g.cmd.ErrOrStderr(), "berth: %v\n", plain.Line(text))
}

// found prints a finding.
func (g *guarding) found(at time.Time, f detect.Finding) {
	g.findings++
	f = named(f, g.name)
	what, _, _ := strings.Cut(f.String(), "\n")
	if f.Suspect == detect.Outside && len(g.flags.outsiders) == 0 {
		what += ", which nothing can be done to: start them in a group of their own"
	}
	if f.Interrupts != nil {
		what += "; " + f.Interrupts.String()
	}
	what = fmt.Sprintf("%s (%.0f %% sure)", what, 100*f.Confidence)
	if g.flags.verbose {
		for _, e := range f.Evidence {
			what += "; " + e.Subject.String() + ": " + e.String()
		}
	}
	g.tell(at, struct {
		Time    time.Time      `json:"time"`
		Finding detect.Finding `json:"finding"`
	}{at, f}, "found", what)
}

func (g *guarding) acted(e control.Event) {
	text := e.Sentence(g.name)
	e.Victim, e.Suspect = g.name(e.Victim), g.name(e.Suspect)
	if g.flags.verbose {
		text = strings.TrimSpace(strings.TrimPrefix(e.String(), e.Outcome.String()))
		for _, c := range e.Changes {
			text += fmt.Sprintf("; %s: %s -> %s", c.Path, c.From, c.To)
		}
	}
	g.tell(e.Time, struct {
		Time  time.Time     `json:"time"`
		Event control.Event `json:"event"`
	}{e.Time, e}, strings.ReplaceAll(e.Outcome.String(), "_", " "), text)
}

// tell prints what happened: an object of JSON, or a line. It ends the guard if its output
// has no reader any more: head(1) may have gone, or the terminal.
func (g *guarding) tell(at time.Time, object any, word, text string) {
	var err error
	if isJSON(g.cmd) {
		enc := json.NewEncoder(g.cmd.OutOrStdout())
		enc.SetEscapeHTML(false)
		err = enc.Encode(object)
	} else {
		_, err = fmt.Fprintf(g.cmd.OutOrStdout(), "%s  %-11s  %s\n", at.Format("15:04:05.0"), word, plain.Line(text))
	}
	if errors.Is(err, syscall.EPIPE) {
		g.stop(fmt.Errorf("guard: it has ended, as its output has no reader: %w", err))
	}
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
func (g *guarding) summary(s *guard.Status) {
	if isJSON(g.cmd) {
		return
	}
	fmt.Fprintf(g.cmd.ErrOrStderr(), "judged %s, %d of them late; %s, %s; %s\n",
		plain.Count(s.Windows, "time"), s.Late, plain.Count(len(s.Sensitive), "sensitive group"), plain.Count(s.Others, "other"), plain.Count(g.findings, "finding"))
}
