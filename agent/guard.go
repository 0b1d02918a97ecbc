package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/kernel"
)

// GuardDir is the state directory of the guard beside a node's.
func GuardDir(node string) string {
	if filepath.Base(node) == "node" {
		return filepath.Join(filepath.Dir(node), "guard")
	}
	return filepath.Clean(node) + "-guard"
}

// guardLog returns the name of the guard's undo log; there is false if no guard of this
// user's has been there: the directory is missing, or another user's in its place.
func (n *Node) guardLog() (name string, there bool, err error) {
	dir := GuardDir(n.opt.Dir)
	info, err := os.Lstat(dir)
	if err == nil {
		stat, ok := info.Sys().(*syscall.Stat_t)
		if there = !ok || int(stat.Uid) == os.Geteuid(); there {
			err = kernel.CheckPrivateDir(dir)
		}
	}
	return actuate.UndoLogFile(dir), there, kernel.IgnoreAbsent(err)
}

// recoverGuard restores what a killed guard left active, before the node looks for
// the original of any value. The values of a guard that lives are looked through.
func (t *transaction) recoverGuard() error {
	name, there, err := t.n.guardLog()
	t.log.Above(name)
	if err != nil || !there {
		return err
	}
	noted, err := kernel.ReadUndoLog(t.n.root, name)
	if err == nil && len(noted.Notes()) == 0 {
		return noted.Damage()
	}
	items, err := actuate.Recover(actuate.Options{Root: t.n.root, Dir: filepath.Dir(name)})
	if _, ok := errors.AsType[*actuate.BusyError](err); ok {
		return nil
	}
	for _, item := range items {
		if item.Outcome == kernel.Restored || item.Outcome == kernel.Changed {
			t.n.tell(Failed, "", "/"+item.Step.Path, fmt.Sprintf("a killed guard had it active: it is %v", item.Outcome))
		}
	}
	if err != nil {
		return fmt.Errorf("before the node is opened: %w", err)
	}
	return nil
}
