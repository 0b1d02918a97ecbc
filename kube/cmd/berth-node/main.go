// Command berth-node is berth for a node of Kubernetes: all verbs of berth, and those that
// need the libraries of Kubernetes and of container runtimes.
package main

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cli"
)

func main() { program().Main() }

func program() cli.Program {
	return cli.Program{
		Name: "berth-node", Purpose: "Place the containers of a Kubernetes node", Example: "sudo berth-node nri",
		Verbs: func() []*cobra.Command { return []*cobra.Command{nriCommand()} },
	}
}
