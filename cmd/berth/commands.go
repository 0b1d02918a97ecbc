package main

import "github.com/spf13/cobra"

// commands lists the verbs, one file each.
func commands() []*cobra.Command {
	return []*cobra.Command{
		agentCommand(),
		childKeepCommand(),
		childLoadCommand(),
		childNoiseCommand(),
		childTenantCommand(),
		configCommand(),
		diagnoseCommand(),
		doctorCommand(),
		explainCommand(),
		guardCommand(),
		labCommand(),
		mapCommand(),
		moveCommand(),
		psCommand(),
		releaseCommand(),
		replayCommand(),
		resizeCommand(),
		restoreCommand(),
		runCommand(),
		topoCommand(),
		watchCommand(),
	}
}
