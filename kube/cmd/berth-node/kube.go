package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"berth.dev/berth/agent/config"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/doctor"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kube/api"
	"berth.dev/berth/kube/nri"
	"berth.dev/berth/kube/publish"
	"berth.dev/berth/kube/usage"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/place"
	"berth.dev/berth/place/kubelet"
)

// kubeFlags say which API server there is, and what it is told.
type kubeFlags struct {
	server                  api.Config
	topology                bool
	featuresDir, featuresIn string
	batch                   string
	batchStrategy           *publish.Batch
}

func (f *kubeFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.server.Kubeconfig, "kubeconfig", "", "`file` that says where the API server is")
	fl.BoolVar(&f.server.InCluster, "in-cluster", false, "talk to the API server by the service account of this pod")
	fl.StringVar(&f.server.Node, "node-name", "", "`name` of this node as an object (default the host's name)")
	fl.BoolVar(&f.topology, "topology", false, "keep this node's NodeResourceTopology current")
	fl.StringVar(&f.featuresDir, "features-dir", "", "`directory` of node-feature-discovery to write features into")
	fl.StringVar(&f.featuresIn, "node-features", "", "`namespace` for a NodeFeature of this node")
	fl.StringVar(&f.batch, "batch", "", "`file` with a strategy (\"default\" for none): tell batch and mid resources in the node's status")
}

// options checks the flags.
func (f *kubeFlags) options() error {
	if f.server.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-name: %w", err)
		}
		f.server.Node = strings.ToLower(host)
	}
	if err := f.server.Validate(); err != nil {
		return fmt.Errorf("--kubeconfig, --in-cluster, --node-name: %w", err)
	}
	for flag, set := range map[string]bool{"--topology": f.topology, "--node-features": f.featuresIn != "", "--batch": f.batch != ""} {
		if set && !f.server.On() {
			return fmt.Errorf("%s needs an API server: --kubeconfig or --in-cluster", flag)
		}
	}
	if f.batch == "" {
		return nil
	}
	f.batchStrategy = &publish.Batch{}
	if f.batch == "default" {
		return nil
	}
	text, err := os.ReadFile(f.batch)
	if err == nil {
		_, err = strictyaml.Decode(text, f.batch, &f.batchStrategy.Strategy)
	}
	if err == nil {
		err = f.batchStrategy.Strategy.Validate()
	}
	if err != nil {
		return fmt.Errorf("--batch: %w", err)
	}
	return nil
}

// cluster is the API server beside a plugin.
type cluster struct {
	client *api.Client
	pods   *api.Pods
	events *api.Events
	agent  *publish.Agent
}

// open makes the client, without connecting. Without a server it is nil, which has nothing
// to tell.
func (f *kubeFlags) open(opt *nri.Options, log *slog.Logger) (*cluster, error) {
	c := &cluster{}
	if !f.server.On() {
		return c, nil
	}
	var err error
	if c.client, err = api.New(f.server); err != nil {
		return nil, err
	}
	c.pods = c.client.NewPods(func(err error) {
		if err == nil {
			log.Info("API server", "text", "it answers")
			return
		}
		log.Warn("API server", "text", plain.Line(err.Error())+"; what is known of pods stays as it is")
	})
	c.events = c.client.NewEvents(c.pods, func(err error) {
		log.Warn("API server", "text", "events are refused: "+plain.Line(err.Error()))
	})
	opt.Pods = c.pods
	return c, nil
}

// tell passes on what happened. It never waits: a handler may be at work.
func (c *cluster) tell(e *nri.Event) {
	if c.agent != nil {
		c.agent.Changed()
	}
	reason := e.Reason()
	if c.events == nil || reason == "" {
		return
	}
	c.events.Tell(api.Note{
		About:  api.About{Namespace: e.Namespace, Pod: e.Pod, UID: e.UID, Container: e.Container},
		Reason: reason, Warning: e.Warning(), Text: e.Text,
	})
}

// publisher makes what tells of the node. Plugin is whose state it is.
func (f *kubeFlags) publisher(c *cluster, root *kernel.Root, plugin *nri.Plugin, policy string, conf *config.NodeConfig, log *slog.Logger) error {
	opt := publish.Options{
		Client: c.client, Pods: c.pods, Policy: policy, Dir: f.featuresDir, Namespace: f.featuresIn,
		Look: func() *doctor.Report { return doctor.Look(root.FS(), doctor.Probes{}) },
		Tell: func(what string, err error) { tellTold(log, what, err) },
	}
	if m, err := sysfs.Read(root.FS()); err == nil {
		opt.Machine, opt.Ownable = m, ownable(m, conf)
	}
	if f.topology {
		how, err := conf.NewPolicy()
		if err != nil {
			return err
		}
		opt.State = plugin.State
		opt.TopologyPolicy, opt.TopologyScope = topologyManager(how)
	}
	if f.batchStrategy != nil {
		meter, err := usage.New(root, publish.Window)
		if err != nil {
			return err
		}
		f.batchStrategy.Meter, f.batchStrategy.Learnt = meter, filepath.Join(daemon.LastingDir(conf, "prediction"), "learnt.json")
		opt.Batch = f.batchStrategy
	}
	c.agent = publish.New(opt)
	return nil
}

// topologyManager is how a policy admits pods, in the topology manager's words: those of zones.Node. They
// are "" for all policies but the kubelet's, as the others align what they can.
func topologyManager(p place.Policy) (policy, scope string) {
	k, ok := p.(kubelet.Policy)
	if !ok {
		return "", ""
	}
	return cmp.Or(k.TopologyManager, kubelet.TopologyManagerNone), cmp.Or(k.TopologyManagerScope, kubelet.ScopeContainer)
}

// tellTold logs an error about what is told of the node, and with nil that it is over.
func tellTold(log *slog.Logger, what string, err error) {
	switch {
	case err != nil:
		log.Warn(what, "text", plain.Line(err.Error()))
	case what == publish.Reserving: // which is read, and not told
		log.Info(what, "text", "containers may own none of the CPUs that the node's annotation reserves now")
	default:
		log.Info(what, "text", "told again")
	}
}

// ownable are the CPUs of a machine that a configuration lets containers own.
func ownable(m *machine.Machine, conf *config.NodeConfig) cpuset.Set {
	cpus := m.Online
	if !conf.Allowed.IsEmpty() {
		cpus = cpus.Intersect(conf.Allowed)
	}
	return cpus.Minus(conf.Reserved).Minus(conf.Floor)
}

// run runs all of it until ctx ends.
func (c *cluster) run(ctx context.Context) {
	var all sync.WaitGroup
	if c.pods != nil {
		all.Go(func() { c.pods.Run(ctx) })
		all.Go(func() { c.events.Run(ctx) })
	}
	if c.agent != nil {
		all.Go(func() { c.agent.Run(ctx) })
	}
	all.Wait()
}
