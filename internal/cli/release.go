package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

func releaseCommand() *cobra.Command {
	var kill, keep bool
	cmd := &cobra.Command{
		Use:   "release NAME [--keep | --kill]",
		Short: "Release a workload: its CPUs become free",
		Long: `Release a workload. Other workloads may get its CPUs from then on.

A workload of berth run is refused while it has processes, unless a flag says what
becomes of them. With --keep they run on, in the control groups that they came from.
With --kill they are killed: an agent of root kills for root and its admins only; the
processes of another user's own workload are killed as that user. A control group that
Berth did not make keeps its processes, and gets its original values.

Killed processes get 10 seconds to end. Processes that have not ended, as they wait
for a disk or are frozen by another group, are named; the workload keeps its CPUs until
they have ended, and is released then by the agent or the next berth command.

Exit status: 0, 1 if it was not released, 2 for wrong usage.`,
		Example: `  berth release nginx.service --keep    # as before berth adopt; it runs on
  berth release batch --kill            # and end its processes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withNode(cmd, func(n node) error {
				leaving := agent.WhenEmpty
				switch {
				case kill:
					leaving = agent.Kill
				case keep:
					leaving = agent.Keep
				}
				id, err := workloadID(cmd.Context(), n, args[0])
				if err != nil {
					return err
				}
				err = release(cmd.Context(), n, id, leaving)
				if occupied, ok := errors.AsType[*agent.OccupiedError](err); ok {
					return fmt.Errorf("release %s: it still has processes %v; --keep lets them run on, --kill ends them", plain.Line(occupied.ID), occupied.PIDs)
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "released %s\n", plain.Line(id))
				return err
			})
		},
	}
	oneName(cmd)
	cmd.Flags().BoolVar(&kill, "kill", false, "kill the processes that it has")
	cmd.Flags().BoolVar(&keep, "keep", false, "let the processes that it has run on")
	exclusive(cmd, "keep", "kill")
	socketFlag(cmd)
	return cmd
}

// workloadID is the id of the workload that a name means: its id, the name of an entry of a
// configuration by which a single group is a workload, or a service's without .service.
func workloadID(ctx context.Context, n node, name string) (string, error) {
	rows, err := listRows(ctx, n)
	if err != nil {
		return "", err
	}
	var all, matched []string
	for i := range rows {
		id := rows[i].ID()
		if id == name {
			return id, nil
		}
		entry, _, by := strings.Cut(id, ":")
		if by && entry == name || id == name+".service" {
			matched = append(matched, id)
		}
		if all = append(all, id); by {
			all = append(all, entry)
		}
	}
	if len(matched) == 1 {
		return matched[0], nil
	}
	hint := plain.Near(name, all)
	switch {
	case len(matched) > 1:
		return "", fmt.Errorf("%s: it is the name of several workloads: %s", plain.Line(name), plain.Line(fewNames(matched)))
	case hint == "":
		hint = " ('berth ps' lists them)"
	}
	return "", fmt.Errorf("%s: there is no such workload%s", plain.Line(name), hint)
}

// release releases a workload. Processes that are to be killed and that the agent does
// not kill for this user are killed with this user's own rights.
func release(ctx context.Context, n node, id string, leaving agent.Leaving) error {
	err := n.Release(ctx, id, leaving)
	if leaving != agent.Kill || !is[*agent.DeniedError](err) {
		return err
	}
	root, err := kernel.Open("/")
	if err != nil {
		return err
	}
	listed := false
	err = root.Kill(ctx, func() ([]int, error) {
		err := n.Release(ctx, id, agent.WhenEmpty)
		if is[*place.NotHeldError](err) && listed {
			return nil, nil // released, maybe by the reaper of berth run, since its processes have ended
		}
		occupied, ok := errors.AsType[*agent.OccupiedError](err)
		listed = listed || ok || err == nil
		if ok {
			return occupied.PIDs, nil
		}
		return nil, err
	})
	if is[*kernel.AliveError](err) {
		return fmt.Errorf("release %s: %w; it keeps its place until they have ended, then release it again", plain.Line(id), err)
	}
	return err
}
