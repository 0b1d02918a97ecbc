package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"berth.dev/berth/lab/guarded"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
)

// labChildren are the lab's processes besides the lab itself, which starts and configures
// them over standard input.
func labChildren() []*cobra.Command {
	child := func(use, short string, serve func(cmd *cobra.Command) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short + " (started by berth lab)", Hidden: true, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd) },
		}
	}
	return []*cobra.Command{
		child("__guard", "Guard of the lab", func(cmd *cobra.Command) error {
			ignoreSIGPIPE()
			return guarded.Child(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		}),
		child("__load", "Load generator of the lab", func(cmd *cobra.Command) error {
			// The loop reads its schedule only, so the end of the context ends the
			// process here.
			stop := context.AfterFunc(cmd.Context(), func() { os.Exit(exitInterrupted) })
			defer stop()
			return load.Serve(cmd.InOrStdin(), cmd.OutOrStdout(), func() { os.Exit(exitError) })
		}),
		child("__noise", "Run a lab's noisy neighbour", func(cmd *cobra.Command) error {
			counters := os.NewFile(3, "descriptor 3") // a file in memory, by which the lab watches it
			return noise.Child(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), counters)
		}),
		child("__program", "Keep a program that the lab measures", func(cmd *cobra.Command) error {
			return program.Keep(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		}),
		{
			Use: "__exec ADDRESS COMMAND", Short: "Run a command for each request (started by berth lab)", Hidden: true, Args: cobra.ExactArgs(2),
			RunE: func(cmd *cobra.Command, args []string) error {
				return program.ServeExec(cmd.Context(), program.Exec{Address: args[0], Command: args[1]})
			},
		},
		child("__tenant", "Article service of the lab", func(cmd *cobra.Command) error {
			return load.ServeTenant(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		}),
	}
}
