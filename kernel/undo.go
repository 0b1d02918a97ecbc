package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/plain"
)

var errExist error = syscall.EEXIST

// ErrChanged matches every ChangedError (errors.Is).
var ErrChanged = errors.New("changed by another writer")

// ChangedError is a value that was not restored because it is no longer the
// one that Berth wrote.
type ChangedError struct {
	Path     string
	Written  string // the value that Berth wrote
	Current  string // the value now, which stays
	Original string // the value before
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("restore /%s: %v: is %q, not the %q that Berth wrote (before: %q)",
		e.Path, ErrChanged, e.Current, e.Written, e.Original)
}

// Is makes errors.Is(err, ErrChanged) true.
func (e *ChangedError) Is(target error) bool { return target == ErrChanged }

// Outcome is the result of undoing one step.
type Outcome = plain.Enum[outcomes]

// The outcomes.
const (
	// Failed: it could not be undone; the error says why.
	Failed Outcome = iota
	// Restored: the original is back.
	Restored
	// Untouched: it has the original value already, or was never changed.
	Untouched
	// Gone: the file, group or process no longer exists.
	Gone
	// Changed: another writer has changed it since; it stays as it is.
	Changed
	// Pending: it is still to be undone.
	Pending
	// InUse: other groups use the controller that Berth enabled; it stays enabled,
	// and its entry stays.
	InUse
	// Widened: a cpuset that was empty holds processes, so it got its parent's
	// set in so many words; its entry stays.
	Widened
	// Covered: another process of Berth has an active value above the one that was
	// written; it stays, and so does its entry, until that value is restored.
	Covered
)

// Stays reports whether an entry of the undo log is still there after an outcome, to be undone later.
func Stays(o Outcome) bool { return o == Failed || o == InUse || o == Widened || o == Covered }

type outcomes struct{}

var outcomeNames = []string{
	Failed: "failed", Restored: "restored", Untouched: "untouched", Gone: "gone", Changed: "changed", Pending: "pending",
	InUse: "in use", Widened: "widened", Covered: "covered",
}

func (outcomes) Words() []string { return outcomeNames }

type reverted struct {
	*entry
	outcome Outcome
	err     error // why, unless it is Restored, Untouched or Gone
	refused bool  // nothing was looked at: it stays noted
}

// revertAll undoes entries, the last first, and goes on after errors. An entry whose
// directory could then be removed all the same counts as Gone. A path outside the ground
// that mounts.go describes is refused. The error is about the log.
func (r *Root) revertAll(entries []*entry, log *UndoLog) ([]reverted, error) {
	var all []reverted
	var errs []error
	ground := r.ground()
	for _, e := range slices.Backward(entries) {
		if err := ground.refuses(e); err != nil {
			all = append(all, reverted{e, Failed, err, true})
			continue
		}
		outcome, err := r.revert(e, log)
		all = append(all, reverted{e, outcome, err, false})
		if !Stays(outcome) {
			errs = append(errs, log.undone(e))
		}
	}
	for i := range all {
		v := &all[i]
		if !Stays(v.outcome) || v.refused {
			continue
		}
		if _, _, err := r.locate(v.entry); Absent(err) {
			v.outcome, v.err = Gone, nil
			errs = append(errs, log.undone(v.entry))
		}
	}
	return all, errors.Join(errs...)
}

// undoAll is revertAll for callers that need the entries left and every error. InUse is
// not an error.
func (r *Root) undoAll(entries []*entry, log *UndoLog) (left []*entry, err error) {
	all, err := r.revertAll(entries, log)
	errs := []error{err}
	for _, v := range all {
		if v.outcome != InUse {
			errs = append(errs, v.err)
		}
		if Stays(v.outcome) {
			left = append(left, v.entry)
		}
	}
	slices.Reverse(left)
	return left, errors.Join(errs...)
}

// revert undoes one entry. The error is nil with Restored, Untouched and Gone,
// a ChangedError with Changed, and says why with the others.
func (r *Root) revert(e *entry, log *UndoLog) (Outcome, error) {
	e, inode, err := r.locate(e)
	switch {
	case err != nil && Absent(err):
		return Gone, nil
	case err != nil:
		return Failed, r.undoError(e, err)
	case another(e.Inode, inode):
		return Gone, nil // another process made it anew
	}
	var outcome Outcome
	switch e.Op {
	case Mkdir:
		outcome, err = r.revertMkdir(e)
	case Attach:
		outcome, err = r.revertAttach(e)
	case Enable:
		outcome, err = r.revertEnable(e)
	default:
		outcome, err = r.revertWrite(e, log)
	}
	if err == nil || outcome != Failed {
		return outcome, err
	}
	if Absent(err) {
		if _, statErr := r.inode(e.Path); Absent(statErr) {
			return Gone, nil
		}
	}
	return Failed, r.undoError(e, err)
}

