package cli

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Say which version of Berth this is",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, thisProgram(), versionLine)
		},
	}
	outputFlag(cmd, "output `format`")
	return cmd
}

// versionLine is version, commit and the Go that built it.
func versionLine() string {
	p := thisProgram()
	return fmt.Sprintf("berth %s, commit %s, %s\n", p.Version, cmp.Or(p.Commit, "unknown"), p.Go)
}
