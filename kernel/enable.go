package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/kernel/knob"
)

func (r *Root) children(dir string) (map[string]uint64, error) {
	entries, err := fs.ReadDir(r.FS(), dir)
	if err != nil {
		return nil, err
	}
	found := map[string]uint64{}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		inode, err := r.inode(path.Join(dir, entry.Name()))
		switch {
		case err == nil:
			found[entry.Name()] = inode
		case !Absent(err):
			return nil, err
		}
	}
	return found, nil
}

// revertEnable disables the controllers that e enabled, unless a child group
// needs them: one that was made since, hands the controller on, or has a
// setting that it would lose.
func (r *Root) revertEnable(e *entry) (Outcome, error) {
	outcome := Untouched
	var kept, users []string
	for _, word := range missing(e.Value, e.Original) {
		text, err := r.read(e.Path)
		if err != nil {
			return Failed, err
		}
		if !slices.Contains(strings.Fields(text), word) {
			continue
		}
		by, err := r.users(e, word)
		if err != nil {
			return Failed, err
		}
		if len(by) == 0 {
			err = r.write(e.Path, "-"+word)
			if err == nil {
				outcome = Restored
				continue
			}
			if !errors.Is(err, syscall.EBUSY) {
				return Failed, err
			}
			by = []string{"a child"} // that came to use it just now
		}
		kept, users = append(kept, word), append(users, by...)
	}
	if len(kept) == 0 {
		return outcome, nil
	}
	slices.Sort(users)
	return InUse, fmt.Errorf("disable %s for the child groups of /%s: still in use by %s; 'berth restore' disables what they no longer use",
		strings.Join(kept, " "), path.Dir(e.Path), strings.Join(slices.Compact(users), ", "))
}

func (r *Root) users(e *entry, controller string) ([]string, error) {
	dir := path.Dir(e.Path)
	children, err := r.children(dir)
	if err != nil {
		return nil, err
	}
	var users []string
	for name, inode := range children {
		if was, ok := e.Children[name]; ok && was == inode && !r.uses(path.Join(dir, name), controller) {
			continue
		}
		users = append(users, name)
	}
	return users, nil
}

// uses reports whether a group hands a controller on or has changed one of its settings.
func (r *Root) uses(group, controller string) bool {
	control, err := r.read(group + "/cgroup.subtree_control")
	if err == nil && slices.Contains(strings.Fields(control), controller) {
		return true
	}
	for file, value := range knob.Fresh(controller) {
		text, err := r.read(group + "/" + file)
		if err == nil && !same(Words, text, value) {
			return true
		}
	}
	return false
}
