package kernel

import "errors"

// Two undo logs of one user may concern the same files: that of a node, and that of a
// guard, whose values lie above the node's. A value that the node finds may then be the
// guard's, and is not the original.

// Above names the undo log of the process whose values may lie above those of this log.
// From then on a value of that process does not count as an original, and a value below
// it is not restored as long as it lies above (Covered). The file is read each time,
// since its process may live.
func (l *UndoLog) Above(name string) { l.above = name }

// lies returns the entry of the log above whose value a file has now; nil if the file
// has another value.
func (l *UndoLog) lies(s Step, current string) (*entry, error) {
	if l == nil || l.above == "" || s.Op != Write {
		return nil, nil
	}
	above, err := ReadUndoLog(l.root, l.above)
	if _, none := errors.AsType[*HeaderError](err); none {
		return nil, nil // another user's, or damaged: its active values are unknown
	}
	if err != nil {
		return nil, err
	}
	for _, e := range above.at[s.Path] {
		if e.Op == Write && s.sameLine(e.Value) && l.root.isSame(e) && l.root.owns(e, current) {
			return e, nil
		}
	}
	return nil, nil
}

// lookThrough replaces the value of the process above by the value before it.
func (l *UndoLog) lookThrough(e *entry) error {
	above, err := l.lies(e.Step, e.Original)
	if above != nil {
		e.Original = above.Original
	}
	return err
}