// another reports whether two inodes that a path had are of different files. 0 is not known, as of what
// is written through systemd now and was directly before.
func another(a, b uint64) bool { return a != 0 && b != 0 && a != b }

// locate returns an entry with the path that it has now, and its inode: a directory of an overlay
// may have another name by now.
func (r *Root) locate(e *entry) (*entry, uint64, error) {
	inode, err := r.inode(e.Path)
	if e.Op != Mkdir || e.Inode == 0 || err == nil && inode == e.Inode || err != nil && !Absent(err) {
		return e, inode, err
	}
	if name := Renamed(r.FS(), e.Path, e.Inode); name != "" {
		moved := *e
		moved.Path = name
		return &moved, e.Inode, nil
	}
	return e, inode, err
}

func (r *Root) undoError(e *entry, err error) error {
	s := e.Step
	switch e.Op {
	case Mkdir:
		return fmt.Errorf("rmdir /%s: %w", e.Path, err)
	case Attach:
		s.Path = e.Back
	default:
		s.Value = e.Original
	}
	return fmt.Errorf("undo: %w", refused(s, err))
}

func (r *Root) revertWrite(e *entry, log *UndoLog) (Outcome, error) {
	text, err := r.read(e.Path)
	if err != nil {
		return Failed, err
	}
	current := e.line(text)
	isOriginal := owns(e.Format, current, e.Original) && owns(e.Format, e.Original, current)
	if e.Format == Threads {
		isOriginal = same(e.Format, current, e.Original)
	}
	original, offline := r.onlinePart(&e.Step, e.Original)
	if !offline {
		original = e.Original
	} else if same(e.Format, current, original) {
		isOriginal = true
	}
	switch {
	case isOriginal && !e.undoing:
		return Untouched, nil
	case !isOriginal && !r.owns(e, current):
		if above, err := log.lies(e.Step, current); err != nil {
			return Failed, err
		} else if above != nil {
			return Covered, fmt.Errorf("restore /%s: the guard has %q active above the %q that Berth wrote (before: %q); end the guard, then run 'berth restore'", e.Path, current, e.Value, e.Original)
		}
		return Changed, &ChangedError{Path: e.Path, Written: e.Value, Current: current, Original: e.Original}
	}
	if len(e.Disturbed) > 0 && !e.undoing {
		if err := log.undoing(e); err != nil {
			return Failed, err
		}
		e.undoing = true
	}
	if !isOriginal && offline && original == "" {
		return Failed, fmt.Errorf("none of its CPUs %s is online", e.Original)
	}
	switch e.Format {
	case Schema:
		original = schemaOnline(original, current)
	case Threads:
		original = threadsLeft(original, current, append([]string{e.Value}, e.Also...)...)
	case Keyed:
		original = automatic(original)
	}
	if !isOriginal {
		// Without Berth, too, the kernel would have removed offline CPUs.
		if err := r.write(e.Path, original); err != nil {
			return r.widen(e, current, err, log)
		}
	}
	var left []string
	for _, d := range e.Disturbed {
		if dErr := r.rewrite(d); dErr != nil {
			left, err = append(left, fmt.Sprintf("/%s %q", d.Path, d.Value)), dErr
		}
	}
	if err != nil {
		return Failed, fmt.Errorf("it is back, but not what it had changed: %s: %w", strings.Join(left, ", "), bare(err))
	}
	return Restored, nil
}

// automatic is a line of io.cost without the numbers that the kernel had chosen itself: written,
// they would be the user's (ctrl in Documentation/admin-guide/cgroup-v2.rst).
func automatic(line string) string {
	words := strings.Fields(line)
	if !slices.Contains(words, "ctrl=auto") {
		return line
	}
	return strings.Join(slices.DeleteFunc(words, func(word string) bool {
		name, _, named := strings.Cut(word, "=")
		return named && !slices.Contains([]string{"enable", "ctrl", "model"}, name)
	}), " ")
}

