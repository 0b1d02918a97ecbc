package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

func releaseCommand() *cobra.Command {
	var kill bool
	cmd := &cobra.Command{
		Use:   "release NAME",
		Short: "Release a workload: its CPUs become free",
		Long: `Release a workload. Other workloads may get its CPUs from then on.

A workload of berth run is refused while it has processes, unless they are to be
killed. An agent of root kills for root and its admins only; the processes of another
user's own workload are killed as that user. A control group that Berth did not make
keeps its processes, and gets its original values.

Killed processes get 10 seconds to end. Processes that have not ended, as they wait
for a disk or are frozen by another group, are named; the workload keeps its CPUs until
they have ended, and is released then by the agent or the next berth command.

Exit status: 0, 1 if it was not released, 2 for wrong usage.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withNode(cmd, func(n node) error {
				err := release(cmd.Context(), n, args[0], kill)
				var occupied *agent.OccupiedError
				if errors.As(err, &occupied) {
					return fmt.Errorf("release %s: it still has processes %v; end them, or kill them with --kill", plain.Line(occupied.ID), occupied.PIDs)
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "released %s\n", plain.Line(args[0]))
				return err
			})
		},
	}
	oneName(cmd)
	cmd.Flags().BoolVar(&kill, "kill", false, "kill the processes that it has")
	socketFlag(cmd)
	return cmd
}

// release releases a workload. Processes that are to be killed and that the agent does
// not kill for this user are killed with this user's own rights.
func release(ctx context.Context, n node, id string, kill bool) error {
	err := n.Release(ctx, id, kill)
	var denied *agent.DeniedError
	if !kill || !errors.As(err, &denied) {
		return err
	}
	root, err := kernel.Open("/")
	if err != nil {
		return err
	}
	listed := false
	err = root.Kill(ctx, func() ([]int, error) {
		err := n.Release(ctx, id, false)
		var occupied *agent.OccupiedError
		var gone *place.NotHeldError
		switch {
		case errors.As(err, &gone) && listed:
			return nil, nil // released, maybe by the reaper of berth run, since its processes have ended
		case errors.As(err, &occupied):
			listed = true
			return occupied.PIDs, nil
		case err == nil:
			listed = true
		}
		return nil, err
	})
	var alive *kernel.AliveError
	if errors.As(err, &alive) {
		return fmt.Errorf("release %s: %w; it keeps its place until they have ended, then release it again", plain.Line(id), err)
	}
	return err
}
