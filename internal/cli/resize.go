package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
)

func resizeCommand() *cobra.Command {
	var spec specFlags
	var policy nodeFlags
	cmd := &cobra.Command{
		Use:   "resize NAME [flags]",
		Short: "Change what a running workload asks for: CPUs, class, limits",
		Long: `Change what a running workload asks for: CPUs, class, limits. What no flag names
stays as it is. The policy keeps it where it is as far as it can: grown, it gets
CPUs near those that it has; shrunk, it keeps some of them.

--cpus lets the policy choose again where --cpuset had named the CPUs.

Exit status: 0, 1 if it was not changed, 2 for wrong usage.`,
		Example: `  berth resize api --cpus 6
  berth resize batch --quota 2 --memory max`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return policy.with(cmd, false, func(n node) error {
				w, err := resize(cmd, n, args[0], &spec)
				if err != nil {
					return err
				}
				return changed(cmd, &w)
			})
		},
	}
	oneName(cmd)
	spec.register(cmd)
	policy.register(cmd)
	outputFlag(cmd, "text or json")
	return cmd
}

func resize(cmd *cobra.Command, n node, name string, f *specFlags) (w agent.Workload, err error) {
	id, err := workloadID(cmd.Context(), n, name)
	if err == nil {
		w, err = n.Get(cmd.Context(), id)
	}
	if err != nil {
		return w, err
	}
	next := w.Spec
	if cmd.Flags().Changed("cpus") {
		next.CPUs = cpuset.Set{}
	}
	if err := errors.Join(f.apply(cmd, &next), f.validateCPUs(cmd, n)); err != nil {
		return w, err
	}
	return n.Resize(cmd.Context(), next)
}

func changed(cmd *cobra.Command, w *agent.Workload) error {
	return show(cmd, w, func() string { return fmt.Sprintf("%s runs on %s\n", plain.Line(w.ID()), w.CPUs) })
}
