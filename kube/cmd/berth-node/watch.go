package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/guard"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kube/metrics"
	"berth.dev/berth/kube/nri"
)

// watchFlags are those of what the plugin does beside placing: metrics and the guard.
type watchFlags struct {
	metrics                        string
	network                        bool
	mode                           string
	sensitive, bestEffort, protect []string
}

func (f *watchFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.metrics, "metrics", "127.0.0.1:9750", "`HOST:PORT` of the metrics for Prometheus; off serves none")
	fl.BoolVar(&f.network, "metrics-network", false, "let --metrics be an address that other hosts reach; there is no password")
	fl.StringVar(&f.mode, "guard", "off", "help sensitive containers: `MODE` off, observe, preview or enforce")
	fl.StringArrayVar(&f.sensitive, "sensitive", nil, "the guard helps this `pod` too, NAMESPACE/POD or a glob; may be repeated")
	fl.StringArrayVar(&f.bestEffort, "best-effort", nil, "the guard may slow this `pod` down; may be repeated")
	fl.StringArrayVar(&f.protect, "protect", nil, "the guard never acts on this `pod`; may be repeated")
}

// over puts the flags over the guard's settings of a configuration.
func (f *watchFlags) over(cmd *cobra.Command, c *config.NodeConfig) error {
	if cmd.Flags().Changed("guard") || !cmd.Flags().Changed("config") { // without a file, the flag's default holds
		c.Guard.Mode = config.GuardMode(f.mode)
	}
	if !slices.Contains(config.GuardModes(), c.Guard.Mode) {
		return fmt.Errorf("--guard %q: want off, observe, preview or enforce", c.Guard.Mode)
	}
	if c.Guard.Mode == config.GuardOff && len(f.sensitive)+len(f.bestEffort)+len(f.protect) > 0 {
		return errors.New("--sensitive, --best-effort and --protect are the guard's: set --guard")
	}
	c.Guard.Sensitive = append(c.Guard.Sensitive, trimmed(f.sensitive)...)
	c.Guard.BestEffort = append(c.Guard.BestEffort, trimmed(f.bestEffort)...)
	c.Protected = append(c.Protected, trimmed(f.protect)...)
	return nil
}

func trimmed(globs []string) (all []string) {
	for _, glob := range globs {
		all = append(all, strings.Trim(glob, "/"))
	}
	return all
}

// watching is what runs beside the plugin.
type watching struct {
	server *metrics.Server
	door   net.Listener // nil means none
	open   bool         // to other hosts
	guard  *daemon.Guard
	warn   func(error)
	ends   []func() error
}

// open opens all of it. Nothing runs yet.
func (f *watchFlags) open(root *kernel.Root, n metrics.Node, policy, stateDir string, conf *config.NodeConfig, to *cluster, log *slog.Logger) (w *watching, err error) {
	w = &watching{open: f.network, warn: func(err error) { log.Warn("watching", "text", plain.Line(err.Error())) }}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if conf.Guard.Mode != config.GuardOff {
		if err := w.openGuard(root, n, conf, stateDir, to, log); err != nil {
			return w, err
		}
	}
	if f.metrics == "off" {
		return w, nil
	}
	opt := metrics.Options{Root: root, Node: n, Policy: policy, Kinds: nri.Kinds(), Failed: w.warn}
	if to.events != nil {
		opt.PodEvents = func() map[string]uint64 { return to.events.Counts().ByOutcome() }
	}
	if w.guard != nil {
		opt.Guard = w.guard.Guard
	}
	w.server, err = metrics.New(opt)
	if errors.Is(err, kernel.ErrNotSupported) {
		w.warn(err)
		w.server = nil
		return w, nil
	}
	if err == nil {
		w.door, err = metrics.Listen(f.metrics, f.network)
	}
	return w, err
}

func (w *watching) openGuard(root *kernel.Root, n metrics.Node, conf *config.NodeConfig, stateDir string, sink guard.Sink, log *slog.Logger) (err error) {
	w.guard, err = daemon.NewGuard(daemon.GuardOptions{
		Root: root, Dir: agent.GuardDir(stateDir), Program: "berth-node nri", Sink: sink,
		Sensors: func() (daemon.Sensors, error) { return guard.OpenHost(root.Name()) },
		Workloads: func(ctx context.Context, since int) ([]agent.Workload, int, error) {
			all, err := n.List(ctx)
			return all, since + 1, err
		},
		Record: func(e api.Event) {
			logGuard(log, e)
			if w.server != nil {
				w.server.Note(e)
			}
		},
	})
	if err != nil {
		return err
	}
	if err := w.guard.Open(conf); err != nil {
		w.guard = nil
		return err
	}
	w.ends = append(w.ends, w.guard.Close)
	return nil
}

func logGuard(log *slog.Logger, e api.Event) {
	level := slog.LevelInfo
	if e.Kind == agent.Failed || e.Guard != nil && e.Guard.Alert {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, string(e.Kind), "id", plain.Line(e.ID), "text", plain.Line(e.Text))
}

// run does all of it until the context ends.
func (w *watching) run(ctx context.Context) error {
	var jobs []func(context.Context) error
	if w.guard != nil {
		jobs = append(jobs, w.guard.Run)
	}
	if w.server != nil {
		jobs = append(jobs, w.server.Run, func(ctx context.Context) error { return w.server.Serve(ctx, w.door, w.open) })
	}
	done := make(chan error, len(jobs))
	for _, job := range jobs {
		go func() {
			err := job(ctx)
			if err != nil && ctx.Err() == nil {
				w.warn(err) // the others, and the placing, go on
			}
			done <- err
		}()
	}
	var errs []error
	for range jobs {
		errs = append(errs, <-done)
	}
	return errors.Join(append(errs, w.close())...)
}

func (w *watching) close() error {
	var errs []error
	for _, end := range w.ends {
		errs = append(errs, end())
	}
	w.ends = nil
	if w.door != nil { // Serve closes it where it got as far
		if err := w.door.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// note counts what the plugin tells.
func (w *watching) note(kind, id, text string) {
	if w.server != nil {
		w.server.Note(api.Event{Event: agent.Event{Time: time.Now(), Kind: agent.EventKind(kind), ID: id, Text: text}})
	}
}
