package actuate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// BusyError says that another process guards the tree.
type BusyError struct {
	Tree string
	Holder
}

// Holder is the process that has the lock of a tree, as it says itself.
type Holder struct {
	PID int    `json:"pid"` // 0: it has not said so yet
	Dir string `json:"dir"` // its state directory, absolute
	// Program is what it is, as in "berth agent".
	Program string `json:"program,omitempty"`
	// Start is when it started (kernel.Process.Start): its number may be another's by now.
	Start string `json:"start,omitempty"`
}

func (e *BusyError) Error() string {
	who := ""
	if e.PID != 0 {
		who = fmt.Sprintf(": %s, process %d, state directory %q", cmp.Or(e.Program, "berth guard"), e.PID, e.Dir)
	}
	return fmt.Sprintf("guard /%s: another guard that may act is running%s; end it first", e.Tree, who)
}

// Look returns what is noted in the state directory of a guard, in the order in which it
// was done, and the process that guards the tree: its PID is 0 if none does. It takes no
// lock and changes nothing. It is a kernel.NotSupportedError where there are no groups, and
// a *kernel.DamageError, beside the notes, if some cannot be read.
func Look(o Options) (notes []kernel.Item, by Holder, err error) {
	log, signed, err := look(o)
	if err != nil {
		return nil, by, fmt.Errorf("look at the guard: %w", err)
	}
	// A guard that was killed has not taken its name away.
	if json.Unmarshal(signed, &by) != nil {
		by = Holder{}
	} else if p, err := kernel.ReadProcess(o.Root.FS(), strconv.Itoa(by.PID)); err != nil || p.Ended() || p.Start != by.Start {
		by = Holder{}
	}
	return log.Notes(), by, log.Damage()
}

// Clean reports that nothing is noted in the state directory of a guard, and that no guard has the tree, nor had
// it when it was killed. It takes no lock.
func Clean(o Options) bool {
	log, signed, err := look(o)
	return err == nil && len(log.Notes()) == 0 && log.Damage() == nil && len(signed) == 0
}

// look reads the undo log of a guard, and with what the lock of the tree is signed; nil if it is not.
func look(o Options) (log *kernel.UndoLog, signed []byte, err error) {
	h, err := Open(Options{Root: o.Root})
	if err == nil {
		err = kernel.IgnoreAbsent(kernel.CheckPrivateDir(o.Dir))
	}
	if err == nil {
		log, err = kernel.ReadUndoLog(o.Root, UndoLogFile(o.Dir))
	}
	if err != nil {
		return nil, nil, err
	}
	name, err := lockFile(o.Root, h.tree())
	if err == nil {
		signed, err = kernel.ReadPrivateFile(name)
	}
	return log, signed, kernel.IgnoreAbsent(err)
}

// tree is the directory that stands for what is guarded: that of the CPU controller,
// or of any other.
func (h *Host) tree() string {
	for _, c := range []string{cgroup.CPU, cgroup.CPUSet, cgroup.Memory} {
		if t := h.trees[c]; t != nil {
			return t.Dir
		}
	}
	return h.base.Dirs()[0]
}

// lockTree takes the lock of a tree for this process, until it ends. The lock does not
// depend on the state directory, so that no two guards of one user act on one tree, and
// is a file that nobody else can open: not the tree itself, whose directories everybody
// may lock.
func lockTree(root *kernel.Root, tree, state, program string) (*os.File, error) {
	name, err := lockFile(root, tree)
	if err != nil {
		return nil, err
	}
	if err := kernel.MakePrivateDir(root.RunDir()); err != nil {
		return nil, fmt.Errorf("lock /%s: %w", tree, err)
	}
	f, err := kernel.LockFile(name, false)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		busy := &BusyError{Tree: tree}
		if text, err := kernel.ReadPrivateFile(name); err != nil || json.Unmarshal(text, &busy.Holder) != nil {
			busy.Holder = Holder{}
		}
		return nil, busy
	}
	if err != nil {
		return nil, fmt.Errorf("lock /%s: %w", tree, err)
	}
	if err := sign(root, f, state, program); err != nil {
		return nil, errors.Join(fmt.Errorf("lock /%s: %w", tree, err), kernel.Unlock(f))
	}
	return f, nil
}

// lockFile is the name of a tree's lock.
func lockFile(root *kernel.Root, tree string) (string, error) {
	info, err := os.Stat(filepath.Join(root.Name(), tree))
	if err != nil {
		return "", fmt.Errorf("lock the tree of groups: %w", err)
	}
	id, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("lock /%s: it has no inode", tree)
	}
	return filepath.Join(root.RunDir(), fmt.Sprintf("guard-%d:%d.lock", id.Dev, id.Ino)), nil
}

// sign writes into a lock which process has it.
func sign(root *kernel.Root, lock *os.File, state, program string) error {
	state, err := filepath.Abs(state)
	if err != nil {
		return err
	}
	by := Holder{PID: os.Getpid(), Dir: state, Program: program}
	if p, err := kernel.ReadProcess(root.FS(), strconv.Itoa(by.PID)); err == nil { // a tree may not show it
		by.Start = p.Start
	}
	text, err := json.Marshal(by)
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = lock.WriteAt(text, 0)
	}
	return err
}
