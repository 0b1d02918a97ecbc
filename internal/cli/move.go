package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"berth.dev/berth/cpuset"
)

func moveCommand() *cobra.Command {
	var cpus, mems cpuset.Set
	cmd := &cobra.Command{
		Use:   "move NAME --cpuset LIST [--mems LIST]",
		Short: "Move a running workload to other CPUs and memory nodes",
		Long: `Move a running workload to other CPUs and memory nodes.

A workload with exclusive CPUs (LSE, LSR) owns the new ones instead; CPUs of another
owner are refused. A workload that shares a pool stays within the new ones. On
cgroup v2 its memory moves along with --mems; on v1 only new memory does.

Exit status: 0, 1 if it was not moved, 2 for wrong usage.`,
		Example: `  berth move api --cpuset 4-7
  berth move api --cpuset 4-7 --mems 1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cpus.IsEmpty() {
				return exitStatus{exitUsage, errors.New("move: --cpuset is needed")}
			}
			return withNode(cmd, func(n node) error {
				id, err := workloadID(cmd.Context(), n, args[0])
				if err = errors.Join(err, (&specFlags{cpuset: cpus, mems: mems}).validateCPUs(cmd, n)); err != nil {
					return err
				}
				w, err := n.Move(cmd.Context(), id, cpus, mems)
				if err != nil {
					return err
				}
				return changed(cmd, &w)
			})
		},
	}
	oneName(cmd)
	cmd.Flags().TextVar(&cpus, "cpuset", cpuset.Set{}, "CPUs to move to, as a `list` such as 0-3")
	cmd.Flags().TextVar(&mems, "mems", cpuset.Set{}, "NUMA nodes to move to, as a `list`")
	outputFlag(cmd, "text or json")
	socketFlag(cmd)
	return cmd
}
