package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"path"
	"strings"
	"sync/atomic"

	"berth.dev/berth/agent/config"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kube/api"
	"berth.dev/berth/kube/nri"
	"berth.dev/berth/place/policies"
)

// instance is a plugin under one configuration, with what runs beside it: metrics and the
// guard, and what the API server is told.
type instance struct {
	plugin  *nri.Plugin
	watch   *watching
	cluster *cluster
}

// open opens all of it. Nothing runs yet.
func (f *nriFlags) open(ctx context.Context, root *kernel.Root, c *config.NodeConfig, log *slog.Logger) (*instance, error) {
	opt, err := options(root, c)
	if err != nil {
		return nil, err
	}
	in := &instance{}
	if in.cluster, err = f.kube.open(&opt, log); err != nil {
		return nil, err
	}
	// Until New returns nobody else is told: it only finishes what was begun before.
	var ready atomic.Bool
	opt.Events = func(e nri.Event) {
		logEvent(log, e)
		if ready.Load() {
			in.cluster.tell(&e)
			in.watch.note(e.Kind, path.Join(e.Namespace, e.Pod, e.Container), e.Text)
		}
	}
	if in.plugin, err = nri.New(ctx, opt); err != nil {
		return nil, err
	}
	policy := cmp.Or(c.Policy.Name, policies.Default)
	if in.watch, err = f.watch.open(root, in.plugin.Node(), policy, daemon.StateDir(c), c, in.cluster, log); err != nil {
		return nil, errors.Join(err, in.plugin.Close())
	}
	if err := f.kube.publisher(in.cluster, root, in.plugin, policy, c, log); err != nil {
		return nil, errors.Join(err, in.watch.close(), in.plugin.Close())
	}
	ready.Store(true)
	return in, nil
}

// run runs all of it until the context ends. The others go on where one of them fails.
func (in *instance) run(ctx context.Context, socket string) error {
	ctx, stop := context.WithCancel(ctx)
	watched, told := make(chan error, 1), make(chan struct{})
	go func() { watched <- in.watch.run(ctx) }()
	go func() { defer close(told); in.cluster.run(ctx) }()
	err := in.plugin.Run(ctx, func() (net.Conn, error) { return net.Dial("unix", socket) })
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	stop()
	<-told
	return errors.Join(err, <-watched)
}

// Report writes a finding of the guard, or a step, as events on the pods of both.
func (c *cluster) Report(r guard.Report) {
	if f, ok := findingOf(r); ok && c.events != nil {
		c.events.TellFinding(&f)
	}
}

// findingOf is what a report says to those who look at pods; ok is false if that is nothing:
// the step was told already, or nothing was done.
func findingOf(r guard.Report) (f api.Finding, ok bool) {
	f = api.Finding{Victim: about(r.Victim), Antagonist: about(r.Antagonist), Resource: r.Resource().String(), Evidence: evidence(&r)}
	if r.Event != nil {
		switch r.Event.Outcome {
		case control.Applied, control.Restored:
		case control.Reverted, control.Yielded:
			f.Undone = true
		default:
			return f, false
		}
		if r.Event.Action == nil {
			return f, false
		}
		f.Action = r.Event.Action.Sentence(r.Acted.Name)
	}
	return f, true
}

func about(p guard.Party) api.About {
	if p.Pod == nil {
		return api.About{}
	}
	return api.About{Namespace: p.Pod.Namespace, Pod: p.Pod.Pod, UID: p.Pod.UID, Container: p.Pod.Container}
}

func evidence(r *guard.Report) string {
	var all []string
	for _, e := range r.Evidence() {
		all = append(all, e.String())
	}
	return strings.Join(all, "; ")
}
