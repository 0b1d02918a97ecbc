package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"berth.dev/berth/lab/load"
)

// childLoadCommand is the lab's load generator as a process of its own. The lab
// starts it; its protocol is that of load.Serve.
func childLoadCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "__load",
		Short:  "Load generator of the lab (started by it)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The loop reads its schedule only, so the end of the context ends the
			// process here.
			stop := context.AfterFunc(cmd.Context(), func() { os.Exit(exitInterrupted) })
			defer stop()
			return load.Serve(cmd.InOrStdin(), cmd.OutOrStdout(), func() { os.Exit(exitError) })
		},
	}
}
