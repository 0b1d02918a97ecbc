package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/kernel"
)

// The files of a state directory.
const (
	lockFile     = "lock"   // for as long as the records are read and written
	agentLock    = "keeper" // locked by the agent, which keeps lockFile locked, too
	logFile      = "ledger"
	batchFile    = "batch.json"    // a change of several records, until all are done
	dirtyFile    = "unfinished"    // there while the kernel is being told
	poolsFile    = "pools.json"    // the policy's named pools
	settingsFile = "settings.json" // what the node was opened with
	recordExt    = ".grant.json"   // a record, after the escaped id
	asideExt     = ".unreadable"   // what could not be read, kept
	maxName      = 255 - len(recordExt) - len(asideExt)
	version      = 1
)

// store is the records of a state directory. Its caller holds the lock. Nothing waits for
// the disk: what the files say is void after a reboot, and they outlive the process in memory.
type store struct {
	dir   string
	touch func(op string) error // before each change, which fails if it does
}

func (s store) write(name string, text []byte) error {
	if err := s.touch("write"); err != nil {
		return err
	}
	return kernel.WritePrivateFile(s.path(name), text)
}

func (s store) rename(from, to string) error {
	if err := s.touch("rename"); err != nil {
		return err
	}
	return os.Rename(s.path(from), s.path(to))
}

func (s store) remove(name string) error {
	if err := s.touch("remove"); err != nil {
		return err
	}
	return kernel.IgnoreAbsent(os.Remove(s.path(name)))
}

// batch is a set of files to write and to remove, all or none.
type batch struct {
	Put  map[string][]byte `json:"put,omitempty"`
	Drop []string          `json:"drop,omitempty"`
}

// takesAway reports whether it only removes files. Then it is not written down
// first, so that it can be done on a full disk: a record that is left after a
// kill is of a workload that is found to be gone.
func (b batch) takesAway() bool { return len(b.Put) == 0 }

// prepare writes a batch down, so that little can still go wrong.
func (s store) prepare(b batch) error {
	if b.takesAway() {
		return nil
	}
	text, err := seal(b)
	if err != nil {
		return err
	}
	return s.write(batchFile+".new", text)
}

func (s store) abandon() error { return s.remove(batchFile + ".new") }

// commitBatch makes the prepared batch the truth, in one step.
func (s store) commitBatch(b batch) error {
	if b.takesAway() {
		return s.drop(b)
	}
	return s.rename(batchFile+".new", batchFile)
}

func (s store) drop(b batch) error {
	for _, name := range b.Drop {
		if err := s.remove(name); err != nil {
			return err
		}
	}
	return nil
}

// isOfBoot reports whether the directory was last used in this boot, as its undo log says.
// What cannot be read in one of an earlier boot, maybe because the machine crashed before
// it was on the disk, is void like all the rest.
func (s store) isOfBoot(boot string) bool {
	of, err := s.origin()
	return err != nil || of.Boot == "" || of.Boot == boot
}

// origin is what the first line of the undo log says of where and when the node was opened.
func (s store) origin() (of struct{ Root, Boot string }, err error) {
	text, err := kernel.ReadPrivateFile(s.path(logFile))
	if err != nil {
		return of, err
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	return of, json.Unmarshal(first, &of)
}

// RootOf returns the directory of the kernel.Root that the node in a state directory was opened with, as
// its process saw it. ok is false where there is no node that can be read, or all of it was given
// back.
func RootOf(dir string) (root string, ok bool) {
	s := store{dir: dir}
	if kernel.CheckPrivateDir(dir) != nil {
		return "", false
	}
	if _, err := os.Lstat(s.path(settingsFile)); err != nil {
		return "", false
	}
	of, err := s.origin()
	return of.Root, err == nil && of.Root != ""
}

func (s store) batchOf(text []byte) (b batch, err error) {
	if err = unseal(text, &b); err != nil {
		return b, fmt.Errorf("%s: %w; use the berth that wrote it, or move it away, which loses that change, then check 'berth ps'", s.path(batchFile), err)
	}
	return b, nil
}

// texts reads every file that says who holds what, by its name. What has the name of a
// record and is no file is in bad.
func (s store) texts() (texts map[string][]byte, bad map[string]error, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, err
	}
	texts, bad = map[string][]byte{}, map[string]error{}
	for _, e := range entries {
		name := e.Name()
		isRecord := strings.HasSuffix(name, recordExt) || name == poolsFile
		switch {
		case !isRecord && name != batchFile && name != dirtyFile && name != settingsFile:
			continue
		case isRecord && !e.Type().IsRegular():
			bad[name] = errors.New("not a regular file")
			continue
		}
		text, err := kernel.ReadPrivateFile(s.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, nil, err
		}
		texts[name] = text
	}
	return texts, bad, nil
}

// aside keeps a file that cannot be read, under a name that is not in use.
func (s store) aside(name string) (string, error) {
	for i := 1; ; i++ {
		to := s.path(fmt.Sprintf("%s%s", name, asideExt))
		if i > 1 {
			to = fmt.Sprintf("%s-%d", to, i)
		}
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return to, errors.Join(s.touch("rename"), os.Rename(s.path(name), to))
		}
	}
}

// markDirty notes that the kernel is about to be told something; markClean crosses it
// out.
func (s store) markDirty() error {
	return s.write(dirtyFile, nil)
}

func (s store) markClean() error { return s.remove(dirtyFile) }

func (s store) isDirty() bool {
	_, err := os.Lstat(s.path(dirtyFile))
	return err == nil
}

func (s store) path(name string) string { return filepath.Join(s.dir, name) }
