package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/plain"
)

// ElsewhereError is about a node that is not in the usual state directory, but in the one
// around it, as that of a plugin whose --state names that. Who looks only in the usual one would
// find nothing, and say that nothing is held, or place where that node does.
type ElsewhereError struct {
	Missing, Dir string // the usual directory, where no workloads are, and the node's
	// Root is the --root that it was made under, as that process saw it; Here is the one
	// of this process.
	Root, Here string
}

func (e *ElsewhereError) Error() string {
	found := fmt.Sprintf("%s: there are no workloads here, but a node in %s, made under --root %s", e.Missing, e.Dir, plain.Line(e.Root))
	if e.Root == e.Here {
		return fmt.Sprintf("%s: name it with --state %s", found, plain.Shell(e.Dir))
	}
	dir := e.Dir
	if within, err := filepath.Rel(e.Here, dir); err == nil {
		dir = filepath.Join(e.Root, within)
	}
	flags := fmt.Sprintf("--root %s --state %s", plain.Shell(plain.Line(e.Root)), plain.Shell(plain.Line(dir)))
	return fmt.Sprintf(`%s, as by a plugin in a pod
while it runs: kubectl exec -n berth POD -- /berth-node explain NAMESPACE/POD/CONTAINER %s
after it has ended (not tried):
kubectl debug node/NODE --profile=sysadmin --image=IMAGE -- /berth-node restore --all %[2]s`, found, flags)
}

// checkElsewhere is an *ElsewhereError if the node is in the directory around the usual one. places is true
// of a command that makes the usual one: it may, beside a node that nobody uses.
func checkElsewhere(cmd *cobra.Command, places bool) error {
	missing, named := stateOf(cmd)
	if named {
		return nil
	}
	_, err := os.Stat(missing)
	usual := !errors.Is(err, fs.ErrNotExist)
	if usual && agent.HoldsWorkloads(missing) {
		return nil
	}
	here, err := filepath.Abs(rootDir(cmd))
	if err != nil {
		return err
	}
	dir := filepath.Dir(missing)
	root, ok := agent.RootOf(dir)
	if !ok || (usual || places) && !agent.InUse(dir) {
		return nil
	}
	return &ElsewhereError{Missing: missing, Dir: dir, Root: root, Here: here}
}
