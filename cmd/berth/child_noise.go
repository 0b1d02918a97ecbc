package main

import (
	"os"

	"github.com/spf13/cobra"

	"berth.dev/berth/lab/noise"
)

// childNoiseCommand is a lab's neighbour: a process that the lab starts, configures
// over standard input and watches through the memory file on descriptor 3.
func childNoiseCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "__noise",
		Short:  "Run a lab's noisy neighbour (started by berth lab)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			counters := os.NewFile(3, "descriptor 3")
			return noise.Child(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), counters)
		},
	}
}
