package cli

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
	"berth.dev/berth/watch/proc"
)

// observation is samples tick by tick, of this host or of a recording.
type observation struct {
	header  observe.Header
	ticks   iter.Seq2[[]watch.Sample, error]
	focus   func(groups, programs []string) error
	signals func() ([]observe.Signal, error)
	host    *observe.Observer // nil for a recording
	record  *os.File          // to be written, too, or nil
	close   func() error
}

// observeFlags are the flags of commands that observe.
type observeFlags struct {
	interval       time.Duration
	record, replay string
	probe          bool
}

func (f *observeFlags) register(cmd *cobra.Command, probe bool) {
	fs := cmd.Flags()
	fs.DurationVar(&f.interval, "interval", time.Second, "`time` between two readings")
	fs.StringVar(&f.record, "record", "", "write what was read to this `file` too")
	fs.StringVar(&f.replay, "replay", "", "look at a recording in this `file`, plain or compressed by gzip, instead of this host")
	fs.BoolVar(&f.probe, "probe", probe, "see by eBPF which group has the CPU while another waits (root; costs at every context switch)")
	exclusive(cmd, "record", "replay")
	socketFlag(cmd)
}

func (f *observeFlags) validate() error {
	if f.interval < 100*time.Millisecond {
		return exitStatus{exitUsage, fmt.Errorf("--interval %s: at least 100ms", f.interval)}
	}
	return nil
}

// open opens the recording, or this host.
func (f *observeFlags) open(cmd *cobra.Command) (*observation, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	if f.replay != "" {
		return openReplay(f.replay)
	}
	return f.openHost(cmd)
}

func openReplay(name string) (*observation, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	header, ticks, err := observe.ReadRecording(file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), file.Close())
	}
	return &observation{
		header: header, ticks: ticks, close: file.Close,
		focus:   func(_, _ []string) error { return nil },
		signals: func() ([]observe.Signal, error) { return header.Signals, nil },
	}, nil
}

func (f *observeFlags) openHost(cmd *cobra.Command) (*observation, error) {
	host, err := observe.Open(observe.Config{Root: rootDir(cmd), Probe: f.probe, Packets: true, Programs: true})
	if err != nil {
		return nil, err
	}
	header, err := hostHeader(cmd, host)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	o := &observation{header: header, signals: host.Signals, host: host, close: host.Close, ticks: f.ticks(cmd, host)}
	o.focus = func(groups, programs []string) error {
		host.FocusPrograms(programs)
		return host.Focus(groups)
	}
	if f.record == "" {
		return o, nil
	}
	if o.record, err = os.Create(f.record); err == nil {
		err = observe.WriteHeader(o.record, header)
	}
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	o.close = func() error { return errors.Join(host.Close(), o.record.Close()) }
	return o, nil
}

// ticks reads the host until the context ends. An unreadable file is a line on the
// standard error stream, once: groups of one user must not hide those of others.
func (f *observeFlags) ticks(cmd *cobra.Command, host *observe.Observer) iter.Seq2[[]watch.Sample, error] {
	ctx, said := cmd.Context(), map[string]bool{}
	return func(yield func([]watch.Sample, error) bool) {
		began := time.Now()
		for due := began; ctx.Err() == nil; {
			samples, err := host.Tick(watch.Time(time.Since(began)), nil)
			if err != nil && len(samples) > 0 {
				if text := plain.Line(err.Error()); !said[text] && len(said) < mostSaid {
					said[text] = true
					fmt.Fprintln(cmd.ErrOrStderr(), "berth:", text)
				}
				err = nil
			}
			if !yield(samples, err) {
				return
			}
			// Ticks that are overdue are left out.
			for due = due.Add(f.interval); time.Until(due) < 0; due = due.Add(f.interval) {
			}
			wait(ctx, time.Until(due))
		}
	}
}

// follow yields the ticks, each after it was recorded and the table has taken it in. Workloads
// that are named are looked at closely; if all are of interest, from the second tick on the
// groups that use most CPU time, too, and in any case from the third on the programs.
func (o *observation) follow(table *watchTable, named []string, all bool) iter.Seq2[[]watch.Sample, error] {
	return func(yield func([]watch.Sample, error) bool) {
		groups, programs := focusOf(named)
		err := o.focus(groups, programs)
		n := 0
		for samples, readErr := range o.ticks {
			if err = errors.Join(err, readErr); err == nil && o.record != nil {
				err = watch.Write(o.record, samples)
			}
			if err == nil {
				table.add(samples)
				busiest := slices.Concat(named, table.busiest())
				switch n++; {
				case n == 2 && all:
					groups, _ = focusOf(busiest)
					err = o.focus(groups, programs)
				case n == 3: // what programs use is known from the second tick on
					_, programs = focusOf(busiest)
					err = o.focus(groups, programs)
				}
			}
			if !yield(samples, err) || err != nil {
				return
			}
		}
	}
}

