package main

import (
	"encoding/json"
	"fmt"
	"io"
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
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.OutOrStdout(), rootDir(cmd)) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.machine, "machine", "", "describe this file, directory, archive or short form instead of this machine")
	outputFlag(cmd, &f.output, "what to print: text or json")
	fs.StringVar(&f.export, "export", "", "write a machine file that --machine reads, and print nothing")
	return cmd
}

type topoFlags struct{ machine, output, export string }

func (f topoFlags) run(out io.Writer, root string) error {
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
	if f.output == "json" {
		return writeMachine(out, sysfs.File{Schema: sysfs.Schema, Machine: m, Unusual: notes})
	}
	_, err = io.WriteString(out, drawMachine(m, notes))
	return err
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
	if err != nil {
		return fmt.Errorf("export machine: %w", err)
	}
	err = writeMachine(file, sysfs.File{Schema: sysfs.Schema, Machine: m})
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("export machine: %w", err)
	}
	return nil
}

func writeMachine(w io.Writer, file sysfs.File) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(file)
}
