package resctrl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Prefix begins the names of the groups that Create makes. They monitor and
// allocate nothing.
const Prefix = "berth-"

// Own is a group that Create made.
type Own struct {
	Group
	tree Tree
}

// Create makes a group that monitors some of the threads of another. It takes
// one of the host's few RMIDs until Remove. Kernels that assign counters assign
// them to it, as long as there are some (mbm_assign_on_mkdir).
func Create(t Tree, control, name string) (*Own, error) {
	if name == "" || strings.ContainsAny(name, "/\n") {
		return nil, fmt.Errorf("create resctrl group: bad name %q", name)
	}
	o := &Own{Group{control, Prefix + name}, t}
	if err := os.Mkdir(o.dir(), 0o755); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("%w: all RMIDs are taken or still have data in the cache; remove groups or wait", err)
		}
		return nil, fmt.Errorf("create resctrl group %s: %w", o.Group, err)
	}
	return o, nil
}

func (o *Own) dir() string { return filepath.Join(string(o.tree), o.path()) }

// rounds bounds how often Add looks for threads that were born meanwhile.
const rounds = 8

// Add puts threads into the group until list names none that is not there:
// threads are born in the group of the one that made them. Those that ended, or
// are of another group that allocates, are left out.
func (o *Own) Add(list func() ([]int, error)) error {
	seen := map[int]bool{}
	for range rounds {
		threads, err := list()
		if err != nil {
			return fmt.Errorf("add to resctrl group %s: %w", o.Group, err)
		}
		added, err := o.add(threads, seen)
		if err != nil {
			return fmt.Errorf("add to resctrl group %s: %w", o.Group, err)
		}
		if added == 0 {
			return nil
		}
	}
	return fmt.Errorf("add to resctrl group %s: new threads in each of %d rounds", o.Group, rounds)
}

// add writes the threads that were not seen, one at a time: the kernel ends at
// the first that it refuses.
func (o *Own) add(threads []int, seen map[int]bool) (added int, err error) {
	file, err := os.OpenFile(filepath.Join(o.dir(), "tasks"), os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	for _, tid := range threads {
		if seen[tid] {
			continue
		}
		seen[tid] = true
		added++
		_, err = file.WriteString(strconv.Itoa(tid) + "\n")
		if err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.EINVAL) {
			break
		}
		err = nil
	}
	return added, errors.Join(err, file.Close())
}

// Remove removes the group; its threads go on in the one that it monitored. One
// that is gone is no error.
func (o *Own) Remove() error {
	err := unix.Rmdir(o.dir())
	if err != nil && err != unix.ENOENT {
		return fmt.Errorf("remove resctrl group %s: %w", o.Group, err)
	}
	return nil
}

// Leftover returns the groups of an earlier run that Create made.
func Leftover(t Tree) ([]*Own, error) {
	groups, err := t.Groups()
	if err != nil {
		return nil, err
	}
	var own []*Own
	for _, g := range groups {
		if strings.HasPrefix(g.Monitor, Prefix) {
			own = append(own, &Own{g, t})
		}
	}
	return own, nil
}
