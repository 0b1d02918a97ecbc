package cli

import "github.com/spf13/cobra"

// purpose is what a group of verbs is for, as root's help tells it: with an example.
type purpose struct {
	title, example string
	verbs          []*cobra.Command
}

// purposes lists the verbs, one file each, in the order in which a new user needs them.
func purposes() []purpose {
	return []purpose{
		{"Find out what is wrong", "berth diagnose", []*cobra.Command{
			diagnoseCommand(), watchCommand(), statusCommand(), doctorCommand(), topoCommand(),
		}},
		{"Give workloads CPUs and limits", "sudo berth run --class BE -- make -j8", []*cobra.Command{
			runCommand(), adoptCommand(), psCommand(), mapCommand(), explainCommand(), resizeCommand(), moveCommand(), classesCommand(), releaseCommand(),
		}},
		{"Protect them from neighbours", "sudo berth guard --sensitive nginx.service", []*cobra.Command{
			guardCommand(), agentCommand(), configCommand(),
		}},
		{"Measure what that brings", "berth lab", []*cobra.Command{demoCommand(), labCommand(), replayCommand()}},
		{"Undo", "sudo berth restore", []*cobra.Command{restoreCommand()}},
	}
}

// addCommands gives root its verbs, and those of its own child processes.
func addCommands(root *cobra.Command) {
	for _, p := range purposes() {
		addPurpose(root, p)
	}
	root.AddCommand(versionCommand(), childKeepCommand(), childStartCommand())
	root.AddCommand(labChildren()...)
}

func addPurpose(root *cobra.Command, p purpose) {
	root.AddGroup(&cobra.Group{ID: p.title, Title: p.title + ", as in: " + p.example})
	for _, c := range p.verbs {
		c.GroupID = p.title
		root.AddCommand(c)
	}
}
