package testbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Hierarchy is one mounted tree of control groups.
type Hierarchy struct {
	At      string // its mount point
	Kind    string // cgroup or cgroup2
	Options string // for mount(2): the controllers of a v1 hierarchy
	own     string // the group of this process
}

func (h Hierarchy) dir(group string) string { return path.Join(h.At, h.own, group) }

// Hierarchies returns those of this process.
func Hierarchies() ([]Hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	own := map[string]string{} // by controllers
	for line := range strings.Lines(string(groups)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			own[parts[1]] = parts[2]
		}
	}
	var all []Hierarchy
	for line := range strings.Lines(string(mounts)) {
		words := strings.Fields(line)
		if len(words) < 4 || words[2] != "cgroup" && words[2] != "cgroup2" {
			continue
		}
		h := Hierarchy{At: words[1], Kind: words[2], own: own[""]}
		if h.Kind == "cgroup" {
			var names []string
			for option := range strings.SplitSeq(words[3], ",") {
				if !slices.Contains([]string{"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "noatime", "xattr", "clone_children"}, option) {
					names = append(names, option)
				}
			}
			h.Options = strings.Join(names, ",")
			at, ok := own[h.Options]
			if !ok {
				return nil, fmt.Errorf("%s: /proc/self/cgroup does not name %q", h.At, h.Options)
			}
			h.own = at
		}
		all = append(all, h)
	}
	if len(all) == 0 {
		return nil, errors.New("no control groups are mounted")
	}
	return all, nil
}

// makeGroups makes the group of a box in every hierarchy, with the CPUs and memory nodes
// of its parent where it would be empty.
func makeGroups(all []Hierarchy, group string) error {
	for _, h := range all {
		dir := h.dir(group)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if h.Kind == "cgroup2" {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(path.Join(path.Dir(dir), file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(path.Join(dir, file), text, 0)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// removeGroups removes the group of a box with all that was made below it.
func removeGroups(all []Hierarchy, group string) error {
	var errs []error
	for _, h := range all {
		deadline := time.Now().Add(time.Minute)
		err := removeTree(h.dir(group))
		for err != nil && time.Now().Before(deadline) { // its processes are ending
			time.Sleep(20 * time.Millisecond)
			err = removeTree(h.dir(group))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeTree removes a group with all below it, also where its path is too long for a
// system call.
func removeTree(dir string) error {
	r, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = errors.Join(emptyTree(r), r.Close())
	if err != nil {
		return err
	}
	return syscall.Rmdir(dir)
}

func emptyTree(r *os.Root) error {
	d, err := r.Open(".")
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	err = errors.Join(err, d.Close())
	for _, entry := range entries {
		if err != nil || !entry.IsDir() {
			continue
		}
		var below *os.Root
		if below, err = r.OpenRoot(entry.Name()); err == nil {
			err = errors.Join(emptyTree(below), below.Close())
		}
		if err == nil {
			err = r.Remove(entry.Name())
		}
	}
	return err
}
