package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
)

func moveCommand() *cobra.Command {
	var cpus, mems cpuset.Set
	var classes map[agent.ClassKind]*className
	cmd := &cobra.Command{
		Use:   "move NAME {--cpuset LIST [--mems LIST] | --cache CLASS | --io CLASS | --net CLASS | --power PROFILE}",
		Short: "Move a running workload to other CPUs and memory nodes, or another class",
		Long: `Move a running workload to other CPUs and memory nodes, or into another cache, I/O
or network class, or give its exclusive CPUs another power profile.

A workload with exclusive CPUs (LSE, LSR) owns the new ones instead; CPUs of another
owner are refused. A workload that shares a pool stays within the new ones. On
cgroup v2 its memory moves along with --mems; on v1 only new memory does. What it has in
the cache stays there until others push it out.

Exit status: 0, 1 if it was not moved, 2 for wrong usage.`,
		Example: `  berth move api --cpuset 4-7
  berth move api --cpuset 4-7 --mems 1
  berth move api --cache gold           # one of those that berth classes lists
  berth move api --power performance    # likewise`,
		RunE: func(cmd *cobra.Command, args []string) error {
			reclass := setClasses(cmd, &agent.Spec{}, classes)
			if cpus.IsEmpty() && (!reclass || !mems.IsEmpty()) {
				return exitStatus{exitUsage, errors.New("move: --cpuset, --cache, --io, --net or --power is needed")}
			}
			return withNode(cmd, func(n node) error {
				id, err := workloadID(cmd.Context(), n, args[0])
				if err != nil {
					return err
				}
				if reclass {
					w, err := n.Get(cmd.Context(), id)
					if err != nil {
						return err
					}
					setClasses(cmd, &w.Spec, classes)
					if w, err = n.Resize(cmd.Context(), w.Spec); err != nil {
						return err
					}
					if cpus.IsEmpty() {
						return changed(cmd, &w)
					}
				}
				if err := (&specFlags{cpuset: cpus, mems: mems}).validateCPUs(cmd, n); err != nil {
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
	classes = classFlags(cmd)
	outputFlag(cmd, "text or json")
	socketFlag(cmd)
	return cmd
}
