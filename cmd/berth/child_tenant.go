package main

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/lab/load"
)

// childTenantCommand is the lab's article service as a process of its own. The
// lab starts it; its protocol is that of load.ServeTenant.
func childTenantCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "__tenant",
		Short:  "Article service of the lab (started by it)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return load.ServeTenant(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