// widen is for a cpuset that was empty, which means that it has what its
// parent has. Before Linux 7 it cannot be made empty again while it holds
// processes; it gets a copy of the parent's set instead, so that at
// least no process is confined. It returns an error in any case.
func (r *Root) widen(e *entry, current string, err error, log *UndoLog) (Outcome, error) {
	if e.Format != List || e.Original != "" || !errors.Is(err, syscall.ENOSPC) {
		return Failed, err
	}
	dir, file := path.Split(e.Path)
	parents, readErr := r.read(path.Join(dir, "..", file+".effective"))
	if readErr != nil {
		return Failed, err
	}
	if !same(e.Format, current, parents) {
		if noteErr := log.also(e, parents); noteErr != nil {
			return Failed, noteErr
		}
		if r.write(e.Path, parents) != nil {
			return Failed, err
		}
	}
	return Widened, r.undoError(e, fmt.Errorf("%w: set to the parent's %s instead; once they have left, 'berth restore' makes it empty", bare(err), parents))
}

func (r *Root) rewrite(d saved) error {
	inode, err := r.inode(d.Path)
	if err != nil || another(d.Inode, inode) {
		if err == nil || Absent(err) {
			return nil
		}
		return err
	}
	text, err := r.read(d.Path)
	if err != nil || same(Words, text, d.Value) {
		return err
	}
	return r.write(d.Path, d.Value)
}

func (r *Root) revertAttach(e *entry) (Outcome, error) {
	ids, err := r.listed(e.Path)
	if err != nil {
		return Failed, err
	}
	if !slices.Contains(ids, e.Value) || r.startTime(e.Value) != e.Start {
		return Gone, nil // ended, or moved on
	}
	err = r.write(e.Back, e.Value)
	if errors.Is(err, syscall.ESRCH) {
		return Gone, nil
	}
	if err != nil {
		return Failed, err
	}
	return Restored, nil
}

// revertMkdir removes a directory. A group is busy until the last process in
// it is reaped, which a kill does not wait for.
func (r *Root) revertMkdir(e *entry) (Outcome, error) {
	if e.Back != "" {
		if err := r.sendBack(e); err != nil {
			return Failed, err
		}
	}
	deadline := time.Now().Add(r.patience())
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := r.Rmdir(e.Path)
		switch {
		case err == nil:
			return Restored, nil
		case Absent(err):
			return Gone, nil
		case !errors.Is(err, syscall.EBUSY):
			return Failed, bare(err)
		case time.Now().Add(wait).After(deadline):
			return Failed, r.occupied(e.Path, err)
		}
		time.Sleep(wait)
	}
}

// sendBack moves the threads of a group of resctrl, or the processes of a control group, to
// where they came from. Those that are made meanwhile are found by a second pass; where a group
// of resctrl is gone, the kernel moves all to the default group.
func (r *Root) sendBack(e *entry) error {
	for range 2 {
		ids, err := r.listed(e.Path + "/" + path.Base(e.Back))
		if err != nil {
			return IgnoreAbsent(err)
		}
		for _, tid := range ids {
			err := r.write(e.Back, tid)
			switch {
			case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENODEV):
				return nil
			case err != nil && !errors.Is(err, syscall.ESRCH):
				return bare(err)
			}
		}
	}
	return nil
}

// listed are the processes or threads that a file of a group lists, without the 0 of those of
// other PID namespaces: written, that is the writer itself. Of a threaded group they are its
// threads: the first one of a process has its id, and each stands for its process in cgroup.procs
// of the group that it is written to.
func (r *Root) listed(name string) (ids []string, err error) {
	var pids []int
	switch dir, file := path.Split(name); {
	case file != procsFile:
		var text string
		if text, err = r.read(name); err == nil {
			pids, err = ParsePIDs([]byte(text))
		}
	default:
		if pids, err = ReadProcs(r.FS(), dir); errors.Is(err, ErrNotSupported) {
			pids, err = ReadThreads(r.FS(), dir)
		}
	}
	for _, pid := range pids {
		ids = append(ids, strconv.Itoa(pid))
	}
	return ids, err
}

// occupied names the processes and groups in a group that cannot be removed.
func (r *Root) occupied(dir string, err error) error {
	if pids, readErr := ReadProcs(r.FS(), dir); readErr == nil && len(pids) > 0 {
		return fmt.Errorf("%w: still holds process %s; end it and run 'berth restore'", bare(err), strings.ReplaceAll(strings.Trim(fmt.Sprint(pids), "[]"), " ", ", "))
	}
	if has, readErr := HasProcs(r.FS(), dir); readErr == nil && has {
		return fmt.Errorf("%w: still holds a process of another PID namespace, or a thread; end it and run 'berth restore'", bare(err))
	}
	var children []string
	entries, _ := fs.ReadDir(r.FS(), dir)
	for _, entry := range entries {
		if entry.IsDir() {
			children = append(children, entry.Name())
		}
	}
	if len(children) > 0 {
		return fmt.Errorf("%w: another process made child groups in it: %s", bare(err), strings.Join(children, ", "))
	}
	return bare(err)
}
