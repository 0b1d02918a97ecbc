package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/cli"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kube/nri"
	"berth.dev/berth/kube/rivals"
	"berth.dev/berth/place/policies"
	"berth.dev/berth/podwords"
)

type nriFlags struct {
	socket, state, policy, reserved, rules, index string
	strict, beside, check                         bool
	kube                                          kubeFlags
}

func nriCommand() *cobra.Command {
	var f nriFlags
	opt := nri.Options{}
	cmd := &cobra.Command{
		Use:   "nri",
		Short: "Place containers as a plugin of the container runtime (NRI)",
		Long: `Place containers as a plugin of the container runtime (NRI).

Each container gets its CPUs and memory nodes when it is created, by the QoS class and
requests of its pod and by what the pod's annotations say (docs/pod-words.md). CPUs that
become exclusive are taken from all other containers in the same answer, and given back
when the container stops. Containers that run already are adopted: they keep the CPUs
that they have where that is legal.

A container that cannot have what it asks for gets time of the shared pool, and a line in
the log; one that asks for CPUs of its own by an annotation is refused, with the reason
in the events of its pod.

Before it connects, it looks for others who set CPUs of containers: the kubelet's CPU and
memory managers, Koordinator, nri-plugins, CRI Resource Manager, tuned. If there are any,
it says what to change and ends. --check only looks.

The runtime's connection is opened again when it is lost. SIGTERM and SIGINT end the
plugin; containers keep what they have, and the next start goes on from there. What
berth ps and berth explain say of containers they read from the same state directory.

With --kubeconfig or --in-cluster it knows exact requests, and writes what happens as
events on pods. --topology, --node-features, --features-dir and --batch say what else is
told of the node (docs/kubernetes-node.md). All of it goes on without the API server.

Exit status: 0 after a signal, 1 if it cannot start or somebody else sets CPUs, 2 for
wrong usage.`,
		Example: `  sudo berth-node nri --check
  sudo berth-node nri --reserved-cpus 0-1
  sudo berth-node nri --kubeconfig /etc/berth/kubeconfig --topology
  sudo berth-node explain default/web-0/nginx`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := kernel.Open(cli.RootDir(cmd))
			if err != nil {
				return err
			}
			if err := f.rivals(cmd, root.FS()); err != nil || f.check {
				return err
			}
			if err := errors.Join(f.options(&opt), f.kube.options()); err != nil {
				return cli.UsageError(err)
			}
			opt.Node.Root = root
			return f.run(cmd.Context(), opt, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.socket, "nri-socket", nri.Socket, "`path` of the runtime's socket for plugins")
	fl.StringVar(&f.state, "state", "", "state `directory` (default that of berth agent, of which only one may run)")
	fl.StringVar(&f.policy, "policy", policies.Default, "`name` of the policy that chooses: "+strings.Join(policies.Names(), ", "))
	fl.StringVar(&f.reserved, "reserved-cpus", "", "`CPUs` that no container owns, such as those of the kubelet: 0-1")
	fl.StringVar(&f.rules, "rules", "", "`file` that says which words of pods count in which namespaces")
	fl.StringVar(&f.index, "index", "50", "two `digits`: runtimes call plugins in their order")
	fl.DurationVar(&opt.Budget, "budget", 0, "how `long` a decision may take until the container gets the shared pool (default 1s)")
	fl.BoolVar(&f.strict, "strict", false, "refuse every container of which a word cannot be followed")
	fl.BoolVar(&f.check, "check", false, "only say who else sets CPUs of containers")
	fl.BoolVar(&f.beside, "beside-others", false, "go on though somebody else sets CPUs of containers")
	f.kube.add(fl)
	return cmd
}

// rivals refuses to work beside others who set CPUs.
func (f *nriFlags) rivals(cmd *cobra.Command, host fs.FS) error {
	all, err := rivals.Find(host)
	errs := []error{err}
	for i := range all {
		errs = append(errs, &all[i])
	}
	err = errors.Join(errs...)
	if err == nil && f.check {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "nobody else sets CPUs of containers")
		return err
	}
	if err != nil && f.beside && !f.check {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", plain.Text(err.Error()))
		return nil
	}
	return err
}

// policyHints are the hints that a policy knows.
func policyHints(policy string) []string {
	switch policy {
	case "topology-aware":
		return []string{"prefer-shared-cpus", "prefer-reserved-cpus", "hide-hyperthreads", "cpu.preserve", "memory.preserve", "unlimited-burstable"}
	case "balloons", "podpools":
		return []string{"balloon", "hide-hyperthreads"}
	}
	return []string{"prefer-shared-cpus"} // which is a mode besides
}

func (f *nriFlags) options(opt *nri.Options) (err error) {
	opt.Index, opt.Strict, opt.Hints = f.index, f.strict, policyHints(f.policy)
	if len(f.index) != 2 || strings.Trim(f.index, "0123456789") != "" {
		return fmt.Errorf("--index %q: two digits", f.index)
	}
	n := &opt.Node
	n.Dir, n.PolicyName = f.state, f.policy
	if n.Policy, err = policies.New(f.policy, nil); err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	if n.Config.Reserved, err = cpuset.Parse(f.reserved); err != nil {
		return fmt.Errorf("--reserved-cpus: %w", err)
	}
	opt.Rules, err = readRules(f.rules)
	return err
}

func readRules(file string) (rules podwords.Rules, err error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if _, err = strictyaml.Decode(text, file, &rules); err == nil {
		if err = rules.Validate(); err != nil {
			err = fmt.Errorf("%s: %w", file, err)
		}
	}
	return rules, err
}

func (f *nriFlags) run(ctx context.Context, opt nri.Options, log *slog.Logger) error {
	cluster, err := f.kube.open(&opt, log)
	if err != nil {
		return err
	}
	// Until New returns there is nobody else to tell: it only finishes what was begun before.
	var ready atomic.Bool
	opt.Events = func(e nri.Event) {
		logEvent(log, e)
		if ready.Load() {
			cluster.tell(&e)
		}
	}
	p, err := nri.New(ctx, opt)
	if err != nil {
		return err
	}
	if err := f.kube.publisher(cluster, opt.Node.Root, p, f.policy, log); err != nil {
		return errors.Join(err, p.Close())
	}
	ready.Store(true)
	ctx, cancel := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() { defer close(told); cluster.run(ctx) }()
	err = p.Run(ctx, func() (net.Conn, error) { return net.Dial("unix", f.socket) })
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	cancel()
	<-told
	return errors.Join(err, p.Close())
}

func logEvent(log *slog.Logger, e nri.Event) {
	level := slog.LevelInfo
	switch e.Kind {
	case nri.Fallback, nri.Late, nri.Drifted, nri.Word, nri.Lost, string(agent.Refused):
		level = slog.LevelWarn
	case string(agent.Failed):
		level = slog.LevelError
	}
	var about []any
	for _, a := range [][2]string{{"namespace", e.Namespace}, {"pod", e.Pod}, {"container", e.Container}} {
		if a[1] != "" {
			about = append(about, a[0], plain.Line(a[1]))
		}
	}
	log.Log(context.Background(), level, e.Kind, append(about, "text", plain.Line(e.Text))...)
}
