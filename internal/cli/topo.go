package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"

	"github.com/spf13/cobra"
)

func topoCommand() *cobra.Command {
	var f topoFlags
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "Draw the machine: sockets, NUMA nodes, caches, cores, and what is unusual about it",
		Long: `Draw the machine: sockets, NUMA nodes, caches, cores, and what is unusual about it.

--machine takes another machine than this one:
  a directory with a copy of /sys (rooted at / or at /sys), or a tar archive of one;
  a machine file that --export wrote;
  the output of lscpu -p=CPU,CORE,SOCKET,NODE,CACHE;
  a short form: counts and letters from the outermost level to the innermost,
  s sockets, d dies, n NUMA nodes, l L3 caches, c cores, t threads. Each count
  is per item of the level before it: 2s4n16c2t is 2 sockets with 4 nodes each,
  each node with 16 cores of 2 threads, 256 CPUs in all.`,
		Example: `  berth topo
  berth topo --machine 2s4n16c2t       # a machine on paper
  berth topo --export node.json        # for berth replay --machine, elsewhere`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, rootDir(cmd)) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.machine, "machine", "", "describe this file, directory, archive or short form instead of this machine")
	outputFlag(cmd, "what to print: text or json")
	fs.StringVar(&f.export, "export", "", "write a machine file that --machine reads, and print nothing")
	return cmd
}

type topoFlags struct{ machine, export string }

func (f topoFlags) run(cmd *cobra.Command, root string) error {
	m, err := f.read(root)
	if err != nil {
		return err
	}
	if f.export != "" {
		return exportMachine(f.export, m)
	}
	notes := machine.Unusual(m)
	if f.machine == "" && filepath.Clean(root) == "/" {
		note, err := notAllowed(m, root)
		if err != nil {
			return err
		}
		notes = append(notes, note...)
	}
	file := sysfs.File{Schema: sysfs.Schema, Machine: m, Unusual: notes}
	return show(cmd, file, func() string { return drawMachine(m, notes) })
}

func (f topoFlags) read(root string) (*machine.Machine, error) {
	if f.machine != "" {
		return sysfs.Load(f.machine)
	}
	return sysfs.Live(root)
}

// notAllowed names online CPUs that this process may not use.
func notAllowed(m *machine.Machine, root string) ([]machine.Note, error) {
	allowed, err := sysfs.Allowed(os.DirFS(root))
	if err != nil {
		return nil, fmt.Errorf("read allowed CPUs: %w", err)
	}
	denied := m.Online.Minus(allowed)
	if denied.IsEmpty() {
		return nil, nil
	}
	return []machine.Note{{
		Code: "not-allowed",
		Text: fmt.Sprintf("this process may use CPUs %s only, not %s (cpuset or affinity)", m.Online.Intersect(allowed), denied),
	}}, nil
}

func exportMachine(name string, m *machine.Machine) error {
	file, err := os.Create(name)
	if err == nil {
		err = errors.Join(writeJSON(file, sysfs.File{Schema: sysfs.Schema, Machine: m}), file.Close())
	}
	if err != nil {
		return fmt.Errorf("export machine: %w", err)
	}
	return nil
}
