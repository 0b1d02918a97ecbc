package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/cli"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/kube/nri"
	"berth.dev/berth/kube/rivals"
	"berth.dev/berth/place/policies"
)

type nriFlags struct {
	config, socket, state, policy, reserved, rules, index string
	budget                                                time.Duration
	strict, beside, check                                 bool
	watch                                                 watchFlags
	kube                                                  kubeFlags
}

func nriCommand() *cobra.Command {
	var f nriFlags
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
it says what to change and ends; of a process of a pod or a user that only has the name of
one, it warns. --check only looks, and prints the configuration that would hold: the
file's, with the flags over it.

The configuration is a NodeConfig (docs/nodeconfig.md) with a section kubernetes. The
plugin follows its file and SIGHUP: which words count changes at once, for anything else
the plugin starts anew inside, and containers keep what they have where that still fits.

It serves metrics of the containers to Prometheus (--metrics), and with --guard it helps
sensitive containers: those of the classes LSE, LSR and LS, and what --sensitive names
(see berth guard --help).

With --kubeconfig or --in-cluster it knows exact requests, and writes what happens as
events on pods. --topology, --node-features, --features-dir and --batch say what else is
told of the node (docs/kubernetes-node.md). All of it goes on without the API server.

The runtime's connection is opened again when it is lost. SIGTERM and SIGINT end the
plugin; containers keep what they have, and the next start goes on from there. What
berth ps and berth explain say of containers they read from the same state directory.

Exit status: 0 after a signal, 1 if it cannot start or somebody else sets CPUs, 2 for
wrong usage.`,
		Example: `  sudo berth-node nri --check
  sudo berth-node nri --config /etc/berth/node.yaml
  sudo berth-node nri --reserved-cpus 0-1
  sudo berth-node nri --kubeconfig /etc/berth/kubeconfig --topology
  sudo berth-node explain default/web-0/nginx`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := systemd.Open(cli.RootDir(cmd))
			if err != nil {
				return err
			}
			if err := f.rivals(cmd, root.FS()); err != nil {
				return err
			}
			c, err := f.effective(cmd)
			if err = errors.Join(err, f.kube.options()); err != nil {
				return cli.UsageError(err)
			}
			if f.check {
				return printConfig(cmd, c)
			}
			defer cli.TuneRuntime(100, 2)() // each answer allocates a good deal, and need not wait for a file that is read
			return f.run(cmd, root, c)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.config, "config", "", "NodeConfig `file`; the flags go over it")
	fl.StringVar(&f.socket, "nri-socket", nri.Socket, "`path` of the runtime's socket for plugins")
	fl.StringVar(&f.state, "state", "", "state `directory` (default that of berth agent, of which only one may run)")
	fl.StringVar(&f.policy, "policy", policies.Default, "`name` of the policy that chooses: "+strings.Join(policies.Names(), ", "))
	fl.StringVar(&f.reserved, "reserved-cpus", "", "`CPUs` that no container owns, such as those of the kubelet: 0-1")
	fl.StringVar(&f.rules, "rules", "", "`file` that says which words of pods count in which namespaces")
	fl.StringVar(&f.index, "index", "50", "two `digits`: runtimes call plugins in their order")
	fl.DurationVar(&f.budget, "budget", 0, "how `long` a decision may take until the container gets the shared pool (default 1s)")
	fl.BoolVar(&f.strict, "strict", false, "refuse every container of which a word cannot be followed")
	fl.BoolVar(&f.check, "check", false, "only say who else sets CPUs of containers, and print the configuration that would hold")
	fl.BoolVar(&f.beside, "beside-others", false, "go on though somebody else sets CPUs of containers")
	f.watch.register(cmd)
	f.kube.add(fl)
	return cmd
}

// rivals refuses to work beside others who set CPUs, and warns of processes that only have the name
// of one: any pod's may.
func (f *nriFlags) rivals(cmd *cobra.Command, host fs.FS) error {
	all, err := rivals.Find(host)
	errs := []error{err}
	for i := range all {
		if all[i].Unsure && !f.check {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning:", plain.Text(all[i].Error()))
			continue
		}
		errs = append(errs, &all[i])
	}
	err = errors.Join(errs...)
	if err == nil && f.check {
		_, err = fmt.Fprintln(cmd.ErrOrStderr(), "nobody else sets CPUs of containers")
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
	case "static-pools":
		return []string{"balloon", "socket"} // more lists than one would be more than the pod pays for
	}
	return []string{"prefer-shared-cpus"} // which is a mode besides
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
