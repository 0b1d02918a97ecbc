package cli

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/guard/observe"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
)

// exitFindings is the status of berth diagnose when something is the matter.
const exitFindings = 3

func diagnoseCommand() *cobra.Command {
	f := diagnoseOptions{}
	cmd := &cobra.Command{
		Use:   "diagnose [GROUP | UNIT | WORKLOAD | POD | PID | PROGRAM]",
		Short: "Say which workload suffers on this host, from what, and because of which",
		Long: `Say which workload suffers on this host, from what, because of which
antagonist, how sure that is, on what evidence, and what would help. It needs no
agent and changes nothing: it reads the kernel's counters once a second and judges
them by the rules of the guard (docs/diagnose.md). Without a name it judges all groups
that use CPU time, and all processes in no group of their own by their program; a group
with others below it is judged if it is named.

On a Kubernetes node a pod is NAMESPACE/POD, and a container of it NAMESPACE/POD/CONTAINER;
without the namespace where only one has that name. Names come from files of the kubelet
and of the container runtime on this node: no API server is asked.

It cannot know which of them is your service: without --sensitive, which takes the same
names, findings come in the order of harm. What is short of CPUs is said also where no
rule names anybody.

As root it arms the run-queue probe, eBPF programs that run at every context switch
until it ends (see docs/watch.md); --probe=false does without. With fewer rights it
has fewer signals; --verbose lists the missing ones.

Interrupted, it judges the samples read so far.

Exit status: 0 if nothing is found, 3 if something is or CPUs are short, 1 if the host
or the recording cannot be read, 2 for wrong usage.`,
		Example: `  sudo berth diagnose --for 15s --sensitive nginx.service   # who takes the CPUs from nginx
  sudo berth diagnose                                       # who suffers on this host, worst first
  sudo berth diagnose --pid 4711 -v                         # with all evidence
  berth watch --record bad-day.jsonl; berth diagnose --replay bad-day.jsonl`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exitStatus{exitUsage, fmt.Errorf("diagnose: one NAME at most, not %d (see berth ps)", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.observe.register(cmd, true)
	cmd.Flags().DurationVar(&f.length, "for", 30*time.Second, "`time` to look")
	cmd.Flags().IntVar(&f.pid, "pid", 0, "look at the control group of this `process`")
	cmd.Flags().StringVar(&f.group, "cgroup", "", "look at the control group with this `path`, below the mount point")
	cmd.Flags().StringVar(&f.sensitive, "sensitive", "", "the `name` of the service that matters: it is judged as the victim first")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "show the evidence of every finding, and the signals that are missing")
	outputFlag(cmd, "text or json")
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

	sensitive string
	verbose   bool
}

func (f *diagnoseOptions) run(cmd *cobra.Command, args []string) (err error) {
	if f.length < 5*time.Second {
		return exitStatus{exitUsage, fmt.Errorf("--for %s: at least 5s", f.length)}
	}
	if len(args) == 1 && (f.pid != 0 || f.group != "") {
		return exitStatus{exitUsage, errors.New("diagnose: NAME, --pid and --cgroup: want one of them (see 'berth diagnose --help')")}
	}
	if f.sensitive != "" && (len(args) == 1 || f.pid != 0 || f.group != "") {
		return exitStatus{exitUsage, errors.New("--sensitive: it says which of all groups matter: leave out NAME, --pid and --cgroup")}
	}
	o, err := f.observe.open(cmd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	target, err := f.target(o, args)
	if err != nil {
		return err
	}
	sensitive := ""
	if f.sensitive != "" {
		if sensitive, err = o.find(f.sensitive); err != nil {
			return fmt.Errorf("--sensitive %w", err)
		}
	}
	ticks, err := f.collect(cmd, o, target, sensitive)
	if err != nil {
		return err
	}
	signals, err := o.signals()
	if err != nil {
		return err
	}
	d, err := diagnose(&o.header, ticks, target, sensitive)
	if err != nil {
		return err
	}
	for _, name := range []string{target, sensitive} {
		if _, ok := programOf(name); ok && o.host == nil && d.levels[name] == nil {
			return fmt.Errorf("diagnose %s: the recording has no process of that name in no group of its own", name)
		}
	}
	if n, ok := pods.PodName(target, podsOf(&o.header)); ok && o.host == nil && d.levels[target] == nil {
		return fmt.Errorf("diagnose %s: the recording has no figures of the pod as a whole; name one of its containers: %s", n, strings.Join(containersOf(&o.header, target), ", "))
	}
	d.missing(signals)
	d.verbose, d.Next = f.verbose, d.next(o)
	if err = show(cmd, d, d.text); err == nil && (len(d.Findings) > 0 || d.short()) {
		return exitStatus{code: exitFindings}
	}
	return err
}

// containersOf are the names of the containers in the group of a pod.
func containersOf(h *observe.Header, pod string) (names []string) {
	for group, n := range podsOf(h) {
		if path.Dir(group) == pod && n.Container != pods.Sandbox {
			names = append(names, n.String())
		}
	}
	slices.Sort(names)
	return names
}

// target is the workload that is asked about, "" for all.
func (f *diagnoseOptions) target(o *observation, args []string) (string, error) {
	name := f.group
	switch {
	case f.pid != 0:
		workload, err := o.ofProcess(f.pid)
		if err != nil {
			return "", fmt.Errorf("diagnose %w", err)
		}
		return workload, nil
	case len(args) == 1:
		name = args[0]
	case name == "":
		return "", nil
	}
	workload, err := o.find(name)
	if err != nil {
		return "", fmt.Errorf("diagnose %w", err)
	}
	return workload, nil
}

// collect reads for as long as asked, or until it is interrupted; a recording to
// its end.
func (f *diagnoseOptions) collect(cmd *cobra.Command, o *observation, target, sensitive string) ([][]watch.Sample, error) {
	var named []string
	if name := target + sensitive; name != "" {
		named = []string{name}
	}
	table, live := newWatchTable(&o.header, nil), f.observe.replay == ""
	progress := statusLine{w: cmd.ErrOrStderr(), tty: live && isTerminal(cmd.ErrOrStderr())}
	defer progress.finish()
	if live && !progress.tty {
		fmt.Fprintf(progress.w, "looking for %s\n", f.length)
	}
	var all [][]watch.Sample
	for samples, err := range o.follow(table, named, target == "") {
		if err != nil {
			return nil, err
		}
		all = append(all, samples)
		at := time.Duration(table.now)
		progress.rewrite(fmt.Sprintf("looking: %.0f of %.0f s", at.Seconds(), f.length.Seconds()))
		if live && at >= f.length {
			break
		}
	}
	return all, nil
}
