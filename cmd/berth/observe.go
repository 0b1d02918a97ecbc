package main

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/watch"
)

// observation is samples tick by tick, of this host or of a recording.
type observation struct {
	header  observe.Header
	ticks   iter.Seq2[[]watch.Sample, error]
	focus   func(groups []string) error
	signals func() ([]observe.Signal, error)
	groupOf func(pid int) (string, error)
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
	fs.StringVar(&f.replay, "replay", "", "look at a recording in this `file` instead of this host")
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
		focus:   func([]string) error { return nil },
		signals: func() ([]observe.Signal, error) { return header.Signals, nil },
	}, nil
}

func (f *observeFlags) openHost(cmd *cobra.Command) (*observation, error) {
	host, err := observe.Open(observe.Config{Root: rootDir(cmd), Probe: f.probe})
	if err != nil {
		return nil, err
	}
	header, err := hostHeader(cmd, host)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	o := &observation{header: header, focus: host.Focus, signals: host.Signals, groupOf: host.GroupOf, close: host.Close}
	o.ticks = f.ticks(cmd, host)
	if f.record == "" {
		return o, nil
	}
	file, err := os.Create(f.record)
	if err == nil {
		err = observe.WriteHeader(file, header)
	}
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	o.ticks = recorded(o.ticks, file)
	o.close = func() error { return errors.Join(host.Close(), file.Close()) }
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

// mostSaid bounds the number of different lines about unreadable files.
const mostSaid = 10

// recorded writes samples on their way.
func recorded(ticks iter.Seq2[[]watch.Sample, error], to io.Writer) iter.Seq2[[]watch.Sample, error] {
	return func(yield func([]watch.Sample, error) bool) {
		for samples, err := range ticks {
			if err == nil {
				err = watch.Write(to, samples)
			}
			if !yield(samples, err) {
				return
			}
		}
	}
}

// hostHeader describes the host and its groups.
func hostHeader(cmd *cobra.Command, host *observe.Observer) (observe.Header, error) {
	h := observe.Header{Schema: observe.Schema, Began: time.Now().UTC().Truncate(time.Second), Kernel: kernelRelease(rootDir(cmd))}
	if m, err := sysfs.Live(rootDir(cmd)); err == nil && m.Validate() == nil {
		h.Machine = m
	}
	leaves, err := host.Groups()
	if err != nil {
		return h, err
	}
	workloads, err := workloadGroups(cmd, host)
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "berth: workloads are shown by their groups: %v\n", err)
	}
	for group := range workloads {
		if i, found := slices.BinarySearch(leaves, group); !found {
			leaves = slices.Insert(leaves, i, group)
		}
	}
	for _, group := range leaves {
		h.Groups = append(h.Groups, observe.Group{Path: group, Name: workloads[group], CPUs: host.CPUs(group)})
	}
	h.Signals, err = host.Signals()
	return h, err
}

func kernelRelease(root string) string {
	var name unix.Utsname
	if filepath.Clean(root) != "/" || unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// workloadGroups returns the names of Berth's workloads by their groups; none if there
// is no node.
func workloadGroups(cmd *cobra.Command, host *observe.Observer) (map[string]string, error) {
	n, err := (&nodeFlags{}).open(cmd, true)
	if err != nil {
		return nil, err
	}
	all, err := n.List(cmd.Context())
	names := map[string]string{}
	for i := range all {
		for _, dir := range all[i].Dirs {
			if group, ok := host.Path(dir); ok {
				names[group] = all[i].ID()
			}
		}
	}
	return names, errors.Join(err, n.Close())
}

// groupName finds a group by its path or by the name of its workload.
func groupName(h *observe.Header, arg string) (string, bool) {
	for _, g := range h.Groups {
		if g.Name == arg {
			return g.Path, true
		}
	}
	path := strings.Trim(arg, "/")
	for _, g := range h.Groups {
		if kernel.Within(g.Path, path) {
			return path, true
		}
	}
	return "", false
}

// shownName is the workload in a group, or the group.
func shownName(h *observe.Header, group string) string {
	for _, g := range h.Groups {
		if g.Path == group && g.Name != "" {
			return g.Name
		}
	}
	return group
}
