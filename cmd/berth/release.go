package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
)

func releaseCommand() *cobra.Command {
	var kill bool
	cmd := &cobra.Command{
		Use:   "release NAME",
		Short: "Take a workload's place away",
		Long: `Take a workload's place away. Others may have its CPUs from then on.

A workload of berth run is refused while it has processes, unless they are to be
killed. A control group that Berth was given to place gets its former values
back and keeps its processes.

Exit status: 0, 1 if it was not released, 2 for wrong usage.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withNode(cmd, func(n node) error {
				err := n.Release(cmd.Context(), args[0], kill)
				var occupied *agent.OccupiedError
				if errors.As(err, &occupied) {
					return fmt.Errorf("release %s: it still has processes %v; end them, or kill them with --kill", onLine(occupied.ID), occupied.PIDs)
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "released %s\n", onLine(args[0]))
				return err
			})
		},
	}
	oneName(cmd)
	cmd.Flags().BoolVar(&kill, "kill", false, "kill the processes that it has")
	socketFlag(cmd)
	return cmd
}
