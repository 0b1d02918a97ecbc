package main

import "github.com/spf13/cobra"

// commands lists the verbs, one file each.
func commands() []*cobra.Command {
	return []*cobra.Command{
		childLoadCommand(),
		childNoiseCommand(),
		childTenantCommand(),
		configCommand(),
		doctorCommand(),
		labCommand(),
		replayCommand(),
		restoreCommand(),
		topoCommand(),
	}
}