// focusOf are the first of some workloads that can be in focus: as many groups and programs
// as there is room for, no group within another.
func focusOf(workloads []string) (groups, programs []string) {
	for _, w := range workloads {
		overlaps := func(group string) bool { return kernel.Within(group, w) || kernel.Within(w, group) }
		switch name, isProgram := programOf(w); {
		case isProgram && len(programs) < observe.MaxFocus && name != proc.KernelThreads && name != proc.OtherPrograms && !slices.Contains(programs, name):
			programs = append(programs, name)
		case !isProgram && len(groups) < observe.MaxFocus && !slices.ContainsFunc(groups, overlaps):
			groups = append(groups, w)
		}
	}
	return groups, programs
}

// mostSaid bounds the number of different lines about unreadable files.
const mostSaid = 10

// hostHeader describes the host and its groups.
func hostHeader(cmd *cobra.Command, host *observe.Observer) (observe.Header, error) {
	h := observe.Header{Schema: observe.Schema, Began: time.Now().UTC().Truncate(time.Second), Kernel: kernelRelease(rootDir(cmd))}
	h.Machine, _ = liveMachine(cmd)
	var err error
	if h.Groups, err = groupsOf(cmd, host); err != nil {
		return h, err
	}
	h.Signals, err = host.Signals()
	return h, err
}

// groupsOf are the groups with processes and those of Berth's workloads, by path.
func groupsOf(cmd *cobra.Command, host *observe.Observer) (all []observe.Group, err error) {
	leaves, err := host.Groups()
	if err != nil {
		return nil, err
	}
	workloads, err := workloadGroups(cmd, host)
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "berth: workloads are shown by their groups: %v\n", plain.Line(err.Error()))
	}
	for group := range workloads {
		if i, found := slices.BinarySearch(leaves, group); !found {
			leaves = slices.Insert(leaves, i, group)
		}
	}
	names, err := podNames(cmd)
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "berth: pods are shown by their groups: %v\n", plain.Line(err.Error()))
	}
	for _, group := range leaves {
		g := observe.Group{Path: group, Name: workloads[group], CPUs: host.CPUs(group)}
		if n, ok := names.Of(group); ok {
			g.Pod, g.Name = &n, cmp.Or(g.Name, n.String())
		}
		all = append(all, g)
	}
	return all, nil
}

// podNames are the names of this node's pods and containers; those of none elsewhere.
func podNames(cmd *cobra.Command) (*pods.Directory, error) {
	names := pods.NewDirectory(os.DirFS(cmp.Or(rootDir(cmd), "/")))
	return names, names.Refresh()
}

// podsOf are the containers that a header tells of, by group.
func podsOf(h *observe.Header) map[string]pods.Name {
	all := map[string]pods.Name{}
	for _, g := range h.Groups {
		if g.Pod != nil {
			all[g.Path] = *g.Pod
		}
	}
	return all
}

// liveMachine is the hardware, nil if it cannot be read.
func liveMachine(cmd *cobra.Command) (*machine.Machine, error) {
	m, err := sysfs.Live(rootDir(cmd))
	if err == nil {
		err = m.Validate()
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// kernelRelease is the kernel's version, "" if the tree does not show it.
func kernelRelease(root string) string {
	text, _ := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	return strings.TrimSpace(string(text))
}

// workloadGroups returns the names of Berth's workloads by their groups; none if there
// is no node.
func workloadGroups(cmd *cobra.Command, host *observe.Observer) (map[string]string, error) {
	all, err := listWorkloads(cmd.Context(), cmd)
	names := map[string]string{}
	for i := range all {
		for _, dir := range all[i].Dirs {
			if group, ok := host.Path(dir); ok {
				names[group] = all[i].ID()
			}
		}
		if group := strings.Trim(all[i].Group, "/"); len(all[i].Dirs) == 0 && group != "" && host.Has(group) {
			names[group] = all[i].ID() // of a container, whose group its runtime made
		}
	}
	return names, err
}
